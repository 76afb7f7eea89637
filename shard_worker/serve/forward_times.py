"""When a worker forwards: a small share of its time while requests come in, all of it while none do.

Requests that arrive while routers copy wait for the end of the slice. So after each slice the worker leaves several
times as long to requests: most of them never meet one, and with a hundred routers batches grow instead of latencies.
"""

from __future__ import annotations

from collections.abc import Callable

from shared.limits import FORWARD_BUSY_S, FORWARD_REST


class ForwardTimes:
    """`with times:` around each slice."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last_request = -FORWARD_BUSY_S
        self._began = 0.0
        self._not_before = 0.0

    def requests_came(self) -> None:
        self._last_request = self._clock()

    def __enter__(self) -> None:
        self._began = self._clock()

    def __exit__(self, *_: object) -> None:
        now = self._clock()
        busy = now - self._last_request < FORWARD_BUSY_S
        self._not_before = now + FORWARD_REST * (now - self._began) if busy else 0.0

    def rest_s(self) -> float:
        """Seconds until the next slice; 0: now."""
        return max(0.0, self._not_before - self._clock()) if self._not_before else 0.0
