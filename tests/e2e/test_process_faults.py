"""Processes that die or hang under load, and garbage on their links (docs/fault-coverage-processes.md, P)."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cbor2
import pytest

from shared.limits import LINK_CREDITS, WORKER_MAX_LINKS
from shared.routing import shard_for
from tests.support.api_client import LANES, ApiClient, fresh_on, long_polls
from tests.support.live_server import LiveServer, is_child
from tests.support.server_process import wait_for
from tests.support.write_load import Load, Writer, check_log

SHARDS = 3


def ready_count(server: LiveServer, child: str) -> int:
    return sum((line["event"], line.get("child")) == ("child.ready", child) for line in server.log)


def kill_and_wait(server: LiveServer, child: str) -> None:
    before = ready_count(server, child)
    server.kill_child(child)
    server.wait_child_ready(child, count=before + 1)


@pytest.fixture
def many(tmp_path: Path) -> Iterator[LiveServer]:
    """One for each test: a child that has died often waits longer and longer for its next start."""
    with LiveServer(tmp_path / "data", shards=SHARDS) as server:
        yield server.wait_serving()


# --- P1 -----------------------------------------------------------------------------------------


def test_p01_a_worker_killed_under_load_loses_no_ack_and_stops_nobody_else(many: LiveServer) -> None:
    victim = 1
    topics = {shard: [fresh_on(shard, SHARDS), fresh_on(shard, SHARDS)] for shard in range(SHARDS)}
    with many.client() as client:
        for topic in (topic for group in topics.values() for topic in group):
            client.put(topic, durable=True)
    port = many.port
    writers = [
        Writer(port, topic, f"{topic}/{n}", keyed=n % 2 == 0)
        for shard, group in topics.items()
        for topic in group
        for n in range(4 if shard == victim else 1)
    ]
    with Load(writers) as load:
        hurt = load.of(*topics[victim])
        others = [writer for writer in writers if writer not in hurt]
        for _ in range(3):
            load.wait_acks(5)
            before = [len(writer.acked) for writer in others]
            kill_and_wait(many, f"shard-{victim}")
            assert all(len(w.acked) > count for w, count in zip(others, before, strict=True)), (
                "others stopped"
            )
        load.wait_acks(5)
    assert load.failures == []
    assert sum(writer.refused for writer in hurt) > 0, "nobody was in the way of the kill"
    assert sum(writer.refused + writer.cut for writer in others) == 0
    assert sum(writer.cut for writer in hurt) == 0, "the gateway answers for a dead worker"
    with many.client() as client:
        check_log(writers, client.everything)
    # And they are in the log, not only in the memory of workers that lived on.
    for shard in range(SHARDS):
        kill_and_wait(many, f"shard-{shard}")
    with many.wait_serving().client() as client:
        check_log(writers, client.everything)


@pytest.mark.parametrize("lane", LANES)
def test_p01_a_dead_shard_is_503_and_named_until_it_has_replayed(many: LiveServer, lane: str) -> None:
    topic, other = fresh_on(0, SHARDS), fresh_on(1, SHARDS)
    path = f"/v0/topics/{topic}"
    with many.client(lane) as client:  # type: ignore[arg-type]
        client.append(topic, "before")
        client.append(other, "other")
        many.kill_child("shard-0")
        wait_for(lambda: client.send("GET", path).status_code == 503)
        for method, where, body in (
            ("GET", path, None),
            ("PUT", path, {}),
            ("DELETE", path, None),
            ("POST", path, {"records": [{"data": 1}]}),
            ("POST", f"{path}/diff", {}),
            ("POST", f"{path}/delete", {"before_seq": 1}),
            ("GET", f"{path}/records", None),
        ):
            error = client.fails(503, "shard_unavailable", method, where, body)
            assert error["detail"]["shard"] == 0
        # A list with a hole would be a lie.
        client.fails(503, "shard_unavailable", "GET", "/v0/topics")
        ready = client.fails(503, "not_ready", "GET", "/v0/ready")
        assert 0 <= ready["detail"]["replay_progress"] < 1
        assert [shard["ready"] for shard in ready["detail"]["shards"]] == [False, True, True]
        assert ready["detail"]["shards"][0]["reason"]
        assert client.ok("GET", "/v0/health")["status"] == "ok"
        assert client.values(other) == ["other"]
        assert client.append(other, "more")["first_seq"] == 2
        assert 'topics_shard_up{shard="0"} 0.0' in client.send("GET", "/v0/metrics").text
        wait_for(lambda: client.send("GET", "/v0/ready").status_code == 200)
        assert client.values(topic) == ["before"]
        assert client.append(topic, "after")["created"] is False


def test_p01_pipelined_requests_get_their_own_answers_whatever_dies(many: LiveServer) -> None:
    """Alternately to a shard that is killed and to one that is not, on one connection: order is all they have."""
    dying, living = fresh_on(0, SHARDS), fresh_on(2, SHARDS)
    with many.client() as client:
        client.put(dying, durable=True)
        client.put(living, durable=True)
    acked: dict[str, dict[int, int]] = {dying: {}, living: {}}
    refused = 0
    with socket.create_connection(("127.0.0.1", many.port), timeout=25) as raw:
        stream = raw.makefile("rb")
        number = 0
        for round_ in range(30):
            batch = [(number + place, dying if place % 2 else living) for place in range(40)]
            number += len(batch)
            raw.sendall(b"".join(append_request(topic, n) for n, topic in batch))
            if round_ % 10 == 5:
                many.kill_child("shard-0")
            for n, topic in batch:
                status, document = read_answer(stream)
                if status == 503:
                    assert topic == dying and document["error"]["detail"]["shard"] == 0
                    refused += 1
                else:
                    assert (status, document["topic"]) == (200, topic)
                    acked[topic][n] = document["first_seq"]
            if round_ % 10 == 9:
                with many.client() as client:
                    wait_for(lambda: client.send("GET", "/v0/ready").status_code == 200)
    assert refused > 0
    with many.client() as client:
        for topic, told in acked.items():
            there = {record["$seq"]: record["data"] for record in client.everything(topic)}
            assert all(there[seq] == n for n, seq in told.items())
            assert sorted(there.values()) == sorted(set(there.values()))
        assert len(acked[living]) == number // 2


def append_request(topic: str, n: int) -> bytes:
    body = b'{"records":[{"data":%d}]}' % n
    return (
        b"POST /v0/topics/%b HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
        % (topic.encode(), len(body), body)
    )


def read_answer(stream: socket.SocketIO) -> tuple[int, dict]:  # type: ignore[type-arg]
    status = int(stream.readline().split()[1])
    length = 0
    while (line := stream.readline()) not in (b"\r\n", b""):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    return status, json.loads(stream.read(length))


# --- P2, P3, P4 ---------------------------------------------------------------------------------


def test_p02_a_killed_gateway_comes_back_on_its_port_and_nothing_acked_is_lost(many: LiveServer) -> None:
    topics = [fresh_on(shard, SHARDS) for shard in range(SHARDS)]
    with many.client() as client:
        for topic in topics:
            client.put(topic, durable=True)
    workers = [many.child_pid(f"shard-{shard}") for shard in range(SHARDS)]
    writers = [
        Writer(many.port, topic, f"{topic}/{n}", keyed=n % 2 == 0) for topic in topics for n in range(2)
    ]
    with Load(writers) as load:
        for _ in range(2):
            load.wait_acks(5)
            kill_and_wait(many, "gateway")
        load.wait_acks(5)
    assert load.failures == []
    assert sum(writer.cut for writer in writers) > 0
    assert [many.child_pid(f"shard-{shard}") for shard in range(SHARDS)] == workers
    with many.client() as client:
        check_log(writers, client.everything)


def test_p03_a_killed_supervisor_leaves_no_orphans_and_the_next_start_has_it_all(tmp_path: Path) -> None:
    with LiveServer(tmp_path / "data") as server, server.wait_serving().client() as client:
        children = [server.child_pid(child) for child in ("gateway", "shard-0", "shard-1")]
        assert all(is_child(pid) for pid in children)
        client.put("t", durable=True)
        client.append("t", *range(100))
        server.signal(signal.SIGKILL)
        # At once: the children of the old one may not have noticed yet, and hold their locks.
        with LiveServer(tmp_path / "data") as again, again.wait_serving().client() as second:
            assert second.values("t") == list(range(100))
            wait_for(lambda: not any(is_child(pid) for pid in children))
            assert again.stop() == 0


def test_p04_a_worker_that_hangs_is_noticed_and_nobody_waits_for_ever(tmp_path: Path) -> None:
    with LiveServer(tmp_path / "data", silence={"hang_s": 1.0}) as server:
        server.wait_serving()
        stuck, other = fresh_on(0, 2), fresh_on(1, 2)
        with server.client() as client, server.client("http2") as second:
            client.put(stuck, durable=True)
            client.append(stuck, "acked")
            os.kill(server.child_pid("shard-0"), signal.SIGSTOP)
            began = time.monotonic()
            with Load([Writer(server.port, other, "bystander", keyed=False)]) as load:
                client.fails(
                    503, "shard_unavailable", "POST", f"/v0/topics/{stuck}", {"records": [{"data": 1}]}
                )
                assert time.monotonic() - began < 10
                load.wait_acks(20)
            assert load.failures == [] and load.writers[0].refused == 0
            assert "heartbeat" in server.wait_log("child.died", child="shard-0")["reason"]
            wait_for(lambda: second.send("GET", "/v0/ready").status_code == 200)
            # The hung write may have reached the log before the end, or not; never more than once.
            assert second.values(stuck) in (["acked"], ["acked", 1])


# --- P5 -----------------------------------------------------------------------------------------


def frame(payload: bytes) -> bytes:
    return struct.pack(">I", len(payload)) + payload


HELLO = frame(cbor2.dumps({"protocol": [1, 1], "role": "gateway", "version": "test"}))
POLL = b'{"wait_ms":30000}'

BROKEN_HELLOS = {
    "noise": random.Random(5).randbytes(6400),
    "http": b"GET / HTTP/1.1\r\n\r\n",
    "too long": frame(cbor2.dumps({"protocol": [1, 1], "role": "cli", "version": "x" * 5000})),
    "not a map": frame(cbor2.dumps([1, 2, 3])),
    "without its fields": frame(cbor2.dumps({})),
    "an unknown version": frame(cbor2.dumps({"protocol": [7, 9], "role": "gateway", "version": "9"})),
    "an unknown role": frame(cbor2.dumps({"protocol": [1, 1], "role": "king", "version": "1"})),
    "a request behind it": HELLO + frame(cbor2.dumps([[1, 8, "", b""]])),
}
BROKEN_FRAMES = {
    "a length beyond the limit": struct.pack(">I", 97 << 20),
    "the largest length": b"\xff\xff\xff\xff",
    "no CBOR": frame(b"\xff" * 20),
    "CBOR cut short": frame(cbor2.dumps([[1, 2, "t", b"{}"]])[:-1]),
    "an array that claims to be huge": frame(b"\x9b" + b"\xff" * 8),
    "nesting without end": frame(b"\x81" * 100_000),
    "a map": frame(cbor2.dumps({"a": 1})),
    "a request that is too short": frame(cbor2.dumps([[1]])),
    "an id that is a text": frame(cbor2.dumps([["1", 2, "t", b""]])),
    "an id that is negative": frame(cbor2.dumps([[-1, 2, "t", b""]])),
    "a body that is a text": frame(cbor2.dumps([[1, 2, "t", "{}"]])),
    "options that are a list": frame(cbor2.dumps([[1, 2, "t", b"{}", [1]]])),
    "an id that is in use": frame(cbor2.dumps([[1, 2, "poll", POLL], [1, 2, "poll", POLL]])),
    "more requests than credits": frame(
        cbor2.dumps([[n, 2, "poll", POLL] for n in range(1, LINK_CREDITS + 100)])
    ),
    "more pings than one needs": frame(cbor2.dumps([[n, 8, "", b""] for n in range(1, 100)])),
}


class Link:
    """A peer of a worker that has not read the protocol."""

    def __init__(self, server: LiveServer, shard: int, *, hello: bool = True) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.connect(server.socket_path(shard))
        self.socket.settimeout(10)
        self.stream = self.socket.makefile("rb")
        if hello:
            self.socket.sendall(HELLO)
            self.hello = self.read()

    def read(self) -> Any:
        (length,) = struct.unpack(">I", self.stream.read(4))
        return cbor2.loads(self.stream.read(length))

    def answers(self, count: int) -> dict[int, int]:
        """Status by id of the next ones; notices are left out."""
        found: dict[int, int] = {}
        while len(found) < count:
            found |= {message[0]: message[1] for message in self.read() if message[0] != 0}
        return found

    def close(self) -> None:
        self.stream.close()
        self.socket.close()


def send_until_closed(link: Link, data: bytes) -> None:
    try:
        link.socket.sendall(data)
        while link.socket.recv(65536):
            pass  # perhaps answers to what came before the fault, then the end
    except (BrokenPipeError, ConnectionResetError):
        pass  # it did not even read all of it
    link.close()


@pytest.mark.parametrize(
    ("said_hello", "data"),
    [(False, data) for data in BROKEN_HELLOS.values()] + [(True, data) for data in BROKEN_FRAMES.values()],
    ids=[*(f"hello: {case}" for case in BROKEN_HELLOS), *BROKEN_FRAMES],
)
def test_p05_garbage_on_a_link_ends_that_link_alone(
    server: LiveServer, plain_client: ApiClient, said_hello: bool, data: bytes
) -> None:
    shard = shard_for("poll", SHARDS)
    plain_client.put("poll")
    pid = server.child_pid(f"shard-{shard}")
    bystander = Link(server, shard)
    send_until_closed(Link(server, shard, hello=said_hello), data)
    bystander.socket.sendall(frame(cbor2.dumps([[7, 8, "", b""]])))
    assert bystander.answers(1)[7] == 200
    bystander.close()
    topic = fresh_on(shard, SHARDS)
    plain_client.append(topic, 1)
    assert plain_client.values(topic) == [1]
    assert (server.child_pid(f"shard-{shard}"), is_child(pid)) == (pid, True)
    wait_for(lambda: long_polls(plain_client) == 0)


@pytest.mark.parametrize(
    ("said_hello", "sent"),
    [(False, b"\x00"), (False, HELLO[:7]), (True, b""), (True, b"\x00\x00\x01\x00\x81")],
)
def test_p05_half_a_frame_waits_for_its_rest_and_harms_nobody(
    server: LiveServer, plain_client: ApiClient, said_hello: bool, sent: bytes
) -> None:
    topic = fresh_on(0, SHARDS)
    links = [Link(server, 0, hello=said_hello) for _ in range(20)]
    for link in links:
        link.socket.sendall(sent)
    plain_client.append(topic, 1)
    assert plain_client.values(topic) == [1]
    fds = Path(f"/proc/{server.child_pid('shard-0')}/fd")
    held = len(list(fds.iterdir()))
    for link in links:
        link.close()
    wait_for(lambda: len(list(fds.iterdir())) <= held - len(links))


def test_p05_an_unknown_op_is_an_answer_and_unknown_options_are_ignored(server: LiveServer) -> None:
    link = Link(server, 0)
    assert (link.hello["shard"], link.hello["shards"]) == (0, SHARDS)
    link.socket.sendall(frame(cbor2.dumps([[1, 59, "t", b""], [2, 8, "", b"", {"later": 1}]])))
    assert link.answers(2) == {1: 400, 2: 200}
    link.close()


def test_p05_more_links_than_a_worker_serves_do_not_shut_the_gateway_out(
    server: LiveServer, plain_client: ApiClient
) -> None:
    topic = fresh_on(2, SHARDS)
    links: list[Link] = []
    try:
        for _ in range(WORKER_MAX_LINKS + 50):
            links.append(Link(server, 2, hello=False))
        plain_client.append(topic, 1)
        assert plain_client.values(topic) == [1]
        assert links[-1].socket.recv(1) == b"", "the last ones were sent away"
    finally:
        for link in links:
            link.close()


# --- P8 -----------------------------------------------------------------------------------------

TOPICS = 64


def fill(client: ApiClient) -> None:
    """Topics of every kind that a move could get wrong."""
    for n in range(TOPICS):
        client.append(f"m{n}", *(f"{n}/{i}" * (i * 20) for i in range(n % 7)), "last")
    for n in range(0, TOPICS, 8):
        client.put(f"m{n}", cap_records=2, durable=True)  # a floor that readers are told about
        client.delete_records(f"m{n + 1}", before_seq=2)  # one that they are not
        client.write(
            f"m{n + 2}", *({"data": i, "tag": f"t{i % 2}", "key": "k", "node": "n"} for i in range(6))
        )
        client.delete_records(f"m{n + 2}", match="t1")
        client.append(f"m{n + 3}", "once", idempotency_key="key")
        client.ok("DELETE", f"/v0/topics/m{n + 4}")
        client.append(f"m{n + 4}", "a new epoch")
        client.delete_records(f"m{n + 5}", before_seq=10**6)  # empty, but its seqs go on
        client.put(f"m{n + 6}", ttl_ms=10**9, priority=-3, max_deliveries=2, dead_letter="dead")


def contents(client: ApiClient) -> dict[str, object]:
    found: dict[str, object] = {}
    cursor = ""
    while True:
        page = client.ok("GET", f"/v0/topics?page_size=1000{cursor}")
        for entry in page["topics"]:
            topic = entry["topic"]
            state = client.ok("GET", f"/v0/topics/{topic}?touch=false")
            for changing in ("performance", "shard", "effective_priority", "last_read_ts"):
                del state[changing]
            assert topic not in found, "in the list twice"
            read = client.diff(topic, limit=1000, include_tags=True, include_keys=True)
            del read["performance"]
            found[topic] = (state, read)
        if "next_cursor" not in page:
            return found
        cursor = f"&cursor={page['next_cursor']}"


def test_p08_the_number_of_shards_changes_with_kills_on_the_way(tmp_path: Path) -> None:
    rng = random.Random(8)
    data_dir = tmp_path / "data"
    with LiveServer(data_dir, shards=1) as server, server.wait_serving().client() as client:
        fill(client)
        expected = contents(client)
        assert server.stop() == 0
    assert len(expected) == TOPICS
    for shards in (3, 2):
        cut = 0
        # At once, then anywhere in the move, which has no events of its own to wait for.
        for delay_s in (0.0, rng.uniform(0, 0.1)):
            with LiveServer(data_dir, shards=shards) as server:
                server.wait_log("store.moving_topics")
                time.sleep(delay_s)
                server.signal(signal.SIGKILL)
                server.wait_exit()
            if "moving_to" not in json.loads((data_dir / "store.json").read_text()):
                break  # this one came too late, and there is nothing left to move
            cut += 1
        with LiveServer(data_dir, shards=shards) as server, server.wait_serving().client("http2") as client:
            store = json.loads((data_dir / "store.json").read_text())
            assert (store["shards"], store.get("moving_to")) == (shards, None)
            assert contents(client) == expected
            assert client.append("m3", "once", idempotency_key="key")["deduped"] is True
            assert {client.state(topic)["shard"] for topic in expected} == set(range(shards))
            assert server.stop() == 0
        assert cut > 0, "every kill came too late"
