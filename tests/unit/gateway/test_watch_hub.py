"""The live part of watching, with every message between gateway and shards under the test's control."""

from __future__ import annotations

import pytest

from shared.wire import Op
from tests.support.sse_client import decode_id, encode_id
from tests.unit.gateway.watch_harness import Client, WatchHarness


def reads(harness: WatchHarness) -> int:
    return sum(request.op == Op.READ for request in harness.shards.asked)


# --- the ordinary course ----------------------------------------------------------------------------------


def test_backlog_then_live() -> None:
    harness = WatchHarness()
    harness.shards.write("a", 3)
    client = harness.client(topics={"a": {}})
    assert client.stream.frames[0].startswith(b"retry: 2000\n\n")
    assert client.events() == [("record", "a:1,2,3"), ("caught-up", "a:3")]
    harness.shards.write("a", 2)
    harness.shards.arrive()
    assert client.events() == [("record", "a:4,5")]
    assert decode_id(client.last_id) == {"a": 5}


def test_tail_begins_where_the_topic_stood_at_the_post() -> None:
    harness = WatchHarness()
    harness.shards.write("a", 3)
    answer = harness.watch(topics={"a": {"tail": True}})
    assert answer["topics"] == {"a": {"from_seq": 3, "head_seq": 3, "earliest_seq": 1}}
    harness.shards.write("a")
    harness.shards.settle()
    client = harness.open(answer["wid"])
    harness.shards.settle()
    assert client.events() == [("record", "a:4"), ("caught-up", "a:4")]


def test_an_empty_topic_is_caught_up_at_once() -> None:
    harness = WatchHarness()
    harness.shards.create("a")
    assert harness.client(topics={"a": {}}).events() == [("caught-up", "a:0")]


def test_pages_are_as_long_as_the_limit_and_topics_take_turns() -> None:
    harness = WatchHarness()
    harness.shards.write("a", 5)
    harness.shards.write("b", 3)
    client = harness.client(topics={"a": {}, "b": {}}, limit=2)
    assert client.events() == [
        ("record", "a:1,2"),
        ("record", "b:1,2"),
        ("record", "a:3,4"),
        ("record", "b:3"),
        ("caught-up", "b:3"),
        ("record", "a:5"),
        ("caught-up", "a:5"),
    ]


def test_one_read_at_a_time() -> None:
    harness = WatchHarness()
    harness.shards.write("a", 5)
    harness.shards.write("b", 5)
    wid = harness.watch(topics={"a": {}, "b": {}})["wid"]
    before = reads(harness)
    harness.open(wid)
    assert reads(harness) == before + 1


def test_one_subscription_however_many_readers() -> None:
    harness = WatchHarness()
    harness.shards.write("a")
    wids = [harness.watch(topics={"a": {}})["wid"] for _ in range(5)]
    harness.shards.asked.clear()
    clients = [harness.open(wid) for wid in wids]
    harness.shards.settle()
    # The subscription of the POST is still there, and all five share one read.
    assert [request.op for request in harness.shards.asked] == [Op.READ]
    harness.shards.write("a")
    harness.shards.arrive()
    assert len(harness.shards.asked) == 1
    frames = {client.stream.frames[-1] for client in clients}
    assert len(frames) == 1


def test_other_views_are_read_once_per_view_and_place() -> None:
    harness = WatchHarness()
    harness.shards.write("a")
    clients = [harness.client(topics={"a": {}}, include_tags=True) for _ in range(3)]
    clients += [harness.client(topics={"a": {}}, node="n") for _ in range(3)]
    before = reads(harness)
    harness.shards.write("a")
    harness.shards.settle()
    assert reads(harness) == before + 2
    for client in clients:
        assert client.events()[-1] == ("record", "a:2")


def test_own_records_send_no_frame_but_caught_up() -> None:
    harness = WatchHarness()
    harness.shards.write("a", 1, "other")
    client = harness.client(topics={"a": {}}, node="me")
    client.take()
    harness.shards.write("a", 2, "me")
    harness.shards.settle()
    assert client.events() == [("caught-up", "a:3")]
    assert decode_id(client.last_id) == {"a": 3}
    harness.shards.write("a", 1, "other")
    harness.shards.settle()
    assert client.events() == [("record", "a:4")]


