"""Questions about one shard, answered from its state: by its worker, or from the files of a stopped shard.

Both call `answer` with the same `ShardView`, so the same state gives the same answer. Nothing changes, and every answer
is bounded: long lists come in pages (`after`, `limit`, and `next` in the answer), so a worker stays in its turn.

A position in the log is text, `file:offset`, here and in everything that is printed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from heapq import nsmallest
from itertools import islice

import msgspec

from shard_worker.core.hot_index import IN_MEMORY
from shard_worker.core.job import JobState
from shard_worker.core.lease_queue import LeaseQueue
from shard_worker.core.router import Router
from shard_worker.core.shard_state import TIER_COLD, TIER_HOT, ShardState
from shard_worker.core.topic import Topic
from shard_worker.disk.record_store import RecordStore
from shard_worker.disk.recovery import Recovered, Report
from shard_worker.disk.shard_paths import ShardPaths
from shard_worker.disk.snapshots import snapshot_number
from shard_worker.disk.wal import Wal
from shard_worker.inspection_log import list_frames, lsn_text
from shard_worker.shard import Shard
from shared.errors import InvalidRequest, TopicNotFound
from shared.io.durable_fs import FileSystem
from shared.limits import INSPECT_MAX_BYTES, PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX, READ_SCAN_MAX_RECORDS

Answer = dict[str, object]
Options = Mapping[str, object]


class ShardView(msgspec.Struct, frozen=True):
    fs: FileSystem
    paths: ShardPaths
    shard: int
    state: ShardState
    wal: Wal
    store: RecordStore
    report: Report
    read_only: str | None


def view_of_shard(shard: Shard) -> ShardView:
    engine, maintenance = shard.engine, shard.maintenance
    refusal = engine.commits.read_only
    return ShardView(
        maintenance.fs,
        maintenance.paths,
        engine.shard,
        engine.state,
        engine.wal,
        shard.store,
        shard.report,
        str(refusal) if refusal is not None else None,
    )


def view_of_files(fs: FileSystem, paths: ShardPaths, shard: int, recovered: Recovered) -> ShardView:
    refusal = "its files are damaged: topicsd verify says where" if recovered.report.damage else None
    return ShardView(
        fs, paths, shard, recovered.state, recovered.wal, recovered.store, recovered.report, refusal
    )


def answer(view: ShardView, question: str, options: Options) -> Answer:
    ask = _QUESTIONS.get(question)
    if ask is None:
        raise InvalidRequest(f"no such question: {question!r}")
    return ask(view, options)


# --- the shard ----------------------------------------------------------------------------------------------


def _show(view: ShardView, options: Options) -> Answer:
    state, wal, report = view.state, view.wal, view.report
    tiers: dict[str, dict[str, int]] = {tier: {"count": 0, "bytes": 0} for tier in (TIER_HOT, TIER_COLD)}
    for entry in state.segments.values():
        tiers[entry.tier]["count"] += 1
        tiers[entry.tier]["bytes"] += entry.size
    return {
        "shard": view.shard,
        "topics": len(state.catalog),
        "bytes": state.live_bytes,
        "log": {
            "files": len(wal.files),
            "first_file": min(wal.files, default=0),
            "last_file": max(wal.files, default=0),
            "written": lsn_text(wal.written),
            "synced": lsn_text(wal.synced),
        },
        "segments": tiers,
        "snapshots": [
            {"number": number, "bytes": size}
            for name, size in _sizes(view, view.paths.snapshots)
            if (number := snapshot_number(name)) is not None
        ],
        "quarantine": [{"file": name, "bytes": size} for name, size in _sizes(view, view.paths.quarantine)],
        "idempotency_keys": state.dedupe_keys,
        "clock_ms": state.clock_ms,
        "read_only": view.read_only,
        "recovery": {
            "frames": report.frames,
            "bytes": report.bytes,
            "notes": list(report.notes),
            "damage": [str(damage) for damage in report.damage],
        },
    }


def _sizes(view: ShardView, directory: str) -> list[tuple[str, int]]:
    found = []
    for name in view.fs.list_dir(directory)[:PAGE_SIZE_MAX]:
        try:
            file = view.fs.open(f"{directory}/{name}")
        except OSError:
            continue  # gone meanwhile
        found.append((name, file.size()))
        file.close()
    return found


# --- topics -------------------------------------------------------------------------------------------------


def _topics(view: ShardView, options: Options) -> Answer:
    limit = _limit(options)
    names = view.state.catalog.names(_text(options, "prefix"), _text(options, "after"))
    page = list(islice(names, limit + 1))
    rows = [_topic_row(view, view.state.catalog.visible[name]) for name in page[:limit]]
    return _page("topics", rows, page[limit - 1] if len(page) > limit else None)


def _topic_row(view: ShardView, topic: Topic) -> Answer:
    return {
        "topic": topic.name,
        "id": topic.id,
        "type": topic.config.type,
        "durability": topic.config.durability,
        "head_seq": topic.head,
        "earliest_seq": topic.earliest,
        "count": topic.count,
        "bytes": topic.bytes,
        "hot_batches": len(topic.hot),
        "segments": len({run.segment for run in topic.runs}),
        "holes": len(topic.holes),
    }


def _topic(view: ShardView, options: Options) -> Answer:
    """All about one topic; `after`, `limit`: its runs and leases."""
    topic, limit = _find(view, options), _limit(options)
    hot = topic.hot
    described: Answer = {
        **_topic_row(view, topic),
        "shard": view.shard,
        "epoch": topic.epoch,
        "last_write_ts": topic.last_ts or None,
        "evict_floor": topic.floor,
        "evict_reason": topic.reason,
        "reserved_upto": max(topic.reserved, topic.head),
        "deleted": len(topic.deleted) if topic.deleted is not None else 0,
        "idempotency_keys": len(topic.dedupe) if topic.dedupe is not None else 0,
        "lsn": lsn_text(topic.lsn),
        "synced": topic.lsn < view.wal.synced,
        "lost": [[hole.first, hole.last, hole.reason] for hole in topic.holes[:limit]],
        "log": None,
        "runs": _runs(view, topic, options),
        "config": msgspec.to_builtins(topic.config),
    }
    if len(hot):
        described["log"] = {
            "first_seq": hot.first[hot.start],
            "last_seq": hot.last_seq(),
            "bytes": topic.hot_bytes,
            "in_memory": hot.lsn[hot.start :].count(IN_MEMORY),
            "oldest": lsn_text(min((lsn for lsn in hot.lsn[hot.start :] if lsn != IN_MEMORY), default=0)),
        }
    if topic.queue is not None:
        described["queue"] = _queue(topic, topic.queue, limit)
    if topic.routers:
        described["routers"] = [_router(router, topic) for router in islice(topic.routers.values(), limit)]
    if topic.routed:
        described["routed"] = [
            {"router": name, "epoch": mark.epoch, "source_seq": mark.seq}
            for name, mark in islice(topic.routed.items(), limit)
        ]
    return described


def _router(router: Router, source: Topic) -> Answer:
    """A router that copies from here. What its destination has confirmed may be behind what was sent."""
    return {
        "router": router.name,
        "dest": router.dest,
        "epoch": router.epoch,
        "guarantee": router.rules.guarantee,
        "cursor": router.cursor,
        "confirmed": router.sent,
        "lag": router.lag(source.head),
        "forwarded": router.forwarded,
    }


def _queue(topic: Topic, queue: LeaseQueue, limit: int) -> Answer:
    leased = nsmallest(limit, (seq for seq, job in queue.jobs.items() if job.state is JobState.LEASED))
    return {
        "ready": queue.ready(topic),
        "in_flight": queue.in_flight,
        "delayed": queue.delayed,
        "dead_lettered": queue.dead_lettered,
        "next_change_ms": queue.next_change_ms(),
        "leases": [
            {"seq": seq, "node": job.node, "deadline": job.deadline_ms, "deliveries": job.deliveries}
            for seq in leased
            if (job := queue.jobs[seq])
        ],
    }


def _runs(view: ShardView, topic: Topic, options: Options) -> list[Answer]:
    after = _number(options, "after", 0)
    rows: list[Answer] = []
    for run in topic.runs:
        if run.segment <= after or len(rows) >= _limit(options):
            continue
        entry = view.state.segments.get(run.segment)
        rows.append(
            {
                "segment": run.segment,
                "tier": entry.tier if entry is not None else None,
                "first_seq": run.first,
                "last_seq": run.last,
                "live": topic.live_between(run.first, run.last),
                "bytes": run.live,
                "max_ts": run.max_ts,
            }
        )
    return rows


# --- places and records -------------------------------------------------------------------------------------


def _where(view: ShardView, options: Options) -> Answer:
    """Where the record of one seq is, or why there is none."""
    topic, seq = _find(view, options), _number(options, "seq", 0)
    return {"topic": topic.name, "seq": seq, **_place(view, topic, seq)}


def _place(view: ShardView, topic: Topic, seq: int) -> Answer:
    if seq < 1 or seq > topic.head:
        return {"place": "none", "why": f"seqs 1 to {topic.head} were given out"}
    for hole in topic.holes:
        if hole.first <= seq <= hole.last:
            return {"place": "lost", "why": f"seqs {hole.first} to {hole.last} are lost ({hole.reason})"}
    if seq < topic.floor:
        return {"place": "evicted", "why": f"below the evict floor {topic.floor} ({topic.reason})"}
    if not topic.is_live(seq):
        return {"place": "deleted", "why": "removed on purpose"}
    hot = topic.hot
    index = hot.index_of(seq)
    if index < len(hot.first) and hot.first[index] <= seq:
        entry = hot.entry(index)
        batch = {"first_seq": entry.first, "last_seq": entry.last, "bytes": entry.size}
        if entry.lsn == IN_MEMORY:
            return {"place": "memory", **batch}
        return {"place": "log", "json_at": lsn_text(entry.lsn), **batch}
    for run in topic.runs:
        if run.first <= seq <= run.last:
            piece = next(view.store.sealed_pieces(run.segment, topic.id, seq, seq), None)
            block = {} if piece is None else {"first_seq": piece.first, "last_seq": piece.last}
            return {
                "place": "segment",
                "segment": run.segment,
                "path": view.store.segment_path(run.segment),
                **block,
            }
    return {"place": "none", "why": "no batch and no segment has it"}


def _segments(view: ShardView, options: Options) -> Answer:
    after, limit = _number(options, "after", 0), _limit(options)
    numbers = sorted(number for number in view.state.segments if number > after)
    rows = [
        {
            "segment": number,
            "tier": entry.tier,
            "bytes": entry.size,
            "digest": entry.digest,
            "runs": entry.runs,
            "path": view.store.segment_path(number),
        }
        for number in numbers[:limit]
        if (entry := view.state.segments[number])
    ]
    return _page("segments", rows, numbers[limit - 1] if len(numbers) > limit else None)


def _records(view: ShardView, options: Options) -> Answer:
    """Live records behind `after`, as they are stored; `last` true: the newest ones."""
    topic, limit = _find(view, options), _limit(options)
    after = _number(options, "after", 0)
    if options.get("last") is True:
        after = max(after, _before_last(topic, limit))
    rows: list[Answer] = []
    size = scanned = 0
    examined = after
    for piece in topic.pieces(after + 1, view.store):
        if scanned > READ_SCAN_MAX_RECORDS:
            return _page("records", rows, examined)
        scanned += piece.count
        columns, start = piece.columns, 0
        tags, keys = columns.values("tag"), columns.values("key")
        for index, (seq, end) in enumerate(zip(piece.seqs, columns.ends, strict=True)):
            record, start = piece.json[start : end - 1], end
            if seq <= after or not topic.is_live(seq):
                continue
            if rows and (len(rows) >= limit or size + len(record) > INSPECT_MAX_BYTES):
                return _page("records", rows, examined)
            rows.append({"seq": seq, "record": bytes(record), "tag": tags[index], "key": keys[index]})
            size, examined = size + len(record), seq
        examined = piece.last
    return _page("records", rows, None)


def _before_last(topic: Topic, limit: int) -> int:
    """The seq in front of the newest `limit` live records."""
    low, high = 0, topic.head
    while low < high:
        middle = (low + high) // 2
        if topic.live_between(middle + 1, topic.head) > limit:
            low = middle + 1
        else:
            high = middle
    return low


def _log(view: ShardView, options: Options) -> Answer:
    by_id = view.state.catalog.by_id

    def name_of(topic_id: int) -> str:
        return by_id[topic_id].name if topic_id in by_id else f"#{topic_id}"

    rows, following = list_frames(view.wal, name_of, _text(options, "from"), _limit(options))
    return _page("frames", rows, following)


# --- options ------------------------------------------------------------------------------------------------


def _page(name: str, rows: list[Answer], following: object) -> Answer:
    return {name: rows} if following is None else {name: rows, "next": following}


def _find(view: ShardView, options: Options) -> Topic:
    name = _text(options, "topic")
    topic = view.state.catalog.visible.get(name)
    if topic is None:
        raise TopicNotFound(topic=name)
    return topic


def _limit(options: Options) -> int:
    return min(max(_number(options, "limit", PAGE_SIZE_DEFAULT), 1), PAGE_SIZE_MAX)


def _number(options: Options, name: str, default: int) -> int:
    value = options.get(name, default)
    if type(value) is not int or value < 0:
        raise InvalidRequest(f"{name} is a whole number")
    return value


def _text(options: Options, name: str) -> str:
    value = options.get(name, "")
    if type(value) is not str:
        raise InvalidRequest(f"{name} is text")
    return value


_QUESTIONS: dict[str, Callable[[ShardView, Options], Answer]] = {
    "show": _show,
    "topics": _topics,
    "topic": _topic,
    "where": _where,
    "segments": _segments,
    "records": _records,
    "log": _log,
}
