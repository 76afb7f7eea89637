"""Numbers that an engine keeps about itself, for metrics."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

_SYNC_BOUNDS_MS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 5000)


class SyncHistogram:
    """How long syncs took."""

    def __init__(self) -> None:
        self._counts = [0] * (len(_SYNC_BOUNDS_MS) + 1)
        self._sum_ms = 0.0

    def add(self, took_ms: float) -> None:
        self._counts[bisect_left(_SYNC_BOUNDS_MS, took_ms)] += 1
        self._sum_ms += took_ms

    def to_map(self) -> dict[str, object]:
        """Upper bounds with cumulative counts, without the last, infinite one."""
        buckets, total = [], 0
        for bound, count in zip(_SYNC_BOUNDS_MS, self._counts, strict=False):
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
    syncs: SyncHistogram = field(default_factory=SyncHistogram)
