"""`python -m perf.fanout`: from a write to its delivery at 1, 100 and 1000 watchers, next to Redis and NATS.

A record is written when every watcher has the one before; its latency at each watcher is the time from just before the
write to its arrival. Deliveries per second come from a writer that keeps a few writes under way. The servers are up all
the time and measured in turns. The load generator is one process for all connections, on the same machine: it receives
more slowly than the servers send, so the tail at 1000 watchers is partly its own, for all three alike. Compare within
one run only.

topicsd: SSE streams over the `disk` class. Redis: clients blocked in XREAD on a stream (`appendfsync everysec`), asking
again once all have got the record, off the clock. NATS: core subscriptions, which store nothing.
"""

from __future__ import annotations

import argparse
import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from perf import servers
from perf.fanout_clients import (
    HttpWriter,
    NatsWatching,
    NatsWriter,
    SseWatching,
    Watching,
    Writer,
    XaddWriter,
    XreadWatching,
    receive_answer,
    receive_until,
    token,
)
from perf.queue_clients import resp
from perf.report import Aim, Row, machine, percentiles, print_machine, print_table, save
from perf.servers import connect, need, topicsd
from perf.shard_bench import scratch

WATCHERS = (1, 100, 1000)
_RECORDS = {1: 400, 100: 150, 1000: 40}  # written one by one in a round
_WINDOW = 8  # writes under way in the throughput part
_IDLE_STREAMS = 10_000


@dataclass(slots=True)
class Measured:
    latencies_ms: list[float] = field(default_factory=list)
    deliveries_per_s: float = 0.0
    server_cpu_us: float = 0.0  # per delivery, one record at a time


class Audience:
    """All watchers of one system, in one epoll set."""

    def __init__(self, watchers: list[Any]) -> None:
        self._epoll = select.epoll()
        self._by_fd: dict[int, Any] = {}
        self._rest: dict[int, bytes] = {}
        for each in watchers:
            self._by_fd[each.sock.fileno()] = each
            self._rest[each.sock.fileno()] = b""
            each.sock.setblocking(False)
            self._epoll.register(each.sock.fileno(), select.EPOLLIN)

    def __len__(self) -> int:
        return len(self._by_fd)

    def close(self) -> None:
        self._epoll.close()
        for each in self._by_fd.values():
            each.sock.close()

    def wait(self, mark: bytes, started: float, latencies_ms: list[float]) -> None:
        """Until `mark` has come to everyone."""
        missing = set(self._by_fd)
        clock = time.perf_counter
        while missing:
            for fd, _ in self._epoll.poll(30):
                data = self._rest[fd] + self._by_fd[fd].sock.recv(65536)
                if mark in data and fd in missing:
                    latencies_ms.append((clock() - started) * 1000)
                    missing.discard(fd)
                self._rest[fd] = data[-400:]
        for fd, each in self._by_fd.items():
            self._next(each, self._rest[fd])
            self._rest[fd] = b""

    def _next(self, each: Any, data: bytes) -> None:
        if isinstance(each, XreadWatching):
            each.took(data)
        each.again()

    def pour(self, writer: Writer, first: int, seconds: float) -> tuple[int, float]:
        """Write with a few writes under way; returns what was written and how long it took until all had it."""
        epoll, clock = self._epoll, time.perf_counter
        writer.sock.setblocking(False)
        epoll.register(writer.sock.fileno(), select.EPOLLIN)
        number, confirmed, arrived = first, first, 0
        started = clock()
        for _ in range(_WINDOW):
            writer.write(number)
            number += 1
        while arrived < (number - first) * len(self):
            for fd, _ in epoll.poll(30):
                if fd == writer.sock.fileno():
                    confirmed += writer.answered(writer.sock.recv(65536))
                    while number - confirmed < _WINDOW and clock() - started < seconds:
                        writer.write(number)
                        number += 1
                    continue
                each = self._by_fd[fd]
                data = self._rest[fd] + each.sock.recv(1 << 20)
                found = data.count(b"@") // 2
                arrived += found
                keep = data.rpartition(b"@")[2] if data.count(b"@") % 2 == 0 else data[data.rfind(b"@") :]
                if found and isinstance(each, XreadWatching):
                    each.took(data)
                    each.again()
                    keep = b""
                self._rest[fd] = keep[-400:]
        took = clock() - started
        epoll.unregister(writer.sock.fileno())
        writer.sock.setblocking(True)
        for fd in self._rest:
            self._rest[fd] = b""
        return number - first, took


