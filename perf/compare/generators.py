"""Load on each system: wrk, redis-benchmark, and for NATS a generator of our own, as Debian packages none.

Ours is one Python process over raw sockets; at high rates it, not NATS, may be the limit. Rows say so.
"""

from __future__ import annotations

import csv
import json
import select
import socket
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

from perf.compare.contest import Sample
from perf.queue_clients import nats_publish
from perf.report import percentiles
from perf.servers import Server, connect

PAYLOAD = b"x" * 100
_WRK = Path(__file__).parents[1] / "wrk.lua"
_WRK_TOPICS = Path(__file__).parents[1] / "wrk_topics.lua"
NATS_STREAM, NATS_SUBJECT = "COMPARE", "compare"


def wrk(
    server: Server,
    path: str,
    body: Path | None,
    connections: int,
    seconds: float,
    records: int,
    topics: int = 0,
    requests: int = 0,
    behind: str = "",
) -> Sample:
    """Closed-loop HTTP; `records` per request. With `topics`, a number of one of them and `behind` follow the path,
    and at least so many different `requests` are prepared."""
    sent = [str(body)] if body else []
    if topics:
        script = [str(_WRK_TOPICS), server.url(path), "--", str(topics), str(requests), behind, *sent]
    else:
        script = [str(_WRK), server.url(path), "--", "POST" if body else "GET", *sent]
    cpu_at = server.total_cpu_s()
    done = subprocess.run(
        ["wrk", "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s", "-s", *script],
        check=True,
        capture_output=True,
        text=True,
    )
    cpu_s = server.total_cpu_s() - cpu_at
    line = next(line for line in done.stdout.splitlines() if line.startswith("JSON "))
    found = json.loads(line.removeprefix("JSON "))
    if found["failed"]:
        raise SystemExit(f"requests failed: {done.stdout}")
    total = found["requests"] * records
    return Sample(
        total / found["duration_us"] * 1e6,
        {point: found[point] / 1000 for point in ("p50", "p90", "p99")},
        cpu_s / total * 1e6,
        server.rss_bytes(),
    )


class RedisBenchmark:
    """redis-benchmark counts requests, not seconds: the number follows from the rate of the last round."""

    def __init__(
        self, server: Server, command: list[str], connections: int, seconds: float, records: int = 1, pipeline: int = 1,
        topics: int = 0,
    ) -> None:  # fmt: skip
        self._server = server
        self._command = command
        self._records = records
        self._seconds = seconds
        self._options = [
            "-c",
            str(connections),
            "-P",
            str(pipeline),
            *(["-r", str(topics)] if topics else []),
        ]
        self._per_s = 20_000.0 / records

    def __call__(self) -> Sample:
        count = max(200, int(self._per_s * self._seconds))
        server = self._server
        cpu_at = server.total_cpu_s()
        done = subprocess.run(
            [
                "redis-benchmark",
                "-p",
                str(server.port),
                "-n",
                str(count),
                "--csv",
                *self._options,
                *self._command,
            ],
            check=True,
            capture_output=True,
            text=True,
        )
        cpu_s = server.total_cpu_s() - cpu_at
        rows = [row for row in csv.reader(done.stdout.splitlines()) if len(row) == 8]
        found = dict(zip(rows[0], rows[-1], strict=True))
        self._per_s = float(found["rps"])
        total = count * self._records
        return Sample(
            self._per_s * self._records,
            {
                "p50": float(found["p50_latency_ms"]),
                "p90": float(found["p95_latency_ms"]),  # it tells the 95th, not the 90th
                "p99": float(found["p99_latency_ms"]),
            },
            cpu_s / total * 1e6,
            server.rss_bytes(),
        )


def nats_publishes(server: Server, connections: int, batch: int, seconds: float) -> Sample:
    """Confirmed publishes, `batch` under way on each connection."""
    with ExitStack() as stack:
        poller = select.epoll()
        stack.callback(poller.close)
        clients: dict[int, _Publisher] = {}
        for number in range(connections):
            client = _Publisher(stack.enter_context(connect(server.port)), b"_INBOX.c%d" % number, batch)
            clients[client.sock.fileno()] = client
            poller.register(client.sock.fileno(), select.EPOLLIN)
        cpu_at = server.total_cpu_s()
        started = time.perf_counter()
        latencies: list[float] = []
        for client in clients.values():
            client.send()
        while (now := time.perf_counter()) - started < seconds:
            for fd, _ in poller.poll(0.1):
                clients[fd].receive(latencies)
        done = len(latencies) * batch
        found = percentiles(latencies)
        return Sample(
            done / (now - started),
            {point: found[point] for point in ("p50", "p90", "p99")},
            (server.total_cpu_s() - cpu_at) / done * 1e6,
            server.rss_bytes(),
        )


class _Publisher:
    def __init__(self, sock: socket.socket, inbox: bytes, batch: int) -> None:
        self.sock = sock
        self._request = nats_publish(NATS_SUBJECT.encode(), inbox, PAYLOAD) * batch
        self._batch = batch
        self._answers = 0
        self._rest = b""
        self._sent_at = 0.0
        sock.sendall(b'CONNECT {"verbose":false}\r\nSUB %b 1\r\nPING\r\n' % inbox)
        told = b""
        while b"PONG\r\n" not in told:
            told += sock.recv(65536)

    def send(self) -> None:
        self._sent_at = time.perf_counter()
        self.sock.sendall(self._request)

    def receive(self, latencies: list[float]) -> None:
        data = self._rest + self.sock.recv(1 << 16)
        whole, _, self._rest = data.rpartition(b"\r\n")
        if b'"error"' in whole:
            raise SystemExit(f"NATS refused a publish: {whole[-300:]!r}")
        self._answers += whole.count(b'"seq":')
        if self._answers >= self._batch:
            self._answers -= self._batch
            latencies.append((time.perf_counter() - self._sent_at) * 1000)
            self.send()
