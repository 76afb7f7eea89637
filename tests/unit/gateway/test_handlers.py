"""Handlers: what a worker is asked, and what a client is told."""

from __future__ import annotations

import json
import os
from collections.abc import Callable

import pytest

from gateway import service
from gateway.exchange import Recall
from gateway.handlers import records
from gateway.handlers.records import diff_from_query
from gateway.handlers.topics import merge_pages
from gateway.io.shard_link import FileTable, Reply
from gateway.io.supervisor_feed import SupervisorFeed
from shared.errors import Internal, ShardUnavailable
from shared.wire import Answer, FileExtent, Op, Request, encode_list_body, encode_metrics
from tests.support.recorded_exchange import RecordedExchange
from tests.unit.gateway.api_harness import (
    ApiHarness,
    ScriptedLink,
    ScriptedShards,
    document,
    error_code,
    header,
)

WRITE = b'{"records":[{"data": 1.0 }]}'


def answering(*answers: Reply | None) -> ScriptedShards:
    waiting = list(answers)
    return ScriptedShards(lambda request: waiting.pop(0))


# --- writes -----------------------------------------------------------------------------------------------


def test_a_write_reaches_the_worker_byte_for_byte() -> None:
    harness = ApiHarness()
    response = harness.call("POST", "/v0/topics/orders", WRITE)
    assert harness.shards.asked == [Request(1, Op.APPEND, "orders", WRITE, None)]
    assert (response.status, response.content_type) == (200, "application/json")
    assert document(response)["topic"] == "orders"


@pytest.mark.parametrize(
    "content_type", ["application/json", "application/json; charset=utf-8", "Application/JSON ;x=y"]
)
def test_json_may_be_declared_with_parameters(content_type: str) -> None:
    assert ApiHarness().call("POST", "/v0/topics/t", WRITE, {"content-type": content_type}).status == 200


@pytest.mark.parametrize(
    "content_type", ["", "text/plain", "application/jsonx", "application/x-www-form-urlencoded"]
)
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v0/topics/t"),
        ("PUT", "/v0/topics/t"),
        ("POST", "/v0/topics/t/diff"),
        ("POST", "/v0/topics/t/delete"),
    ],
)
def test_a_body_that_is_not_declared_json_is_415(method: str, path: str, content_type: str) -> None:
    harness = ApiHarness()
    response = harness.call(method, path, WRITE, {"content-type": content_type})
    assert (response.status, error_code(response)) == (415, "unsupported_media_type")
    assert not harness.shards.asked


def test_an_empty_body_needs_no_type() -> None:
    assert ApiHarness().call("PUT", "/v0/topics/t").status == 200
    assert ApiHarness().call("POST", "/v0/topics/t/diff").status == 200


def test_seqs_and_the_idempotency_header_become_options() -> None:
    harness = ApiHarness()
    harness.call("POST", "/v0/topics/t?return_seqs=false", WRITE)
    harness.call("POST", "/v0/topics/t?return_seqs=false", WRITE, {"idempotency-key": "k1"})
    harness.call("POST", "/v0/topics/t?return_seqs=true", WRITE, {"idempotency-key": "k1"})
    assert [request.options for request in harness.shards.asked] == [
        {"seqs": False},
        {"idem": "k1", "seqs": False},
        {"idem": "k1"},
    ]
    assert harness.call("POST", "/v0/topics/t", WRITE, {"idempotency-key": "x" * 257}).status == 400


