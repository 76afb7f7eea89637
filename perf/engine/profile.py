"""Where the time of a call goes, by function. The profiler slows Python code down more than C code: look at the
order, not at the times."""

from __future__ import annotations

import cProfile
import pstats
from collections.abc import Callable

from perf.shard_bench import BenchShard, bench_shard, write_bodies
from shared.wire import Op

_TOPIC = "orders"
_CALLS = 3000
_LINES = 22


def run(parent: str | None) -> None:
    with bench_shard(parent, sealing=False) as shard:
        for batch in (1, 100):
            bodies = write_bodies(batch, 100)
            shard.fill(f"{_TOPIC}-{batch}", bodies, 3000, per_turn=1)
            _show(f"append, batch {batch}", _appends(shard, f"{_TOPIC}-{batch}", bodies))
            body = b'{"from_seq":0,"limit":1000}'
            _show(f"read of 1000, batch {batch}", _reads(shard, f"{_TOPIC}-{batch}", body))


def _appends(shard: BenchShard, topic: str, bodies: list[bytes]) -> Callable[[], None]:
    turns = [[shard.request(Op.APPEND, topic, bodies[at % len(bodies)])] for at in range(_CALLS)]

    def calls() -> None:
        shard.reserve_seqs(topic)
        for turn in turns:
            shard.turn(turn)

    return calls


def _reads(shard: BenchShard, topic: str, body: bytes) -> Callable[[], None]:
    def calls() -> None:
        for _ in range(_CALLS // 10):
            shard.turn([shard.request(Op.READ, topic, body)])

    return calls


def _show(title: str, calls: Callable[[], None]) -> None:
    print(f"\n=== {title}")
    profile = cProfile.Profile()
    profile.runcall(calls)
    pstats.Stats(profile).strip_dirs().sort_stats("tottime").print_stats(_LINES)
