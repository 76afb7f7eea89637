"""Replay: how fast a log becomes a running shard again, after a process that was killed."""

from __future__ import annotations

from perf.report import Row
from perf.shard_bench import bench_shard, write_bodies

_OPENINGS = 3


def run(parent: str | None, records: int) -> list[Row]:
    return [_replay(parent, batch, records) for batch in (100, 1)]


def _replay(parent: str | None, batch: int, records: int) -> Row:
    with bench_shard(parent, sealing=False) as shard:
        shard.fill("orders", write_bodies(batch, 100), records // batch)
        shard.engine.sync_now()
        times = []
        for _ in range(_OPENINGS):
            shard.reopen()
            times.append(shard.open_s)
        report = shard.shard.report
        assert shard.engine.state.catalog.visible["orders"].head == records
        assert not report.damage and not report.notes, report
    ready_s = sorted(times)[len(times) // 2]
    return {
        "log": f"{records:,} records in batches of {batch}",
        "log_mb": round(report.bytes / 1e6, 1),
        "ready_s": round(ready_s, 3),
        "spread_s": [round(min(times), 3), round(max(times), 3)],
        "records_per_s": round(records / ready_s),
        "frames_per_s": round(report.frames / ready_s),
        "mb_per_s": round(report.bytes / ready_s / 1e6, 1),
    }
