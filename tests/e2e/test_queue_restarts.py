"""Queues whose worker is killed: what becomes of leases, acks and moves under way (Q1)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.api_client import ApiClient, fresh_on
from tests.support.live_server import LiveServer
from tests.support.queue_client import Queue
from tests.support.server_process import wait_for

SHARDS = 2


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiveServer]:
    with LiveServer(tmp_path / "data", shards=SHARDS) as running:
        yield running.wait_serving()


@pytest.fixture
def client(server: LiveServer) -> Iterator[ApiClient]:
    with server.client() as connected:
        yield connected


def kill(server: LiveServer, client: ApiClient, shard: int, *, times: int = 1) -> None:
    """SIGKILL a worker, and wait until its successor serves."""
    server.kill_child(f"shard-{shard}")
    server.wait_child_ready(f"shard-{shard}", count=times + 1)
    wait_for(lambda: client.send("GET", "/v0/ready").status_code == 200)


def test_q01_without_durable_leases_a_restart_makes_jobs_ready_again(
    server: LiveServer, client: ApiClient
) -> None:
    queue = Queue(client, fresh_on(0, SHARDS), durable=True)
    queue.write("x")
    (job,) = queue.claim(lease_ms=86_400_000)
    kill(server, client, 0)
    assert queue.counts() == (1, 0, 0)
    assert queue.ack(job)["skipped"] == 1, "the lease of another life fences nobody"
    (again,) = queue.claim()
    assert again["lease_id"] != job["lease_id"]
    assert queue.ack(again)["acked"] == 1


def test_q01_durable_leases_survive_a_restart_with_their_deliveries(
    server: LiveServer, client: ApiClient
) -> None:
    queue = Queue(client, fresh_on(0, SHARDS), durable=True, leases_durable=True)
    queue.write("kept", "extended", "returned", "short")
    kept, extended, returned, _ = (*queue.claim(max=3, lease_ms=86_400_000), queue.claim(lease_ms=100)[0])
    (deadline,) = queue.extend(extended, lease_ms=80_000_000)["deadlines"].values()
    queue.nack(returned, delay_ms=80_000_000)
    before = queue.leases()["leases"]
    kill(server, client, 0)
    wait_for(lambda: queue.counts() == (1, 2, 1))
    after = queue.leases()["leases"]
    assert [lease["lease_id"] for lease in after] == [kept["lease_id"], extended["lease_id"]]
    assert after[1]["deadline"] == deadline == before[1]["deadline"]
    (short,) = queue.claim()
    assert (short["data"], short["deliveries"]) == ("short", 2)
    assert queue.ack(kept, extended, short)["acked"] == 3


def test_q01_an_acked_job_never_returns(server: LiveServer, client: ApiClient) -> None:
    queue = Queue(client, fresh_on(0, SHARDS), durable=True)
    for times in range(1, 4):
        queue.write(*range(20))
        jobs = queue.claim(max=1000)
        assert queue.ack(*jobs[::2])["acked"] == len(jobs[::2])
        kill(server, client, 0, times=times)
        left = {job["$seq"] for job in jobs[1::2]}
        assert {record["$seq"] for record in client.everything(queue.name)} == left


@pytest.mark.parametrize("home", [0, 1])
@pytest.mark.parametrize("victim", [0, 1])
def test_q01_a_dead_letter_is_in_one_place_whoever_dies(
    server: LiveServer, client: ApiClient, home: int, victim: int
) -> None:
    """The worker of the queue, or that of the dead letters, dies while jobs move."""
    dead = fresh_on(home, SHARDS, "dead")
    queue = Queue(client, fresh_on(0, SHARDS), max_deliveries=1, dead_letter=dead, durable=True)
    queue.write(*range(200))
    queue.nack(*queue.claim(max=1000))
    client.send("POST", f"{queue.path}/claim", {"node": "a", "max": 1000})
    kill(server, client, victim)

    def moved() -> bool:
        # Moves that failed are tried again when somebody claims; a restart may have given deliveries back.
        jobs = client.send("POST", f"{queue.path}/claim", {"node": "a", "max": 1000}).json().get("claimed")
        if jobs:
            queue.nack(*jobs)
        return bool(client.state(queue.name)["count"] == 0)

    wait_for(moved)
    letters = client.everything(dead)
    assert sorted(letter["data"] for letter in letters) == list(range(200))
    assert sorted(letter["meta"]["$dead_letter_src_seq"] for letter in letters) == list(range(1, 201))


def test_q01_dead_letters_come_back_once_though_a_worker_dies(server: LiveServer, client: ApiClient) -> None:
    queue, dead = Queue(client, fresh_on(0, SHARDS), durable=True), fresh_on(1, SHARDS, "dead")
    client.write(dead, *({"data": n} for n in range(500)), config={"durable": True})
    for times, shard in enumerate((0, 1), start=1):
        client.send("POST", f"{queue.path}/redrive", {"from": dead, "limit": 100})
        kill(server, client, shard)
        assert times
    while queue.redrive(dead, limit=1000):
        pass
    wait_for(lambda: client.state(dead)["count"] == 0)
    assert sorted(job["data"] for job in queue.claim(max=1000)) == list(range(500))
