"""Topics as JSON: state and list entries. Documents end without their closing brace; the gateway adds timings."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from shard_worker.core.priority import effective_priority
from shard_worker.core.topic import Topic

_json = msgspec.json.encode


def state_json(topic: Topic, shard: int, now_ms: int, waited_ms: int) -> bytes:
    config = topic.config
    fields: dict[str, object] = {
        "topic": topic.name,
        "type": config.type,
        "head_seq": topic.head,
        "earliest_seq": topic.earliest,
        "next_seq": topic.head + 1,
        "count": topic.count,
        "bytes": topic.bytes,
        "config": config,
        "effective_priority": effective_priority(config, topic.last_read_ts, now_ms, waited_ms),
        "last_write_ts": topic.last_ts or None,
        "last_read_ts": topic.last_read_ts or None,
        "epoch": topic.epoch,
        "shard": shard,
    }
    if topic.queue is not None:
        queue = topic.queue
        queue.settle(topic, now_ms)
        fields["queue"] = {
            "ready": queue.ready(topic),
            "in_flight": queue.in_flight,
            "delayed": queue.delayed,
            "dead_lettered": queue.dead_lettered,
        }
    return _json(fields)[:-1]


def list_item_json(topic: Topic, now_ms: int, waited_ms: int) -> bytes:
    """One complete entry of a list."""
    return _json(
        {
            "topic": topic.name,
            "type": topic.config.type,
            "head_seq": topic.head,
            "earliest_seq": topic.earliest,
            "count": topic.count,
            "bytes": topic.bytes,
            "durable": topic.config.durable,
            "effective_priority": effective_priority(topic.config, topic.last_read_ts, now_ms, waited_ms),
        }
    )


def put_json(topic: Topic, created: bool) -> bytes:
    return _json({"topic": topic.name, "created": created, "config": topic.config})[:-1]


def deleted_topic_json(name: str, deleted: bool, routers: Sequence[str] = ()) -> bytes:
    return _json({"topic": name, "deleted": deleted, "routers_removed": routers})[:-1]


def deleted_records_json(topic: Topic, removed: int) -> bytes:
    fields = {
        "topic": topic.name,
        "deleted": removed,
        "earliest_seq": topic.earliest,
        "head_seq": topic.head,
        "count": topic.count,
        "bytes": topic.bytes,
    }
    return _json(fields)[:-1]
