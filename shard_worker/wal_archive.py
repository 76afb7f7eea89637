"""The archive (setting `wal_archive`): log files and segments are handed over before this shard removes them.

So a restore can reach any moment between backups. Files go one at a time, the log first, each read back and
compared; they are named as in a place of backups (shared/backup_format.py), so that a backup into the same place finds
them there. An archive that cannot be reached costs nothing but space: the shard keeps what it has not handed over,
tries again, and says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from shard_worker.core.shard_state import TIER_HOT, SegmentEntry
from shard_worker.disk.record_store import segment_file_name
from shard_worker.disk.wal import wal_file_name
from shard_worker.engine import Engine
from shard_worker.maintenance import Maintenance
from shared.backup_format import LOG, SEGMENTS, FileKey, parse_file_key, shard_prefix
from shared.errors import BadSetting, CorruptFrame, CorruptSegment, DataDamage
from shared.format_errors import FormatError
from shared.io.durable_fs import File, FileSystem
from shared.io.object_copy import copy_in, digest_chunks
from shared.io.object_store import ObjectStore, file_chunks
from shared.log_check import log_length
from shared.segment_scan import verify_segment
from shared.wal_format import split_lsn

OpenStore = Callable[[], ObjectStore]


@dataclass(slots=True)
class ListJob:
    """What the archive has already. `run` may be called in a thread."""

    open_store: OpenStore
    store_id: str
    shard: int
    files: set[int] = field(default_factory=set)
    segments: set[tuple[int, str]] = field(default_factory=set)

    def run(self) -> None:
        for found in self.open_store().list(shard_prefix(self.store_id, self.shard)):
            key = parse_file_key(found.key)
            if key is not None and key.kind == LOG:
                self.files.add(key.number)
            elif key is not None and key.kind == SEGMENTS:
                self.segments.add((key.number, key.label))


@dataclass(slots=True)
class HandOverJob:
    """One file. `run` may be called in a thread."""

    fs: FileSystem
    open_store: OpenStore
    path: str
    store_id: str
    shard: int
    kind: str
    number: int
    label: str = ""

    def run(self) -> None:
        file = self.fs.open(self.path)
        try:
            size = self._checked_size(file)
            digest, _ = digest_chunks(file_chunks(file, size))
            key = FileKey(self.store_id, self.shard, self.kind, self.number, digest, self.label)
            copy_in(self.open_store(), str(key), file_chunks(file, size), size)
        finally:
            file.close()

    def _checked_size(self, file: File) -> int:
        return (self._log_size if self.kind == LOG else self._segment_size)(file)

    def _log_size(self, file: File) -> int:
        try:
            return log_length(file.pread, file.size(), self.shard, self.number)
        except FormatError as err:
            raise CorruptFrame(path=self.path, reason=str(err)) from err

    def _segment_size(self, file: File) -> int:
        verdict = verify_segment(file.pread, file.size(), self.label)
        if verdict.findings:
            finding = verdict.findings[0]
            raise CorruptSegment(path=self.path, offset=finding.offset, reason=finding.reason)
        return file.size()


ArchiveJob = ListJob | HandOverJob


class WalArchive:
    """Decides what to hand over next. A keeper of maintenance: what is not handed over stays."""

    def __init__(
        self,
        fs: FileSystem,
        open_store: OpenStore,
        store_id: str,
        engine: Engine,
        maintenance: Maintenance,
    ) -> None:
        self._fs = fs
        self._open_store = open_store
        self._store_id = store_id
        self._engine = engine
        self._maintenance = maintenance
        self._listed = False
        self._files: set[int] = set()
        self._segments: set[int] = set()
        self._skipped: set[int] = set()  # segments in the cold tier only, or damaged: backups care for them
        self.handed_over = 0
        self.failures = 0
        self.last_failure = ""  # empty while the archive works
        maintenance.keepers.append(self)

    # --- keeping ----------------------------------------------------------------------------------------

    def first_file(self) -> int | None:
        if not self._listed:
            return 0  # whether anything was handed over is not known yet
        return min((number for number in self._engine.wal.files if number not in self._files), default=None)

    def keeps_segment(self, number: int) -> bool:
        return not self._listed or number not in self._segments | self._skipped

    def keeps_snapshot(self, number: int) -> bool:
        return False

    @property
    def lag_files(self) -> int:
        """Finished log files that are not handed over yet."""
        return sum(1 for _ in self._finished())

    def _finished(self) -> list[int]:
        # Only what is synced: anything else could look different after a power cut.
        current, _ = split_lsn(self._engine.wal.synced)
        return sorted(
            number for number in self._engine.wal.files if number < current and number not in self._files
        )

    # --- handing over -----------------------------------------------------------------------------------

    def next_job(self) -> ArchiveJob | None:
        engine = self._engine
        if not self._listed:
            return ListJob(self._open_store, self._store_id, engine.shard)
        for number in self._finished():
            return self._job(f"{engine.wal.directory}/{wal_file_name(number)}", LOG, number)
        for number, entry in sorted(engine.state.segments.items()):
            if number not in self._segments and number not in self._skipped:
                if self._is_here(entry):
                    return self._job(self._segment_path(number), SEGMENTS, number, entry.digest)
                self._skipped.add(number)
        return None

    def _job(self, path: str, kind: str, number: int, label: str = "") -> HandOverJob:
        return HandOverJob(
            self._fs, self._open_store, path, self._store_id, self._engine.shard, kind, number, label
        )

    def _segment_path(self, number: int) -> str:
        return f"{self._maintenance.segments_directory}/{segment_file_name(number)}"

    def _is_here(self, entry: SegmentEntry) -> bool:
        # A dead one that a snapshot still lists may have no file left.
        return (entry.tier == TIER_HOT or not entry.runs) and self._fs.exists(
            self._segment_path(entry.number)
        )

    def finish(self, job: ArchiveJob) -> None:
        self.last_failure = ""
        if isinstance(job, ListJob):
            self._listed = True
            current, _ = split_lsn(self._engine.wal.synced)
            self._files = {number for number in job.files if number < current}
            digests = {entry.number: entry.digest for entry in self._engine.state.segments.values()}
            self._segments = {number for number, label in job.segments if digests.get(number) == label}
        else:
            self.handed_over += 1
            (self._files if job.kind == LOG else self._segments).add(job.number)
        # Also while the shard is read-only for lack of space: this is how it gets some back.
        self._maintenance.trim()
        self._files &= self._engine.wal.files.keys()

    def failed(self, job: ArchiveJob, error: OSError | DataDamage | BadSetting) -> None:
        self.failures += 1
        self.last_failure = str(error)
        if isinstance(job, HandOverJob) and isinstance(error, CorruptSegment):
            # Reading it fails for its readers, too. It must not hold up the log.
            self._skipped.add(job.number)
