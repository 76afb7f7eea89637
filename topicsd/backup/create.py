"""Making a backup: copy what the place does not have, prove every copy, and name them all in one document, last.

What is already there is recognised by its name, whether an earlier backup, an interrupted one or the archive put it
there; only what a finished backup names counts without being read again. Until the document is written there is no
backup; whatever was copied serves the next attempt.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from shard_worker.backup_pins import PlannedSegment, ShardPlan
from shard_worker.core.shard_state import TIER_COLD
from shard_worker.disk.record_store import segment_file_name
from shard_worker.disk.snapshots import snapshot_file_name
from shard_worker.disk.wal import wal_file_name
from shared.backup_format import (
    BACKUP_FORMAT,
    LOG,
    SEGMENTS,
    SNAPSHOTS,
    TAILS,
    Backup,
    BackupShard,
    FileKey,
    StoredFile,
    StoredSnapshot,
    encode_backup,
)
from shared.errors import CorruptBackup, CorruptFrame, CorruptSegment, CorruptSnapshot
from shared.format_errors import FormatError
from shared.io.object_copy import copy_in, digest_chunks, verify_object
from shared.io.object_store import ObjectStore, object_chunks
from shared.log_check import log_length
from shared.segment_scan import verify_segment
from shared.snapshot_format import read_snapshot, read_snapshot_header
from shared.wal_format import split_lsn
from topicsd.backup.place import PlacedFile, list_backups, list_files, window_reader
from topicsd.backup.refusal import BackupRefused

Progress = Callable[[str], None]


@dataclass(slots=True)
class Tally:
    copied_files: int = 0
    copied_bytes: int = 0
    reused_files: int = 0
    reused_bytes: int = 0

    def count(self, size: int, *, copied: bool) -> None:
        if copied:
            self.copied_files += 1
            self.copied_bytes += size
        else:
            self.reused_files += 1
            self.reused_bytes += size


@dataclass(frozen=True, slots=True)
class Source:
    """Where the files of a store are read from."""

    data: ObjectStore
    cold: ObjectStore | None


@dataclass(slots=True)
class BackupMaker:
    place: ObjectStore
    source: Source
    store_id: str
    version: str
    progress: Progress = lambda text: None
    tally: Tally = field(default_factory=Tally)

    def make(self, plans: Sequence[ShardPlan], created_ms: int) -> Backup:
        """Raises OSError, DataDamage, or BackupRefused; then there is no new backup."""
        listing = list_backups(self.place)
        trusted = {file.key: file.size for backup in listing.backups for file in backup.files}
        taken = {backup.id for backup in listing.backups}
        shards = tuple(
            _ShardCopy(self, plan, trusted).run() for plan in sorted(plans, key=lambda plan: plan.shard)
        )
        backup = Backup(
            format=BACKUP_FORMAT,
            id=_new_id(created_ms, taken),
            store=self.store_id,
            created_ms=created_ms,
            version=self.version,
            shards=shards,
        )
        self._refuse_if_pruned(backup)
        key, content = encode_backup(backup)
        if not self.place.put_if_absent(key, content) or self.place.get(key) != content:
            raise BackupRefused(f"{self.place.url}/{key} could not be written; run the backup again")
        return backup

    def _refuse_if_pruned(self, backup: Backup) -> None:
        """A prune that ran meanwhile knew nothing of this backup."""
        for shard in backup.shards:
            there = {str(found.key) for found in list_files(self.place, self.store_id, shard.shard)}
            gone = [file.key for file in shard.files if file.key not in there]
            if gone:
                raise BackupRefused(f"{self.place.url}/{gone[0]} was removed meanwhile; run the backup again")


def _new_id(created_ms: int, taken: set[str]) -> str:
    stem = datetime.fromtimestamp(created_ms / 1000, UTC).strftime("%Y%m%dT%H%M%SZ")
    id_, more = stem, 1
    while id_ in taken:
        more += 1
        id_ = f"{stem}.{more}"
    return id_


class _ShardCopy:
    def __init__(self, maker: BackupMaker, plan: ShardPlan, trusted: dict[str, int]) -> None:
        self._maker = maker
        self._plan = plan
        self._trusted = trusted
        self._place = maker.place
        self._data = maker.source.data
        self._directory = f"shard-{plan.shard:04d}"
        there = list_files(maker.place, maker.store_id, plan.shard)
        self._there = {(file.key.kind, file.key.number, file.key.label): file for file in there}

    def run(self) -> BackupShard:
        plan = self._plan
        self._maker.progress(
            f"shard {plan.shard}: {len(plan.log_files)} log files, {len(plan.segments)} segments"
        )
        snapshot = None
        if plan.snapshot is not None:
            snapshot = self._snapshot(plan.snapshot)
        last, offset = split_lsn(plan.end)
        log = [self._log_file(number, None) for number in plan.log_files if number != last]
        log.append(self._log_file(last, offset))
        segments = [self._segment(segment) for segment in plan.segments]
        return BackupShard(
            shard=plan.shard,
            end=plan.end,
            snapshot=snapshot,
            log=tuple(log),
            segments=tuple(file for file in segments if file is not None),
            last_segment=plan.last_segment,
        )

    # --- one file ---------------------------------------------------------------------------------------

    def _snapshot(self, number: int) -> StoredSnapshot:
        key = f"{self._directory}/snapshots/{snapshot_file_name(number)}"
        size = self._size(self._data, key)
        pread = window_reader(self._data, key, size)
        try:
            created_ms = read_snapshot_header(pread).created_ms
            for _ in read_snapshot(pread, size):
                pass
        except FormatError as err:
            raise CorruptSnapshot(path=f"{self._data.url}/{key}", reason=str(err)) from err
        file = self._reused(SNAPSHOTS, number) or self._copied(self._data, key, size, SNAPSHOTS, number)
        return StoredSnapshot(file, created_ms, self._plan.snapshot_end)

    def _log_file(self, number: int, upto: int | None) -> StoredFile:
        if upto is None and (reused := self._reused(LOG, number)) is not None:
            return reused
        key = f"{self._directory}/wal/{wal_file_name(number)}"
        whole = self._size(self._data, key)
        try:
            length = log_length(window_reader(self._data, key, whole), whole, self._plan.shard, number, upto)
        except FormatError as err:
            raise CorruptFrame(path=f"{self._data.url}/{key}", reason=str(err)) from err
        return self._copied(self._data, key, length, LOG if upto is None else TAILS, number)

    def _segment(self, segment: PlannedSegment) -> StoredFile | None:
        if (reused := self._reused(SEGMENTS, segment.number, segment.digest)) is not None:
            return reused
        found = self._find_segment(segment)
        if found is None:
            return None
        store, key = found
        size = self._size(store, key)
        verdict = verify_segment(window_reader(store, key, size), size, segment.digest)
        if verdict.findings:
            finding = verdict.findings[0]
            raise CorruptSegment(path=f"{store.url}/{key}", offset=finding.offset, reason=finding.reason)
        return self._copied(store, key, size, SEGMENTS, segment.number, segment.digest)

    def _find_segment(self, segment: PlannedSegment) -> tuple[ObjectStore, str] | None:
        """Where it is read from; None if nobody needs it and it is gone."""
        name = segment_file_name(segment.number)
        places = [(self._data, f"{self._directory}/segments/{name}")]
        if self._maker.source.cold is not None:
            places.append((self._maker.source.cold, f"{self._directory}/data/{name}"))
        if segment.tier == TIER_COLD:
            places.reverse()
        for store, key in places:
            if store.size(key) is not None:
                return store, key
        if not segment.live:
            return None  # dead, dropped, and still on the list of the last snapshot
        store, key = places[0]
        raise CorruptSegment(path=f"{store.url}/{key}", reason="this segment is missing")

    def _size(self, store: ObjectStore, key: str) -> int:
        size = store.size(key)
        if size is None:
            raise BackupRefused(
                f"{store.url}/{key} is gone: the shard was restarted meanwhile; run the backup again"
            )
        return size

    # --- copying ----------------------------------------------------------------------------------------

    def _reused(self, kind: str, number: int, label: str = "") -> StoredFile | None:
        placed = self._there.get((kind, number, label))
        if placed is None:
            return None
        key = str(placed.key)
        if self._trusted.get(key) != placed.size and not self._is_good(placed):
            return None
        self._maker.tally.count(placed.size, copied=False)
        return placed.stored()

    def _is_good(self, placed: PlacedFile) -> bool:
        """No finished backup vouches for it: an interrupted one may have left it unproved."""
        try:
            verify_object(self._place, str(placed.key), placed.size)
        except CorruptBackup:
            return False
        return True

    def _copied(
        self, source: ObjectStore, source_key: str, size: int, kind: str, number: int, label: str = ""
    ) -> StoredFile:
        def chunks() -> Iterable[bytes]:
            return object_chunks(source, source_key, size)

        digest, _ = digest_chunks(chunks())
        key = str(FileKey(self._maker.store_id, self._plan.shard, kind, number, digest, label))
        copied = copy_in(self._place, key, chunks(), size)
        self._maker.tally.count(size, copied=copied)
        return StoredFile(number, key, size)


def wall_ms() -> int:
    return time.time_ns() // 1_000_000
