"""`GET …/work`: jobs as a stream, frame by frame and on both lanes; what it holds, and what it gives back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.support.api_client import ApiClient, Json, fresh
from tests.support.live_server import LiveServer
from tests.support.queue_client import Background, JobStream, Queue, waiting_claims
from tests.support.server_process import wait_for


@pytest.fixture
def queue(client: ApiClient) -> Queue:
    return Queue(client)


def ack(queue: Queue, job: Json, node: str = "w") -> None:
    assert queue.ack(job, node=node)["acked"] == 1


def test_the_stream_begins_as_an_event_stream_does(queue: Queue) -> None:
    with queue.work() as stream:
        headers = stream.answer.headers
        assert stream.answer.status_code == 200
        assert headers["content-type"] == "text/event-stream; charset=utf-8"
        assert headers["cache-control"] == "no-store"
        assert headers["x-accel-buffering"] == "no"
        assert stream.frame() == "retry: 2000"


def test_a_job_is_a_frame_with_the_fields_of_a_claim(client: ApiClient, queue: Queue) -> None:
    client.ok(
        "POST", queue.path, raw=b'{"records":[{"data":{"a":\n1.0},"tag":"t","meta":{"m":1}},{"data":2}]}'
    )
    before = int(time.time() * 1000)
    with queue.work("node=w&max=2&lease_ms=7000") as stream:
        stream.begin()
        first = stream.frame()
        assert first is not None
        id_line, event_line, data_line, rest = first.split("\n")
        assert (id_line, event_line) == ("id: 1", "event: job")
        assert data_line.startswith('data: {"$seq":1,"$ts":') and data_line.endswith('"data":{"a":')
        assert rest == 'data: 1.0},"meta":{"m":1}}'
        second = stream.job()
        assert second.keys() == {"$seq", "$ts", "deliveries", "lease_id", "deadline", "data"}
        assert before + 7000 <= second["deadline"] <= time.time() * 1000 + 7000
        assert [lease["node"] for lease in queue.leases()["leases"]] == ["w", "w"]


def test_it_holds_one_job_and_gets_the_next_when_that_is_acked(queue: Queue) -> None:
    queue.write(*range(3))
    with queue.work() as stream:
        stream.begin()
        for n in range(3):
            job = stream.job()
            assert job["data"] == n
            assert queue.counts() == (2 - n, 1, 0)
            ack(queue, job)
        wait_for(lambda: queue.counts() == (0, 0, 0))
        queue.write("later")
        assert stream.job()["data"] == "later"


def test_it_holds_as_many_jobs_as_it_asked_for(queue: Queue) -> None:
    queue.write(*range(10))
    with queue.work("node=w&max=4") as stream:
        stream.begin()
        jobs = [stream.job() for _ in range(4)]
        assert queue.counts() == (6, 4, 0)
        for job in jobs[:2]:
            ack(queue, job)
        more = [stream.job() for _ in range(2)]
        assert [job["data"] for job in more] == [4, 5]
        assert queue.counts() == (4, 4, 0)
        # One call may decide about several.
        queue.ack(*jobs[2:], *more, node="w")
        assert [stream.job()["data"] for _ in range(4)] == [6, 7, 8, 9]


@pytest.mark.parametrize("fenced", [True, False])
def test_a_nack_makes_room_as_well(queue: Queue, fenced: bool) -> None:
    queue.write("bad", "good")
    with queue.work() as stream:
        stream.begin()
        bad = stream.job()
        queue.nack(bad, node="w", delay_ms=300, fenced=fenced)
        good = stream.job()
        assert good["data"] == "good"
        ack(queue, good)
        again = stream.job()
        assert (again["data"], again["deliveries"]) == ("bad", 2)


def test_a_lease_that_runs_out_makes_room_and_an_extend_keeps_the_place(queue: Queue) -> None:
    queue.write("slow", "next")
    with queue.work("node=w&lease_ms=300") as stream:
        stream.begin()
        slow = stream.job()
        assert queue.extend(slow, lease_ms=60_000, node="w")["extended"] == 1
        wait_for(lambda: time.time() * 1000 > slow["deadline"] + 100)
        assert queue.counts() == (1, 1, 0)
        assert queue.extend(slow, lease_ms=100, node="w")["extended"] == 1
        # It is the oldest, so it comes again; the stream has it as its own, with a new lease.
        again = stream.job()
        assert (again["data"], again["deliveries"]) == ("slow", 2)
        assert queue.ack(slow, node="w")["skipped"] == 1
        assert queue.counts() == (1, 1, 0), "a stale ack does not make room"
        ack(queue, again)
        assert stream.job()["data"] == "next"


def test_an_ack_of_what_is_over_makes_room(client: ApiClient, queue: Queue) -> None:
    queue.write("x", "y")
    with queue.work() as stream:
        stream.begin()
        job = stream.job()
        client.delete_records(queue.name, before_seq=2)
        assert queue.ack(job, node="w")["skipped"] == 1
        assert stream.job()["data"] == "y"


def test_leaving_gives_everything_back_at_once(queue: Queue) -> None:
    queue.write(*range(5))
    with queue.work("node=w&max=4&lease_ms=86400000") as stream:
        stream.begin()
        jobs = [stream.job() for _ in range(4)]
        ack(queue, jobs[0])
        assert stream.job()["data"] == 4
        assert queue.counts() == (0, 4, 0)
    wait_for(lambda: queue.counts() == (4, 0, 0))
    assert [(job["data"], job["deliveries"]) for job in queue.claim(max=9)] == [
        (1, 2), (2, 2), (3, 2), (4, 2),
    ]  # fmt: skip


def test_leaving_touches_no_job_that_somebody_else_has_meanwhile(queue: Queue) -> None:
    queue.write("x")
    with queue.work("node=w") as stream:
        stream.begin()
        stolen = stream.job()
        queue.nack(stolen, node="w", delay_ms=86_400_000)
        assert queue.counts() == (0, 0, 1)
    wait_for(lambda: waiting_claims(queue.client) == 0)
    assert queue.counts() == (0, 0, 1)


def test_a_stream_that_waits_takes_no_job_after_it_is_gone(queue: Queue) -> None:
    with queue.work() as stream:
        stream.begin()
        wait_for(lambda: waiting_claims(queue.client) >= 1)
    wait_for(lambda: waiting_claims(queue.client) == 0)
    queue.write("x")
    assert queue.claim()[0]["deliveries"] == 1


def test_two_streams_share_a_queue(queue: Queue) -> None:
    with queue.work("node=a") as one, queue.work("node=b") as two:
        one.begin(), two.begin()
        wait_for(lambda: waiting_claims(queue.client) >= 2)
        queue.write("x", "y")
        first, second = one.job(), two.job()
        assert {first["data"], second["data"]} == {"x", "y"}
        queue.write("z")
        ack(queue, second, "b")
        assert two.job()["data"] == "z"
        assert queue.ack(first, node="b", fenced=False)["skipped"] == 1
        ack(queue, first, "a")


def test_streams_of_one_node_are_told_apart_by_their_leases(queue: Queue) -> None:
    queue.write(*range(4))
    with queue.work() as one, queue.work() as two:
        one.begin(), two.begin()
        first, second = one.job(), two.job()
        ack(queue, first)
        third = one.job()
        assert queue.counts() == (1, 2, 0)
        one.close()
        wait_for(lambda: queue.counts() == (2, 1, 0))
        ack(queue, second)
        assert two.job()["$seq"] == third["$seq"], "what the other gave back is the oldest"


def test_streams_and_claims_of_one_window_share_evenly(server: LiveServer, client: ApiClient) -> None:
    queue = Queue(client, claim_jitter_ms=300)
    with ExitStack() as stack:
        streams = [stack.enter_context(queue.work(f"node=s{n}&max=20")).begin() for n in range(2)]
        other = stack.enter_context(server.client(client.lane))
        wait_for(lambda: waiting_claims(client) >= 2)
        polls = Background(lambda: Queue(other, queue.name).claim("p", max=20, wait_ms=20_000))
        wait_for(lambda: waiting_claims(client) >= 3)
        time.sleep(0.35)  # all their windows are over
        queue.write(*range(12))
        assert len(polls.result()) == 4
        taken = [[stream.job() for _ in range(4)] for stream in streams]
        assert len({job["$seq"] for jobs in taken for job in jobs}) == 8
        assert queue.counts() == (0, 12, 0)


def test_streams_that_ask_again_share_evenly(client: ApiClient) -> None:
    queue = Queue(client, claim_jitter_ms=50)
    with ExitStack() as stack:
        streams = [stack.enter_context(queue.work(f"node=s{n}&max=6")).begin() for n in range(3)]
        for jobs_each in (4, 2):
            wait_for(lambda: waiting_claims(client) >= 3)
            time.sleep(0.1)  # their windows are over, and they wait
            queue.write(*range(3 * jobs_each))
            taken = [[stream.job() for _ in range(jobs_each)] for stream in streams]
            assert queue.counts() == (0, 3 * jobs_each, 0)
            for n, jobs in enumerate(taken):
                assert queue.ack(*jobs, node=f"s{n}")["acked"] == jobs_each


def test_a_stream_ends_when_its_queue_is_deleted(client: ApiClient, queue: Queue) -> None:
    with queue.work() as stream:
        stream.begin()
        client.ok("DELETE", queue.path)
        event = stream.event()
        assert (event.name, event.data["code"], event.data["error"]) == ("error", 404, "topic_not_found")
        assert event.data["detail"] == {"topic": queue.name}
        assert stream.frame() is None


# --- refusals -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("query", ["", "node=", "node=w&max=x", "node=w&max=-1", "node=w&lease_ms=1.5"])
def test_malformed_parameters_are_refused(client: ApiClient, queue: Queue, query: str) -> None:
    client.fails(400, "invalid_request", "GET", f"{queue.path}/work?{query}")


def test_a_client_that_takes_no_events_is_refused(client: ApiClient, queue: Queue) -> None:
    path = f"{queue.path}/work?node=w"
    client.fails(406, "not_acceptable", "GET", path, headers={"Accept": "application/json"})
    for accept in ("text/event-stream", "*/*", "text/*;q=0.5, application/json"):
        with queue.work(headers={"Accept": accept}) as stream:
            stream.begin()


def test_head_tells_the_type_and_takes_no_job(client: ApiClient, queue: Queue) -> None:
    queue.write("x")
    with httpx.Client(http1=client.lane == "http1", http2=client.lane == "http2", verify=False) as http:
        answer = http.head(f"http://127.0.0.1:{client.port}{queue.path}/work?node=w")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert queue.claim()[0]["deliveries"] == 1


# --- servers of their own -------------------------------------------------------------------------------------


@pytest.fixture
def keyed(tmp_path: Path) -> Iterator[LiveServer]:
    keys = "k.all,k.rw:rw:q-,k.read:r,k.write:w"
    env = {"TOPICS_API_KEYS": keys, "TOPICS_MAX_SSE_CONNECTIONS_PER_KEY": "2"}
    with LiveServer(tmp_path / "data", shards=2, env=env) as running:
        running.wait_ready()
        yield running
        assert running.failures() == []


def test_a_stream_takes_its_key_from_the_query_and_needs_read_and_write(keyed: LiveServer) -> None:
    with keyed.client(token="k.all") as admin:
        wait_for(lambda: admin.send("GET", "/v0/ready").status_code == 200)
        queue = Queue(admin, fresh("q"))
        queue.write("x")
        path = f"http://127.0.0.1:{keyed.port}{queue.path}"
        for token, status in (("", 401), ("k.none", 401), ("k.read", 403), ("k.write", 403)):
            assert httpx.get(f"{path}/work?node=w&token={token}").status_code == status
        assert httpx.post(f"{path}/claim?token=k.rw", json={"node": "w"}).status_code == 401
        other = Queue(admin, fresh("other"))
        assert (
            httpx.get(f"http://127.0.0.1:{keyed.port}{other.path}/work?node=w&token=k.rw").status_code == 403
        )
        with queue.work("node=w&token=k.rw") as stream:
            assert stream.begin().job()["data"] == "x"


def test_streams_count_against_the_cap_of_their_key(keyed: LiveServer) -> None:
    with keyed.client(token="k.all") as admin:
        wait_for(lambda: admin.send("GET", "/v0/ready").status_code == 200)
        queue = Queue(admin, fresh("q"))
        with queue.work("node=a&token=k.rw") as one, queue.work("node=b&token=k.rw") as two:
            one.begin(), two.begin()
            refused = httpx.get(f"http://127.0.0.1:{keyed.port}{queue.path}/work?node=c&token=k.rw")
            assert refused.status_code == 429
            assert refused.json()["error"]["detail"] == {"limit": "max_sse_connections_per_key", "max": 2}
        wait_for(lambda: waiting_claims(admin) == 0)
        with queue.work("node=c&token=k.rw") as three:
            three.begin()


def test_a_stream_goes_on_after_its_shard_came_back(tmp_path: Path) -> None:
    with LiveServer(tmp_path / "data", shards=1) as server, server.wait_serving().client() as client:
        queue = Queue(client, lease_ms=86_400_000)
        queue.write("x", "y")
        with queue.work() as stream:
            stream.begin()
            before = stream.job()
            assert before["data"] == "x"
            wait_for(lambda: queue.ack(before, node="w")["acked"] == 1)
            y = stream.job()
            server.kill_child("shard-0")
            # Without durable leases the job is ready again; the holder hears so when it acks, and has room then.
            server.wait_child_ready("shard-0", count=2)
            wait_for(lambda: client.send("GET", "/v0/ready").status_code == 200)
            assert queue.ack(y, node="w")["skipped"] == 1
            event = stream.event()
            while event.name != "job":
                assert (event.name, event.data["code"]) == ("error", 503)
                event = stream.event()
            assert (event.data["data"], event.data["deliveries"]) == ("y", 1)


def test_a_waiting_stream_is_told_once_that_its_shard_is_away(tmp_path: Path) -> None:
    with LiveServer(tmp_path / "data", shards=1) as server, server.wait_serving().client() as client:
        queue = Queue(client)
        with queue.work() as stream:
            stream.begin()
            wait_for(lambda: waiting_claims(client) == 1)
            server.kill_child("shard-0")
            event = stream.event()
            assert (event.name, event.data["code"], event.data["error"]) == (
                "error",
                503,
                "shard_unavailable",
            )
            server.wait_child_ready("shard-0", count=2)
            wait_for(lambda: client.send("GET", "/v0/ready").status_code == 200)
            queue.write("x")
            assert stream.job()["data"] == "x"


def test_at_shutdown_streams_are_told_and_their_jobs_go_back(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with LiveServer(data, shards=1) as server, server.wait_serving().client() as client:
        queue = Queue(client, lease_ms=86_400_000, leases_durable=True, durable=True)
        queue.write("x")
        stream = queue.work().begin()
        assert stream.job()["data"] == "x"
        code = Background(server.stop)
        event = stream.event()
        assert (event.name, event.data["code"]) == ("error", "server_shutting_down")
        assert stream.frame() is None
        stream.close()
        assert code.result() == 0
    with LiveServer(data, shards=1) as server, server.wait_serving().client() as client:
        (job,) = Queue(client, queue.name).claim()
        assert (job["data"], job["deliveries"]) == ("x", 2)
        assert server.stop() == 0


def test_jobs_of_a_stream_that_left_while_the_shard_was_away_go_back_when_it_returns(tmp_path: Path) -> None:
    with LiveServer(tmp_path / "data", shards=1) as server, server.wait_serving().client() as client:
        queue = Queue(client, lease_ms=86_400_000, leases_durable=True, durable=True)
        queue.write("x")
        stream = queue.work().begin()
        stream.job()
        server.kill_child("shard-0")
        stream.close()
        server.wait_child_ready("shard-0", count=2)
        wait_for(lambda: client.send("GET", "/v0/ready").status_code == 200)
        wait_for(lambda: queue.counts() == (1, 0, 0))


def test_a_slow_reader_keeps_no_more_than_it_was_given(server: LiveServer, client: ApiClient) -> None:
    """Jobs that its connection has not taken run out like any other, and nobody claims more for it."""
    queue = Queue(client)
    large = "x" * 900_000
    for _ in range(24):
        queue.write(large)
    with JobStream(
        client.port, client.lane, f"{queue.path}/work?node=slow&max=24&lease_ms=86400000"
    ) as stream:
        wait_for(lambda: queue.counts()[1] >= 8)
        assert stream.begin().job()["data"] == large
    wait_for(lambda: queue.counts() == (24, 0, 0))
