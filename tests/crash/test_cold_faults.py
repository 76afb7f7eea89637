"""The cold tier, as far as a worker alone moves segments there: C1 to C3."""

from __future__ import annotations

import errno

import pytest

from shared.manifest import decode_manifest, manifest_name
from tests.support.fault_kit import (
    COLD_SHARD_DIR,
    cold_path,
    crash_points,
    data_of,
    expect_healthy,
    flip_in_segment,
    picture,
    reopened,
    segment_is_intact,
    segment_path,
    topics_of,
)
from tests.support.shard_driver import COLD_DIR, ShardDriver


def shard_with(**overrides: object) -> ShardDriver:
    """Three sealed segments and hot records; one segment is kept out of the cold tier."""
    driver = ShardDriver(wal_file_bytes=4096, **overrides)
    driver.put("t", durable=True)
    for number in range(3):
        driver.append("t", [{"data": 10 * number + at, "tag": f"t{at}"} for at in range(3)])
        assert driver.seal()
    driver.append("t", [{"data": "hot"}])
    driver.sync()
    return driver


def expect_readable_where_it_is(driver: ShardDriver) -> None:
    """Every segment in use is at the place the state names, intact."""
    for topic in topics_of(driver).values():
        for run in topic.runs:
            path = driver.shard.store.segment_path(run.segment)
            assert segment_is_intact(driver.disk, path, driver.engine.state.segments[run.segment].digest)


def manifest_segments(driver: ShardDriver) -> list[int]:
    names = [name for name in driver.disk.list_dir(COLD_SHARD_DIR) if name.startswith("manifest-")]
    if not names:
        return []
    manifest = decode_manifest(driver.disk.read_file(f"{COLD_SHARD_DIR}/{max(names)}"))
    return [segment.number for segment in manifest.segments]


def test_c00_segments_beyond_the_hot_bound_move_and_are_read_from_there() -> None:
    driver = shard_with()
    before = picture(driver)
    assert driver.relocate() == 2
    assert picture(driver) == before
    assert [driver.disk.exists(segment_path(number)) for number in (1, 2, 3)] == [False, False, True]
    assert manifest_segments(driver) == [1, 2]
    expect_readable_where_it_is(driver)
    driver.lose_power(keep="none")
    assert picture(driver) == before
    expect_healthy(driver)


def test_c01_crash_at_each_step_of_relocation() -> None:
    """After the copy before the manifest, after it before the log, after the log before the hot copy goes."""
    before = picture(shard_with())
    visited = 0
    for crashed in crash_points(shard_with, lambda driver: driver.relocate()):
        visited += 1
        for driver in crashed.outcomes():
            assert picture(driver) == before, f"step {crashed.step}"
            expect_readable_where_it_is(driver)
            driver.relocate()
            assert picture(driver) == before
            assert manifest_segments(driver) == [1, 2]
            expect_readable_where_it_is(driver)
            expect_healthy(driver)
    assert visited >= 15


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("op", ["mkdir", "create", "write", "sync", "rename", "syncdir"])
def test_c02_a_cold_tier_that_fails_keeps_the_hot_copy(op: str, error: int) -> None:
    driver = shard_with()
    before = picture(driver)
    driver.disk.fail_on(op, error=error, path_contains=COLD_DIR, times=None)  # type: ignore[arg-type]
    for _ in range(3):
        assert not driver.finish_job(driver.begin_relocation())
    driver.sync()
    driver.shard.maintenance.next_job()
    assert all(driver.disk.exists(segment_path(number)) for number in (1, 2, 3))
    assert picture(driver) == before
    assert driver.append("t", [{"data": "writes go on"}]).ok
    assert driver.seal(), "and so does sealing"
    driver.disk.clear_faults()
    assert driver.relocate() == 3
    expect_readable_where_it_is(driver)
    driver.kill()
    assert data_of(driver, "t")[-2:] == ["hot", "writes go on"]


def test_c02_a_move_that_the_log_cannot_take_note_of_keeps_the_hot_copy() -> None:
    driver = shard_with()
    before = picture(driver)
    job = driver.begin_relocation()
    assert job is not None
    job.run()
    driver.disk.fail_on("write", error=errno.EIO, path_contains="/wal/")
    driver.shard.maintenance.finish(job)
    for _ in range(3):
        driver.append("t", [{"data": "more"}])
        driver.sync()
        driver.shard.maintenance._remove_moved()
    assert driver.disk.exists(segment_path(1)), "the log says hot, so it stays hot"
    assert picture(driver)["t"]["records"][:10] == before["t"]["records"]
    driver.kill()
    assert picture(driver)["t"]["records"][:10] == before["t"]["records"]
    driver.relocate()
    expect_readable_where_it_is(driver)


