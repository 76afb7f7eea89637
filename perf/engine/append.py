"""Appends: `submit` + `commit`, next to the least that any implementation in Python must do with the same bytes.

The floor decodes the body into the same type with the same decoder, hashes the frame (XXH3-64) and writes it with
one `os.pwrite` into a preallocated file: it assigns no seq, builds no frame, keeps no index and answers nobody.
Both write into the page cache; syncs are outside the clock, except in the fsync rows.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice

import msgspec
from xxhash import xxh3_64_intdigest

from perf.report import Aim, Round, Row, compare, interleave, summary, time_calls, together
from perf.shard_bench import BenchShard, bench_shard, scratch, write_bodies
from shared.api_types import decode_write
from shared.wal_format import JSON_OFFSET
from shared.wire import Op

_TOPIC = "orders.created"
_STRETCHES = 4  # per round, with a sync in between
_ROUND_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Workload:
    batch: int
    size: int
    per_turn: int = 1
    durability: str = "disk"

    def turns(self) -> int:
        """Per round."""
        if self.durability == "fsync":
            return 24
        return max(24, min(4000, _ROUND_BYTES // (self.per_turn * self.batch * (self.size + 60))))


WORKLOADS = (
    Workload(1, 100),
    Workload(1, 1024),
    Workload(1, 100, per_turn=64),
    Workload(1, 1024, per_turn=64),
    Workload(100, 100),
    Workload(100, 1024),
    Workload(1000, 100),
    Workload(1000, 1024),
    Workload(1, 100, durability="fsync"),
    Workload(1, 100, per_turn=64, durability="fsync"),
    Workload(100, 100, durability="fsync"),
)


def run(parent: str | None, rounds: int) -> tuple[list[Row], list[Aim]]:
    rows = [_measure(workload, parent, rounds) for workload in WORKLOADS]
    aims = [
        Aim(
            f"append, batch 100 of {row['data_bytes']} B: ratio to the floor",
            row["ratio"],
            0.4,
            at_least=True,
        )
        for row in rows
        if row["batch"] == 100 and row["class"] == "disk"
    ]
    return rows, aims


def _measure(workload: Workload, parent: str | None, rounds: int) -> Row:
    bodies = write_bodies(workload.batch, workload.size)
    with scratch(parent) as directory, bench_shard(parent, sealing=False, sync_interval_ms="60000") as shard:
        shard.call(Op.PUT_TOPIC, _TOPIC, b'{"durability":"%b"}' % workload.durability.encode())
        frames = [_frame_of(shard, body) for body in bodies]
        floor = Floor(directory, workload, bodies, frames)
        found = interleave(
            {"floor": floor.round, "ours": lambda: _our_round(shard, workload, bodies)}, rounds
        )
    ours = summary(found["ours"])
    records = workload.batch * workload.per_turn
    return {
        "class": workload.durability,
        "batch": workload.batch,
        "data_bytes": workload.size,
        "calls_per_turn": workload.per_turn,
        "frame_bytes": len(frames[0]),
        "records_per_s": round(records / ours["us"] * 1e6),
        "us_per_call": round(ours["us"] / workload.per_turn, 2),
        "floor_us_per_call": round(summary(found["floor"])["us"] / workload.per_turn, 2),
        **compare(found["floor"], found["ours"]),
        "turn": ours,
        "floor_turn": summary(found["floor"]),
    }


def _frame_of(shard: BenchShard, body: bytes) -> bytes:
    """The log frame that this body becomes: append it, and look it up."""
    shard.call(Op.APPEND, _TOPIC, body)
    hot = shard.engine.state.catalog.visible[_TOPIC].hot
    start = hot.lsn[-1] - JSON_OFFSET
    return shard.engine.wal.read(start, shard.engine.wal.end - start)


def _our_round(shard: BenchShard, workload: Workload, bodies: Sequence[bytes]) -> Round:
    next_body = cycle(bodies)
    turns = [
        [shard.request(Op.APPEND, _TOPIC, body) for body in islice(next_body, workload.per_turn)]
        for _ in range(workload.turns())
    ]
    take = shard.turn if workload.durability == "disk" else _synced_turn(shard)
    stretch = len(turns) // _STRETCHES
    stretches = []
    answered = shard.sink.answers
    for at in range(0, len(turns), stretch):
        if workload.durability == "disk":
            shard.engine.sync_now()
            shard.reserve_seqs(_TOPIC)
        stretches.append(time_calls(take, turns[at : at + stretch]))
    assert not shard.sink.failed, shard.sink.body
    assert shard.sink.answers - answered == len(turns) * workload.per_turn, "all of it on the clock"
    return together(stretches)


def _synced_turn(shard: BenchShard) -> Callable[[list[object]], None]:
    def take(requests: list[object]) -> None:
        shard.turn(requests)  # type: ignore[arg-type]
        job = shard.engine.begin_sync()
        job.run()
        shard.engine.finish_sync(job)

    return take


class Floor:
    def __init__(
        self, directory: str, workload: Workload, bodies: Sequence[bytes], frames: Sequence[bytes]
    ) -> None:
        self._directory = directory
        self._workload = workload
        self._decode = msgspec.json.Decoder(type(decode_write(bodies[0]))).decode
        pairs = list(islice(cycle(zip(bodies, frames, strict=True)), workload.per_turn * len(bodies)))
        self._groups = [pairs[at : at + workload.per_turn] for at in range(0, len(pairs), workload.per_turn)]
        self._joined = [b"".join(frame for _, frame in group) for group in self._groups]

    def round(self) -> Round:
        """A new preallocated file each round, as new pages cost more than pages written before."""
        turns = self._workload.turns()
        size = max(map(len, self._joined))
        path = os.path.join(self._directory, "floor")
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.posix_fallocate(fd, 0, turns * size)
            return time_calls(self._turn(fd, size), range(turns))
        finally:
            os.close(fd)
            os.unlink(path)

    def _turn(self, fd: int, size: int) -> Callable[[int], None]:
        groups, joined, decode, kinds = self._groups, self._joined, self._decode, len(self._groups)
        synced = self._workload.durability == "fsync"

        def take(turn: int) -> None:
            for body, frame in groups[turn % kinds]:
                decode(body)
                xxh3_64_intdigest(frame)
            os.pwrite(fd, joined[turn % kinds], turn * size)
            if synced:
                os.fdatasync(fd)

        return take
