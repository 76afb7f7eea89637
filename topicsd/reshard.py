"""The number of shards has changed since the last start: move every topic to where it belongs now.

Runs before any worker, under the supervisor's lock. `store.json` says `moving_to` while it is under way, so a
start that finds it there finishes the job, also towards yet another number. Each topic moves safely by itself
(shard_worker/moving.py); a directory whose topics have all left stays, empty, for the day the number grows again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

from msgspec import structs

from shard_worker.core.topic import Topic
from shard_worker.disk.dir_lock import DirLock
from shard_worker.disk.recovery import shard_paths
from shard_worker.moving import move_topics
from shard_worker.shard import Shard
from shared.io.durable_fs import FileSystem
from shared.routing import shard_for
from shared.settings import Settings
from topicsd.store_file import Store, new_store_id, present_shards, save_store

Progress = Callable[[int, int], None]  # topics moved, topics to move
OpenShard = Callable[[int], AbstractContextManager[Shard]]
Proceed = Callable[[], None]  # called between steps; raises to stop the move where it is


def ensure_shard_count(
    fs: FileSystem,
    settings: Settings,
    store: Store,
    progress: Progress,
    open_shard: OpenShard | None = None,
    proceed: Proceed = lambda: None,
) -> Store:
    """The store with as many shards as the settings ask for; moves topics first if it must.

    What `proceed` raises comes out of here; the next start goes on from there, as after a crash.
    """
    data_dir, shards = settings.data_dir, settings.wal_shards
    if store.settled_on(shards):
        return store
    save_store(fs, data_dir, structs.replace(store, moving_to=shards))
    opener = open_shard or (lambda number: _locked_shard(fs, settings, number, proceed))

    def report(moved: int, total: int) -> None:
        progress(moved, total)
        proceed()

    reshard(fs, opener, present_shards(fs, data_dir), shards, report)
    # A new history: the log of a shard no longer tells where its topics were before.
    done = Store(format=store.format, shards=shards, id=new_store_id())
    save_store(fs, data_dir, done)
    return done


@contextmanager
def _locked_shard(fs: FileSystem, settings: Settings, number: int, proceed: Proceed) -> Iterator[Shard]:
    root = shard_paths(settings, number).root
    fs.make_dir(root)
    with DirLock(root):
        yield Shard.open(
            fs,
            settings,
            number,
            wall_ms=lambda: time.time_ns() // 1_000_000,
            clock=time.perf_counter,
            progress=lambda _: proceed(),
        )


def reshard(
    fs: FileSystem, open_shard: OpenShard, present: set[int], shards: int, progress: Progress
) -> None:
    """Move all topics of the shard directories in `present` to where `shards` shards want them."""
    with ExitStack() as held:
        opened: dict[int, Shard] = {}

        def shard(number: int) -> Shard:
            if number not in opened:
                opened[number] = held.enter_context(open_shard(number))
                _refuse_damage(opened[number])
            return opened[number]

        plan = {number: _misplaced(shard(number), number, shards) for number in sorted(present)}
        total = sum(len(topics) for targets in plan.values() for topics in targets.values())
        done = 0
        progress(0, total)

        def moved(count: int) -> None:
            nonlocal done
            done += count
            progress(done, total)

        for number, targets in plan.items():
            for target, topics in sorted(targets.items()):
                move_topics(fs, shard(number), shard(target), topics, moved)
        for each in opened.values():
            # Twice: what only the older of two snapshots needs goes with the second.
            each.maintenance.snapshot_now(clean=False)
            each.close()


def _misplaced(shard: Shard, number: int, shards: int) -> dict[int, list[Topic]]:
    targets: dict[int, list[Topic]] = {}
    for topic in shard.engine.state.catalog.by_id.values():
        target = shard_for(topic.name, shards)
        if target != number:
            targets.setdefault(target, []).append(topic)
    return targets


def _refuse_damage(shard: Shard) -> None:
    if shard.report.damage:
        raise shard.report.damage[0]