@pytest.mark.parametrize("missing", ["unmounted", "unset", "file", "short"])
def test_c02_a_cold_copy_that_is_not_there_at_the_start_does_not_cost_the_hot_one(missing: str) -> None:
    driver = shard_with()
    before = picture(driver)
    assert driver.finish_job(driver.begin_relocation())
    driver.sync()  # the log says cold; the hot copy is still there
    assert driver.disk.exists(segment_path(1)) and driver.disk.exists(cold_path(1))
    driver.disk.kill_process()
    if missing in ("unmounted", "file"):
        driver.disk.remove(cold_path(1))
    elif missing == "short":
        driver.disk.resize(cold_path(1), 100)
    twin = reopened(driver)
    if missing == "unset":
        from dataclasses import replace

        twin.settings = replace(driver.settings, cold_dir=None)
    twin.reopen()
    assert twin.disk.exists(segment_path(1)), "the only copy is kept"
    if missing == "unset":
        assert picture(twin) == before


def test_c02_an_unreachable_cold_tier_refuses_reads_of_cold_records_only() -> None:
    driver = shard_with()
    driver.relocate()
    driver.kill()
    driver.disk.fail_on("open", error=errno.EIO, path_contains=COLD_DIR, times=None)
    answer = driver.read_answer("t")
    assert (answer.status, answer.json["error"]["detail"]["reason"]) == (500, "corrupt_segment")
    assert [record["data"] for record in driver.read("t", 6)["records"]] == [20, 21, 22, "hot"]
    assert driver.append("t", [{"data": "writes go on"}]).ok
    driver.disk.clear_faults()
    assert len(driver.read_all("t")) == 11


def test_c02_dead_segments_in_an_unreachable_cold_tier_wait() -> None:
    driver = shard_with()
    driver.relocate()
    driver.delete_records("t", before_seq=7)
    for op in ("create", "unlink", "rename"):
        driver.disk.fail_on(op, path_contains=COLD_DIR, times=None)  # type: ignore[arg-type]
    for number in range(3):
        driver.append("t", [{"data": number}])
        assert driver.snapshot()
    driver.disk.clear_faults()
    driver.kill()
    assert data_of(driver, "t") == [20, 21, 22, "hot", 0, 1, 2]
    for _ in range(3):
        assert driver.snapshot()
    assert manifest_segments(driver) == []
    assert not driver.disk.exists(cold_path(1)) and not driver.disk.exists(cold_path(2))


def test_c03_a_torn_cold_copy_is_found_out_while_the_hot_one_exists() -> None:
    driver = shard_with()
    before = picture(driver)
    job = driver.begin_relocation()
    assert job is not None

    class LyingDisk:
        """Takes a copy and keeps something else."""

        def __init__(self) -> None:
            self.armed = True

        def __getattr__(self, name: str) -> object:
            return getattr(driver.disk, name)

        def create(self, path: str) -> object:
            file = driver.disk.create(path)
            real = file.sync_data

            def sync() -> None:
                real()
                if self.armed and path.endswith(".seg.tmp"):
                    driver.disk.flip_bit(path, 200, 1)
                    assert not segment_is_intact(driver.disk, path)

            file.sync_data = sync  # type: ignore[method-assign]
            return file

    job.fs = LyingDisk()  # type: ignore[assignment]
    assert not driver.finish_job(job)
    assert not driver.disk.exists(cold_path(1)) and manifest_segments(driver) == []
    assert driver.disk.exists(segment_path(1))
    assert picture(driver) == before


def test_c03_a_damaged_hot_segment_is_not_copied_and_does_not_hold_up_the_others() -> None:
    driver = shard_with()
    driver.kill()
    flip_in_segment(driver.disk, segment_path(1), 200)
    for _ in range(4):
        driver.finish_job(driver.begin_relocation())
        driver.sync()
    assert manifest_segments(driver) == [2]
    assert driver.disk.exists(segment_path(1)), "kept for inspection"


def test_c03_a_cold_copy_that_rots_is_refused_by_name_and_the_rest_is_served() -> None:
    driver = shard_with()
    driver.relocate()
    driver.kill()
    flip_in_segment(driver.disk, cold_path(1), 200)
    assert driver.read_answer("t").status == 500
    assert [record["data"] for record in driver.read("t", 3)["records"]] == [10, 11, 12, 20, 21, 22, "hot"]


def test_c03_a_torn_manifest_stops_moving_and_nothing_else() -> None:
    driver = shard_with()
    assert driver.finish_job(driver.begin_relocation())
    path = f"{COLD_SHARD_DIR}/{manifest_name(1)}"
    driver.disk.resize(path, 100)
    with pytest.raises(ValueError):
        decode_manifest(driver.disk.read_file(path))
    before = picture(driver)
    driver.sync()
    assert not driver.finish_job(driver.begin_relocation())
    assert picture(driver) == before
    driver.kill()
    assert picture(driver) == before
    expect_healthy(driver)
