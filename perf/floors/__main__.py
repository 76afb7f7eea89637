"""`python -m perf.floors`: what the shape of topicsd allows at best, next to Redis on the same work, in one run.

topicsd is Python behind HTTP, a gateway process that hands requests to a worker process over a Unix socket. For each
row of perf.compare whose aim may be out of reach, the least program of that shape is measured in turns with Redis, on
the same machine and under the same load generators, which take their share of the cores. No server of this shape gets
closer to Redis than its floor does here. The floors parse nothing, check nothing and keep no promise.
"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import ExitStack
from statistics import median

from perf.compare.contest import Contest, Outcome, Sample, hold
from perf.floors.rows import CAREFUL_REDIS, REDIS, Arena
from perf.report import RESULTS, Row, machine, print_machine, print_table, save
from perf.servers import need
from perf.shard_bench import scratch


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _aims() -> dict[str, float]:
    """Of perf.compare, as it was last saved; by row."""
    path = RESULTS / "compare.json"
    rows = json.loads(path.read_text())["rows"] if path.exists() else []
    return {row["work"]: row["aim"] for row in rows if row["aim"] is not None}


def _row(outcome: Outcome, aim: float | None) -> Row:
    """As it is saved."""
    contest = outcome.contest
    rival = CAREFUL_REDIS if CAREFUL_REDIS in contest.systems else REDIS
    return {
        "work": contest.name,
        "unit": contest.unit,
        "lower_is_better": contest.lower_is_better,
        "note": contest.note,
        "rival": rival,
        "aim": aim,
        "systems": {
            name: _summary(contest, runs, outcome.samples[rival], None if name.startswith("Redis") else aim)
            for name, runs in outcome.samples.items()
        },
    }


def _summary(contest: Contest, runs: list[Sample], rivals: list[Sample], aim: float | None) -> Row:
    values = [run.value for run in runs]
    ratios = [own.value / rival.value for own, rival in zip(runs, rivals, strict=True)]
    row: Row = {"value": _short(median(values)), "spread": [_short(min(values)), _short(max(values))]}
    for point in runs[0].latency_ms:
        row[f"{point}_ms"] = round(median(run.latency_ms[point] for run in runs), 3)
    kinds = runs[0].cpu_us
    row["cpu_us_per_request"] = {
        kind: round(median(run.cpu_us.get(kind, 0.0) for run in runs), 1) for kind in kinds
    }
    if runs is not rivals:
        row["ratio"] = round(median(ratios), 3)
        row["ratio_spread"] = [round(min(ratios), 3), round(max(ratios), 3)]
        if aim is not None:
            row["reaches_aim"] = row["ratio"] <= aim if contest.lower_is_better else row["ratio"] >= aim
    return row


def _short(value: float) -> float:
    return round(value) if value >= 1000 else round(value, 4)


def _show(row: Row) -> list[Row]:
    """One line per system, for people."""
    sign = "≤" if row["lower_is_better"] else "≥"
    lines: list[Row] = []
    for name, found in row["systems"].items():
        reaches = found.get("reaches_aim")
        cpu = found["cpu_us_per_request"]
        lines.append(
            {
                "work": "" if lines else row["work"],
                "system": name,
                "value": found["value"],
                "unit": row["unit"],
                "spread": found["spread"],
                "p50": found.get("p50_ms"),
                "p99": found.get("p99_ms"),
                "cpu_µs_per_request": " + ".join(f"{kind} {us:g}" for kind, us in cpu.items()),
                "to_Redis": found.get("ratio"),
                "ratio_spread": found.get("ratio_spread"),
                "aim": "" if reaches is None else f"{sign} {row['aim']:g}",
                "reached": {True: "yes", False: "NO", None: ""}[reaches],
            }
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m perf.floors", description=__doc__)
    parser.add_argument("--short", action="store_true", help="at most 90 seconds; not saved")
    parser.add_argument("--dir", help="a directory on the file system to measure; default: the temporary one")
    options = parser.parse_args()
    need(["wrk", "redis-server", "redis-benchmark"])
    rounds, seconds, calls = (3, 1.0, 40) if options.short else (5, 2.0, 150)
    with ExitStack() as stack:
        directory = stack.enter_context(scratch(options.dir))
        found = machine(directory)
        print_machine(found)
        arena = Arena(stack, directory, seconds, calls)
        contests = [arena.append_one(), arena.append_hundred(), arena.append_synced(), arena.read()]
        contests += arena.latencies()
        outcomes = [hold(contest, rounds, _tell) for contest in contests]
        outcomes.append(hold(arena.restart(100_000 if options.short else 1_000_000), rounds, _tell))
    aims = _aims()
    rows = [_row(outcome, aims.get(outcome.contest.name)) for outcome in outcomes]
    print_table(
        f"Floors next to Redis; medians of {rounds} rounds in turns; to Redis: median of the ratios of the rounds",
        [line for row in rows for line in _show(row)],
    )
    print("\n" + "\n".join(f"  {row['work']}: {row['note']}" for row in rows))
    for text in arena.left_out:
        print(f"  left out: {text}")
    if options.short:
        print("\nshort run: not saved")
        return
    document = {
        "machine": found,
        "rounds": rounds,
        "seconds_per_round": seconds,
        "rows": rows,
        "left_out": arena.left_out,
    }
    print(f"\nsaved as perf/results/{save('floors', document).name}")


if __name__ == "__main__":
    main()
