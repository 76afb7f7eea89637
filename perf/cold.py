"""`python -m perf.cold`: auditing, counting, compacting and exporting sealed data, in one process and with Spark.

Two stores: more than 2 GB in large segments, and 20,000 tiny segments. Beside each job stands its floor: for the audit
a loop that reads and checksums every file, and one that verifies every block; for counts and last values Spark on
Parquet files of the same records; for compaction a copy of the files. Spark's start is measured apart, and every job
runs once on a small store before it counts. The page cache is warm. `--short` takes small stores, saves nothing and
proves only that it runs. With `--directory` the stores stay there and serve the next run.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from xxhash import xxh3_64_intdigest

from ops.coldstore.audit import Audit, AuditOptions
from ops.coldstore.engines import Engine, LocalEngine, SparkEngine
from ops.coldstore.key_rows import key_rows
from ops.coldstore.progress import Progress
from ops.coldstore.source import ReadOptions, plan_bins
from ops.coldstore.spark_session import open_session
from perf import cold_compact
from perf.cold_store import Shape, Store, build, say, write_parquet
from perf.cpu_clock import CpuClock
from perf.report import Aim, Row, machine, print_machine, print_table, save
from shared.io.durable_fs import RealFileSystem
from shared.segment_format import decode_block_header
from shared.segment_reader import read_header, read_index, read_trailer

FS = RealFileSystem()
HEAP = "1g"
LARGE = Shape(segments=64, blocks=256, records=1024, topics=200)
TINY = Shape(segments=20_000, blocks=1, records=300, topics=200)
SHORT_LARGE = Shape(segments=8, blocks=128, records=1024, topics=100)
SHORT_TINY = Shape(segments=1000, blocks=1, records=300, topics=100)
_READ_BYTES = 1 << 19

Jobs = dict[str, Callable[[], object]]
Times = dict[str, list[float]]


# --- floors -----------------------------------------------------------------------------------------------


def read_and_checksum(store: Store) -> None:
    """Every byte read and hashed, knowing nothing of what it means."""
    for name in FS.list_dir(store.segment_dir):
        file = FS.open(f"{store.segment_dir}/{name}")
        size = file.size()
        for at in range(0, size, _READ_BYTES):
            xxh3_64_intdigest(file.pread(min(_READ_BYTES, size - at), at))
        file.close()


def verify_blocks(store: Store) -> None:
    """The plain loop: footer and index of every file, header and both checksums of every block; nothing is kept."""
    found = 0
    for name in FS.list_dir(store.segment_dir):
        file = FS.open(f"{store.segment_dir}/{name}")
        read_header(file.pread)
        index = read_index(file.pread, read_trailer(file.pread, file.size()))
        for ordinal in range(index.block_count):
            entry = index.block(ordinal)
            block = memoryview(file.pread(entry.length, entry.offset))
            header = decode_block_header(block)
            first = xxh3_64_intdigest(bytes(block[:72]) + bytes(block[80 : header.json_at]))
            second = xxh3_64_intdigest(block[header.json_at : -8], first)
            assert first == header.checksum and second == int.from_bytes(block[-8:], "little")
            found += header.count
        file.close()
    assert found == store.records


# --- jobs -------------------------------------------------------------------------------------------------


def audit(store: Store, engine: Engine) -> None:
    options = AuditOptions(store.data, cold_dir=store.cold, online=False)
    report = Audit(FS, options, engine, Progress(quiet=True)).run(None, [])
    assert report.verdict == "clean" and report.totals.records == store.records, report.findings[:3]


def count_locally(store: Store) -> None:
    options = ReadOptions.parse({"path": store.data, "cold": store.cold, "mode": "keys"})
    found = 0
    for work in plan_bins(options):
        for batch in key_rows(FS, work, options.columns, options.query):
            found += sum(batch.column("records").to_pylist())
    assert found == store.records


def audit_jobs(store: Store, spark: Any) -> Jobs:
    local, spread = LocalEngine(), SparkEngine(spark)
    return {
        "floor: read and checksum": lambda: read_and_checksum(store),
        "plain loop: verify blocks": lambda: verify_blocks(store),
        "audit: local": lambda: audit(store, local),
        "audit: Spark": lambda: audit(store, spread),
    }


def query_jobs(store: Store, spark: Any) -> Jobs:
    from pyspark.sql import functions as F

    def ours(mode: str, columns: str | None = None) -> Any:
        reader = spark.read.format("topics").option("path", store.data).option("cold", store.cold)
        reader = reader.option("mode", mode)
        return (reader if columns is None else reader.option("columns", columns)).load()

    def parquet() -> Any:
        return spark.read.parquet(str(store.parquet))

    def last(frame: Any, *sums: Any) -> None:
        """Every row is made, and thrown away."""
        grouped = frame.groupBy("topic", "epoch", "key").agg(*sums)
        grouped.write.format("noop").mode("overwrite").save()

    return {
        "count and last per key: local": lambda: count_locally(store),
        "count: Spark on segments": lambda: _check(ours("records", "seq").count(), store),
        "count: Spark on Parquet": lambda: _check(parquet().count(), store),
        "last per key: Spark on segments": lambda: last(ours("keys"), F.max("last_seq"), F.sum("records")),
        "last per key: Spark on Parquet": lambda: last(parquet(), F.max("seq"), F.count("seq")),
    }


def _check(found: int, store: Store) -> None:
    assert found == store.records


# --- measuring --------------------------------------------------------------------------------------------


def measure(store: Store, jobs: Jobs, rounds: int, clock: CpuClock) -> tuple[list[Row], Times]:
    """In turns, so that a machine that drifts drifts for all."""
    walls: Times = {job: [] for job in jobs}
    cpus: Times = {job: [] for job in jobs}
    for number in range(1, rounds + 1):
        for label, job in jobs.items():
            cpu, began = clock.seconds(), time.perf_counter()
            job()
            walls[label].append(time.perf_counter() - began)
            cpus[label].append(clock.seconds() - cpu)
            say(f"{store.name}, round {number} of {rounds}: {label}: {walls[label][-1]:.2f} s")
    rows: list[Row] = []
    for label, found in walls.items():
        middle = median(found)
        rows.append(
            {
                "store": store.name,
                "job": label,
                "seconds": round(middle, 3),
                "spread": [round(min(found), 3), round(max(found), 3)],
                "cpu_s": round(median(cpus[label]), 2),
                "MB_per_s": round(store.segment_bytes / middle / 1e6, 1),
                "Mrec_per_s": round(store.records / middle / 1e6, 3),
                "runs": rounds,
            }
        )
    return rows, walls


def jvm_peak_mib(spark: Any) -> float:
    pid = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    return 0.0


def ratio(times: Times, slow: str, fast: str) -> float:
    """How much longer `slow` takes: the median over the rounds, each compared in itself."""
    return median(one / other for one, other in zip(times[slow], times[fast], strict=True))


# --- the run ----------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--short", action="store_true", help="small stores; no result file")
    parser.add_argument("--rounds", type=int, default=3, help="of audits, counts and last values")
    parser.add_argument(
        "--directory",
        type=Path,
        help="build the stores here (8 GB), and leave them; default: a temporary one",
    )
    chosen = parser.parse_args()
    if chosen.directory is not None:
        chosen.directory.mkdir(exist_ok=True)
        run(chosen.directory, short=chosen.short, rounds=chosen.rounds)
        return
    with tempfile.TemporaryDirectory(prefix="topicsd-cold-") as directory:
        run(Path(directory), short=chosen.short, rounds=chosen.rounds)


def store_in(directory: Path, name: str, shape: Shape, *, parquet: bool) -> Store:
    """The one that a run before has left, or a new one."""
    described = directory / name.replace(" ", "-") / "store.json"
    wanted = asdict(shape)
    if described.exists():
        told = json.loads(described.read_text())
        if told["shape"] == wanted:
            return Store(name, described.parent, **told["store"])
    store = build(name, described.parent, shape)
    if parquet:
        write_parquet(store)
    sizes = {"records": store.records, "segment_bytes": store.segment_bytes, "segments": store.segments}
    described.write_text(json.dumps({"shape": wanted, "store": sizes}))
    return store


def run(directory: Path, *, short: bool, rounds: int) -> None:
    about = machine(directory)
    print_machine(about)
    began = time.perf_counter()
    small = store_in(directory, "short", SHORT_LARGE, parquet=True)
    if short:
        large, tiny = small, store_in(directory, "short tiny", SHORT_TINY, parquet=True)
    else:
        large = store_in(directory, "large", LARGE, parquet=True)
        tiny = store_in(directory, "tiny", TINY, parquet=True)
    for store in (large, tiny):
        size, records = store.segment_bytes / 1e6, store.records
        print(f"  {store.name}: {store.segments:,} files, {size:,.0f} MB, {records:,} records")
    say(f"stores after {time.perf_counter() - began:.0f} s")
    started = time.perf_counter()
    spark = open_session("local[2]", heap=HEAP)
    spark.range(10).count()
    start_s = time.perf_counter() - started
    say(f"Spark after {start_s:.1f} s")
    try:
        with CpuClock() as clock:
            if not short:
                warm_up(small, spark, clock)
            rows, times = run_jobs([large, tiny], spark, 1 if short else rounds, clock)
        peak_mib = jvm_peak_mib(spark)
    finally:
        spark.stop()
    print_table("Cold data", rows)
    aims = aims_of(times[large.name], times[tiny.name], peak_mib, start_s)
    print_table("Aims", [aim.row() for aim in aims])
    took = time.perf_counter() - began
    print(f"\n{took:.0f} s in all")
    if not short:
        stores = [
            {"store": s.name, "segments": s.segments, "bytes": s.segment_bytes, "records": s.records}
            | {"parquet_bytes": sum(path.stat().st_size for path in s.parquet.iterdir())}
            for s in (large, tiny)
        ]
        document = {"machine": about, "load_at_end": os.getloadavg(), "took_s": round(took), "stores": stores}
        document |= {"rows": rows, "aims": [aim.row() for aim in aims]}
        print(f"saved {save('cold', document)}")


def warm_up(store: Store, spark: Any, clock: CpuClock) -> None:
    """Spark's Python processes, and code that it compiles when it has run for a while."""
    for kind in (audit_jobs, query_jobs, cold_compact.jobs):
        measure(store, kind(store, spark), 1, clock)


