"""Very many coarse timers: adding one is an append to a list, and nobody sleeps for a single one of them.

Due times are rounded up to slots, so timers that are due at about the same time go off together. A timer is
never taken back: whoever it wakes looks whether there is still something to do.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

Callback = Callable[[], None]


class TimerWheel:
    def __init__(self, slot_ms: int) -> None:
        self._slot_ms = slot_ms
        self._slots: dict[int, list[Callback]] = {}
        self._order: list[int] = []  # numbers of the slots, a heap

    def __len__(self) -> int:
        return sum(map(len, self._slots.values()))

    def add(self, due_ms: int, callback: Callback) -> None:
        slot = -(-due_ms // self._slot_ms)
        waiting = self._slots.get(slot)
        if waiting is None:
            self._slots[slot] = [callback]
            heappush(self._order, slot)
        else:
            waiting.append(callback)

    def next_due_ms(self) -> int | None:
        return self._order[0] * self._slot_ms if self._order else None

    def take_due(self, now_ms: int) -> list[Callback]:
        """Those that are due by now, earliest first."""
        due: list[Callback] = []
        while self._order and self._order[0] * self._slot_ms <= now_ms:
            due += self._slots.pop(heappop(self._order))
        return due
