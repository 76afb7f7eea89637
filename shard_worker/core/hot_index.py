"""Where the unsealed records of one topic are: one entry per append call, in plain arrays.

An entry is 34 bytes whatever the batch holds (38 once records of the topic were deleted one by one), so a topic's hot
part costs memory per append call, not per record. Entries are in seq order, their `ts` never decreases, and they never
overlap. Dropping from the front is amortised: `start` moves, and the arrays are cut when half of them is dead.

There is one array per column, for who looks at many entries. The newest entries stand in one piece of memory first,
entry behind entry, and move to the columns when somebody looks, or when there are many: among 100,000 topics one is in
no cache, and an append fetches that piece instead of six arrays. A topic with few records that nobody looks at has no
columns.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from contextlib import suppress
from typing import Final, NamedTuple

from librt.strings import BytesWriter

from shared.int_arrays import U64, load_u16, load_u32, load_u64
from shared.packing import put_u32, put_u64

_U64: Final = U64
_CUT_AT: Final = 256  # dead entries in front that are worth a memmove

# An entry in `_fresh`: first, lsn and ts of 8 bytes each, size and count of 4, flags of 8, all little-endian.
_FRESH_BYTES: Final = 40
_FRESH_MAX_BYTES: Final = 32 * _FRESH_BYTES

IN_MEMORY: Final = 0  # the `lsn` of an entry whose bytes are not in the log (ephemeral topics)


Columns = tuple[
    "array[int]", "array[int]", "array[int]", "array[int]", "array[int]", "array[int]", "array[int]"
]


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


# The columns of an index that has none yet: shared, so never changed in place.
_NO_U64: Final = array(_U64)
_NO_U32: Final = array("I")
_NO_U16: Final = array("H")


class HotIndex:
    __slots__ = (
        "_count",
        "_first",
        "_flags",
        "_fresh",
        "_fresh_first",
        "_live",
        "_lsn",
        "_size",
        "_ts",
        "start",
    )

    def __init__(self) -> None:
        self._fresh = bytearray()  # the entries behind those in the columns
        self._fresh_first = 0  # the first seq of the first of them
        self.start = 0
        self._first = _NO_U64
        self._lsn = _NO_U64
        self._ts = _NO_U64
        self._size = _NO_U32
        # Bytes of the entry's records that are neither deleted nor evicted. All of them are there in most topics: then
        # it is the very array of the sizes, which is one less to keep.
        self._live = self._size
        self._count = _NO_U32
        self._flags = _NO_U16

    def __len__(self) -> int:
        return len(self._first) - self.start + len(self._fresh) // _FRESH_BYTES

    def append(self, first: int, count: int, ts: int, lsn: int, size: int, flags: int) -> None:
        writer = BytesWriter()
        put_u64(writer, first)
        put_u64(writer, lsn)
        put_u64(writer, ts)
        put_u32(writer, size)
        put_u32(writer, count)
        put_u64(writer, flags)
        if not len(self._fresh):
            self._fresh_first = first
        self._fresh += writer.getvalue()
        if len(self._fresh) >= _FRESH_MAX_BYTES:
            self._settle()

    def _settle(self) -> None:
        """Move the newest entries to the columns."""
        fresh, self._fresh = self._fresh, bytearray()
        first, lsn, ts, size, count, flags = _by_column(fresh)
        if not len(self._first):
            self._first, self._lsn, self._ts = first, lsn, ts
            self._size = self._live = size
            self._count, self._flags = count, flags
            return
        self._first.extend(first)
        self._lsn.extend(lsn)
        self._ts.extend(ts)
        self._size.extend(size)
        if self._live is not self._size:
            self._live.extend(size)
        self._count.extend(count)
        self._flags.extend(flags)

    # --- columns, complete ------------------------------------------------------------------------------

    @property
    def first(self) -> array[int]:
        if len(self._fresh):
            self._settle()
        return self._first

    @property
    def lsn(self) -> array[int]:
        if len(self._fresh):
            self._settle()
        return self._lsn

    @property
    def ts(self) -> array[int]:
        if len(self._fresh):
            self._settle()
        return self._ts

    @property
    def size(self) -> array[int]:
        if len(self._fresh):
            self._settle()
        return self._size

    @property
    def live(self) -> array[int]:
        if len(self._fresh):
            self._settle()
        return self._live

    @property
    def count(self) -> array[int]:
        if len(self._fresh):
            self._settle()
        return self._count

    @property
    def flags(self) -> array[int]:
        if len(self._fresh):
            self._settle()
        return self._flags

    # --- the oldest entry, which is asked for often: the columns stay as they are ------------------------

    def oldest_seq(self) -> int:
        """The first seq in here; 0 if there is none."""
        if len(self._first) > self.start:
            return self._first[self.start]
        return self._fresh_first if len(self._fresh) else 0

    def oldest_lsn(self) -> int:
        """That of the oldest entry, which must be there."""
        if len(self._first) > self.start:
            return self._lsn[self.start]
        return int.from_bytes(self._fresh[8:16], "little")

    def oldest_ts(self) -> int:
        """That of the oldest entry, which must be there."""
        if len(self._first) > self.start:
            return self._ts[self.start]
        return int.from_bytes(self._fresh[16:24], "little")

    def take_off(self, index: int, size: int) -> None:
        """So many bytes of the entry's records are gone."""
        if self.live is self._size:
            self._live = self._size[:]
        self._live[index] -= size

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
        return HotIndex.of(*self._columns(slice(self.start, end)))

    def columns(self) -> Columns:
        """Copies of first, lsn, ts, size, live, count and flags of all entries, for a snapshot. An index without
        columns still has none afterwards: all topics are looked at, and most are not looked at again."""
        if len(self._first):
            return self._columns(slice(self.start, len(self.first)))
        assert not self.start, "what was dropped was in the columns"
        first, lsn, ts, size, count, flags = _by_column(self._fresh)
        return first, lsn, ts, size, size, count, flags

    def _columns(self, cut: slice) -> Columns:
        size = self.size[cut]
        live = size if self._live is self._size else self._live[cut]
        return (
            self._first[cut],
            self._lsn[cut],
            self._ts[cut],
            size,
            live,
            self._count[cut],
            self._flags[cut],
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
        if len(self._fresh):
            self._settle()
        if residents:
            resident = [self.entry(i) for i in range(self.start, index) if self.lsn[i] == IN_MEMORY]
        self.start = index
        if index >= _CUT_AT and index * 2 >= len(self._first):
            if self._live is not self._size:
                del self._live[:index]
            for column in (self._first, self._lsn, self._ts, self._size, self._count, self._flags):
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
        if len(first):
            index._first, index._lsn, index._ts, index._size = first, lsn, ts, size
            index._live, index._count, index._flags = size if live == size else live, count, flags
        return index


def _by_column(
    fresh: bytearray,
) -> tuple[array[int], array[int], array[int], array[int], array[int], array[int]]:
    """first, lsn, ts, size, count, flags of entries that stand one behind the other: slices, no step per entry."""
    content = bytes(fresh)
    words, halves, quarters = load_u64(content), load_u32(content), load_u16(content)
    return words[0::5], words[1::5], words[2::5], halves[6::10], halves[7::10], quarters[16::20]
