"""Everything a shard knows, and the one way to change it: `apply_*`, for live traffic and for replay alike.

A frame is applied in log order per topic. Frames that concern a topic carry its id; a frame at or before the
topic's own `lsn` was applied already (a snapshot holds it) and changes nothing, so replaying twice is replaying
once. Sealing is recognised by its outcome instead: it may be applied later than the frames behind it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from shard_worker.core.catalog import Catalog
from shard_worker.core.dedupe import DedupeWindow
from shard_worker.core.lease_queue import JobSpec, LeaseQueue, written_at
from shard_worker.core.piece import PieceSource
from shard_worker.core.replacing import NewRun, replace_runs
from shard_worker.core.router import RouteMark, Router
from shard_worker.core.seq_set import SeqSet
from shard_worker.core.stretches import Stretch, stretches_of
from shard_worker.core.topic import REASON_MIXED, REASON_SOURCE_TRIM, Resident, Topic
from shard_worker.core.topic_snapshot import topic_from_snapshot
from shared.api_types import config_from_dict
from shared.control_frames import (
    Hole,
    JobsDone,
    JobsLeased,
    JobsReleased,
    RecordsDeleted,
    Sealed,
    SegmentMoved,
    SegmentsReplaced,
    Session,
    Synced,
    TopicConfigured,
    TopicCreated,
    TopicDeleted,
    Watermark,
)
from shared.limits import MOVED_IDENTITIES_MAX, ROUTES_REMEMBERED_MAX
from shared.match import Match
from shared.router_frames import (
    RouteForgotten,
    RouterCursors,
    RouterDefined,
    RouterDropped,
    RouterFact,
    RouteTrimmed,
)
from shared.snapshot_items import SnapTopic
from shared.wal_format import NO_EXTRA, AppendExtra

TIER_HOT, TIER_COLD = "hot", "cold"
_NO_EXTRA: Final = NO_EXTRA  # what is final is at hand in compiled code, other names are looked up


@dataclass(slots=True)
class SegmentEntry:
    """A segment that some topic is served from, or that just lost its last one."""

    number: int
    size: int
    digest: str
    tier: str = TIER_HOT
    runs: int = 0


Fact = (
    TopicCreated
    | TopicConfigured
    | TopicDeleted
    | RecordsDeleted
    | Watermark
    | Sealed
    | SegmentMoved
    | SegmentsReplaced
    | Session
    | Synced
    | JobsLeased
    | JobsDone
    | JobsReleased
    | RouterFact
)


class ShardState:
    def __init__(self) -> None:
        self.catalog = Catalog()
        self.segments: dict[int, SegmentEntry] = {}
        self.last_segment = 0
        self.clock_ms = 0  # the latest time seen: time never runs backwards here
        self.boot_id = ""  # under which the log was last written
        self.dedupe_keys = 0
        self.live_bytes = 0  # of all topics together
        self.evicted = 0  # records lost to caps and TTL since this process started
        self.resident_bytes = 0  # of batches that are in memory only
        self.routers: dict[str, Topic] = {}  # by name of the router: its source
        self.files: dict[int, set[int]] = {}  # log file -> ids of the topics with hot records in it
        self.source: PieceSource  # set by the shell once it can read files

    # --- appends ----------------------------------------------------------------------------------------

    def apply_append(
        self,
        topic: Topic,
        lsn: int,
        ts: int,
        first: int,
        count: int,
        json_lsn: int,
        size: int,
        flags: int,
        reserved: int,
        extra: AppendExtra,
    ) -> None:
        """`lsn` is the frame's, `json_lsn` that of its JSON part (0: resident)."""
        if json_lsn:
            topic.lsn = lsn
            file_no = json_lsn >> 32
            if topic.last_file != file_no:
                topic.last_file = file_no
                self.files.setdefault(file_no, set()).add(topic.id)
        records, size_before, resident_before = topic.count, topic.bytes, topic.resident_bytes
        topic.apply_append(first, count, ts, json_lsn, size, flags, self.source)
        self.live_bytes += topic.bytes - size_before
        self.resident_bytes += topic.resident_bytes - resident_before
        self.evicted += records + count - topic.count
        if reserved > topic.reserved:
            topic.reserved = reserved
        if ts > self.clock_ms:
            self.clock_ms = ts
        if extra is not _NO_EXTRA:
            self._apply_extra(topic, first, count, ts, extra)

    def _apply_extra(self, topic: Topic, first: int, count: int, ts: int, extra: AppendExtra) -> None:
        if extra.idem is not None:
            self._remember(topic, extra.idem, first, count, ts)
        for mark in extra.moved:
            topic.moved[mark.identity] = first + mark.place
        if extra.router is not None:
            self._note_progress(topic, extra.router.router, extra.router.epoch, extra.router.source_seq)
        while len(topic.moved) > MOVED_IDENTITIES_MAX:
            del topic.moved[next(iter(topic.moved))]
        if topic.queue is not None:
            for job in extra.jobs:
                topic.queue.add(first + job.place, ts, JobSpec(job.deliver_at_ms, job.priority, job.group))

    def keep_resident(self, topic: Topic, first: int, json: bytes, columns: bytes) -> None:
        """The bytes of an ephemeral batch, in front of its `apply_append`."""
        if topic.resident is None:
            topic.resident = {}
        topic.resident[first] = Resident(json, columns)
        topic.resident_bytes += len(json) + len(columns)
        self.resident_bytes += len(json) + len(columns)

    def expire_keys(self, topic: Topic, now_ms: int) -> None:
        """Forget idempotency keys past their window."""
        if topic.dedupe is not None:
            self.dedupe_keys -= topic.dedupe.expire(now_ms, topic.config.idempotency_window_ms)
            if not len(topic.dedupe):
                topic.dedupe = None

    def _remember(self, topic: Topic, key: str, first: int, count: int, ts: int) -> None:
        if topic.dedupe is None:
            topic.dedupe = DedupeWindow()
        window = topic.dedupe
        self.dedupe_keys -= len(window)
        window.expire(ts, topic.config.idempotency_window_ms)
        window.remember(key, first, count, ts)
        self.dedupe_keys += len(window)

    def forget_keys(self, topic: Topic) -> None:
        if topic.dedupe is not None:
            self.dedupe_keys -= len(topic.dedupe)
            topic.dedupe = None

    # --- everything else --------------------------------------------------------------------------------

    def apply(self, lsn: int, topic_id: int, ts: int, fact: Fact) -> int:
        """Make one control frame true. Returns the number of records it removed."""
        self.clock_ms = max(self.clock_ms, ts)
        match fact:
            case JobsDone():
                pass  # first, because it comes as often as all others together
            case Sealed():
                self._apply_sealed(fact)
                return 0
            case SegmentMoved():
                if fact.segment in self.segments:
                    self.segments[fact.segment].tier = fact.tier
                return 0
            case SegmentsReplaced():
                return self._apply_replaced(fact)
            case Session():
                self.boot_id = fact.boot_id
                return 0
            case Synced():
                return 0
            case TopicCreated():
                self._apply_created(lsn, topic_id, fact)
                return 0
        topic = self.catalog.by_id.get(topic_id)
        if topic is None or lsn <= topic.lsn:
            return 0
        topic.lsn = lsn
        size_before, resident_before = topic.bytes, topic.resident_bytes
        removed = self._apply_to(topic, fact, ts)
        self.live_bytes += topic.bytes - size_before
        self.resident_bytes += topic.resident_bytes - resident_before
        return removed

    def _apply_to(self, topic: Topic, fact: Fact, ts: int) -> int:
        held = topic.count
        match fact:
            case JobsLeased() | JobsDone() | JobsReleased():
                self._apply_jobs(topic, fact, ts)
            case TopicConfigured():
                config = self.catalog.shared_config(config_from_dict(fact.config))
                topic.apply_config(config, self.source)
                self.evicted += held - topic.count
            case TopicDeleted():
                self._forget(topic)
                return held
            case RecordsDeleted():
                match = Match.from_wire(fact.match) if fact.match is not None else None
                return topic.apply_delete(fact.upto, fact.before, match, self.source)
            case Watermark():
                self._apply_watermark(topic, fact)
                self.evicted += held - topic.count
            case RouterDefined() | RouterDropped() | RouterCursors() | RouteTrimmed() | RouteForgotten():
                self._apply_router(topic, fact)
        return 0

    # --- routers ----------------------------------------------------------------------------------------

    def _apply_router(self, topic: Topic, fact: RouterFact) -> None:
        routers = topic.routers
        match fact:
            case RouterDefined():
                known = routers.get(fact.name) if routers is not None else None
                if known is not None and known.epoch == fact.epoch:
                    known.rules = fact.rules  # it stays where it stands
                    return
                if topic.routers is None:
                    topic.routers = {}
                topic.routers[fact.name] = Router.defined(fact)
                self.routers[fact.name] = topic
            case RouterDropped():
                if routers is not None and fact.name in routers and routers[fact.name].epoch <= fact.epoch:
                    del routers[fact.name]
                    topic.routers = routers or None
                    self._unlist_router(fact.name, topic)
            case RouterCursors():
                for row in fact.cursors:
                    router = routers.get(row.name) if routers is not None else None
                    if router is not None and router.epoch == row.epoch:
                        router.stand_at(row)
            case RouteTrimmed():
                topic.apply_hole(Hole(fact.first, fact.last, REASON_SOURCE_TRIM))
                topic.reserved = max(topic.reserved, topic.head)
                self._note_progress(topic, fact.router, fact.epoch, fact.source_seq)
            case RouteForgotten():
                mark = topic.routed.get(fact.router) if topic.routed is not None else None
                if topic.routed is not None and mark is not None and mark.epoch <= fact.epoch:
                    del topic.routed[fact.router]
                    topic.routed = topic.routed or None

    def _note_progress(self, topic: Topic, router: str, epoch: int, seq: int) -> None:
        if topic.routed is None:
            topic.routed = {}
        topic.routed.pop(router, None)  # to the end: who has not copied for longest is forgotten first
        topic.routed[router] = RouteMark(epoch, seq)
        while len(topic.routed) > ROUTES_REMEMBERED_MAX:
            del topic.routed[next(iter(topic.routed))]

    def list_routers(self, topic: Topic) -> None:
        """The topic has just come, with routers perhaps."""
        for name in topic.routers or ():
            self.routers[name] = topic

    def _unlist_router(self, name: str, topic: Topic) -> None:
        if self.routers.get(name) is topic:
            del self.routers[name]

    def _apply_jobs(self, topic: Topic, fact: JobsLeased | JobsDone | JobsReleased, ts: int) -> None:
        queue = topic.queue
        in_step = queue is not None and queue.in_step(topic)
        done: list[Stretch] = []
        if isinstance(fact, JobsDone):
            done = stretches_of(fact.seqs)
            topic.remove_stretches(done, self.source)
        if queue is None:
            return  # dead letters that were moved back need not be in a queue
        match fact:
            case JobsLeased():
                live = [row for row in fact.leases if topic.is_live(row.seq)]
                queue.apply_leases(live, ts, lambda seq: written_at(topic, seq, self.source))
            case JobsReleased():
                for seq, due_ms in fact.jobs:
                    if topic.is_live(seq):
                        queue.apply_release(seq, ts, due_ms, written_at(topic, seq, self.source))
            case JobsDone():
                if fact.dead:
                    queue.dead_lettered += len(fact.seqs)
                for first, last in done:
                    queue.forget_all(first, last)
                if in_step:
                    queue.keep_step(topic)

    def _apply_created(self, lsn: int, topic_id: int, fact: TopicCreated) -> None:
        if topic_id in self.catalog.by_id:
            return
        # By id: under its name another may be planned by now, and the writes that wait belong to this one.
        topic = self.catalog.unborn.get(topic_id)
        if topic is None:
            config = self.catalog.shared_config(config_from_dict(fact.config))
            topic = Topic(id=topic_id, name=fact.name, epoch=fact.epoch, config=config)
        topic.lsn = lsn
        if topic.config.type == "queue":
            topic.queue = LeaseQueue()
        topic.reserved = max(topic.reserved, fact.reserve)
        self.catalog.show(topic)

    def apply_import(self, lsn: int, ts: int, stored: SnapTopic) -> None:
        """A topic that came from another shard, its records in segments of ours."""
        self.clock_ms = max(self.clock_ms, ts)
        if stored.id in self.catalog.by_id:
            return
        topic = topic_from_snapshot(stored, self.catalog)
        topic.lsn = lsn
        self.catalog.show(topic)
        self.list_routers(topic)
        for run in topic.runs:
            self.source.run_added(run.segment)
        self.live_bytes += topic.bytes
        if topic.dedupe is not None:
            self.dedupe_keys += len(topic.dedupe)

    def _forget(self, topic: Topic) -> None:
        for run in topic.runs:
            self.source.run_dropped(run.segment)
        if topic.dedupe is not None:
            self.dedupe_keys -= len(topic.dedupe)
        self.catalog.hide(topic)
        for name in topic.routers or ():
            self._unlist_router(name, topic)
        self.live_bytes -= topic.bytes
        self.resident_bytes -= topic.resident_bytes

    def _apply_watermark(self, topic: Topic, fact: Watermark) -> None:
        if fact.hole is not None:
            topic.apply_hole(Hole(*fact.hole))
        if fact.floor is not None:
            topic.apply_floor(fact.floor, fact.reason or REASON_MIXED, self.source)
        if fact.reserve is not None:
            topic.reserved = max(fact.reserve, topic.head)

    def _apply_sealed(self, fact: Sealed) -> None:
        self.last_segment = max(self.last_segment, fact.segment)
        if fact.segment not in self.segments:
            self.segments[fact.segment] = SegmentEntry(fact.segment, fact.size, fact.digest)
        for share in fact.topics:
            topic = self.catalog.by_id.get(share.topic_id)
            if topic is None or any(run.segment == fact.segment for run in topic.runs):
                continue
            topic.apply_sealed(fact.segment, share.last, share.max_ts, self.source)
            if not len(topic.hot):
                topic.last_file = 0

    def _apply_replaced(self, fact: SegmentsReplaced) -> int:
        """A compaction was adopted. Like sealing it is recognised by its outcome: a topic without a run in an old
        segment has been switched already. Returns the number of live records that keys let go."""
        old = frozenset(fact.old)
        dropped = {topic_id: SeqSet(stored) for topic_id, stored in fact.dropped}
        parts: dict[int, list[NewRun]] = {}
        for new in fact.new:
            if new.segment not in self.segments:
                self.segments[new.segment] = SegmentEntry(new.segment, new.size, new.digest, TIER_COLD)
            for share in new.topics:
                parts.setdefault(share.topic_id, []).append(NewRun(new.segment, share))
        removed = 0
        for topic in self.topics_in(old):
            held, size_before = topic.count, topic.bytes
            replace_runs(topic, old, parts.get(topic.id, []), dropped.get(topic.id), self.source)
            self.live_bytes += topic.bytes - size_before
            removed += held - topic.count
        return removed

    def topics_in(self, segments: frozenset[int]) -> list[Topic]:
        """The topics that are served from any of these segments."""
        return [
            topic
            for topic in self.catalog.by_id.values()
            if any(run.segment in segments for run in topic.runs)
        ]