def test_timings_become_performance() -> None:
    timings = {"wal_append_ms": 0.12345, "fsync_ms": 0, "records_scanned": 3, "unknown": 9.0}
    harness = ApiHarness(answering(Answer(1, 201, b'{"topic":"t"', timings)))
    response = harness.call("POST", "/v0/topics/t", WRITE)
    assert response.status == 201
    performance = document(response)["performance"]
    del performance["server_total_ms"]
    assert performance == {"wal_append_ms": 0.123, "fsync_ms": 0, "records_scanned": 3}


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0.0, b"0.000"), (0.000_000_4, b"0.000"), (0.000_000_6, b"0.001"), (0.012_345_6, b"12.346"),
        (0.099_999_9, b"100.000"), (0.099_999_4, b"99.999"), (86_400.000_25, b"86400000.250"),
    ],
)  # fmt: skip
def test_the_time_that_a_call_took_has_three_places(
    seconds: float, told: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_clock", lambda: seconds)  # its exchange has started at 0
    response = ApiHarness(answering(Answer(1, 200, b'{"topic":"t"'))).call("POST", "/v0/topics/t", WRITE)
    assert response.body == b'{"topic":"t","performance":{"server_total_ms":%b}}' % told


def test_a_repeated_head_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = ApiHarness(answering(*[Answer(1, 200, b'{"topic":"t"')] * 3))
    recall = Recall()
    for turn in range(3):
        headers = {"content-type": "application/json; charset=utf-8", "idempotency-key": "k"}
        exchange = RecordedExchange("POST", "/v0/topics/t", "", headers, WRITE, recall=recall)
        if turn:
            monkeypatch.setattr(harness.api.router, "resolve", None)
            exchange.headers = {}
        harness.api.handle(exchange)
        assert exchange.response is not None and exchange.response.status == 200
    assert [(asked.topic, asked.body, asked.options) for asked in harness.shards.asked] == [
        ("t", WRITE, {"idem": "k"})
    ] * 3


def test_what_is_known_of_a_head_holds_for_another_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = ApiHarness(answering(*[Answer(1, 200, b'{"topic":"t"')] * 2))
    headers = {"content-type": "application/json", "idempotency-key": "k"}
    first = RecordedExchange("POST", "/v0/topics/a", "", headers, WRITE)
    harness.api.handle(first)
    monkeypatch.setattr(harness.api.router, "resolve", None)
    harness.api.handle(
        RecordedExchange("POST", "/v0/topics/b", "", {}, WRITE, recall=first.recall.for_topic("b"))
    )
    assert [(asked.topic, asked.options) for asked in harness.shards.asked] == [
        ("a", {"idem": "k"}),
        ("b", {"idem": "k"}),
    ]


def test_nothing_is_known_for_another_topic_where_the_first_was_refused() -> None:
    harness = ApiHarness(answering(Answer(1, 200, b'{"topic":"t"')))
    first = RecordedExchange("POST", "/v0/topics/-", "", {"content-type": "application/json"}, WRITE)
    harness.api.handle(first)
    assert first.response is not None and first.response.status == 400
    assert first.recall.for_topic("b").route is None


def test_an_error_of_the_worker_is_passed_on_with_its_retry_hint() -> None:
    body = b'{"error":{"code":"throttled","message":"busy"}}'
    harness = ApiHarness(answering(Answer(1, 429, body, {"retry_after_ms": 2500.0})))
    response = harness.call("POST", "/v0/topics/t", WRITE)
    assert (response.status, response.body, header(response, "Retry-After")) == (429, body, "3")


def test_a_missing_shard_is_503_with_retry_after() -> None:
    harness = ApiHarness(answering(ShardUnavailable(shard=0, reason="it is starting")))
    response = harness.call("POST", "/v0/topics/t", WRITE)
    assert (response.status, error_code(response)) == (503, "shard_unavailable")
    assert header(response, "Retry-After") == "1"


def test_caps_forbid_creating_and_growing_but_not_updating() -> None:
    full = ScriptedShards(links=[ScriptedLink(topics=2), ScriptedLink(shard=1, topics=1)])
    harness = ApiHarness(full, max_topics="3")
    harness.call("PUT", "/v0/topics/t", b"{}")
    harness.call("POST", "/v0/topics/t", WRITE)
    assert [request.options for request in full.asked] == [{"nocreate": ["max_topics", 3]}] * 2
    heavy = ApiHarness(ScriptedShards(links=[ScriptedLink(bytes=1000)]), max_total_bytes="1000")
    response = heavy.call("POST", "/v0/topics/t", WRITE)
    assert response.status == 429
    assert document(response)["error"]["detail"] == {"limit": "max_total_bytes", "max": 1000}
    assert heavy.call("GET", "/v0/topics/t").status == 200


def test_requests_in_flight_of_a_key_are_bounded_until_they_are_answered() -> None:
    shards = answering(None, Answer(2, 200, b'{"a":1'))
    harness = ApiHarness(shards, api_keys="secret", max_inflight_per_key="1")
    bearer = {"authorization": "Bearer secret"}
    harness.start("GET", "/v0/topics/t", headers=bearer)
    response = harness.call("GET", "/v0/topics/t", headers=bearer)
    assert response.status == 429
    assert document(response)["error"]["detail"]["limit"] == "max_inflight_per_key"
    shards.waiting[1](Answer(1, 200, b'{"a":1'), None)
    assert harness.call("GET", "/v0/topics/t", headers=bearer).status == 200


# --- reads ------------------------------------------------------------------------------------------------


def test_extents_are_asked_for_only_where_they_can_be_sent() -> None:
    harness = ApiHarness()
    for allowed, headers in ((True, {}), (False, {}), (True, {"accept-encoding": "gzip"})):
        harness.call("POST", "/v0/topics/t/diff", b"{}", headers, extents_allowed=allowed)
    assert [request.options for request in harness.shards.asked] == [None, {"inline": True}, {"inline": True}]


def test_a_query_that_is_repeated_asks_the_same_again() -> None:
    harness = ApiHarness()
    queries = ["from_seq=5&limit=2", "", "from_seq=5&limit=2", f"match={'x' * 200}", f"match={'x' * 200}"]
    for query in queries:
        harness.call("GET", f"/v0/topics/t/records?{query}")
    asked = [json.loads(request.body) for request in harness.shards.asked]
    long = {"match": "x" * 200}
    assert asked == [{"from_seq": 5, "limit": 2}, {}, {"from_seq": 5, "limit": 2}, long, long]
    for _ in range(2):
        assert harness.call("GET", "/v0/topics/t/records?limit=x").status == 400
    assert len(harness.shards.asked) == len(queries)


def test_only_so_many_queries_are_remembered() -> None:
    harness = ApiHarness()
    for number in range(600):
        harness.call("GET", f"/v0/topics/t/records?from_seq={number}")
        assert len(records._bodies) <= 256
    assert [json.loads(request.body)["from_seq"] for request in harness.shards.asked] == list(range(600))


def test_extents_are_passed_on_with_their_release() -> None:
    read_end, write_end = os.pipe()
    os.close(write_end)
    table = FileTable()
    table.add(7, read_end)
    shards = answering(Answer(1, 200, b'{"records":[', None, [], b'],"lag":0'))
    shards.leased = table.lease([FileExtent(7, 10, 20)])
    table.retire(7)
    response = ApiHarness(shards).call("POST", "/v0/topics/t/diff", b"{}", extents_allowed=True)
    assert [(e.fd, e.offset, e.length) for e in response.extents] == [(read_end, 10, 20)]
    assert response.content_length() == len(response.body) + 20 + len(response.tail)
    assert json.loads(response.body + response.tail)["performance"]
    assert response.release is not None
    response.release()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(read_end)


def test_get_records_asks_the_same_as_a_diff() -> None:
    harness = ApiHarness()
    query = "from_seq=5&limit=10&node=a&node=b&include_tags=true&include_meta=0&wait_ms=9&max_bytes=77&match=x&z=1"
    harness.call("GET", f"/v0/topics/t/records?{query}")
    assert json.loads(harness.shards.asked[0].body) == {
        "from_seq": 5,
        "limit": 10,
        "wait_ms": 9,
        "max_bytes": 77,
        "include_tags": True,
        "include_meta": False,
        "node": ["a", "b"],
        "match": "x",
    }
    assert harness.shards.asked[0].op == Op.READ


def test_a_match_in_a_query_is_a_tag_or_json() -> None:
    assert json.loads(diff_from_query({"match": ['["key","Glob","x*"]']}))["match"] == ["key", "Glob", "x*"]
    for bad in ("from_seq=-1", "limit=x", "match=%5B1", "include_tags=maybe"):
        assert ApiHarness().call("GET", f"/v0/topics/t/records?{bad}").status == 400


class VanishingExchange(RecordedExchange):
    """A client that can be told to leave."""

    def on_gone(self, callback: Callable[[], None]) -> None:
        self.leave = callback


def test_h05_a_long_poll_is_cancelled_when_its_client_vanishes() -> None:
    harness = ApiHarness(ScriptedShards(lambda request: None))
    headers = {"content-type": "application/json"}
    poll = VanishingExchange("POST", "/v0/topics/t/diff", "", headers, b'{"wait_ms":1000}')
    harness.api.handle(poll)
    poll.leave()
    assert harness.shards.cancelled == [harness.shards.asked[0].id]


# --- topics -----------------------------------------------------------------------------------------------


def test_flags_of_state_and_delete() -> None:
    harness = ApiHarness()
    harness.call("GET", "/v0/topics/t?touch=false")
    harness.call("GET", "/v0/topics/t")
    harness.call("DELETE", "/v0/topics/t?if_empty=true")
    harness.call("DELETE", "/v0/topics/t")
    assert [(r.op, r.options) for r in harness.shards.asked] == [
        (Op.STATE, {"touch": False}),
        (Op.STATE, None),
        (Op.DELETE_TOPIC, {"if_empty": True}),
        (Op.ROUTER_DELETE, {"dest": "t"}),
        (Op.DELETE_TOPIC, None),
        (Op.ROUTER_DELETE, {"dest": "t"}),
    ]
    assert harness.call("GET", "/v0/topics/t?touch=perhaps").status == 400


class NamedShards(ScriptedShards):
    """Two shards that hold names and answer LIST as workers do."""

    def __init__(self, *names: list[str], most: int = 1000) -> None:
        links = [ScriptedLink(shard=n) for n in range(len(names))]
        super().__init__(links=links, answer=self.list_names)
        self.names = names
        self.most = most

    def list_names(self, request: Request) -> Reply:
        options = request.options or {}
        limit = min(int(str(options["limit"])), self.most)
        found = [
            name
            for name in sorted(self.names[request.id])
            if name > str(options["after"]) and name.startswith(str(options["prefix"]))
        ]
        items = [(name, b'{"topic":"%b"}' % name.encode()) for name in found[:limit]]
        return Answer(1, 200, encode_list_body(items, len(found) > limit))


def walk(harness: ApiHarness, page_size: int, prefix: str = "") -> list[list[str]]:
    pages: list[list[str]] = []
    cursor = ""
    while True:
        response = harness.call("GET", f"/v0/topics?page_size={page_size}&prefix={prefix}&cursor={cursor}")
        page = document(response)
        pages.append([entry["topic"] for entry in page["topics"]])
        if "next_cursor" not in page:
            return pages
        cursor = page["next_cursor"]


ODD = [f"t{n:02d}" for n in range(1, 20, 2)]
EVEN = [f"t{n:02d}" for n in range(0, 20, 2)]


@pytest.mark.parametrize("names", [(ODD, EVEN), (ODD + EVEN, []), ([], ODD + EVEN)])
@pytest.mark.parametrize("page_size", [1, 3, 7, 19, 20, 21])
@pytest.mark.parametrize("most", [1000, 2])
def test_lists_are_merged_in_name_order_whatever_the_pages(
    names: tuple[list[str], list[str]], page_size: int, most: int
) -> None:
    pages = walk(ApiHarness(NamedShards(*names, most=most)), page_size)
    assert [name for page in pages for name in page] == sorted(ODD + EVEN)
    assert all(0 < len(page) <= page_size for page in pages)
    if most == 1000:
        assert len(pages) == -(-20 // page_size)


def test_a_cursor_survives_the_deletion_of_its_topic() -> None:
    shards = NamedShards(list(ODD), list(EVEN))
    harness = ApiHarness(shards)
    page = document(harness.call("GET", "/v0/topics?page_size=2"))
    shards.names[0].remove("t01")
    page = document(harness.call("GET", f"/v0/topics?page_size=2&cursor={page['next_cursor']}"))
    assert [entry["topic"] for entry in page["topics"]] == ["t02", "t03"]


def test_page_sizes_have_a_default_and_a_bound() -> None:
    harness = ApiHarness()
    for query, limit in (("", 100), ("?page_size=5", 5), ("?page_size=5000", 1000)):
        assert harness.call("GET", f"/v0/topics{query}").status == 200
        assert (harness.shards.asked[-1].options or {})["limit"] == limit
    for bad in ("0", "-1", "x", "1.5", ""):
        assert error_code(harness.call("GET", f"/v0/topics?page_size={bad}")) == "invalid_request"
    assert error_code(harness.call("GET", "/v0/topics?cursor=zzz")) == "invalid_request"


def test_a_list_with_a_missing_shard_is_no_list() -> None:
    page = Answer(1, 200, encode_list_body([("a", b"{}")], False))
    harness = ApiHarness(answering(page, ShardUnavailable(shard=1, reason="x")))
    harness.shards.links = [ScriptedLink(), ScriptedLink(shard=1)]
    assert error_code(harness.call("GET", "/v0/topics")) == "shard_unavailable"
    for body in (b"junk", encode_list_body([], True)):
        with pytest.raises(Internal):
            merge_pages([Answer(1, 200, body)], 10)


# --- health, ready, metrics -------------------------------------------------------------------------------


def test_health_says_ok_whatever_the_shards_do() -> None:
    harness = ApiHarness(ScriptedShards(links=[ScriptedLink(up=False)]))
    for path in ("/v0/health", "/healthz"):
        answer = document(harness.call("GET", path))
        assert (answer["status"], answer["version"]) == ("ok", "1.2.3") and answer["uptime_ms"] >= 0


def test_ready_names_the_shard_that_is_not() -> None:
    links = [ScriptedLink(topics=4), ScriptedLink(shard=1, topics=3)]
    harness = ApiHarness(ScriptedShards(links=links))
    answer = document(harness.call("GET", "/v0/ready"))
    assert (answer["status"], answer["wal_replay_complete"], answer["topics"]) == ("ready", True, 7)
    assert [shard["ready"] for shard in answer["shards"]] == [True, True]
    links[1].up, links[1].reason = False, "it is starting"
    response = harness.call("GET", "/readyz")
    assert (response.status, error_code(response)) == (503, "not_ready")
    detail = document(response)["error"]["detail"]
    assert detail["replay_progress"] == 0.5
    assert detail["shards"][1] == {"shard": 1, "ready": False, "topics": 3, "reason": "it is starting"}


def test_ready_knows_from_the_supervisor_how_far_a_replay_has_come() -> None:
    harness = ApiHarness(ScriptedShards(links=[ScriptedLink(up=False, reason="it is starting")]))
    feed = SupervisorFeed(1, on_keys=harness.api.replace_keys)
    harness.api.replay = feed
    feed.apply({"event": "shard", "shard": 0, "state": "replaying", "progress": 0.25})
    detail = document(harness.call("GET", "/v0/ready"))["error"]["detail"]
    assert detail["replay_progress"] == 0.25
    assert "25%" in detail["shards"][0]["reason"]


METRICS = {
    "gauges": {"records_live": 5, "topics_by_class": {"durability": {"disk": 2, "fsync": 1}}, "odd": "text"},
    "counters": {"wal_frames_total": 7},
    "histograms": {"fsync_ms": {"buckets": [[1, 2], [5, 3]], "count": 4, "sum": 9.5}, "bad": 1},
    "per_topic": {"a-1": {"head_seq": 3}, "b-1": {"head_seq": 4}},
}


def metrics_harness(**given: str) -> ApiHarness:
    replies: list[Reply] = [Answer(1, 200, encode_metrics(METRICS)), ShardUnavailable(shard=1, reason="x")]
    shards = ScriptedShards(links=[ScriptedLink(), ScriptedLink(shard=1, up=False)])
    shards.answer = lambda request: replies[request.id]
    return ApiHarness(shards, **given)


def test_metrics_are_prometheus_text_of_all_shards_that_answer() -> None:
    harness = metrics_harness()
    harness.call("GET", "/v0/health")
    response = harness.call("GET", "/v0/metrics")
    assert response.content_type.startswith("text/plain; version=0.0.4")
    lines = response.body.decode().splitlines()
    for line in (
        'topics_records_live{shard="0"} 5.0',
        'topics_topics_by_class{durability="disk",shard="0"} 2.0',
        'topics_wal_frames_total{shard="0"} 7.0',
        'topics_fsync_ms_bucket{le="+Inf",shard="0"} 4.0',
        'topics_topic_head_seq{shard="0",topic="a-1"} 3.0',
        'topics_shard_up{shard="1"} 0.0',
        'topics_http_requests_total{method="GET",route="/v0/health",status="200"} 1.0',
        "topics_topic_metrics_truncated 0.0",
        "topics_ready 0.0",
    ):
        assert line in lines, line


def test_metrics_are_json_for_those_who_ask() -> None:
    response = metrics_harness().call("GET", "/v0/metrics", headers={"accept": "application/json"})
    assert document(response)["shards"][0]["gauges"]["records_live"] == 5


def test_metrics_hide_names_outside_the_prefixes_of_the_key() -> None:
    harness = metrics_harness(api_keys="secret::a-")
    text = harness.call("GET", "/v0/metrics", headers={"authorization": "Bearer secret"}).body
    assert b"a-1" in text and b"b-1" not in text


# --- the frame around all of them -------------------------------------------------------------------------


def test_a_bug_in_a_handler_is_500_without_its_details(caplog: pytest.LogCaptureFixture) -> None:
    def broken(request: Request) -> Reply:
        raise RuntimeError("secret detail")

    response = ApiHarness(ScriptedShards(broken)).call("GET", "/v0/topics/t")
    assert (response.status, error_code(response)) == (500, "internal")
    assert b"secret detail" not in response.body
    assert "api.call.failed" in caplog.text


def test_a_draining_api_refuses_work_and_still_says_that_it_lives() -> None:
    harness = ApiHarness()
    harness.api.drain()
    response = harness.call("GET", "/v0/topics/t")
    assert (response.status, error_code(response)) == (503, "shutting_down")
    assert header(response, "Retry-After")
    assert harness.call("GET", "/v0/health").status == 200


def test_flush_ends_the_turn_at_the_shards() -> None:
    harness = ApiHarness()
    harness.api.flush()
    assert harness.shards.flushes == 1
