"""Effective priority: how soon a topic's deliveries are served. It never touches seqs or retention."""

from __future__ import annotations

from shared.api_types import TopicConfig

WAITING_MAX = 1000  # what waiting adds at the most
WAITING_STEP_MS = 10  # of waiting per point: 100 points a second

_RECENCY_MAX = 500
_HALF_LIFE_MS = 30_000
_FORGOTTEN_AFTER_MS = 300_000


def effective_priority(config: TopicConfig, last_read_ms: int, now_ms: int, waited_ms: int = 0) -> int:
    """Manual part, plus how recently the topic was read (0 ms: never), plus how long its deliveries wait."""
    priority = config.priority or 0
    idle_ms = now_ms - last_read_ms
    if config.auto_priority and last_read_ms and idle_ms < _FORGOTTEN_AFTER_MS:
        priority += round(_RECENCY_MAX * 2 ** (-max(0, idle_ms) / _HALF_LIFE_MS))
    return priority + waiting_points(waited_ms) if waited_ms else priority


def waiting_points(waited_ms: int) -> int:
    return min(WAITING_MAX, max(0, waited_ms) // WAITING_STEP_MS)
