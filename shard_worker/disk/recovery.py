"""From files to a running state: the newest good snapshot, then the log behind it, frame by frame.

The log is one stream over its files. Where it stops being readable, what follows decides (docs/disk-format.md
§7): nothing valid, or only what was never synced, is a torn tail, which is kept as evidence and cut off; anything
else is damage, which is reported and stepped over, and leaves the shard read-only.

Where a file of the log is missing or has lost its header, a start is refused. `salvage` steps over that, too: for
verify and repair, which run recovery on a file system that keeps the changes to itself (shared/io/scratch_fs.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from shard_worker.core.replay import replay_frame
from shard_worker.core.shard_state import ShardState
from shard_worker.disk.log_damage import LogDamage, LogGap, whose_records
from shard_worker.disk.quarantine import quarantine_copy, quarantine_file
from shard_worker.disk.record_store import RecordStore, segment_number
from shard_worker.disk.shard_paths import ShardPaths as ShardPaths
from shard_worker.disk.shard_paths import shard_paths as shard_paths
from shard_worker.disk.snapshots import SnapshotInfo, load_newest
from shard_worker.disk.wal import Wal, wal_file_name, wal_file_number
from shard_worker.disk.written_part import WrittenPart
from shared.control_frames import Synced, decode_control
from shared.errors import ColdUnreachable, CorruptFrame, CorruptSnapshot, DataDamage, FormatTooNew
from shared.file_header import FILE_HEADER_BYTES
from shared.format_errors import BadBytes, NewerVersion
from shared.frame import FRAME_LENGTH_AT, FRAME_MIN_BYTES, TOPIC_ID_AT, Blank, Frame, Kind, decode_frame
from shared.frame_scan import End, Stop, Torn, find_valid_frame, is_blank, scan_frames
from shared.io.bucket_fs import for_serving
from shared.io.durable_fs import File, FileSystem
from shared.settings import Settings
from shared.wal_format import decode_wal_header, lsn_of, split_lsn

Progress = Callable[[float], None]

_SYNCED = int(Kind.SYNCED)
_REWRITE_BYTES = 4 << 20
_UNKNOWN_FILES = 64
_FIRST_GROUP_BYTES = 4096
"""A shard's first start writes less than this before its first sync."""


class Report(msgspec.Struct):
    """What recovery found, for the log and for `verify`."""

    frames: int = 0
    bytes: int = 0
    notes: list[str] = msgspec.field(default_factory=list)  # normal after a crash: torn tails, leftovers
    damage: list[DataDamage] = msgspec.field(default_factory=list)
    log: LogDamage = msgspec.field(default_factory=LogDamage)


class Recovered(msgspec.Struct):
    state: ShardState
    wal: Wal
    store: RecordStore
    snapshot: SnapshotInfo | None
    clean: bool  # nothing can have been lost: the shard was shut down, and nothing was written since
    report: Report


