"""Resident memory of a worker: each case in a process of its own, so that nothing else is counted.

    python -m perf.engine.memory CASE DIRECTORY COUNT

Growth is counted from the point where the topics exist and hold some records, so it is what *more* records cost.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable

from perf.report import Aim, Row
from perf.shard_bench import BenchShard, scratch
from shared.wire import Op

_MANY = 2000
_PER_TURN = 1000


def run(parent: str | None, *, short: bool) -> tuple[list[Row], list[Aim]]:
    batches = 200_000 if short else 400_000
    topics = 20_000 if short else 100_000
    one = _probe(parent, "one", batches)
    many = _probe(parent, "many", batches)
    hundreds = _probe(parent, "hundreds", 2_000_000 if short else 4_000_000)
    small = _probe(parent, "topics", topics)
    total_mb = small["rss_mb"] + small["bytes_each"] * (100_000 - topics) / 1e6
    if short:
        small["memory"] += f"; 100,000 would take {total_mb:.0f} MB"
    aims = [
        Aim("bytes per hot one-record batch, one topic", one["bytes_each"], 64),
        Aim(f"bytes per hot one-record batch, {_MANY} topics", many["bytes_each"], 64),
        Aim("bytes per hot record in batches of 100", hundreds["bytes_each"], 1),
        Aim("100,000 topics of 10 records: MB in all" + (" (extrapolated)" if short else ""), total_mb, 500),
    ]
    return [one, many, hundreds, small], aims


def _probe(parent: str | None, case: str, count: int) -> Row:
    with scratch(parent) as directory:
        command = [sys.executable, "-m", "perf.engine.memory", case, directory, str(count)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    row: Row = json.loads(done.stdout)
    return row


# --- in the process that is measured ----------------------------------------------------------------------


def _one(shard: BenchShard, count: int) -> Row:
    shard.fill("one", [_body(1)], 5000, per_turn=_PER_TURN)
    row = _growth(lambda: shard.fill("one", [_body(1)], count, per_turn=_PER_TURN), count)
    return {"memory": f"{count:,} one-record batches in one topic", **row}


def _many(shard: BenchShard, count: int) -> Row:
    names = [f"topic-{number:06d}" for number in range(_MANY)]
    _append_round(shard, names)
    _append_round(shard, names)
    row = _growth(lambda: [_append_round(shard, names) for _ in range(count // _MANY)], count)
    return {"memory": f"{count:,} one-record batches in {_MANY} topics", **row}


def _hundreds(shard: BenchShard, count: int) -> Row:
    shard.fill("hundreds", [_body(100)], 200)
    row = _growth(lambda: shard.fill("hundreds", [_body(100)], count // 100), count)
    return {"memory": f"{count:,} records in batches of 100", **row}


def _topics(shard: BenchShard, count: int) -> Row:
    names = [f"tenant-{number % 97:02d}.orders.{number:06d}" for number in range(count)]
    row = _growth(lambda: [_append_round(shard, names) for _ in range(10)], count)
    return {"memory": f"{count:,} topics of 10 one-record batches (bytes per topic)", **row}


_CASES: dict[str, Callable[[BenchShard, int], Row]] = {
    "one": _one,
    "many": _many,
    "hundreds": _hundreds,
    "topics": _topics,
}


def _append_round(shard: BenchShard, names: list[str]) -> None:
    """One record to every topic."""
    body = _body(1)
    for at in range(0, len(names), _PER_TURN):
        shard.turn([shard.request(Op.APPEND, name, body) for name in names[at : at + _PER_TURN]])
        shard.settle()
    assert not shard.sink.failed, shard.sink.body


def _body(batch: int) -> bytes:
    return b'{"records":[%b]}' % b",".join([b'{"data":12345678}'] * batch)


def _growth(fill: Callable[[], object], count: int) -> Row:
    before = _rss_bytes()
    fill()
    after = _rss_bytes()
    return {
        "bytes_each": round((after - before) / count, 2),
        "grew_mb": round((after - before) / 1e6, 1),
        "rss_mb": round(after / 1e6, 1),
    }


def _rss_bytes() -> int:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what the allocator keeps for later is not what records cost
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    _, case, directory, count = sys.argv
    print(json.dumps(_CASES[case](BenchShard(f"{directory}/data", sealing=False), int(count))))
