"""Compacting and exporting a cold tier, in one process and with Spark: a part of `perf.cold`, or alone.

The store: one topic that keeps last values, its keys drawn at random, in cold segments. Beside compaction stands its
floor, a single process that copies the segments byte for byte with the same syncs: what any rewriting costs at least.
Staging only; what a worker does to adopt the result is measured apart. `--quick` proves only that it runs.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ops.coldstore.compact_local import compact_local
from ops.coldstore.export import LocalExport, run_export
from ops.coldstore.spark_session import open_session
from ops.coldstore.staging import ShardPlace, load_basis
from perf.report import Row, machine, print_machine, print_table, save
from perf.shard_bench import BenchShard, wall_ms
from shared.compaction import Basis
from shared.io.durable_fs import RealFileSystem
from shared.staged import Staged
from shared.wire import Op

FS = RealFileSystem()
_BATCH = 500
_PER_SEGMENT = 100_000


def build(root: Path, records: int, keys: int) -> tuple[BenchShard, ShardPlace]:
    """A shard whose records are all in the cold tier but those of the last segment."""
    shard = BenchShard(
        str(root / "data"),
        sealing=False,
        cold_dir=str(root / "cold"),
        hot_retain_segments="1",
        min_free_bytes="0",
    )
    shard.call(Op.PUT_TOPIC, "orders", b'{"cleanup":"compact"}')
    chosen = random.Random(1)
    filler = "x" * 200
    for start in range(0, records, _BATCH):
        rows = [
            {"data": {"n": start + at, "text": filler}, "key": f"key-{chosen.randrange(keys)}", "tag": "t"}
            for at in range(min(_BATCH, records - start))
        ]
        shard.call(Op.APPEND, "orders", json.dumps({"records": rows}).encode())
        if (start + _BATCH) % min(_PER_SEGMENT, max(_BATCH, records // 8)) == 0:
            _background(shard, seal=True)
    _background(shard, seal=True)
    shard.shard.maintenance.snapshot_now(clean=False)
    return shard, ShardPlace(0, str(root / "data"), str(root / "cold"))


def _background(shard: BenchShard, *, seal: bool) -> None:
    maintenance = shard.shard.maintenance
    if seal:
        maintenance.due[shard.engine.state.catalog.visible["orders"]] = None
    idle = 0
    while idle < 3:
        job = maintenance.next_job()
        if job is None:
            shard.engine.sync_now()
            idle += not maintenance.stepping
            continue
        job.run()
        maintenance.finish(job)
        idle = 0


def copy_floor(place: ShardPlace, target: Path) -> None:
    target.mkdir()
    for name in FS.list_dir(f"{place.cold}/data"):
        source, copy = FS.open(f"{place.cold}/data/{name}"), FS.create(str(target / name))
        at = 0
        while chunk := source.pread(4 << 20, at):
            at += copy.pwritev([chunk], at)
        copy.sync_data()
        copy.close()
        source.close()


def timed(job: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    found = job()
    return time.perf_counter() - began, found


def rows_of(root: Path, records: int, keys: int, session: Any) -> list[Row]:
    root.mkdir(exist_ok=True)
    shard, place = build(root, records, keys)
    basis = load_basis(FS, place)
    assert basis is not None
    size = sum(segment.size for segment in basis.manifest.segments)
    sealed = sum(segment.records for segment in basis.manifest.segments)
    found: list[Row] = []

    def add(job: str, seconds: float, **more: object) -> None:
        row = {"job": job, "seconds": round(seconds, 3), "mb_per_s": round(size / seconds / 1e6, 1)}
        found.append(row | {"records_per_s": round(sealed / seconds), **more})

    add("copy of the segments (floor)", timed(lambda: copy_floor(place, root / "copy"))[0])
    for name, job in _compactions(place, basis, session).items():
        seconds, staged = timed(job)
        kept = sum(topic.count for new in staged.new for topic in new.topics)
        add(f"compact: {name}", seconds, records_in=sealed, records_out=kept)
        if name != "local":
            _unstage(place, staged)
    _background(shard, seal=False)  # nothing is looked for before a scan is due
    adoption = shard.shard.maintenance.adoption
    assert adoption is not None
    adoption.scan_soon()
    add("adopt, two snapshots included", timed(lambda: _background(shard, seal=False))[0])
    places = (place.data_dir, place.cold_dir)
    add("export: local", timed(lambda: run_export(*places, str(root / "out"), LocalExport(), now_ms=1))[0])
    if session is not None:
        from ops.coldstore.export_spark import SparkExport

        engine = SparkExport(session)
        add("export: Spark", timed(lambda: run_export(*places, str(root / "out2"), engine, now_ms=1))[0])
    shard.abandon()
    return found


def _compactions(place: ShardPlace, basis: Basis, session: Any) -> dict[str, Callable[[], Staged | None]]:
    jobs: dict[str, Callable[[], Staged | None]] = {}
    if session is not None:
        from ops.coldstore.compact_spark import compact_spark

        jobs["Spark, first run"] = lambda: compact_spark(session, place, basis, job="warm", now_ms=wall_ms())
        jobs["Spark"] = lambda: compact_spark(session, place, basis, job="spark", now_ms=wall_ms())
    jobs["local"] = lambda: compact_local(FS, place, basis, job="local", now_ms=wall_ms())
    return jobs


def _unstage(place: ShardPlace, staged: Staged) -> None:
    for name in FS.list_dir(place.staging):
        if name.startswith(f"{staged.job}."):
            FS.unlink(f"{place.staging}/{name}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--no-spark", action="store_true")
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--master", default="local[2]")
    arguments = parser.parse_args()
    records = 20_000 if arguments.quick else arguments.records
    session = None if arguments.no_spark else open_session(arguments.master)
    found = machine()
    print_machine(found)
    try:
        with tempfile.TemporaryDirectory(prefix="topicsd-cold-") as root:
            rows = rows_of(Path(root), records, max(1, records // 4), session)
    finally:
        if session is not None:
            session.stop()
    print_table(f"{records:,} records, {max(1, records // 4):,} keys", rows)
    if not arguments.quick:
        save("cold_compact", {"machine": found, "records": records, "rows": rows})


if __name__ == "__main__":
    main()
