"""Gathering records of several sources into one block, run by run and never record by record.

Sealing and compaction decide which records stay; here their JSON and columns are cut out and joined.
"""

from array import array
from collections.abc import Sequence

import msgspec

from shared.columns import (
    COLUMN_ENDS,
    COLUMN_FLAGS,
    COLUMN_META,
    FIELD_COLUMN,
    FIELD_FLAG,
    FIELDS,
    Columns,
)
from shared.int_arrays import U64, dump, is_ascending, is_strictly_ascending, shift_u32
from shared.limits import BLOCK_MAX_RECORDS

BLOCK_MAX_JSON_BYTES = 256 << 20


class AssembledRecords(msgspec.Struct, frozen=True):
    """The content of one block, ready to be encoded."""

    count: int
    json: bytes
    first_seq: int
    last_seq: int
    min_ts: int
    max_ts: int
    seqs: "array[int] | None"
    """None if the seqs are contiguous."""
    times: "array[int] | None"
    """None if all records have the same ts."""
    column_flags: int
    columns: bytes
    """The columns of §3.3, without seqs and times."""

    def distinct(self, field: str) -> set[bytes]:
        """The values of "node", "tag" or "key" that occur."""
        if not self.column_flags & FIELD_COLUMN[field]:
            return set()
        columns = Columns(self.column_flags, self.count, len(self.json), memoryview(self.columns))
        return columns.distinct(field)


class _FieldColumn:
    """A node, tag or key column under construction."""

    __slots__ = ("blob_len", "blobs", "ends")

    def __init__(self, count: int) -> None:
        """A column that none of the `count` records before has a value in."""
        self.ends = array("I", (0,)) * count
        self.blobs: list[bytes] = []
        self.blob_len = 0

    def add(self, parts: "tuple[array[int], memoryview] | None", lo: int, hi: int) -> None:
        if parts is None:
            self.ends.extend(array("I", (self.blob_len,)) * (hi - lo))
            return
        ends, blob = parts
        start = ends[lo - 1] if lo else 0
        self.ends.extend(shift_u32(ends[lo:hi], self.blob_len - start))
        self.blobs.append(bytes(blob[start : ends[hi - 1]]))
        self.blob_len += ends[hi - 1] - start


