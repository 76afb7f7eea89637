"""The shards of a data directory, running or stopped, each as something that answers questions.

Nothing here takes a lock: a server may start at any time. Who holds one is read from the kernel's list.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from shard_worker.disk.dir_lock import LOCK_NAME
from shard_worker.disk.shard_paths import shard_paths
from shard_worker.disk.survey import recover_aside
from shard_worker.inspection import Answer, Options, ShardView, answer, view_of_files
from shared.errors import BadSetting, TopicsError
from shared.io.bucket_fs import file_system
from shared.io.child_channel import socket_path
from shared.io.durable_fs import FileSystem
from shared.io.scratch_fs import ScratchFileSystem
from shared.routing import shard_for
from shared.settings import Settings
from topicsd.exits import StartRefused
from topicsd.inspection.live import LiveShard, NotServing
from topicsd.inspection.locks import lock_holder
from topicsd.inspection.questions import Asked, AskFailed
from topicsd.socket_dir import find_socket_dir
from topicsd.store_file import Store, load_store, present_shards


class FileShard:
    """The files of a stopped shard, as a start would find them."""

    kind = "files"

    def __init__(self, view: ShardView) -> None:
        self._view = view

    def ask(self, question: str, options: Options) -> Answer:
        try:
            return answer(self._view, question, options)
        except TopicsError as err:
            raise AskFailed(str(err), code=err.code) from err

    def close(self) -> None:
        self._view.wal.close()
        self._view.store.close()


@dataclass(frozen=True, slots=True)
class StoreView:
    settings: Settings
    store: Store
    present: frozenset[int]
    fs: FileSystem

    @property
    def shards(self) -> list[int]:
        return sorted(self.present | set(range(self.store.shards)))

    def likely_shards(self, topic: str) -> list[int]:
        """Where the topic belongs, then everywhere else: a change of the number of shards may be half done."""
        home = shard_for(topic, self.store.shards)
        return [home, *(shard for shard in self.shards if shard != home)]

    @contextmanager
    def open(self, shard: int, *, offline: bool = False) -> Iterator[Asked]:
        if shard not in self.shards:
            raise AskFailed(f"there is no shard {shard}: this store has {', '.join(map(str, self.shards))}")
        opened = self._open(shard, offline=offline)
        try:
            yield opened
        finally:
            opened.close()

    def _open(self, shard: int, *, offline: bool) -> Asked:
        if not offline:
            live = self.live(shard)
            if live is not None:
                return live
        holder = self.holder(shard)
        if holder is not None and not offline:
            raise AskFailed(
                f"process {holder} holds shard {shard} and does not answer: it may be replaying its log. Try again, "
                "or read its files as they are with --offline"
            )
        scratch, paths = ScratchFileSystem(self.fs), shard_paths(self.settings, shard)
        recovered = recover_aside(scratch, self.settings, shard, now_ms(), lambda *_: None)
        return FileShard(view_of_files(scratch, paths, shard, recovered))

    def live(self, shard: int) -> LiveShard | None:
        """A link to the shard's worker; None if there is none that serves."""
        try:
            return LiveShard(socket_path(find_socket_dir(self.settings.data_dir), shard), os.getuid())
        except NotServing:
            return None
        except OSError as err:
            raise AskFailed(f"shard {shard} cannot be asked: {err}") from err

    def holder(self, shard: int) -> int | None:
        return lock_holder(f"{shard_paths(self.settings, shard).root}/{LOCK_NAME}")

    @property
    def server(self) -> int | None:
        """The process that holds the data directory."""
        return lock_holder(f"{self.settings.data_dir}/{LOCK_NAME}")


def open_store_view(settings: Settings) -> StoreView:
    try:
        fs = file_system(settings.cold_dir)
    except BadSetting as err:
        raise AskFailed(err.message) from err
    try:
        store = load_store(fs, settings.data_dir)
    except StartRefused as err:
        raise AskFailed(str(err)) from err
    except OSError as err:
        raise AskFailed(f"{settings.data_dir} cannot be read: {err.strerror}") from err
    if store is None:
        raise AskFailed(f"there is no store in {settings.data_dir}: say where it is with --data-dir")
    return StoreView(settings, store, frozenset(present_shards(fs, settings.data_dir)), fs)


def now_ms() -> int:
    return time.time_ns() // 1_000_000
