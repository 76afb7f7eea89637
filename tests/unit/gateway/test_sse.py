"""Frames, byte for byte, and what a client makes of them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core import sse
from shared.errors import ShardUnavailable, Throttled
from tests.support.sse_client import Frame, SseParser, decode_id


def parsed(data: bytes) -> list[object]:
    return list(SseParser().feed(data))


def test_a_record_frame_is_what_the_contract_shows() -> None:
    event = sse.record("orders", b'{"$seq":1,"$ts":2,"data":{"a":1}}', 0, 1, 2)
    assert sse.id_line({"orders": 1}) + event.sse == (
        b"id: eyJvcmRlcnMiOjF9\nevent: record\n"
        b'data: {"topic":"orders","records":[{"$seq":1,"$ts":2,"data":{"a":1}}],'
        b'"from_seq":0,"to_seq":1,"head_seq":2}\n\n'
    )


@pytest.mark.parametrize(
    ("event", "name", "data"),
    [
        (
            sse.tombstone("t", "cap", 3, 9, 10, 20),
            "tombstone",
            {"topic": "t", "reason": "cap", "gap_from": 3, "gap_to": 9, "earliest_seq": 10, "head_seq": 20},
        ),
        (sse.caught_up("t", 20), "caught-up", {"topic": "t", "head_seq": 20}),
        (
            sse.topic_deleted("t", 20, "deleted"),
            "topic-deleted",
            {"topic": "t", "head_seq": 20, "reason": "deleted"},
        ),
        (
            sse.shutting_down(),
            "error",
            {"code": "server_shutting_down", "message": "the server is shutting down; reconnect to go on"},
        ),
        (sse.ended("too_slow", "m"), "error", {"code": 410, "error": "too_slow", "message": "m"}),
    ],
)
def test_the_other_frames(event: sse.Event, name: str, data: dict[str, object]) -> None:
    assert parsed(event.sse) == [Frame(name, data)]
    expected = {"op": name.replace("-", "_"), **data}
    if event.name != "error":
        assert json.loads(event.ws) == expected


def test_errors_that_advise_say_which_topics_and_when_to_expect_them() -> None:
    event = sse.error(503, ShardUnavailable(shard=1, reason="it is starting"), ["a", "b"])
    (frame,) = parsed(event.sse)
    assert isinstance(frame, Frame)
    assert frame.data == {
        "code": 503,
        "error": "shard_unavailable",
        "message": "shard 1 is unavailable: it is starting",
        "topics": ["a", "b"],
        "detail": {"shard": 1},
        "retry_after_ms": 1000,
    }
    # WebSocket errors name the code like every other error.
    told = json.loads(event.ws)
    assert (told["op"], told["code"], told["topics"]) == ("error", "shard_unavailable", ["a", "b"])
    throttled = parsed(sse.error(429, Throttled(limit="watch_prefix_topics", max=5)).sse)[0]
    assert isinstance(throttled, Frame) and throttled.data["detail"] == {
        "limit": "watch_prefix_topics",
        "max": 5,
    }


def test_retry_and_heartbeat_are_no_events() -> None:
    parser = SseParser()
    assert list(parser.feed(sse.RETRY_FIRST.sse)) == [] and parser.retry == 2000
    assert sse.heartbeat(1748470015000) == b": hb 1748470015000\n\n"


@pytest.mark.parametrize("line_end", ["\n", "\r", "\r\n", "\n\r", "\n\n", "\r\r\n"])
def test_line_breaks_between_tokens_keep_the_json_equal(line_end: str) -> None:
    """Records are stored as they were written, white space included."""
    data = f'{{"$seq":1,"data":{{{line_end}"a":{line_end} [1,{line_end}2]}}{line_end}}}'
    (frame,) = parsed(sse.record("t", data.encode(), 0, 1, 1).sse)
    assert isinstance(frame, Frame)
    assert frame.data["records"] == [{"$seq": 1, "data": {"a": [1, 2]}}]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@given(json_values, st.sampled_from(["", "\n", "\r", "\r\n", " \n\t"]), st.integers(1, 40))
def test_any_json_survives_any_white_space_and_any_cut(value: object, space: str, cut: int) -> None:
    text = json.dumps(value, indent=1, ensure_ascii=False).replace("\n", space)
    stream = sse.record("t", f'{{"$seq":1,"data":{text}}}'.encode(), 0, 1, 1).sse
    parser = SseParser()
    frames = [
        item for start in range(0, len(stream), cut) for item in parser.feed(stream[start : start + cut])
    ]
    assert [frame.data["records"][0]["data"] for frame in frames if isinstance(frame, Frame)] == [value]


def test_the_frame_of_a_lonely_topic_is_built_once() -> None:
    event = sse.record("t", b"{}", 0, 1, 1)
    frame = event.frame_alone("t", 1)
    assert event.frame_alone("t", 1) is frame and frame.chunk is frame.chunk
    (got,) = parsed(frame.data)
    assert isinstance(got, Frame) and got.cursors == {"t": 1}


def test_ids_are_base64url_without_padding() -> None:
    line = sse.id_line({"a>b?c~": 2**64 - 1}).decode()
    text = line.removeprefix("id: ").removesuffix("\n")
    assert not set(text) & set("=+/") and decode_id(text) == {"a>b?c~": 2**64 - 1}
