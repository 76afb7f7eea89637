"""The sync thread of a running worker: nothing is answered before its sync, a sync that fails ends the worker, and an
end waits for the sync that is under way."""

from __future__ import annotations

import errno
import select
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pytest
import trio

from shard_worker.disk.wal import SyncJob
from shard_worker.serve.sync_thread import SyncThread
from shared.errors import DiskFault
from shared.wire import Op
from tests.support.fake_disk import FakeDisk
from tests.support.fake_shard import eventually
from tests.support.running_worker import running
from tests.support.shard_driver import ShardDriver

WRITE = b'{"records":[{"data":1}]}'


class HeldSyncs:
    def __init__(self) -> None:
        self.go = threading.Semaphore(0)
        self.begun = 0
        self.done = 0


@contextmanager
def held_syncs() -> Iterator[HeldSyncs]:
    """Each sync reaches the disk when `go` is released."""
    held, run = HeldSyncs(), SyncJob.run

    def wait_and_run(job: SyncJob) -> None:
        held.begun += 1
        assert held.go.acquire(timeout=10)
        run(job)
        held.done += 1

    with patch.object(SyncJob, "run", wait_and_run):
        try:
            yield held
        finally:
            held.go.release(100)


def a_shard() -> ShardDriver:
    driver = ShardDriver(wal_file_bytes=1 << 16, cold_dir=None)
    driver.put("t", durable=True)
    return driver


def alive() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "sync"]


# --- alone ------------------------------------------------------------------------------------------------


def job_of(disk: FakeDisk) -> SyncJob:
    disk.make_dir("/d")
    file = disk.create("/d/f")
    file.pwritev([b"x"], 0)
    return SyncJob(disk, "/d", [file], True, 7)


def ends(thread: SyncThread) -> bool:
    return bool(select.select([thread.fd], [], [], 10)[0])


def test_the_end_of_a_job_is_told_once() -> None:
    thread = SyncThread()
    assert thread.take() is None
    for _ in range(2):
        job = job_of(FakeDisk())
        thread.start(job)
        assert ends(thread)
        assert thread.take() is job and job.run_ms > 0
        assert thread.take() is None
    thread.join()
    thread.close()


def test_what_a_job_raises_is_raised_where_it_is_taken() -> None:
    thread, disk = SyncThread(), FakeDisk()
    job = job_of(disk)
    disk.fail_on("sync", error=errno.EIO)
    thread.start(job)
    assert ends(thread)
    with pytest.raises(DiskFault):
        thread.take()
    thread.join()
    thread.close()


def test_a_join_waits_for_the_job_that_is_under_way() -> None:
    thread = SyncThread()
    thread.join()  # nothing has begun
    with held_syncs() as held:
        job = job_of(FakeDisk())
        thread.start(job)
        releaser = threading.Timer(0.05, held.go.release)
        releaser.start()
        thread.join()
        assert held.done == 1 and thread.take() is job
        releaser.join()
    thread.close()


# --- in a worker ------------------------------------------------------------------------------------------


@pytest.mark.trio
async def test_nobody_is_answered_before_the_sync_and_the_next_one_starts_at_once() -> None:
    driver = a_shard()
    commits = driver.engine.commits
    async with running(driver) as worker:
        client, other = await worker.connect(), await worker.connect()
        with held_syncs() as held:
            await client.ask(Op.APPEND, "t", WRITE, count=3)
            await eventually(lambda: held.begun == 1)
            await other.ask(Op.APPEND, "t", WRITE, count=2)
            await eventually(lambda: commits.waiting == 5)
            assert driver.engine.state.catalog.visible["t"].head == 0
            with trio.move_on_after(0.05) as silent:
                await client.answers(1)
            assert silent.cancelled_caught and held.begun == 1
            held.go.release()
            assert [answer.status for answer in await client.answers(3)] == [200] * 3
            await eventually(lambda: held.begun == 2)
            topic = driver.engine.state.catalog.visible["t"]
            assert topic.head == 3, "the second group waits for a sync of its own"
            held.go.release()
            assert [answer.status for answer in await other.answers(2)] == [200] * 2
            assert topic.head == 5 and held.begun == 2
    assert not alive()


@pytest.mark.trio
async def test_a_sync_that_fails_ends_the_worker_and_answers_nobody() -> None:
    driver = a_shard()
    with pytest.raises(BaseExceptionGroup) as caught:
        async with running(driver) as worker:
            client = await worker.connect()
            driver.disk.fail_on("sync", error=errno.EIO, path_contains="/wal/")
            await client.ask(Op.APPEND, "t", WRITE)
            await client.answers(1)
            pytest.fail("answered")
    assert caught.group_contains(DiskFault)
    assert driver.engine.state.catalog.visible["t"].head == 0
    assert not alive()


@pytest.mark.trio
async def test_a_worker_that_is_told_to_stop_finishes_the_sync_that_is_under_way() -> None:
    driver = a_shard()
    with held_syncs() as held:
        async with running(driver) as worker:
            client = await worker.connect()
            await client.ask(Op.APPEND, "t", WRITE)
            await eventually(lambda: held.begun == 1)
            await client.ask(Op.APPEND, "t", WRITE)
            await eventually(lambda: driver.engine.commits.waiting == 2)
            worker.loop.stop()
            await trio.sleep(0.05)
            held.go.release()
            assert (await client.answers(1))[0].status == 200
        assert held.begun == 1, "none begins after the end"
    assert not driver.engine.commits.sync_running and not alive()
    driver.engine.sync_now()
    assert driver.engine.state.catalog.visible["t"].head == 2


@pytest.mark.trio
async def test_a_cancelled_worker_finishes_the_sync_that_is_under_way() -> None:
    driver = a_shard()
    with held_syncs() as held:
        with trio.CancelScope() as scope:
            async with running(driver) as worker:
                client = await worker.connect()
                await client.ask(Op.APPEND, "t", WRITE)
                await eventually(lambda: held.begun == 1)
                held.go.release()
                scope.cancel()
                await trio.sleep_forever()
        assert held.done == 1
    assert not driver.engine.commits.sync_running and not alive()
    assert driver.engine.state.catalog.visible["t"].head == 1


@pytest.mark.trio
async def test_what_nobody_waits_for_is_synced_before_long() -> None:
    driver = a_shard()
    driver.append("lazy", [{"data": 0}])
    driver.engine.sync_now()
    wal = driver.engine.wal
    async with running(driver) as worker:
        client = await worker.connect()
        driver.clock.advance(10_000)
        assert (await client.call(Op.APPEND, "lazy", WRITE)).status == 200
        end = wal.end
        await eventually(lambda: wal.synced >= end)
