"""`python -m perf.http`: the whole server under `wrk`, next to a Quart route on Hypercorn that only reads the body.

Both servers are up all the time and are measured in turns. The load generator shares the machine with them: on two
cores it takes one of them from ours (gateway, worker) and leaves the floor (one process) its own. So requests per
second are compared within this run only, and CPU time per request stands beside them.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from perf.report import Aim, Row, machine, print_machine, print_table, save
from perf.shard_bench import scratch, write_body

_ROOT = Path(__file__).parents[1]
_SCRIPT = Path(__file__).with_name("wrk.lua")
_START_S = 60.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_ROUNDS = 5
_READ_RECORDS = 1000


@dataclass(frozen=True, slots=True)
class Load:
    """What wrk does."""

    name: str
    path: str
    body: bytes | None
    connections: int
    records: int = 1


POST_ONE = Load("POST of 1 record, 64 connections", "/v0/topics/one", write_body(1, 100), 64)
MORE = (
    Load("POST of 1 record, 1 connection", "/v0/topics/alone", write_body(1, 100), 1),
    Load("POST of 100 records, 16 connections", "/v0/topics/hundred", write_body(100, 100), 16, 100),
    Load(
        f"GET of {_READ_RECORDS} records, 16 connections",
        f"/v0/topics/read/records?from_seq=0&limit={_READ_RECORDS}",
        None,
        16,
        _READ_RECORDS,
    ),
)


# --- servers ----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Server:
    process: subprocess.Popen[bytes]
    port: int

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def cpu_s(self) -> dict[str, float]:
        """CPU seconds so far, by kind of process."""
        found: dict[str, float] = {}
        for pid in (self.process.pid, *_children(self.process.pid)):
            kind = _kind(pid)
            if kind is not None:
                found[kind] = found.get(kind, 0.0) + cpu_seconds(pid)
        return found


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        found += map(int, path.read_text().split())
    return found + [below for child in found for below in _children(child)]


def _kind(pid: int) -> str | None:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    for mark, kind in (("gateway", "gateway"), ("shard_worker", "worker"), ("http_floor", "floor")):
        if mark in command:
            return kind
    return "supervisor"


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


@contextmanager
def _running(command: list[str], port: int, ready_path: str) -> Iterator[Server]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
    process = subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=_ROOT,
        env=clean,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    server = Server(process, port)
    try:
        _wait_ready(server, ready_path)
        yield server
    finally:
        process.terminate()
        process.communicate()


def _wait_ready(server: Server, path: str) -> None:
    give_up_at = time.monotonic() + _START_S
    while True:
        try:
            with urllib.request.urlopen(server.url(path), timeout=5) as answer:
                answer.read()
            return
        except urllib.error.HTTPError as err:
            if err.code < 500:
                return  # it answers: that will do for the floor, which has one route
        except OSError:
            pass
        if server.process.poll() is not None or time.monotonic() > give_up_at:
            server.process.kill()
            _, told = server.process.communicate()
            raise SystemExit(f"the server did not start:\n{told.decode()[-4000:]}")
        time.sleep(0.05)


def topicsd(directory: str) -> AbstractContextManager[Server]:
    port = _free_port()
    command = ["topicsd", "serve", "--port", str(port), "--data-dir", f"{directory}/data"]
    return _running(command, port, "/v0/ready")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _send(server: Server, path: str, body: bytes) -> None:
    request = urllib.request.Request(
        server.url(path), body, {"Content-Type": "application/json"}, method="POST"
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        answer.read()


# --- load -------------------------------------------------------------------------------------------------


def _wrk(server: Server, load: Load, seconds: int, directory: str) -> Row:
    arguments = ["GET"]
    if load.body is not None:
        body_file = Path(directory) / "body"
        body_file.write_bytes(load.body)
        arguments = ["POST", str(body_file)]
    connections = ["-t1", f"-c{load.connections}", f"-d{seconds}s"]
    before = server.cpu_s()
    done = subprocess.run(
        ["wrk", *connections, "-s", str(_SCRIPT), server.url(load.path), "--", *arguments],
        check=True,
        capture_output=True,
        text=True,
    )
    after = server.cpu_s()
    line = next(line for line in done.stdout.splitlines() if line.startswith("JSON "))
    found: Row = json.loads(line.removeprefix("JSON "))
    assert not found["failed"], f"{load.name}: {done.stdout}"
    found["per_s"] = found["requests"] / found["duration_us"] * 1e6
    found["cpu_us"] = {
        kind: (seconds - before.get(kind, 0.0)) * 1e6 / found["requests"] for kind, seconds in after.items()
    }
    return found


def _row(load: Load, server: str, runs: list[Row]) -> Row:
    per_s = [run["per_s"] for run in runs]
    kinds = [kind for kind in runs[0]["cpu_us"] if kind != "supervisor"]
    return {
        "load": load.name,
        "server": server,
        "requests_per_s": round(median(per_s)),
        "spread_per_s": [round(min(per_s)), round(max(per_s))],
        "records_per_s": round(median(per_s) * load.records),
        "mb_out_per_s": round(median(run["bytes"] / run["duration_us"] for run in runs), 1),
        **{
            f"{point}_ms": round(median(run[point] for run in runs) / 1000, 3)
            for point in ("p50", "p90", "p99")
        },
        "max_ms": round(max(run["max"] for run in runs) / 1000, 2),
        **{f"{kind}_cpu_us": round(median(run["cpu_us"][kind] for run in runs), 1) for kind in kinds},
    }


def _compare(ours: Server, floor: Server, seconds: int, directory: str) -> tuple[list[Row], Aim]:
    runs: dict[str, list[Row]] = {"floor": [], "ours": []}
    for number in range(_ROUNDS + 1):
        for name, server in (("floor", floor), ("ours", ours)):
            found = _wrk(server, POST_ONE, seconds if number else 1, directory)
            if number:
                runs[name].append(found)
    ratio = median(own["per_s"] / low["per_s"] for own, low in zip(runs["ours"], runs["floor"], strict=True))
    rows = [_row(POST_ONE, "Quart on Hypercorn", runs["floor"]), _row(POST_ONE, "topicsd", runs["ours"])]
    return rows, Aim("requests/s of topicsd / requests/s of the floor", round(ratio, 2), 15, at_least=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m perf.http", description=__doc__)
    parser.add_argument("--seconds", type=int, default=3, help="length of one round")
    parser.add_argument("--dir", help="a directory on the file system to measure; default: the temporary one")
    options = parser.parse_args()
    if shutil.which("wrk") is None:
        raise SystemExit("wrk is not installed. Debian, Ubuntu: sudo apt-get install wrk")
    with ExitStack() as stack:
        directory = stack.enter_context(scratch(options.dir))
        found = machine(directory)
        print_machine(found)
        ours = stack.enter_context(topicsd(directory))
        port = _free_port()
        floor = stack.enter_context(_running(["perf.http_floor", str(port)], port, "/"))
        rows, aim = _compare(ours, floor, options.seconds, directory)
        for _ in range(20):
            _send(ours, "/v0/topics/read", write_body(100, 100))
        for load in MORE:
            runs = [_wrk(ours, load, max(1, options.seconds - 1), directory) for _ in range(_ROUNDS)]
            rows.append(_row(load, "topicsd", runs))
    print_table(f"HTTP, `disk` class, medians of {_ROUNDS} rounds in turns; CPU time is per request", rows)
    print_table("Aims", [aim.row()])
    path = save(
        "http", {"machine": found, "seconds_per_round": options.seconds, "rows": rows, "aims": [aim.row()]}
    )
    print(f"saved as perf/results/{path.name}")


if __name__ == "__main__":
    main()
