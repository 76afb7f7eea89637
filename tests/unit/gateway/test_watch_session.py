"""Options of a watch, and cursors that only a client's own word can rewind."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.watch_session import (
    Cursor,
    IdMap,
    LastEventId,
    WatchPlan,
    decode_watch,
    parse_last_event_id,
    plan_watch,
    rewind,
)
from shared.api_keys import ApiKey, parse_api_keys
from shared.errors import Forbidden, InvalidRequest, Throttled, TopicsError
from shared.limits import WATCH_ID_MAX_BYTES
from tests.support.sse_client import encode_id
from tests.unit.gateway.api_harness import settings


def plan(body: object, key: ApiKey | None = None, **given_settings: str) -> WatchPlan:
    return plan_watch(decode_watch(json.dumps(body).encode()), settings(**given_settings), key)


def key_of(text: str) -> ApiKey:
    return parse_api_keys(text, key="api_keys", source="test")[0]


# --- options ----------------------------------------------------------------------------------------------


def test_defaults_are_those_of_the_contract() -> None:
    made = plan({"topics": {"orders": {}}})
    assert made.heartbeat_ms == 15_000
    assert (made.view.limit, made.view.max_bytes) == (256, 262_144)
    assert made.view.plain and not made.view.strong
    assert (made.topics["orders"].from_seq, made.topics["orders"].tail) == (0, False)


@pytest.mark.parametrize(
    ("given_ms", "used_ms"), [(0, 1000), (999, 1000), (1000, 1000), (60_000, 60_000), (60_001, 60_000)]
)
def test_heartbeat_is_clamped(given_ms: int, used_ms: int) -> None:
    assert plan({"topics": {"a": {}}, "heartbeat_ms": given_ms}).heartbeat_ms == used_ms


def test_limits_are_clamped_like_those_of_a_read() -> None:
    assert plan({"topics": {"a": {}}, "limit": 5000}).view.limit == 1000
    assert plan({"topics": {"a": {}}, "limit": 0}).view.limit == 256
    assert plan({"topics": {"a": {}}, "max_batch_bytes": 1 << 40}).view.max_bytes == 8 << 20
    assert plan({"topics": {"a": {}}, "max_batch_bytes": 0}).view.max_bytes == 262_144


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"topics": {}},
        {"topics": {}, "prefixes": {}},
        {"topics": ["a"]},
        {"topics": {"a": {"from_seq": -1}}},
        {"topics": {"a": {"from_seq": "1"}}},
        {"topics": {"": {}}},
        {"topics": {"a b": {}}},
        {"topics": {"a\n": {}}},
        {"prefixes": {"*": {}}},
        {"topics": {"a": {}}, "consistency": "weak"},
        {"topics": {"a": {}}, "match": ["data", "Eq", "x"]},
        {"topics": {"a": {}}, "match": ["tag", "Glob", "x"]},
        {"topics": {"a": {}}, "node": 5},
        {"topics": {"a": {}}, "heartbeat_ms": "soon"},
        {"topics": {"a": {}}, "include_meta": "yes"},
    ],
)
def test_bad_requests_are_refused(body: object) -> None:
    with pytest.raises(InvalidRequest):
        plan(body)


def test_an_empty_body_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        decode_watch(b"")


def test_too_many_topics_are_throttled_with_the_name_of_the_limit() -> None:
    body = {"topics": {"a": {}, "b": {}}, "prefixes": {"c": {}}}
    assert plan(body, max_watch_topics="3")
    with pytest.raises(Throttled) as refused:
        plan(body, max_watch_topics="2")
    assert refused.value.detail == {"limit": "max_watch_topics", "max": 2}


@pytest.mark.parametrize(
    ("body", "allowed"),
    [
        ({"topics": {"chat:1": {}}}, True),
        ({"topics": {"chat:1": {}, "news": {}}}, False),
        ({"prefixes": {"chat:": {}}}, True),
        ({"prefixes": {"chat:room-": {}}}, True),
        ({"prefixes": {"chat": {}}}, False),
        ({"prefixes": {"": {}}}, False),
    ],
)
def test_names_and_prefixes_stay_inside_those_of_the_key(body: object, allowed: bool) -> None:
    key = key_of("secret:read:chat:")
    if allowed:
        plan(body, key)
    else:
        with pytest.raises(Forbidden):
            plan(body, key)


def test_views_are_equal_if_they_give_the_same_records() -> None:
    one = plan({"topics": {"a": {}}, "node": ["y", "x", "y"], "match": "t"}).view
    other = plan({"topics": {"b": {"tail": True}}, "node": ["x", "y"], "match": ["tag", "Eq", "t"]}).view
    assert one == other and hash(one) == hash(other) and not one.plain


@pytest.mark.parametrize(
    "option",
    [
        {"node": "x"},
        {"match": "t"},
        {"include_meta": False},
        {"include_tags": True},
        {"include_keys": True},
        {"include_data": False},
        {"consistency": "strong"},
    ],
)
def test_only_the_plain_view_is_plain(option: dict[str, object]) -> None:
    assert not plan({"topics": {"a": {}}, **option}).view.plain


def test_a_read_asks_for_the_view() -> None:
    view = plan(
        {"topics": {"a": {}}, "node": "n", "match": ["tag", "Glob", "x*"], "include_data": False, "limit": 7}
    ).view
    assert json.loads(view.read_body(9)) == {
        "from_seq": 9,
        "limit": 7,
        "max_bytes": 262144,
        "include_meta": True,
        "include_tags": False,
        "include_keys": False,
        "node": ["n"],
        "match": ["tag", "Glob", "x*"],
    }
    assert view.read_options(5) == {"inline": True, "touch": False, "data": False, "upto": 5}
    assert plan({"topics": {"a": {}}}).view.read_options(None) == {"inline": True, "touch": False}


# --- cursors ----------------------------------------------------------------------------------------------


def cursor(name: str, seq: int, *, epoch: int = 1, named: bool = True) -> Cursor:
    return Cursor(name=name, seq=seq, epoch=epoch, named=named)


def ids_of(cursors: list[Cursor], told: int = 0) -> LastEventId:
    """What a client has that got an event when the cursors stood like this, and has heard of so many deletions."""
    ids = IdMap(cursors, told)
    for each in cursors:
        if not (each.named or each.untold) and each.seq != each.began:
            ids.move(each, each.seq)
    return parse_last_event_id(ids.line().decode().removeprefix("id: ").strip())


@pytest.mark.parametrize(
    "text",
    [
        "!!!",
        "e30=x",
        "AAAA",
        encode_id([1]),
        encode_id({"a": -1}),
        encode_id({"a": "1"}),
        encode_id({"a": 2**64}),
        encode_id({"a": 1, "$told": 2**64}),
        "é",
    ],  # type: ignore[arg-type]
)
def test_a_corrupt_last_event_id_is_an_invalid_request(text: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_last_event_id(text)


@given(st.text(max_size=60))
def test_garbage_raises_nothing_else(text: str) -> None:
    try:
        parse_last_event_id(text)
    except TopicsError as err:
        assert isinstance(err, InvalidRequest)


def test_padding_is_accepted_and_not_needed() -> None:
    assert parse_last_event_id(encode_id({"ab": 1})).seqs == {"ab": 1}
    assert parse_last_event_id(encode_id({"ab": 1}) + "=").seqs == {"ab": 1}


@given(st.integers(0, 1 << 64), st.integers(0, (1 << 64) - 1))
def test_an_id_only_rewinds(seq: int, known: int) -> None:
    each = cursor("a", seq)
    rewind([each], LastEventId({"a": known}))
    assert each.seq == min(seq, known)


def test_topics_that_an_id_does_not_name_stay_where_they_are() -> None:
    one, other = cursor("a", 5), cursor("b", 7)
    rewind([one, other], LastEventId({"a": 2, "stranger": 1}))
    assert (one.seq, other.seq) == (2, 7)


def test_a_topic_of_a_prefix_that_moved_after_the_id_goes_back_to_where_its_stream_began() -> None:
    named, found = cursor("a", 5), cursor("chat:1", 3, named=False)
    before = ids_of([named, found])
    assert before.seqs == {"a": 5}, "what has not moved is left out"
    found.seq = 9
    assert ids_of([named, found]).seqs == {"a": 5, "chat:1": 9}
    rewind([named, found], before)
    assert (named.seq, found.seq) == (5, 3)


def test_an_id_from_before_a_deletion_rewinds_to_the_beginning_of_the_new_topic() -> None:
    """Seq 100 of the deleted topic says nothing about seq 5 of its successor."""
    each = cursor("a", 100)
    before = ids_of([each])
    each.told = 1
    each.renew(epoch=2)
    each.seq = 5
    after = ids_of([each], told=1)
    assert (after.seqs, after.told) == ({"a": 5}, 1)
    rewind([each], after)
    assert (each.seq, each.untold) == (5, False)
    rewind([each], before)
    assert (each.seq, each.untold) == (0, True)


@pytest.mark.parametrize("named", [True, False])
def test_a_deletion_is_told_again_only_to_a_client_that_has_not_heard_of_it(named: bool) -> None:
    each = cursor("a", 100, named=named)
    before = ids_of([each, cursor("b", 1)])
    each.gone, each.told = True, 1
    heard = ids_of([each, cursor("b", 1)], told=1)
    assert heard.seqs == {"b": 1}
    rewind([each], heard)
    assert not each.untold
    rewind([each], before)
    assert each.untold


@pytest.mark.parametrize("named", [True, False])
def test_an_id_does_not_say_that_a_deletion_was_heard_before_it_is_told(named: bool) -> None:
    each = cursor("a", 5, named=named)
    each.told = 1
    each.renew(2)
    each.seq = 1  # the deletion and a record of the new topic were sent, and lost on the way
    rewind([each], LastEventId({"a": 5}))
    # The client hears of another topic's deletion, the second; then the connection breaks again.
    shown = ids_of([each], told=2)
    assert shown.seqs == {}
    rewind([each], shown)
    assert each.untold and each.seq == 0
    each.told = 3  # it is told, and that is lost, too
    rewind([each], shown)
    assert each.untold and each.seq == 0


def test_a_recreated_topic_that_an_id_does_not_name_stays_where_the_stream_began() -> None:
    each = cursor("p1", 5, named=False)
    each.told = 1
    each.renew(2)
    each.seq = 3
    each.begin()  # all of it was received, and another stream begins
    rewind([each], LastEventId({"a": 1}, told=1))
    assert each.seq == 3 and not each.untold
    each.told = 2
    each.renew(3)
    each.seq = 4
    rewind([each], LastEventId({"a": 1}, told=2))
    assert each.seq == 0 and not each.untold, "it has heard of the deletion, and of nothing behind it"
    rewind([each], LastEventId({"a": 1}, told=1))
    assert each.seq == 0 and each.untold


def test_large_ids_keep_the_latest_and_say_that_something_is_missing() -> None:
    cursors = [cursor(f"{at:04d}" + "x" * 200, 1) for at in range(256)]
    ids = IdMap(cursors)
    ids.move(cursors[3], 8)
    line = ids.line()
    assert len(line) < WATCH_ID_MAX_BYTES * 1.4
    last = parse_last_event_id(line.decode().removeprefix("id: ").strip())
    assert last.partial and last.seqs[cursors[3].name] == 8 and len(last.seqs) < 256
    # Whatever was left out is repeated from where the stream began rather than skipped.
    for each in cursors:
        each.seq = 9
    rewind(cursors, last)
    assert all(each.seq <= 8 for each in cursors)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5)), max_size=30),
    st.integers(0, 30),
)
def test_c3_a_rewind_by_any_id_of_the_stream_restores_that_moment(
    moves: list[tuple[int, int]], received: int
) -> None:
    """Some events are lost with the connection: after the rewind every cursor is where the client stands."""
    cursors = [cursor("a", 0), cursor("b", 3), cursor("p:1", 0, named=False), cursor("p:2", 4, named=False)]
    ids = IdMap(cursors)
    moments = []
    last: LastEventId | None = None
    for which, step in moves:
        each = cursors[which]
        each.seq += step
        ids.move(each, each.seq)
        moments.append(([c.seq for c in cursors], ids.line()))
    if received and moments:
        seqs, line = moments[min(received, len(moments)) - 1]
        last = parse_last_event_id(line.decode().removeprefix("id: ").strip())
        rewind(cursors, last)
        assert [each.seq for each in cursors] == seqs
