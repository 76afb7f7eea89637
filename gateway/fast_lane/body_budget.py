"""What all request bodies that are still arriving may hold together.

One body is bounded by the body limit, but not how many of them arrive at once. Only bytes that have
been received count, so declaring a large body reserves nothing.
"""

from __future__ import annotations

from gateway.fast_lane.refusals import Refusal
from shared.errors import Throttled
from shared.limits import RETRY_AFTER_DEFAULT_MS


class BodyBudget:
    __slots__ = ("_held", "_total", "max_body_bytes")

    def __init__(self, *, max_body_bytes: int, total_bytes: int) -> None:
        self.max_body_bytes = max_body_bytes
        self._total = max(total_bytes, max_body_bytes)  # one body always fits
        self._held = 0

    @property
    def held(self) -> int:
        return self._held

    def take(self, count: int) -> None:
        if self._held + count > self._total:
            raise Refusal(Throttled(retry_after_ms=RETRY_AFTER_DEFAULT_MS))
        self._held += count

    def give_back(self, count: int) -> None:
        self._held -= count
        assert self._held >= 0
