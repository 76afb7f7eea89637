"""Background work of a shard: sealing, snapshots, trimming, moving segments to the cold tier, freeing space.

Each piece is a job in three steps, like a sync: decided here between turns, run in a thread, finished here. At most
one job is under way. The order of files' lives: a log file goes when no kept snapshot needs it, a segment when no
kept snapshot names it, so that the older of the two snapshots can always stand in for the newer one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from shard_worker.adoption import Adoption
from shard_worker.core.seal_pace import SealPace
from shard_worker.core.shard_state import TIER_COLD, TIER_HOT, SegmentEntry
from shard_worker.core.topic import Topic
from shard_worker.disk.cold_tier import ForgetJob, RelocateJob
from shard_worker.disk.record_store import RecordStore, segment_file_name, segment_number
from shard_worker.disk.recovery import ShardPaths
from shard_worker.disk.sealing import SealJob, SealPlan, TopicShare, plan_share
from shard_worker.disk.snapshots import (
    SnapshotInfo,
    SnapshotJob,
    SnapshotWriter,
    last_snapshot_number,
    remove_old_snapshots,
)
from shard_worker.disk.staged_jobs import PublishJob, RefuseJob, ScanJob, VerifyJob
from shard_worker.engine import Engine
from shard_worker.maintenance_counters import MaintenanceCounters
from shard_worker.pending import PendingControl
from shared.compaction import COMPACTED_FROM
from shared.control_frames import SegmentMoved
from shared.errors import CorruptSegment, DataDamage, ReadOnlyShard
from shared.io.bucket_fs import for_serving
from shared.io.durable_fs import FileSystem
from shared.io.object_store import is_bucket
from shared.limits import (
    SEAL_PASS_MAX_BYTES,
    SNAPSHOT_EVERY_WAL_BYTES,
    SNAPSHOT_EVERY_WAL_FRAMES,
    SNAPSHOT_LARGE_BYTES,
    SNAPSHOT_MANY_TOPICS,
    SNAPSHOT_SOONEST_WAL_BYTES,
    SNAPSHOT_SOONEST_WAL_FRAMES,
    SWEEP_TOPICS_PER_TICK,
    WAL_MAX_FILES_BEFORE_SEAL,
)

Job = SealJob | SnapshotJob | RelocateJob | ForgetJob | ScanJob | VerifyJob | PublishJob | RefuseJob


class Keeper(Protocol):
    """Someone who still needs files that the shard itself could do without: a backup, the archive."""

    def first_file(self) -> int | None:
        """The oldest log file to keep; None: none of them."""

    def keeps_segment(self, number: int) -> bool: ...
    def keeps_snapshot(self, number: int) -> bool: ...


class Maintenance:
    def __init__(
        self,
        fs: FileSystem,
        paths: ShardPaths,
        engine: Engine,
        store: RecordStore,
        snapshot: SnapshotInfo | None,
        *,
        replayed_bytes: int = 0,
        replayed_frames: int = 0,
    ) -> None:
        """`replayed_…`: the log behind `snapshot` that is there already."""
        self._fs = fs
        self._paths = paths
        self._engine = engine
        self._store = store
        self.snapshot = snapshot  # the newest one that is on disk for good
        self.keepers: list[Keeper] = []
        self._trim_before = 0  # log files in front of this one are needed by no kept snapshot
        self._writer: SnapshotWriter | None = None
        self._bytes_at_snapshot = engine.wal.counters.bytes - replayed_bytes
        self._frames_at_snapshot = engine.wal.counters.frames - replayed_frames
        self._sweep_ids: list[int] = []
        self._moved: list[tuple[int, int]] = []  # segment, lsn of the frame that must be synced first
        # Set aside until the next start, so that one damaged batch or file does not hold up all others.
        self._seal_alone: set[int] = set()
        self._unsealable: set[int] = set()
        self._immovable: set[int] = set()
        self._forgetting: ForgetJob | None = None
        self._snapshots_wanted = 0
        self.adoption = (
            Adoption(fs, paths.cold, engine, self._want_snapshots) if paths.cold is not None else None
        )
        self.due: dict[Topic, None] = {}  # sealed as soon as no other job runs
        self._ripe: dict[Topic, None] = {}  # large enough to be sealed, and waiting for `pace`
        self.pace: SealPace | None = None  # None: ripe topics are due at once
        self.counters = MaintenanceCounters()
        self.free_bytes = 0  # as last looked
        # Behind every file there is: a snapshot that cannot be read must not outlive the ones that can.
        self._next_snapshot = 1 + last_snapshot_number(fs, paths.snapshots)
        self._remove_orphans()
        self._watch_space()  # not only with the first tick: until then writes would be taken

    @property
    def fs(self) -> FileSystem:
        return self._fs

    @property
    def paths(self) -> ShardPaths:
        return self._paths

    @property
    def segments_directory(self) -> str:
        return self._paths.segments

    def _remove_orphans(self) -> None:
        """Segment files that nothing refers to: their sealing was not finished, or they were dropped."""
        state = self._engine.state
        # In a damaged log the very frame that refers to a segment may be the one that is lost.
        removing = self._engine.commits.read_only is None
        for name in self._fs.list_dir(self._paths.segments):
            number = segment_number(name)
            if number is None:
                continue
            entry = state.segments.get(number)
            if removing and (entry is None or (entry.tier == TIER_COLD and self._is_in_cold_tier(entry))):
                with self._housekeeping(f"removing {name}"):
                    self._fs.unlink(f"{self._paths.segments}/{name}")
            # Numbers are never used twice, also not those of files that are gone. A restore puts segments here that
            # a compaction has made: theirs are counted apart.
            if number < COMPACTED_FROM:
                state.last_segment = max(state.last_segment, number)

    def _is_in_cold_tier(self, entry: SegmentEntry) -> bool:
        """Is the cold copy where the log says? An unmounted directory must not cost the hot one."""
        if self._paths.cold is None:
            return False
        try:
            file = for_serving(self._fs).open(f"{self._paths.cold}/data/{segment_file_name(entry.number)}")
        except OSError:
            return False
        try:
            return file.size() == entry.size
        finally:
            file.close()

    @contextmanager
    def _housekeeping(self, what: str) -> Iterator[None]:
        """Removing what nobody needs may fail: it is tried again at the next start, and nothing depends on it."""
        try:
            yield
        except (OSError, DataDamage) as err:
            self._note_failure(what, err)

    def _note_failure(self, what: str, error: Exception) -> None:
        self.counters.failures += 1
        self.counters.last_failure = f"{what}: {error}"

    # --- deciding ---------------------------------------------------------------------------------------

    def note_append(self, topic: Topic) -> None:
        """Called for topics that changed: is it time to seal them?"""
        if self._is_ripe(topic):
            self._ripe[topic] = None
            self._seal_ripe_in_time()

    def _is_ripe(self, topic: Topic) -> bool:
        settings, hot = self._engine.settings, topic.hot
        oldest = hot.oldest_seq()
        if not oldest:
            return False
        records = topic.head - oldest + 1
        return records >= settings.segment_max_events or topic.hot_bytes >= settings.segment_max_bytes

    def _seal_ripe_in_time(self) -> None:
        counters = self._engine.wal.counters
        if self.pace is None or self.pace.is_time(self._engine.clock(), counters.bytes, counters.frames):
            self._seal_ripe()

    def _seal_ripe(self) -> None:
        # Looked at again: a topic that was written to while a pass sealed it may have little left.
        self.due.update((topic, None) for topic in self._ripe if self._is_ripe(topic))
        self._ripe.clear()

    def tick(self, now_ms: int) -> None:
        """Look at some topics each time: expired records, old unsealed ones."""
        engine = self._engine
        by_id = engine.state.catalog.by_id
        if not self._sweep_ids:
            self._sweep_ids = list(by_id)
        chosen, self._sweep_ids = (
            self._sweep_ids[-SWEEP_TOPICS_PER_TICK:],
            self._sweep_ids[:-SWEEP_TOPICS_PER_TICK],
        )
        max_age_ms = engine.settings.segment_max_age_ms
        for topic in (by_id[topic_id] for topic_id in chosen if topic_id in by_id):
            engine.sweep(topic, now_ms)
            hot = topic.hot
            if max_age_ms and len(hot) and now_ms - hot.oldest_ts() >= max_age_ms:
                self.due[topic] = None
        self._seal_ripe_in_time()
        if self.adoption is not None:
            self.adoption.tick(now_ms)
        self._watch_space()

    def _want_snapshots(self, count: int) -> None:
        self._snapshots_wanted = max(self._snapshots_wanted, count)

    def _watch_space(self) -> None:
        engine = self._engine
        free, least = self._fs.free_bytes(self._paths.root), engine.settings.min_free_bytes
        self.free_bytes = free
        read_only = engine.commits.read_only
        if isinstance(read_only, ReadOnlyShard) and free >= max(least, 1):
            engine.commits.read_only = None
        elif read_only is None and free < least:
            engine.commits.read_only = ReadOnlyShard(
                shard=engine.shard, free_bytes=free, min_free_bytes=least
            )

    def next_job(self) -> Job | None:
        """The most urgent job, if any; the caller runs it and then calls `finish` or `failed`."""
        engine = self._engine
        if engine.commits.read_only is not None:
            return None
        self._remove_moved()
        if self._writer is not None:
            return self._try_snapshot()
        if len(engine.wal.files) > WAL_MAX_FILES_BEFORE_SEAL:
            self._mark_oldest_file()
        if self.due and (seal := self._seal_job()) is not None:
            return seal
        if self._snapshots_wanted or self._is_snapshot_due():
            return self._try_snapshot()
        if self._forgetting is not None:
            forgetting, self._forgetting = self._forgetting, None
            return forgetting
        if self.adoption is not None and (job := self.adoption.next_job()) is not None:
            return job
        return self._relocate_job()

    def _is_snapshot_due(self) -> bool:
        counters, (every_bytes, every_frames) = self._engine.wal.counters, self._snapshot_every()
        return (
            counters.bytes - self._bytes_at_snapshot >= every_bytes
            or counters.frames - self._frames_at_snapshot >= every_frames
        )

    def _snapshot_every(self) -> tuple[int, int]:
        """So many bytes or frames of the log: sooner where a snapshot is small, because a start replays the rest."""
        last_bytes = 0 if self.snapshot is None else self.snapshot.size
        share = max(len(self._engine.state.catalog) / SNAPSHOT_MANY_TOPICS, last_bytes / SNAPSHOT_LARGE_BYTES)
        return (
            _share_of(SNAPSHOT_EVERY_WAL_BYTES, share, at_least=SNAPSHOT_SOONEST_WAL_BYTES),
            _share_of(SNAPSHOT_EVERY_WAL_FRAMES, share, at_least=SNAPSHOT_SOONEST_WAL_FRAMES),
        )

    def _mark_oldest_file(self) -> None:
        """Topics whose records hold the oldest log file back."""
        state = self._engine.state
        oldest = min(self._engine.wal.files)
        for number in sorted(state.files):
            if number > oldest:
                break
            for topic_id in state.files.pop(number):
                topic = state.catalog.by_id.get(topic_id)
                if topic is not None and len(topic.hot) and topic.hot.oldest_lsn() >> 32 <= oldest:
                    self.due[topic] = None

    # --- sealing ----------------------------------------------------------------------------------------

    def _seal_job(self) -> SealJob | None:
        engine = self._engine
        self._seal_ripe()  # a pass costs the same syncs for one topic as for all
        shares: list[TopicShare] = []
        size = 0
        for topic in list(self.due):
            if size >= SEAL_PASS_MAX_BYTES:
                break
            alone = topic.id in self._seal_alone
            if alone and shares:
                continue
            del self.due[topic]
            if topic.id in self._unsealable or topic.id not in engine.state.catalog.by_id:
                continue
            if (share := plan_share(topic)) is not None:
                shares.append(share)
                size += topic.hot_bytes
                if alone:
                    break
        if not shares:
            return None
        if self.pace is not None:
            self.pace.begin(engine.wal.counters.bytes, engine.wal.counters.frames)
        engine.state.last_segment += 1
        plan = SealPlan(engine.state.last_segment, tuple(shares))
        return SealJob(self._fs, self._paths.segments, self._store, engine.shard, plan, engine.now_ms())

    def _finish_seal(self, job: SealJob) -> None:
        self.counters.seals += 1
        if job.fact is not None:
            self._engine.commit_control(PendingControl(job.fact, None, self._engine.now_ms()))

    # --- snapshots --------------------------------------------------------------------------------------

    def _begin_snapshot(self) -> SnapshotWriter:
        engine = self._engine
        engine.commit()
        start = engine.commits.oldest_unapplied()
        self._bytes_at_snapshot = engine.wal.counters.bytes
        self._frames_at_snapshot = engine.wal.counters.frames
        writer = SnapshotWriter(
            self._fs,
            self._paths.snapshots,
            self._next_snapshot,
            engine.state,
            engine.shard,
            start,
            engine.now_ms(),
        )
        self._writer = writer
        self._next_snapshot += 1
        return writer

    def _try_snapshot(self) -> SnapshotJob | None:
        try:
            if self._writer is None:
                self._begin_snapshot()
            return self._step_snapshot()
        except (
            OSError,
            ValueError,
        ) as err:  # ValueError: the state of one topic is larger than a frame can be
            self._snapshot_failed(err)
            return None

    def _snapshot_failed(self, error: OSError | ValueError | DataDamage) -> None:
        """The old one stays and the log is not trimmed. Tried again, but not before some more is written."""
        self._note_failure("snapshot", error)
        self._snapshots_wanted = 0
        if self.adoption is not None:
            self.adoption.snapshot_failed()
        if self._writer is not None:
            self._writer.abandon()
            self._writer = None
        counters, (every_bytes, every_frames) = self._engine.wal.counters, self._snapshot_every()
        self._bytes_at_snapshot = counters.bytes - every_bytes * 7 // 8
        self._frames_at_snapshot = counters.frames - every_frames * 7 // 8

    def _step_snapshot(self) -> SnapshotJob | None:
        """A slice of topics; the job itself once all are written."""
        writer, engine = self._writer, self._engine
        assert writer is not None
        if not writer.completed:
            if not writer.step():
                engine.commit()
                writer.complete(engine.wal, clean=False, boot_id=engine.state.boot_id)
            return None
        if engine.wal.synced < writer.info.end:
            return None  # never ahead of the log: wait for the next sync
        self._writer = None
        return writer.job()

    @property
    def stepping(self) -> bool:
        """Is a snapshot being written in slices, so that `next_job` should be called again soon?"""
        writing = self._writer is not None and not self._writer.completed
        return writing and self._engine.commits.read_only is None

    def snapshot_now(self, *, clean: bool) -> None:
        """A whole snapshot at once, at shutdown: nothing may be in flight. Without it the next start replays more."""
        engine = self._engine
        if self._writer is not None:
            self._writer.abandon()
            self._writer = None
        engine.sync_now()
        try:
            writer = self._begin_snapshot()
            while writer.step(clean=clean):
                pass
            writer.complete(engine.wal, clean=clean, boot_id=engine.state.boot_id)
            engine.sync_now()
            assert engine.wal.synced >= writer.info.end
            self._writer = None
            job = writer.job()
            job.run()
        except (OSError, ValueError) as err:
            self._snapshot_failed(err)
        else:
            self.finish(job)

    def _finish_snapshot(self, job: SnapshotJob) -> None:
        self.counters.snapshots += 1
        if self._snapshots_wanted:
            self._snapshots_wanted -= 1
            if self.adoption is not None and not self._snapshots_wanted:
                self.adoption.snapshot_taken()
        previous, self.snapshot = self.snapshot, job.info
        with self._housekeeping("removing old snapshots"):
            remove_old_snapshots(self._fs, self._paths.snapshots, self._keeps_snapshot)
        if previous is None:
            return
        # Two snapshots are kept: what the older one does not need, nobody does.
        self._trim_before = min(previous.first_file, job.info.first_file)
        self.trim()
        with self._housekeeping("removing dead segments"):
            self._drop_segments(previous.dead_segments)

    def trim(self) -> None:
        """Remove the log files that nobody needs any more. A keeper that needs less than before calls this."""
        kept = [first for keeper in self.keepers if (first := keeper.first_file()) is not None]
        gone = self._engine.wal.trim_below(min([self._trim_before, *kept]))
        self.counters.retired_files.extend(gone)

    def _keeps_snapshot(self, number: int) -> bool:
        return any(keeper.keeps_snapshot(number) for keeper in self.keepers)

    def _keeps_segment(self, number: int) -> bool:
        return any(keeper.keeps_segment(number) for keeper in self.keepers)

    def _drop_segments(self, numbers: frozenset[int]) -> None:
        """Those that a keeper needs stay on the list of segments; a later snapshot finds them dead again."""
        segments = self._engine.state.segments
        dead = [
            segments[number]
            for number in sorted(numbers)
            if number in segments and not self._keeps_segment(number)
        ]
        hot = [entry for entry in dead if entry.tier == TIER_HOT]
        cold = [entry.number for entry in dead if entry.tier == TIER_COLD]
        for entry in hot:
            path = f"{self._paths.segments}/{segment_file_name(entry.number)}"
            if self._fs.exists(path):
                self._fs.unlink(path)
            self._forget_segment(entry.number)
        if hot:
            self._fs.sync_dir(self._paths.segments)
        if cold and self._paths.cold is not None:
            # If the cold tier cannot be reached they stay on the list, and the next snapshot tries again.
            job = ForgetJob(self._fs, self._paths.cold, self._engine.shard, cold, self._engine.now_ms())
            if is_bucket(self._paths.cold):
                self._forgetting = job  # a bucket is never asked between two turns
                return
            job.run()
            self._finish_forgetting(job)

    def _finish_forgetting(self, job: ForgetJob) -> None:
        for number in job.numbers:
            if number in self._engine.state.segments:
                self._forget_segment(number)

    def _forget_segment(self, number: int) -> None:
        entry = self._engine.state.segments.pop(number)
        assert not entry.runs
        self._store.forget_segment(number)
        self.counters.segments_dropped += 1

    # --- cold tier --------------------------------------------------------------------------------------

    def _relocate_job(self) -> RelocateJob | None:
        settings = self._engine.settings
        if self._paths.cold is None:
            return None
        hot = [
            entry
            for _, entry in sorted(self._engine.state.segments.items())
            if entry.tier == TIER_HOT and entry.runs
        ]
        kept_bytes = 0
        movable = []
        for kept, entry in enumerate(reversed(hot)):
            kept_bytes += entry.size
            if kept >= settings.hot_retain_segments or 0 < settings.hot_retain_bytes < kept_bytes:
                movable.append(entry)
        moving = {number for number, _ in self._moved} | self._immovable
        for entry in reversed(movable):
            if entry.number not in moving and not self._keeps_segment(entry.number):
                source = f"{self._paths.segments}/{segment_file_name(entry.number)}"
                return RelocateJob(
                    self._fs, source, self._paths.cold, self._engine.shard, entry, self._engine.now_ms()
                )
        return None

    def _finish_relocation(self, job: RelocateJob) -> None:
        pending = PendingControl(SegmentMoved(job.entry.number, TIER_COLD), None, self._engine.now_ms())
        self._engine.commit_control(pending)
        if job.entry.tier != TIER_COLD:
            return  # the log could not be written, so the hot copy stays in charge
        self.counters.relocated += 1
        self._store.forget_segment(job.entry.number)
        self._moved.append((job.entry.number, pending.lsn))

    def _remove_moved(self) -> None:
        """The hot copy goes only when the log durably says where the cold one is."""
        synced = self._engine.wal.synced
        done = [number for number, lsn in self._moved if lsn < synced and not self._keeps_segment(number)]
        if not done:
            return
        self._moved = [(number, lsn) for number, lsn in self._moved if number not in done]
        for number in done:
            with self._housekeeping(f"removing the hot copy of segment {number}"):
                self._fs.unlink(f"{self._paths.segments}/{segment_file_name(number)}")
        with self._housekeeping("removing hot copies"):
            self._fs.sync_dir(self._paths.segments)

    # --- outcomes ---------------------------------------------------------------------------------------

    def finish(self, job: Job) -> None:
        self._rest_after(job)
        match job:
            case SealJob():
                self._finish_seal(job)
            case SnapshotJob():
                self._finish_snapshot(job)
            case RelocateJob():
                self._finish_relocation(job)
            case ForgetJob():
                self._finish_forgetting(job)
                if self.adoption is not None:
                    self.adoption.scan_soon()
            case ScanJob() | VerifyJob() | PublishJob() | RefuseJob():
                assert self.adoption is not None
                self.adoption.finish(job)
                self.counters.compactions_adopted += isinstance(job, PublishJob)
                if isinstance(job, RefuseJob):
                    self.counters.compactions_refused += 1
                    self.counters.last_failure = f"compaction {job.job} was refused: {job.reason}"

    def failed(self, job: Job, error: OSError | DataDamage) -> None:
        """Nothing is lost: the log still has everything. Tried again later."""
        self._rest_after(job)
        match job:
            case SealJob():
                self._note_failure("seal", error)
                self._seal_again(job, damaged=isinstance(error, DataDamage))
            case SnapshotJob():
                self._snapshot_failed(error)
            case RelocateJob():
                self._note_failure("relocation", error)
                if isinstance(error, CorruptSegment):
                    self._immovable.add(job.entry.number)
            case ForgetJob():
                self._note_failure("removing dead segments", error)
            case ScanJob() | VerifyJob() | PublishJob() | RefuseJob():
                assert self.adoption is not None
                self._note_failure("adoption", error)
                self.adoption.failed(job)

    def _rest_after(self, job: Job) -> None:
        if self.pace is not None and isinstance(job, SealJob):
            self.pace.end(self._engine.clock())

    def _seal_again(self, job: SealJob, *, damaged: bool) -> None:
        ids = [share.topic.topic_id for share in job.plan.shares]
        if damaged:
            # One of them has a batch that cannot be read: each for itself, then without the one that it was.
            (self._unsealable if len(ids) == 1 else self._seal_alone).update(ids)
        by_id = self._engine.state.catalog.by_id
        for topic_id in ids:
            if topic_id in by_id and topic_id not in self._unsealable:
                self.due[by_id[topic_id]] = None


def _share_of(whole: int, share: float, *, at_least: int) -> int:
    return min(whole, max(at_least, int(whole * share)))
