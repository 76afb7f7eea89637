"""The archive: nothing is removed before it is handed over, whatever the archive does, and it heals by itself."""

from __future__ import annotations

import errno

import pytest

from shard_worker.metrics import worker_metrics
from shard_worker.wal_archive import HandOverJob, WalArchive
from shared.backup_format import LOG, SEGMENTS, parse_file_key
from shared.errors import ReadOnlyShard
from shared.wire import decode_metrics
from tests.support.backup_kit import PLACE, BackedUp, shown
from tests.support.fake_disk import PowerCut
from topicsd.backup.place import list_files


def filled(store: BackedUp) -> BackedUp:
    """Several log files, all sealed, so that nothing but the archive holds them back."""
    for _ in range(4):
        store.append("a", 60)
        store.driver.sync()
    return store


def snapshots(store: BackedUp, times: int = 3) -> None:
    for _ in range(times):
        store.driver.seal()
        store.append("a")
        store.driver.sync()
        store.driver.snapshot()


def archive_of(store: BackedUp) -> WalArchive:
    archive = store.driver.shard.archive
    assert archive is not None
    return archive


def archived(store: BackedUp, kind: str = LOG) -> list[int]:
    return [
        file.key.number for file in list_files(store.place, "feedfacecafe0001", 0) if file.key.kind == kind
    ]


def attempt(store: BackedUp) -> bool:
    """One job, as the worker does it; False if it failed."""
    archive = archive_of(store)
    job = archive.next_job()
    assert job is not None
    try:
        job.run()
    except OSError as err:
        archive.failed(job, err)
        return False
    archive.finish(job)
    return True


def test_a_log_file_goes_only_when_the_archive_has_it() -> None:
    store = filled(BackedUp())
    files = set(store.driver.engine.wal.files)
    assert len(files) > 3
    snapshots(store)
    assert files <= set(store.driver.engine.wal.files), "kept although no snapshot needs them"
    store.hand_over()
    assert not files & set(store.driver.engine.wal.files) - {max(files)}
    assert set(archived(store)) >= files - {max(files)}


def test_without_the_archive_they_would_have_gone() -> None:
    store = filled(BackedUp(archive=False))
    files = set(store.driver.engine.wal.files)
    snapshots(store)
    assert not files & set(store.driver.engine.wal.files) - {max(files)}


def test_a_segment_goes_only_when_the_archive_has_it() -> None:
    store = BackedUp()
    store.append("a", 20)
    store.driver.seal(["a"])
    store.driver.relocate()
    store.delete_topic("a")
    store.append("b")
    snapshots(store, 4)
    assert 1 in store.driver.engine.state.segments
    store.driver.sync()
    store.hand_over()
    snapshots(store, 3)
    assert 1 not in store.driver.engine.state.segments
    assert 1 in archived(store, SEGMENTS)


@pytest.mark.parametrize("op", ["mkdir", "create", "write", "sync", "rename"])
def test_an_archive_out_of_reach_costs_space_only_and_heals(op: str) -> None:
    store = filled(BackedUp())
    store.driver.sync()
    assert attempt(store), "the list is read while it still answers"
    store.driver.disk.fail_on(op, error=errno.EIO, path_contains=PLACE, times=None)  # type: ignore[arg-type]
    files = set(store.driver.engine.wal.files)
    for _ in range(3):
        assert not attempt(store)
        snapshots(store, 1)
    metrics = decode_metrics(worker_metrics(store.driver.shard))
    assert metrics["gauges"]["wal_archive_failing"] == 1
    assert metrics["gauges"]["wal_archive_lag_files"] > 2
    assert metrics["counters"]["wal_archive_failures_total"] == 3
    assert files <= set(store.driver.engine.wal.files)
    store.driver.kill()
    assert shown(store.driver) == store.model
    store.driver.disk.clear_faults()
    store.driver.sync()
    store.hand_over()
    snapshots(store, 2)
    assert not files & set(store.driver.engine.wal.files) - {max(files)}
    assert decode_metrics(worker_metrics(store.driver.shard))["gauges"]["wal_archive_failing"] == 0
    assert shown(store.driver) == store.model


def test_a_shard_without_space_gets_some_back_when_the_archive_does() -> None:
    store = filled(BackedUp())
    snapshots(store)
    files = set(store.driver.engine.wal.files)
    store.driver.engine.commits.read_only = ReadOnlyShard(shard=0, free_bytes=1, min_free_bytes=2)
    store.hand_over()
    assert len(store.driver.engine.wal.files) < len(files)


def test_a_restart_asks_the_archive_what_it_has_and_hands_nothing_over_twice() -> None:
    store = filled(BackedUp())
    store.driver.sync()
    handed_over = store.hand_over()
    assert handed_over > 3
    before = archived(store)
    store.driver.close()
    store.driver.reopen()
    snapshots(store, 1)
    assert archive_of(store).first_file() == 0, "not known before it was asked"
    store.hand_over()
    assert len(set(archived(store))) == len(archived(store)) >= len(before)


def test_a_copy_that_was_cut_off_is_made_again() -> None:
    cut = 1
    while True:
        store = filled(BackedUp())
        store.driver.sync()
        assert attempt(store)
        job = archive_of(store).next_job()
        assert isinstance(job, HandOverJob)
        store.driver.disk.crash_after(cut, half=True, seed=cut)
        try:
            job.run()
            finished = True
        except PowerCut:
            finished = False
        store.driver.lose_power(seed=cut)
        assert not finished or job.number in archived(store)
        store.driver.sync()
        store.hand_over()
        assert job.number in archived(store)
        for listed in store.place.list(""):
            key = parse_file_key(listed.key)
            assert key is not None
        if finished:
            break
        cut += 1
    assert cut > 5


def test_only_what_is_synced_is_handed_over() -> None:
    store = BackedUp()
    store.append("a")
    store.hand_over()
    synced = store.driver.engine.wal.synced >> 32
    for _ in range(4):
        store.append("a", 60)
    assert store.driver.engine.wal.file_no > synced + 1
    store.hand_over()
    assert all(number < store.driver.engine.wal.synced >> 32 for number in archived(store))
