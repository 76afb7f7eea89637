"""`python -m perf.queue`: jobs per second and claim latency, next to Redis Streams and NATS JetStream.

Every worker is one connection that goes round and round: produce a batch, claim as many, ack them. So the queue is
never empty when somebody claims, and what is measured is the three calls, not how jobs are waited for. The servers are
up all the time and measured in turns; the load generator is one process on the same machine, the same for all of them.
Compare within one run only. CPU seconds per million jobs are shown for the server, for each kind of its processes, and
for the load generator: on a busy machine trust those, and see that the latter costs about the same for each server.

Durability is about alike: topicsd `disk` (in the log when acked, synced every 200 ms), Redis `appendfsync everysec`,
NATS file storage (synced every 2 minutes by default). Redis keeps its acked entries, the other two delete them. Batches
of Redis are pipelined XADDs; those of NATS are as many confirmed publishes and acks.
"""

from __future__ import annotations

import argparse
import json
import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from perf import servers
from perf.queue_clients import (
    GROUP,
    NATS_CONSUMER,
    NATS_STREAM,
    TOPIC,
    NatsClient,
    QueueClient,
    RedisClient,
    TopicsClient,
    nats_publish,
    resp,
)
from perf.report import Aim, Row, machine, percentiles, print_machine, print_table, save
from perf.servers import connect, need, send, topicsd
from perf.shard_bench import scratch

WORKERS = (1, 8, 50)
BATCHES = (1, 8, 100)
_PREPARE_S = 10.0


# --- load -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Measured:
    jobs: int = 0
    seconds: float = 0.0
    client_cpu_s: float = 0.0  # of the load generator
    server_cpu_s: dict[str, float] = field(default_factory=dict)  # by kind of process
    claims_ms: list[float] = field(default_factory=list)

    @property
    def per_s(self) -> float:
        return self.jobs / self.seconds

    def cpu_per_million(self, kind: str | None = None) -> float:
        """CPU seconds of the server per million jobs."""
        spent = sum(self.server_cpu_s.values()) if kind is None else self.server_cpu_s[kind]
        return spent / self.jobs * 1e6


# Shared by all connections, as each takes out what came before it is the next one's turn. A fresh object of this size
# for every call would be mapped and unmapped by the allocator each time: twice the cost of everything else here.
_received = memoryview(bytearray(1 << 20))


class Worker:
    """One connection on its way around."""

    __slots__ = ("_asked", "client", "phase", "sock")

    def __init__(self, client: QueueClient, sock: socket.socket) -> None:
        self.client = client
        self.sock = sock
        self.phase = 0
        self._asked = 0.0

    def send(self) -> None:
        client = self.client
        data = (client.produce, client.claim, client.ack)[self.phase]()
        self._asked = time.perf_counter()
        # Batches are far smaller than a socket's buffer.
        self.sock.sendall(data)

    def receive(self, measured: Measured) -> bool:
        """True at the end of a round."""
        size = self.sock.recv_into(_received)
        assert size, "the server has closed the connection"
        if not self.client.feed(bytes(_received[:size])):
            return False
        if self.phase == 1:
            measured.claims_ms.append((time.perf_counter() - self._asked) * 1000)
            if not self.client.claimed:
                self.phase = 0  # another worker was faster; its jobs are done by somebody
        elif self.phase == 2:
            measured.jobs += self.client.claimed
        self.phase = (self.phase + 1) % 3
        return self.phase == 0


def drive(workers: list[Worker], seconds: float) -> Measured:
    measured = Measured()
    by_fd = {worker.sock.fileno(): worker for worker in workers}
    with select.epoll() as epoll:
        for fd in by_fd:
            epoll.register(fd, select.EPOLLIN)
        started, cpu_at = time.perf_counter(), time.process_time()
        end = started + seconds
        for worker in workers:
            worker.send()
        busy = len(workers)
        while busy:
            for fd, _ in epoll.poll():
                worker = by_fd[fd]
                before = worker.phase
                if worker.receive(measured) and time.perf_counter() > end:
                    epoll.unregister(fd)
                    busy -= 1
                elif worker.phase != before:
                    worker.send()
        measured.seconds = time.perf_counter() - started
        measured.client_cpu_s = time.process_time() - cpu_at
    return measured


# --- servers --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class System:
    name: str
    port: int
    client: Callable[[int, int], QueueClient]
    cpu_s: Callable[[], dict[str, float]]  # that its processes have used so far

    def measure(self, workers: int, batch: int, seconds: float) -> Measured:
        with ExitStack() as stack:
            made = []
            for number in range(workers):
                client = self.client(number, batch)
                sock = stack.enter_context(connect(self.port))
                if isinstance(client, NatsClient):
                    sock.sendall(client.hello())
                made.append(Worker(client, sock))
            cpu_at = self.cpu_s()
            measured = drive(made, seconds)
            measured.server_cpu_s = {kind: s - cpu_at.get(kind, 0.0) for kind, s in self.cpu_s().items()}
            return measured


@contextmanager
def ours(directory: str) -> Iterator[System]:
    with topicsd(directory) as server:
        send(server, f"/v0/topics/{TOPIC}", b'{"type":"queue"}', "PUT")
        yield System("topicsd", server.port, TopicsClient, server.cpu_s)


@contextmanager
def redis(directory: str) -> Iterator[System]:
    with servers.redis(directory) as server:
        with connect(server.port) as sock:
            sock.sendall(resp(b"XGROUP", b"CREATE", TOPIC.encode(), GROUP, b"0", b"MKSTREAM"))
            assert sock.recv(100) == b"+OK\r\n"
        yield System("Redis Streams", server.port, RedisClient, server.cpu_s)


