"""Making a damaged shard whole again: what can be read is kept, what cannot becomes holes that readers are told of.

Nothing that exists is changed. The records that can be read go into new segments, and a new snapshot refers to those,
to the intact old ones and to an empty log file behind all others. The rename of that snapshot is the commit: killed
before it, the shard is what it was; killed after it, the repaired shard is there and only tidying up is left. Then
the old log, the old snapshots and the damaged files go to quarantine, whole. Running it again is always safe.

`dry` does all of it on a file system that keeps its changes to itself.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

from shard_worker.core.hot_index import HotIndex
from shard_worker.core.loss import Lost, lose
from shard_worker.core.topic import REASON_MIXED, Topic
from shard_worker.disk.log_damage import LogGap
from shard_worker.disk.quarantine import quarantine_file
from shard_worker.disk.record_store import segment_file_name, segment_number
from shard_worker.disk.repair_cold import repair_manifest
from shard_worker.disk.repair_segments import SegmentRescue
from shard_worker.disk.sealing import SealJob, SealPlan, plan_share
from shard_worker.disk.snapshots import (
    SnapshotWriter,
    last_snapshot_number,
    snapshot_file_name,
    snapshot_number,
)
from shard_worker.disk.survey import Survey, survey_shard
from shard_worker.disk.verify import Progress
from shard_worker.disk.wal import Wal, wal_file_name, wal_file_number
from shared.compaction import COMPACTED_FROM
from shared.control_frames import Hole
from shared.errors import CorruptSnapshot
from shared.io.durable_fs import FileSystem
from shared.io.scratch_fs import ScratchFileSystem
from shared.limits import SEAL_PASS_MAX_BYTES, SEQ_RESERVE_MAX, WAL_FILE_BYTES
from shared.manifest import manifest_name
from shared.settings import Settings
from shared.wal_format import JSON_OFFSET, split_lsn

SNAPSHOTS = 2  # as many as are always kept, so that one bad sector does not bring the damage back

# The least that an append frame, and a record in it besides the digits of its seq, take up in the log.
_APPEND_MIN_BYTES = JSON_OFFSET + 8
_RECORD_MIN_BYTES = len('{"$seq":,"$ts":1,"data":1},')


@dataclass(frozen=True, slots=True)
class Loss:
    topic: str
    first: int
    last: int
    records: int | None
    """How many records were lost; None: at most so many seqs, nobody can tell."""


@dataclass(slots=True)
class RepairReport:
    shard: int
    damage: list[str]
    losses: list[Loss] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What else changes, or may have been lost."""
    quarantined: list[str] = field(default_factory=list)
    """Where the evidence is now."""

    @property
    def clean(self) -> bool:
        return not self.damage


def repair_shard(
    fs: FileSystem,
    settings: Settings,
    shard: int,
    now_ms: int,
    progress: Progress,
    *,
    dry: bool = False,
    wal_file_bytes: int = WAL_FILE_BYTES,
) -> RepairReport:
    """The caller holds the locks. Raises DataDamage or OSError if it cannot be done; nothing has changed then."""
    survey = survey_shard(fs, settings, shard, now_ms, progress, wal_file_bytes=wal_file_bytes)
    report = RepairReport(shard, [str(damage) for damage in survey.damage])
    if survey.damage:
        _require_a_beginning(survey)
        target = ScratchFileSystem(fs) if dry else fs
        _Repair(target, survey, report, now_ms, progress, wal_file_bytes).run()
        report.losses = _joined(report.losses)
    return report


def _require_a_beginning(survey: Survey) -> None:
    """Topics are known from a snapshot, or from a log that goes back to its first file."""
    recovered = survey.recovered
    begins = recovered.snapshot is not None or 1 in recovered.wal.files
    held = survey.scratch.list_dir(survey.paths.segments) or survey.scratch.list_dir(survey.paths.snapshots)
    if not begins or (held and not recovered.report.frames and recovered.snapshot is None):
        raise CorruptSnapshot(
            path=survey.paths.snapshots,
            reason="no snapshot can be read, and the log does not go back to its beginning, so nothing says which "
            "topics there were: restore this shard from a backup",
        )


def _joined(losses: list[Loss]) -> list[Loss]:
    """By topic and seq; stretches that touch are one."""
    joined: list[Loss] = []
    for loss in sorted(losses, key=lambda loss: (loss.topic, loss.first)):
        last = joined[-1] if joined else None
        if (
            last is not None
            and last.records is not None
            and loss.records is not None
            and (last.topic, last.last + 1) == (loss.topic, loss.first)
        ):
            joined[-1] = Loss(loss.topic, last.first, loss.last, last.records + loss.records)
        else:
            joined.append(loss)
    return joined