def test_records_deleted_within_their_turn_are_reported_as_nothing() -> None:
    harness = WatchHarness()
    client = _live(harness)
    harness.shards.write("a", 2, push=False)
    harness.shards.logs["a"].deleted |= {2, 3}
    harness.shards.push("a")
    harness.shards.settle()
    assert client.events() == [("caught-up", "a:3")]


def test_a_push_that_is_longer_than_the_limit_is_read_in_pages() -> None:
    harness = WatchHarness()
    client = _live(harness, limit=2)
    harness.shards.write("a", 5)
    harness.shards.settle()
    assert client.events() == [
        ("record", "a:2,3"),
        ("record", "a:4,5"),
        ("record", "a:6"),
        ("caught-up", "a:6"),
    ]


def test_a_push_without_records_is_read() -> None:
    harness = WatchHarness()
    client = _live(harness)
    harness.shards.push_bytes = 1
    harness.shards.write("a", 5)
    harness.shards.settle()
    assert client.events() == [("record", "a:2,3,4,5,6")]


def _live(harness: WatchHarness, **options: object) -> Client:
    harness.shards.write("a")
    client = harness.client(topics={"a": {}}, **options)
    client.take()
    return client


# --- what crosses what ------------------------------------------------------------------------------------


def test_a_read_that_overtakes_a_push_is_not_repeated() -> None:
    harness = WatchHarness()
    harness.shards.write("a", 2)
    wid = harness.watch(topics={"a": {}})["wid"]
    client = harness.open(wid)
    harness.shards.write("a", 2, push=False)
    harness.shards.serve()
    harness.shards.arrive()
    harness.shards.push("a")
    harness.shards.settle()
    assert client.events() == [("record", "a:1,2,3,4"), ("caught-up", "a:4")]


def test_a_read_that_overtakes_a_part_of_a_push_reads_the_rest() -> None:
    harness = WatchHarness()
    harness.shards.write("a", 2)
    client = harness.open(harness.watch(topics={"a": {}})["wid"])
    harness.shards.write("a", 1, push=False)
    harness.shards.settle()
    harness.shards.write("a", 1, push=False)
    harness.shards.push("a")
    harness.shards.settle()
    assert client.events() == [("record", "a:1,2,3"), ("caught-up", "a:3"), ("record", "a:4")]


def test_the_answer_to_a_read_of_a_deleted_topic_is_not_taken_for_its_successor() -> None:
    harness = WatchHarness()
    harness.shards.write("a", 5)
    harness.shards.create("b")
    client = harness.open(harness.watch(topics={"a": {"from_seq": 3}, "b": {}})["wid"])
    harness.shards.delete("a")
    harness.shards.write("a", 9)
    harness.shards.settle()
    assert sorted(client.events()) == [
        ("caught-up", "a:0"),
        ("caught-up", "b:0"),
        ("record", "a:1,2,3,4,5,6,7,8,9"),
        ("topic-deleted", "a:5 deleted"),
    ]


# --- slow readers -----------------------------------------------------------------------------------------


def test_a_blocked_reader_falls_behind_and_coalesces_while_others_are_live() -> None:
    harness = WatchHarness()
    harness.shards.write("a")
    slow, fast = harness.client(topics={"a": {}}), harness.client(topics={"a": {}})
    for client in (slow, fast):
        client.take()
    slow.block()
    for _ in range(4):
        harness.shards.write("a")
        harness.shards.settle()
    assert fast.events() == [("record", f"a:{seq}") for seq in (2, 3, 4, 5)]
    assert slow.events() == []
    slow.unblock()
    harness.shards.settle()
    assert slow.events() == [("record", "a:2,3,4,5"), ("caught-up", "a:5")]
    harness.shards.write("a")
    harness.shards.settle()
    assert slow.events() == [("record", "a:6")] == fast.events()


