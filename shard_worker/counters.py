"""Numbers that an engine keeps about itself, for metrics."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

_SYNC_BOUNDS_MS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 5000)
_WAIT_BOUNDS_MS = (1, 5, 10, 50, 100, 500, 1000, 5000, 10_000, 60_000, 300_000, 3_600_000, 86_400_000)


class Histogram:
    """How long things took."""

    def __init__(self, bounds_ms: Sequence[float]) -> None:
        self._bounds_ms = bounds_ms
        self._counts = [0] * (len(bounds_ms) + 1)
        self._sum_ms = 0.0

    def add(self, took_ms: float, times: int = 1) -> None:
        self._counts[bisect_left(self._bounds_ms, took_ms)] += times
        self._sum_ms += took_ms * times

    def to_map(self) -> dict[str, object]:
        """Upper bounds with cumulative counts, without the last, infinite one."""
        buckets, total = [], 0
        for bound, count in zip(self._bounds_ms, self._counts, strict=False):
            total += count
            buckets.append([bound, total])
        return {"buckets": buckets, "count": sum(self._counts), "sum": self._sum_ms}


@dataclass(slots=True)
class EngineCounters:
    appends: int = 0
    records_appended: int = 0
    reads: int = 0
    records_read: int = 0
    records_deleted: int = 0
    jobs_claimed: int = 0
    jobs_acked: int = 0
    copies_forwarded: int = 0  # by routers from here, confirmed
    copies_arrived: int = 0  # by routers to here
    routes_trimmed: int = 0
    forward_retries: int = 0
    syncs: Histogram = field(default_factory=lambda: Histogram(_SYNC_BOUNDS_MS))
    # From the write of a job to its first delivery.
    job_waits: Histogram = field(default_factory=lambda: Histogram(_WAIT_BOUNDS_MS))
    # Of writes that had asked to wait for room.
    throttle_waits: Histogram = field(default_factory=lambda: Histogram(_WAIT_BOUNDS_MS))
