"""How a bench measures, and how it tells: interleaved rounds, percentiles, the machine, tables, result files.

Machines drift, and neighbours come and go. So a floor and the thing it is compared with are measured in turns,
and compared round by round: `Case` is one of them, `interleave` runs them, `compare` takes the median of the
per-round ratios. CPU time is kept beside wall time, because a busy neighbour adds to the second only.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from ops.compiled.build import up_to_date

RESULTS = Path(__file__).parent / "results"
_ROOT = Path(__file__).parents[1]

Row = dict[str, Any]


# --- measuring --------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Round:
    """Some calls of one case, one after another."""

    wall_us: list[float]  # per call
    cpu_us: float  # of the calling thread, per call

    @property
    def median_us(self) -> float:
        """Of the wall times: a call in which a neighbour got the CPU does not count."""
        return median(self.wall_us)


Case = Callable[[], Round]


def time_calls(
    function: Callable[[Any], object],
    arguments: Sequence[Any],
    *,
    prepare: Callable[[Any], object] | None = None,
) -> Round:
    """Call `function` with each of `arguments`, timing each call; `prepare` runs before each, off the clock."""
    if prepare is not None:
        return together([_prepared(function, argument, prepare) for argument in arguments])
    clock = time.perf_counter_ns
    walls: list[int] = []
    cpu_at = time.thread_time_ns()
    for argument in arguments:
        started = clock()
        function(argument)
        walls.append(clock() - started)
    cpu = time.thread_time_ns() - cpu_at
    own_wall, own_cpu = _watch_cost_ns()
    return Round(
        [max(1.0, ns - own_wall) / 1000 for ns in walls], max(1.0, cpu / len(walls) - own_cpu) / 1000
    )


def _prepared(function: Callable[[Any], object], argument: Any, prepare: Callable[[Any], object]) -> Round:
    prepare(argument)
    return time_calls(function, (argument,))


def together(rounds: Sequence[Round]) -> Round:
    """Several stretches of calls as one round."""
    calls = sum(len(each.wall_us) for each in rounds)
    return Round(
        [us for each in rounds for us in each.wall_us],
        sum(each.cpu_us * len(each.wall_us) for each in rounds) / calls,
    )


_watch_cost: list[tuple[float, float]] = []


def _watch_cost_ns() -> tuple[float, float]:
    """What timing an empty call takes, wall and CPU: taken off every measurement."""
    if not _watch_cost:
        _watch_cost.append((0.0, 0.0))
        costs = [time_calls(_nothing, [None] * 2000) for _ in range(5)]
        wall = median(us for each in costs for us in each.wall_us) * 1000
        _watch_cost[0] = (wall, median(each.cpu_us for each in costs) * 1000)
    return _watch_cost[0]


def _nothing(_: object) -> None:
    return None


def interleave(cases: Mapping[str, Case], rounds: int) -> dict[str, list[Round]]:
    """Every case once per round, in turns, after one round that does not count."""
    found: dict[str, list[Round]] = {name: [] for name in cases}
    for number in range(rounds + 1):
        for name, case in cases.items():
            result = case()
            if number:
                found[name].append(result)
    return found


def percentiles(values: Iterable[float]) -> dict[str, float]:
    ordered = sorted(values)
    last = len(ordered) - 1
    return {
        name: round(ordered[min(last, int(len(ordered) * share))], 2)
        for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("max", 1.0))
    }


def summary(rounds: Sequence[Round]) -> Row:
    """µs per call: the median of the rounds' medians, how far those lie apart, and percentiles of all calls."""
    medians = [each.median_us for each in rounds]
    return {
        "us": round(median(medians), 2),
        "spread_us": [round(min(medians), 2), round(max(medians), 2)],
        "cpu_us": round(median(each.cpu_us for each in rounds), 2),
        **percentiles(us for each in rounds for us in each.wall_us),
        "calls": sum(len(each.wall_us) for each in rounds),
    }


def compare(floor: Sequence[Round], ours: Sequence[Round]) -> Row:
    """floor time / our time: 1 is as fast as the floor, 0.5 takes twice as long."""
    pairs = list(zip(floor, ours, strict=True))
    walls = [low.median_us / own.median_us for low, own in pairs]
    return {
        "ratio": round(median(walls), 3),
        "ratio_spread": [round(min(walls), 3), round(max(walls), 3)],
        "cpu_ratio": round(median(low.cpu_us / own.cpu_us for low, own in pairs), 3),
    }


# --- aims -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Aim:
    """A value that the project has set itself, beside the one measured."""

    text: str
    value: float
    bound: float
    at_least: bool = False

    @property
    def met(self) -> bool:
        return self.value >= self.bound if self.at_least else self.value <= self.bound

    def row(self) -> Row:
        sign = "≥" if self.at_least else "≤"
        shown = f"{self.value:.4g}"
        return {
            "aim": self.text,
            "wanted": f"{sign} {self.bound:g}",
            "found": shown,
            "met": "yes" if self.met else "NO",
        }


# --- telling ----------------------------------------------------------------------------------------------


def machine(directory: str | os.PathLike[str] = ".") -> Row:
    """What the numbers depend on. No host name: results are committed."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "compiled": up_to_date(),
        "file_system": _file_system(os.path.abspath(directory)),
        "commit": _commit(),
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "load_at_start": [round(load, 2) for load in os.getloadavg()],
    }


def _cpu_model() -> str:
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def _file_system(path: str) -> str:
    best, kind = "", "unknown"
    with open("/proc/mounts", encoding="utf-8") as file:
        for line in file:
            _, at, found, *_ = line.split()
            if os.path.commonpath((at, path)) == at and len(at) >= len(best):
                best, kind = at, found
    return kind


def _commit() -> str:
    def git(*arguments: str) -> str:
        command = ["git", "--no-optional-locks", *arguments]
        return subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "--short", "HEAD") + (" with changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def print_machine(found: Row) -> None:
    for name, value in found.items():
        print(f"  {name.replace('_', ' '):14} {value}")


def print_table(title: str, rows: Sequence[Row], columns: Sequence[str] | None = None) -> None:
    """Rows as text; `columns` chooses and orders, names joined with `_` show as words."""
    print(f"\n{title}")
    if not rows:
        return
    names = list(columns or dict.fromkeys(name for row in rows for name in row))
    cells = [[_cell(row.get(name)) for name in names] for row in rows]
    heads = [name.replace("_", " ") for name in names]
    widths = [max(len(head), *(len(line[at]) for line in cells)) for at, head in enumerate(heads)]
    left = [all(isinstance(row.get(name, ""), str) for row in rows) for name in names]
    for line in (heads, ["-" * width for width in widths], *cells):
        padded = [
            cell.ljust(width) if text else cell.rjust(width)
            for cell, width, text in zip(line, widths, left, strict=True)
        ]
        print("  " + "  ".join(padded).rstrip())


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.3g}" if abs(value) < 100 else f"{value:,.0f}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list):
        return "…".join(map(_cell, value))
    return str(value)


def save(name: str, document: Row) -> Path:
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    return path
