"""Producers and eight consumers on a queue whose worker is killed again and again.

Every job that was acknowledged to its producer is processed at least once; no job is acked twice as a success; what
was acked is not delivered again. Consumers behave as consumers do: some forget a job, some give it back, some
take longer than their lease. Randomness is seeded, but the processes' timing is their own.
"""

from __future__ import annotations

import random
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from pathlib import Path

import httpx
import pytest

from tests.support.api_client import ApiClient, Json
from tests.support.live_server import LiveServer
from tests.support.queue_client import JobStream

QUEUE = "jobs"
PATH = f"/v0/topics/{QUEUE}"
LEASE_MS = 1000
POLLERS, STREAMS, PRODUCERS = 6, 2, 2
MAX_BACKLOG = 1000  # jobs: consumers that dawdle must come to an end when no more are produced
QUICK_RESTART = {"first_delay_s": 0.05, "max_delay_s": 0.05, "stable_s": 1.0, "loop_after": 1000}


class Ledger:
    """What the clients saw. All of it under one lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.produced: set[int] = set()  # acknowledged to a producer
        self.processed: Counter[int] = Counter()
        self.acked: Counter[int] = Counter()  # by seq, successes only
        self.returned: list[int] = []  # delivered by a claim that was sent after the ack was answered
        self.producing = True

    def delivered(self, jobs: list[Json], acked_before: frozenset[int]) -> None:
        with self.lock:
            for job in jobs:
                self.processed[job["data"]["n"]] += 1
                if job["$seq"] in acked_before:
                    self.returned.append(job["$seq"])

    def backlog(self) -> int:
        with self.lock:
            return len(self.produced) - len(self.acked)

    def acked_so_far(self) -> frozenset[int]:
        with self.lock:
            return frozenset(self.acked)


class Client(threading.Thread, ABC):
    """A thread with a connection of its own that goes on whatever the server answers."""

    def __init__(self, server: LiveServer, ledger: Ledger, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.server = server
        self.ledger = ledger
        self.chance = random.Random(name)
        self.stopping = threading.Event()
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            with self.server.client() as client:
                while not self.stopping.is_set():
                    self.step(client)
        except BaseException as err:  # told by the main thread
            self.failure = err

    @abstractmethod
    def step(self, client: ApiClient) -> None: ...

    def send(self, client: ApiClient, verb: str, body: Json) -> Json | None:
        """The answer; None if the server could not say what became of the request."""
        try:
            answer = client.send("POST", f"{PATH}{verb}", body)
        except httpx.HTTPError:
            return None
        if answer.status_code in (503, 429):
            self.stopping.wait(0.02)
            return None
        assert answer.status_code == 200, answer.text
        document: Json = answer.json()
        return document

    def handle(self, client: ApiClient, job: Json) -> None:
        """Do with a job what this kind of consumer does with one."""
        decision = {"node": self.name, "seqs": [job["$seq"]], "lease_ids": [job["lease_id"]]}
        luck = self.chance.random()
        if luck < 0.05:
            return  # forgotten: the lease runs out
        if luck < 0.10:
            self.send(client, "/nack", {**decision, "delay_ms": self.chance.choice((0, 50))})
            return
        if luck < 0.15:
            self.send(client, "/extend", {**decision, "lease_ms": 5 * LEASE_MS})
        elif luck < 0.20:
            self.stopping.wait(LEASE_MS / 1000 * 1.2)  # late: whoever has it now has another lease
        answer = self.send(client, "/ack", decision)
        if answer is not None and answer["acked"]:
            with self.ledger.lock:
                self.ledger.acked[job["$seq"]] += 1


class Producer(Client):
    _numbers = iter(range(10**9))

    def step(self, client: ApiClient) -> None:
        if not self.ledger.producing or self.ledger.backlog() > MAX_BACKLOG:
            self.stopping.wait(0.1)
            return
        numbers = [next(Producer._numbers) for _ in range(self.chance.randint(1, 5))]
        body = {
            "records": [{"data": {"n": n}} for n in numbers],
            "idempotency_key": f"{self.name}-{numbers[0]}",
        }
        # A write without an answer is repeated under its key until there is one.
        while self.send(client, "", body) is None:
            if self.stopping.is_set():
                return
        with self.ledger.lock:
            self.ledger.produced.update(numbers)
        self.stopping.wait(0.01)


class Poller(Client):
    def step(self, client: ApiClient) -> None:
        acked = self.ledger.acked_so_far()
        claim = {"node": self.name, "max": self.chance.randint(1, 6), "wait_ms": 300}
        answer = self.send(client, "/claim", claim)
        if answer is not None:
            self.ledger.delivered(answer["claimed"], acked)
            for job in answer["claimed"]:
                self.handle(client, job)


class Streamer(Client):
    """Works on a stream, and drops it now and then with whatever it holds."""

    def step(self, client: ApiClient) -> None:
        query = f"node={self.name}&max=3"
        try:
            with JobStream(self.server.port, "http1", f"{PATH}/work?{query}", timeout_s=2) as stream:
                if stream.answer.status_code != 200:
                    self.stopping.wait(0.05)
                    return
                for _ in range(self.chance.randint(5, 40)):
                    if self.stopping.is_set() or not self.one(client, stream):
                        return
        except httpx.HTTPError:
            return

    def one(self, client: ApiClient, stream: JobStream) -> bool:
        frame = stream.frame()
        if frame is None:
            return False
        if "event: job" in frame:
            job = stream.parse(frame).data
            # When its claim was sent is the server's secret, so only what it processes counts here.
            self.ledger.delivered([job], frozenset())
            self.handle(client, job)
        return True


def soak(server: LiveServer, *, seconds: float, seed: int) -> tuple[Ledger, int]:
    chance = random.Random(seed)
    ledger = Ledger()
    with server.client() as client:
        client.put(QUEUE, type="queue", durable=True, lease_ms=LEASE_MS, leases_durable=bool(seed % 2))
        clients: list[Client] = [
            *(Producer(server, ledger, f"producer-{n}") for n in range(PRODUCERS)),
            *(Poller(server, ledger, f"poller-{n}") for n in range(POLLERS)),
            *(Streamer(server, ledger, f"streamer-{n}") for n in range(STREAMS)),
        ]
        for each in clients:
            each.start()
        kills = 0
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(chance.uniform(0.2, 1.5))
            server.kill_child("shard-0")
            kills += 1
            server.wait_child_ready("shard-0", count=kills + 1)
        ledger.producing = False
        drained = wait_until_empty(client, clients)
        for each in clients:
            each.stopping.set()
        for each in clients:
            each.join(30)
            assert not each.is_alive(), each.name
            if each.failure is not None:
                raise each.failure
        assert drained, "jobs are left that nobody gets"
    return ledger, kills


def wait_until_empty(client: ApiClient, clients: list[Client]) -> bool:
    give_up_at = time.monotonic() + 60
    while time.monotonic() < give_up_at and all(each.failure is None for each in clients):
        answer = client.send("GET", PATH)
        if answer.status_code == 200 and answer.json()["count"] == 0:
            return True
        time.sleep(0.05)
    return False


def check(ledger: Ledger, *, at_least: int) -> None:
    assert len(ledger.produced) >= at_least
    assert not ledger.produced - ledger.processed.keys(), "acknowledged, and never processed"
    assert [seq for seq, times in ledger.acked.items() if times > 1] == []
    assert ledger.returned == [], "delivered again after it was acked"


def run(tmp_path: Path, *, seconds: float, seed: int, at_least: int) -> None:
    with LiveServer(tmp_path / "data", shards=1, restart=QUICK_RESTART) as server:
        ledger, kills = soak(server.wait_serving(), seconds=seconds, seed=seed)
        again = sum(times - 1 for times in ledger.processed.values())
        print(
            f"{len(ledger.produced)} jobs, {kills} kills, {len(ledger.acked)} acks, {again} deliveries again"
        )
        assert kills >= 2
    check(ledger, at_least=at_least)


def test_q01_no_job_is_lost_or_acked_twice_while_the_worker_dies(tmp_path: Path) -> None:
    run(tmp_path, seconds=4, seed=1, at_least=100)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", [2, 3])
def test_q01_a_minute_of_random_kills(tmp_path: Path, seed: int) -> None:
    run(tmp_path, seconds=60, seed=seed, at_least=1000)


def test_the_check_can_fail() -> None:
    lost, twice, back = Ledger(), Ledger(), Ledger()
    lost.produced = {1}
    twice.acked[7] = 2
    back.delivered([{"$seq": 7, "data": {"n": 1}}], frozenset({7}))
    for ledger in (lost, twice, back):
        with pytest.raises(AssertionError):
            check(ledger, at_least=0)
    check(Ledger(), at_least=0)
