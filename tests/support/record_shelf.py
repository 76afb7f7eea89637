"""Records of topics in memory, behind the interface over which the core looks into files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from shard_worker.core.batch import encode_batch
from shard_worker.core.piece import Piece
from shard_worker.core.topic import Topic
from shared.api_types import TopicConfig, decode_write
from shared.columns import Columns
from shared.settings import Settings
from shared.wal_format import lsn_of

SETTINGS = Settings()


class RecordShelf:
    """One "log file" of JSON parts, and segments of one topic's batches."""

    def __init__(self) -> None:
        self.log = bytearray(64)
        self.verified: list[int] = []
        self._columns: dict[int, bytes] = {}
        self._segments: dict[int, list[Piece]] = {}

    # --- filling ----------------------------------------------------------------------------------------

    def append(self, topic: Topic, records: Sequence[dict[str, Any]], ts: int = 1000) -> None:
        body = json.dumps({"records": list(records)}).encode()
        first = topic.head + 1
        batch = encode_batch(decode_write(body), len(body), first, ts, SETTINGS)
        lsn = lsn_of(1, len(self.log))
        self.log += batch.json + b"\0" * 50  # frames have headers and columns between their JSON parts
        self._columns[lsn] = batch.columns
        topic.apply_append(first, batch.count, ts, lsn, len(batch.json), batch.column_flags, self)

    def seal(self, topic: Topic, segment: int) -> None:
        """All hot batches of the topic become a segment."""
        self._segments[segment] = [
            topic.hot_piece(index, self) for index in range(topic.hot.start, len(topic.hot.first))
        ]
        topic.apply_sealed(segment, topic.hot.last_seq(), topic.last_ts, self)

    def extent(self, file_no: int, offset: int, length: int) -> bytes:
        assert file_no == 1
        return bytes(self.log[offset : offset + length])

    # --- PieceSource ------------------------------------------------------------------------------------

    def hot_piece(
        self, topic_id: int, first: int, count: int, ts: int, lsn: int, size: int, flags: int
    ) -> Piece:
        columns = memoryview(self._columns[lsn])
        return Piece(
            first=first,
            last=first + count - 1,
            count=count,
            ts=ts,
            load_columns=lambda: (Columns(flags, count, size, columns), None, None),
            load_json=lambda: self._json(lsn, size),
        )

    def _json(self, lsn: int, size: int) -> memoryview:
        offset = lsn & 0xFFFFFFFF
        return memoryview(bytes(self.log[offset : offset + size]))

    def verify_hot(self, lsn: int) -> None:
        self.verified.append(lsn)

    def hot_json(self, lsns: Sequence[int], sizes: Sequence[int]) -> list[Any]:
        return [bytes(self._json(lsn, size)) for lsn, size in zip(lsns, sizes, strict=True)]

    def sealed_pieces(self, segment: int, topic_id: int, first: int, last: int) -> Iterator[Piece]:
        for piece in self._segments[segment]:
            if piece.last >= first and piece.first <= last:
                yield piece

    def sealed_matches(
        self, segment: int, topic_id: int, field: str, value: bytes, prefix: bool
    ) -> Iterable[Piece]:
        return iter(self._segments[segment])

    def run_added(self, segment: int) -> None:
        pass

    def run_dropped(self, segment: int) -> None:
        pass


def make_topic(**config: Any) -> Topic:
    return Topic(id=1, name="t", epoch=1, config=TopicConfig(**config))
