"""Audits beside workers that move, drop and replace files: nothing is found that only passes by, and nothing hidden."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ops.coldstore.compact_local import compact_local
from ops.coldstore.places import SegmentPlace
from ops.coldstore.segment_files import open_index, opened
from ops.coldstore.staging import ShardPlace, load_basis
from shared.audit_history import REWRITE_GRACE_MS
from shared.compaction import COMPACTED_FROM
from shared.segment_reader import read_block
from tests.support.audit_kit import FS, cold_segments, hot_segments, kinds, run_audit
from tests.support.cold_stores import StorePaths, fill, fill_with_history, store_in


@pytest.fixture
def store(tmp_path: Path) -> StorePaths:
    with store_in(tmp_path, hot_retain_segments=2) as (driver, paths):
        fill_with_history(driver)
    return paths


def test_c08_an_audit_beside_a_worker_that_moves_and_drops_files_is_clean(tmp_path: Path) -> None:
    """Between the audit's looks the worker relocates, deletes and drops; every look in itself sees a torn picture."""
    with store_in(tmp_path, hot_retain_segments=1) as (driver, paths):
        fill(driver, ["alpha", "beta"], segments=4)
        driver.snapshot()
        driver.relocate()  # the snapshot says hot, the files are cold
        driver.delete_records("alpha", before_seq=41)
        driver.delete_records("beta", before_seq=41)
        steps = iter([driver.snapshot, driver.snapshot, driver.snapshot])
        before = run_audit(paths)
        assert kinds(before) == {}, "moved files are found where they are"
        # A cold file vanishes with its segment while the audit holds a listing that names it.
        os.unlink(f"{paths.cold_shard}/data/0000000001.seg")
        assert "missing_file" in kinds(run_audit(paths)), "the manifest still names it"
        report = run_audit(paths, before, online=True, between_looks=lambda: next(steps)())
        assert kinds(report) == {}
        assert report.shards[0].generation > before.shards[0].generation


def test_c08_a_worker_that_never_rests_causes_no_finding_and_hides_none(store: StorePaths) -> None:
    """Each look sees another file that the manifest does not name yet; one file is there in all of them."""
    data = Path(store.cold_shard) / "data"
    some_segment = Path(hot_segments(store)[0]).read_bytes()
    numbers = iter(range(100, 200))

    def move_on() -> None:
        for passing in data.glob("00000001*.seg"):
            passing.unlink()
        (data / f"{next(numbers):010d}.seg").write_bytes(some_segment)

    move_on()
    assert "orphan_file" in kinds(run_audit(store)), "a single look cannot know"
    assert kinds(run_audit(store, online=True, between_looks=move_on)).get("orphan_file") is None
    (data / "0000000300.seg").write_bytes(some_segment)
    report = run_audit(store, online=True, between_looks=move_on)
    orphans = [found["path"] for found in report.findings if found["kind"] == "orphan_file"]
    assert orphans == [str(data / "0000000300.seg")]


def test_c08_an_audit_is_clean_at_every_step_of_an_adoption(tmp_path: Path) -> None:
    """One look after each job of the worker; the history is that from before the compaction."""
    with store_in(tmp_path, hot_retain_segments=1) as (driver, paths):
        driver.put("last", cleanup="compact")
        fill(driver, ["last", "plain"], segments=4)
        driver.relocate()
        driver.delete_records("plain", match=["tag", "Eq", "tag-3"])
        driver.settle()
        driver.snapshot()
        before = run_audit(paths)
        place = ShardPlace(0, paths.data, paths.cold)
        basis = load_basis(FS, place)
        assert (
            basis is not None
            and compact_local(FS, place, basis, job="job", now_ms=driver.clock()) is not None
        )
        maintenance = driver.shard.maintenance
        assert maintenance.adoption is not None
        maintenance.adoption.scan_soon()
        steps = idle = 0
        while idle < 3:
            job = maintenance.next_job()
            if job is None:
                idle += not maintenance.stepping
                driver.sync()
                continue
            idle = 0
            assert driver.finish_job(job)
            steps += 1
            report = run_audit(paths, before)
            assert kinds(report) == {}, f"after {type(job).__name__}"
        assert steps >= 5 and maintenance.adoption.adopted == 1
        driver.clock.advance(REWRITE_GRACE_MS)
    report = run_audit(paths, before)
    assert kinds(report) == {}
    assert any(found["kind"] == "rewritten" for found in report.findings)
    assert max(row.number for row in report.segments) >= COMPACTED_FROM


def test_c08_a_reader_that_holds_a_file_of_an_old_generation_reads_on(store: StorePaths) -> None:
    path = cold_segments(store)[0]
    _, index = open_index(FS, SegmentPlace(path, 0, 1))
    with opened(FS, path) as file:
        os.unlink(path)
        assert read_block(file.pread, index.block(0)).header.count
