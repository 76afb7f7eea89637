"""Writes that asked to wait (`disable_backpressure`) and found the shard full, in the order in which they came.

What waits is bounded in number, bytes and time. A write is tried again as if it had just come, and its answer tells
how long it has waited.
"""

from __future__ import annotations

from collections import deque

from shard_worker.request import Extents, Request, Sink, Timings
from shared.limits import THROTTLE_WAIT_MAX_MS, THROTTLED_MAX_BYTES, THROTTLED_MAX_REQUESTS


class HeldWrites:
    def __init__(self) -> None:
        self._held: deque[tuple[int, Request]] = deque()  # since when, oldest first
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, request: Request, now_ms: int) -> bool:
        """False if too much waits already."""
        if len(self._held) >= THROTTLED_MAX_REQUESTS or self._bytes + len(request.body) > THROTTLED_MAX_BYTES:
            return False
        self._held.append((now_ms, request))
        self._bytes += len(request.body)
        return True

    def take(self, now_ms: int) -> tuple[Request, int]:
        """The one that has waited longest, to be tried again, and for how long it has waited."""
        since_ms, request = self._held.popleft()
        self._bytes -= len(request.body)
        waited_ms = max(0, now_ms - since_ms)
        request.sink = _Delayed(request.sink, waited_ms)
        return request, waited_ms

    def take_expired(self, now_ms: int) -> list[Request]:
        expired = []
        while self._held and now_ms - self._held[0][0] >= THROTTLE_WAIT_MAX_MS:
            _, request = self._held.popleft()
            self._bytes -= len(request.body)
            expired.append(request)
        return expired

    def forget(self, sink: object) -> None:
        self._held = deque(each for each in self._held if each[1].sink is not sink)
        self._bytes = sum(len(request.body) for _, request in self._held)

    def next_deadline_ms(self) -> int | None:
        return self._held[0][0] + THROTTLE_WAIT_MAX_MS if self._held else None


class _Delayed:
    """Where the answer goes, with the time that the request has waited."""

    __slots__ = ("_sink", "_waited_ms")

    def __init__(self, sink: Sink, waited_ms: int) -> None:
        self._sink = sink
        self._waited_ms = waited_ms

    @property
    def full(self) -> bool:
        return self._sink.full

    def answer(
        self,
        id: int,
        status: int,
        body: bytes,
        timings: Timings | None = None,
        extents: Extents | None = None,
        tail: bytes | None = None,
    ) -> None:
        told = {**(timings or {}), "throttle_wait_ms": float(self._waited_ms)}
        self._sink.answer(id, status, body, told, extents, tail)
