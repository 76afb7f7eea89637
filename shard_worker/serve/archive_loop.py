"""The task that hands files over to the archive, one at a time, in a thread of its own: a slow or dead archive must
not hold up sealing, snapshots or anyone's request."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import trio

from shared.errors import BadSetting, DataDamage
from shared.limits import ARCHIVE_RETRY_MAX_S

if TYPE_CHECKING:
    from shard_worker.wal_archive import WalArchive

log = logging.getLogger("shard_worker")

_LOOK_EVERY_S = 1.0


async def hand_over(archive: WalArchive, retire_files: Callable[[], None], shard: int) -> None:
    """Until cancelled. `retire_files`: log files may have been trimmed."""
    wait_s = _LOOK_EVERY_S
    while True:
        job = archive.next_job()
        if job is None:
            await trio.sleep(_LOOK_EVERY_S)
            continue
        was_failing = bool(archive.last_failure)
        try:
            # Abandoned at shutdown: whatever it wrote is found and compared by the next start.
            await trio.to_thread.run_sync(job.run, abandon_on_cancel=True)
        except (OSError, DataDamage, BadSetting) as err:
            archive.failed(job, err)
            if not was_failing:
                log.error("shard.archive_failed", extra={"shard": shard, "reason": str(err)})
            await trio.sleep(wait_s)
            wait_s = min(ARCHIVE_RETRY_MAX_S, 2 * wait_s)
            continue
        wait_s = _LOOK_EVERY_S
        archive.finish(job)
        if was_failing:
            log.info("shard.archive_recovered", extra={"shard": shard})
        retire_files()
