"""Where a restore ends: for every shard the log position behind which nothing is taken.

A position is found by reading frames, as a replay would. A restore starts from a backup whose snapshots lie in front of
all positions, and takes the log from there: from that backup, from later ones and from the archive.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime

from shared.backup_format import LOG, Backup, BackupShard, StoredFile
from shared.control_frames import Sealed, SegmentsReplaced, TopicCreated, decode_control
from shared.errors import CorruptBackup
from shared.file_header import FILE_HEADER_BYTES
from shared.format_errors import FormatError
from shared.frame import Frame, Kind
from shared.io.object_store import ObjectStore
from shared.log_check import log_frames
from shared.routing import shard_for
from shared.snapshot_format import read_snapshot
from shared.snapshot_items import SnapTopic, decode_topic
from shared.wal_format import decode_append, lsn_of, split_lsn
from topicsd.backup.place import Listing, list_files, window_reader
from topicsd.backup.refusal import BackupRefused


def iso_time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass(frozen=True, slots=True)
class TopicSeq:
    topic: str
    seq: int


@dataclass(frozen=True, slots=True)
class Target:
    """What is asked for; nothing: the end of the backup."""

    time_ms: int | None = None
    seqs: tuple[TopicSeq, ...] = ()

    @property
    def is_end(self) -> bool:
        return self.time_ms is None and not self.seqs


@dataclass(slots=True)
class ShardCut:
    """One shard of a restore: everything in `log` in front of `cut`."""

    base: BackupShard
    log: list[StoredFile]
    cut: int
    last_ms: int = 0
    """When the last frame that is taken was written."""

    segments: list[tuple[int, str]] = field(default_factory=list)
    """Number and digest of those that the log behind the backup seals."""

    notes: list[str] = field(default_factory=list)


class TooNew(Exception):
    """This backup begins behind what is asked for; an older one may do."""


class NotReached(Exception):
    """What is asked for does not come, from this backup on."""


class CutFinder:
    def __init__(self, store: ObjectStore, listing: Listing) -> None:
        self._store = store
        self._listing = listing

    def find(self, target: Target, backup_id: str | None) -> tuple[Backup, list[ShardCut]]:
        """The backup to begin with, and the cut of every shard."""
        listing = self._listing
        if not listing.backups:
            if listing.damaged:
                raise listing.damaged[0]
            raise BackupRefused(f"there is no backup in {self._store.url}")
        if backup_id is not None:
            candidates = [listing.find(backup_id, self._store.url)]
        elif target.is_end:
            # A damaged document hides a backup that may be newer: never fall back to an older state silently.
            if listing.damaged:
                raise listing.damaged[-1]
            candidates = listing.backups[-1:]
        else:
            candidates = listing.backups[::-1]
        reasons: list[str] = []
        for backup in candidates:
            try:
                return backup, self._cuts(backup, target)
            except TooNew as err:
                reasons.append(f"{backup.id} begins behind it ({err})")
            except NotReached as err:
                reasons.append(f"from {backup.id} on {err}")
        raise BackupRefused("this point cannot be reached: " + "; ".join(reasons[:3]))

    def _cuts(self, backup: Backup, target: Target) -> list[ShardCut]:
        if target.is_end:
            return [ShardCut(base, list(base.log), base.end) for base in backup.shards]
        shards = [ShardScan(self._store, self._listing, backup, base) for base in backup.shards]
        wanted: dict[int, list[TopicSeq]] = {}
        for each in target.seqs:
            wanted.setdefault(shard_for(each.topic, len(shards)), []).append(each)
        time_ms = target.time_ms
        cuts: dict[int, ShardCut] = {}
        for number, seqs in wanted.items():
            cuts[number], cut_ms = shards[number].at_seqs(seqs, target.time_ms)
            if cut_ms is not None:
                # The others as they were just before the first record that is not taken.
                time_ms = cut_ms - 1 if time_ms is None else min(time_ms, cut_ms - 1)
        for number, scan in enumerate(shards):
            if number not in cuts:
                cuts[number] = scan.at_time(time_ms)
        return [cuts[number] for number in range(len(shards))]


class ShardScan:
    """The log of one shard from a backup on, as far as it is there."""

    def __init__(self, store: ObjectStore, listing: Listing, backup: Backup, base: BackupShard) -> None:
        self._store = store
        self._listing = listing
        self._backup = backup
        self._base = base
        self._log = _available_log(store, listing, backup, base)

    def at_time(self, time_ms: int | None) -> ShardCut:
        """In front of the first frame that is younger; None: everything there is."""
        cut = self._empty_cut()
        for frame in self._frames():
            if time_ms is not None and frame.ts_ms > time_ms:
                return self._ends_at(cut, frame)
            self._take(cut, frame)
        if time_ms is not None and time_ms > self._known_until_ms():
            cut.notes.append(
                f"shard {self._base.shard}: the log that is here ends at {iso_time(cut.last_ms)}; "
                "what was written later is not restored"
            )
        return cut

    def _known_until_ms(self) -> int:
        """Up to when nothing is missing although no frame says so: the shard may have been idle."""
        last = self._log[-1]
        end = lsn_of(last.number, last.size)
        ends = [
            backup.created_ms
            for backup in self._listing.backups
            if backup.store == self._backup.store and backup.shards[self._base.shard].end <= end
        ]
        return max(ends, default=0)

    def at_seqs(self, wanted: list[TopicSeq], time_ms: int | None) -> tuple[ShardCut, int | None]:
        """In front of the first frame that goes beyond one of them, and when that frame was written."""
        cut = self._empty_cut()
        trackers = [_Tracker(each) for each in wanted]
        self._start(trackers)
        for frame in self._frames():
            beyond = any(
                tracker.goes_beyond(frame) for tracker in trackers if frame.lsn >= self._snapshot_end
            )
            if beyond or (time_ms is not None and frame.ts_ms > time_ms):
                cut_ms: int | None = frame.ts_ms
                self._ends_at(cut, frame)
                break
            self._take(cut, frame)
        else:
            cut_ms = None
        for tracker in trackers:
            cut.notes += tracker.verdict()
        return cut, cut_ms

    def _start(self, trackers: list[_Tracker]) -> None:
        if self._base.snapshot is None:
            return
        file = self._base.snapshot.file
        try:
            for item in read_snapshot(window_reader(self._store, file.key, file.size), file.size):
                if isinstance(item, SnapTopic):
                    for tracker in trackers:
                        tracker.note_topic(item)
        except FormatError as err:
            raise CorruptBackup(path=f"{self._store.url}/{file.key}", reason=str(err)) from err

    @property
    def _snapshot_end(self) -> int:
        return self._base.snapshot.end if self._base.snapshot is not None else 0

    def _empty_cut(self) -> ShardCut:
        last = self._log[-1]
        return ShardCut(self._base, self._log, lsn_of(last.number, last.size))

    def _ends_at(self, cut: ShardCut, frame: Frame) -> ShardCut:
        if frame.lsn < self._snapshot_end:
            raise TooNew(f"shard {self._base.shard}")
        cut.cut = frame.lsn
        last, _ = split_lsn(frame.lsn)
        cut.log = [file for file in self._log if file.number <= last]
        return cut

    def _take(self, cut: ShardCut, frame: Frame) -> None:
        cut.last_ms = max(cut.last_ms, frame.ts_ms)
        if frame.lsn < self._base.end:
            return  # its segments are in the backup
        if frame.kind == Kind.SEALED or frame.kind == Kind.SEGMENTS_REPLACED:
            fact = decode_control(frame)
            new = fact.new if isinstance(fact, SegmentsReplaced) else (fact,)
            cut.segments += [(each.segment, each.digest) for each in new if isinstance(each, Sealed)]

    def _frames(self) -> Iterator[Frame]:
        """From a little before the end of the snapshot: what is in it must not be younger than what is asked for."""
        first, offset = split_lsn(self._snapshot_end)
        if offset <= FILE_HEADER_BYTES:
            first -= 1
        for file in self._log:
            if file.number < first:
                continue
            pread = window_reader(self._store, file.key, file.size)
            try:
                yield from log_frames(pread, file.size, self._base.shard, file.number)
            except FormatError as err:
                raise CorruptBackup(path=f"{self._store.url}/{file.key}", reason=str(err)) from err


@dataclass(slots=True)
class _Tracker:
    """One topic on its way to the seq that is asked for."""

    wanted: TopicSeq
    topic_id: int = 0
    head: int = 0
    highest: int = 0  # of any topic that had this name
    done: bool = False
    split: tuple[int, int] | None = None

    def note_topic(self, item: SnapTopic) -> None:
        if item.name == self.wanted.topic:
            if item.head > self.wanted.seq:
                raise TooNew(f"topic {item.name} is at {item.head}")
            self.topic_id, self.head, self.highest = item.id, item.head, item.head

    def goes_beyond(self, frame: Frame) -> bool:
        """Would this frame take the topic further than asked for?"""
        match frame.kind:
            case Kind.TOPIC_CREATE:
                fact = decode_control(frame)
                if isinstance(fact, TopicCreated) and fact.name == self.wanted.topic:
                    self.topic_id, self.head = frame.topic_id, 0
            case Kind.TOPIC_IMPORT:
                item = decode_topic(frame)
                if item.name == self.wanted.topic:
                    self.topic_id, self.head = item.id, item.head
            case Kind.TOPIC_DELETE if frame.topic_id == self.topic_id:
                self.done = self.head >= self.wanted.seq
                return self.done
            case Kind.APPEND if frame.topic_id == self.topic_id:
                return self._append(frame)
        return False

    def _append(self, frame: Frame) -> bool:
        view = decode_append(frame)
        if view.last_seq > self.wanted.seq:
            self.done = True
            if view.first_seq <= self.wanted.seq:
                self.split = (view.first_seq, view.last_seq)
            return True
        self.head = view.last_seq
        self.highest = max(self.highest, self.head)
        return False

    def verdict(self) -> list[str]:
        """Notes for the operator. Raises NotReached."""
        name, seq = self.wanted.topic, self.wanted.seq
        if not self.done and self.head < seq:
            where = f"reaches only seq {self.highest}" if self.topic_id else "does not exist"
            raise NotReached(f"topic {name} {where}")
        if self.split is not None:
            first, last = self.split
            return [
                f"seq {seq} of topic {name} is part of one write, {first} to {last}, which is taken whole or not at "
                f"all: the topic ends at {first - 1}"
            ]
        return []


def _available_log(
    store: ObjectStore, listing: Listing, backup: Backup, base: BackupShard
) -> list[StoredFile]:
    """The files of the backup and those behind them, as long as they follow each other."""
    candidates: dict[int, StoredFile] = {}

    def offer(file: StoredFile) -> None:
        held = candidates.get(file.number)
        # One is the beginning of the other: the log of a history is never rewritten.
        if held is None or file.size > held.size:
            candidates[file.number] = file

    for file in base.log:
        offer(file)
    for other in listing.backups:
        if other.store == backup.store and base.shard < len(other.shards):
            for file in other.shards[base.shard].log:
                offer(file)
    for placed in list_files(store, backup.store, base.shard):
        if placed.key.kind == LOG:
            offer(placed.stored())
    number = base.log[0].number
    log = []
    while number in candidates:
        log.append(candidates[number])
        number += 1
    return log
