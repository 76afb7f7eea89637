"""The seqs of one topic that were removed one by one (deleted, acked, compacted)."""

from __future__ import annotations

from collections.abc import Iterator

from pyroaring import BitMap64


class SeqSet:
    """A set of seqs in a roaring bitmap: dense runs and lone seqs are both cheap."""

    __slots__ = ("_bits",)

    def __init__(self, stored: bytes | None = None) -> None:
        self._bits = BitMap64.deserialize(stored) if stored is not None else BitMap64()

    def __len__(self) -> int:
        return len(self._bits)

    def __contains__(self, seq: int) -> bool:
        return seq in self._bits

    def add(self, seq: int) -> None:
        self._bits.add(seq)

    def add_range(self, first: int, last: int) -> None:
        self._bits.add_range(first, last + 1)

    def count(self, first: int, last: int) -> int:
        """How many seqs of first…last are in the set."""
        if last < first:
            return 0
        return int(self._bits.range_cardinality(first, last + 1))

    def within(self, first: int, last: int) -> Iterator[int]:
        for seq in self._bits.iter_equal_or_larger(first):
            if seq > last:
                return
            yield seq

    def forget_below(self, seq: int) -> None:
        if seq > 0:
            self._bits.remove_range(0, seq)

    def forget(self, first: int, last: int) -> None:
        self._bits.remove_range(first, last + 1)

    def first_absent(self, seq: int) -> int:
        """The smallest seq ≥ `seq` that is not in the set."""
        step = 1
        while seq in self._bits:
            # Gallop over dense runs: acked jobs and deleted ranges are usually contiguous.
            if self._bits.contains_range(seq, seq + step):
                seq += step
                step *= 2
            else:
                step = max(1, step // 2)
        return seq

    def copy(self) -> SeqSet:
        twin = SeqSet()
        twin._bits = self._bits.copy()
        return twin

    def to_bytes(self) -> bytes:
        self._bits.run_optimize()
        return bytes(self._bits.serialize())
