"""The store that is to be backed up, running or not."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from shard_worker.backup_pins import ShardPlan, plan_backup
from shard_worker.disk.dir_lock import DirectoryLocked, DirLock
from shard_worker.disk.recovery import shard_paths
from shard_worker.shard import Shard
from shared.io.child_channel import socket_path
from shared.io.durable_fs import FileSystem
from shared.io.object_store import DirectoryStore, open_store
from shared.settings import Settings
from topicsd.backup.create import Source, wall_ms
from topicsd.backup.online import online_plans
from topicsd.backup.refusal import BackupRefused
from topicsd.exits import Exit
from topicsd.socket_dir import find_socket_dir
from topicsd.store_file import STORE_NAME, Store, read_store, with_id


@dataclass(frozen=True, slots=True)
class OpenedStore:
    store_id: str
    plans: list[ShardPlan]
    moment_ms: int
    running: bool


def source_of(fs: FileSystem, settings: Settings) -> Source:
    cold = open_store(fs, settings.cold_dir, setting="cold_dir") if settings.cold_dir is not None else None
    return Source(DirectoryStore(fs, settings.data_dir), cold)


@contextmanager
def opened_store(fs: FileSystem, settings: Settings) -> Iterator[OpenedStore]:
    """Its plans; the files they name stay in place while the context lasts."""
    data_dir = settings.data_dir
    if not fs.exists(f"{data_dir}/{STORE_NAME}"):
        raise BackupRefused(
            f"there is no store in {data_dir}: name the server's data directory with --data-dir"
        )
    with ExitStack() as held:
        lock = DirLock(data_dir)
        try:
            lock.acquire()
        except DirectoryLocked:
            yield held.enter_context(_running(fs, settings))
            return
        held.callback(lock.release)
        yield held.enter_context(_stopped(fs, settings))


@contextmanager
def _running(fs: FileSystem, settings: Settings) -> Iterator[OpenedStore]:
    store = _settled(read_store(fs, settings.data_dir))
    sockets = find_socket_dir(settings.data_dir)
    paths = [socket_path(sockets, shard) for shard in range(store.shards)]
    with online_plans(paths, wall_ms) as (plans, moment_ms):
        yield OpenedStore(store.id, plans, moment_ms, running=True)


@contextmanager
def _stopped(fs: FileSystem, settings: Settings) -> Iterator[OpenedStore]:
    """As if the server had been started for a moment, without anyone being served."""
    store = with_id(fs, settings.data_dir, _settled(read_store(fs, settings.data_dir), running=False))
    with ExitStack() as held:
        shards = []
        for number in range(store.shards):
            root = shard_paths(settings, number).root
            fs.make_dir(root)
            held.enter_context(DirLock(root))
            shard = Shard.open(fs, settings, number, wall_ms=wall_ms, clock=time.perf_counter)
            held.callback(shard.close)
            if shard.report.damage:
                raise shard.report.damage[0]
            shard.engine.sync_now()
            shards.append(shard)
        yield OpenedStore(store.id, [plan_backup(shard) for shard in shards], wall_ms(), running=False)


def _settled(store: Store, *, running: bool = True) -> Store:
    if store.moving_to is not None:
        what = "wait until it has started" if running else "start the server once, so that it finishes"
        raise BackupRefused(
            f"topics are being moved to {store.moving_to} shards: {what}", Exit.UNUSABLE_STORE
        )
    if running and not store.id:
        raise BackupRefused("the server that runs is of an earlier release: restart it with this one first")
    return store
