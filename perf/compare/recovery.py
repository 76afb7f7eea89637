"""Stores of many records: how much memory they take, and how long a killed server needs until it serves again."""

from __future__ import annotations

import subprocess
import time

from perf.compare.contest import Contest, Sample
from perf.compare.generators import PAYLOAD
from perf.queue_clients import http_request
from perf.servers import Server, connect
from perf.shard_bench import write_body

_TOPICS = 8
_BATCH = 1000
_SETTLE_S = 3.0  # as long as any of them syncs in the background


def fill_ours(server: Server, records: int) -> None:
    body = write_body(_BATCH, len(PAYLOAD))
    with connect(server.port) as sock:
        for number in range(records // _BATCH):
            sock.sendall(http_request(f"/v0/topics/kept-{number % _TOPICS}?return_seqs=false", body))
            told = b""
            while not told.endswith(b"}"):
                told += sock.recv(1 << 16)
            if not told.startswith(b"HTTP/1.1 20"):
                raise SystemExit(f"a write failed: {told!r}")
    time.sleep(_SETTLE_S)


def fill_redis(server: Server, records: int) -> None:
    command = ["XADD", "kept-__rand_int__", "*", "d", PAYLOAD.decode()]
    options = ["-p", str(server.port), "-c", "8", "-P", "100", "-r", str(_TOPICS), "-n", str(records), "-q"]
    subprocess.run(["redis-benchmark", *options, *command], check=True, stdout=subprocess.DEVNULL)
    time.sleep(_SETTLE_S)


def _restart(server: Server) -> Sample:
    server.kill()
    return Sample(server.start_again() * 1000)


def contests(ours: Server, redis: Server, records: int) -> list[Contest]:
    """Both servers hold so many records now."""
    millions = f"{records / 1e6:g} M records"
    rss = {"topicsd": ours.rss_bytes(), "Redis everysec": redis.rss_bytes()}
    memory = Contest(
        f"memory with {millions} of 100 bytes",
        "bytes",
        {name: lambda name=name: Sample(rss[name]) for name in rss},  # type: ignore[misc]
        aim=0.1 if records >= 10_000_000 else None,
        lower_is_better=True,
        note="RSS of all processes, added up",
        rounds=1,
    )
    ready = Contest(
        f"ready again after SIGKILL, {millions}",
        "ms",
        {"topicsd": lambda: _restart(ours), "Redis everysec": lambda: _restart(redis)},
        aim=0.5,
        lower_is_better=True,
        note="from the start of the process until it serves",
        rounds=3,
    )
    return [memory, ready]
