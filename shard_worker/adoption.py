"""Adopting what a compaction staged: looked for now and then, checked, switched to in one frame of the log.

A plan may be hours old. Deletes that came since need nothing: they live in the topics, which decide what is live
whatever a segment holds. What must not happen is that a live record is missing from the new segments. So the files are
verified in a thread against the topics as they are, and once more between two turns, when nothing can move, it is
checked that the topics still stand as they did.

The frame `SEGMENTS_REPLACED` is the one point of no return: before it the old generation is served, behind it the new.
"""

from __future__ import annotations

from collections.abc import Callable

from pyroaring import BitMap64

from shard_worker.core.replacing import runs_together
from shard_worker.core.shard_state import TIER_COLD, ShardState
from shard_worker.core.topic import Topic
from shard_worker.disk.staged_jobs import (
    AdoptionJob,
    PublishJob,
    Refused,
    RefuseJob,
    ScanJob,
    VerifyJob,
)
from shard_worker.engine import Engine
from shard_worker.pending import PendingReplacement
from shared.compaction import KeyRules, TopicView, seqs_in
from shared.control_frames import Sealed, SealedTopic, SegmentsReplaced
from shared.io.durable_fs import FileSystem
from shared.limits import COLD_WATCH_MS
from shared.staged import Staged


class Adoption:
    def __init__(
        self,
        fs: FileSystem,
        cold: str,
        engine: Engine,
        want_snapshots: Callable[[int], None],
    ) -> None:
        self._fs = fs
        self._cold = cold
        self._engine = engine
        self._want_snapshots = want_snapshots
        self._next_scan_ms = 0
        self._scan_due = False
        self._answered = False
        self._answering = False
        self._urged: set[str] = set()
        self._queue: list[Staged] = []
        self._switching: tuple[Staged, PendingReplacement] | None = None
        self._publishing: Staged | None = None
        self._refusing: tuple[str, str, Staged | None] | None = None
        self.adopted = 0
        self.refused = 0
        self.last_refusal = ""

    # --- when -------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        if now_ms >= self._next_scan_ms:
            self._scan_due = True
            self._next_scan_ms = now_ms + COLD_WATCH_MS

    def scan_soon(self) -> None:
        self._scan_due = True

    def snapshot_taken(self) -> None:
        """Snapshots that were begun after they were asked for are in place."""
        self._scan_due = True
        if self._answering:
            self._answering, self._answered = False, True

    def snapshot_failed(self) -> None:
        """The next scan asks for it again."""
        self._answering = False

    def next_job(self) -> AdoptionJob | None:
        if self._switching is not None:
            self._see_switched()
        now_ms = self._engine.now_ms()
        if self._refusing is not None:
            job, reason, staged = self._refusing
            return self._refuse_job(job, reason, staged, now_ms)
        if self._publishing is not None:
            return self._publish_job(self._publishing, now_ms)
        if self._switching is not None:
            return None
        if self._queue:
            return self._consider(self._queue.pop(0), now_ms)
        if self._scan_due:
            self._scan_due = False
            known = frozenset(self._engine.state.segments)
            return ScanJob(self._fs, self._cold, known, now_ms, self._answered)
        return None

    # --- outcomes ---------------------------------------------------------------------------------------

    def finish(self, job: AdoptionJob) -> None:
        match job:
            case ScanJob():
                self._scanned(job)
            case VerifyJob():
                if job.refusal is not None:
                    self._refuse(job.staged, job.refusal)
                else:
                    self._switch(job)
            case PublishJob():
                self._publishing = None
                self.adopted += 1
                self._scan_due = True
            case RefuseJob():
                self._refusing = None

    def failed(self, job: AdoptionJob) -> None:
        """The store could not be reached, or the disk is full: the next scan finds everything as it is."""
        if isinstance(job, VerifyJob):
            self._queue = []

    def _scanned(self, job: ScanJob) -> None:
        self._answered = False
        if job.snapshot_wanted and not self._answering:
            self._answering = True
            self._sweep_expired()
            self._want_snapshots(1)
        for name, reason in job.unreadable.items():
            self._refusing = (name, reason, None)
        self._queue = list(job.staged)
        if not self._urged.issuperset(job.waiting):
            # What only the older of two snapshots needs goes with the second. Once per job: if a file cannot be
            # removed, more snapshots would not help.
            self._urged.update(job.waiting)
            self._want_snapshots(2)

    def _sweep_expired(self) -> None:
        """What has expired is to be seen as gone in the snapshot that a plan is made from."""
        now_ms = self._engine.now_ms()
        for topic in list(self._engine.state.catalog.by_id.values()):
            if topic.config.ttl_ms:
                self._engine.sweep(topic, now_ms)

    def _refuse(self, staged: Staged, reason: str) -> None:
        self.refused += 1
        self.last_refusal = f"{staged.job}: {reason}"
        self._refusing = (staged.job, reason, staged)

    # --- deciding ---------------------------------------------------------------------------------------

    def _consider(self, staged: Staged, now_ms: int) -> AdoptionJob | None:
        if is_adopted(self._engine.state, staged):
            # A process before us died between the frame and the manifest.
            self._publishing = staged
            return self._publish_job(staged, now_ms)
        try:
            topics = check_standing(self._engine.state, staged)
        except Refused as err:
            self._refuse(staged, str(err))
            return self._refuse_job(staged.job, str(err), staged, now_ms)
        views = {topic.id: view_of(topic) for topic in topics}
        return VerifyJob(self._fs, self._cold, self._engine.shard, staged, views, now_ms)

    def _publish_job(self, staged: Staged, now_ms: int) -> PublishJob:
        segments = self._engine.state.segments
        in_use = frozenset(number for number, entry in segments.items() if entry.runs)
        return PublishJob(self._fs, self._cold, self._engine.shard, staged, in_use, now_ms)

    def _refuse_job(self, job: str, reason: str, staged: Staged | None, now_ms: int) -> RefuseJob:
        known = frozenset(self._engine.state.segments)
        return RefuseJob(self._fs, self._cold, job, reason, staged, known, now_ms)

    def _switch(self, job: VerifyJob) -> None:
        engine, staged = self._engine, job.staged
        try:
            topics = check_standing(engine.state, staged)
            dropped = {each.id: seqs_in(each.superseded) for each in staged.removed if each.superseded}
            losing = [topic for topic in topics if topic.id in dropped]
            for topic in topics:
                if topic.id not in job.views:
                    raise Refused(f"topic {topic.name} has moved into an old segment since")
            for topic in losing:
                if "compact" not in topic.config.cleanup:
                    raise Refused(f"topic {topic.name} does not keep last values any more")
        except Refused as err:
            self._refuse(staged, str(err))
            return
        kept = {topic.id: dropped[topic.id] for topic in losing}
        pending = PendingReplacement(_fact(staged, kept), losing, engine.now_ms())
        engine.commits.stage_replacement(pending)
        self._switching = (staged, pending)
        engine.commit()
        self._see_switched()

    def _see_switched(self) -> None:
        assert self._switching is not None
        staged, pending = self._switching
        if pending.applied:
            self._switching, self._publishing = None, staged
        elif pending.failed:
            self._switching = None  # the log could not be written; the next scan finds the job again


