"""Backups under way, by the link that asked for them (docs/wire-protocol.md, "Backups").

BACKUP_HOLD writes down what is staged, pins the files of the backup, and from then on nothing is written until
BACKUP_RELEASE. While every shard is held, no effect of one shard on another is half in and half out of the backup:
who removed a record at its source had it durably at its destination before. A hold is short and bounded, whoever
forgets it.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import trio

from shard_worker.backup_pins import Pins, plan_backup
from shard_worker.serve.link import Link
from shard_worker.shard import Shard
from shared.cbor_body import dump_map
from shared.errors import InvalidRequest, ReadOnlyShard, TopicsError
from shared.limits import BACKUP_HOLD_MAX_S
from shared.wire import Op
from shared.wire import Request as WireRequest

BACKUP_OPS = frozenset({Op.BACKUP_HOLD, Op.BACKUP_RELEASE})


class _Backup(msgspec.Struct):
    end: int
    holding: bool = True
    unbroken: bool = True  # did the hold last until it was released?
    release_id: int | None = None  # of the BACKUP_RELEASE that waits for a sync
    answered: bool = False


class BackupLinks:
    def __init__(self, shard: Shard, on_free: Callable[[], None]) -> None:
        """`on_free` is called when a hold has ended and what waited may go on."""
        self._shard = shard
        self._on_free = on_free
        self._backups: dict[Link, _Backup] = {}
        self._pins = Pins()
        self.held = False
        self._held = trio.Event()
        self._free = trio.Event()
        self._free.set()
        shard.maintenance.keepers.append(self._pins)

    def is_holder(self, link: Link) -> bool:
        return link in self._backups

    @property
    def pinned(self) -> int:
        return len(self._pins)

    async def free(self) -> None:
        """Returns when nobody holds this shard, and at once if nobody does: a hold could begin while it yields."""
        while self.held:
            await self._free.wait()

    async def run(self) -> None:
        """Ends holds that last too long, until cancelled."""
        while True:
            await self._held.wait()
            free = self._free
            with trio.move_on_after(BACKUP_HOLD_MAX_S):
                await free.wait()
            if free.is_set():
                continue  # perhaps the next hold has begun already
            for backup in self._backups.values():
                backup.unbroken = backup.unbroken and not backup.holding
                backup.holding = False
            self._check_free()

    def submit(self, link: Link, message: WireRequest) -> None:
        try:
            if message.op == Op.BACKUP_HOLD:
                self._hold(link, message.id)
            else:
                self._release(link, message.id)
        except TopicsError as err:
            status, body, _ = err.to_wire()
            link.answer(message.id, status, body)

    def _hold(self, link: Link, id: int) -> None:
        read_only = self._shard.engine.commits.read_only
        if read_only is not None and not isinstance(read_only, ReadOnlyShard):
            raise read_only  # damaged: a copy of it would pass for a good one
        if link in self._backups:
            raise InvalidRequest("this link has a backup under way already")
        plan = plan_backup(self._shard)
        self._pins.add(link, plan)
        self._backups[link] = _Backup(plan.end)
        link.answer(id, 200, plan.encode())
        self._free = trio.Event()
        self._held.set()
        self.held = True

    def _release(self, link: Link, id: int) -> None:
        backup = self._backups.get(link)
        if backup is None or backup.release_id is not None:
            raise InvalidRequest("there is nothing to release")
        backup.holding = False
        backup.release_id = id
        self._check_free()
        self.after_sync()

    def _check_free(self) -> None:
        if self.held and not any(backup.holding for backup in self._backups.values()):
            self.held = False
            self._held = trio.Event()
            self._free.set()
            self._on_free()

    def after_sync(self) -> None:
        """Answer those whose part of the log is on disk for good by now."""
        synced = self._shard.engine.wal.synced
        for link, backup in self._backups.items():
            if backup.release_id is not None and not backup.answered and backup.end <= synced:
                link.answer(backup.release_id, 200, dump_map({"unbroken": backup.unbroken}))
                backup.answered = True

    def forget(self, link: Link) -> None:
        """The link is gone, and its backup done or given up: nothing is kept for it any more."""
        if self._backups.pop(link, None) is not None:
            self._pins.drop(link)
            self._check_free()
            self._shard.maintenance.trim()
