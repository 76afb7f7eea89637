"""From files to a running state: the newest good snapshot, then the log behind it, frame by frame.

The log is one stream over its files. Where it stops being readable, what follows decides (docs/disk-format.md
§7): nothing valid, or only what was never synced, is a torn tail, which is kept as evidence and cut off; anything
else is damage, which is reported and stepped over, and leaves the shard read-only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from shard_worker.core.replay import replay_frame
from shard_worker.core.shard_state import ShardState
from shard_worker.disk.quarantine import quarantine_copy, quarantine_file
from shard_worker.disk.record_store import RecordStore, segment_number
from shard_worker.disk.snapshots import SnapshotInfo, load_newest
from shard_worker.disk.wal import Wal, wal_file_name, wal_file_number
from shared.control_frames import Session, Synced, decode_control
from shared.errors import CorruptFrame, CorruptSnapshot, DataDamage, FormatTooNew
from shared.file_header import FILE_HEADER_BYTES
from shared.format_errors import BadBytes, NewerVersion
from shared.frame import Blank, Frame, Kind
from shared.frame_scan import End, Stop, Torn, find_valid_frame, is_blank, scan_frames
from shared.io.durable_fs import File, FileSystem
from shared.settings import Settings
from shared.wal_format import decode_wal_header, lsn_of, split_lsn

Progress = Callable[[float], None]


@dataclass(slots=True)
class Report:
    """What recovery found, for the log and for `verify`."""

    frames: int = 0
    bytes: int = 0
    notes: list[str] = field(default_factory=list)  # normal after a crash: torn tails, leftovers
    damage: list[DataDamage] = field(default_factory=list)


@dataclass(slots=True)
class Recovered:
    state: ShardState
    wal: Wal
    store: RecordStore
    snapshot: SnapshotInfo | None
    clean: bool  # nothing can have been lost: the shard was shut down, and nothing was written since
    report: Report


@dataclass(frozen=True, slots=True)
class ShardPaths:
    root: str
    cold: str | None

    @property
    def wal(self) -> str:
        return f"{self.root}/wal"

    @property
    def segments(self) -> str:
        return f"{self.root}/segments"

    @property
    def snapshots(self) -> str:
        return f"{self.root}/snapshots"

    @property
    def quarantine(self) -> str:
        return f"{self.root}/quarantine"


def shard_paths(settings: Settings, shard: int) -> ShardPaths:
    name = f"shard-{shard:04d}"
    return ShardPaths(
        f"{settings.data_dir}/{name}", f"{settings.cold_dir}/{name}" if settings.cold_dir else None
    )


def recover(
    fs: FileSystem,
    paths: ShardPaths,
    shard: int,
    settings: Settings,
    file_bytes: int,
    now_ms: int,
    progress: Progress,
) -> Recovered:
    report = Report()
    for directory in (paths.wal, paths.segments, paths.snapshots, paths.quarantine):
        fs.make_dir(directory)
        _remove_unfinished(fs, directory)
    try:
        loaded = load_newest(fs, paths.snapshots, shard)
    except NewerVersion as err:
        raise FormatTooNew(
            path=paths.snapshots, needed_version=err.found, supported_version=err.known
        ) from err
    report.notes.extend(f"unusable snapshot {text}" for text in loaded.skipped)
    state, snapshot = loaded.state, loaded.info
    wal = Wal(fs, paths.wal, shard=shard, file_bytes=file_bytes)
    store = RecordStore(
        fs,
        wal,
        state,
        hot_directory=paths.segments,
        cold_directory=paths.cold,
        cache_bytes=settings.cache_bytes,
    )
    state.source = store
    replay = _Replay(fs, paths, shard, state, wal, report, progress)
    numbers = replay.find_files(snapshot)
    if not numbers:
        wal.start(1, now_ms)
        return Recovered(state, wal, store, None, True, report)
    start = snapshot.start if snapshot is not None else lsn_of(numbers[0], FILE_HEADER_BYTES)
    store.verified_from = start
    replay.open_files(numbers)
    end = replay.run(start)
    if snapshot is not None and end < snapshot.end:
        report.damage.append(
            CorruptSnapshot(
                path=paths.wal,
                reason=f"the log ends at {end:#x}, but snapshot {snapshot.number} was taken at {snapshot.end:#x}",
            )
        )
    clean = snapshot is not None and snapshot.clean and end == snapshot.end
    replay.resume(end, now_ms)
    replay.name_what_damage_cost()
    return Recovered(state, wal, store, snapshot, clean, report)


def _remove_unfinished(fs: FileSystem, directory: str) -> None:
    unfinished = [name for name in fs.list_dir(directory) if name.endswith(".tmp")]
    for name in unfinished:
        fs.unlink(f"{directory}/{name}")
    if unfinished:
        fs.sync_dir(directory)


class _Replay:
    def __init__(
        self,
        fs: FileSystem,
        paths: ShardPaths,
        shard: int,
        state: ShardState,
        wal: Wal,
        report: Report,
        progress: Progress,
    ) -> None:
        self._fs = fs
        self._paths = paths
        self._shard = shard
        self._state = state
        self._wal = wal
        self._report = report
        self._progress = progress
        self._files: dict[int, File] = {}
        self._suspects: list[
            tuple[str, int, str, int, int]
        ] = []  # path, offset, reason, topic id, head before

    # --- files ------------------------------------------------------------------------------------------

    def find_files(self, snapshot: SnapshotInfo | None) -> list[int]:
        """The log files to use, ascending. Empty: a new shard. Refuses to start empty over existing data."""
        names = self._fs.list_dir(self._paths.wal)
        numbers = sorted(number for name in names if (number := wal_file_number(name)) is not None)
        if not numbers:
            if snapshot is not None or self._fs.list_dir(self._paths.snapshots) or self._segment_files():
                raise CorruptFrame(
                    path=self._paths.wal, reason="the log is gone, but snapshots or segments exist"
                )
            return []
        first = numbers[-1]
        while first - 1 in numbers:
            first -= 1
        wanted = snapshot.first_file if snapshot is not None else 1
        if first > wanted:
            missing = wal_file_name(max(number for number in range(wanted, first) if number not in numbers))
            raise CorruptFrame(path=f"{self._paths.wal}/{missing}", reason="this log file is missing")
        for number in (number for number in numbers if number < first):
            quarantine_file(self._fs, f"{self._paths.wal}/{wal_file_name(number)}", self._paths.quarantine)
            self._report.notes.append(f"log file {number} had been trimmed and was back: moved to quarantine")
        return [number for number in numbers if number >= first]

    def _segment_files(self) -> bool:
        return any(segment_number(name) for name in self._fs.list_dir(self._paths.segments))

    def open_files(self, numbers: list[int]) -> None:
        for number in numbers:
            path = f"{self._paths.wal}/{wal_file_name(number)}"
            file = self._fs.open(path, write=True)
            try:
                header = decode_wal_header(file.pread(FILE_HEADER_BYTES, 0))
            except NewerVersion as err:
                raise FormatTooNew(path=path, needed_version=err.found, supported_version=err.known) from err
            except BadBytes as err:
                if number == numbers[-1] and self._first_valid(number, file, FILE_HEADER_BYTES) is None:
                    # Created in the last moments before a power cut: the name survived, the content did not.
                    file.close()
                    quarantine_file(self._fs, path, self._paths.quarantine)
                    self._report.notes.append(f"log file {number} was never written: moved to quarantine")
                    if number == numbers[0]:
                        raise CorruptFrame(path=path, reason=str(err)) from err
                    break
                raise CorruptFrame(path=path, offset=err.offset, reason=str(err)) from err
            if header.number != number or header.shard != self._shard:
                raise CorruptFrame(
                    path=path,
                    reason=f"this is file {header.number} of shard {header.shard}, not of this shard",
                )
            self._files[number] = file
        self._wal.files = self._files

    def _first_valid(self, number: int, file: File, start: int) -> int | None:
        return find_valid_frame(file.pread, start, file.size(), lsn_of(number, 0))

    # --- frames -----------------------------------------------------------------------------------------

    def run(self, start: int) -> int:
        """Apply everything from `start`; returns the lsn where the log goes on."""
        number, offset = split_lsn(start)
        total = sum(file.size() for at, file in self._files.items() if at >= number) or 1
        done = 0
        while number in self._files:
            file = self._files[number]
            stop = self._replay_file(number, file, offset, done, total)
            done += file.size()
            if isinstance(stop.verdict, End) and self._ended(file, stop.offset):
                number, offset = number + 1, FILE_HEADER_BYTES
                continue
            resumed = self._behind_a_gap(number, stop)
            if resumed is None:
                return lsn_of(number, stop.offset)
            number, offset = resumed
        return lsn_of(number, FILE_HEADER_BYTES)

    def _replay_file(self, number: int, file: File, offset: int, done: int, total: int) -> Stop:
        report = self._report
        next_report = offset
        for found in self._scan(number, file, offset):
            if isinstance(found, Stop):
                return found
            report.frames += 1
            report.bytes += found.end - offset
            offset = found.end
            try:
                replay_frame(self._state, found)
            except BadBytes as err:
                self._suspect(number, found.lsn & 0xFFFFFFFF, str(err), found.topic_id)
            except DataDamage as err:
                report.damage.append(err)
            if offset >= next_report:
                self._progress(min(1.0, (done + offset) / total))
                next_report = offset + (8 << 20)
        raise AssertionError("a scan ends with a Stop")

    def _scan(self, number: int, file: File, offset: int) -> Iterator[Frame | Stop]:
        try:
            yield from scan_frames(file.pread, offset, file.size(), lsn_of(number, 0))
        except NewerVersion as err:
            raise FormatTooNew(
                path=file.path, needed_version=err.found, supported_version=err.known, offset=offset
            ) from err

    def _ended(self, file: File, offset: int) -> bool:
        """Did the file end with its FILE_END frame, and not just with its last byte?"""
        tail = file.pread(48, offset - 48)
        return len(tail) == 48 and tail[8] == Kind.FILE_END

    # --- where the log stops ----------------------------------------------------------------------------

    def _behind_a_gap(self, number: int, stop: Stop) -> tuple[int, int] | None:
        """Where to go on behind an unreadable place; None if the log ends there."""
        later = self._next_valid(number, stop.offset)
        if later is None or not self._was_synced(lsn_of(number, stop.offset), later):
            self._cut(number, stop, unsynced=later is not None)
            return None
        verdict = stop.verdict
        reason = verdict.reason if isinstance(verdict, Torn) else "zeros where a frame was"
        topic_id = verdict.claimed_topic if isinstance(verdict, Torn) else 0
        self._suspect(number, stop.offset, reason, topic_id)
        return later

    def _next_valid(self, number: int, offset: int) -> tuple[int, int] | None:
        for at in sorted(at for at in self._files if at >= number):
            start = offset + 1 if at == number else FILE_HEADER_BYTES
            found = self._first_valid(at, self._files[at], start)
            if found is not None:
                return at, found
        return None

    def _was_synced(self, gap: int, later: tuple[int, int]) -> bool:
        """Does anything behind the gap prove that the gap was on disk once?"""
        number, offset = later
        if self._state.boot_id == self._fs.boot_id():
            return True  # no power cut since: whatever was written is there, in order
        while number in self._files:
            for found in self._scan(number, self._files[number], offset):
                if isinstance(found, Stop):
                    offset = found.offset
                    break
                if found.kind in (Kind.SYNCED, Kind.SESSION):
                    fact = decode_control(found)
                    if isinstance(fact, Session) or (isinstance(fact, Synced) and fact.lsn > gap):
                        return True
            following = self._next_valid(number, offset)
            if following is None:
                return False
            number, offset = following
        return False

    def _cut(self, number: int, stop: Stop, *, unsynced: bool) -> None:
        """The log ends at `stop`: keep what lies behind it as evidence, then make room."""
        file = self._files[number]
        if not is_blank(file.pread, stop.offset, file.size()):
            quarantine_copy(self._fs, file, stop.offset, self._paths.quarantine)
            size = file.size()
            file.truncate(stop.offset)
            file.allocate(size)
            file.sync_data()
            what = "unsynced frames out of order" if unsynced else _what(stop)
            self._report.notes.append(f"torn tail of log file {number} at byte {stop.offset}: {what}")
        for later in sorted(at for at in self._files if at > number):
            dropped = self._files.pop(later)
            dropped.close()
            quarantine_file(self._fs, dropped.path, self._paths.quarantine)
            self._report.notes.append(f"log file {later} lies behind the torn tail: moved to quarantine")

    def _suspect(self, number: int, offset: int, reason: str, topic_id: int) -> None:
        topic = self._state.catalog.by_id.get(topic_id)
        head = topic.head if topic is not None else 0
        self._suspects.append((self._files[number].path, offset, reason, topic_id, head))

    def name_what_damage_cost(self) -> None:
        """Turn suspects into findings, now that the seqs behind them are known."""
        for path, offset, reason, topic_id, head in self._suspects:
            topic = self._state.catalog.by_id.get(topic_id)
            hole = None
            if topic is not None:
                hole = next((hole for hole in topic.holes if hole.first == head + 1), None)
            self._report.damage.append(
                CorruptFrame(
                    path=path,
                    offset=offset,
                    reason=reason,
                    topic=topic.name if topic is not None else None,
                    first_seq=head + 1 if topic is not None else None,
                    last_seq=hole.last if hole is not None else None,
                )
            )

    def resume(self, end: int, now_ms: int) -> None:
        """Make the log ready to be written behind `end`."""
        number, _ = split_lsn(end)
        if number in self._files:
            self._wal.resume(self._files, end)
        else:
            self._wal.files = self._files
            self._wal.start(number, now_ms)


def _what(stop: Stop) -> str:
    if isinstance(stop.verdict, Blank):
        return "zeros"
    return stop.verdict.reason if isinstance(stop.verdict, Torn) else "the file ends early"
