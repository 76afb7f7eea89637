"""The worker hands its log over while it serves, says once that it cannot, and goes on when it can."""

from __future__ import annotations

import errno
import logging
from unittest.mock import patch

import pytest

import shard_worker.serve.archive_loop as archive_loop
from shared.backup_format import LOG, parse_file_key
from shared.io.object_store import DirectoryStore
from shared.wire import Op
from tests.support.fake_shard import eventually
from tests.support.running_worker import running
from tests.support.shard_driver import ShardDriver

PLACE = "/place"
# Synced at once: this shard's clock stands still, and its background syncs with it.
WRITE = b'{"config":{"durability":"fsync"},"records":[{"data":"%s"}]}' % (b"x" * 1500)


def archived(driver: ShardDriver) -> list[int]:
    keys = [parse_file_key(listed.key) for listed in DirectoryStore(driver.disk, PLACE).list("")]
    return [key.number for key in keys if key is not None and key.kind == LOG]


@pytest.mark.trio
async def test_finished_log_files_reach_the_archive_and_an_outage_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    driver = ShardDriver(cold_dir=None, wal_archive=PLACE)
    driver.disk.fail_on("create", error=errno.EACCES, path_contains=PLACE, times=None)
    with caplog.at_level(logging.INFO, "shard_worker"), patch.object(archive_loop, "_LOOK_EVERY_S", 0.01):
        async with running(driver) as worker:
            client = await worker.connect()
            for _ in range(8):
                assert (await client.call(Op.APPEND, "t", WRITE)).status in (200, 201)
            archive = driver.shard.archive
            assert archive is not None
            await eventually(lambda: archive.failures >= 3)
            assert archived(driver) == [] and archive.lag_files > 1
            assert (await client.call(Op.STATE, "t")).status == 200, "nobody waits for the archive"
            driver.disk.clear_faults()
            await eventually(lambda: archive.lag_files == 0 and len(archived(driver)) > 1)
    events = [record.message for record in caplog.records if "archive" in record.message]
    assert events == ["shard.archive_failed", "shard.archive_recovered"]
