"""The idempotency keys a topic remembers, each for its window.

Keys are added in time order (a topic's `ts` never decreases), so the oldest stand first and expiry is a pop
from the front.
"""

from __future__ import annotations

from typing import NamedTuple


class Remembered(NamedTuple):
    """The write that first carried the key."""

    first: int
    records: int
    ts: int


class DedupeWindow:
    __slots__ = ("_by_key",)

    def __init__(self) -> None:
        self._by_key: dict[str, Remembered] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def remember(self, key: str, first: int, count: int, ts: int) -> None:
        self._by_key.pop(key, None)
        self._by_key[key] = Remembered(first, count, ts)

    def find(self, key: str, now_ms: int, window_ms: int) -> Remembered | None:
        found = self._by_key.get(key)
        return found if found is not None and now_ms - found.ts <= window_ms else None

    def expire(self, now_ms: int, window_ms: int) -> int:
        """Forget what is past its window; returns how many keys went."""
        gone = 0
        while self._by_key:
            key = next(iter(self._by_key))
            if now_ms - self._by_key[key].ts <= window_ms:
                break
            del self._by_key[key]
            gone += 1
        return gone

    def forget_oldest(self) -> None:
        del self._by_key[next(iter(self._by_key))]

    def entries(self) -> list[tuple[str, Remembered]]:
        """Oldest first, as they must be remembered again."""
        return list(self._by_key.items())

    def without(self, first: int, last: int) -> DedupeWindow | None:
        """The keys of other writes than those of first…last; None if there is none."""
        twin = DedupeWindow()
        twin._by_key = {key: held for key, held in self._by_key.items() if not first <= held.first <= last}
        return twin if twin._by_key else None
