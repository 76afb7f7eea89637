"""`python -m perf.engine`: run the parts, print their tables, save perf/results/engine.json."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable

from perf.engine import append, flatness, memory, profile, read, replay, seal
from perf.report import Aim, Row, machine, print_machine, print_table, save
from perf.shard_bench import touch_memory

_NESTED = ("turn", "floor_turn", "call", "floor", "append", "read_newest", "read_oldest")
_PERCENTILES = ("p50", "p90", "p99", "max")
_SIZES = (10**4, 10**5, 10**6, 10**7)

Part = Callable[[], tuple[list[Row], list[Aim]]]


def main() -> None:
    options = _options()
    if options.profile:
        profile.run(options.dir)
        return
    started = time.perf_counter()
    found = machine(options.dir or tempfile.gettempdir())
    print_machine(found)
    touch_memory(options.dir)
    tables: dict[str, list[Row]] = {}
    aims: list[Aim] = []
    parts = _parts(options.dir, short=options.short)
    for name in options.only or parts:
        rows, wanted = parts[name]()
        tables[name] = rows
        aims += wanted
        print_table(_TITLES[name], [_flat(row) for row in rows])
    print_table("Aims", [aim.row() for aim in aims])
    took_s = round(time.perf_counter() - started)
    print(f"\n{took_s} s in all, {'short' if options.short else 'full'} mode")
    if not options.only and not options.short:
        path = save(
            "engine", {"machine": found, "took_s": took_s, **tables, "aims": [aim.row() for aim in aims]}
        )
        print(f"saved as perf/results/{path.name}")


_TITLES = {
    "append": "Append: one turn = submit + commit. Ratio: floor time / our time. fsync rows include the sync.",
    "read": f"Read of {read.RECORDS} records of 100 B: CPU time per call. Floor: one sendfile of as many bytes.",
    "replay": "Replay of a log without a snapshot",
    "seal": "One sealing pass: processor time in its thread, and between turns",
    "memory": "Resident memory",
    "flatness": "Cost per call by size of the topic (batch 100), and time to ready behind a snapshot",
}


def _parts(parent: str | None, *, short: bool) -> dict[str, Part]:
    rounds = 5 if short else 9
    sizes = _SIZES[:-1] if short else _SIZES
    return {
        "append": lambda: append.run(parent, rounds),
        "read": lambda: read.run(parent, rounds),
        "replay": lambda: (replay.run(parent, 200_000 if short else 1_000_000), []),
        "seal": lambda: (seal.run(parent, 100_000 if short else 300_000), []),
        "memory": lambda: memory.run(parent, short=short),
        "flatness": lambda: flatness.run(parent, 2 * rounds, sizes),
    }


def _flat(row: Row) -> Row:
    """For the screen: percentiles of our calls beside the rest, nothing nested."""
    shown = {name: value for name, value in row.items() if name not in _NESTED}
    calls = row.get("turn") or row.get("call") or {}
    return shown | {name: calls[name] for name in _PERCENTILES if name in calls}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m perf.engine", description=__doc__)
    parser.add_argument("--short", action="store_true", help="less of everything, in a minute; saves nothing")
    parser.add_argument("--only", action="append", choices=tuple(_TITLES), help="this part (may be repeated)")
    parser.add_argument("--profile", action="store_true", help="where the time of appends and reads goes")
    parser.add_argument("--dir", help="a directory on the file system to measure; default: the temporary one")
    return parser.parse_args()
