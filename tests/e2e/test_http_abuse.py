"""Clients that send what nobody should, ask too much, or leave in the middle (docs/fault-coverage-processes.md, H).

Parsing of HTTP itself is abused in test_edge_raw_sockets.py, keys in test_api_auth.py; here the whole server is behind
it. Whatever happens, every process lives on and the gateway gives back what it took.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.api_client import LANES, ApiClient, fresh, long_polls
from tests.support.live_server import LiveServer
from tests.support.raw_http import Http2, connect, read_answer, request_bytes, reset
from tests.support.server_process import wait_for

MIB = 1 << 20
CHILDREN = ("gateway", "shard-0", "shard-1", "shard-2")


@pytest.fixture(autouse=True)
def nobody_dies(server: LiveServer) -> Iterator[None]:
    before = [server.child_pid(child) for child in CHILDREN]
    yield
    with server.client() as client:
        client.ok("GET", "/v0/ready")
    assert [server.child_pid(child) for child in CHILDREN] == before


def usage_before(server: LiveServer, client: ApiClient, topic: str) -> tuple[int, int]:
    """Descriptors and memory of the gateway, once it has the log file from which it sends this topic, and the memory in
    which the worker keeps what is read again."""
    for _ in range(3):
        client.diff(topic, max_bytes=8 * MIB)
    return server.gateway_usage()


def wait_given_back(server: LiveServer, descriptors: int) -> None:
    """Until the gateway has no more of them open than `descriptors`."""
    wait_for(lambda: server.gateway_usage()[0] <= descriptors)


# --- H1: JSON -----------------------------------------------------------------------------------

BAD_TEXTS = {
    "invalid UTF-8": b'"\xff"',
    "overlong UTF-8": b'"\xc0\xaf"',
    "a surrogate in UTF-8": b'"\xed\xa0\x80"',
    "UTF-8 cut short": b'"\xe2\x82"',
    "beyond Unicode": b'"\xf4\x90\x80\x80"',
    "a NUL byte": b'"a\x00b"',
    "a line feed": b'"a\nb"',
    "an unknown escape": b'"\\x41"',
    "half an escape": b'"\\u00"',
}


@pytest.mark.parametrize("field", ["data", "tag", "node", "key", "meta", "idempotency_key"])
@pytest.mark.parametrize("text", BAD_TEXTS.values(), ids=BAD_TEXTS.keys())
def test_h01_texts_that_are_not_json_are_refused_wherever_they_stand(
    client: ApiClient, field: str, text: bytes
) -> None:
    topic = fresh()
    if field == "idempotency_key":
        raw = b'{"idempotency_key":%b,"records":[{"data":1}]}' % text
    elif field == "meta":
        raw = b'{"records":[{"data":1,"meta":{"m":%b}}]}' % text
    else:
        raw = b'{"records":[{"data":1,%b"x":1}]}' % (b'"%b":%b,' % (field.encode(), text))
    client.fails(400, "invalid_request", "POST", f"/v0/topics/{topic}", raw=raw)
    client.fails(404, "topic_not_found", "GET", f"/v0/topics/{topic}")


@pytest.mark.parametrize(
    ("suffix", "raw"),
    [
        ("/diff", b'{"node":"\\ud800"}'),
        ("/diff", b'{"node":["\\udfff"]}'),
        ("/diff", b'{"match":"\\ud800"}'),
        ("/delete", b'{"match":["tag","Eq","\\ud800"]}'),
        ("", b'{"records":[{"data":1,"tag":"\\ud800"}]}'),
        ("", b'{"records":[{"data":1,"node":"\\udc00\\ud800"}]}'),
        ("", b'{"records":[{"data":1}],"node":"\\ud800"}'),
        ("", b'{"records":[{"data":1,"key":"\\ud800x"}]}'),
        ("", b'{"records":[{"data":1}],"idempotency_key":"\\ud800"}'),
        ("", b'{"records":[{"data":1}],"config":{"dead_letter":"\\ud800"}}'),
    ],
)
def test_h01_lone_surrogates_are_refused_in_every_label(client: ApiClient, suffix: str, raw: bytes) -> None:
    topic = fresh()
    client.append(topic, 1)
    client.fails(400, "invalid_request", "POST", f"/v0/topics/{topic}{suffix}", raw=raw)
    assert client.state(topic)["count"] == 1


@pytest.mark.parametrize("meta", [b'{"\\ud800":1}', b'{"a":"\\udc00"}', b'{"a":{"\\ud800":[]}}'])
def test_h01_an_escaped_surrogate_in_data_or_meta_is_kept_or_refused_but_never_rewritten(
    client: ApiClient, meta: bytes
) -> None:
    for record in (b'{"data":1,"meta":%b}' % meta, b'{"data":%b}' % meta):
        topic = fresh()
        answer = client.send("POST", f"/v0/topics/{topic}", raw=b'{"records":[%b]}' % record)
        if answer.status_code == 201:
            assert meta in client.send("GET", f"/v0/topics/{topic}/records").content
        else:
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request")


def test_h01_an_escaped_nul_is_a_character_like_any_other(client: ApiClient) -> None:
    topic = fresh()
    client.write(topic, {"data": "a\0b", "tag": "t\0", "node": "n\0", "key": "k\0", "meta": {"m\0": "\0"}})
    (record,) = client.diff(topic, include_tags=True, include_keys=True)["records"]
    assert (record["data"], record["$tag"], record["$node"], record["$key"]) == ("a\0b", "t\0", "n\0", "k\0")
    assert record["meta"] == {"m\0": "\0"}
    assert client.delete_records(topic, match=["tag", "Glob", "t\0*"])["deleted"] == 1


@pytest.mark.parametrize("depth", [500, 5_000, 100_000, 500_000])
@pytest.mark.parametrize(
    "shape",
    [
        b'{"records":[{"data":%b}]}',
        b'{"records":[{"data":1,"meta":{"m":%b}}]}',
        b'{"records":[{"data":1}],"ignored":%b}',
        b'{"records":%b}',
        b"%b",
    ],
)
def test_h01_deep_nesting_is_stored_or_refused(client: ApiClient, shape: bytes, depth: int) -> None:
    topic = fresh()
    for opened, closed in ((b"[", b"]"), (b'{"a":', b"}")):
        value = opened * depth + b"1" + closed * depth
        answer = client._http.post(
            f"/v0/topics/{topic}", content=shape % value, headers={"Content-Type": "application/json"}
        )
        assert answer.status_code in (200, 201, 400), answer.text[:200]
        cut_off = shape.partition(b"%b")[0] + opened * depth
        client.fails(400, "invalid_request", "POST", f"/v0/topics/{topic}", raw=cut_off)


@pytest.mark.parametrize("route", ["/diff", "/delete", ""])
@pytest.mark.parametrize(
    "number", [b"1e400", b"1" * 5000, b"-1", b"1.5", b"18446744073709551616", b"-0.0", b"1e3"]
)
def test_h01_numbers_out_of_range_are_refused_where_a_number_counts(
    client: ApiClient, route: str, number: bytes
) -> None:
    topic = fresh()
    client.append(topic, 1)
    body = {
        "/diff": b'{"from_seq":%b}',
        "/delete": b'{"before_seq":%b}',
        "": b'{"records":[{"data":1}],"create":%b}',
    }[route]
    answer = client.send("POST", f"/v0/topics/{topic}{route}", raw=body % number)
    # Some decoders take a float that is a whole number for one.
    allowed = (200, 400) if number in (b"-0.0", b"1e3") else (400,)
    assert answer.status_code in allowed, answer.text[:200]


def test_h01_numbers_that_are_data_are_nobodys_business(client: ApiClient) -> None:
    topic = fresh()
    numbers = [b"9" * 20_000, b"1e999999", b"-1e-999999", b"0." + b"1" * 20_000]
    body = b",".join(b'{"data":%b}' % number for number in numbers)
    client._http.post(
        f"/v0/topics/{topic}",
        content=b'{"records":[%b]}' % body,
        headers={"Content-Type": "application/json"},
    ).raise_for_status()
    document = client._http.get(f"/v0/topics/{topic}/records").content
    for number in numbers:
        assert b'"data":%b}' % number in document


def test_h01_of_duplicate_keys_the_last_counts(client: ApiClient) -> None:
    topic = fresh()
    raw = b'{"records":[{"data":"lost"}],"node":"x","records":[{"data":1,"data":2,"tag":"a","tag":"b"}],"node":"y"}'
    client.ok("POST", f"/v0/topics/{topic}", raw=raw, status=201)
    (record,) = client.diff(topic, include_tags=True)["records"]
    assert (record["data"], record["$tag"], record["$node"]) == (2, "b", "y")
    raw = b'{"from_seq":0,"limit":5,"from_seq":1}'
    assert client.ok("POST", f"/v0/topics/{topic}/diff", raw=raw)["records"] == []
    assert client.ok("PUT", f"/v0/topics/{topic}", raw=b'{"ttl_ms":5,"ttl_ms":0}')["config"]["ttl_ms"] == 0


# --- H3 -----------------------------------------------------------------------------------------


def test_h03_a_gzip_bomb_costs_no_more_than_the_body_limit(server: LiveServer, client: ApiClient) -> None:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    bomb = b"".join(packer.compress(bytes(MIB)) for _ in range(150)) + packer.flush()
    assert len(bomb) < MIB
    before = peak_bytes(server)
    for _ in range(3):
        client.fails(
            413,
            "payload_too_large",
            "POST",
            f"/v0/topics/{fresh()}",
            raw=bomb,
            headers={"Content-Encoding": "gzip"},
        )
    assert peak_bytes(server) - before < 140 * MIB


def peak_bytes(server: LiveServer) -> int:
    status = Path(f"/proc/{server.child_pid('gateway')}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024


# --- H4 -----------------------------------------------------------------------------------------


def test_h04_a_thousand_waiting_and_two_hundred_stuck_clients_leave_room_for_others(
    server: LiveServer, plain_client: ApiClient
) -> None:
    polled, big, other = fresh("polled"), fresh("big"), fresh("other")
    plain_client.put(polled)
    for _ in range(10):
        plain_client.append(big, "x" * (MIB - 10))
    descriptors, resident = usage_before(server, plain_client, big)
    with contextlib.ExitStack() as held:
        polls = [held.enter_context(connect(server.port)) for _ in range(1000)]
        waiting = request_bytes("POST", f"/v0/topics/{polled}/diff", b'{"wait_ms":30000}')
        for sock in polls:
            sock.sendall(waiting)
        wait_for(lambda: long_polls(plain_client) == len(polls))
        stuck = [held.enter_context(connect(server.port, receive_buffer=4096)) for _ in range(200)]
        for sock in stuck:
            sock.sendall(request_bytes("GET", f"/v0/topics/{big}/records?max_bytes=8388608"))
        slowest = 0.0
        for lane in LANES:
            with server.client(lane) as client:
                for n in range(50):
                    began = time.monotonic()
                    client.append(other, n)
                    assert client.diff(other, from_seq=0, limit=1)["records"]
                    slowest = max(slowest, time.monotonic() - began)
        assert slowest < 10  # nobody waits for those who wait; not a measurement
        # The stuck ones are sent from the file: they cost the gateway no copy of what they do not read.
        assert server.gateway_usage()[1] - resident < 100 * MIB
        plain_client.append(polled, "wake up")
        for sock in polls:
            status, document = read_answer(sock)
            assert (status, [record["data"] for record in document["records"]]) == (200, ["wake up"])
        for sock in stuck:
            reset(sock)
    wait_given_back(server, descriptors)
    assert long_polls(plain_client) == 0


# --- H5 -----------------------------------------------------------------------------------------


def calls(topic: str) -> list[tuple[str, str, bytes | None]]:
    return [
        ("GET", "/v0/topics", None),
        ("PUT", f"/v0/topics/{topic}", b'{"ttl_ms":0}'),
        ("GET", f"/v0/topics/{topic}", None),
        ("POST", f"/v0/topics/{topic}", b'{"records":[{"data":"left behind"}]}'),
        ("POST", f"/v0/topics/{topic}/diff", b'{"max_bytes":8388608}'),
        ("POST", f"/v0/topics/{topic}/diff", b'{"from_seq":1000000,"wait_ms":200}'),
        ("GET", f"/v0/topics/{topic}/records?max_bytes=8388608", None),
        ("POST", f"/v0/topics/{topic}/delete", b'{"match":"nothing"}'),
        ("DELETE", f"/v0/topics/{topic}?if_empty=true", None),
        ("GET", "/v0/health", None),
        ("GET", "/v0/ready", None),
        ("GET", "/v0/metrics", None),
        ("GET", "/v0/nothing", None),
        ("GET", "/nothing", None),
    ]


def test_h05_clients_that_leave_in_any_state_of_any_call_leave_nothing_behind(
    server: LiveServer, plain_client: ApiClient
) -> None:
    topic = fresh()
    for _ in range(3):
        plain_client.append(topic, "x" * 400_000)
    descriptors, resident = usage_before(server, plain_client, topic)
    for method, target, body in calls(topic):
        raw = request_bytes(method, target, body)
        head = raw.index(b"\r\n\r\n")
        states = {0, 1, head // 2, head, head + 4, len(raw) - 1, len(raw)}
        for sent in sorted(states):
            for leave in (reset, lambda sock: sock.close()):
                sock = connect(server.port)
                sock.sendall(raw[:sent])
                leave(sock)
        for taken in (1, 30, 5000):
            sock = connect(server.port, receive_buffer=2048)
            sock.sendall(raw * 3)
            assert sock.recv(taken)
            reset(sock)
    wait_given_back(server, descriptors)
    wait_for(lambda: in_flight(plain_client) == 0)
    assert server.gateway_usage()[1] - resident < 64 * MIB
    records = plain_client.everything(topic)
    assert {str(record["data"])[:4] for record in records} == {"xxxx", "left"}


def test_h05_http2_clients_that_leave_in_any_state_leave_nothing_behind(
    server: LiveServer, plain_client: ApiClient
) -> None:
    topic = fresh()
    for _ in range(3):
        plain_client.append(topic, "x" * 400_000)
    descriptors, resident = usage_before(server, plain_client, topic)
    for method, target, body in calls(topic):
        pieces = [] if body is None else [body[:3], body[3:]]
        for sent, complete in (([], False), (pieces[:1], False), (pieces, False), (pieces, True)):
            for leave in (reset, lambda sock: sock.close()):
                connection = Http2(server.port)
                connection.request(method, target, sent, complete=complete)
                leave(connection.socket)
            # The stream ends, the connection stays, and serves the next one.
            connection = Http2(server.port)
            connection.reset_stream(connection.request(method, target, sent, complete=complete))
            answer = connection.wait_ended(connection.request("GET", "/v0/health"))
            assert json.loads(answer)["status"] == "ok"
            connection.socket.close()
        connection = Http2(server.port)
        connection.request(method, target, pieces)
        assert connection.socket.recv(20)
        reset(connection.socket)
    wait_given_back(server, descriptors)
    wait_for(lambda: in_flight(plain_client) == 0)
    assert server.gateway_usage()[1] - resident < 64 * MIB


def in_flight(client: ApiClient) -> float:
    """Requests at the shards, without the one that asks."""
    text = client.send("GET", "/v0/metrics").text
    found = re.findall(r"^topics_ipc_(?:in_flight|queue_depth)\{.*\} (\S+)$", text, re.MULTILINE)
    return sum(map(float, found)) + long_polls(client)


def test_h05_an_http2_connection_is_closed_when_it_has_been_idle_however_its_last_stream_ended(
    tmp_path: Path,
) -> None:
    """A connection whose idle time never starts would stay for ever, and hold up every shutdown."""
    env = {"TOPICS_KEEPALIVE_TIMEOUT_MS": "300"}
    with LiveServer(tmp_path / "data", shards=1, env=env) as server:
        server.wait_serving()
        answered, cancelled, unused = Http2(server.port), Http2(server.port), Http2(server.port)
        answered.wait_ended(answered.request("GET", "/v0/health"))
        cancelled.reset_stream(cancelled.request("POST", "/v0/topics/t/diff", [b"{"], complete=False))
        for connection in (answered, cancelled, unused):
            connection.wait_closed()


def test_a_stop_does_not_wait_for_idle_connections(tmp_path: Path) -> None:
    with LiveServer(tmp_path / "data", shards=1) as server:
        server.wait_serving()
        with server.client("http1") as one, server.client("http2") as other:
            for client in (one, other):
                client.append("t", 1)
            assert server.stop() == 0
        assert not [line for line in server.log if line["event"] == "gateway.drain.cut"]


def test_one_connection_serves_any_number_of_requests(client: ApiClient) -> None:
    for _ in range(1100):
        assert client._http.get("/v0/health").status_code == 200