# --- systems ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class System:
    name: str
    watch: Callable[[int], list[Any]]  # so many watchers, ready
    writer: Callable[[], Writer]
    cpu_s: Callable[[], float]

    def measure(self, watchers: int, records: int, pour_s: float) -> Measured:
        measured = Measured()
        audience, writer = Audience(self.watch(watchers)), self.writer()
        try:
            number = 1
            cpu_at = self.cpu_s()
            for _ in range(records):
                started = time.perf_counter()
                writer.write(number)
                audience.wait(token(number), started, measured.latencies_ms)
                answered = 0
                while not answered:
                    answered = writer.answered(writer.sock.recv(65536))
                number += 1
            measured.server_cpu_us = (self.cpu_s() - cpu_at) / (records * watchers) * 1e6
            written, took = audience.pour(writer, number, pour_s)
            measured.deliveries_per_s = written * watchers / took
        finally:
            writer.sock.close()
            audience.close()
        return measured


@contextmanager
def ours(directory: str) -> Iterator[System]:
    with topicsd(directory) as server:
        first = HttpWriter(server.port)
        first.write(0)
        receive_answer(first.sock)

        def watch(count: int) -> list[Watching]:
            found = [SseWatching(server.port, first.sock) for _ in range(count)]
            for each in found:
                each.ready()
            return list(found)

        yield System("topicsd", watch, lambda: HttpWriter(server.port), server.total_cpu_s)
        first.sock.close()


@contextmanager
def redis(directory: str) -> Iterator[System]:
    with servers.redis(directory) as server:
        port = server.port
        setup = connect(port)

        def watch(count: int) -> list[Watching]:
            setup.sendall(resp(b"XADD", b"bench-fanout", b"*", b"n", b"0"))
            last = receive_until(setup, b"-").partition(b"\r\n")[2].strip()
            found = [XreadWatching(port, last) for _ in range(count)]
            _until_blocked(setup, count)
            return list(found)

        yield System("Redis XREAD", watch, lambda: XaddWriter(port), server.total_cpu_s)
        setup.close()


def _until_blocked(setup: socket.socket, count: int) -> None:
    while True:
        setup.sendall(resp(b"INFO", b"clients"))
        if b"blocked_clients:%d\r\n" % count in receive_until(setup, b"\r\n\r\n"):
            return
        time.sleep(0.01)


@contextmanager
def nats(directory: str) -> Iterator[System]:
    with servers.nats(directory, jetstream=False) as server:
        port = server.port

        def watch(count: int) -> list[Watching]:
            found = [NatsWatching(port) for _ in range(count)]
            for each in found:
                each.ready()
            return list(found)

        yield System("NATS core", watch, lambda: NatsWriter(port), server.total_cpu_s)


# --- idle streams -----------------------------------------------------------------------------------------


