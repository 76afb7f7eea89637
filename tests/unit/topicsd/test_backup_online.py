"""The plans of running workers: taken when all of them stand still, tried again when one did not."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

import pytest
import trio

import shard_worker.serve.backup_links as backup_links
from shard_worker.backup_pins import ShardPlan
from tests.support.running_worker import running
from tests.support.server_process import wait_for
from tests.support.shard_driver import ShardDriver
from topicsd.backup.online import online_plans
from topicsd.backup.refusal import BackupRefused


def plans_of(
    path: str, attempts: int, wall_ms: Callable[[], int] = lambda: 77
) -> tuple[list[ShardPlan], int]:
    """`wall_ms` is called while all workers hold."""
    with online_plans([path], wall_ms, attempts) as found:
        return found


@pytest.mark.trio
async def test_the_plan_of_a_running_worker_ends_where_its_log_is_synced() -> None:
    driver = ShardDriver(cold_dir=None)
    driver.append("t", [{"data": 1}])
    async with running(driver) as worker:
        plans, moment_ms = await trio.to_thread.run_sync(plans_of, worker.path, 5)
        assert moment_ms == 77
        assert [plan.end for plan in plans] == [driver.engine.wal.end]
        assert driver.engine.wal.synced >= plans[0].end


@pytest.mark.trio
async def test_a_hold_that_breaks_each_time_is_a_refusal_and_not_a_backup_of_several_moments() -> None:
    with patch.object(backup_links, "BACKUP_HOLD_MAX_S", 0.0):
        async with running(ShardDriver(cold_dir=None)) as worker:

            def too_late() -> int:
                return wait_for(lambda: 1 if not worker.loop._backups.held else None)

            with pytest.raises(BackupRefused, match="stand still together"):
                await trio.to_thread.run_sync(plans_of, worker.path, 2, too_late)


def test_a_worker_that_is_not_there_is_named() -> None:
    with pytest.raises(BackupRefused, match="shard 0 cannot be reached"):
        plans_of("/nowhere/shard-0000.sock", 1)
