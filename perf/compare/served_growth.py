"""Does a request cost the whole server more with more topics? Gateway, link and worker, asked over HTTP by wrk.

`growth` measures the engine alone, where a call is a few microseconds and a cache miss shows. This is what users pay:
CPU time of all processes per request, with 64 connections, each request for a topic chosen at random, and of as many
different records for few topics as for many: with one record over and over, few topics would find the load generator's
bytes in every cache, too. Reads come first, while every topic holds one record.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from perf.compare.generators import wrk
from perf.queue_clients import http_request
from perf.report import Aim, Row
from perf.servers import Server, connect, topicsd
from perf.shard_bench import scratch, write_body

_CONNECTIONS = 64
_PIPELINED = 200
_TOPIC = "/v0/topics/t"
_REFUSAL = re.compile(rb"HTTP/1\.1 [^2]")
_READ = "/records?from_seq=0&limit=10"


def run(parent: str | None, rounds: int, seconds: float, sizes: Sequence[int]) -> tuple[list[Row], list[Aim]]:
    costs: dict[str, list[list[float]]] = {}
    with ExitStack() as stack:
        directory = Path(stack.enter_context(scratch(parent)))
        body = directory / "body"
        body.write_bytes(write_body(1, 100))
        servers = {}
        for size in sizes:
            (directory / str(size)).mkdir()
            servers[size] = stack.enter_context(topicsd(str(directory / str(size))))
            _fill(servers[size], size, body.read_bytes())
        for name, sent, behind in (("read", None, _READ), ("append", body, "")):
            found: list[list[float]] = [[] for _ in sizes]
            for number in range(rounds + 1):
                for place, (size, server) in enumerate(servers.items()):
                    sample = wrk(server, _TOPIC, sent, _CONNECTIONS, seconds, 1, size, max(sizes), behind)
                    assert sample.cpu_s_per_million is not None
                    if number:  # the first round warms up
                        found[place].append(sample.cpu_s_per_million)
            costs[name] = found
    rows: list[Row] = [
        {"topics": size, **{f"{name}_us": round(median(found[place]), 2) for name, found in costs.items()}}
        for place, size in enumerate(sizes)
    ]
    aims = []
    for name in ("append", "read"):
        # To the first size within each round, as the machine drifts. The dearest of each round to its cheapest would
        # be above 1 for nothing but noise.
        ratios = [
            median(cost / first for cost, first in zip(found, costs[name][0], strict=True))
            for found in costs[name]
        ]
        growth = max(ratios) / min(ratios)
        aims.append(Aim(f"{name}, whole server: dearest number of topics / cheapest", round(growth, 3), 1.2))
    return rows, aims


def _fill(server: Server, size: int, body: bytes) -> None:
    """One record into each topic."""
    with connect(server.port) as sock:
        for start in range(1, size + 1, _PIPELINED):
            numbers = range(start, min(size + 1, start + _PIPELINED))
            sock.sendall(b"".join(http_request(f"{_TOPIC}{number}", body) for number in numbers))
            _await_answers(sock, len(numbers))


def _await_answers(sock: socket.socket, count: int) -> None:
    told = b""
    while told.count(b"HTTP/1.1 20") < count or not told.endswith(b"}}"):
        data = sock.recv(1 << 20)
        told += data
        if not data or _REFUSAL.search(told) is not None:
            raise SystemExit(f"a topic could not be filled: {told[-300:]!r}")
