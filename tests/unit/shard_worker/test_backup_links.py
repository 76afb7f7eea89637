"""A shard that is held for a backup writes nothing, comes back by itself, and keeps what it promised to keep."""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

import pytest
import trio
import trio.lowlevel

import shard_worker.serve.backup_links as backup_links
from shard_worker.backup_pins import PlannedSegment, ShardPlan
from shard_worker.pending import PendingControl
from shared.cbor_body import load_map
from shared.control_frames import Watermark
from shared.wire import Op
from tests.support.running_worker import Client, running
from tests.support.shard_driver import ShardDriver

WRITE = b'{"records":[{"data":1}]}'


@pytest.fixture(autouse=True)
def patient() -> Iterator[None]:
    """However slow this machine is, a hold lasts as long as the test wants it to."""
    with patch.object(backup_links, "BACKUP_HOLD_MAX_S", 60.0):
        yield


def a_shard() -> ShardDriver:
    driver = ShardDriver(wal_file_bytes=1 << 16, cold_dir=None)
    driver.append("t", [{"data": 0}])
    return driver


def unbroken(body: bytes) -> bool:
    return load_map(body).rest()["unbroken"] is True


async def hold(client: Client) -> ShardPlan:
    answer = await client.call(Op.BACKUP_HOLD)
    assert answer.status == 200
    return ShardPlan.decode(answer.body)


def test_a_plan_crosses_the_link_as_it_is() -> None:
    plan = ShardPlan(
        shard=3,
        end=1 << 40,
        first_file=2,
        snapshot=None,
        snapshot_end=0,
        last_segment=9,
        now_ms=5,
        segments=(PlannedSegment(1, "cold", 2, "0" * 16, False),),
    )
    assert ShardPlan.decode(plan.encode()) == plan


@pytest.mark.trio
async def test_while_it_is_held_nothing_is_written_and_afterwards_everyone_is_served() -> None:
    async with running(a_shard()) as worker:
        writer, backup = await worker.connect(), await worker.connect("cli")
        plan = await hold(backup)
        wal = worker.driver.engine.wal
        assert plan.end == wal.end
        await writer.ask(Op.APPEND, "t", WRITE, count=3)
        await writer.ask(Op.PUT_TOPIC, "new", b"{}")
        # What another worker answers may stage a frame, and ends a turn.
        engine, written = worker.driver.engine, wal.counters.bytes
        engine.commits.stage_control(
            PendingControl(Watermark(reserve=9), engine.state.catalog.visible["t"], 1)
        )
        worker.loop._end_turn()
        # Other tasks try as well: a tick, a sync, maintenance.
        for task in (worker.loop._ticks, worker.loop._sync_loop, worker.loop._maintenance_loop):
            with trio.move_on_after(0.05):
                await task()
        assert wal.counters.bytes == written
        assert unbroken((await backup.call(Op.BACKUP_RELEASE)).body)
        assert {answer.status for answer in await writer.answers(4)} == {200, 201}
        assert wal.synced >= plan.end, "the backup was told when all of it is on disk"
        assert wal.end > plan.end


@pytest.mark.trio
async def test_a_hold_that_is_forgotten_ends_by_itself_and_its_backup_is_told() -> None:
    with patch.object(backup_links, "BACKUP_HOLD_MAX_S", 0.05):
        async with running(a_shard()) as worker:
            writer, backup = await worker.connect(), await worker.connect("cli")
            await hold(backup)
            assert (await writer.call(Op.APPEND, "t", WRITE)).status == 200
            assert not unbroken((await backup.call(Op.BACKUP_RELEASE)).body)


@pytest.mark.trio
async def test_a_backup_whose_link_ends_holds_nothing_and_keeps_nothing() -> None:
    async with running(a_shard()) as worker:
        writer, backup = await worker.connect(), await worker.connect("cli")
        await hold(backup)
        assert worker.loop._backups.pinned == 1
        await writer.ask(Op.APPEND, "t", WRITE)
        await backup.stream.aclose()
        assert (await writer.answers(1))[0].status == 200
        assert worker.loop._backups.pinned == 0


@pytest.mark.trio
async def test_the_pins_last_until_the_link_ends() -> None:
    async with running(a_shard()) as worker:
        backup = await worker.connect("cli")
        plan = await hold(backup)
        await backup.call(Op.BACKUP_RELEASE)
        (keeper,) = worker.driver.shard.maintenance.keepers
        assert keeper.first_file() == plan.first_file
        assert (await backup.call(Op.BACKUP_RELEASE)).status == 400
        assert (await backup.call(Op.BACKUP_HOLD)).status == 400
        await backup.stream.aclose()
        with trio.fail_after(5):
            while keeper.first_file() is not None:
                await trio.lowlevel.checkpoint()


@pytest.mark.trio
async def test_two_backups_at_once_hold_it_until_both_have_released() -> None:
    async with running(a_shard()) as worker:
        writer, one, other = await worker.connect(), await worker.connect("cli"), await worker.connect("cli")
        await hold(one)
        await other.ask(Op.BACKUP_HOLD)  # waits like everyone else
        assert unbroken((await one.call(Op.BACKUP_RELEASE)).body)
        assert (await other.answers(1))[0].status == 200
        assert unbroken((await other.call(Op.BACKUP_RELEASE)).body)
        assert (await writer.call(Op.APPEND, "t", WRITE)).status == 200
