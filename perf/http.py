"""`python -m perf.http`: the whole server under `wrk`, next to a Quart route on Hypercorn that only reads the body.

Both servers are up all the time and are measured in turns. The load generator shares the machine with them: on two
cores it takes one of them from ours (gateway, worker) and leaves the floor (one process) its own. So requests per
second are compared within this run only, and CPU time per request stands beside them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from perf.report import Aim, Row, machine, print_machine, print_table, save
from perf.servers import Server, free_port, need, running, send, serves, topicsd
from perf.shard_bench import scratch, write_body

_SCRIPT = Path(__file__).with_name("wrk.lua")
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
    need(["wrk"])
    with ExitStack() as stack:
        directory = stack.enter_context(scratch(options.dir))
        found = machine(directory)
        print_machine(found)
        ours = stack.enter_context(topicsd(directory))
        port = free_port()
        command = [sys.executable, "-m", "perf.http_floor", str(port)]
        floor = stack.enter_context(running("Quart on Hypercorn", command, port, serves("/")))
        rows, aim = _compare(ours, floor, options.seconds, directory)
        for _ in range(20):
            send(ours, "/v0/topics/read", write_body(100, 100))
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
