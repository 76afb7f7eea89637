"""Watching over real processes and real sockets, frame by frame."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shared.routing import shard_for
from tests.support.api_client import ApiClient, Json, fresh, fresh_on
from tests.support.live_server import LiveServer
from tests.support.server_process import wait_for
from tests.support.sse_client import Frame, SseClient, datas, encode_id, seqs


def start(client: ApiClient, **body: object) -> Json:
    return client.ok("POST", "/v0/watch", body)


def watch(
    client: ApiClient, *, last_id: str | None = None, receive_buffer: int | None = None, **body: object
) -> SseClient:
    opened = SseClient(
        client.port, start(client, **body)["stream_url"], last_id=last_id, receive_buffer=receive_buffer
    )
    assert opened.status == 200, opened.body
    return opened


# --- frames -----------------------------------------------------------------------------------------------


def test_a_stream_from_its_first_byte_to_the_live_record(plain_client: ApiClient) -> None:
    topic = fresh()
    plain_client.append(topic, {"n": 1}, {"n": 2})
    answer = start(plain_client, topics={topic: {}})
    assert answer["wid"].startswith("wid_") and len(answer["wid"]) >= 4 + 22
    assert answer["stream_url"] == f"/v0/watch/{answer['wid']}"
    assert answer["session_ttl_ms"] == 300_000
    assert answer["topics"] == {topic: {"from_seq": 0, "head_seq": 2, "earliest_seq": 1}}
    with SseClient(plain_client.port, answer["stream_url"]) as stream:
        assert stream.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert stream.headers["cache-control"] == "no-store"
        assert stream.headers["x-accel-buffering"] == "no"
        record, caught_up = stream.frames(2)
        assert stream.raw.startswith(b"retry: 2000\n\n") and stream.parser.retry == 2000
        assert record.event == "record"
        assert {**record.data, "records": None} == {
            "topic": topic,
            "records": None,
            "from_seq": 0,
            "to_seq": 2,
            "head_seq": 2,
        }
        assert [(r["$seq"], r["data"]) for r in record.data["records"]] == [(1, {"n": 1}), (2, {"n": 2})]
        assert record.cursors == {topic: 2}
        assert caught_up == Frame("caught-up", {"topic": topic, "head_seq": 2}, record.id)
        plain_client.append(topic, "live")
        live = stream.next("record")
        assert (live.data["from_seq"], live.data["to_seq"], live.cursors) == (2, 3, {topic: 3})


def test_records_with_line_breaks_between_their_tokens(plain_client: ApiClient) -> None:
    topic = fresh()
    body = b'{"records":[{"data":{"a":\r\n[1,\r2,\n3]}},{"data":"x\\ny"}]}'
    plain_client.ok("POST", f"/v0/topics/{topic}", raw=body, status=201)
    with watch(plain_client, topics={topic: {}}) as stream:
        assert datas(stream.caught_up(topic)) == [{"a": [1, 2, 3]}, "x\ny"]
        plain_client.ok("POST", f"/v0/topics/{topic}", raw=body)
        assert datas([stream.next("record")]) == [{"a": [1, 2, 3]}, "x\ny"]


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({}, {"$node": "n1", "data": 1, "meta": {"m": 1}}),
        ({"include_meta": False}, {"$node": "n1", "data": 1}),
        ({"include_tags": True}, {"$node": "n1", "$tag": "t1", "data": 1, "meta": {"m": 1}}),
        ({"include_data": False}, {"$node": "n1", "meta": {"m": 1}}),
        ({"include_data": False, "include_meta": False, "include_tags": True}, {"$node": "n1", "$tag": "t1"}),
        ({"consistency": "strong"}, {"$node": "n1", "data": 1, "meta": {"m": 1}}),
        ({"match": ["tag", "Glob", "t*"]}, {"$node": "n1", "data": 1, "meta": {"m": 1}}),
    ],
)
def test_every_view_shows_the_same_from_the_log_and_live(
    plain_client: ApiClient, options: Json, shown: Json
) -> None:
    topic = fresh()
    record = {"data": 1, "tag": "t1", "node": "n1", "meta": {"m": 1}}
    plain_client.write(topic, record)
    with watch(plain_client, topics={topic: {}}, **options) as stream:
        (old,) = [frame for frame in stream.caught_up(topic) if frame.event == "record"]
        plain_client.write(topic, record)
        new = stream.next("record")
    for frame, seq in ((old, 1), (new, 2)):
        (got,) = frame.data["records"]
        assert got.pop("$ts") > 0 and got == {"$seq": seq, **shown}


def test_filtered_records_send_no_frame_only_caught_up(plain_client: ApiClient) -> None:
    topic = fresh()
    plain_client.write(topic, {"data": 1, "node": "me"}, {"data": 2, "node": "you"})
    with watch(plain_client, topics={topic: {}}, node="me") as stream:
        assert datas(stream.caught_up(topic)) == [2]
        plain_client.write(topic, {"data": 3, "node": "me"})
        frame = stream.next("caught-up")
        assert frame.data == {"topic": topic, "head_seq": 3} and frame.cursors == {topic: 3}
        plain_client.write(topic, {"data": 4, "node": "you"})
        assert datas([stream.next("record")]) == [4]


def test_heartbeats_come_when_idle(plain_client: ApiClient) -> None:
    topic = fresh()
    plain_client.append(topic, 1)
    with watch(plain_client, topics={topic: {"tail": True}}, heartbeat_ms=1) as stream:
        started = time.time()
        text = stream.comment()
        assert 0.9 < time.time() - started < 4
        kind, at = text.split()
        assert kind == "hb" and abs(int(at) - time.time() * 1000) < 5000


def test_http2_gives_the_same_stream(server: LiveServer) -> None:
    topic = fresh()
    with server.client("http2") as client:
        client.append(topic, 1, 2)
        url = start(client, topics={topic: {}})["stream_url"]
        with client._http.stream("GET", url) as stream:
            assert stream.headers["content-type"] == "text/event-stream; charset=utf-8"
            text = ""
            for piece in stream.iter_text():
                text += piece
                if "event: caught-up" in text and text.endswith("\n\n"):
                    break
    with SseClient(server.port, start(client2 := server.client(), topics={topic: {}})["stream_url"]) as plain:
        plain.caught_up(topic)
        assert plain.raw.decode() == text
    client2.__exit__(None, None, None)


def test_head_answers_without_taking_the_stream_over(plain_client: ApiClient) -> None:
    topic = fresh()
    plain_client.append(topic, 1)
    url = start(plain_client, topics={topic: {}})["stream_url"]
    with SseClient(plain_client.port, url) as stream:
        stream.caught_up(topic)
        with socket.create_connection(("127.0.0.1", plain_client.port)) as sock:
            sock.sendall(f"HEAD {url} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            head = b""
            while data := sock.recv(4096):
                head += data
        assert head.startswith(b"HTTP/1.1 200") and head.endswith(b"\r\n\r\n")
        plain_client.append(topic, 2)
        assert datas([stream.next("record")]) == [2]


# --- several topics ---------------------------------------------------------------------------------------


def test_topics_of_one_watch_live_on_several_shards(server: LiveServer, plain_client: ApiClient) -> None:
    names = [fresh_on(number % server.shards, server.shards) for number in range(12)]
    for name in names:
        plain_client.append(name, f"{name}-1")
    assert len({plain_client.state(name)["shard"] for name in names}) == server.shards
    with watch(plain_client, topics={name: {} for name in names}) as stream:
        frames: list[Frame] = []
        while len([frame for frame in frames if frame.event == "caught-up"]) < len(names):
            frames += stream.frames(1)
        assert sorted(datas(frames)) == sorted(f"{name}-1" for name in names)
        assert frames[-1].cursors == dict.fromkeys(names, 1)
        for name in names:
            plain_client.append(name, f"{name}-2")
            frame = stream.next("record")
            assert datas([frame]) == [f"{name}-2"]
        assert frame.cursors == dict.fromkeys(names, 2)


def test_prefixes_with_topics_created_and_deleted_later(plain_client: ApiClient) -> None:
    prefix = fresh("room") + ":"
    plain_client.append(prefix + "old", 1, 2)
    with watch(plain_client, prefixes={prefix: {"tail": True}}) as stream:
        stream.caught_up(prefix + "old")
        for number in range(6):
            plain_client.append(f"{prefix}{number}", number)
            frames = stream.until(lambda frame: frame.event == "record")
            assert datas(frames) == [number] and frames[-1].data["topic"] == f"{prefix}{number}"
        plain_client.ok("DELETE", f"/v0/topics/{prefix}old")
        assert stream.next("topic-deleted").data == {
            "topic": prefix + "old",
            "head_seq": 2,
            "reason": "deleted",
        }
        plain_client.append(prefix + "old", "again")
        assert datas(stream.until(lambda frame: frame.event == "record")) == ["again"]


def test_a_topic_deleted_and_recreated_while_watched(plain_client: ApiClient) -> None:
    topic, other = fresh(), fresh()
    plain_client.append(topic, 1, 2, 3)
    plain_client.append(other, 1)
    with watch(plain_client, topics={topic: {}, other: {}}) as stream:
        frames = stream.caught_up(topic)
        if not any(frame.data["topic"] == other for frame in frames):
            stream.caught_up(other)
        plain_client.ok("DELETE", f"/v0/topics/{topic}")
        deleted = stream.next("topic-deleted")
        assert deleted.data == {"topic": topic, "head_seq": 3, "reason": "deleted"}
        assert deleted.cursors == {other: 1, "$told": 1}
        plain_client.append(topic, "new")
        (record,) = [f for f in stream.until(lambda frame: frame.event == "record") if f.event == "record"]
        assert (record.data["from_seq"], record.data["to_seq"], datas([record])) == (0, 1, ["new"])
        # An id from before the deletion does not count in the new topic.
        old_id = encode_id({topic: 3, other: 1})
        with SseClient(plain_client.port, stream.url, last_id=old_id) as again:
            told = again.until(lambda frame: frame.event == "record")
            assert [frame.event for frame in told if frame.data["topic"] == topic] == [
                "topic-deleted",
                "record",
            ]
            assert datas(told, topic) == ["new"]


def test_the_stream_ends_when_every_topic_is_gone(plain_client: ApiClient) -> None:
    topic = fresh()
    plain_client.append(topic, 1)
    answer = start(plain_client, topics={topic: {}})
    with SseClient(plain_client.port, answer["stream_url"]) as stream:
        stream.caught_up(topic)
        plain_client.ok("DELETE", f"/v0/topics/{topic}")
        (last,) = stream.rest()
        assert last.event == "topic-deleted"
    plain_client.fails(404, "not_found", "GET", answer["stream_url"])


# --- resuming ---------------------------------------------------------------------------------------------


def test_resume_by_session_and_by_last_event_id(plain_client: ApiClient) -> None:
    topic = fresh()
    plain_client.append(topic, 1, 2, 3)
    url = start(plain_client, topics={topic: {}}, limit=1)["stream_url"]
    with SseClient(plain_client.port, url) as stream:
        first, *_ = stream.caught_up(topic)
    plain_client.append(topic, 4)
    with SseClient(plain_client.port, url) as stream:
        assert datas(stream.caught_up(topic)) == [4]
    with SseClient(plain_client.port, url, last_id=first.id) as stream:
        assert datas(stream.caught_up(topic)) == [2, 3, 4]
    with SseClient(plain_client.port, url, last_id=encode_id({topic: 10**6})) as stream:
        assert datas(stream.caught_up(topic)) == []
    plain_client.fails(400, "invalid_request", "GET", url, headers={"Last-Event-ID": "?"})


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    topic_count=st.integers(1, 3),
    limit=st.sampled_from([1, 7, 256]),
    tags=st.booleans(),
    cuts=st.lists(st.integers(0, 30_000), max_size=8),
    seed=st.integers(0, 1 << 32),
)
def test_cut_anywhere_the_union_is_exactly_what_was_written(
    plain_client: ApiClient, topic_count: int, limit: int, tags: bool, cuts: list[int], seed: int
) -> None:
    """Connections are reset after any number of bytes while somebody writes: every record comes once, in order."""
    topics = [fresh("cut") for _ in range(topic_count)]
    for topic in topics:
        plain_client.append(topic, 0)
    writer = threading.Thread(target=_write_at_random, args=(plain_client.port, topics, random.Random(seed)))
    url = start(plain_client, topics={topic: {} for topic in topics}, limit=limit, include_tags=tags)[
        "stream_url"
    ]
    got: dict[str, list[int]] = {topic: [] for topic in topics}
    with SseClient(plain_client.port, url) as stream:
        # An id must have arrived before a cut: without one the session's own cursor counts.
        _keep(stream.frames(1), got)
        last_id = stream.last_id
        stream.reset()
    writer.start()
    for cut in cuts:
        with SseClient(plain_client.port, url, last_id=last_id) as stream:
            while len(stream.raw) < cut and not stream.silent_for(0.05):
                _keep(stream.taken(), got)
            _keep(stream.taken(), got)
            last_id = stream.last_id or last_id
            stream.reset()
    writer.join()
    written = {topic: [record["$seq"] for record in plain_client.everything(topic)] for topic in topics}
    with SseClient(plain_client.port, url, last_id=last_id) as stream:
        with suppress(TimeoutError):
            while got != written:
                _keep(stream.frames(1), got)
        assert got == written
        assert stream.silent_for(0.05) or {frame.event for frame in stream.taken()} == {"caught-up"}


def _write_at_random(port: int, topics: list[str], plan: random.Random) -> None:
    with ApiClient(port, "http1") as client:
        for number in range(40):
            pad = {"pad": "x" * plan.choice([0, 50, 5000])}
            client.append(plan.choice(topics), *([number] * plan.randint(0, 2)), pad)


def _keep(frames: list[Frame], got: dict[str, list[int]]) -> None:
    for frame in frames:
        assert frame.event in ("record", "caught-up"), frame
        got[frame.data["topic"]] += seqs([frame])


# --- losses -----------------------------------------------------------------------------------------------


def test_a_paused_reader_is_told_the_exact_range_that_a_cap_took(plain_client: ApiClient) -> None:
    topic = fresh()
    plain_client.put(topic, cap_records=10)
    plain_client.append(topic, *range(8))
    url = start(plain_client, topics={topic: {}})["stream_url"]
    with SseClient(plain_client.port, url) as stream:
        assert seqs(stream.caught_up(topic)) == [*range(1, 9)]
        last_id = stream.last_id
    for start_at in range(8, 30, 2):
        plain_client.append(topic, start_at, start_at + 1)
    with SseClient(plain_client.port, url, last_id=last_id) as stream:
        tombstone, *rest = stream.caught_up(topic)
        assert tombstone.event == "tombstone"
        assert tombstone.data == {
            "topic": topic,
            "reason": "from_seq_too_old",
            "gap_from": 9,
            "gap_to": 20,
            "earliest_seq": 21,
            "head_seq": 30,
        }
        assert tombstone.cursors == {topic: 20}
        assert seqs(rest) == [*range(21, 31)] and rest[0].data["from_seq"] == 20


def test_what_a_cap_takes_from_a_slow_reader_is_told_within_its_stream(plain_client: ApiClient) -> None:
    topic = fresh()
    plain_client.put(topic, cap_records=20)
    plain_client.append(topic, 0)
    with watch(plain_client, topics={topic: {"tail": True}}, receive_buffer=4096) as stream:
        stream.caught_up(topic)
        count = 500
        for number in range(count):
            plain_client.append(topic, {"n": number, "pad": "x" * 20_000})
        frames = stream.until(lambda frame: frame.event == "record" and frame.data["to_seq"] == count + 1)
    place = 1
    reasons = set()
    for frame in frames:
        if frame.event == "tombstone":
            assert frame.data["gap_from"] == place + 1
            reasons.add(frame.data["reason"])
            place = frame.data["gap_to"]
        elif frame.event == "record":
            assert seqs([frame]) == [*range(place + 1, frame.data["to_seq"] + 1)]
            place = frame.data["to_seq"]
    assert place == count + 1 and reasons == {"cap"}


def test_a_paused_reader_is_told_the_exact_range_that_a_ttl_took(plain_client: ApiClient) -> None:
    topic = fresh()
    plain_client.put(topic, ttl_ms=400)
    plain_client.append(topic, 1, 2, 3)
    url = start(plain_client, topics={topic: {"from_seq": 1}})["stream_url"]
    wait_for(lambda: plain_client.diff(topic, from_seq=1)["tombstone"])
    plain_client.append(topic, 4)
    with SseClient(plain_client.port, url) as stream:
        tombstone, record, _ = stream.caught_up(topic)
        assert (tombstone.data["gap_from"], tombstone.data["gap_to"]) == (2, 3)
        assert seqs([record]) == [4]


def test_deletes_are_reported_as_nothing(plain_client: ApiClient) -> None:
    topic = fresh()
    plain_client.write(topic, *({"data": n, "tag": "even" if n % 2 == 0 else "odd"} for n in range(1, 9)))
    url = start(plain_client, topics={topic: {}}, limit=2)["stream_url"]
    with SseClient(plain_client.port, url) as stream:
        assert seqs([stream.next("record")]) == [1, 2]
        last_id = stream.last_id
        stream.reset()
    plain_client.delete_records(topic, match="even")
    plain_client.delete_records(topic, before_seq=5)
    with SseClient(plain_client.port, url, last_id=last_id) as stream:
        frames = stream.caught_up(topic)
        assert seqs(frames) == [5, 7] and {frame.event for frame in frames} == {"record", "caught-up"}
        plain_client.delete_records(topic, before_seq=100)
        assert stream.silent_for(0.2)
        plain_client.append(topic, "next")
        assert seqs([stream.next("record")]) == [9]


# --- many and slow ----------------------------------------------------------------------------------------


def test_a_slow_reader_lags_and_catches_up_while_a_fast_one_is_live(plain_client: ApiClient) -> None:
    topic = fresh()
    plain_client.append(topic, 0)
    slow = watch(plain_client, topics={topic: {"tail": True}}, receive_buffer=4096)
    fast = watch(plain_client, topics={topic: {"tail": True}})
    with slow, fast:
        slow.caught_up(topic)
        fast.caught_up(topic)
        pad = "x" * 20_000
        count = 400  # 8 MB: more than the kernel buffers for a socket that nobody reads
        slowest = 0.0
        for number in range(count):
            started = time.perf_counter()
            plain_client.append(topic, {"n": number, "pad": pad})
            frames = [fast.next("record")]
            slowest = max(slowest, time.perf_counter() - started)
            assert frames[0].data["records"][0]["data"]["n"] == number
        frames = slow.until(lambda frame: frame.event == "record" and frame.data["to_seq"] == count + 1)
        assert [data["n"] for data in datas(frames)] == [*range(count)]
        assert max(len(frame.data["records"]) for frame in frames if frame.event == "record") > 1, (
            "it coalesced"
        )
        assert slowest < 5


def test_500_watchers_get_200_records_in_order(server: LiveServer, plain_client: ApiClient) -> None:
    topic = fresh()
    plain_client.append(topic, 0)
    streams = [watch(plain_client, topics={topic: {"tail": True}}) for _ in range(500)]
    try:
        for stream in streams:
            stream.caught_up(topic)
        metrics = plain_client.send("GET", "/v0/metrics").text
        assert "topics_sse_connections 500.0" in metrics
        for number in range(1, 201):
            plain_client.append(topic, number)
        for stream in streams:
            frames: list[Frame] = []
            while len(datas(frames)) < 200:
                frames += stream.frames(1)
            assert datas(frames) == [*range(1, 201)]
    finally:
        for stream in streams:
            stream.close()
    wait_for(lambda: "topics_sse_connections 0.0" in plain_client.send("GET", "/v0/metrics").text)


def test_strong_streams_get_what_is_synced(plain_client: ApiClient) -> None:
    for durability in ("memory", "disk", "fsync", "ephemeral"):
        topic = fresh()
        plain_client.put(topic, durability=durability)
        with watch(plain_client, topics={topic: {}}, consistency="strong") as stream:
            assert stream.next("caught-up").data["head_seq"] == 0
            for number in range(1, 4):
                plain_client.append(topic, number)
                assert datas([stream.next("record")]) == [number], durability
        with watch(plain_client, topics={topic: {}}, consistency="strong") as stream:
            assert datas(stream.caught_up(topic)) == [1, 2, 3], durability


# --- servers of their own ---------------------------------------------------------------------------------


def test_a_killed_worker_pauses_its_topics_and_they_go_on_without_gap_or_repeat(tmp_path: Path) -> None:
    with LiveServer(tmp_path / "data", shards=2) as server:
        server.wait_serving()
        with server.client() as client:
            candidates = [fresh("kill") for _ in range(60)]
            by_shard = [[name for name in candidates if shard_for(name, 2) == shard] for shard in (0, 1)]
            names = [*by_shard[0][:3], *by_shard[1][:3]]
            shard_of = {}
            for name in names:
                client.append(name, 0)
                shard_of[name] = client.state(name)["shard"]
            assert set(shard_of.values()) == {0, 1}
            with watch(client, topics={name: {} for name in names}) as stream:
                for _ in names:
                    stream.frames(2)
                received: dict[str, list[int]] = {name: [0] for name in names}
                written: dict[str, list[int]] = {name: [0] for name in names}
                for round_ in range(3):
                    server.kill_child("shard-0")
                    number = 0
                    deadline = time.monotonic() + 20
                    while time.monotonic() < deadline:
                        number += 1
                        name = names[number % len(names)]
                        value = round_ * 10_000 + number
                        body = {"records": [{"data": value}]}
                        answer = client.send("POST", f"/v0/topics/{name}", body)
                        if answer.status_code == 200:
                            written[name].append(value)
                            if shard_of[name] == 0 and number > 20:
                                break
                        else:
                            assert answer.status_code == 503 and shard_of[name] == 0
                errors = _collect(stream, received, written)
                assert errors and all(frame.data["code"] == 503 for frame in errors)
                down = {name for name in names if shard_of[name] == 0}
                assert all(set(frame.data["topics"]) == down for frame in errors)
                assert received == written
        assert server.stop() == 0


def _collect(stream: SseClient, received: dict[str, list[int]], written: dict[str, list[int]]) -> list[Frame]:
    """Read until everything that was acked has come; a write without an answer may have come, too."""
    errors = []
    while any(not set(values) <= set(received[name]) for name, values in written.items()):
        (frame,) = stream.frames(1)
        if frame.event == "error":
            errors.append(frame)
        elif frame.event == "record":
            received[frame.data["topic"]] += datas([frame])
    for name, values in received.items():
        assert len(set(values)) == len(values)
        received[name] = [value for value in values if value in written[name]]
    return errors


def test_shutdown_sends_a_last_frame(tmp_path: Path) -> None:
    with LiveServer(tmp_path / "data", shards=1) as server:
        server.wait_serving()
        with server.client() as client:
            client.append("t", 1)
            with watch(client, topics={"t": {}}) as stream:
                stream.caught_up("t")
                assert server.stop() == 0
                (last,) = stream.rest()
                assert last.event == "error" and last.data["code"] == "server_shutting_down"


KEYS = "reader:read,other:read,chat:read:chat:,writer:write,all"


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    env = {
        "TOPICS_API_KEYS": KEYS,
        "TOPICS_MAX_WATCH_SESSIONS": "8",
        "TOPICS_MAX_SSE_CONNECTIONS": "4",
        "TOPICS_MAX_SSE_CONNECTIONS_PER_KEY": "2",
        "TOPICS_MAX_WATCH_TOPICS": "3",
    }
    with LiveServer(tmp_path_factory.mktemp("locked") / "data", shards=2, env=env) as server:
        server.wait_ready()
        with server.client(token="all") as client:
            wait_for(lambda: client.send("GET", "/v0/ready").status_code == 200)
            for name in ("news", "chat:1"):
                client.append(name, 1)
        yield server
        assert server.stop() == 0


def test_auth_is_bound_to_the_creating_key(locked: LiveServer) -> None:
    with locked.client(token="reader") as client:
        url = start(client, topics={"news": {}})["stream_url"]
    for token, status in ((None, 401), ("nobody", 401), ("other", 403), ("writer", 403)):
        with SseClient(locked.port, url, token=token) as stream:
            assert stream.status == status
    for allowed, token in ((url, "reader"), (url + "?token=reader", None)):
        with SseClient(locked.port, allowed, token=token) as stream:
            assert stream.status == 200
            stream.frames(1)
    with locked.client(token="writer") as client:
        client.fails(403, "forbidden", "POST", "/v0/watch", {"topics": {"news": {}}})
    with locked.client(token="chat") as client:
        client.fails(403, "forbidden", "POST", "/v0/watch", {"topics": {"news": {}}})
        client.fails(403, "forbidden", "POST", "/v0/watch", {"prefixes": {"": {}}})
        client.fails(403, "forbidden", "POST", "/v0/watch", {"prefixes": {"cha": {}}})
        url = start(client, prefixes={"chat:": {}})["stream_url"]
        with SseClient(locked.port, url, token="chat") as stream:
            assert datas(stream.caught_up("chat:1")) == [1]
            with locked.client(token="all") as writer:
                writer.append("news", 2)
                writer.append("chat:2", "mine")
            assert datas(stream.until(lambda frame: frame.event == "record")) == ["mine"]


def test_caps_answer_429_with_their_name(locked: LiveServer) -> None:
    with locked.client(token="all") as client:
        error = client.fails(
            429, "throttled", "POST", "/v0/watch", {"topics": {f"t{number}": {} for number in range(4)}}
        )
        assert error["detail"] == {"limit": "max_watch_topics", "max": 3}
        urls = []
        while True:
            answer = client.send("POST", "/v0/watch", {"topics": {"news": {"tail": True}}})
            if answer.status_code == 429:
                break
            urls.append(answer.json()["stream_url"])
        assert answer.json()["error"]["detail"] == {"limit": "max_watch_sessions", "max": 8}
        streams = [SseClient(locked.port, url, token="all") for url in urls[:3]]
        assert [stream.status for stream in streams] == [200, 200, 429]
        assert streams[2].error["detail"] == {"limit": "max_sse_connections_per_key", "max": 2}
        for stream in streams:
            stream.close()