def test_a_page_that_the_stream_refuses_is_read_again() -> None:
    harness = WatchHarness()
    harness.shards.write("a", 3)
    client = harness.open(harness.watch(topics={"a": {}})["wid"])
    client.block()
    harness.shards.settle()
    assert client.events() == []
    client.unblock()
    harness.shards.settle()
    assert client.events() == [("record", "a:1,2,3"), ("caught-up", "a:3")]


def test_a_client_found_gone_by_a_live_push_leaves_nothing_that_silences_its_next_stream() -> None:
    harness = WatchHarness()
    harness.shards.write("a")
    wid = harness.watch(topics={"a": {}})["wid"]
    client = harness.open(wid)
    harness.shards.settle()
    client.take()
    client.stream.breaks = True
    harness.shards.write("a")
    harness.shards.settle()
    assert client.stream.gone and harness.hub.streams.count == 0
    again = harness.open(wid)
    harness.shards.settle()
    assert again.events() == [("record", "a:2"), ("caught-up", "a:2")]
    harness.shards.write("a")
    harness.shards.settle()
    assert again.events() == [("record", "a:3")]


def test_a_client_found_gone_by_a_page_or_a_heartbeat_comes_back_to_a_stream_that_speaks() -> None:
    harness = WatchHarness()
    harness.shards.write("a", 3)
    wid = harness.watch(topics={"a": {}}, heartbeat_ms=1000)["wid"]
    client = harness.open(wid)
    client.stream.breaks = True
    harness.shards.settle()
    assert client.stream.gone and client.events() == []
    client = harness.open(wid)
    harness.shards.settle()
    assert client.events() == [("record", "a:1,2,3"), ("caught-up", "a:3")]
    client.stream.breaks = True
    harness.pass_time(2)
    assert client.stream.gone
    again = harness.open(wid)
    harness.shards.settle()
    assert again.events() == [("caught-up", "a:3")]


def test_thirty_seconds_without_progress_end_the_stream_and_keep_the_session() -> None:
    harness = WatchHarness()
    harness.shards.write("a")
    wid = harness.watch(topics={"a": {}})["wid"]
    client = harness.open(wid)
    harness.shards.settle()
    client.take()
    client.block()
    client.stream.stalled_for_ms = 29_000
    harness.shards.write("a")
    harness.shards.settle()
    harness.pass_time(20)
    assert not client.stream.ended
    client.stream.stalled_for_ms = 30_000
    harness.pass_time(11)
    assert client.stream.ended
    (last,) = client.take()
    assert (last.event, last.data["code"], last.data["error"]) == ("error", 410, "too_slow")
    again = harness.open(wid)
    harness.shards.settle()
    assert again.events() == [("record", "a:2"), ("caught-up", "a:2")]


# --- losses -----------------------------------------------------------------------------------------------


def test_a_loss_found_at_the_first_read_is_from_seq_too_old_later_the_real_reason() -> None:
    harness = WatchHarness()
    harness.shards.write("a", 10)
    harness.shards.evict("a", 5)
    client = harness.client(topics={"a": {"from_seq": 1}})
    first, second, third = client.take()
    assert first.data == {
        "topic": "a",
        "reason": "from_seq_too_old",
        "gap_from": 2,
        "gap_to": 4,
        "earliest_seq": 5,
        "head_seq": 10,
    }
    assert first.cursors == {"a": 4}
    assert (second.event, second.data["from_seq"], second.data["to_seq"]) == ("record", 4, 10)
    assert third.event == "caught-up"
    client.block()
    harness.shards.write("a", 10)
    harness.shards.settle()
    harness.shards.evict("a", 18)
    client.unblock()
    harness.shards.settle()
    assert client.events() == [("tombstone", "a:11-17 cap"), ("record", "a:18,19,20"), ("caught-up", "a:20")]


