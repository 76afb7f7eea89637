"""Which hot records of a topic carry a node, tag or key: built when a delete first asks, then kept up to date.

Most topics are never searched, so they pay nothing. Entries of records that have left the hot part stay until
`stale` says that rebuilding is cheaper than keeping them; the topic checks every seq found here for life.
"""

from __future__ import annotations

from collections.abc import Iterator

from shard_worker.core.piece import Piece
from shared.columns import FIELD_COLUMN, FIELDS

_MIN_SLACK = 4096  # records


class HotTerms:
    __slots__ = ("_records", "_seqs")

    def __init__(self) -> None:
        self._seqs: dict[str, dict[bytes, list[int]]] = {field: {} for field in FIELDS}
        self._records = 0

    def add(self, piece: Piece) -> None:
        self._records += piece.count
        columns = piece.columns
        for field in FIELDS:
            if not columns.column_flags & FIELD_COLUMN[field]:
                continue
            by_value = self._seqs[field]
            for index, value in enumerate(columns.values(field)):
                if value is not None:
                    by_value.setdefault(value, []).append(piece.seq_at(index))

    def find(self, field: str, value: bytes, prefix: bool) -> Iterator[int]:
        by_value = self._seqs[field]
        if not prefix:
            yield from by_value.get(value, ())
            return
        for held, seqs in by_value.items():
            if held.startswith(value):
                yield from seqs

    def stale(self, hot_records: int) -> bool:
        return self._records > 2 * hot_records + _MIN_SLACK