def run_jobs(
    stores: list[Store], spark: Any, rounds: int, clock: CpuClock
) -> tuple[list[Row], dict[str, Times]]:
    rows: list[Row] = []
    times: dict[str, Times] = {store.name: {} for store in stores}
    for store in stores:
        read_and_checksum(store)  # warm: the page cache
        for kind, often in ((audit_jobs, rounds), (query_jobs, rounds), (cold_compact.jobs, 1)):
            found, walls = measure(store, kind(store, spark), often, clock)
            rows += found
            times[store.name] |= walls
    return rows, times


def aims_of(large: Times, tiny: Times, peak_mib: float, start_s: float) -> list[Aim]:
    plain, local, spread = "plain loop: verify blocks", "audit: local", "audit: Spark"
    ours, parquet = "last per key: Spark on segments", "last per key: Spark on Parquet"
    return [
        Aim("audit, large: Spark / plain loop", ratio(large, plain, spread), 0.4, True),
        Aim("audit, large: Spark / local", ratio(large, local, spread), 0.4, True),
        Aim("audit, tiny: Spark / plain loop", ratio(tiny, plain, spread), 0.4, True),
        Aim("audit, tiny: Spark / local", ratio(tiny, local, spread), 0.4, True),
        Aim("last per key, large: segments / Parquet", ratio(large, parquet, ours), 0.7, True),
        Aim("last per key, tiny: segments / Parquet", ratio(tiny, parquet, ours), 0.7, True),
        Aim(
            "compaction, large: Spark / local, seconds", ratio(large, "compact: Spark", "compact: local"), 1.3
        ),
        Aim("peak memory of the JVM, MiB", peak_mib, 2048),
        Aim("start of Spark, seconds", start_s, 17),
    ]


if __name__ == "__main__":
    main()
