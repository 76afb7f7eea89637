"""Decoded blocks and indexes of segments, within one budget of bytes; the least recently used go first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import TypeVar, cast

_V = TypeVar("_V")


class ByteCache:
    def __init__(self, budget_bytes: int) -> None:
        self._budget = budget_bytes
        self._entries: OrderedDict[Hashable, tuple[object, int]] = OrderedDict()
        self.used_bytes = 0
        self.hits = 0
        self.misses = 0

    def get(self, key: Hashable, load: Callable[[], tuple[_V, int]]) -> _V:
        """The value under `key`; `load` gives it and its cost in bytes if it is not here."""
        found = self._entries.get(key)
        if found is not None:
            self._entries.move_to_end(key)
            self.hits += 1
            return cast(_V, found[0])
        self.misses += 1
        value, cost = load()
        if cost <= self._budget:
            self._entries[key] = (value, cost)
            self.used_bytes += cost
            while self.used_bytes > self._budget:
                _, (_, freed) = self._entries.popitem(last=False)
                self.used_bytes -= freed
        return value

    def drop(self, belongs: Callable[[Hashable], bool]) -> None:
        for key in [key for key in self._entries if belongs(key)]:
            self.used_bytes -= self._entries.pop(key)[1]
