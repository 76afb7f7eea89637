"""Where the unsealed records of one topic are: one entry per append call, in plain arrays.

An entry is 34 bytes whatever the batch holds (38 once records of the topic were deleted one by one), so a topic's hot
part costs memory per append call, not per record. Entries are in seq order, their `ts` never decreases, and they never
overlap. Dropping from the front is amortised: `start` moves, and the arrays are cut when half of them is dead.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from contextlib import suppress
from typing import Final, NamedTuple

from shared.int_arrays import U64

_U64: Final = U64
_CUT_AT: Final = 256  # dead entries in front that are worth a memmove

IN_MEMORY: Final = 0  # the `lsn` of an entry whose bytes are not in the log (ephemeral topics)


class HotEntry(NamedTuple):
    """One append call. `lsn` is the position of its JSON part, `size` the length of that part."""

    first: int
    records: int
    ts: int
    lsn: int
    size: int
    flags: int

    @property
    def last(self) -> int:
        return self.first + self.records - 1


class HotIndex:
    __slots__ = ("count", "first", "flags", "live", "lsn", "size", "start", "ts")

    def __init__(self) -> None:
        self.first = array(_U64)
        self.lsn = array(_U64)
        self.ts = array(_U64)
        self.size = array("I")
        # Bytes of the entry's records that are neither deleted nor evicted. All of them are there in most topics: then
        # it is the very array of the sizes, which is one less to keep, and to fetch into the cache with each append.
        self.live = self.size
        self.count = array("I")
        self.flags = array("H")
        self.start = 0

    def __len__(self) -> int:
        return len(self.first) - self.start

    def append(self, first: int, count: int, ts: int, lsn: int, size: int, flags: int) -> None:
        self.first.append(first)
        self.lsn.append(lsn)
        self.ts.append(ts)
        self.size.append(size)
        if self.live is not self.size:
            self.live.append(size)
        self.count.append(count)
        self.flags.append(flags)

    def take_off(self, index: int, size: int) -> None:
        """So many bytes of the entry's records are gone."""
        if self.live is self.size:
            self.live = self.size[:]
        self.live[index] -= size

    def entry(self, index: int) -> HotEntry:
        return HotEntry(
            self.first[index],
            self.count[index],
            self.ts[index],
            self.lsn[index],
            self.size[index],
            self.flags[index],
        )

    def in_log(self, *, residents: bool = True) -> HotIndex:
        """A copy of the entries in front of the first resident one, cheap enough to be taken between turns.

        `residents`: may there be any? A look at 100,000 entries takes milliseconds.
        """
        end = len(self.lsn)
        if residents:
            with suppress(ValueError):
                end = self.lsn.index(IN_MEMORY, self.start)
        cut = slice(self.start, end)
        size = self.size[cut]
        live = size if self.live is self.size else self.live[cut]
        return HotIndex.of(
            self.first[cut], self.lsn[cut], self.ts[cut], size, live, self.count[cut], self.flags[cut]
        )

    def last_of(self, index: int) -> int:
        """The last seq of an entry."""
        return self.first[index] + self.count[index] - 1

    def last_seq(self) -> int:
        """The newest seq in here; 0 if there is none."""
        return self.first[-1] + self.count[-1] - 1 if len(self.first) > self.start else 0

    def index_of(self, seq: int) -> int:
        """The first entry that holds `seq` or anything behind it; `len(first)` if there is none."""
        index = bisect_right(self.first, seq, self.start) - 1
        if index < self.start:
            return self.start
        if seq >= self.first[index] + self.count[index]:
            return index + 1
        return index

    def find(self, seq: int) -> int:
        """The entry that holds `seq`; -1 if there is none."""
        index = bisect_right(self.first, seq, self.start) - 1
        if index < self.start or seq >= self.first[index] + self.count[index]:
            return -1
        return index

    def last_from(self, seq: int) -> int:
        """The last entry that starts at or before `seq`, whether it reaches that far or not."""
        return bisect_right(self.first, seq, self.start) - 1

    def first_not_older(self, ts: int) -> int:
        """The first entry whose `ts` is at least `ts`."""
        return bisect_left(self.ts, ts, self.start)

    def drop_before(self, index: int, *, residents: bool = True) -> list[HotEntry]:
        """Forget the entries in front of `index`. Returns those that lived in memory only.

        `residents`: may there be any?
        """
        resident = []
        if residents:
            resident = [self.entry(i) for i in range(self.start, index) if self.lsn[i] == IN_MEMORY]
        self.start = index
        if index >= _CUT_AT and index * 2 >= len(self.first):
            if self.live is not self.size:
                del self.live[:index]
            for column in (self.first, self.lsn, self.ts, self.size, self.count, self.flags):
                del column[:index]
            self.start = 0
        return resident

    @classmethod
    def of(
        cls,
        first: array[int],
        lsn: array[int],
        ts: array[int],
        size: array[int],
        live: array[int],
        count: array[int],
        flags: array[int],
    ) -> HotIndex:
        """From columns of equal length, as a snapshot has them."""
        index = cls()
        index.first, index.lsn, index.ts, index.size = first, lsn, ts, size
        index.live, index.count, index.flags = size if live == size else live, count, flags
        return index
