"""From a backup to a directory that `topicsd serve` can open.

Files are put in place, each compared with the digest in its name, the log cut where it shall end; then every shard is
opened by its own recovery, which replays the log as it would after a crash, and is closed in order. `store.json` comes
last: a directory without it is not a store, and the server refuses it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from shard_worker.core.shard_state import TIER_COLD, TIER_HOT
from shard_worker.disk.record_store import segment_file_name
from shard_worker.disk.recovery import ShardPaths, shard_paths
from shard_worker.disk.snapshots import snapshot_file_name
from shard_worker.disk.wal import wal_file_name
from shard_worker.pending import PendingControl
from shard_worker.shard import Shard
from shared.backup_format import SEGMENTS, Backup, StoredFile
from shared.control_frames import SegmentMoved
from shared.errors import CorruptBackup
from shared.io.durable_fs import FileSystem
from shared.io.object_copy import checked_chunks
from shared.io.object_store import ObjectStore
from shared.limits import RESTORE_SEQ_GAP, WAL_FILE_BYTES
from shared.settings import Settings
from shared.wal_format import split_lsn
from topicsd.backup.cut import CutFinder, ShardCut, Target
from topicsd.backup.place import list_backups, list_files
from topicsd.backup.refusal import BackupRefused
from topicsd.store_file import STORE_FORMAT, STORE_NAME, Store, new_store_id, save_store

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Restored:
    backup: Backup
    topics: int
    records: int
    last_ms: int
    """When the last thing that is in it was written; 0 if it is the end of the backup."""

    notes: tuple[str, ...]


@dataclass(slots=True)
class Restorer:
    fs: FileSystem
    place: ObjectStore
    data_dir: str
    settings: Settings
    wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    wal_file_bytes: int = WAL_FILE_BYTES
    progress: Progress = lambda text: None

    def restore(self, target: Target, *, backup_id: str | None = None, reuse_seqs: bool = False) -> Restored:
        """Raises BackupRefused, DataDamage or OSError; then the directory is no store."""
        self._refuse_if_used()
        backup, cuts = CutFinder(self.place, list_backups(self.place)).find(target, backup_id)
        self.progress(f"from backup {backup.id}")
        for cut in cuts:
            self._put_in_place(backup, cut)
        topics = records = 0
        for cut in cuts:
            shard_topics, shard_records = self._settle(cut, 0 if reuse_seqs else RESTORE_SEQ_GAP)
            topics += shard_topics
            records += shard_records
        store = Store(format=STORE_FORMAT, shards=len(cuts), id=new_store_id())
        save_store(self.fs, self.data_dir, store)
        notes = tuple(note for cut in cuts for note in cut.notes)
        return Restored(backup, topics, records, max(cut.last_ms for cut in cuts), notes)

    def _refuse_if_used(self) -> None:
        found = self.fs.list_dir(self.data_dir)
        if not found:
            return
        if STORE_NAME in found:
            why = "holds a store"
        elif any(name.startswith("shard-") for name in found):
            why = "holds a restore that was not finished"
        else:
            why = f"is not empty ({found[0]})"
        raise BackupRefused(
            f"{self.data_dir} {why}: name a directory that does not exist yet, or move this one away first"
        )

    # --- files ------------------------------------------------------------------------------------------

    def _put_in_place(self, backup: Backup, cut: ShardCut) -> None:
        paths = self._paths(cut)
        for directory in (paths.wal, paths.segments, paths.snapshots, paths.quarantine):
            self.fs.make_dir(directory)
        segments = {file.number: file for file in cut.base.segments}
        segments |= {file.number: file for file in self._later_segments(backup, cut)}
        self.progress(f"shard {cut.base.shard}: {len(cut.log)} log files, {len(segments)} segments")
        if cut.base.snapshot is not None:
            file = cut.base.snapshot.file
            self._write(f"{paths.snapshots}/{snapshot_file_name(file.number)}", file)
        for file in segments.values():
            self._write(f"{paths.segments}/{segment_file_name(file.number)}", file)
        last, offset = split_lsn(cut.cut)
        for file in cut.log:
            upto = offset if file.number == last else None
            self._write(f"{paths.wal}/{wal_file_name(file.number)}", file, upto)
        for directory in (paths.wal, paths.segments, paths.snapshots):
            self.fs.sync_dir(directory)

    def _later_segments(self, backup: Backup, cut: ShardCut) -> Iterable[StoredFile]:
        """Sealed behind the end of the backup: from the archive, or from a later backup."""
        if not cut.segments:
            return
        placed = {
            (file.key.number, file.key.label): file
            for file in list_files(self.place, backup.store, cut.base.shard)
            if file.key.kind == SEGMENTS
        }
        for number, digest in cut.segments:
            if (number, digest) not in placed:
                raise CorruptBackup(
                    path=f"{self.place.url}: segment {number} of shard {cut.base.shard}",
                    reason=f"it was sealed after backup {backup.id} and is neither in a later one nor in the archive; "
                    "restore to the end of a backup, or to a time before it was sealed",
                )
            yield placed[number, digest].stored()

    def _write(self, path: str, file: StoredFile, upto: int | None = None) -> None:
        """All of the object is read and compared, also what is cut off."""
        target = self.fs.create(path)
        try:
            at = 0
            for chunk in checked_chunks(self.place, file.key, file.size):
                kept = chunk if upto is None else chunk[: max(0, upto - at)]
                if kept:
                    at += target.pwritev([kept], at)
            target.sync_data()
        except BaseException:
            with suppress(OSError):
                self.fs.unlink(path)
            raise
        finally:
            target.close()

    # --- opening ----------------------------------------------------------------------------------------

    def _paths(self, cut: ShardCut) -> ShardPaths:
        return shard_paths(self._settings(), cut.base.shard)

    def _settings(self) -> Settings:
        # All segments are hot for now: a cold directory may be in use by the server this came from.
        return replace(
            self.settings, data_dir=self.data_dir, cold_dir=None, wal_archive=None, min_free_bytes=0
        )

    def _settle(self, cut: ShardCut, gap: int) -> tuple[int, int]:
        """Open the shard as a server would; returns its topics and records."""
        shard = Shard.open(
            self.fs,
            self._settings(),
            cut.base.shard,
            wall_ms=self.wall_ms,
            clock=time.perf_counter,
            wal_file_bytes=self.wal_file_bytes,
            restored_gap=gap,
        )
        if shard.report.damage:
            raise shard.report.damage[0]
        engine = shard.engine
        for entry in list(engine.state.segments.values()):
            if entry.tier == TIER_COLD:
                engine.commit_control(
                    PendingControl(SegmentMoved(entry.number, TIER_HOT), None, engine.now_ms())
                )
        topics = engine.state.catalog.by_id.values()
        counts = len(topics), sum(topic.count for topic in topics)
        shard.close()
        return counts


def parse_topic_seqs(texts: Sequence[str]) -> tuple[tuple[str, int], ...]:
    """TOPIC:SEQ; a topic may have colons itself. Raises BackupRefused."""
    found = []
    for text in texts:
        topic, colon, seq = text.rpartition(":")
        if not colon or not topic or not seq.isdigit():
            raise BackupRefused(f"--to-seq {text}: say it as TOPIC:SEQ, as in orders:1200")
        found.append((topic, int(seq)))
    return tuple(found)
