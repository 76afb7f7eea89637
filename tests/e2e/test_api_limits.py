"""Limits of single requests and caps of the whole server, on both lanes and with small settings."""

from __future__ import annotations

import gzip
import json
import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from tests.support.api_client import LANES, ApiClient, fresh, long_polls
from tests.support.live_server import LiveServer
from tests.support.server_process import wait_for

SMALL = {
    "TOPICS_MAX_BATCH_RECORDS": "5",
    "TOPICS_MAX_RECORD_BYTES": "2048",
    "TOPICS_MAX_BODY_BYTES": "8192",
    "TOPICS_MAX_META_BYTES": "100",
    "TOPICS_MAX_TAG_BYTES": "8",
    "TOPICS_MAX_NODE_BYTES": "6",
    "TOPICS_MAX_KEY_BYTES": "7",
    "TOPICS_MAX_LIMIT": "4",
    "TOPICS_REQUEST_TIMEOUT_MS": "1000",
}
CAPS = {
    "TOPICS_API_KEYS": "c.one,c.two",
    "TOPICS_MAX_TOPICS": "3",
    "TOPICS_MAX_TOTAL_BYTES": "20000",
    "TOPICS_MAX_INFLIGHT_PER_KEY": "3",
}


@pytest.fixture(scope="module")
def small_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("small") / "data", shards=1, env=SMALL) as server:
        yield server.wait_serving()
        assert server.failures() == []


@pytest.fixture(scope="module", params=LANES)
def small(small_server: LiveServer, request: pytest.FixtureRequest) -> Iterator[ApiClient]:
    with small_server.client(request.param) as client:
        yield client


@pytest.fixture(scope="module")
def capped_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("capped") / "data", shards=2, env=CAPS) as server:
        server.wait_ready()
        yield server
        assert server.failures() == []


@pytest.fixture(params=LANES)
def capped(capped_server: LiveServer, request: pytest.FixtureRequest) -> Iterator[ApiClient]:
    """With no topic in it: each test fills the caps by itself."""
    with capped_server.client(request.param, token="c.one") as client:
        wait_for(lambda: client.send("GET", "/v0/ready").status_code == 200)
        for entry in client.ok("GET", "/v0/topics")["topics"]:
            client.ok("DELETE", f"/v0/topics/{entry['topic']}")
        yield client


# --- one request --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("record", "fits", "code"),
    [
        ({"data": 1, "tag": "ä" * 4}, True, ""),
        ({"data": 1, "tag": "ä" * 4 + "x"}, False, "invalid_request"),
        ({"data": 1, "node": "x" * 6}, True, ""),
        ({"data": 1, "node": "x" * 7}, False, "invalid_request"),
        ({"data": 1, "key": "x" * 7}, True, ""),
        ({"data": 1, "key": "x" * 8}, False, "invalid_request"),
        ({"data": 1, "meta": {"m": "x" * 92}}, True, ""),
        ({"data": 1, "meta": {"m": "x" * 93}}, False, "invalid_request"),
        ({"data": "x" * 2046}, True, ""),
        ({"data": "x" * 2047}, False, "record_too_large"),
        ({"data": "x" * 2046, "meta": {}}, False, "record_too_large"),
    ],
)
def test_a_record_is_taken_up_to_its_limits_and_refused_beyond(
    small: ApiClient, record: dict[str, object], fits: bool, code: str
) -> None:
    topic = fresh()
    # The client writes meta as compactly as the limit is counted.
    raw = json.dumps({"records": [record]}, separators=(",", ":"), ensure_ascii=False).encode()
    if fits:
        small.ok("POST", f"/v0/topics/{topic}", raw=raw, status=201)
    else:
        small.fails(400, code, "POST", f"/v0/topics/{topic}", raw=raw)
        small.fails(404, "topic_not_found", "GET", f"/v0/topics/{topic}")


def test_the_node_of_a_batch_has_the_limit_of_a_node(small: ApiClient) -> None:
    small.fails(
        400, "invalid_request", "POST", f"/v0/topics/{fresh()}", {"records": [{"data": 1}], "node": "x" * 7}
    )


def test_a_batch_beyond_its_limit_is_too_large(small: ApiClient) -> None:
    topic = fresh()
    small.append(topic, *range(5))
    error = small.fails(400, "batch_too_large", "POST", f"/v0/topics/{topic}", {"records": [{"data": 1}] * 6})
    assert error["detail"]["max"] == 5
    assert small.state(topic)["count"] == 5


