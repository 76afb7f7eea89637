from __future__ import annotations

import pytest

from shard_worker.core.priority import effective_priority
from shared.api_types import TopicConfig

NOW = 1_700_000_000_000


@pytest.mark.parametrize(
    ("idle_ms", "recency"),
    [(0, 500), (30_000, 250), (60_000, 125), (299_999, 0), (300_000, 0), (10**9, 0)],
)
def test_recency_halves_every_thirty_seconds(idle_ms: int, recency: int) -> None:
    assert effective_priority(TopicConfig(), NOW - idle_ms, NOW) == recency


def test_a_topic_that_was_never_read_has_only_its_manual_part() -> None:
    assert effective_priority(TopicConfig(), 0, 1000) == 0
    assert effective_priority(TopicConfig(priority=-300), 0, NOW) == -300


def test_manual_and_recent_add_up() -> None:
    assert effective_priority(TopicConfig(priority=1000), NOW, NOW) == 1500
    assert effective_priority(TopicConfig(priority=-1000), NOW, NOW) == -500


def test_without_auto_priority_reading_changes_nothing() -> None:
    assert effective_priority(TopicConfig(auto_priority=False), NOW, NOW) == 0
    assert effective_priority(TopicConfig(auto_priority=False, priority=7), NOW, NOW) == 7


def test_a_read_in_the_future_counts_as_now() -> None:
    assert effective_priority(TopicConfig(), NOW + 5000, NOW) == 500
