"""The thread that syncs the log: one for the life of a worker, woken by a queue, heard through an eventfd.

The eventfd is a member of the loop's epoll set, so the end of a sync is an event like any other: the turn that takes
it answers whoever waited, and starts the next sync for those who have come meanwhile. No task is scheduled for it.
"""

from __future__ import annotations

import os
import threading
import time
from queue import SimpleQueue

from shard_worker.disk.wal import SyncJob


class SyncThread:
    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """Readable when a sync has ended."""
        self._jobs: SimpleQueue[SyncJob | None] = SimpleQueue()
        self._ended: SyncJob | None = None
        self._failure: BaseException | None = None
        self._runner: threading.Thread | None = None

    def start(self, job: SyncJob) -> None:
        """Run it; one at a time."""
        if self._runner is None:
            self._runner = threading.Thread(target=self._run, name="sync", daemon=True)
            self._runner.start()
        self._jobs.put(job)

    def take(self) -> SyncJob | None:
        """The job that has ended, if one has; raises what it raised."""
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            return None
        if self._failure is not None:
            raise self._failure
        job, self._ended = self._ended, None
        return job

    def join(self) -> None:
        """Waits for the job that is under way; there will be no other. May be called in a thread."""
        if self._runner is not None:
            self._jobs.put(None)
            self._runner.join()
            self._runner = None

    def close(self) -> None:
        """After `join`."""
        os.close(self.fd)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            started = time.perf_counter()
            try:
                job.run()
            except BaseException as err:
                self._failure = err
            job.run_ms = (time.perf_counter() - started) * 1000
            self._ended = job
            os.eventfd_write(self.fd, 1)
