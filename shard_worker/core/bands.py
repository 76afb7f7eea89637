"""Who is served next: bands of priority with weights, and ranks that rise with waiting. No clock, no I/O.

    bands.put(item, priority, now_ms)       it waits, once, however often it is put
    bands.pick(now_ms)                      the next one to serve, or None

An item's rank is its priority plus what waiting adds to it (core/priority.py); the rank says which band it stands in.

    rank    >= 750   >= 500   >= 250   >= 0   < 0
    turns        8        4        2      1     1      of every 16

B1 A band that stays occupied gets at least its turns out of any 16 picks: turns of empty bands pass to the next one.
B2 Within a band whoever has waited longest goes first, also if it rose into the band just now.
B3 So an item waits for at most 16 picks per item that stands before it in its band, whatever the others bring.
   (tests/property/test_bands_props.py)

`put`, `pick` and `discard` take O(log n).
"""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeVar

from shard_worker.core.priority import WAITING_MAX, WAITING_STEP_MS

_T = TypeVar("_T", bound=Hashable)

FLOORS: Final = (750, 500, 250, 0)
"""The lowest rank of each band but the last, which has none."""

NEGATIVE: Final = len(FLOORS)
"""The band of ranks below zero."""

# Spread evenly, so that a band with few turns does not wait for all the others to have had theirs.
TURNS: Final = (0, 1, 0, 2, 0, 1, 0, 3, 0, 1, 0, 2, 0, 1, 0, 4)
_NEXT_TURN: Final = tuple((turn + 1) % len(TURNS) for turn in range(len(TURNS)))

_GONE = -1
_STALE_MAX = 64  # entries that a heap may hold on to for nothing, besides as many as it needs


class _Entry(Generic[_T]):
    """A wait at one priority. It only ever rises, so that a heap holds it once."""

    __slots__ = ("band", "item", "priority", "serial", "since_ms")

    def __init__(self, item: _T, priority: int, since_ms: int, serial: int) -> None:
        self.item = item
        self.priority = priority
        self.since_ms = since_ms
        self.serial = serial
        self.band = _GONE


# Sorted by time, then in the order in which they came. Entries that have moved on meanwhile are passed over.
_Heap = list[tuple[int, int, _Entry[_T]]]


class Bands(Generic[_T]):
    def __init__(self) -> None:
        self._entries: dict[_T, _Entry[_T]] = {}
        self._bands: list[_Heap[_T]] = [[] for _ in range(NEGATIVE + 1)]
        self._depths = [0] * (NEGATIVE + 1)
        self._rising: _Heap[_T] = []  # by when the entry reaches the next band
        self._serial = 0
        self._turn = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, item: _T) -> bool:
        return item in self._entries

    def __repr__(self) -> str:
        return f"<Bands {self._depths}>"

    @property
    def depths(self) -> tuple[int, ...]:
        """How many wait in each band, the highest first."""
        return tuple(self._depths)

    def waited_ms(self, item: _T, now_ms: int) -> int:
        """0 if it does not wait."""
        entry = self._entries.get(item)
        return 0 if entry is None else max(0, now_ms - entry.since_ms)

    def put(self, item: _T, priority: int, now_ms: int) -> bool:
        """Let it wait from now on. One that waits already keeps its time, and takes the new priority: then False."""
        entry = self._entries.get(item)
        if entry is not None and entry.priority == priority:
            return False
        since_ms = now_ms
        if entry is not None:
            since_ms = entry.since_ms
            self._leave(entry)
        self._serial += 1
        waits = self._entries[item] = _Entry(item, priority, since_ms, self._serial)
        self._enter(waits, _band_at(waits, now_ms))
        return entry is None

    def pick(self, now_ms: int, *, negatives: bool = True) -> _T | None:
        """Take out the next one. Without `negatives` those of the last band stay where they are, and rise on."""
        self._raise(now_ms)
        turn = self._turn
        for _ in TURNS:
            band = TURNS[turn]
            turn = _NEXT_TURN[turn]
            if self._depths[band] and (negatives or band != NEGATIVE):
                self._turn = turn
                return self._pop(band)
        return None

    def discard(self, item: _T) -> None:
        entry = self._entries.pop(item, None)
        if entry is not None:
            self._leave(entry)

    # --- entries and heaps ------------------------------------------------------------------------------

    def _pop(self, band: int) -> _T:
        heap = self._bands[band]
        entry = heappop(heap)[2]
        while entry.band != band:
            entry = heappop(heap)[2]
        del self._entries[entry.item]
        self._leave(entry)
        return entry.item

    def _raise(self, now_ms: int) -> None:
        while self._rising and self._rising[0][0] <= now_ms:
            entry = heappop(self._rising)[2]
            if entry.band > 0 and _rises_at(entry) <= now_ms:
                self._leave(entry)
                self._enter(entry, _band_at(entry, now_ms))

    def _enter(self, entry: _Entry[_T], band: int) -> None:
        entry.band = band
        self._depths[band] += 1
        heappush(self._bands[band], (entry.since_ms, entry.serial, entry))
        if band > 0 and FLOORS[band - 1] - entry.priority <= WAITING_MAX:
            heappush(self._rising, (_rises_at(entry), entry.serial, entry))

    def _leave(self, entry: _Entry[_T]) -> None:
        band, entry.band = entry.band, _GONE
        self._depths[band] -= 1
        if len(self._bands[band]) > 2 * self._depths[band] + _STALE_MAX:
            self._bands[band] = [kept for kept in self._bands[band] if kept[2].band == band]
            heapify(self._bands[band])
        if len(self._rising) > 2 * len(self._entries) + _STALE_MAX:
            self._rising = [kept for kept in self._rising if kept[2].band > 0]
            heapify(self._rising)


def band_of(rank: int) -> int:
    """0 is the highest."""
    for band, floor in enumerate(FLOORS):
        if rank >= floor:
            return band
    return NEGATIVE


def _band_at(entry: _Entry[_T], now_ms: int) -> int:
    waited = max(0, now_ms - entry.since_ms) // WAITING_STEP_MS
    return band_of(entry.priority + min(WAITING_MAX, waited))


def _rises_at(entry: _Entry[_T]) -> int:
    """When it reaches the floor of the band above its own."""
    return entry.since_ms + WAITING_STEP_MS * max(0, FLOORS[entry.band - 1] - entry.priority)
