"""Claims that wait for jobs of one queue: in line, or in the window in which claims are gathered first.

Whoever serves them looks at the first ones only, and at those that have waited long enough: what a new job costs does
not depend on how many wait for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from itertools import islice

from shard_worker.core.topic import Topic
from shard_worker.request import Request

_CLEAN_AT = 64  # entries of claims that are gone, before it is worth a pass to throw them out


class WaitingClaim:
    __slots__ = ("deadline_ms", "lease_ms", "node", "request", "topic", "wanted")

    def __init__(
        self, request: Request, topic: Topic, node: str, wanted: int, lease_ms: int, deadline_ms: int
    ) -> None:
        self.request = request
        self.topic = topic
        self.node = node
        self.wanted = wanted
        self.lease_ms = lease_ms
        self.deadline_ms = deadline_ms  # when it is answered, whatever there is


class Waiters:
    """Not empty, but while it is being worked on."""

    __slots__ = ("_deadlines", "_entries", "_gathered", "_line", "window_ms")

    def __init__(self) -> None:
        self._line: dict[WaitingClaim, None] = {}
        self._deadlines: list[
            tuple[int, int, WaitingClaim]
        ] = []  # heap, of those in line; entries may be stale
        self._entries = 0
        self._gathered: list[WaitingClaim] = []
        self.window_ms = 0  # when the window of those that are gathered is over

    def __len__(self) -> int:
        return len(self._line) + len(self._gathered)

    def __iter__(self) -> Iterator[WaitingClaim]:
        yield from self._line
        yield from self._gathered

    def add(self, claim: WaitingClaim) -> None:
        self._line[claim] = None
        self._entries += 1
        heappush(self._deadlines, (claim.deadline_ms, self._entries, claim))

    def gather(self, claim: WaitingClaim, now_ms: int, jitter_ms: int) -> None:
        """Into the window that is open, or the first of a new one."""
        self.close_window(now_ms)
        if not self._gathered:
            self.window_ms = now_ms + jitter_ms
        claim.deadline_ms = max(claim.deadline_ms, self.window_ms)
        self._gathered.append(claim)

    def close_window(self, now_ms: int) -> None:
        """Whose window is over stands in line, behind those that were there before."""
        if self._gathered and self.window_ms <= now_ms:
            for claim in self._gathered:
                self.add(claim)
            self._gathered = []

    def first(self, most: int) -> list[WaitingClaim]:
        return list(islice(self._line, most))

    def take_expired(self, now_ms: int) -> list[WaitingClaim]:
        found = []
        while (deadline_ms := self._next_deadline_ms()) is not None and deadline_ms <= now_ms:
            claim = heappop(self._deadlines)[2]
            del self._line[claim]
            found.append(claim)
        return found

    def remove(self, claims: Iterable[WaitingClaim]) -> None:
        for claim in claims:
            if claim in self._line:
                del self._line[claim]
            elif claim in self._gathered:
                self._gathered.remove(claim)
        if len(self._deadlines) >= _CLEAN_AT + 2 * len(self._line):
            self._deadlines = [entry for entry in self._deadlines if entry[2] in self._line]
            heapify(self._deadlines)

    @property
    def in_line(self) -> bool:
        return bool(self._line)

    def next_ms(self) -> int:
        """When something is due for one of them, whether a job comes or not."""
        deadline_ms = self._next_deadline_ms()
        if not self._gathered:
            assert deadline_ms is not None, "nobody waits"
            return deadline_ms
        return self.window_ms if deadline_ms is None else min(deadline_ms, self.window_ms)

    def _next_deadline_ms(self) -> int | None:
        deadlines = self._deadlines
        while deadlines and deadlines[0][2] not in self._line:
            heappop(deadlines)
        return deadlines[0][0] if deadlines else None
