"""Exports: each record once, whatever dies in between; readable by DuckDB as the docs print it."""

from __future__ import annotations

import re
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest

from ops.coldstore.export import LocalExport, run_export
from ops.coldstore.export_files import ExportDir, ExportedTopic, ExportFile
from shared.io.durable_fs import RealFileSystem
from tests.support.compaction_kit import run_jobs
from tests.support.fake_disk import FakeDisk, PowerCut
from tests.support.shard_driver import ShardDriver

duckdb = pytest.importorskip("duckdb")
DOCS = Path(__file__).parents[3] / "docs" / "cold-data.md"
DAY_MS = 86_400_000


def shard(tmp_path: Path) -> ShardDriver:
    driver = ShardDriver(
        RealFileSystem(),  # type: ignore[arg-type]
        wal_file_bytes=1 << 16,
        data_dir=str(tmp_path / "data"),
        cold_dir=str(tmp_path / "cold"),
    )
    driver.put("orders", durable=True)
    driver.put("news:eu", durable=True)
    return driver


def write(driver: ShardDriver, topic: str, count: int) -> None:
    driver.append(
        topic,
        [{"data": {"n": at}, "tag": f"t{at % 2}", "key": "k", "meta": {"m": at}} for at in range(count)],
    )


def seal(driver: ShardDriver) -> None:
    assert driver.seal()
    driver.relocate()
    assert driver.snapshot()


def export(tmp_path: Path, **more: Any) -> int:
    _, rows = run_export(
        str(tmp_path / "data"), str(tmp_path / "cold"), str(tmp_path / "out"), LocalExport(), now_ms=1, **more
    )
    return rows


def query(tmp_path: Path, sql: str) -> list[tuple[Any, ...]]:
    found = duckdb.sql(sql.replace("/data/parquet", str(tmp_path / "out"))).fetchall()
    return list(found)


ALL = "select topic, epoch, seq from read_parquet('/data/parquet/topic=*/day=*/*.parquet', hive_partitioning = true)"


def exported(tmp_path: Path, topic: str) -> list[int]:
    rows = [row for row in query(tmp_path, ALL) if row[0] == topic]
    seqs = sorted(row[2] for row in rows)
    assert len(set(seqs)) == len(seqs), "a record was exported twice"
    return seqs


def test_records_are_exported_by_topic_and_day_and_once(tmp_path: Path) -> None:
    driver = shard(tmp_path)
    write(driver, "orders", 5)
    write(driver, "news:eu", 3)
    driver.clock.advance(DAY_MS)
    write(driver, "orders", 4)
    driver.delete_records("orders", match=["tag", "Eq", "t1"])
    seal(driver)
    write(driver, "orders", 2)  # not sealed: not exported yet
    driver.sync()
    assert export(tmp_path) == 3 + 3 + 2
    assert exported(tmp_path, "orders") == [1, 3, 5, 6, 8]
    assert exported(tmp_path, "news:eu") == [1, 2, 3]
    days = query(tmp_path, f"select distinct day::text from ({ALL.replace('topic, epoch, seq', '*')})")
    assert len(days) == 2
    assert export(tmp_path) == 0, "nothing new"
    seal(driver)
    assert export(tmp_path) == 2
    assert exported(tmp_path, "orders") == [1, 3, 5, 6, 8, 10, 11]


def test_a_topic_in_many_segments_comes_in_one_file(tmp_path: Path) -> None:
    driver = shard(tmp_path)
    for _ in range(4):
        write(driver, "orders", 5)
        write(driver, "news:eu", 3)
        seal(driver)
    assert export(tmp_path) == 32
    assert exported(tmp_path, "orders") == list(range(1, 21))
    assert len(list((tmp_path / "out").rglob("*.parquet"))) == 2