class RecordAssembler:
    """Collects runs in ascending order of seq; `finish` gives one block's records."""

    def __init__(self) -> None:
        self.count = 0
        self.json_bytes = 0
        self._json: list[bytes | memoryview] = []
        self._ends = array("I")
        self._flags: list[bytes] = []
        # Columns appear with the first source that has them: most records have none.
        self._meta: array[int] | None = None
        self._fields: dict[str, _FieldColumn] = {}
        self._seqs: list[Sequence[int]] = []
        self._contiguous = True
        self._next_seq = 0
        self._times: list[array[int]] = []
        self._min_ts = self._max_ts = 0

    @property
    def room(self) -> int:
        """How many records the block can still take."""
        return BLOCK_MAX_RECORDS - self.count

    def add(self, json: memoryview, columns: Columns, lo: int, hi: int, first_seq: int, ts: int) -> None:
        """Records [lo, hi) of an append frame; `first_seq` is the seq of the frame's record 0."""
        self._take(json, columns, lo, hi, range(first_seq + lo, first_seq + hi))
        self._take_times(array(U64, (ts,)) * (hi - lo), ts, ts)

    def add_block(
        self,
        json: memoryview,
        columns: Columns,
        lo: int,
        hi: int,
        seqs: Sequence[int],
        times: "array[int] | int",
        *,
        times_ascend: bool = False,
    ) -> None:
        """Records [lo, hi) of a block; `seqs` and `times` belong to all its records.

        `times_ascend`: it is known that they do. What is read from a file is not relied on.
        """
        kept: Sequence[int] = seqs[lo:hi]
        if kept and not isinstance(kept, range) and kept[-1] - kept[0] == len(kept) - 1:
            kept = range(kept[0], kept[-1] + 1)
        self._take(json, columns, lo, hi, kept)
        if isinstance(times, int):
            self._take_times(array(U64, (times,)) * (hi - lo), times, times)
            return
        stamps = times[lo:hi]
        ordered = times_ascend or is_ascending(stamps)
        lowest, highest = (stamps[0], stamps[-1]) if ordered else (min(stamps), max(stamps))
        self._take_times(stamps, lowest, highest)

    def _take(self, json: memoryview, columns: Columns, lo: int, hi: int, seqs: Sequence[int]) -> None:
        count = hi - lo
        assert 0 <= lo < hi <= columns.count and count <= self.room and len(seqs) == count
        assert self.count == 0 or seqs[0] >= self._next_seq
        ends = columns.ends
        start, stop = ends[lo - 1] if lo else 0, ends[hi - 1]
        assert self.json_bytes + stop - start <= BLOCK_MAX_JSON_BYTES
        self._ends.extend(shift_u32(ends[lo:hi], self.json_bytes - start))
        part = json[start:stop]
        # A view keeps all of its source in memory: a copy, where little of that is taken.
        self._json.append(part if 2 * len(part) >= len(json) else bytes(part))
        self.json_bytes += stop - start
        self._flags.append(columns.flags[lo:hi])
        self._take_meta(columns.meta, lo, hi)
        for field in FIELDS:
            parts = columns.field_parts(field)
            if parts is not None and field not in self._fields:
                self._fields[field] = _FieldColumn(self.count)
            if field in self._fields:
                self._fields[field].add(parts, lo, hi)
        if not isinstance(seqs, range) or (self.count and seqs[0] != self._next_seq):
            self._contiguous = False
        self._seqs.append(seqs)
        self._next_seq = seqs[-1] + 1
        self.count += count

    def _take_meta(self, meta: "array[int] | None", lo: int, hi: int) -> None:
        if meta is not None and self._meta is None:
            self._meta = array("I", (0,)) * self.count
        if self._meta is not None:
            self._meta.extend(array("I", (0,)) * (hi - lo) if meta is None else meta[lo:hi])

    def _take_times(self, stamps: "array[int]", lowest: int, highest: int) -> None:
        self._min_ts = min(self._min_ts, lowest) if self._times else lowest
        self._max_ts = max(self._max_ts, highest) if self._times else highest
        self._times.append(stamps)

    def finish(self) -> AssembledRecords:
        """The block's records. The assembler is used up."""
        assert self.count
        column_flags, columns = self._encode()
        seqs = times = None
        if not self._contiguous:
            seqs = array(U64)
            for run in self._seqs:
                seqs.extend(array(U64, run))
            assert is_strictly_ascending(seqs)
        if self._min_ts != self._max_ts:
            times = array(U64)
            for stamps in self._times:
                times.frombytes(stamps.tobytes())  # a caller's may be of the other type of as many bits
        return AssembledRecords(
            count=self.count,
            json=_joined(self._json),
            first_seq=self._seqs[0][0],
            last_seq=self._next_seq - 1,
            min_ts=self._min_ts,
            max_ts=self._max_ts,
            seqs=seqs,
            times=times,
            column_flags=column_flags,
            columns=columns,
        )

    def _encode(self) -> tuple[int, bytes]:
        """Like encode_columns, but from columns: values are never taken apart."""
        present = 0
        parts: list[bytes] = []
        if self.count > 1:
            present |= COLUMN_ENDS
            parts.append(dump(self._ends))
        flags = b"".join(self._flags)
        seen: set[int] = set()
        if flags.count(0) != len(flags):
            seen = set(flags)
            present |= COLUMN_FLAGS
            parts.append(flags)
        if self._meta is not None and any(self._meta):
            present |= COLUMN_META
            parts.append(dump(self._meta))
        for field in FIELDS:
            # A source had the column; the records kept of it need not have a value.
            if any(flag & FIELD_FLAG[field] for flag in seen):
                column = self._fields[field]
                present |= FIELD_COLUMN[field]
                parts.append(dump(column.ends))
                parts.extend(column.blobs)
        return present, b"".join(parts)


def _joined(parts: Sequence[bytes | memoryview]) -> bytes:
    """A block is often made of one source, and of all of it: that is not copied."""
    if len(parts) == 1 and isinstance(part := parts[0], memoryview):
        source = part.obj
        if isinstance(source, bytes) and len(source) == len(part):
            return source
    return b"".join(parts)