def test_a_cursor_beyond_the_head_starts_all_over() -> None:
    harness = WatchHarness()
    harness.shards.write("a", 3)
    client = harness.client(topics={"a": {"from_seq": 50}})
    tombstone, record, caught_up = client.take()
    assert (tombstone.data["gap_from"], tombstone.data["gap_to"]) == (1, 3)
    # Not at gap_to: whoever resumed from there would skip the records that follow.
    assert tombstone.cursors == {"a": 0}
    assert record.data["to_seq"] == 3 and caught_up.cursors == {"a": 3}


# --- topics that come and go ------------------------------------------------------------------------------


def test_the_stream_ends_when_every_topic_is_gone_and_the_session_with_it() -> None:
    harness = WatchHarness()
    harness.shards.write("a")
    harness.shards.write("b")
    wid = harness.watch(topics={"a": {}, "b": {}})["wid"]
    client = harness.open(wid)
    harness.shards.settle()
    client.take()
    harness.shards.delete("a")
    harness.shards.settle()
    assert client.events() == [("topic-deleted", "a:1 deleted")] and not client.stream.ended
    assert decode_id(client.last_id) == {"b": 1, "$told": 1}
    harness.shards.delete("b")
    harness.shards.settle()
    assert client.events() == [("topic-deleted", "b:1 deleted")] and client.stream.ended
    assert harness.refused(404, f"/v0/watch/{wid}")["code"] == "not_found"
    assert harness.hub.streams.count == 0


def test_a_topic_that_is_recreated_while_watched_goes_on_from_its_first_record() -> None:
    harness = WatchHarness()
    harness.shards.write("a", 5)
    harness.shards.create("b")
    client = harness.client(topics={"a": {}, "b": {}})
    client.take()
    harness.shards.delete("a")
    harness.shards.write("a", 2)
    harness.shards.settle()
    assert client.events() == [("topic-deleted", "a:5 deleted"), ("caught-up", "a:0"), ("record", "a:1,2")]


def test_a_topic_that_was_recreated_between_two_streams_is_told_and_read_from_the_start() -> None:
    harness = WatchHarness()
    harness.shards.write("a", 2)
    wid = harness.watch(topics={"a": {}})["wid"]
    client = harness.open(wid)
    harness.shards.settle()
    client.take()
    client.vanish()
    harness.shards.delete("a")
    harness.shards.write("a", 5)
    harness.shards.settle()
    again = harness.open(wid, client.last_id)
    harness.shards.settle()
    assert again.events() == [
        ("topic-deleted", "a:2 recreated"),
        ("record", "a:1,2,3,4,5"),
        ("caught-up", "a:5"),
    ]


def test_a_topic_that_was_deleted_between_two_streams_ends_the_next_one() -> None:
    harness = WatchHarness()
    harness.shards.write("a", 2)
    wid = harness.watch(topics={"a": {}})["wid"]
    harness.shards.delete("a")
    harness.pass_time(10)
    harness.shards.settle()
    client = harness.open(wid)
    harness.shards.settle()
    assert client.events() == [("topic-deleted", "a:0 deleted")] and client.stream.ended


def test_prefixes_follow_topics_that_are_created_later() -> None:
    harness = WatchHarness(shards=3)
    harness.shards.write("chat:1", 2)
    harness.shards.write("other", 2)
    answer = harness.watch(prefixes={"chat:": {"tail": True}})
    assert answer["topics"] == {"chat:1": {"from_seq": 2, "head_seq": 2, "earliest_seq": 1}}
    harness.shards.write("chat:2", 1)  # between POST and GET: new, so all of it
    harness.shards.settle()
    client = harness.open(answer["wid"])
    harness.shards.settle()
    assert sorted(client.events()) == [
        ("caught-up", "chat:1:2"),
        ("caught-up", "chat:2:1"),
        ("record", "chat:2:1"),
    ]
    harness.shards.write("chat:3", 2)
    harness.shards.write("chat:1")
    harness.shards.settle()
    assert sorted(client.events()) == [
        ("caught-up", "chat:3:0"),
        ("record", "chat:1:3"),
        ("record", "chat:3:1,2"),
    ]
    harness.shards.delete("chat:1")
    harness.shards.settle()
    assert client.events() == [("topic-deleted", "chat:1:3 deleted")] and not client.stream.ended
    harness.shards.write("chat:1")
    harness.shards.settle()
    assert client.events() == [("caught-up", "chat:1:0"), ("record", "chat:1:1")]


