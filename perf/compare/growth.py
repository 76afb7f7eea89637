"""Does the cost of a call grow with the number of topics? (With the records of one topic: perf.engine, flatness.)

The calls must do the same work whatever the number of topics. Reads come first, while every topic holds one record: the
appends that follow put several into each of a thousand topics, and hardly a second one into any of a hundred thousand.

Beside them stands a floor, which is no topicsd at all: look a name up in a dictionary of as many, and read 100 bytes
from where it says in a file of as many records. What that costs more with more names is the machine's share: caches,
page tables.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from contextlib import ExitStack

from perf.report import Aim, Round, Row, interleave, summary, time_calls
from perf.shard_bench import BenchShard, bench_shard, scratch, write_bodies
from shared.wire import Op

_CALLS = 200
_FILL_TURN = 500
_FLOOR_BYTES = 256  # about what a record of 100 bytes takes in the log


def run(parent: str | None, rounds: int, sizes: Sequence[int]) -> tuple[list[Row], list[Aim]]:
    bodies = write_bodies(1, 100)
    with ExitStack() as stack:
        shards = {size: stack.enter_context(bench_shard(parent, max_topics="0")) for size in sizes}
        for size, shard in shards.items():
            _create(shard, size, bodies)
        directory = stack.enter_context(scratch(parent))
        floors = {size: _Floor(stack, f"{directory}/{size}", size) for size in sizes}
        rows = [{"topics": size} for size in sizes]
        for name, case in (("read", _read), ("append", _append), ("floor", None)):
            cases = {
                str(size): floors[size].run if case is None else _bound(case, shard, size, bodies)
                for size, shard in shards.items()
            }
            for row, found in zip(rows, interleave(cases, rounds).values(), strict=True):
                row[f"{name}_us"] = summary(found)["us"]
    aims = []
    for name in ("append", "read"):
        costs = [row[f"{name}_us"] for row in rows]
        text = f"{name}: dearest number of topics / cheapest"
        aims.append(Aim(text, round(max(costs) / min(costs), 3), 1.2))
    return rows, aims


def _create(shard: BenchShard, size: int, bodies: Sequence[bytes]) -> None:
    for start in range(0, size, _FILL_TURN):
        names = range(start, min(size, start + _FILL_TURN))
        shard.turn([shard.request(Op.APPEND, f"t{number}", bodies[0]) for number in names])
        shard.settle()
    shard.maintain()


def _bound(case, shard: BenchShard, size: int, bodies: Sequence[bytes]):  # type: ignore[no-untyped-def]
    return lambda: case(shard, size, bodies)


def _append(shard: BenchShard, size: int, bodies: Sequence[bytes]) -> Round:
    shard.engine.sync_now()
    names = [f"t{random.randrange(size)}" for _ in range(_CALLS)]
    for name in set(names):
        shard.reserve_seqs(name)
    found = time_calls(shard.turn, [[shard.request(Op.APPEND, name, bodies[0])] for name in names])
    shard.settle()
    return found


def _read(shard: BenchShard, size: int, _: Sequence[bytes]) -> Round:
    body = b'{"from_seq":0,"limit":10}'
    names = [f"t{random.randrange(size)}" for _ in range(_CALLS)]
    return time_calls(shard.turn, [[shard.request(Op.READ, name, body)] for name in names])


class _Floor:
    def __init__(self, stack: ExitStack, path: str, size: int) -> None:
        self._size = size
        self._places = {f"t{number}": number * _FLOOR_BYTES for number in range(size)}
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT)
        stack.callback(os.close, self._fd)
        os.write(self._fd, b"x" * (size * _FLOOR_BYTES))

    def run(self) -> Round:
        names = [f"t{random.randrange(self._size)}" for _ in range(_CALLS)]
        return time_calls(self._call, names)

    def _call(self, name: str) -> bytes:
        return os.pread(self._fd, 100, self._places[name])
