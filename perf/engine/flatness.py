"""Does a call cost the same in a small topic and in a large one? And is a restart as quick?

One shard per size, with the default settings, filled in batches of 100 while sealing, snapshots and trimming run as
a worker would run them (their time is reported apart). Then all sizes are measured in turns.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import cycle, islice

from perf.report import Aim, Round, Row, interleave, summary, time_calls
from perf.shard_bench import BenchShard, bench_shard, write_bodies
from shared.wire import Op

_TOPIC = "orders"
_BATCH = 100
_MAINTAIN_EVERY = 20  # calls
_APPENDS = 10  # per round: few, because they make the small topics larger
_READS = 20
_TAIL_CALLS = 50
_OPENINGS = 5


def run(parent: str | None, rounds: int, sizes: Sequence[int]) -> tuple[list[Row], list[Aim]]:
    bodies = write_bodies(_BATCH, 100)
    with ExitStack() as stack:
        shards = {size: stack.enter_context(bench_shard(parent)) for size in sizes}
        rows = {size: _grow(shard, size, bodies) for size, shard in shards.items()}
        _measure(shards, rows, bodies, rounds)
        _restart(shards, rows, bodies)
    return list(rows.values()), _aims(list(rows.values()))


def _grow(shard: BenchShard, size: int, bodies: Sequence[bytes]) -> Row:
    started = time.perf_counter()
    for _ in range(size // _BATCH // _MAINTAIN_EVERY):
        shard.fill(_TOPIC, bodies, _MAINTAIN_EVERY, per_turn=1)
        shard.maintain()
    total = time.perf_counter() - started
    counters = shard.shard.maintenance.counters
    return {
        "records": size,
        "fill_s": round(total - shard.maintenance_s, 2),
        "maintenance_s": round(shard.maintenance_s, 2),
        "seals": counters.seals,
        "snapshots": counters.snapshots,
    }


def _measure(
    shards: dict[int, BenchShard], rows: dict[int, Row], bodies: Sequence[bytes], rounds: int
) -> None:
    for name, case in (("append", _append), ("read_newest", _read_newest), ("read_oldest", _read_oldest)):
        cases = {str(size): _bound(case, shard, bodies) for size, shard in shards.items()}
        for size, found in interleave(cases, rounds).items():
            measured = summary(found)
            rows[int(size)][f"{name}_us"] = measured["p50"]
            rows[int(size)][f"{name}_cpu_us"] = measured["cpu_us"]
            rows[int(size)][name] = measured


def _bound(case, shard: BenchShard, bodies: Sequence[bytes]):  # type: ignore[no-untyped-def]
    return lambda: case(shard, bodies)


def _append(shard: BenchShard, bodies: Sequence[bytes]) -> Round:
    turns = [[shard.request(Op.APPEND, _TOPIC, body)] for body in islice(cycle(bodies), _APPENDS)]
    shard.engine.sync_now()
    shard.reserve_seqs(_TOPIC)
    found = time_calls(shard.turn, turns)
    shard.maintain()
    return found


def _read_newest(shard: BenchShard, _: Sequence[bytes]) -> Round:
    """The last 1000 records: in the log, at least in part."""
    head = shard.engine.state.catalog.visible[_TOPIC].head
    return _reads(shard, head - 1000)


def _read_oldest(shard: BenchShard, _: Sequence[bytes]) -> Round:
    """Sealed long ago; the blocks are in the cache after the first read."""
    return _reads(shard, 0)


def _reads(shard: BenchShard, from_seq: int) -> Round:
    body = b'{"from_seq":%d,"limit":1000}' % from_seq
    return time_calls(shard.turn, [[shard.request(Op.READ, _TOPIC, body)]] * _READS)


def _restart(shards: dict[int, BenchShard], rows: dict[int, Row], bodies: Sequence[bytes]) -> None:
    """A snapshot, the same small tail behind it for every size, then the process is killed."""
    for size, shard in shards.items():
        shard.snapshot()
        shard.snapshot()
        shard.fill(_TOPIC, bodies, _TAIL_CALLS)
        shard.engine.sync_now()
        times = []
        for _ in range(_OPENINGS):
            shard.reopen()
            times.append(shard.open_s * 1000)
        assert not shard.shard.report.damage, shard.shard.report
        rows[size]["ready_ms"] = round(sorted(times)[len(times) // 2], 2)
        rows[size]["ready_spread_ms"] = [round(min(times), 2), round(max(times), 2)]


def _aims(rows: Sequence[Row]) -> list[Aim]:
    aims = []
    for name in ("append", "read_newest", "read_oldest"):
        costs = [row[f"{name}_us"] for row in rows]
        text = f"{name.replace('_', ' ')}: dearest size / cheapest size"
        aims.append(Aim(text, round(max(costs) / min(costs), 3), 1.2))
    return aims
