"""Effective priority: how soon a topic's deliveries are served. It never touches seqs or retention."""

from __future__ import annotations

from shared.api_types import TopicConfig

_RECENCY_MAX = 500
_HALF_LIFE_MS = 30_000
_FORGOTTEN_AFTER_MS = 300_000


def effective_priority(config: TopicConfig, last_read_ms: int, now_ms: int) -> int:
    """Manual part plus how recently the topic was read; 0 ms means never."""
    priority = config.priority or 0
    idle_ms = now_ms - last_read_ms
    if config.auto_priority and last_read_ms and idle_ms < _FORGOTTEN_AFTER_MS:
        priority += round(_RECENCY_MAX * 2 ** (-max(0, idle_ms) / _HALF_LIFE_MS))
    return priority