def test_a_topic_of_a_prefix_that_was_deleted_while_away_is_told_though_others_still_watch_the_prefix() -> (
    None
):
    harness = WatchHarness()
    harness.shards.write("p1")
    harness.client(prefixes={"p": {}})
    wid = harness.watch(prefixes={"p": {}})["wid"]
    client = harness.open(wid)
    harness.shards.settle()
    client.take()
    client.vanish()
    harness.shards.delete("p1")
    harness.shards.settle()
    again = harness.open(wid, client.last_id)
    harness.shards.settle()
    assert again.events() == [("topic-deleted", "p1:1 deleted")]


def test_a_blocked_reader_of_another_view_is_told_when_it_has_caught_up() -> None:
    harness = WatchHarness()
    client = _live(harness, include_tags=True)
    client.block()
    harness.shards.write("a")
    harness.shards.settle()
    harness.shards.write("a")
    harness.shards.settle()
    client.unblock()
    harness.shards.settle()
    assert client.events() == [("record", "a:2,3"), ("caught-up", "a:3")]


def test_one_of_two_topics_gone_before_and_the_other_while_away_ends_the_next_stream_cleanly() -> None:
    for order in (("a", "b"), ("b", "a")):
        harness = WatchHarness()
        for topic in order:
            harness.shards.write(topic)
        wid = harness.watch(topics={topic: {} for topic in order})["wid"]
        client = harness.open(wid)
        harness.shards.settle()
        harness.shards.delete("a")
        harness.shards.settle()
        client.vanish()
        harness.shards.delete("b")
        harness.pass_time(10)
        harness.shards.settle()
        again = harness.open(wid)
        harness.shards.settle()
        assert ("topic-deleted", "b:1 deleted") in again.events() and again.stream.ended
        harness.pass_time(10)
        harness.shards.settle()
        assert len(harness.hub.subscriptions) == 0 and not harness.shards.links[0].subscribed


def test_a_prefix_that_matches_nothing_waits() -> None:
    harness = WatchHarness(shards=2)
    client = harness.client(prefixes={"p": {}})
    assert client.events() == [] and not client.stream.ended
    harness.shards.write("pq")
    harness.shards.settle()
    assert client.events() == [("caught-up", "pq:0"), ("record", "pq:1")]


def test_a_topic_named_and_matched_by_a_prefix_is_sent_once() -> None:
    harness = WatchHarness()
    harness.shards.write("chat:1", 3)
    client = harness.client(topics={"chat:1": {"from_seq": 2}}, prefixes={"chat:": {}, "cha": {}})
    assert client.events() == [("record", "chat:1:3"), ("caught-up", "chat:1:3")]


