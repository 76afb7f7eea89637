"""One shard, opened: recovery, the engine, its maintenance, and a clean close.

The process (shard_worker/worker.py) and the tests open shards through here; nothing in it waits or sleeps.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING

import msgspec

from shard_worker.commit import Clock
from shard_worker.core.topic import REASON_MIXED, REASON_RECREATED
from shard_worker.disk.record_store import RecordStore
from shard_worker.disk.recovery import Progress, Recovered, Report, recover, shard_paths
from shard_worker.engine import Engine
from shard_worker.maintenance import Maintenance
from shard_worker.pending import PendingControl
from shard_worker.pressure import Pressure
from shared.control_frames import Hole, Session, Watermark
from shared.errors import ShardUnavailable
from shared.io.durable_fs import FileSystem
from shared.io.object_store import open_store
from shared.limits import RETRY_AFTER_DEFAULT_MS, WAL_FILE_BYTES
from shared.settings import Settings
from shared.version import VERSION

if TYPE_CHECKING:
    from shard_worker.wal_archive import WalArchive


class Shard(msgspec.Struct):
    engine: Engine
    maintenance: Maintenance
    store: RecordStore
    report: Report
    pressure: Pressure = msgspec.field(default_factory=Pressure)
    archive: WalArchive | None = None

    @classmethod
    def open(
        cls,
        fs: FileSystem,
        settings: Settings,
        shard: int,
        *,
        wall_ms: Callable[[], int],
        clock: Clock,
        progress: Progress = lambda _: None,
        wal_file_bytes: int = WAL_FILE_BYTES,
        token_prefix: Callable[[], str] = lambda: "lease_",
        store_id: str = "",
        restored_gap: int | None = None,
    ) -> Shard:
        """`store_id`: under which name to hand files over to the archive; without one they are only kept.
        `restored_gap`: the files come from a backup, leave out this many seqs of every topic."""
        paths = shard_paths(settings, shard)
        recovered = recover(fs, paths, shard, settings, wal_file_bytes, wall_ms(), progress)
        engine = Engine(
            wal=recovered.wal,
            state=recovered.state,
            settings=settings,
            shard=shard,
            wall_ms=wall_ms,
            clock=clock,
            token_prefix=token_prefix,
        )
        _begin_session(engine, recovered, fs.boot_id(), restored_gap)
        maintenance = Maintenance(
            fs,
            paths,
            engine,
            recovered.store,
            recovered.snapshot,
            replayed_bytes=recovered.report.bytes,
            replayed_frames=recovered.report.frames,
        )
        engine.on_changed.append(maintenance.note_append)
        engine.forwarder.start()
        archive = None
        if settings.wal_archive is not None:
            # Opened when it is first used: it may be out of reach now.
            # Imported here, for the servers that have one.
            from shard_worker.wal_archive import WalArchive

            archive_store = cache(partial(open_store, fs, settings.wal_archive, setting="wal_archive"))
            archive = WalArchive(fs, archive_store, store_id, engine, maintenance)
        return cls(engine, maintenance, recovered.store, recovered.report, archive=archive)

    def close(self) -> None:
        """Everything synced, a snapshot that a restart begins from. Call it only when nothing is in flight."""
        if self.engine.commits.read_only is None:
            self.maintenance.snapshot_now(clean=True)
        else:
            self.engine.sync_now()
        self.engine.wal.close()
        self.store.close()


def _begin_session(
    engine: Engine, recovered: Recovered, boot_id: str, restored_gap: int | None = None
) -> None:
    """Settle what the last session left open, durably, before anyone is served."""
    now_ms = engine.now_ms()
    power_lost = not recovered.clean and recovered.state.boot_id != boot_id
    for topic in list(recovered.state.catalog.by_id.values()):
        ephemeral = topic.config.durability == "ephemeral"
        hole = None
        if restored_gap is not None:
            # The server this came from may have gone on: what it gave out after the backup names other records.
            if restored_gap:
                hole = Hole(topic.head + 1, topic.head + restored_gap, REASON_RECREATED)
        elif topic.reserved > topic.head and not recovered.clean and (power_lost or ephemeral):
            # Seqs up to the reservation may have been handed out, and then lost: never hand them out again.
            hole = Hole(topic.head + 1, topic.reserved, REASON_MIXED)
        if hole is not None:
            engine.commits.stage_owed(PendingControl(Watermark(hole=hole), topic, now_ms))
            engine.commits.commit(now_ms)
            # On a full disk the frame was refused. The seqs are taken all the same.
            topic.apply_hole(hole)
        if ephemeral:
            # With the records go their keys: a client that tries again must not be told that it is done.
            recovered.state.forget_keys(topic)
            recovered.state.live_bytes -= topic.bytes
            topic.apply_loss(recovered.state.source)
        if topic.queue is not None and not topic.config.leases_durable:
            topic.queue.drop_leases()
        topic.staged_head, topic.staged_ts = topic.head, topic.last_ts
    session = Session(boot_id, VERSION)
    engine.commits.stage_owed(PendingControl(session, None, now_ms))
    engine.sync_now()
    for topic in recovered.state.catalog.by_id.values():
        topic.reserved = max(topic.reserved, topic.head)
        topic.reserved_synced = topic.reserved
    if recovered.report.damage:
        engine.commits.read_only = ShardUnavailable(
            shard=engine.shard,
            reason="its files are damaged: reads go on, writes wait for `topicsd repair`",
            retry_after_ms=60 * RETRY_AFTER_DEFAULT_MS,
        )
