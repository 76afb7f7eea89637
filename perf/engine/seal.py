"""Sealing: processor time of one pass, in its thread and between turns, per record."""

from __future__ import annotations

import gc
import time

from perf.report import Row
from perf.shard_bench import BenchShard, bench_shard, write_bodies
from shard_worker.disk.sealing import SealJob

_PASSES = 3
_TOPIC = "orders"


def run(parent: str | None, records: int) -> list[Row]:
    return [
        _seal(parent, batch, size, records // (size // 100), labels=labels)
        for batch, size, labels in (
            (100, 100, False),
            (100, 1000, False),
            (100, 100, True),
            (10, 100, False),
            (1, 100, False),
        )
    ]


def _seal(parent: str | None, batch: int, size: int, records: int, *, labels: bool) -> Row:
    passes = [_pass(parent, batch, size, records, labels=labels) for _ in range(_PASSES)]
    thread_s, between_s, file_bytes = min(passes)
    return {
        "log": f"{records:,} records of {size} B in batches of {batch}{', labelled' if labels else ''}",
        "thread_us_per_record": round(thread_s / records * 1e6, 3),
        "spread_us": [
            round(min(passes)[0] / records * 1e6, 3),
            round(max(passes)[0] / records * 1e6, 3),
        ],
        "between_turns_ms": round(between_s * 1e3, 2),
        "segment_mb": round(file_bytes / 1e6, 2),
    }


def _pass(
    parent: str | None, batch: int, size: int, records: int, *, labels: bool
) -> tuple[float, float, int]:
    """Seconds of SealJob.run, seconds of planning and finishing it, bytes of the segment."""
    with bench_shard(parent, sealing=False) as shard:
        shard.fill(_TOPIC, write_bodies(batch, size, labels=labels), records // batch)
        shard.engine.sync_now()
        gc.collect()
        started = time.thread_time()
        job = _plan(shard)
        planned = time.thread_time()
        job.run()
        written = time.thread_time()
        shard.shard.maintenance.finish(job)
        ended = time.thread_time()
        assert job.fact is not None
        assert not len(shard.engine.state.catalog.visible[_TOPIC].hot), "all of it is sealed"
        return written - planned, planned - started + ended - written, job.fact.size


def _plan(shard: BenchShard) -> SealJob:
    maintenance = shard.shard.maintenance
    maintenance.due[shard.engine.state.catalog.visible[_TOPIC]] = None
    job = maintenance.next_job()
    assert isinstance(job, SealJob)
    return job
