"""The rows: which floor stands beside which work of Redis. Names and aims are those of perf.compare."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from perf.compare import latency
from perf.compare.contest import Contest, Sample
from perf.compare.generators import PAYLOAD, RedisBenchmark, wrk
from perf.compare.recovery import fill_redis
from perf.servers import Server, free_port, listens, need, redis, running, serves
from perf.shard_bench import write_body

REDIS, CAREFUL_REDIS = "Redis everysec", "Redis always"
_READ, _READ_BYTES = 1000, 143_000
_NGINX = """
daemon off; worker_processes 1; pid {directory}/pid; error_log /dev/null; {user}
events {{ worker_connections 1024; }}
http {{
  access_log off; sendfile on; tcp_nopush on; keepalive_requests 1000000000; default_type application/json;
  client_body_temp_path {directory}/body; proxy_temp_path {directory}/proxy; fastcgi_temp_path {directory}/fastcgi;
  uwsgi_temp_path {directory}/uwsgi; scgi_temp_path {directory}/scgi; open_file_cache max=10;
  server {{ listen 127.0.0.1:{port}; root {directory}; }}
}}
"""

Work = Callable[[], Sample]


class Arena:
    """Redis, and the floors as they are needed; all of them stay up until the end."""

    def __init__(self, stack: ExitStack, directory: str, seconds: float, calls: int) -> None:
        self._stack = stack
        self._directory = Path(directory)
        self._seconds = seconds
        self._calls = calls
        self.left_out: list[str] = []
        self._redis = stack.enter_context(redis(self._own("redis")))
        self._one = self._body(1)
        self._hundred = self._body(100)

    def _own(self, name: str) -> str:
        path = self._directory / name
        path.mkdir()
        return str(path)

    def _body(self, records: int) -> Path:
        path = self._directory / f"body-{records}"
        path.write_bytes(write_body(records, len(PAYLOAD)))
        return path

    def _gateway(self, *options: str) -> Server:
        port = free_port()
        command = [sys.executable, "-m", "perf.floors.gateway", str(port), *options]
        return self._stack.enter_context(running("floor", command, port, listens))

    def _xadd(self, server: Server, connections: int, pipeline: int = 1) -> Work:
        command = ["XADD", "stream", "*", "d", PAYLOAD.decode()]
        load = RedisBenchmark(server, command, connections, self._seconds, pipeline=pipeline)
        return _with_cpu(server, load, pipeline)

    def _wrk(self, server: Server, path: str, body: Path | None, connections: int, records: int) -> Work:
        return _with_cpu(
            server, lambda: wrk(server, path, body, connections, self._seconds, records), records
        )

    # --- rows ---------------------------------------------------------------------------------------------

    def append_one(self) -> Contest:
        echo = RedisBenchmark(self._redis, ["ECHO", PAYLOAD.decode()], 64, self._seconds)
        return Contest(
            "append 1 per request, 64 connections",
            "records/s",
            {
                "one process": self._wrk(self._gateway(), "/v0/topics/one", self._one, 64, 1),
                "two processes": self._wrk(self._gateway("--behind"), "/v0/topics/one", self._one, 64, 1),
                REDIS: self._xadd(self._redis, 64),
                "Redis, ECHO": _with_cpu(self._redis, echo, 1),
            },
            note="the floors keep nothing; ECHO is Redis without the work",
        )

    def append_hundred(self) -> Contest:
        log = str(self._directory / "log")
        floor = self._gateway("--records", "100", "--behind", "--log", log, "--decode")
        return Contest(
            "append 100 per request, 16 connections",
            "records/s",
            {
                "two processes, log": self._wrk(floor, "/v0/topics/hundred", self._hundred, 16, 100),
                REDIS: self._xadd(self._redis, 16, pipeline=100),
            },
            note="log: decode the body, one checksum, one write per turn; CPU of Redis is that of 100 commands",
        )

    def append_synced(self) -> Contest:
        systems = {}
        for how in ("inline", "thread"):
            floor = self._gateway("--behind", "--log", str(self._directory / f"log-{how}"), "--sync", how)
            name = f"two processes, sync {'in a thread' if how == 'thread' else how}"
            systems[name] = self._wrk(floor, "/v0/topics/synced", self._one, 64, 1)
        rival = self._stack.enter_context(redis(self._own("redis-always"), appendfsync="always"))
        systems[CAREFUL_REDIS] = self._xadd(rival, 64)
        return Contest(
            "append 1, acked after sync, 64 connections",
            "records/s",
            systems,
            note="one write and one fdatasync per turn; the better of the two floors counts",
        )

    def read(self) -> Contest:
        file = Path(self._own("file")) / "answer"
        file.write_bytes(b"x" * _READ_BYTES)
        port = free_port()
        command = [sys.executable, "-m", "perf.floors.file_server", str(port), str(file)]
        floor = self._stack.enter_context(running("file server", command, port, listens))
        systems = {"one process, sendfile": self._wrk(floor, "/answer", None, 16, _READ)}
        nginx = self._nginx(file.parent)
        if nginx is not None:
            systems["nginx"] = self._wrk(nginx, "/answer", None, 16, _READ)
        fill = ["XADD", "read", "*", "d", PAYLOAD.decode()]
        RedisBenchmark(self._redis, fill, 1, _READ / 20_000)()
        command = ["XRANGE", "read", "-", "+", "COUNT", str(_READ)]
        load = RedisBenchmark(self._redis, command, 16, self._seconds, records=_READ)
        systems[REDIS] = _with_cpu(self._redis, load, _READ)
        return Contest(
            f"read {_READ} per request, 16 connections",
            "records/s",
            systems,
            note=f"a file of {_READ_BYTES // 1000} kB, as large as the answer; nginx: what any server reaches "
            "under this load generator",
        )

    def _nginx(self, directory: Path) -> Server | None:
        try:
            need(["nginx"])
        except SystemExit as why:
            self.left_out.append(str(why))
            return None
        port = free_port()
        config = directory / "nginx.conf"
        user = "user root;" if os.getuid() == 0 else ""
        config.write_text(_NGINX.format(directory=directory, port=port, user=user))
        command = ["nginx", "-e", "/dev/null", "-c", str(config)]
        return self._stack.enter_context(running("nginx", command, port, serves("/answer")))

    def latencies(self) -> list[Contest]:
        one, two = self._gateway(), self._gateway("--behind")
        logging = self._gateway("--behind", "--log", str(self._directory / "log-alone"), "--decode")
        rival, calls, many = self._redis, self._calls, 20 * self._calls
        busy = [
            _with_cpu(server, lambda server=server: latency.append_ours(server, many, 0.0), calls=many)  # type: ignore[misc]
            for server in (one, two)
        ]
        busy_rival = _with_cpu(rival, lambda: latency.append_redis(rival, many, 0.0), calls=many)
        one_tail, two_tail = self._gateway("--hold", "2"), self._gateway("--hold", "2", "--behind")
        tail = "/v0/topics/tail"
        return [
            Contest(
                "one append on an idle server, median",
                "ms",
                {
                    "one process": lambda: latency.append_ours(one, calls),
                    "two processes": lambda: latency.append_ours(two, calls),
                    "two processes, log": lambda: latency.append_ours(logging, calls),
                    REDIS: lambda: latency.append_redis(rival, calls),
                },
                lower_is_better=True,
                note=f"a pause of {latency.PAUSE_S * 1000:g} ms before each",
            ),
            Contest(
                "one append after another, median",
                "ms",
                {"one process": busy[0], "two processes": busy[1], REDIS: busy_rival},
                lower_is_better=True,
                note="the same without pauses",
            ),
            Contest(
                "write to waiting reader, median",
                "ms",
                {
                    "one process": lambda: latency.tail_http(one_tail, tail, calls),
                    "two processes": lambda: latency.tail_http(two_tail, tail, calls),
                    REDIS: lambda: latency.tail_redis(rival, calls),
                },
                lower_is_better=True,
                note="the floors answer a request when the next one comes; XREAD BLOCK",
            ),
        ]

    def restart(self, records: int) -> Contest:
        rival = self._stack.enter_context(redis(self._own("redis-full")))
        fill_redis(rival, records)
        floors = []
        for _ in range(4):
            port = free_port()
            command = [sys.executable, "-m", "perf.floors.start", str(port)]
            floors.append(self._stack.enter_context(running("start", command, port, serves("/"))))
        return Contest(
            f"ready again after SIGKILL, {records / 1e6:g} M records",
            "ms",
            {
                "python -c pass": _bare_start,
                "one process with libraries": lambda: _restart(floors[:1]),
                "four of them at once": lambda: _restart(floors),
                REDIS: lambda: _restart([rival]),
            },
            lower_is_better=True,
            note="libraries: trio, msgspec, httptools, cbor2, xxhash; topicsd starts four processes",
        )


def _with_cpu(server: Server, work: Work, records: int = 1, *, calls: int = 0) -> Work:
    """Tell what each kind of process spent per request: of so many records, or of so many calls in a round."""

    def run() -> Sample:
        before = server.cpu_s()
        sample = work()
        spent = {kind: seconds - before.get(kind, 0.0) for kind, seconds in server.cpu_s().items()}
        if calls:
            factor = 1e6 / calls
        else:  # seconds per million are µs each
            factor = (sample.cpu_s_per_million or 0.0) * records / (sum(spent.values()) or 1.0)
        return replace(sample, cpu_us={kind: seconds * factor for kind, seconds in spent.items()})

    return run


def _bare_start() -> Sample:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    return Sample((time.perf_counter() - started) * 1000)


def _restart(servers: list[Server]) -> Sample:
    """All of them at once, until the last one answers."""
    for server in servers:
        server.kill()
    started = time.perf_counter()
    with ThreadPoolExecutor(len(servers)) as pool:
        list(pool.map(Server.start_again, servers))
    return Sample((time.perf_counter() - started) * 1000)