class _Repair:
    def __init__(
        self,
        fs: FileSystem,
        survey: Survey,
        report: RepairReport,
        now_ms: int,
        progress: Progress,
        wal_file_bytes: int,
    ) -> None:
        self._fs = fs
        self._survey = survey
        self._report = report
        self._state = survey.recovered.state
        self._now_ms = max(now_ms, self._state.clock_ms)
        self._progress = progress
        self._wal_file_bytes = wal_file_bytes
        self._paths = survey.paths

    def run(self) -> None:
        survey, check = self._survey, self._survey.check
        snapshots = [n for n in check.bad_snapshots if self._fs.exists(self._snapshot_path(n))]
        # Snapshots and manifests can be replaced by themselves: everything they say stands elsewhere, too.
        elsewhere = len(check.bad_snapshots) + len(check.bad_manifests) + len(check.stale_cold)
        rewrite = bool(len(survey.damage) > elsewhere or check.gaps or check.bad_segments)
        bad_files: list[str] = []
        if rewrite:
            bad_files = self._rewrite()
        repair_manifest(self._fs, survey, self._now_ms)
        if rewrite:
            snapshots = [n for n in self._all_snapshots() if n <= self._newest_old_snapshot]
            # The newest first: killed in between, a start takes the rest for leftovers of a trim.
            for number in sorted(self._old_log_files(), reverse=True):
                self._move_aside(f"{self._paths.wal}/{wal_file_name(number)}")
        for number in snapshots:
            self._move_aside(self._snapshot_path(number))
        for path in bad_files:
            self._move_aside(path)
        for number in check.stale_cold:
            self._move_aside(f"{self._paths.cold}/data/{segment_file_name(number)}")
        for generation in check.bad_manifests:
            self._move_aside(f"{self._paths.cold}/{manifest_name(generation)}")

    # --- what is lost -----------------------------------------------------------------------------------

    def _rewrite(self) -> list[str]:
        """Everything up to and including the commit; returns damaged segment files that nobody needs now."""
        self._newest_old_snapshot = last_snapshot_number(self._fs, self._paths.snapshots)
        self._never_again()
        self._note_log_losses()
        for topic in self._state.catalog.by_id.values():
            self._drop_unreadable_batches(topic)
            self._skip_seqs_given_out(topic)
        rescue = SegmentRescue(self._fs, self._survey, self._now_ms, self._progress)
        bad_files = rescue.run()
        for topic, lost in rescue.losses:
            self._add_loss(topic, lost)
        self._report.notes.extend(rescue.notes)
        self._seal_hot()
        self._commit()
        return [*bad_files, *(path for path in self._unused_segments() if path not in bad_files)]

    def _never_again(self) -> None:
        """Numbers that may be taken by what could not be read must not be given out again."""
        state, check, log = self._state, self._survey.check, self._survey.recovered.report.log
        unread = sum(self._bytes_between(start, end) for start, end in check.gaps)
        state.catalog.last_id = max([state.catalog.last_id, *log.strangers]) + 1 + unread // _APPEND_MIN_BYTES
        state.catalog.last_epoch = max(state.catalog.last_epoch, self._now_ms)
        directories = [self._paths.segments]
        if self._paths.cold is not None:
            directories.append(f"{self._paths.cold}/data")
        for directory in directories:
            numbers = [segment_number(name) or 0 for name in self._fs.list_dir(directory)]
            sealed = [number for number in numbers if number < COMPACTED_FROM]
            state.last_segment = max([state.last_segment, *sealed])

    def _note_log_losses(self) -> None:
        log = self._survey.recovered.report.log
        for topic, hole in log.holes:
            self._add_loss(topic, Lost(hole.first, hole.last, hole.last - hole.first + 1))
        for topic_id, records in sorted(log.lost_topics().items()):
            self._report.notes.append(
                f"{records} records belong to a topic (id {topic_id}) whose name is in an unreadable part of the "
                "log: they are lost, and the old log files in quarantine hold them"
            )
        if log.gaps:
            self._report.notes.append(
                "changes other than records (deletes, acks, configs) that stood in unreadable parts of the log are "
                "lost, too: what they removed may be back"
            )

    def _drop_unreadable_batches(self, topic: Topic) -> None:
        hot, files = topic.hot, self._survey.recovered.wal.files
        gaps = sorted(self._survey.check.gaps)
        starts = [start for start, _ in gaps]

        def readable(index: int) -> bool:
            at = hot.lsn[index] - JSON_OFFSET
            place = bisect_right(starts, at) - 1
            return (place < 0 or at >= gaps[place][1]) and at >> 32 in files

        kept = [index for index in range(hot.start, len(hot.first)) if readable(index)]
        if len(kept) == len(hot):
            return
        dropped = sorted(set(range(hot.start, len(hot.first))) - set(kept))
        for index in dropped:
            topic.bytes -= hot.live[index]
            entry = hot.entry(index)
            for lost in lose(topic, entry.first, entry.last):
                self._add_loss(topic, lost)
        topic.replace_hot(_only(hot, kept))
        topic.hot_bytes = sum(topic.hot.size)
        topic.terms = None

    def _skip_seqs_given_out(self, topic: Topic) -> None:
        """Where a topic's newest records may be among the unreadable: seqs that may be taken are never used again."""
        unknown = self._survey.recovered.report.log.end_unknown(topic)
        if not unknown:
            return
        most = sum(self._records_at_most(topic, gap) for gap in unknown)
        if not most:
            return
        upto = max(topic.head + most, topic.reserved)
        if topic.config.durability == "ephemeral" or self._state.boot_id != self._fs.boot_id():
            upto += SEQ_RESERVE_MAX
        hole = Hole(topic.head + 1, upto, REASON_MIXED)
        topic.apply_hole(hole)
        topic.reserved = max(topic.reserved, topic.head)
        self._report.losses.append(Loss(topic.name, hole.first, hole.last, None))

    def _records_at_most(self, topic: Topic, gap: LogGap) -> int:
        each = _RECORD_MIN_BYTES + len(str(topic.head + 1))
        return max(0, self._bytes_between(gap.lsn, gap.end) - _APPEND_MIN_BYTES) // each

    def _bytes_between(self, lsn: int, end: int) -> int:
        """How much of the log can have stood there."""
        (first, start), (last, stop) = split_lsn(lsn), split_lsn(end)
        return max(0, (last - first) * self._wal_file_bytes + stop - start)

    def _add_loss(self, topic: Topic, lost: Lost) -> None:
        self._report.losses.append(Loss(topic.name, lost.first, lost.last, lost.records))

    # --- what is kept -----------------------------------------------------------------------------------

    def _seal_hot(self) -> None:
        """Every record of the log into segments: nothing needs the old log files any more."""
        state = self._state
        for topics in self._seal_groups():
            state.last_segment += 1
            shares = [share for topic in topics if (share := plan_share(topic)) is not None]
            plan = SealPlan(state.last_segment, tuple(shares))
            store = self._survey.recovered.store
            job = SealJob(self._fs, self._paths.segments, store, self._survey.shard, plan, self._now_ms)
            job.run()
            if job.fact is not None:
                state.apply(0, 0, state.clock_ms, job.fact)
            for topic in topics:
                assert not sum(topic.hot.live[topic.hot.start :]), f"{topic} has live records left in the log"
                topic.replace_hot(HotIndex())
                topic.hot_bytes = topic.last_file = 0

    def _seal_groups(self) -> Iterator[list[Topic]]:
        group: list[Topic] = []
        size = 0
        for topic in self._state.catalog.by_id.values():
            if len(topic.hot):
                group.append(topic)
                size += topic.hot_bytes
            if size >= SEAL_PASS_MAX_BYTES:
                yield group
                group, size = [], 0
        if group:
            yield group

    def _commit(self) -> None:
        fs, paths, survey = self._fs, self._paths, self._survey
        for directory in (paths.wal, paths.segments, paths.snapshots, paths.quarantine):
            fs.make_dir(directory)
        old = [survey.recovered.wal.file_no, *self._log_files()]
        wal = Wal(fs, paths.wal, shard=survey.shard, file_bytes=self._wal_file_bytes)
        wal.start(max(old) + 1, self._now_ms)
        job = wal.begin_sync()
        job.run()
        wal.finish_sync(job)
        self._first_new_file = wal.file_no
        for serial in range(1, SNAPSHOTS + 1):
            number = self._newest_old_snapshot + serial
            writer = SnapshotWriter(
                fs, paths.snapshots, number, self._state, survey.shard, wal.end, self._now_ms
            )
            while writer.step():
                pass
            # Not clean, and under the old boot: the next start settles what the last session left open, as ever.
            writer.complete(wal, clean=False, boot_id=self._state.boot_id)
            writer.job().run()
        wal.close()

    def _unused_segments(self) -> Iterator[str]:
        """Files that the next start would remove. Nothing refers to them, but a lost frame may have."""
        for name in self._fs.list_dir(self._paths.segments):
            number = segment_number(name)
            if number is not None and number not in self._state.segments:
                yield f"{self._paths.segments}/{name}"

    # --- evidence ---------------------------------------------------------------------------------------

    def _move_aside(self, path: str) -> None:
        if not self._fs.exists(path):
            return
        cold = self._paths.cold
        in_cold_tier = cold is not None and path.startswith(f"{cold}/")
        # In its own tier: a rename does not leave its file system.
        directory = f"{cold}/quarantine" if in_cold_tier else self._paths.quarantine
        self._fs.make_dir(directory)
        self._report.quarantined.append(quarantine_file(self._fs, path, directory))

    def _log_files(self) -> list[int]:
        return [number for name in self._fs.list_dir(self._paths.wal) if (number := wal_file_number(name))]

    def _old_log_files(self) -> list[int]:
        return [number for number in self._log_files() if number < self._first_new_file]

    def _all_snapshots(self) -> list[int]:
        return [
            number for name in self._fs.list_dir(self._paths.snapshots) if (number := snapshot_number(name))
        ]

    def _snapshot_path(self, number: int) -> str:
        return f"{self._paths.snapshots}/{snapshot_file_name(number)}"


def _only(hot: HotIndex, kept: list[int]) -> HotIndex:
    columns = (hot.first, hot.lsn, hot.ts, hot.size, hot.live, hot.count, hot.flags)
    return HotIndex.of(*(array(column.typecode, [column[index] for index in kept]) for column in columns))
