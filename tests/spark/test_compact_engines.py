"""Spark stages what the local engine stages, whatever happens to its tasks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ops.coldstore.compact_local import compact_local, find_superseded
from ops.coldstore.compact_spark import BinsWritten, CompactionSink, CompactionWriter, compact_spark
from ops.coldstore.plan_file import Work, save_work
from ops.coldstore.staging import ShardPlace, load_basis
from shared.compaction import PlanOptions, make_plan
from shared.io.durable_fs import RealFileSystem
from shared.staged import Staged, decode_staged
from tests.support.compaction_kit import run_jobs
from tests.support.s3_server import s3_server
from tests.support.server_process import ROOT, environment
from tests.support.shard_driver import ShardDriver
from tests.support.spark_faults import FailingOnceSink, FailingSink

# On a busy machine Spark alone takes minutes to start.
pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(600)]

SPLIT = PlanOptions(merge=False)


def shard(data_dir: str, cold_dir: str, fs: Any = None) -> ShardDriver:
    driver = ShardDriver(fs or RealFileSystem(), wal_file_bytes=1 << 20, data_dir=data_dir, cold_dir=cold_dir)
    driver.put("plain", durable=True)
    driver.put("last", durable=True, cleanup="compact", delete_retention_ms=1000, min_compaction_lag_ms=15)
    driver.put("gone", durable=True)
    for number in range(5):
        driver.append("plain", [{"data": at, "tag": f"t{at % 5}", "node": "n"} for at in range(40)])
        driver.append("last", [{"data": at if at % 3 else None, "key": f"k{at}"} for at in range(20)])
        driver.append("last", [{"data": "no key", "meta": {"at": number}}])
        driver.append("gone", [{"data": number}])
        driver.clock.advance(10)
        assert driver.seal()
    assert driver.relocate() == 4
    driver.delete_records("plain", match=["tag", "Eq", "t1"])
    driver.delete_topic("gone")
    driver.settle()
    assert driver.snapshot()
    return driver


def without_names(staged: Staged) -> Any:
    """What a job has staged, apart from who staged it."""
    shown = json.loads(json.dumps(__import__("msgspec").to_builtins(staged)))
    for key in ("job", "engine"):
        del shown[key]
    for new in shown["new"]:
        del new["file"]
    return shown


def both(
    spark: Any, place: ShardPlace, now_ms: int, sink: type[CompactionSink], options: PlanOptions
) -> tuple[Staged, Staged]:
    fs = RealFileSystem()
    basis = load_basis(fs, place)
    assert basis is not None
    by_spark = compact_spark(spark, place, basis, job="spark", now_ms=now_ms, options=options, sink=sink)
    local = compact_local(fs, place, basis, job="local", now_ms=now_ms, options=options)
    assert by_spark is not None and local is not None
    return by_spark, local


@pytest.mark.parametrize("sink", [CompactionSink, FailingOnceSink])
def test_spark_stages_what_the_local_engine_stages(
    spark: Any, tmp_path: Path, sink: type[CompactionSink]
) -> None:
    driver = shard(str(tmp_path / "data"), str(tmp_path / "cold"))
    place = ShardPlace(0, str(tmp_path / "data"), str(tmp_path / "cold"))
    driver.clock.advance(10)
    by_spark, local = both(spark, place, driver.clock(), sink, SPLIT)
    assert without_names(by_spark) == without_names(local), "digests, seqs, everything"
    assert any(each.superseded for each in by_spark.removed)
    files = {path.name for path in (tmp_path / "cold/shard-0000/staging").iterdir()}
    assert {new.file for new in by_spark.new} <= files
    if sink is FailingOnceSink:
        orphans = {name for name in files if name.startswith("spark.p")} - {new.file for new in by_spark.new}
        assert orphans, "the attempts that died have left files, and nobody cares"
    for name in files:
        if name.startswith("local."):
            (tmp_path / "cold/shard-0000/staging" / name).unlink()
    left = [record["$seq"] for record in driver.read_all("plain")]
    run_jobs(driver)
    assert [record["$seq"] for record in driver.read_all("plain")] == left
    assert list((tmp_path / "cold/shard-0000/staging").iterdir()) == []
    assert [path.name for path in (tmp_path / "cold/shard-0000/receipts").iterdir()] == ["spark.json"]


def test_a_task_that_always_fails_ends_the_job_and_leaves_nothing(spark: Any, tmp_path: Path) -> None:
    driver = shard(str(tmp_path / "data"), str(tmp_path / "cold"))
    place = ShardPlace(0, str(tmp_path / "data"), str(tmp_path / "cold"))
    basis = load_basis(RealFileSystem(), place)
    assert basis is not None
    with pytest.raises(Exception, match="always dies"):
        compact_spark(spark, place, basis, job="j", now_ms=driver.clock(), options=SPLIT, sink=FailingSink)
    assert list((tmp_path / "cold/shard-0000/staging").iterdir()) == []


def test_of_two_attempts_that_run_at_once_only_the_one_that_reports_counts(tmp_path: Path) -> None:
    """Speculation, step by step: a straggler and its twin both write, Spark hands over the report of one."""
    driver = shard(str(tmp_path / "data"), str(tmp_path / "cold"))
    place = ShardPlace(0, str(tmp_path / "data"), str(tmp_path / "cold"))
    fs = RealFileSystem()
    basis = load_basis(fs, place)
    assert basis is not None
    fs.make_dir(place.staging)
    plan = make_plan(basis, find_superseded(fs, place, basis, driver.clock()), SPLIT)
    work = Work(place, "j", driver.clock(), basis, plan)
    writer = CompactionWriter(save_work(fs, work))
    straggler = {at: writer.write_one(work, at, 10 + at) for at in range(len(plan.bins))}
    twin = writer.write_one(work, 0, 99)
    counted = straggler | {0: twin}
    writer.commit([BinsWritten([(at, report)]) for at, report in counted.items()])
    staged = decode_staged((tmp_path / "cold/shard-0000/staging/j.staged.json").read_bytes())
    assert staged.new[0].file == "j.p0-a99.seg" and len(staged.new) == len(plan.bins)
    with pytest.raises(AssertionError, match="reported twice"):
        writer.commit([BinsWritten([(0, straggler[0])]), BinsWritten([(0, twin)])])
    with pytest.raises(AssertionError, match="missing"):
        writer.commit([BinsWritten([(0, twin)])])
    run_jobs(driver)
    assert list((tmp_path / "cold/shard-0000/staging").iterdir()) == [], "also the file that did not count"


def test_a_bad_block_ends_the_job_and_is_named(spark: Any, tmp_path: Path) -> None:
    driver = shard(str(tmp_path / "data"), str(tmp_path / "cold"))
    place = ShardPlace(0, str(tmp_path / "data"), str(tmp_path / "cold"))
    basis = load_basis(RealFileSystem(), place)
    assert basis is not None
    path = tmp_path / "cold/shard-0000/data/0000000002.seg"
    content = bytearray(path.read_bytes())
    content[200] ^= 1
    path.write_bytes(content)
    with pytest.raises(Exception, match=r"0000000002\.seg"):
        compact_spark(spark, place, basis, job="j", now_ms=driver.clock())
    assert list((tmp_path / "cold/shard-0000/staging").iterdir()) == []


@pytest.mark.exhaustive  # a session of its own: the tasks' environment is the one that the session began with
def test_a_store_in_a_bucket_is_compacted_by_spark(tmp_path: Path) -> None:
    from shared.io.bucket_fs import TieredFileSystem

    with s3_server() as server:
        url = f"s3://{server.new_bucket()}/cold"
        driver = shard(str(tmp_path / "data"), url, TieredFileSystem(url))
        left = [record["$seq"] for record in driver.read_all("plain")]
        driver.close()
        command = ["cold", "compact", "--data-dir", str(tmp_path / "data"), "--cold-dir", url]
        done = subprocess.run(
            [sys.executable, "-m", "topicsd", *command, "--engine", "spark", "--master", "local[2]"],
            cwd=ROOT,
            env=environment(server.env),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "records removed; receipt: " in done.stdout
        driver.reopen()
        assert [record["$seq"] for record in driver.read_all("plain")] == left