@contextmanager
def nats(directory: str) -> Iterator[System]:
    with servers.nats(directory) as server:
        stream = {"name": NATS_STREAM, "subjects": [TOPIC], "retention": "workqueue", "storage": "file"}
        config = {"durable_name": NATS_CONSUMER, "ack_policy": "explicit", "max_ack_pending": 1_000_000}
        consumer = {"stream_name": NATS_STREAM, "config": config}
        with connect(server.port) as sock:
            sock.sendall(b'CONNECT {"verbose":false}\r\nSUB made 1\r\n')
            nats_make(sock, f"$JS.API.STREAM.CREATE.{NATS_STREAM}", stream)
            nats_make(sock, f"$JS.API.CONSUMER.DURABLE.CREATE.{NATS_STREAM}.{NATS_CONSUMER}", consumer)
        yield System("NATS JetStream", server.port, NatsClient, server.cpu_s)


def nats_make(sock: socket.socket, subject: str, config: Row) -> None:
    sock.sendall(nats_publish(subject.encode(), b"made", json.dumps(config).encode()))
    sock.settimeout(_PREPARE_S)
    told = b""
    while b"MSG made" not in told or not told.endswith(b"}\r\n"):
        told += sock.recv(65536)
    assert b'"error"' not in told, told


# --- the comparison -------------------------------------------------------------------------------------------


def compare(systems: list[System], rounds: int, seconds: float) -> tuple[list[Row], list[Aim]]:
    rows: list[Row] = []
    aims: list[Aim] = []
    for batch in BATCHES:
        for workers in WORKERS:
            found: dict[str, list[Measured]] = {system.name: [] for system in systems}
            for number in range(rounds + 1):
                for system in systems:
                    measured = system.measure(workers, batch, seconds if number else min(seconds, 0.3))
                    if number:
                        found[system.name].append(measured)
            rivals = {name: runs for name, runs in found.items() if name != "topicsd"}
            for system in systems:
                rows.append(_row(system.name, workers, batch, found[system.name], rivals))
            _show(rows[-len(systems) :])
            if "Redis Streams" in found and batch > 1:
                ratio = _ratio(found["topicsd"], found["Redis Streams"])
                bound = 1.0 if batch == 100 else 0.5
                text = f"jobs/s of topicsd / Redis, claim size {batch}, {workers} workers"
                aims.append(Aim(text, round(ratio, 2), bound, at_least=True))
    return rows, aims


def _ratio(ours: list[Measured], theirs: list[Measured]) -> float:
    return median(own.per_s / their.per_s for own, their in zip(ours, theirs, strict=True))


def _row(name: str, workers: int, batch: int, runs: list[Measured], rivals: dict[str, list[Measured]]) -> Row:
    per_s = [run.per_s for run in runs]
    row: Row = {
        "claim_size": batch,
        "workers": workers,
        "server": name,
        "jobs_per_s": round(median(per_s)),
        "spread_per_s": [round(min(per_s)), round(max(per_s))],
        **{
            f"claim_{point}_ms": ms
            for point, ms in percentiles(ms for run in runs for ms in run.claims_ms).items()
        },
        "server_cpu_s_per_million": round(median(run.cpu_per_million() for run in runs), 1),
        "client_cpu_s_per_million": round(median(run.client_cpu_s / run.jobs * 1e6 for run in runs), 1),
        "client_cpu": round(median(run.client_cpu_s / run.seconds for run in runs), 2),
    }
    if name == "topicsd":
        for kind in ("gateway", "worker"):
            row[f"{kind}_cpu_s_per_million"] = round(median(run.cpu_per_million(kind) for run in runs), 1)
        for rival, theirs in rivals.items():
            row[f"of_{rival.split()[0].lower()}"] = round(_ratio(runs, theirs), 2)
    return row


def _show(rows: list[Row]) -> None:
    for row in rows:
        print(
            f"  size {row['claim_size']:>3}, {row['workers']:>2} workers  {row['server']:15}"
            f"{row['jobs_per_s']:>9,} jobs/s   claim p50 {row['claim_p50_ms']:.2f} ms   CPU s per million jobs:"
            f" server {row['server_cpu_s_per_million']:.1f}, client {row['client_cpu_s_per_million']:.1f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m perf.queue", description=__doc__)
    parser.add_argument("--short", action="store_true", help="under two minutes; not saved")
    parser.add_argument("--dir", help="a directory on the file system to measure; default: the temporary one")
    options = parser.parse_args()
    rounds, seconds = (2, 0.6) if options.short else (5, 2.0)
    need(["redis-server", "nats-server"])
    with ExitStack() as stack:
        directory = stack.enter_context(scratch(options.dir))
        found = machine(directory)
        print_machine(found)
        systems = [stack.enter_context(ours(directory))]
        for name, start in (("redis", redis), ("nats", nats)):
            own = Path(directory) / name
            own.mkdir()
            systems.append(stack.enter_context(start(str(own))))
        rows, aims = compare(systems, rounds, seconds)
    title = f"Produce, claim, ack: medians of {rounds} rounds of {seconds:g} s in turns; jobs of 100 bytes"
    print_table(title, rows)
    print_table("Aims", [aim.row() for aim in aims])
    document = {
        "machine": found,
        "rounds": rounds,
        "seconds_per_round": seconds,
        "rows": rows,
        "aims": [aim.row() for aim in aims],
    }
    if options.short:
        print("short run: not saved")
    else:
        print(f"saved as perf/results/{save('queue', document).name}")


if __name__ == "__main__":
    main()
