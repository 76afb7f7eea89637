"""`/v0/ws` over real processes: the same records, rules and errors as over HTTP, in both directions."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.api_client import ApiClient, fresh
from tests.support.live_server import LiveServer
from tests.support.server_process import wait_for
from tests.support.ws_client import Json, WsClient


@pytest.fixture
def ws(server: LiveServer) -> Iterator[WsClient]:
    with WsClient(server.port) as connected:
        assert connected.status == 101
        yield connected


def datas(messages: list[Json]) -> list[object]:
    return [
        record["data"] for message in messages if message["op"] == "record" for record in message["records"]
    ]


def caught_up(ws: WsClient, topic: str) -> list[Json]:
    return ws.until(lambda message: message["op"] == "caught_up" and message["topic"] == topic)


@pytest.mark.parametrize("request_id", [1, "a", None, [1, {"x": 2}], 1.5])
def test_any_request_id_comes_back_as_it_was(ws: WsClient, request_id: object) -> None:
    assert ws.ask(op="ping", request_id=request_id) == {"op": "pong", "request_id": request_id}


def test_a_message_without_request_id_is_answered_without_one(ws: WsClient) -> None:
    assert ws.ask(op="ping") == {"op": "pong"}


def test_subscribe_backlog_live_and_unsubscribe(ws: WsClient, plain_client: ApiClient) -> None:
    topic = fresh()
    plain_client.append(topic, 1, 2)
    assert ws.ask(op="subscribe", request_id=7, topic=topic) == {
        "op": "subscribed",
        "request_id": 7,
        "topics": {topic: {"from_seq": 0, "head_seq": 2, "earliest_seq": 1}},
    }
    record, up = caught_up(ws, topic)
    assert (record["from_seq"], record["to_seq"], record["head_seq"]) == (0, 2, 2) and datas([record]) == [
        1,
        2,
    ]
    assert up == {"op": "caught_up", "topic": topic, "head_seq": 2}
    plain_client.append(topic, 3)
    assert datas([ws.hear_op("record")]) == [3]
    answer = ws.ask(op="unsubscribe", request_id=8, topic=topic)
    assert answer == {"op": "unsubscribed", "request_id": 8, "topics": [topic], "prefixes": []}
    plain_client.append(topic, 4)
    assert ws.ask(op="ping", request_id=9)["op"] == "pong"


def test_publish_is_acked_and_comes_back_once(ws: WsClient) -> None:
    topic = fresh()
    ack = ws.ask(op="publish", request_id="p", topic=topic, records=[{"data": {"n": 1}, "tag": "t"}])
    assert (ack["op"], ack["request_id"], ack["seqs"], ack["created"]) == ("ack", "p", [1], True)
    ws.say(op="subscribe", topic=topic, include_tags=True)
    ws.hear_op("subscribed")
    (record, _) = caught_up(ws, topic)
    assert record["records"][0]["$tag"] == "t"
    for number in range(2, 30):
        ws.say(op="publish", request_id=number, topic=topic, records=[{"data": {"n": number}}])
    heard: list[Json] = []
    while len(datas(heard)) < 28 or len([m for m in heard if m["op"] == "ack"]) < 28:
        heard.append(ws.hear())
    assert [data["n"] for data in datas(heard)] == [*range(2, 30)]  # type: ignore[index]
    assert [m["request_id"] for m in heard if m["op"] == "ack"] == [*range(2, 30)]


def test_data_is_kept_byte_for_byte(ws: WsClient, plain_client: ApiClient) -> None:
    topic = fresh()
    ws.say_raw('{"op":"publish","topic":"%s","records":[{"data":[1.10, 1e5,"\\u00e9"]}]}' % topic)  # noqa: UP031
    assert ws.hear()["op"] == "ack"
    text = plain_client.send("POST", f"/v0/topics/{topic}/diff", {}).text
    assert '"data":[1.10, 1e5,"\\u00e9"]' in text


def test_idempotency_and_refused_writes(ws: WsClient, plain_client: ApiClient) -> None:
    topic = fresh()
    plain_client.put(topic, cap_records=1, discard="reject")
    write = {"op": "publish", "topic": topic, "records": [{"data": 1}], "idempotency_key": "k"}
    assert ws.ask(**write)["deduped"] is False
    assert ws.ask(**write)["deduped"] is True
    full = ws.ask(op="publish", request_id=3, topic=topic, records=[{"data": 2}])
    assert (full["op"], full["request_id"], full["code"]) == ("error", 3, "topic_full")


@pytest.mark.parametrize(
    "message",
    [
        "not json",
        "[]",
        "{}",
        '{"op":"dance"}',
        '{"op":5}',
        '{"op":"subscribe"}',
        '{"op":"subscribe","topics":{"a":{"from_seq":-1}}}',
        '{"op":"unsubscribe"}',
        '{"op":"publish","records":[{"data":1}]}',
        '{"op":"publish","topic":"a b","records":[{"data":1}]}',
        '{"op":"publish","topic":"t","records":[]}',
    ],
)
def test_bad_messages_are_answered_and_the_connection_goes_on(ws: WsClient, message: str) -> None:
    ws.say_raw(message)
    answer = ws.hear()
    assert (answer["op"], answer["code"]) == ("error", "invalid_request") and answer["message"]
    assert ws.ask(op="ping", request_id=1)["op"] == "pong"


def test_unknown_topics_unless_lenient(ws: WsClient, plain_client: ApiClient) -> None:
    topic, missing = fresh(), fresh()
    plain_client.append(topic, 1)
    answer = ws.ask(op="subscribe", request_id=1, topics=[topic, missing])
    assert (answer["code"], answer["detail"]) == ("topic_not_found", {"topic": missing})
    answer = ws.ask(op="subscribe", request_id=2, topics=[topic, missing], lenient=True, tail=True)
    assert answer["topics"] == {topic: {"from_seq": 1, "head_seq": 1, "earliest_seq": 1}}


def test_prefixes_deletion_and_recreation(ws: WsClient, plain_client: ApiClient) -> None:
    prefix = fresh("ws") + ":"
    assert ws.ask(op="subscribe", prefixes={prefix: {}})["topics"] == {}
    plain_client.append(prefix + "1", "a")
    assert datas(ws.until(lambda message: message["op"] == "record")) == ["a"]
    plain_client.ok("DELETE", f"/v0/topics/{prefix}1")
    gone = ws.hear_op("topic_deleted")
    assert gone == {"op": "topic_deleted", "topic": prefix + "1", "head_seq": 1, "reason": "deleted"}
    plain_client.append(prefix + "1", "b")
    assert datas(ws.until(lambda message: message["op"] == "record")) == ["b"]
    answer = ws.ask(op="unsubscribe", prefixes=[prefix])
    assert answer == {"op": "unsubscribed", "topics": [prefix + "1"], "prefixes": [prefix]}
    plain_client.append(prefix + "2", "c")
    assert ws.ask(op="ping")["op"] == "pong"


def test_losses_are_tombstones(ws: WsClient, plain_client: ApiClient) -> None:
    topic = fresh()
    plain_client.put(topic, cap_records=2)
    for number in range(5):
        plain_client.append(topic, number)
    ws.say(op="subscribe", topic=topic)
    ws.hear_op("subscribed")
    tombstone, *rest = caught_up(ws, topic)
    assert (tombstone["op"], tombstone["gap_from"], tombstone["gap_to"], tombstone["reason"]) == (
        "tombstone",
        1,
        3,
        "from_seq_too_old",
    )
    assert datas(rest) == [3, 4]


def test_scopes_and_prefixes_are_checked_per_message(tmp_path: Path) -> None:
    keys = "reader:read,writer:write,boss:write+admin,chat:rw:chat:,all"
    env = {"TOPICS_API_KEYS": keys, "TOPICS_MAX_SSE_CONNECTIONS_PER_KEY": "1"}
    with LiveServer(tmp_path / "data", shards=2, env=env) as server:
        server.wait_ready()
        with server.client(token="all") as client:
            wait_for(lambda: client.send("GET", "/v0/ready").status_code == 200)
            client.append("news", 1)
        for token, status in ((None, 401), ("nobody", 401)):
            with WsClient(server.port, token=token) as ws:
                assert ws.status == status
                assert json.loads(ws.body)["error"]["code"] == "unauthorized"
        # Only streams of events take a token from the URL.
        with WsClient(server.port, path="/v0/ws?token=all") as ws:
            assert ws.status == 401
        write = {"op": "publish", "topic": "news", "records": [{"data": 2}]}
        created = {**write, "topic": "made", "config": {"ttl_ms": 5}}
        expected = {
            "reader": ("subscribed", "forbidden", "forbidden"),
            "writer": ("forbidden", "ack", "forbidden"),
            "boss": ("forbidden", "ack", "ack"),
            "chat": ("forbidden", "forbidden", "forbidden"),
        }
        for token, outcomes in expected.items():
            with WsClient(server.port, token=token) as ws:
                for message, outcome in zip(
                    ({"op": "subscribe", "topic": "news", "tail": True}, write, created),
                    outcomes,
                    strict=True,
                ):
                    ws.say(**message, request_id=outcome)
                    (answer,) = [m for m in ws.until(lambda m: "request_id" in m) if "request_id" in m]
                    assert answer.get("code", answer["op"]) == outcome, (token, message)
                with WsClient(server.port, token=token) as second:
                    assert second.status == 429
                    assert (
                        json.loads(second.body)["error"]["detail"]["limit"] == "max_sse_connections_per_key"
                    )
        with WsClient(server.port, token="chat") as ws:
            assert ws.ask(op="publish", topic="chat:1", records=[{"data": 1}])["op"] == "ack"
            assert ws.ask(op="subscribe", prefixes={"chat": {}})["code"] == "forbidden"
            assert ws.ask(op="subscribe", prefixes={"chat:": {}})["op"] == "subscribed"
        assert server.stop() == 0


def test_shutdown_says_goodbye_and_closes(tmp_path: Path) -> None:
    with LiveServer(tmp_path / "data", shards=1) as server:
        server.wait_serving()
        with WsClient(server.port) as ws:
            assert ws.ask(op="ping")["op"] == "pong"
            os.kill(server.pid, 15)
            goodbye = ws.hear_op("error")
            assert goodbye["code"] == "server_shutting_down"
            assert ws.closed() == 1001
        assert server.wait_exit() == 0