def _fact(staged: Staged, dropped: dict[int, BitMap64]) -> SegmentsReplaced:
    new = tuple(
        Sealed(
            segment.number,
            segment.digest,
            segment.size,
            tuple(
                SealedTopic(each.id, each.first, each.last, each.count, each.json_bytes, each.max_ts)
                for each in segment.topics
            ),
        )
        for segment in staged.new
    )
    rows = []
    for topic_id, seqs in sorted(dropped.items()):
        seqs.run_optimize()
        rows.append((topic_id, bytes(seqs.serialize())))
    return SegmentsReplaced(tuple(old.number for old in staged.old), new, tuple(rows))


def is_adopted(state: ShardState, staged: Staged) -> bool:
    """Has the log switched to it already? Some of its segments may have died and gone since."""
    for old in staged.old:
        if old.number in state.segments and state.segments[old.number].runs:
            return False
    if not staged.new:
        return any(old.number in state.segments for old in staged.old)
    known = [
        (state.segments[new.number].digest, new.digest) for new in staged.new if new.number in state.segments
    ]
    return bool(known) and all(found == ours for found, ours in known)


def check_standing(state: ShardState, staged: Staged) -> list[Topic]:
    """The topics that the switch would touch; Refused if the shard no longer stands as the job found it."""
    for old in staged.old:
        entry = state.segments.get(old.number)
        if entry is None or entry.tier != TIER_COLD or entry.digest != old.digest:
            raise Refused(
                f"it is based on generation {staged.generation}, and segment {old.number} is gone since"
            )
    for new in staged.new:
        if new.number in state.segments:
            raise Refused(f"generation {staged.generation} is old: segment {new.number} is in use")
    topics = state.topics_in(frozenset(old.number for old in staged.old))
    places = {(new.number, part.id): part for new in staged.new for part in new.topics}
    for topic in topics:
        for new in staged.new:
            part = places.get((new.number, topic.id))
            inside = [run for run in topic.runs if run.segment in new.old]
            if part is None or not inside:
                continue
            if (
                not runs_together(topic, new.old)
                or part.first > inside[0].first
                or part.last < inside[-1].last
            ):
                raise Refused(f"segment {new.number} would tear the records of topic {topic.name} apart")
    return topics


def view_of(topic: Topic) -> TopicView:
    """The topic as the verification sees it, a copy."""
    deleted = BitMap64()
    if topic.deleted is not None:
        deleted = BitMap64.deserialize(topic.deleted.to_bytes())
    for hole in topic.holes:
        deleted.add_range(hole.first, hole.last + 1)
    config = topic.config
    keyed = "compact" in config.cleanup and topic.queue is None
    rules = KeyRules(config.min_compaction_lag_ms, config.delete_retention_ms) if keyed else None
    runs = tuple((run.segment, run.first, run.last) for run in topic.runs)
    return TopicView(topic.id, topic.name, topic.epoch, topic.live_from, deleted, runs, rules)
