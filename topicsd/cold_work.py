"""Compactions and the shards that adopt them, for the command line: the server runs, or it does not.

A running server is asked through the staging directory, and watched. Without one the shard is opened here, under the
same locks, and does the very same work in this process.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec

from ops.coldstore.staging import ShardPlace
from shard_worker.disk.dir_lock import DirectoryLocked, DirLock
from shard_worker.disk.recovery import shard_paths
from shard_worker.shard import Shard
from shared.errors import DataDamage
from shared.io.durable_fs import FileSystem, read_whole, write_atomically
from shared.settings import Settings
from shared.staged import PENDING_ENDING, REFUSED_ENDING, SNAPSHOT_WANTED, STAGED_ENDING
from shared.store_layout import shard_of_dir

_LOOK_EVERY_S = 0.2

Job = Callable[[ShardPlace], object]


class WorkFailed(Exception):
    """What was asked for did not happen; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Outcome:
    job: str
    adopted: bool
    text: str


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def places(fs: FileSystem, data_dir: str, cold_dir: str) -> list[ShardPlace]:
    """The shards of the store that have anything in the cold tier."""
    found = [shard_of_dir(name) for name in fs.list_dir(cold_dir)]
    return [ShardPlace(number, data_dir, cold_dir) for number in found if number is not None]


@contextmanager
def server_stopped(data_dir: str) -> Iterator[bool]:
    """Whether no server uses the directory; if so it stays locked for as long as this lasts."""
    if not os.path.isdir(data_dir):
        raise WorkFailed(f"{data_dir} is not there: name the server's data directory with --data-dir")
    lock = DirLock(data_dir)
    try:
        lock.acquire()
    except DirectoryLocked:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


class StoppedServer:
    """The worker's part, done here."""

    def __init__(self, fs: FileSystem, data_dir: str, cold_dir: str, wal_archive: str | None) -> None:
        self._fs = fs
        # With an archive, what it has not got yet is kept: the server hands it over when it runs again.
        self._settings = Settings(
            data_dir=data_dir, cold_dir=cold_dir, min_free_bytes=0, wal_archive=wal_archive
        )

    @contextmanager
    def _opened(self, place: ShardPlace) -> Iterator[Shard]:
        with DirLock(shard_paths(self._settings, place.shard).root):
            shard = Shard.open(self._fs, self._settings, place.shard, wall_ms=now_ms, clock=time.perf_counter)
            try:
                if shard.report.damage:
                    raise WorkFailed(f"shard {place.shard} is damaged: {shard.report.damage[0]}")
                yield shard
            finally:
                shard.close()

    def run(self, place: ShardPlace, job: Job) -> None:
        """A fresh snapshot, the job, and its adoption."""
        with self._opened(place) as shard:
            for topic in list(shard.engine.state.catalog.by_id.values()):
                if topic.config.ttl_ms:
                    shard.engine.sweep(topic, now_ms())
            shard.maintenance.snapshot_now(clean=False)
            job(place)
            _adopt(shard)

    def adopt(self, place: ShardPlace) -> None:
        with self._opened(place) as shard:
            _adopt(shard)


def _adopt(shard: Shard) -> None:
    maintenance, engine = shard.maintenance, shard.engine
    assert maintenance.adoption is not None
    maintenance.adoption.scan_soon()
    idle = 0
    while idle < 3:
        job = maintenance.next_job()
        if job is None:
            if not maintenance.stepping:
                engine.sync_now()
                idle += 1
            continue
        idle = 0
        try:
            job.run()
        except (OSError, DataDamage) as err:
            maintenance.failed(job, err)
            raise WorkFailed(f"shard {engine.shard}: {err}") from err
        maintenance.finish(job)


class RunningServer:
    """The worker's part, asked for and waited for."""

    def __init__(self, fs: FileSystem, wait_s: float) -> None:
        self._fs = fs
        self._wait_s = wait_s

    def run(self, place: ShardPlace, job: Job) -> None:
        wanted = f"{place.staging}/{SNAPSHOT_WANTED}"
        self._fs.make_dir(place.staging)
        write_atomically(self._fs, wanted, [b"please\n"])
        self._until(lambda: not self._fs.exists(wanted), place, "take a snapshot")
        job(place)
        self.adopt(place)

    def adopt(self, place: ShardPlace) -> None:
        def settled() -> bool:
            names = self._fs.list_dir(place.staging)
            waiting = [name.removesuffix(STAGED_ENDING) for name in names if name.endswith(STAGED_ENDING)]
            return all(f"{job}{REFUSED_ENDING}" in names for job in waiting)

        self._until(settled, place, "adopt what is staged")

    def _until(self, done: Callable[[], bool], place: ShardPlace, what: str) -> None:
        deadline = time.monotonic() + self._wait_s
        while not done():
            if time.monotonic() > deadline:
                raise WorkFailed(
                    f"shard {place.shard} did not {what} within {self._wait_s:.0f} s: is it ready "
                    "(GET /v0/ready), and does the server use this cold directory? Nothing is lost; "
                    "`topicsd cold adopt` looks again"
                )
            time.sleep(_LOOK_EVERY_S)


def outcome_of(fs: FileSystem, place: ShardPlace, job: str) -> Outcome:
    refused = f"{place.staging}/{job}{REFUSED_ENDING}"
    if fs.exists(refused):
        told = msgspec.json.decode(read_whole(fs, refused), type=dict[str, object])
        return Outcome(job, False, f"refused: {told.get('reason')}")
    receipts = f"{place.cold}/receipts"
    if fs.exists(f"{receipts}/{job}.json"):
        return Outcome(job, True, f"receipt: {receipts}/{job}.json")
    if fs.exists(f"{receipts}/{job}{PENDING_ENDING}"):
        return Outcome(job, True, f"adopted; {receipts}/{job}.json follows when the old files are gone")
    return Outcome(job, False, "still waiting in the staging directory")


def discard_leftovers(fs: FileSystem, place: ShardPlace) -> int:
    """Remove what refused and unfinished jobs have left; what waits for its adoption stays. How many files."""
    names = fs.list_dir(place.staging)
    refused = {name.removesuffix(REFUSED_ENDING) for name in names if name.endswith(REFUSED_ENDING)}
    staged = {name.removesuffix(STAGED_ENDING) for name in names if name.endswith(STAGED_ENDING)}
    waiting = staged - refused
    gone = [name for name in names if name != SNAPSHOT_WANTED and name.partition(".")[0] not in waiting]
    # The word that a job was refused goes last: without it the worker would look at the job again.
    for name in sorted(gone, key=lambda name: name.endswith(REFUSED_ENDING)):
        fs.unlink(f"{place.staging}/{name}")
    return len(gone)


def new_job_name(engine: str) -> str:
    return f"{engine}-{now_ms()}-{os.getpid()}"