def test_a_larger_limit_is_clamped_to_the_setting(small: ApiClient) -> None:
    topic = fresh()
    small.append(topic, *range(5))
    assert small.values(topic, limit=1000) == [0, 1, 2, 3]
    assert small.values(topic) == [0, 1, 2, 3]


def test_meta_has_at_most_64_keys(client: ApiClient) -> None:
    topic = fresh()
    client.write(topic, {"data": 1, "meta": {f"k{n}": 1 for n in range(64)}})
    body = {"records": [{"data": 1, "meta": {f"k{n}": 1 for n in range(65)}}]}
    client.fails(400, "invalid_request", "POST", f"/v0/topics/{topic}", body)


@pytest.mark.parametrize(
    ("field", "limit"), [("tag", 256), ("node", 128), ("key", 256)], ids=["tag", "node", "key"]
)
def test_the_default_limits_of_labels(client: ApiClient, field: str, limit: int) -> None:
    topic = fresh()
    client.write(topic, {"data": 1, field: "x" * limit})
    body = {"records": [{"data": 1, field: "x" * (limit + 1)}]}
    error = client.fails(400, "invalid_request", "POST", f"/v0/topics/{topic}", body)
    assert error["detail"] == {"record": 0, "field": field, "max_bytes": limit}


def test_the_default_limits_of_records_and_batches(client: ApiClient) -> None:
    topic = fresh()
    assert client.append(topic, *[0] * 10_000)["count"] == 10_000
    path = f"/v0/topics/{topic}"
    client.fails(400, "batch_too_large", "POST", path, {"records": [{"data": 0}] * 10_001})
    client.append(topic, "x" * (2**20 - 2))
    client.fails(400, "record_too_large", "POST", path, {"records": [{"data": "x" * (2**20 - 1)}]})
    client.fails(400, "invalid_request", "POST", path, {"records": [{"data": 0, "meta": {"m": "x" * 2**14}}]})
    assert client.state(topic)["count"] == 10_001


# --- bodies -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "suffix"), [("POST", ""), ("PUT", ""), ("POST", "/diff"), ("POST", "/delete")]
)
def test_a_body_beyond_its_limit_is_413_on_every_route(small: ApiClient, method: str, suffix: str) -> None:
    topic = fresh()
    raw = b" " * 8193
    error = small.fails(413, "payload_too_large", method, f"/v0/topics/{topic}{suffix}", raw=raw)
    assert error["detail"]["max_bytes"] == 8192
    # The connection of the next request, whichever it is, is in order.
    small.fails(404, "topic_not_found", "GET", f"/v0/topics/{topic}")


def test_a_body_may_use_its_limit_up(small: ApiClient) -> None:
    raw = b'{"records":[{"data":1}]}'
    small.ok("POST", f"/v0/topics/{fresh()}", raw=raw + b" " * (8192 - len(raw)), status=201)


def test_a_body_whose_length_is_not_told_is_counted_while_it_comes(small: ApiClient) -> None:
    pieces = (b" " * 1000 for _ in range(20))
    answer = small._http.post(
        f"/v0/topics/{fresh()}", content=pieces, headers={"Content-Type": "application/json"}
    )
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "payload_too_large")


@pytest.mark.parametrize("size", [8193, 50_000_000])
def test_h03_a_gzip_bomb_is_413_however_small_it_comes(small: ApiClient, size: int) -> None:
    packed = gzip.compress(b" " * size)
    if len(packed) > 8192:
        packed = gzip.compress(b" " * 4_000_000)
    assert len(packed) < 8192
    small.fails(
        413,
        "payload_too_large",
        "POST",
        f"/v0/topics/{fresh()}",
        raw=packed,
        headers={"Content-Encoding": "gzip"},
    )


def test_h03_many_small_gzip_members_count_together(small: ApiClient) -> None:
    packed = gzip.compress(b" " * 1000) * 9
    small.fails(
        413,
        "payload_too_large",
        "POST",
        f"/v0/topics/{fresh()}",
        raw=packed,
        headers={"Content-Encoding": "gzip"},
    )