def idle(directory: str, count: int) -> Row:
    """Memory and CPU of the gateway with so many streams on which nothing happens but heartbeats."""
    with topicsd(directory) as server:
        writer = HttpWriter(server.port)
        writer.write(0)
        receive_answer(writer.sock)
        before = server.rss_of("gateway")
        watchers = []
        for _ in range(count):
            each = SseWatching(server.port, writer.sock)
            each.ready()
            watchers.append(each)
        after = server.rss_of("gateway")
        seconds = 20.0
        cpu_at = server.cpu_s()["gateway"]
        time.sleep(seconds)
        cpu_s = server.cpu_s()["gateway"] - cpu_at
        started = time.perf_counter()
        writer.write(1)
        latencies: list[float] = []
        audience = Audience(watchers)
        audience.wait(token(1), started, latencies)
        audience.close()
        writer.sock.close()
    return {
        "streams": count,
        "gateway_mib": round(after / (1 << 20), 1),
        "kib_per_stream": round((after - before) / 1024 / count, 2),
        "gateway_cpu_percent": round(cpu_s / seconds * 100, 2),
        "one_record_to_all_ms": round(max(latencies), 1),
    }


# --- the comparison ---------------------------------------------------------------------------------------


def compare(systems: list[System], rounds: int, share: float, pour_s: float) -> tuple[list[Row], list[Aim]]:
    rows: list[Row] = []
    aims: list[Aim] = []
    for watchers in WATCHERS:
        records = max(5, int(_RECORDS[watchers] * share))
        found: dict[str, list[Measured]] = {system.name: [] for system in systems}
        for number in range(rounds + 1):
            for system in systems:
                measured = system.measure(watchers, records if number else 5, pour_s if number else 0.1)
                if number:
                    found[system.name].append(measured)
        for system in systems:
            rows.append(_row(system.name, watchers, found[system.name]))
            _show(rows[-1])
        if "Redis XREAD" in found and watchers > 1:
            ratio = median(
                _p50(own) / _p50(rival)
                for own, rival in zip(found["topicsd"], found["Redis XREAD"], strict=True)
            )
            aims.append(Aim(f"p50 of topicsd / Redis, {watchers} watchers", round(ratio, 2), 1.5))
    return rows, aims


def _p50(measured: Measured) -> float:
    return percentiles(measured.latencies_ms)["p50"]


def _row(name: str, watchers: int, runs: list[Measured]) -> Row:
    medians = [_p50(run) for run in runs]
    points = percentiles(ms for run in runs for ms in run.latencies_ms)
    return {
        "watchers": watchers,
        "server": name,
        "p50_ms": round(median(medians), 2),
        "p50_spread_ms": [min(medians), max(medians)],
        "p90_ms": points["p90"],
        "p99_ms": points["p99"],
        "max_ms": points["max"],
        "deliveries_per_s": round(median(run.deliveries_per_s for run in runs)),
        "server_cpu_us": round(median(run.server_cpu_us for run in runs), 1),
    }


def _show(row: Row) -> None:
    print(
        f"  {row['watchers']:>4} watchers  {row['server']:12} p50 {row['p50_ms']:.2f} ms   p99 {row['p99_ms']:.2f} ms"
        f"   {row['deliveries_per_s']:>9,} deliveries/s",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m perf.fanout", description=__doc__)
    parser.add_argument("--short", action="store_true", help="about a minute; not saved")
    parser.add_argument("--dir", help="a directory on the file system to measure; default: the temporary one")
    options = parser.parse_args()
    rounds, share, pour_s = (2, 0.2, 0.5) if options.short else (5, 1.0, 2.0)
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
        rows, aims = compare(systems, rounds, share, pour_s)
    with scratch(options.dir) as directory:
        quiet = idle(directory, 1000 if options.short else _IDLE_STREAMS)
    print_table(f"Write to deliver: records of 100 bytes, medians of {rounds} rounds in turns", rows)
    print_table("Idle streams", [quiet])
    print_table("Aims", [aim.row() for aim in aims])
    document = {
        "machine": found,
        "rounds": rounds,
        "rows": rows,
        "idle": quiet,
        "aims": [aim.row() for aim in aims],
    }
    if options.short:
        print("short run: not saved")
    else:
        print(f"saved as perf/results/{save('fanout', document).name}")


if __name__ == "__main__":
    main()
