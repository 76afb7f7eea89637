"""A real worker on a slow disk: every sync takes `TOPICS_TEST_SYNC_MS` longer than it would.

For `LiveServer(worker_module=SLOW_DISK)`: how much a server can take is then known, whatever the machine.
"""

from __future__ import annotations

import os
import sys
import time

from shard_worker.__main__ import main
from shard_worker.disk.wal import SyncJob

SLOW_DISK = "tests.support.slow_disk_worker"


def slow_down(seconds: float) -> None:
    run = SyncJob.run

    def run_slowly(job: SyncJob) -> None:
        time.sleep(seconds)
        run(job)

    SyncJob.run = run_slowly  # type: ignore[method-assign]


if __name__ == "__main__":
    slow_down(int(os.environ["TOPICS_TEST_SYNC_MS"]) / 1000)
    sys.exit(main())