def test_a_declared_length_beyond_the_default_limit_is_refused_unread(server: LiveServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as raw:
        raw.sendall(
            b"POST /v0/topics/t HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: 67108865\r\n\r\n"
        )
        assert raw.recv(4096).startswith(b"HTTP/1.1 413 ")


def test_h02_a_body_that_stops_coming_is_given_up(small_server: LiveServer) -> None:
    with socket.create_connection(("127.0.0.1", small_server.port), timeout=10) as raw:
        raw.sendall(
            b"POST /v0/topics/t HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b'Content-Length: 100\r\n\r\n{"rec'
        )
        assert raw.recv(4096).startswith(b"HTTP/1.1 408 ")


# --- caps ---------------------------------------------------------------------------------------


def test_beyond_max_topics_nothing_is_created_and_everything_else_goes_on(capped: ApiClient) -> None:
    topics = [fresh() for _ in range(3)]
    capped.put(topics[0])
    capped.append(topics[1], 1)
    capped.put(topics[2])
    extra = fresh()
    for method, body in (("PUT", {}), ("POST", {"records": [{"data": 1}]})):
        error = capped.fails(429, "throttled", method, f"/v0/topics/{extra}", body)
        assert error["detail"] == {"limit": "max_topics", "max": 3}
    capped.fails(404, "topic_not_found", "GET", f"/v0/topics/{extra}")
    # An update of something that exists is never refused.
    assert capped.put(topics[0], ttl_ms=99_999)["config"]["ttl_ms"] == 99_999
    capped.append(topics[2], 1)
    capped.ok("DELETE", f"/v0/topics/{topics[0]}")
    capped.append(extra, 1)


def test_beyond_max_total_bytes_writes_wait_until_something_is_deleted(capped: ApiClient) -> None:
    topic = fresh()
    body = {"records": [{"data": "x" * 1500}]}
    path = f"/v0/topics/{topic}"
    written = 0
    while (answer := capped.send("POST", path, body)).is_success:
        written += 1
        assert written < 30
    assert answer.json()["error"]["detail"] == {"limit": "max_total_bytes", "max": 20_000}
    assert answer.status_code == 429
    state = capped.state(topic)
    assert state["count"] == written and state["bytes"] >= 20_000
    assert len(capped.diff(topic)["records"]) == written
    capped.put(topic, ttl_ms=10**9)
    capped.delete_records(topic, before_seq=5)
    capped.append(topic, "room again")


def test_one_key_at_its_cap_of_requests_does_not_stop_another(
    capped: ApiClient, capped_server: LiveServer
) -> None:
    topic = fresh()
    capped.put(topic)
    answers: list[int] = []

    def poll() -> None:
        with capped_server.client(capped.lane, token="c.one") as waiting:
            answers.append(len(waiting.diff(topic, wait_ms=30_000)["records"]))

    pollers = [threading.Thread(target=poll) for _ in range(3)]
    for poller in pollers:
        poller.start()
    path = f"/v0/topics/{topic}?touch=false"
    with capped_server.client(capped.lane, token="c.two") as other:
        wait_for_polls(other, 3)
        error = capped.fails(429, "throttled", "GET", path)
        assert error["detail"] == {"limit": "max_inflight_per_key", "max": 3}
        # Probes are nobody's requests.
        capped.ok("GET", "/v0/health")
        other.append(topic, "wake up")
    for poller in pollers:
        poller.join(30)
    assert answers == [1, 1, 1]
    capped.ok("GET", path)


def wait_for_polls(other: ApiClient, count: int) -> None:
    """Asked with another key: a request of the same one would count, too."""
    wait_for(lambda: long_polls(other) == count)


@pytest.mark.parametrize(("leave", "wait_ms"), [("reset", 30_000), ("close", 700)])
def test_h05_clients_that_vanish_give_their_share_of_requests_back(
    capped: ApiClient, capped_server: LiveServer, leave: str, wait_ms: int
) -> None:
    """A reset frees it at once. A closed socket looks like one whose owner still reads: the poll takes its time."""
    topic = fresh()
    capped.put(topic)
    body = b'{"wait_ms":%d}' % wait_ms
    request = (
        b"POST /v0/topics/%b/diff HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer c.two\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
    ) % (topic.encode(), len(body), body)
    with capped_server.client(token="c.two") as client:
        for _ in range(2):
            waiting = [socket.create_connection(("127.0.0.1", capped_server.port)) for _ in range(3)]
            for raw in waiting:
                raw.sendall(request)
            wait_for_polls(capped, 3)
            client.fails(429, "throttled", "GET", f"/v0/topics/{topic}")
            for raw in waiting:
                if leave == "reset":
                    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                raw.close()
            wait_for_polls(capped, 0)
            client.ok("GET", f"/v0/topics/{topic}")
