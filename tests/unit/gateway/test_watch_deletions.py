"""Deletions that a client misses: heard of in the next stream, and once."""

from __future__ import annotations

from tests.support.sse_client import decode_id
from tests.unit.gateway.watch_harness import Client, WatchHarness


def lose_what_is_sent(client: Client) -> None:
    client.stream.frames.clear()
    client.vanish()


def watch_both(harness: WatchHarness) -> tuple[str, Client]:
    """One topic by its name and one by a prefix, on two shards; the client has everything."""
    harness.shards.create("a")
    harness.shards.write("p1", 2)
    assert harness.shards.shard_of("a") != harness.shards.shard_of("p1")
    wid = harness.watch(topics={"a": {}}, prefixes={"p": {}})["wid"]
    client = harness.open(wid)
    harness.shards.settle()
    client.take()
    return wid, client


def test_a_lost_deletion_is_told_again_though_no_id_of_the_stream_named_the_topic() -> None:
    harness = WatchHarness(shards=2)
    wid, client = watch_both(harness)
    client.vanish()
    shard = harness.shards.shard_of("p1")
    harness.shards.link_down(shard)
    second = harness.open(wid, client.last_id)
    harness.shards.settle()
    second.take()
    assert decode_id(second.last_id) == {"a": 0}
    harness.shards.delete("p1")
    harness.shards.link_up(shard)
    harness.shards.settle()
    lose_what_is_sent(second)
    third = harness.open(wid, second.last_id)
    harness.shards.settle()
    assert ("topic-deleted", "p1:2 deleted") in third.events()


def test_a_deletion_that_was_heard_is_not_told_in_the_next_stream() -> None:
    harness = WatchHarness(shards=2)
    wid, client = watch_both(harness)
    harness.shards.delete("p1")
    harness.shards.settle()
    assert client.events() == [("topic-deleted", "p1:2 deleted")]
    assert decode_id(client.last_id) == {"a": 0, "$told": 1}
    harness.shards.write("p1", 3)
    harness.shards.settle()
    lose_what_is_sent(client)
    again = harness.open(wid, client.last_id)
    harness.shards.settle()
    assert sorted(again.events()) == [("caught-up", "a:0"), ("caught-up", "p1:3"), ("record", "p1:1,2,3")]


def test_a_later_deletion_does_not_stand_for_an_earlier_one_that_was_lost() -> None:
    harness = WatchHarness(shards=2)
    wid, client = watch_both(harness)
    harness.shards.delete("a")
    harness.shards.settle()
    lose_what_is_sent(client)
    # Nobody says what has become of the first one while its shard is away.
    down = harness.shards.shard_of("a")
    harness.shards.link_down(down)
    second = harness.open(wid, client.last_id)
    harness.shards.delete("p1")
    harness.shards.settle()
    assert ("topic-deleted", "p1:2 deleted") in second.events()
    second.vanish()
    harness.shards.link_up(down)
    third = harness.open(wid, second.last_id)
    harness.shards.settle()
    assert third.events() == [("topic-deleted", "a:0 deleted")]


def test_a_deletion_is_not_told_again_by_a_shard_that_is_back() -> None:
    harness = WatchHarness(shards=2)
    _, client = watch_both(harness)
    harness.shards.delete("a")
    harness.shards.settle()
    assert client.events() == [("topic-deleted", "a:0 deleted")]
    shard = harness.shards.shard_of("a")
    harness.shards.link_down(shard)
    harness.shards.link_up(shard)
    harness.shards.settle()
    assert "topic-deleted" not in [event for event, _ in client.events()]
