"""Queues on a fake disk, driven step by step: the calls of clients, and shards that move jobs to each other.

    queue = QueueDriver()
    queue.make("q", leases_durable=True)
    queue.write("q", {"n": 1}, {"n": 2})
    jobs = queue.claim("q", "worker-1", max=2)
    queue.ack("q", "worker-1", jobs)

Every start of a shard gives its leases another prefix, as a real worker does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shard_worker.core.job import JobState
from shard_worker.core.job_json import record_text, records_of
from shard_worker.core.lease_queue import LeaseQueue
from shard_worker.core.topic import Topic
from shard_worker.disk.wal import wal_file_name
from shard_worker.moves import Peers
from shard_worker.request import Extents, Request
from shard_worker.shard import Shard
from shared.wire import Op
from tests.support.fake_disk import FakeDisk
from tests.support.shard_driver import DATA_DIR, WAL_FILE_BYTES, Answer, Call, ManualClock, ShardDriver, _Sink

Job = dict[str, Any]  # as a claim shows it
OnAnswer = Callable[[int], None]


class QueueDriver(ShardDriver):
    def __init__(
        self,
        disk: FakeDisk | None = None,
        *,
        number: int = 0,
        network: FakeNetwork | None = None,
        clock: ManualClock | None = None,
        wal_file_bytes: int = WAL_FILE_BYTES,
        open: bool = True,
        **overrides: object,
    ) -> None:
        self.number = number
        self.network = network
        self.lives = 0
        if network is not None:
            network.drivers[number] = self
        super().__init__(disk, clock=clock, wal_file_bytes=wal_file_bytes, open=open, **overrides)

    def reopen(self) -> None:
        self._sink = _Sink(self._read_extent)
        self._sync_job = None
        self.lives += 1
        self.shard = Shard.open(
            self.disk,
            self.settings,
            self.number,
            wall_ms=self.clock,
            clock=lambda: 0.0,
            wal_file_bytes=self.wal_file_bytes,
            token_prefix=lambda: f"lease_{self.lives}_",
        )
        if self.network is not None:
            self.shard.engine.moves.peers = self.network.seen_from(self.number)

    def twin(self, disk: FakeDisk, network: FakeNetwork | None = None) -> QueueDriver:
        """Another shard of the same settings on another disk, not opened yet; its tokens are new."""
        twin = QueueDriver(
            disk,
            number=self.number,
            network=network,
            clock=ManualClock(self.clock.now_ms),
            wal_file_bytes=self.wal_file_bytes,
            open=False,
        )
        twin.settings = self.settings
        twin.lives = self.lives + 100
        return twin

    def _read_extent(self, file_no: int, offset: int, length: int) -> bytes:
        path = f"{DATA_DIR}/shard-{self.number:04d}/wal/{wal_file_name(file_no)}"
        return self.disk.read_file(path)[offset : offset + length]

    # --- setting up -------------------------------------------------------------------------------------

    def make(self, name: str, **config: object) -> None:
        answer = self.put(name, **{"type": "queue", **config})
        assert answer.ok, answer.text

    def write(self, name: str, *records: object, **fields: object) -> list[int]:
        """Append these records; whatever is not a dict with `data` is the data of a plain one."""
        shaped = [
            record if isinstance(record, dict) and "data" in record else {"data": record}
            for record in records
        ]
        answer = self.append(name, shaped, **fields)
        assert answer.ok, answer.text
        seqs: list[int] = answer.json["seqs"]
        return seqs

    # --- clients ----------------------------------------------------------------------------------------

    def start_claim(self, name: str, node: str, **fields: object) -> Call:
        return self.submit(Op.CLAIM, name, {"node": node, **fields})

    def claim_answer(self, name: str, node: str = "n", **fields: object) -> Answer:
        return self.call(Op.CLAIM, name, {"node": node, **fields})

    def claim(self, name: str, node: str = "n", **fields: object) -> list[Job]:
        answer = self.claim_answer(name, node, **fields)
        assert answer.ok, answer.text
        jobs: list[Job] = answer.json["claimed"]
        assert answer.json["count"] == len(jobs)
        assert [job["$seq"] for job in jobs] == sorted(job["$seq"] for job in jobs)
        return jobs

    def claim_seqs(self, name: str, node: str = "n", **fields: object) -> list[int]:
        return seqs_of(self.claim(name, node, **fields))

    def ack(self, name: str, node: str, jobs: Iterable[Job | int], *, fenced: bool = True) -> Any:
        return self._decide(Op.ACK, name, node, jobs, fenced).json

    def nack(
        self, name: str, node: str, jobs: Iterable[Job | int], *, fenced: bool = True, **fields: object
    ) -> Any:
        return self._decide(Op.NACK, name, node, jobs, fenced, **fields).json

    def extend(
        self, name: str, node: str, jobs: Iterable[Job | int], lease_ms: int, *, fenced: bool = True
    ) -> Any:
        return self._decide(Op.EXTEND, name, node, jobs, fenced, lease_ms=lease_ms).json

    def _decide(
        self, op: int, name: str, node: str, jobs: Iterable[Job | int], fenced: bool, **fields: object
    ) -> Answer:
        return self.call(op, name, decision(node, jobs, fenced=fenced, **fields))

    def start_ack(self, name: str, node: str, jobs: Iterable[Job | int]) -> Call:
        return self.submit(Op.ACK, name, decision(node, jobs))

    def start_nack(self, name: str, node: str, jobs: Iterable[Job | int], **fields: object) -> Call:
        return self.submit(Op.NACK, name, decision(node, jobs, **fields))

    def start_extend(self, name: str, node: str, jobs: Iterable[Job | int], lease_ms: int) -> Call:
        return self.submit(Op.EXTEND, name, decision(node, jobs, lease_ms=lease_ms))

    def leases(self, name: str, **options: object) -> Any:
        return self.call(Op.LEASES, name, None, options).json

    def start_redrive(self, source: str, to: str, **fields: object) -> Call:
        return self.submit(Op.REDRIVE, source, {"from": source, **fields}, {"to": to})

    def redrive(self, source: str, to: str, **fields: object) -> Answer:
        call = self.start_redrive(source, to, **fields)
        self.finish(call)
        assert call.answer is not None
        return call.answer

    def finish(self, call: Call, turns: int = 8) -> None:
        """Turn after turn, here and on the other shards, until the call is answered."""
        for _ in range(turns):
            self.run_moves()
            if call.answer is not None:
                return
        raise AssertionError(f"no answer to {call}")

    def run_moves(self) -> None:
        """Let whatever is on its way to other topics arrive, and be removed here."""
        for _ in range(4):
            for driver in self.network.drivers.values() if self.network is not None else [self]:
                driver.settle()

    # --- looking ----------------------------------------------------------------------------------------

    def topic(self, name: str) -> Topic:
        topic: Topic = self.engine.state.catalog.visible[name]
        return topic

    def queue(self, name: str) -> LeaseQueue:
        queue = self.topic(name).queue
        assert queue is not None
        return queue

    def counts(self, name: str) -> tuple[int, int, int]:
        """(ready, in flight, delayed); they are the count of the topic, always."""
        state = self.state(name).json
        shown = state["queue"]
        found = (shown["ready"], shown["in_flight"], shown["delayed"])
        assert sum(found) == state["count"] and min(found) >= 0, state
        return found

    def data(self, name: str) -> list[Any]:
        if name not in self.engine.state.catalog.visible:
            return []
        return [record["data"] for record in self.read_all(name)]

    def peek(self, name: str) -> dict[int, Any]:
        """The data of all live records by seq, as they lie there: no request, no turn, nothing expires."""
        topic = self.engine.state.catalog.visible.get(name)
        if topic is None:
            return {}
        seqs = []
        seq = topic.next_live(1)
        while seq <= topic.head:
            seqs.append(seq)
            seq = topic.next_live(seq + 1)
        placed = records_of(topic, seqs, self.engine.state.source)
        return {seq: json.loads(record_text(piece, place))["data"] for seq, piece, place in placed}

    def check_queue(self, name: str) -> None:
        """L1 to L4 of core/lease_queue.py, from what it keeps inside."""
        topic, queue = self.topic(name), self.queue(name)
        queue.settle(topic, self.engine.now_ms())
        assert queue.in_flight + queue.delayed + queue.ready(topic) == topic.count
        assert queue.ready(topic) >= 0, (topic, queue.jobs)
        states = [job.state for job in queue.jobs.values()]
        assert queue.in_flight == states.count(JobState.LEASED)
        assert queue.delayed == states.count(JobState.DELAYED)
        for seq in queue.jobs:
            assert topic.next_live(seq) == seq <= topic.head, (
                f"an entry for {seq}, which is not live: {topic}"
            )
        heads: dict[str, int] = {}
        for seq, job in sorted(queue.jobs.items()):
            if job.group is None:
                assert job.state is not JobState.BLOCKED
            elif heads.setdefault(job.group, seq) != seq:
                assert job.state in (JobState.BLOCKED, JobState.DELAYED), (
                    f"{seq} went before its group's head"
                )


def seqs_of(jobs: Iterable[Job]) -> list[int]:
    return [job["$seq"] for job in jobs]


def decision(
    node: str, jobs: Iterable[Job | int], *, fenced: bool = True, **fields: object
) -> dict[str, object]:
    """The body of an ack, nack or extend: of jobs as they were claimed, or of bare seqs."""
    held = list(jobs)
    body: dict[str, object] = {"node": node, **fields}
    body["seqs"] = [job if isinstance(job, int) else job["$seq"] for job in held]
    if fenced and held and not any(isinstance(job, int) for job in held):
        body["lease_ids"] = [job["lease_id"] for job in held if not isinstance(job, int)]
    return body


# --- several shards ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class _PeerSink:
    """Where the other shard's answer goes."""

    full = False

    on_answer: OnAnswer

    def answer(
        self,
        id: int,
        status: int,
        body: bytes,
        timings: Mapping[str, float] | None = None,
        extents: Extents | None = None,
        tail: bytes | None = None,
    ) -> None:
        self.on_answer(status)


