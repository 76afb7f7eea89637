"""A topic as a snapshot holds it, and back."""

from __future__ import annotations

from array import array

from shard_worker.core.catalog import Catalog
from shard_worker.core.dedupe import DedupeWindow
from shard_worker.core.hot_index import IN_MEMORY, HotIndex
from shard_worker.core.job import Job, JobState
from shard_worker.core.lease_queue import LeaseQueue
from shard_worker.core.router import Router, marks_from_snapshot, marks_to_snapshot
from shard_worker.core.seq_set import SeqSet
from shard_worker.core.topic import REASON_MIXED, Run, Topic
from shared.api_types import config_from_dict, config_to_dict
from shared.cbor_body import as_list, as_map, as_text, as_uint
from shared.control_frames import Hole
from shared.format_errors import BadBytes
from shared.snapshot_items import DedupeEntry, SealedRun, SnapTopic
from shared.snapshot_items import HotIndex as SnapHot


def topic_to_snapshot(topic: Topic, *, clean: bool) -> SnapTopic:
    """`clean`: nothing is on its way any more, so reserved seqs are given back."""
    hot, lost, lost_records, lost_bytes = _without_residents(topic)
    holes, deleted, first = (
        _with_holes(topic, lost) if lost else (topic.holes, topic.deleted, topic.live_from)
    )
    dedupe = topic.dedupe.entries() if topic.dedupe is not None else []
    if lost:
        # With the records go their keys: a client that tries again must not be told that it is done.
        dedupe = [
            (key, held)
            for key, held in dedupe
            if not any(hole.first <= held.first <= hole.last for hole in lost)
        ]
    return SnapTopic(
        id=topic.id,
        name=topic.name,
        epoch=topic.epoch,
        config=config_to_dict(topic.config),
        lsn=topic.lsn,
        head=topic.head,
        reserve=topic.head if clean else max(topic.reserved, topic.head),
        ts=topic.last_ts,
        floor=topic.floor,
        reason=topic.reason,
        first=first if topic.count > lost_records else topic.head + 1,
        count=topic.count - lost_records,
        json_bytes=topic.bytes - lost_bytes,
        holes=tuple(holes),
        deleted=deleted.to_bytes() if deleted is not None and len(deleted) else None,
        hot=hot,
        sealed=tuple(
            SealedRun(
                run.segment,
                run.first,
                run.last,
                topic.live_between(run.first, run.last),
                run.live,
                run.max_ts,
            )
            for run in topic.runs
        ),
        dedupe=tuple(DedupeEntry(key, entry.first, entry.records, entry.ts) for key, entry in dedupe),
        more=_more(topic),
    )


def _more(topic: Topic) -> dict[str, object]:
    more: dict[str, object] = {}
    if topic.queue is not None:
        more["queue"] = topic.queue.to_snapshot()
    if topic.moved:
        more["moved"] = dict(topic.moved)
    if topic.routers:
        more["routers"] = [router.to_snapshot() for router in topic.routers.values()]
    if topic.routed:
        more["routed"] = marks_to_snapshot(topic.routed)
    return more


def _without_residents(topic: Topic) -> tuple[SnapHot, list[Hole], int, int]:
    """The hot index as a later process can use it, and what it will miss: resident batches die with this one."""
    hot = topic.hot
    columns = hot.columns()
    first, lsn, ts, sizes, live, count, flags = columns
    if IN_MEMORY not in lsn:
        return SnapHot(first, lsn, ts, sizes, live, count, flags), [], 0, 0
    lost: list[Hole] = []
    kept: list[int] = []
    records = size = 0
    for index, begins in enumerate(first):
        if lsn[index] != IN_MEMORY:
            kept.append(index)
            continue
        ends = begins + count[index] - 1
        records += topic.live_between(begins, ends)
        size += live[index]
        if lost and lost[-1].last == begins - 1:
            lost[-1] = Hole(lost[-1].first, ends, REASON_MIXED)
        elif ends >= topic.floor:
            lost.append(Hole(max(begins, topic.floor), ends, REASON_MIXED))
    stored = (array(column.typecode, [column[index] for index in kept]) for column in columns)
    return SnapHot(*stored), lost, records, size


def _with_holes(topic: Topic, lost: list[Hole]) -> tuple[list[Hole], SeqSet | None, int]:
    """Holes, deleted seqs and first live seq of the topic without the records in `lost`."""
    twin = Topic(id=topic.id, name=topic.name, epoch=topic.epoch, config=topic.config)
    twin.head, twin.live_from = topic.head, topic.live_from
    twin.holes = sorted([*topic.holes, *lost])
    if topic.deleted is not None:
        # A seq is either in a hole or deleted: otherwise it would be subtracted twice from what lives.
        twin.deleted = topic.deleted.copy()
        for hole in lost:
            twin.deleted.forget(hole.first, hole.last)
    return twin.holes, twin.deleted, twin.next_live(twin.live_from)


def topic_from_snapshot(stored: SnapTopic, catalog: Catalog) -> Topic:
    config = catalog.shared_config(config_from_dict(stored.config))
    topic = Topic(id=stored.id, name=stored.name, epoch=stored.epoch, config=config)
    topic.lsn = stored.lsn
    topic.head = topic.staged_head = stored.head
    topic.reserved = stored.reserve
    topic.last_ts = topic.staged_ts = stored.ts
    topic.floor = stored.floor
    topic.reason = stored.reason
    topic.live_from = stored.first
    topic.count = stored.count
    topic.bytes = stored.json_bytes
    if stored.holes:
        topic.holes = list(stored.holes)
    topic.deleted = SeqSet(stored.deleted) if stored.deleted is not None else None
    hot = stored.hot
    topic.replace_hot(HotIndex.of(hot.first, hot.lsn, hot.ts, hot.size, hot.live, hot.count, hot.flags))
    topic.hot_bytes = sum(hot.size)
    if stored.sealed:
        topic.runs = [
            Run(run.segment, run.first, run.last, run.json_bytes, run.max_ts) for run in stored.sealed
        ]
    if config.type == "queue":
        topic.queue = _queue_from(stored.more.get("queue"))
    moved = stored.more.get("moved")
    if isinstance(moved, dict):
        topic.moved = {as_text(identity): as_uint(seq) for identity, seq in moved.items()}
    if "routers" in stored.more:
        routers = [Router.from_snapshot(each) for each in as_list(stored.more["routers"])]
        topic.routers = {router.name: router for router in routers}
    if "routed" in stored.more:
        topic.routed = marks_from_snapshot(stored.more["routed"])
    if stored.dedupe:
        topic.dedupe = DedupeWindow()
        for entry in stored.dedupe:
            topic.dedupe.remember(entry.key, entry.first, entry.count, entry.ts)
    return topic


def _queue_from(stored: object) -> LeaseQueue:
    if stored is None:
        return LeaseQueue()
    fields = as_map(stored)
    rows = []
    for row in as_list(fields.get("jobs")):
        seq, key, state, deliveries, due_ms, node, token, deadline_ms, leased_ms, group = as_list(row, 10)
        if type(key) is not int:
            raise BadBytes("the key of a job is a whole number")
        job = Job(
            key,
            JobState(as_uint(state)),
            as_uint(deliveries),
            as_uint(due_ms),
            as_text(node),
            as_text(token),
            as_uint(deadline_ms),
            as_uint(leased_ms),
            None if group is None else as_text(group),
        )
        rows.append((as_uint(seq), job))
    return LeaseQueue.from_snapshot(as_uint(fields.get("dead")), rows)