def recover(
    fs: FileSystem,
    paths: ShardPaths,
    shard: int,
    settings: Settings,
    file_bytes: int,
    now_ms: int,
    progress: Progress,
    *,
    salvage: bool = False,
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
        for_serving(fs),
        wal,
        state,
        shard=shard,
        hot_directory=paths.segments,
        cold_directory=paths.cold,
        cache_bytes=settings.cache_bytes,
    )
    state.source = store
    replay = _Replay(fs, paths, shard, state, wal, report, progress, salvage=salvage)
    numbers = replay.find_files(snapshot)
    if not numbers:
        wal.start(split_lsn(snapshot.end)[0] + 1 if snapshot is not None else 1, now_ms)
        return Recovered(state, wal, store, snapshot, snapshot is None, report)
    start = snapshot.start if snapshot is not None else lsn_of(numbers[0], FILE_HEADER_BYTES)
    store.verified_from = start
    replay.open_files(numbers)
    end = replay.run(start)
    store.close()  # a segment may have moved behind the frame that made us open it
    synced = replay.synced
    if snapshot is not None and end < snapshot.end:
        report.damage.append(
            CorruptSnapshot(
                path=paths.wal,
                reason=f"the log ends at {end:#x}, but snapshot {snapshot.number} was taken at {snapshot.end:#x}",
            )
        )
        # The snapshot speaks of positions behind the end: they must never hold anything else.
        end = lsn_of(split_lsn(snapshot.end)[0] + 1, FILE_HEADER_BYTES)
    clean = snapshot is not None and snapshot.clean and end == snapshot.end
    report.damage.extend(gap.as_error(state) for gap in report.log.gaps)
    if report.damage:
        # The snapshot may point into what replay stepped over: look at every batch before it is served.
        store.verified_from = end
    else:
        replay.rewrite(synced, end)
    wal.resume(replay.files, end, synced=synced, now_ms=now_ms)
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
        *,
        salvage: bool,
    ) -> None:
        self._fs = fs
        self._paths = paths
        self._shard = shard
        self._state = state
        self._wal = wal
        self._report = report
        self._progress = progress
        self._salvage = salvage
        self._files: dict[int, File] = {}
        self._headless: dict[int, str] = {}  # files whose header is unreadable, and why
        self._written: dict[int, WrittenPart] = {}
        self.synced = 0  # everything below was synced by an earlier process

    # --- files ------------------------------------------------------------------------------------------

    def find_files(self, snapshot: SnapshotInfo | None) -> list[int]:
        """The log files to use, ascending. Empty: a new shard. Refuses to start empty over existing data."""
        names = self._fs.list_dir(self._paths.wal)
        numbers = sorted(number for name in names if (number := wal_file_number(name)) is not None)
        if not numbers:
            if snapshot is not None or self._fs.list_dir(self._paths.snapshots) or self._segment_files():
                reason = "the log is gone, but snapshots or segments exist"
                self._refuse(CorruptFrame(path=self._paths.wal, reason=reason))
                self._end_is_missing(snapshot)
            return []
        first = numbers[-1]
        while first - 1 in numbers:
            first -= 1
        wanted = snapshot.first_file if snapshot is not None else 1
        if first > wanted:
            for missing in sorted(set(range(wanted, first)) - set(numbers), reverse=True):
                self._refuse(self._missing(missing))
            first = wanted
        if snapshot is not None:
            self.synced = snapshot.end
            newest = split_lsn(snapshot.end)[0]
            for missing in range(numbers[-1] + 1, newest + 1):
                self._refuse(self._missing(missing))
            if numbers[-1] < newest:
                self._end_is_missing(snapshot)
        for number in (number for number in numbers if number < first):
            quarantine_file(self._fs, f"{self._paths.wal}/{wal_file_name(number)}", self._paths.quarantine)
            self._report.notes.append(f"log file {number} had been trimmed and was back: moved to quarantine")
        return [number for number in numbers if number >= first]

    def _refuse(self, damage: CorruptFrame) -> None:
        """A start ends here; a salvage goes on with what there is."""
        if not self._salvage:
            raise damage
        self._report.damage.append(damage)

    def _missing(self, number: int) -> CorruptFrame:
        return CorruptFrame(
            path=f"{self._paths.wal}/{wal_file_name(number)}", reason="this log file is missing"
        )

    def _end_is_missing(self, snapshot: SnapshotInfo | None) -> None:
        """Nobody knows how much was written behind the snapshot: more than a shard ever keeps, to be safe."""
        end = snapshot.end if snapshot is not None else lsn_of(1, FILE_HEADER_BYTES)
        far = lsn_of(split_lsn(end)[0] + _UNKNOWN_FILES, 0)
        self._report.log.add(LogGap(self._paths.wal, end, far, "the end of the log is missing"), self._state)

    def _segment_files(self) -> bool:
        return any(segment_number(name) for name in self._fs.list_dir(self._paths.segments))

    def open_files(self, numbers: list[int]) -> None:
        for number in numbers:
            path = f"{self._paths.wal}/{wal_file_name(number)}"
            file = self._fs.open(path, write=True)
            self._written[number] = WrittenPart(file)
            try:
                header = decode_wal_header(file.pread(FILE_HEADER_BYTES, 0))
            except NewerVersion as err:
                raise FormatTooNew(path=path, needed_version=err.found, supported_version=err.known) from err
            except BadBytes as err:
                # What is known of syncs when replay comes here decides whether this is a torn tail.
                self._headless[number] = str(err)
                self._files[number] = file
                continue
            self._files[number] = file
            if header.number != number or header.shard != self._shard:
                reason = f"this is file {header.number} of shard {header.shard}, not of this shard"
                self._refuse(CorruptFrame(path=path, reason=reason))
        self._wal.files = self._files

    @property
    def files(self) -> dict[int, File]:
        return self._files

    def _first_valid(self, number: int, file: File, start: int) -> int | None:
        written = self._written[number]
        return find_valid_frame(written.pread, start, file.size(), lsn_of(number, 0), blank_from=written.end)

    # --- frames -----------------------------------------------------------------------------------------

    def run(self, start: int) -> int:
        """Apply everything from `start`; returns the lsn where the log goes on."""
        number, offset = split_lsn(start)
        for headless in [at for at in self._headless if at < number]:
            self._refuse(self._bad_header(headless))
        total = sum(file.size() for at, file in self._files.items() if at >= number) or 1
        done = 0
        number, offset = self._next_file(number, offset)
        while number in self._files:
            file = self._files[number]
            if number in self._headless and not self._readable_all_the_same(number):
                return lsn_of(number, FILE_HEADER_BYTES)
            stop = self._replay_file(number, file, offset, done, total)
            done += file.size()
            if isinstance(stop.verdict, End) and self._ended(file, stop.offset):
                number, offset = self._next_file(number + 1, FILE_HEADER_BYTES)
                continue
            resumed = self._behind_a_gap(number, stop)
            if resumed is None:
                return lsn_of(number, stop.offset)
            number, offset = resumed
        return lsn_of(number, FILE_HEADER_BYTES)

    def _next_file(self, number: int, offset: int) -> tuple[int, int]:
        """Where to go on; a salvage goes over files that are missing."""
        later = min((at for at in self._files if at >= number), default=number)
        if later == number:
            return number, offset
        path = f"{self._paths.wal}/{wal_file_name(number)}"
        gap = LogGap(path, lsn_of(number, offset), lsn_of(later, 0), "this log file is missing")
        self._report.log.add(gap, self._state)
        return later, FILE_HEADER_BYTES

    def _replay_file(self, number: int, file: File, offset: int, done: int, total: int) -> Stop:
        report, state = self._report, self._state
        gaps = report.log.gaps
        next_report = offset
        for found in self._scan(number, file, offset):
            if isinstance(found, Stop):
                return found
            report.frames += 1
            report.bytes += found.end - offset
            offset = found.end
            behind_damage = bool(gaps)
            holes = report.log.before(state, found) if behind_damage else 0
            try:
                replay_frame(state, found)
                if found.kind == _SYNCED:
                    self.synced = max(self.synced, _synced_upto(found))
            except BadBytes as err:
                begin, end = found.lsn & 0xFFFFFFFF, lsn_of(number, found.end)
                self._add_gap(number, begin, end, str(err), found.topic_id)
            except ColdUnreachable:
                # A delete has to look into records that cannot be read now. Without it they would come back, and
                # nothing is damaged: the next start tries again.
                raise
            except DataDamage as err:
                report.damage.append(err)
            if behind_damage:
                report.log.after(state, found, holes)
            if offset >= next_report:
                self._progress(min(1.0, (done + offset) / total))
                next_report = offset + (8 << 20)
        raise AssertionError("a scan ends with a Stop")

    def _scan(self, number: int, file: File, offset: int) -> Iterator[Frame | Stop]:
        try:
            yield from scan_frames(self._written[number].pread, offset, file.size(), lsn_of(number, 0))
        except NewerVersion as err:
            raise FormatTooNew(
                path=file.path, needed_version=err.found, supported_version=err.known, offset=offset
            ) from err

    def _ended(self, file: File, offset: int) -> bool:
        """Did the file end with its FILE_END frame, and not just with its last byte?"""
        at = offset - FRAME_MIN_BYTES
        number = wal_file_number(file.path.rpartition("/")[2]) or 0
        found = decode_frame(memoryview(file.pread(FRAME_MIN_BYTES, at)), 0, lsn_of(number, at))
        return isinstance(found, Frame) and found.kind == Kind.FILE_END

    # --- where the log stops ----------------------------------------------------------------------------

    def _behind_a_gap(self, number: int, stop: Stop) -> tuple[int, int] | None:
        """Where to go on behind an unreadable place; None if the log ends there."""
        later = self._next_valid(number, stop.offset)
        if later is None or not self._was_synced(lsn_of(number, stop.offset), later):
            self._cut(number, stop, unsynced=later is not None)
            return None
        verdict = stop.verdict
        reason = verdict.reason if isinstance(verdict, Torn) else "zeros where a frame was"
        topic_id = self._claimed_topic(number, stop.offset, verdict) if isinstance(verdict, Torn) else 0
        self._add_gap(number, stop.offset, lsn_of(*later), reason, topic_id)
        return later

    def _claimed_topic(self, number: int, offset: int, verdict: Torn) -> int:
        """Whose frame it seems to have been; nothing vouches for it, so only a topic that exists counts."""
        claimed = verdict.claimed_topic
        if not claimed:
            claimed = int.from_bytes(self._files[number].pread(8, offset + TOPIC_ID_AT), "little")
        return claimed if claimed in self._state.catalog.by_id else 0

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
                if found.kind == Kind.SYNCED and _synced_upto(found) > gap:
                    return True
            following = self._next_valid(number, offset)
            if following is None:
                return False
            number, offset = following
        return False

    def _cut(self, number: int, stop: Stop, *, unsynced: bool) -> None:
        """The log ends at `stop`: keep what lies behind it as evidence, then make room."""
        file = self._files[number]
        if not is_blank(file.pread, stop.offset, self._written[number].end):
            quarantine_copy(self._fs, file, stop.offset, self._paths.quarantine)
            size = file.size()
            file.truncate(stop.offset)
            file.allocate(size)
            file.sync_data()
            what = "unsynced frames out of order" if unsynced else _what(stop)
            self._report.notes.append(f"torn tail of log file {number} at byte {stop.offset}: {what}")
        self._drop_files_from(number + 1, "lies behind the torn tail")

    def _drop_files_from(self, first: int, why: str) -> None:
        # The newest first: killed in between, no file is missing in the middle.
        for later in sorted((at for at in self._files if at >= first), reverse=True):
            dropped = self._files.pop(later)
            dropped.close()
            quarantine_file(self._fs, dropped.path, self._paths.quarantine)
            self._report.notes.append(f"log file {later} {why}: moved to quarantine")

    def _readable_all_the_same(self, number: int) -> bool:
        """A file whose header never reached the disk ends the log like a torn tail; any other one is damage."""
        later = self._next_valid(number, 0)
        if later is not None:
            damaged = self._was_synced(lsn_of(number, 0), later)
        else:
            damaged = number == min(self._files) and not self._never_begun(number)
        if damaged:
            self._refuse(self._bad_header(number))
            return True  # every frame names its file and its place: they do not need the header
        self._drop_files_from(number, "was never synced")
        return False

    def _never_begun(self, number: int) -> bool:
        """The first file of a shard that was cut off in its first start, before anyone was served."""
        file = self._files[number]
        return number == 1 and is_blank(file.pread, _FIRST_GROUP_BYTES, self._written[number].end)

    def _bad_header(self, number: int) -> CorruptFrame:
        return CorruptFrame(path=self._files[number].path, offset=0, reason=self._headless[number])

    def _add_gap(self, number: int, offset: int, end: int, reason: str, topic_id: int) -> None:
        file, state = self._files[number], self._state
        length = int.from_bytes(file.pread(4, offset + FRAME_LENGTH_AT), "little")
        suspects = None
        if end == lsn_of(number, offset + length):
            suspects = whose_records(file.pread(length, offset), topic_id, state)
        topic = state.catalog.by_id.get(topic_id)
        head = topic.head if topic is not None else 0
        gap = LogGap(file.path, lsn_of(number, offset), end, reason, topic_id, head, suspects)
        self._report.log.add(gap, state)

    def rewrite(self, synced: int, end: int) -> None:
        """Write what nobody has synced once more, if it was read from the page cache of a process that died.

        Its last sync may have failed. The kernel then takes the pages for clean: they can be read, the next sync
        does not write them, and a power cut would take them from under everything that comes behind.
        """
        if self._state.boot_id != self._fs.boot_id():
            return
        first, offset = split_lsn(synced)
        last, stop = split_lsn(end)
        for number in sorted(at for at in self._files if first <= at <= last):
            file = self._files[number]
            at = offset if number == first else 0
            until = stop if number == last else file.size()
            while at < until and (chunk := file.pread(min(_REWRITE_BYTES, until - at), at)):
                at += file.pwritev([chunk], at)


def _synced_upto(frame: Frame) -> int:
    fact = decode_control(frame)
    return fact.lsn if isinstance(fact, Synced) else 0


def _what(stop: Stop) -> str:
    if isinstance(stop.verdict, Blank):
        return "zeros"
    return stop.verdict.reason if isinstance(stop.verdict, Torn) else "the file ends early"