@dataclass(slots=True)
class FakeNetwork:
    """Joins shards. Says which topic is where; can refuse, lose, repeat and hold back.

    `faults` is used up message by message, then everything goes through:
    `refuse` (never arrives, 503), `lose` (arrives, its answer does not: 503), `repeat` (arrives twice, answered
    once), `hold` (arrives, its answer waits for `let_go`).
    """

    places: dict[str, int]
    drivers: dict[int, QueueDriver] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    held: list[Callable[[], None]] = field(default_factory=list)
    down: set[int] = field(default_factory=set)
    messages: int = 0

    def seen_from(self, shard: int) -> Peers:
        return _Seat(self)

    def let_go(self) -> None:
        held, self.held = self.held, []
        for answer in held:
            answer()

    def deliver(
        self, shard: int, op: int, topic: str, body: bytes, options: Mapping[str, object], on_answer: OnAnswer
    ) -> None:
        self.messages += 1
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "refuse" or shard in self.down:
            on_answer(503)
            return
        engine = self.drivers[shard].engine

        def arrive(told: OnAnswer) -> None:
            engine.submit(Request(_PeerSink(told), self.messages, op, topic, body, options))

        if fault == "lose":
            arrive(lambda status: on_answer(503))
        elif fault == "repeat":
            arrive(lambda status: None)
            arrive(on_answer)
        elif fault == "hold":
            arrive(lambda status: self.held.append(lambda: on_answer(status)))
        else:
            arrive(on_answer)


@dataclass(slots=True)
class _Seat:
    network: FakeNetwork

    def shard_of(self, topic: str) -> int:
        return self.network.places[topic]

    def request(
        self,
        shard: int,
        op: int,
        topic: str,
        body: bytes,
        options: Mapping[str, object],
        on_answer: OnAnswer,
    ) -> None:
        self.network.deliver(shard, op, topic, body, options, on_answer)


def two_shards(
    places: Mapping[str, int], disk: FakeDisk | None = None, clock: ManualClock | None = None
) -> Sequence[QueueDriver]:
    """Shards 0 and 1 on one disk, joined."""
    network = FakeNetwork(dict(places))
    shared_disk = FakeDisk() if disk is None else disk
    shared_clock = ManualClock() if clock is None else clock
    return [
        QueueDriver(shared_disk, number=number, network=network, clock=shared_clock, wal_file_bytes=1 << 16)
        for number in (0, 1)
    ]
