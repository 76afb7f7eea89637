"""`python -m perf.cold`: auditing, counting, compacting and exporting sealed data, in one process and with Spark.

Two stores: one of large segments, one of many tiny ones. Beside each job stands its floor: for the audit a plain loop
that reads every file and checksums it; for counts and last values Spark on Parquet files of the same records. Spark's
start-up is measured apart. The page cache is warm: everything is read once before. `--quick` takes small stores and
proves only that it runs.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow.parquet as pq
from xxhash import xxh3_64_intdigest

from ops.coldstore.audit import Audit, AuditOptions
from ops.coldstore.engines import Engine, LocalEngine, SparkEngine
from ops.coldstore.key_rows import key_rows
from ops.coldstore.progress import Progress
from ops.coldstore.record_rows import slice_batches
from ops.coldstore.source import ReadOptions, plan_bins
from ops.coldstore.spark_session import open_session
from perf.cold_compact import rows_of
from perf.cold_store import Store, build
from perf.report import Aim, Row, machine, print_machine, print_table, save
from shared.io.durable_fs import RealFileSystem

FS = RealFileSystem()
HEAP = "1g"


def seconds(job: Callable[[], object], rounds: int) -> list[float]:
    found = []
    for _ in range(rounds):
        began = time.perf_counter()
        job()
        found.append(time.perf_counter() - began)
    return found


def read_and_checksum(store: Store) -> int:
    """The floor: every byte read and hashed, in blocks as large as ours."""
    total = 0
    for name in FS.list_dir(f"{store.data}/shard-0000/segments"):
        file = FS.open(f"{store.data}/shard-0000/segments/{name}")
        size = file.size()
        for at in range(0, size, 1 << 19):
            xxh3_64_intdigest(file.pread(min(1 << 19, size - at), at))
        file.close()
        total += size
    return total


def audit(store: Store, engine: Engine) -> None:
    report = Audit(FS, AuditOptions(store.data, online=False), engine, Progress(quiet=True)).run(None, [])
    assert report.verdict == "clean" and report.totals.records == store.records, report.findings[:3]


def count_locally(store: Store) -> None:
    options = ReadOptions.parse({"path": store.data, "mode": "keys"})
    found = 0
    for work in plan_bins(options):
        for batch in key_rows(FS, work, options.columns, options.query):
            found += sum(batch.column("records").to_pylist())
    assert found == store.records


def write_parquet(store: Store, directory: Path) -> None:
    """The same records, in as many files as there are bins."""
    directory.mkdir()
    options = ReadOptions.parse({"path": store.data, "columns": "topic,epoch,seq,ts,tag,key,data"})
    for number, work in enumerate(plan_bins(options)):
        batches = (b for each in work.slices for b in slice_batches(FS, each, options.columns, options.query))
        writer = None
        for batch in batches:
            if writer is None:
                writer = pq.ParquetWriter(
                    directory / f"{number:05d}.parquet", batch.schema, compression="zstd"
                )
            writer.write_batch(batch)
        if writer is not None:
            writer.close()


def collect(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def spark_jobs(spark: Any, store: Store, parquet: Path) -> dict[str, Callable[[], None]]:
    from pyspark.sql import functions as F

    def ours(mode: str, columns: str | None = None) -> Any:
        reader = spark.read.format("topics").option("path", store.data).option("mode", mode)
        return (reader if columns is None else reader.option("columns", columns)).load()

    def merged(frame: Any) -> Any:
        sums = (F.max("last_seq"), F.sum("records"))
        return frame.groupBy("topic", "epoch", "key").agg(*sums)

    def rows(frame: Any) -> Any:
        return frame.groupBy("topic", "epoch", "key").agg(F.max("seq"), F.count("seq"))

    return {
        "count: Spark on segments": lambda: _check(ours("records", "topic").count(), store),
        "count: Spark on Parquet": lambda: _check(spark.read.parquet(str(parquet)).count(), store),
        "last per key: Spark on segments": lambda: collect(merged(ours("keys"))),
        "last per key: Spark on segments, raw rows": lambda: collect(
            rows(ours("records", "topic,epoch,seq,key"))
        ),
        "last per key: Spark on Parquet": lambda: collect(rows(spark.read.parquet(str(parquet)))),
        "all columns: Spark on segments": lambda: collect(ours("records")),
        "all columns: Spark on Parquet": lambda: collect(spark.read.parquet(str(parquet))),
    }


def _check(found: int, store: Store) -> None:
    assert found == store.records


def jvm_peak_mib(spark: Any) -> float:
    pid = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    return 0.0


def measure(
    name: str, store: Store, jobs: dict[str, Callable[[], object]], rounds: int
) -> tuple[list[Row], dict[str, float]]:
    rows: list[Row] = []
    medians: dict[str, float] = {}
    for job in jobs.values():
        job()  # warm: the page cache, Spark's Python processes, compiled code
    times: dict[str, list[float]] = {job: [] for job in jobs}
    for _ in range(rounds):
        for label, job in jobs.items():
            times[label] += seconds(job, 1)
    for label, found in times.items():
        medians[label] = median(found)
        rows.append(
            {
                "store": name,
                "job": label,
                "seconds": round(medians[label], 3),
                "spread": [round(min(found), 3), round(max(found), 3)],
                "MB_per_s": round(store.segment_bytes / medians[label] / 1e6, 1),
                "Mrec_per_s": round(store.records / medians[label] / 1e6, 3),
            }
        )
    return rows, medians


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small stores; no result file")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", help="where the stores are built (needs 5 GB); default: the system's")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="topicsd-cold-", dir=chosen.directory) as directory:
        run(Path(directory), quick=chosen.quick, rounds=1 if chosen.quick else chosen.rounds)


def run(directory: Path, *, quick: bool, rounds: int) -> None:
    about = machine(directory)
    print_machine(about)
    if quick:
        big = build(directory / "big", segments=4, blocks=32, records=1024, topics=40)
        tiny = build(directory / "tiny", segments=300, blocks=1, records=120, topics=40)
    else:
        big = build(directory / "big", segments=64, blocks=380, records=1024, topics=200)
        tiny = build(directory / "tiny", segments=20_000, blocks=1, records=240, topics=200)
    for store, name in ((big, "large segments"), (tiny, "tiny segments")):
        print(
            f"  {name}: {store.segments:,} files, {store.segment_bytes / 1e6:,.0f} MB, {store.records:,} records"
        )
    write_parquet(big, directory / "parquet")
    local = LocalEngine()
    began = time.perf_counter()
    spark = open_session("local[2]", heap=HEAP)
    spark.range(10).count()
    start_s = time.perf_counter() - began
    try:
        spread = SparkEngine(spark)
        rows, large = measure(
            "large segments",
            big,
            {
                "floor: read and checksum": lambda: read_and_checksum(big),
                "audit: local": lambda: audit(big, local),
                "audit: Spark": lambda: audit(big, spread),
                "count and last per key: local": lambda: count_locally(big),
                **spark_jobs(spark, big, directory / "parquet"),
            },
            rounds,
        )
        more, small = measure(
            "tiny segments",
            tiny,
            {
                "floor: read and checksum": lambda: read_and_checksum(tiny),
                "audit: local": lambda: audit(tiny, local),
                "audit: Spark": lambda: audit(tiny, spread),
                "count and last per key: local": lambda: count_locally(tiny),
                "count: Spark on segments": lambda: spark_jobs(spark, tiny, directory)[
                    "count: Spark on segments"
                ](),
            },
            rounds,
        )
        rewriting = rows_of(
            directory / "compact", *((20_000, 5_000) if quick else (2_000_000, 500_000)), spark
        )
        peak_mib = jvm_peak_mib(spark)
    finally:
        spark.stop()
    rows += more
    print_table("Cold data", rows)
    print_table("Compaction and export, last value per key", rewriting)
    took = {row["job"]: float(str(row["seconds"])) for row in rewriting}
    aims = [
        Aim("audit, large: Spark / local", large["audit: local"] / large["audit: Spark"], 0.4, True),
        Aim("audit, tiny: Spark / local", small["audit: local"] / small["audit: Spark"], 0.4, True),
        Aim(
            "last per key: segments / Parquet",
            large["last per key: Spark on Parquet"] / large["last per key: Spark on segments"],
            0.7,
            True,
        ),
        Aim("compaction: Spark / local, seconds", took["compact: Spark"] / took["compact: local"], 1.3),
        Aim("peak memory of the JVM, MiB", peak_mib, 2048),
        Aim("start of Spark, seconds", start_s, 17),
    ]
    print_table("Aims", [aim.row() for aim in aims])
    if not quick:
        document = {"machine": about, "rounds": rounds, "rows": rows, "compaction": rewriting}
        document["aims"] = [aim.row() for aim in aims]
        print(f"\nsaved {save('cold', document)}")


if __name__ == "__main__":
    main()
