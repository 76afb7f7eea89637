from __future__ import annotations

import pytest

from gateway.io.supervisor_feed import SupervisorFeed
from shared.api_keys import KeyRing, parse_api_keys
from shared.io.child_channel import decode_event, encode_line
from topicsd.child_keeper import Condition, Phase
from topicsd.supervisor import shard_event


def feed_of(shards: int) -> tuple[SupervisorFeed, list[KeyRing]]:
    rings: list[KeyRing] = []
    return SupervisorFeed(shards, on_keys=rings.append), rings


def tell(feed: SupervisorFeed, shard: int, condition: Condition) -> None:
    feed.apply(decode_event(encode_line(shard_event(shard, condition))))


def test_a_feed_that_has_heard_nothing_is_not_ready() -> None:
    feed, _ = feed_of(2)
    assert not feed.ready
    assert feed.replay_progress() == 0.0
    assert [report.why_not_ready() for report in feed.shards] == ["it is starting"] * 2


@pytest.mark.parametrize(
    ("condition", "progress", "why"),
    [
        (Condition(phase=Phase.STARTING), 0.0, "it replays its log (0%)"),
        (Condition(phase=Phase.REPLAYING, progress=0.42), 0.42, "it replays its log (42%)"),
        (Condition(phase=Phase.READY), 1.0, None),
        (Condition(phase=Phase.DOWN, reason="it was killed by SIGKILL"), 0.0, "it was killed by SIGKILL"),
        (Condition(phase=Phase.FAILED, reason="crash loop"), 0.0, "crash loop"),
    ],
)
def test_what_the_supervisor_says_is_what_the_feed_knows(
    condition: Condition, progress: float, why: str | None
) -> None:
    feed, _ = feed_of(2)
    tell(feed, 0, Condition(phase=Phase.READY))
    tell(feed, 1, condition)
    assert feed.shards[1].why_not_ready() == why
    assert feed.replay_progress() == (1.0 + progress) / 2
    assert feed.ready is (why is None)


def test_a_shard_that_became_ready_is_told_to_whoever_connects() -> None:
    ready: list[int] = []
    feed = SupervisorFeed(3, on_keys=lambda ring: None, on_ready=ready.append)
    tell(feed, 1, Condition(phase=Phase.REPLAYING, progress=0.9))
    tell(feed, 1, Condition(phase=Phase.READY))
    tell(feed, 2, Condition(phase=Phase.DOWN, reason="x"))
    assert ready == [1]


def test_new_keys_work_after_their_way_through_the_pipe() -> None:
    feed, rings = feed_of(1)
    keys = parse_api_keys("s3cret:r:a.", key="api_keys", source="test")
    feed.apply(decode_event(encode_line({"event": "keys", "keys": keys})))
    assert [ring.find("s3cret") for ring in rings] == list(keys)


@pytest.mark.parametrize(
    "event",
    [
        {"event": "shard"},
        {"event": "shard", "shard": 5, "state": "ready"},
        {"event": "shard", "shard": -1, "state": "ready"},
        {"event": "shard", "shard": 0, "state": "odd"},
        {"event": "keys", "keys": [1]},
        {"event": "new"},
        {},
    ],
)
def test_an_event_that_makes_no_sense_changes_nothing(event: dict[str, object]) -> None:
    feed, rings = feed_of(2)
    feed.apply(event)
    assert not feed.ready
    assert [report.state for report in feed.shards] == ["down", "down"]
    assert rings == []
