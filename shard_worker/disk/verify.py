"""Reading every file of a shard once, and saying what is wrong with it. Changes nothing.

What must be readable is not for the files to say: `ShardFacts` come from the running worker, or for a stopped shard
from a recovery that keeps its changes to itself (survey.py). A worker goes on writing and removing meanwhile, so
whatever seems to be missing is asked about once more before it counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from shard_worker.core.shard_state import TIER_COLD
from shard_worker.disk.record_store import segment_file_name
from shard_worker.disk.shard_paths import ShardPaths
from shard_worker.disk.snapshots import SnapshotInfo, load_snapshot, snapshot_file_name, snapshot_number
from shard_worker.disk.wal import wal_file_name
from shared.errors import (
    ColdUnreachable,
    CorruptFrame,
    CorruptManifest,
    CorruptSegment,
    CorruptSnapshot,
    DataDamage,
    FormatTooNew,
)
from shared.file_header import FILE_HEADER_BYTES
from shared.format_errors import BadBytes, FormatError, NewerVersion
from shared.frame import Frame, Kind
from shared.frame_scan import Stop, Torn, find_valid_frame, scan_frames
from shared.io.durable_fs import File, FileSystem, read_whole
from shared.io.object_store import is_bucket
from shared.manifest import Manifest, ManifestSegment, decode_manifest, manifest_checksum, manifest_name
from shared.segment_reader import read_header
from shared.segment_scan import verify_segment
from shared.store_layout import manifest_generation
from shared.wal_format import decode_wal_header, lsn_of, split_lsn

Progress = Callable[[str, int, int], None]
"""The file, bytes read so far, bytes to read."""

DIGEST_UNKNOWN = "0" * 16


@dataclass(frozen=True, slots=True)
class SegmentFact:
    number: int
    tier: str
    size: int
    """0: not known."""
    digest: str
    needed: bool
    """Some topic is served from it."""


@dataclass(frozen=True, slots=True)
class ShardFacts:
    first_file: int
    """The oldest log file that is needed."""
    end: int
    """The lsn up to which the log is written."""
    segments: Mapping[int, SegmentFact]
    names: Mapping[int, str] = field(default_factory=dict)
    """Of topics, by id, as far as known."""


@dataclass(slots=True)
class Verification:
    """`run` fills the rest. `refresh`: the facts as they are now; None for a shard that nobody writes to."""

    fs: FileSystem
    paths: ShardPaths
    shard: int
    facts: ShardFacts
    progress: Progress
    refresh: Callable[[], ShardFacts] | None = None
    damage: list[DataDamage] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    gaps: list[tuple[int, int]] = field(default_factory=list)
    """Unreadable stretches of the log, from lsn to lsn."""
    bad_segments: set[int] = field(default_factory=set)
    bad_snapshots: list[int] = field(default_factory=list)
    bad_manifests: list[int] = field(default_factory=list)
    stale_cold: list[int] = field(default_factory=list)
    """Segments that the manifest lists, that no topic needs, and that are not whole."""
    snapshots: dict[int, SnapshotInfo] = field(default_factory=dict)
    manifest: Manifest | None = None
    files: int = 0
    bytes: int = 0
    _total: int = 0

    def run(self) -> None:
        self._require_cold_tier()
        self._check_snapshots()
        first = min([self.facts.first_file, *(info.first_file for info in self.snapshots.values())])
        last, stop = split_lsn(self.facts.end)
        facts = self.facts
        self._total = sum(fact.size for fact in facts.segments.values()) + self.bytes
        self._total += sum(self._size(self._log_path(number)) for number in range(first, last + 1))
        for number in range(first, last + 1):
            self._check_log_file(number, stop if number == last else None)
        for fact in facts.segments.values():
            self._check_segment(fact)
        self._check_manifests()

    # --- the log ----------------------------------------------------------------------------------------

    def _check_log_file(self, number: int, end: int | None) -> None:
        """`end`: how far the newest file is written; every other one ends with a FILE_END frame."""
        path = self._log_path(number)
        file = self._open(path)
        if file is None:
            if self.refresh is None or self.refresh().first_file <= number:
                self.gaps.append((lsn_of(number, 0), lsn_of(number + 1, 0)))
                self.damage.append(CorruptFrame(path=path, reason="this log file is missing"))
            return
        try:
            self._check_wal_header(file, number)
            size = file.size() if end is None else end
            for start, stop, reason in self._unreadable(file, number, size, ends=end is None):
                # Without a frame behind it nothing of the file can be read, also not what was cut off its end.
                until = lsn_of(number, stop) if stop is not None else lsn_of(number + 1, 0)
                self.gaps.append((lsn_of(number, start), until))
                self.damage.append(CorruptFrame(path=path, offset=start, reason=reason))
            self._count(path, size)
        finally:
            file.close()

    def _check_wal_header(self, file: File, number: int) -> None:
        try:
            header = decode_wal_header(file.pread(FILE_HEADER_BYTES, 0))
            if (header.number, header.shard) != (number, self.shard):
                raise BadBytes(f"this is file {header.number} of shard {header.shard}, not of this shard")
        except NewerVersion as err:
            raise _too_new(file.path, err) from err
        except BadBytes as err:
            self.damage.append(CorruptFrame(path=file.path, offset=0, reason=str(err)))

    def _unreadable(
        self, file: File, number: int, size: int, *, ends: bool
    ) -> Iterator[tuple[int, int | None, str]]:
        """Stretches [start, stop) that hold no frames, with the reason; stop None: nothing follows."""
        position, base, last_kind = FILE_HEADER_BYTES, lsn_of(number, 0), 0
        while True:
            stop = None
            try:
                for found in scan_frames(file.pread, position, size, base):
                    if isinstance(found, Frame):
                        last_kind, position = found.kind, found.end
                    else:
                        stop = found
            except NewerVersion as err:
                raise _too_new(file.path, err, position) from err
            assert stop is not None
            if (last_kind == Kind.FILE_END) if ends else (stop.offset >= size):
                return
            later = find_valid_frame(file.pread, stop.offset + 1, size, base)
            yield stop.offset, later, _reason(stop)
            if later is None:
                return
            position = later

    # --- snapshots --------------------------------------------------------------------------------------

    def _check_snapshots(self) -> None:
        for number in filter(None, map(snapshot_number, self.fs.list_dir(self.paths.snapshots))):
            path = f"{self.paths.snapshots}/{snapshot_file_name(number)}"
            try:
                _, self.snapshots[number] = load_snapshot(self.fs, path, number, self.shard)
            except FileNotFoundError:
                continue  # a newer one took its place meanwhile
            except NewerVersion as err:
                raise _too_new(path, err) from err
            except (BadBytes, ValueError) as err:
                self.bad_snapshots.append(number)
                offset = getattr(err, "offset", None)
                self.damage.append(CorruptSnapshot(path=path, offset=offset, reason=str(err)))
            self._count(path, self._size(path))

    # --- segments ---------------------------------------------------------------------------------------

    def segment_path(self, fact: SegmentFact) -> str:
        if fact.tier == TIER_COLD and self.paths.cold is not None:
            return f"{self.paths.cold}/data/{segment_file_name(fact.number)}"
        return f"{self.paths.segments}/{segment_file_name(fact.number)}"

    def _check_segment(self, fact: SegmentFact) -> None:
        path = self.segment_path(fact)
        file = self._open(path)
        if file is None:
            self._missing_segment(fact, path)
            return
        try:
            findings = list(self._segment_findings(file, fact))
        finally:
            file.close()
        self._count(path, fact.size)
        if findings and not fact.needed:
            self.notes.append(f"{path} is damaged, but no topic is served from it any more")
        elif findings:
            self.bad_segments.add(fact.number)
            self.damage.extend(findings)

    def _missing_segment(self, fact: SegmentFact, path: str) -> None:
        if self.refresh is not None:
            now = self.refresh().segments.get(fact.number)
            if now is None or not now.needed:
                return
            if now.tier != fact.tier:
                self._check_segment(now)
                return
        if fact.needed:
            self.bad_segments.add(fact.number)
            self.damage.append(CorruptSegment(path=path, reason="this segment is missing"))

    def _segment_findings(self, file: File, fact: SegmentFact) -> Iterator[DataDamage]:
        path, names = file.path, self.facts.names
        try:
            header = read_header(file.pread)
            if (header.number, header.shard) != (fact.number, self.shard):
                reason = f"this is segment {header.number} of shard {header.shard}"
                yield CorruptSegment(path=path, offset=0, reason=reason)
        except FormatError:
            pass  # the verdict below names it
        if fact.size and file.size() != fact.size:
            yield CorruptSegment(path=path, reason=f"{file.size()} bytes instead of {fact.size}")
        verdict = verify_segment(
            file.pread, file.size(), fact.digest if fact.digest != DIGEST_UNKNOWN else None
        )
        for found in verdict.findings:
            topic = names.get(found.topic_id) if found.topic_id is not None else None
            yield CorruptSegment(
                path=path,
                offset=found.offset,
                reason=found.reason,
                topic=topic,
                first_seq=found.first_seq,
                last_seq=found.last_seq,
            )

    def _require_cold_tier(self) -> None:
        """A cold tier that is not mounted, or not named, must not pass for one that has lost everything."""
        cold = self.paths.cold
        for fact in self.facts.segments.values():
            if fact.tier != TIER_COLD or not fact.needed:
                continue
            if cold is None:
                name = segment_file_name(fact.number)
                raise ColdUnreachable(
                    path=name, reason="it is in the cold tier: say where that is with --cold-dir"
                )
            if not is_bucket(cold) and not self.fs.exists(cold):
                reason = "the cold tier is not there: mount it, or restore it from a backup"
                raise ColdUnreachable(path=cold, reason=reason)
            return

    # --- the cold tier ----------------------------------------------------------------------------------

    def _check_manifests(self) -> None:
        cold = self.paths.cold
        if cold is None:
            return
        previous: tuple[int, int] | None = None  # generation and checksum of the one before, if it is good
        for name in self.fs.list_dir(cold):
            generation = manifest_generation(name)
            if generation is None:
                continue
            path = f"{cold}/{name}"
            try:
                content = read_whole(self.fs, path)
                manifest = decode_manifest(content)
                if (manifest.shard, manifest.generation) != (self.shard, generation):
                    raise BadBytes(f"this is manifest {manifest.generation} of shard {manifest.shard}")
                if (
                    previous is not None
                    and previous[0] == generation - 1
                    and manifest.previous != previous[1]
                ):
                    raise BadBytes("it does not follow the generation before it")
            except FileNotFoundError:
                continue  # an old one, removed meanwhile
            except NewerVersion as err:
                raise _too_new(path, err) from err
            except BadBytes as err:
                self.bad_manifests.append(generation)
                self.damage.append(CorruptManifest(path=path, offset=err.offset, reason=str(err)))
                previous = None
                continue
            self._count(path, len(content))
            previous, self.manifest = (generation, manifest_checksum(content)), manifest
        if self.manifest is not None:
            for listed in self.manifest.segments:
                if listed.number not in self.facts.segments:
                    self._check_listed(cold, self.manifest, listed)

    def _check_listed(self, cold: str, manifest: Manifest, listed: ManifestSegment) -> None:
        """A segment that the shard does not know: left by a repair or a compaction that was cut short."""
        fact = SegmentFact(listed.number, TIER_COLD, listed.size, listed.digest, needed=False)
        path = f"{cold}/{listed.path}"
        file = self._open(path)
        if file is None:
            if self.refresh is not None:
                return  # a newer manifest took it off the list meanwhile, or the worker just did
            reason = f"segment {listed.number} is missing"
        else:
            try:
                found = next(self._segment_findings(file, fact), None)
            finally:
                file.close()
            if found is None:
                return
            reason = f"segment {listed.number} is damaged: {found.reason}"
        self.stale_cold.append(listed.number)
        manifest_path = f"{cold}/{manifest_name(manifest.generation)}"
        self.damage.append(
            CorruptManifest(path=manifest_path, reason=f"it lists what is not whole: {reason}")
        )

    # --- files ------------------------------------------------------------------------------------------

    def _log_path(self, number: int) -> str:
        return f"{self.paths.wal}/{wal_file_name(number)}"

    def _open(self, path: str) -> File | None:
        try:
            return self.fs.open(path)
        except FileNotFoundError:
            return None

    def _size(self, path: str) -> int:
        file = self._open(path)
        if file is None:
            return 0
        try:
            return file.size()
        finally:
            file.close()

    def _count(self, path: str, size: int) -> None:
        self.files += 1
        self.bytes += size
        self.progress(path, self.bytes, max(self._total, self.bytes))


def _reason(stop: Stop) -> str:
    return stop.verdict.reason if isinstance(stop.verdict, Torn) else "zeros where a frame was"


def _too_new(path: str, err: NewerVersion, offset: int | None = None) -> FormatTooNew:
    return FormatTooNew(path=path, needed_version=err.found, supported_version=err.known, offset=offset)