def test_content_arrives_as_it_was_written(tmp_path: Path) -> None:
    driver = shard(tmp_path)
    driver.append(
        "orders", [{"data": {"a": [1.50, "ü"]}, "tag": "t", "key": "k", "node": "n", "meta": {"m": 1}}]
    )
    seal(driver)
    assert export(tmp_path) == 1
    (row,) = query(tmp_path, ALL.replace("topic, epoch, seq", "topic, seq, ts, node, tag, key, meta, data"))
    assert row[:2] == ("orders", 1) and row[3:6] == ("n", "t", "k")
    assert (row[6], row[7]) == ('{"m": 1}', '{"a": [1.5, "\\u00fc"]}')
    assert row[2].replace(tzinfo=UTC).timestamp() * 1000 == driver.clock()


def test_a_compaction_does_not_export_anything_again(tmp_path: Path) -> None:
    from ops.coldstore.compact_local import compact_local
    from ops.coldstore.staging import ShardPlace, load_basis

    driver = shard(tmp_path)
    for _ in range(3):
        write(driver, "orders", 4)
        seal(driver)
    assert export(tmp_path) == 12
    driver.delete_records("orders", match=["tag", "Eq", "t1"])
    driver.snapshot()
    place = ShardPlace(0, str(tmp_path / "data"), str(tmp_path / "cold"))
    basis = load_basis(RealFileSystem(), place)
    assert basis is not None
    assert compact_local(RealFileSystem(), place, basis, job="j", now_ms=driver.clock()) is not None
    run_jobs(driver)
    write(driver, "orders", 2)
    seal(driver)
    assert export(tmp_path) == 2
    assert exported(tmp_path, "orders") == list(range(1, 15))


def test_some_topics_first_and_the_rest_later(tmp_path: Path) -> None:
    driver = shard(tmp_path)
    write(driver, "orders", 3)
    write(driver, "news:eu", 2)
    seal(driver)
    assert export(tmp_path, topics=["orders"]) == 3
    assert export(tmp_path) == 2
    assert export(tmp_path) == 0
    assert exported(tmp_path, "orders") == [1, 2, 3] and exported(tmp_path, "news:eu") == [1, 2]


def test_bins_however_small_hold_everything_once(tmp_path: Path) -> None:
    driver = shard(tmp_path)
    for _ in range(4):
        write(driver, "orders", 7)
        seal(driver)
    assert export(tmp_path, bin_bytes=1) == 28
    assert exported(tmp_path, "orders") == list(range(1, 29))


def test_a_run_that_dies_anywhere_is_nothing_or_is_finished_by_the_next() -> None:
    def run(disk: FakeDisk, number: int) -> None:
        out = ExportDir(disk, "/out")
        previous = out.begin()
        done = previous.commit if previous is not None else 0
        if done >= number:
            return
        files = []
        for part in range(2):
            name = f"c{number}-{part}.parquet"
            out.stage(name, f"{number}.{part}".encode())
            files.append(ExportFile(f"_topicsd/staging/{name}", f"topic=t/day=d{part}/{name}", 1, 3))
        out.commit(previous, files, [ExportedTopic("t", 1, number)], [], 0)

    def placed(disk: FakeDisk) -> set[str]:
        return {
            f"{day}/{name}"
            for day in disk.list_dir("/out/topic=t")
            for name in disk.list_dir(f"/out/topic=t/{day}")
        }

    wanted = {f"d{part}/c{number}-{part}.parquet" for number in (1, 2) for part in range(2)}
    wanted = {f"day={name}" for name in wanted}
    step, finished = 0, False
    while not finished:
        step += 1
        disk = FakeDisk()
        run(disk, 1)
        disk.crash_after(step, seed=step)
        try:
            run(disk, 2)
            finished = True
        except PowerCut:
            for keep, seed in (("none", 0), ("all", 0), ("random", step)):
                twin = disk.clone().lose_power(seed, keep)  # type: ignore[arg-type]
                assert placed(twin) <= wanted
                run(twin, 2)
                assert placed(twin) == wanted
                assert twin.list_dir("/out/_topicsd/staging") == []
    assert step > 8


def test_the_printed_duckdb_query_runs(tmp_path: Path) -> None:
    driver = shard(tmp_path)
    write(driver, "orders", 5)
    seal(driver)
    export(tmp_path)
    blocks = re.findall(r"```sql\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert blocks
    for sql in blocks:
        assert query(tmp_path, sql)
