"""Stretches of records, cut and joined into blocks of a segment: for sealing, moving and compaction."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from shared.columns import Columns
from shared.limits import BLOCK_MAX_RECORDS
from shared.record_assembler import AssembledRecords, RecordAssembler


class Stretch(Protocol):
    """Records of one topic, ascending by seq: a batch of the log, or a block."""

    @property
    def json(self) -> memoryview: ...
    @property
    def columns(self) -> Columns: ...
    @property
    def seqs(self) -> Sequence[int]: ...
    @property
    def times(self) -> array[int] | int: ...
    @property
    def times_ascend(self) -> bool:
        """Is it known, without a look at each of them, that no time is below the one before it?"""


def join_blocks(
    stretches: Iterable[tuple[Stretch, Iterable[tuple[int, int]]]], target_bytes: int
) -> Iterator[AssembledRecords]:
    """The records [low, high) that are named with each stretch, in blocks of about `target_bytes`."""
    assembler = RecordAssembler()
    for stretch, kept in stretches:
        for start, high in kept:
            low = start
            while low < high:
                upto = _fitting(stretch.columns, low, high, assembler, target_bytes)
                assembler.add_block(
                    stretch.json,
                    stretch.columns,
                    low,
                    upto,
                    stretch.seqs,
                    stretch.times,
                    times_ascend=stretch.times_ascend,
                )
                low = upto
                if not assembler.room or assembler.json_bytes >= target_bytes:
                    yield assembler.finish()
                    assembler = RecordAssembler()
        if _nearly_full(assembler, target_bytes):
            yield assembler.finish()
            assembler = RecordAssembler()
    if assembler.count:
        yield assembler.finish()


def _nearly_full(assembler: RecordAssembler, target_bytes: int) -> bool:
    """Three quarters: filling it up would mean to cut the next stretch, and all behind it, to shift their ends."""
    return 4 * assembler.count >= 3 * BLOCK_MAX_RECORDS or 4 * assembler.json_bytes >= 3 * target_bytes


def _fitting(columns: Columns, low: int, high: int, assembler: RecordAssembler, target_bytes: int) -> int:
    """How many of [low, high) go into the current block: at least one, then up to its target size."""
    high = min(high, low + assembler.room)
    ends = columns.ends
    start = ends[low - 1] if low else 0
    if ends[high - 1] - start + assembler.json_bytes <= target_bytes:
        return high
    # One at least, then all that end below the target, and the one that reaches it.
    return min(high, bisect_left(ends, target_bytes - assembler.json_bytes + start, low, high) + 1)
