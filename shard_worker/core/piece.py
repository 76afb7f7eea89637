"""A stretch of one topic's records that can be looked into: a batch in the log, or a block of a segment.

Reads, deletes and evictions all work on pieces, so none of them knows where records are kept.
Columns and JSON are loaded (and verified) only when asked for.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from shared.columns import Columns


class Piece:
    __slots__ = (
        "_columns",
        "_json",
        "_load_columns",
        "_load_json",
        "_seqs",
        "_times",
        "_ts",
        "count",
        "first",
        "last",
        "size",
        "times_ascend",
    )

    def __init__(
        self,
        *,
        first: int,
        last: int,
        count: int,
        ts: int,
        load_columns: Callable[[], tuple[Columns, Sequence[int] | None, array[int] | None]],
        load_json: Callable[[], memoryview],
        size: int | None = None,
        times_ascend: bool = False,
    ) -> None:
        self.times_ascend = times_ascend  # known without a look at each of them; False: not known
        self.first = first
        self.last = last
        self.count = count
        self.size = size  # bytes of all its records, where that is known without looking
        self._ts = ts
        self._load_columns = load_columns
        self._load_json = load_json
        self._columns: Columns | None = None
        self._json: memoryview | None = None
        self._seqs: Sequence[int] | None = None
        self._times: array[int] | None = None

    @property
    def columns(self) -> Columns:
        if self._columns is None:
            self._columns, self._seqs, self._times = self._load_columns()
        return self._columns

    @property
    def json(self) -> memoryview:
        if self._json is None:
            self._json = self._load_json()
        return self._json

    @property
    def dense(self) -> bool:
        """Are the seqs first, first + 1, … without a hole?"""
        return self.last - self.first + 1 == self.count

    @property
    def seqs(self) -> Sequence[int]:
        """The seq of every record."""
        if self.dense:
            return range(self.first, self.last + 1)
        _ = self.columns
        assert self._seqs is not None
        return self._seqs

    @property
    def times(self) -> array[int] | int:
        """The time of every record, or the one that all have."""
        _ = self.columns
        return self._ts if self._times is None else self._times

    def seq_at(self, index: int) -> int:
        if self.dense:
            return self.first + index
        _ = self.columns
        assert self._seqs is not None
        return self._seqs[index]

    def index_of(self, seq: int) -> int:
        """The index of the first record whose seq is at least `seq`; `count` if there is none."""
        if seq <= self.first:
            return 0
        if seq > self.last:
            return self.count
        if self.dense:
            return seq - self.first
        _ = self.columns
        assert self._seqs is not None
        return bisect_left(self._seqs, seq)

    def first_not_older(self, ts: int) -> int:
        """The index of the first record whose time is at least `ts`; `count` if there is none."""
        _ = self.columns
        if self._times is None:
            return 0 if self._ts >= ts else self.count
        return bisect_left(self._times, ts)

    def size_at(self, index: int) -> int:
        ends = self.columns.ends
        return ends[index] - (ends[index - 1] if index else 0)


class PieceSource(Protocol):
    """Where the pieces of a topic come from; implemented over log and segment files."""

    def hot_piece(
        self, topic_id: int, first: int, count: int, ts: int, lsn: int, size: int, flags: int
    ) -> Piece:
        """The batch whose JSON part starts at `lsn`."""

    def verify_hot(self, lsn: int) -> None:
        """Raise unless the batch whose JSON part starts at `lsn` is intact; for bytes sent without a look."""

    def hot_json(self, lsns: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
        """The JSON parts of whole batches, in one go; verified."""

    def hot_part(self, lsn: int, size: int, count: int, start: int, stop: int) -> bytes:
        """The records at places start…stop of one batch of `count`, without a look at the others; verified."""

    def sealed_pieces(self, segment: int, topic_id: int, first: int, last: int) -> Iterator[Piece]:
        """The blocks of that topic in that segment that touch first…last, ascending."""

    def sealed_matches(
        self, segment: int, topic_id: int, field: str, value: bytes, prefix: bool
    ) -> Iterator[Piece]:
        """The blocks of that topic that may hold `value` (or a value starting with it) in `field`."""

    def run_added(self, segment: int) -> None:
        """A topic's records are now served from that segment."""

    def run_dropped(self, segment: int) -> None:
        """A topic needs that segment no longer; without any topic it can go."""