def test_a_topic_beyond_what_a_prefix_may_follow_is_told_not_skipped_silently(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gateway.watcher.WATCH_PREFIX_TOPICS_MAX", 1)
    monkeypatch.setattr("gateway.watch_hub.WATCH_PREFIX_TOPICS_MAX", 1)
    harness = WatchHarness()
    harness.shards.create("p1")
    client = harness.client(prefixes={"p": {}})
    client.take()
    harness.shards.create("p2")
    harness.shards.settle()
    (told,) = client.take()
    assert (told.data["code"], told.data["topics"]) == (429, ["p2"])
    assert (
        harness.refused(429, "/v0/watch", {"prefixes": {"p": {}}})["detail"]["limit"] == "watch_prefix_topics"
    )


# --- shards that restart ----------------------------------------------------------------------------------


def test_a_shard_that_restarts_is_told_and_its_topics_go_on_from_the_cursor() -> None:
    harness = WatchHarness()
    client = _live(harness)
    harness.shards.link_down()
    (told,) = client.take()
    assert (told.event, told.data["code"], told.data["topics"], told.id) == (
        "error",
        503,
        ["a"],
        client.last_id,
    )
    harness.shards.write("a", 2)
    harness.shards.link_up()
    harness.shards.settle()
    assert client.events() == [("record", "a:2,3"), ("caught-up", "a:3")]
    harness.shards.write("a")
    harness.shards.settle()
    assert client.events() == [("record", "a:4")]


def test_a_link_that_dies_under_a_read_costs_nothing() -> None:
    harness = WatchHarness()
    harness.shards.write("a", 3)
    client = harness.open(harness.watch(topics={"a": {}})["wid"])
    harness.shards.serve()
    harness.shards.link_down()
    harness.shards.link_up()
    harness.shards.settle()
    assert [event for event in client.events() if event[0] != "error"] == [
        ("record", "a:1,2,3"),
        ("caught-up", "a:3"),
    ]


def test_a_prefix_is_subscribed_again_and_finds_what_came_and_went_meanwhile() -> None:
    harness = WatchHarness()
    harness.shards.write("p1")
    harness.shards.write("p2")
    client = harness.client(prefixes={"p": {}})
    client.take()
    harness.shards.link_down()
    client.take()
    harness.shards.delete("p1")
    harness.shards.write("p2")
    harness.shards.write("p3")
    harness.shards.link_up()
    harness.shards.settle()
    assert sorted(client.events()) == [
        ("caught-up", "p2:2"),
        ("caught-up", "p3:1"),
        ("record", "p2:2"),
        ("record", "p3:1"),
        ("topic-deleted", "p1:1 deleted"),
    ]


def test_a_watch_cannot_be_made_while_its_shard_is_down() -> None:
    harness = WatchHarness()
    harness.shards.write("a")
    harness.shards.link_down()
    assert harness.refused(503, "/v0/watch", {"topics": {"a": {}}})["code"] == "shard_unavailable"


# --- strong consistency -----------------------------------------------------------------------------------


def test_strong_readers_get_what_is_synced_and_nothing_else() -> None:
    harness = WatchHarness()
    harness.shards.write("a", 2)
    harness.shards.sync("a")
    harness.shards.write("a")
    client = harness.client(topics={"a": {}}, consistency="strong")
    assert client.events() == [("record", "a:1,2"), ("caught-up", "a:2")]
    harness.shards.write("a")
    harness.shards.settle()
    assert client.events() == []
    harness.shards.sync("a")
    harness.shards.settle()
    assert client.events() == [("record", "a:3,4")]


def test_a_strong_reader_joins_a_topic_that_others_watch() -> None:
    harness = WatchHarness()
    eventual = _live(harness)
    harness.shards.sync("a")
    strong = harness.client(topics={"a": {}}, consistency="strong")
    assert strong.events() == [("record", "a:1"), ("caught-up", "a:1")]
    harness.shards.write("a")
    harness.shards.settle()
    assert eventual.events() == [("record", "a:2")] and strong.events() == []
    harness.shards.sync("a")
    harness.shards.settle()
    assert strong.events() == [("record", "a:2")]


def test_strong_prefixes() -> None:
    harness = WatchHarness()
    client = harness.client(prefixes={"p": {}}, consistency="strong")
    harness.shards.write("p1", 2)
    harness.shards.settle()
    assert client.events() == [("caught-up", "p1:0")]
    harness.shards.sync("p1")
    harness.shards.settle()
    assert client.events() == [("record", "p1:1,2")]


# --- sessions ---------------------------------------------------------------------------------------------


def test_reconnecting_resumes_from_the_sessions_own_cursors() -> None:
    harness = WatchHarness()
    harness.shards.write("a", 2)
    wid = harness.watch(topics={"a": {}})["wid"]
    client = harness.open(wid)
    harness.shards.settle()
    client.vanish()
    harness.shards.write("a")
    harness.shards.settle()
    again = harness.open(wid)
    harness.shards.settle()
    assert again.events() == [("record", "a:3"), ("caught-up", "a:3")]


def test_last_event_id_rewinds_and_never_advances() -> None:
    harness = WatchHarness()
    harness.shards.write("a", 4)
    harness.shards.write("b", 4)
    wid = harness.watch(topics={"a": {}, "b": {}})["wid"]
    harness.open(wid).vanish()
    client = harness.open(wid, encode_id({"a": 2, "b": 99}))
    harness.shards.settle()
    assert sorted(client.events()) == [
        ("caught-up", "a:4"),
        ("caught-up", "b:4"),
        ("record", "a:1,2,3,4"),
        ("record", "b:1,2,3,4"),
    ]
    again = harness.open(wid, encode_id({"a": 2}))
    harness.shards.settle()
    assert sorted(again.events()) == [("caught-up", "a:4"), ("caught-up", "b:4"), ("record", "a:3,4")]
    harness.refused(400, f"/v0/watch/{wid}", **{"last-event-id": "nonsense!"})


def test_a_second_connection_takes_the_stream_over() -> None:
    harness = WatchHarness()
    harness.shards.write("a")
    wid = harness.watch(topics={"a": {}})["wid"]
    first = harness.open(wid)
    harness.shards.settle()
    second = harness.open(wid)
    harness.shards.settle()
    assert first.take()[-1].data["error"] == "replaced" and first.stream.ended
    assert second.events() == [("caught-up", "a:1")]
    assert harness.hub.streams.count == 1
    first.vanish()
    assert harness.hub.streams.count == 1


def test_a_session_without_a_stream_expires() -> None:
    harness = WatchHarness()
    harness.shards.write("a")
    answer = harness.watch(topics={"a": {}})
    assert answer["session_ttl_ms"] == 300_000
    harness.pass_time(299)
    client = harness.open(answer["wid"])
    harness.shards.settle()
    harness.pass_time(400)
    assert not client.stream.gone
    client.vanish()
    harness.pass_time(299)
    assert len(harness.hub.sessions) == 1
    harness.pass_time(2)
    assert harness.refused(404, f"/v0/watch/{answer['wid']}")["code"] == "not_found"
    harness.pass_time(10)
    harness.shards.settle()
    assert len(harness.hub.subscriptions) == 0 and not harness.shards.links[0].subscribed


def test_heartbeats_come_when_nothing_else_does() -> None:
    harness = WatchHarness()
    harness.shards.write("a")
    client = harness.client(topics={"a": {}}, heartbeat_ms=2000)
    client.take()
    harness.pass_time(1.75)
    assert client.take() == [] and client.comments == []
    harness.pass_time(0.75)
    client.take()
    assert client.comments == ["hb 1002000"]
    for _ in range(5):
        harness.shards.write("a")
        harness.shards.settle()
        harness.pass_time(1.5)
    client.take()
    assert len(client.comments) == 1
    harness.pass_time(10)
    client.take()
    assert 4 <= len(client.comments) - 1 <= 5


def test_shutdown_says_goodbye_to_every_stream() -> None:
    harness = WatchHarness()
    client = _live(harness)
    harness.api.drain()
    (last,) = client.take()
    assert last.data["code"] == "server_shutting_down" and client.stream.ended


# --- caps and keys ----------------------------------------------------------------------------------------


def test_caps_are_named() -> None:
    harness = WatchHarness(max_watch_sessions="2", max_sse_connections="1")
    harness.shards.write("a")
    wids = [harness.watch(topics={"a": {}})["wid"] for _ in range(2)]
    error = harness.refused(429, "/v0/watch", {"topics": {"a": {}}})
    assert error["detail"] == {"limit": "max_watch_sessions", "max": 2}
    first = harness.open(wids[0])
    assert harness.refused(429, f"/v0/watch/{wids[1]}")["detail"]["limit"] == "max_sse_connections"
    harness.open(wids[0])  # replaces its own stream, and so is no second one
    first.vanish()
    assert harness.hub.streams.count == 1


def test_streams_per_key() -> None:
    harness = WatchHarness(api_keys="one,two", max_sse_connections_per_key="1")
    harness.shards.write("a")
    bearer = {key: {"authorization": f"Bearer {key}"} for key in ("one", "two")}
    wids = {key: [harness.watch(bearer[key], topics={"a": {}})["wid"] for _ in range(2)] for key in bearer}
    client = harness.open(wids["one"][0], **bearer["one"])
    error = harness.refused(429, f"/v0/watch/{wids['one'][1]}", **bearer["one"])
    assert error["detail"] == {"limit": "max_sse_connections_per_key", "max": 1}
    harness.open(wids["two"][0], **bearer["two"])
    client.vanish()
    harness.open(wids["one"][1], **bearer["one"])


def test_a_stream_needs_the_key_that_made_its_session() -> None:
    harness = WatchHarness(api_keys="one:read,two:read,three:write")
    harness.shards.write("a")
    wid = harness.watch({"authorization": "Bearer one"}, topics={"a": {}})["wid"]
    url = f"/v0/watch/{wid}"
    assert harness.refused(401, url)["code"] == "unauthorized"
    assert harness.refused(401, url, authorization="Bearer nobody")["code"] == "unauthorized"
    assert harness.refused(403, url, authorization="Bearer two")["code"] == "forbidden"
    assert harness.refused(403, url, authorization="Bearer three")["code"] == "forbidden"
    assert harness.call("GET", f"{url}?token=one").stream is not None
    # Only streams take a token from the URL.
    assert harness.refused(401, "/v0/watch?token=one", {"topics": {"a": {}}})["code"] == "unauthorized"


def test_streams_of_a_key_that_is_withdrawn_end() -> None:
    harness = WatchHarness(api_keys="one:read,two:read")
    harness.shards.write("a")
    clients = {}
    for key in ("one", "two"):
        headers = {"authorization": f"Bearer {key}"}
        clients[key] = harness.open(harness.watch(headers, topics={"a": {}})["wid"], **headers)
    harness.shards.settle()
    harness.api.replace_keys(WatchHarness(api_keys="two:read").api.settings.key_ring())
    assert clients["one"].stream.ended and clients["one"].take()[-1].data["error"] == "key_revoked"
    assert not clients["two"].stream.ended and len(harness.hub.sessions) == 1


@pytest.mark.parametrize(
    ("accept", "accepted"),
    [
        ("text/event-stream", True),
        ("*/*", True),
        ("text/*", True),
        ("application/json, */*;q=0.1", True),
        ("TEXT/Event-Stream; charset=utf-8", True),
        ("application/json", False),
        ("text/html, application/xml", False),
        ("text/event-stream;q=0", False),
        ("text/event-stream; q=0.0", False),
    ],
)
def test_accept(accept: str, accepted: bool) -> None:
    harness = WatchHarness()
    harness.shards.write("a")
    wid = harness.watch(topics={"a": {}})["wid"]
    exchange = harness.call("GET", f"/v0/watch/{wid}", headers={"accept": accept})
    if accepted:
        assert exchange.stream is not None
    else:
        assert exchange.response is not None and exchange.response.status == 406


def test_unknown_topics_are_404_unless_lenient() -> None:
    harness = WatchHarness()
    harness.shards.write("a")
    body = {"topics": {"a": {}, "nope": {}}}
    error = harness.refused(404, "/v0/watch", body)
    assert (error["code"], error["detail"]) == ("topic_not_found", {"topic": "nope"})
    exchange = harness.call("POST", "/v0/watch?lenient=true", body)
    harness.shards.settle()
    assert exchange.response is not None and b'"topics":{"a":' in exchange.response.body
    assert b"nope" not in exchange.response.body
    assert harness.refused(400, "/v0/watch?lenient=true", {"topics": {"nope": {}}})
    assert harness.refused(404, "/v0/watch/wid_unknown")["code"] == "not_found"


def test_gauges() -> None:
    harness = WatchHarness()
    harness.shards.write("a")
    wid = harness.watch(topics={"a": {}})["wid"]
    harness.watch(topics={"a": {}})
    harness.open(wid)
    assert (len(harness.hub.sessions), harness.hub.streams.count) == (2, 1)
