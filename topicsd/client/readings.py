"""What `topics top` knows: two readings of a server and what happened between them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from topicsd.client.output import count, duration, size

Json = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One look at a server. `at_s` is a clock that does not jump."""

    at_s: float
    metrics: Json
    ready: Json
    routers: tuple[Json, ...] = ()

    @property
    def shards(self) -> list[Json]:
        found: list[Json] = self.metrics.get("shards", [])
        return found

    def counter(self, shard: int, name: str) -> float:
        return _number(self.shards[shard].get("counters", {}).get(name)) if shard < len(self.shards) else 0.0

    def refused(self, shard: int, name: str) -> float:
        """A counter of the shard, or of the gateway's link to it."""
        links: list[Json] = self.metrics.get("links", [])
        at_link = _number(links[shard].get(name)) if shard < len(links) else 0.0
        return self.counter(shard, name) + at_link

    def gauge(self, shard: int, name: str) -> float:
        return _number(self.shards[shard].get("gauges", {}).get(name))


@dataclass(frozen=True, kw_only=True)
class TopicRow:
    name: str
    shard: int
    records: int
    bytes: int
    head_seq: int
    appended_per_s: float
    ready: int | None = None  # of a queue
    in_flight: int | None = None
    delayed: int | None = None
    oldest_ms: int | None = None


@dataclass(frozen=True, kw_only=True)
class ShardRow:
    shard: int
    state: str
    topics: int
    records: int
    bytes: int
    appended_per_s: float
    read_per_s: float
    written_bytes_per_s: float
    syncs_per_s: float
    sync_ms: float | None  # mean of those since the last reading
    waiting: int  # requests behind the log


@dataclass(frozen=True, kw_only=True)
class Picture:
    """One screen's worth, without any form."""

    uptime_ms: float
    streams: int
    sessions: int
    topics: list[TopicRow]
    shards: list[ShardRow]
    routers: list[tuple[str, str, str, int | None]]
    pressure: list[str]
    totals: dict[str, float] = field(default_factory=dict)


def compare(before: Reading | None, now: Reading) -> Picture:
    """Rates are those since `before`; without one they are 0, and so are those of a shard that was restarted."""
    span_s = now.at_s - before.at_s if before is not None else 0.0

    def rate(shard: int, name: str) -> float:
        if before is None or span_s <= 0:
            return 0.0
        return max(0.0, now.counter(shard, name) - before.counter(shard, name)) / span_s

    shards = [_shard_row(before, now, shard, rate) for shard in range(len(now.shards))]
    topics = list(_topic_rows(before, now, span_s))
    routers = [
        (str(r.get("router", "")), str(r.get("source", "")), str(r.get("dest", "")), r.get("lag"))
        for r in now.routers
    ]
    totals = {
        "appended_per_s": sum(row.appended_per_s for row in shards),
        "read_per_s": sum(row.read_per_s for row in shards),
        "claimed_per_s": sum(rate(shard, "jobs_claimed_total") for shard in range(len(shards))),
        "acked_per_s": sum(rate(shard, "jobs_acked_total") for shard in range(len(shards))),
        "evicted_per_s": sum(rate(shard, "records_evicted_total") for shard in range(len(shards))),
        "records": sum(row.records for row in shards),
        "bytes": sum(row.bytes for row in shards),
        "topics": sum(row.topics for row in shards),
        "ready": sum(now.gauge(shard, "queue_ready") for shard in range(len(shards))),
        "in_flight": sum(now.gauge(shard, "queue_in_flight") for shard in range(len(shards))),
        "delayed": sum(now.gauge(shard, "queue_delayed") for shard in range(len(shards))),
        "dead_lettered": sum(now.gauge(shard, "queue_dead_lettered") for shard in range(len(shards))),
        "router_lag": sum(lag or 0 for *_, lag in routers),
    }
    return Picture(
        uptime_ms=_number(now.metrics.get("uptime_ms")),
        streams=int(_number(now.metrics.get("sse_connections"))),
        sessions=int(_number(now.metrics.get("watch_sessions"))),
        topics=topics,
        shards=shards,
        routers=sorted(routers, key=lambda row: -(row[3] or 0)),
        pressure=_pressure(before, now, shards),
        totals=totals,
    )


def _shard_row(
    before: Reading | None, now: Reading, shard: int, rate: Callable[[int, str], float]
) -> ShardRow:
    state = "ready"
    for readiness in now.ready.get("shards", []):
        if readiness.get("shard") == shard and not readiness.get("ready"):
            state = str(readiness.get("reason", "not ready"))
    if not now.shards[shard].get("gauges"):
        state = "no answer" if state == "ready" else state
    elif now.gauge(shard, "read_only"):
        state = "read-only"
    return ShardRow(
        shard=shard,
        state=state,
        topics=int(now.gauge(shard, "topics")),
        records=int(now.gauge(shard, "records_live")),
        bytes=int(now.gauge(shard, "bytes_live")),
        appended_per_s=rate(shard, "records_appended_total"),
        read_per_s=rate(shard, "records_read_total"),
        written_bytes_per_s=rate(shard, "wal_bytes_written_total"),
        syncs_per_s=rate(shard, "wal_fsyncs_total"),
        sync_ms=_mean_sync_ms(before, now, shard),
        waiting=int(now.gauge(shard, "wal_queue_depth")),
    )


def _mean_sync_ms(before: Reading | None, now: Reading, shard: int) -> float | None:
    def sums(reading: Reading) -> tuple[float, float]:
        if shard >= len(reading.shards):
            return 0.0, 0.0
        histogram = reading.shards[shard].get("histograms", {}).get("wal_fsync_ms", {})
        return _number(histogram.get("sum")), _number(histogram.get("count"))

    if before is None:
        return None
    (sum_before, count_before), (sum_now, count_now) = sums(before), sums(now)
    syncs = count_now - count_before
    return (sum_now - sum_before) / syncs if syncs > 0 else None


def _topic_rows(before: Reading | None, now: Reading, span_s: float) -> Iterable[TopicRow]:
    for shard, numbers in enumerate(now.shards):
        old: Json = {}
        if before is not None and shard < len(before.shards):
            old = before.shards[shard].get("per_topic", {})
        for name, topic in numbers.get("per_topic", {}).items():
            head = int(topic.get("head_seq", 0))
            # A topic that is new, or was made anew, began at 0.
            since = int(old.get(name, {}).get("head_seq", 0)) if old else head
            grown = head - since if head >= since else head
            is_queue = "queue_ready" in topic
            yield TopicRow(
                name=name,
                shard=shard,
                records=int(topic.get("records", 0)),
                bytes=int(topic.get("bytes", 0)),
                head_seq=head,
                appended_per_s=grown / span_s if span_s > 0 else 0.0,
                ready=topic.get("queue_ready") if is_queue else None,
                in_flight=topic.get("queue_in_flight") if is_queue else None,
                delayed=topic.get("queue_delayed") if is_queue else None,
                oldest_ms=topic.get("queue_oldest_ready_age_ms") if is_queue else None,
            )


# What a shard does about pressure, by level (docs/pressure.md).
LEVELS = {1: "pushes gather", 2: "syncs wait for company", 3: "low priorities pause", 4: "writes are refused"}

# Signs of it, shown with the level: they say where the time goes.
SIGNS: dict[str, Callable[[float], str]] = {
    "loop_lag_ms": lambda ms: f"requests wait {duration(ms)} for their turn",
    "unsynced_wait_bytes": lambda number: f"{size(number)} wait for the disk",
    "ipc_backlog_bytes": lambda number: f"{size(number)} for the gateway",
}

# Gauges that are 0 in a shard that has no trouble, and what they mean otherwise.
TROUBLES: dict[str, Callable[[float], str]] = {
    "wal_queue_depth": lambda number: f"{count(number)} requests wait for the log",
    "read_only": lambda _: "read-only: its disk is full or failing",
    "throttled_waiting": lambda number: f"{count(number)} writes wait for room",
}

# Counters that stand still in such a shard.
REFUSALS = {
    "throttled_requests_total": "{} writes refused since the last picture",
    "ipc_throttled_total": "{} requests refused before they reached it",
    "pushes_paused_total": "{} topics paused since the last picture",
}


def _pressure(before: Reading | None, now: Reading, shards: list[ShardRow]) -> list[str]:
    found = [f"shard {row.shard}: {row.state}" for row in shards if row.state not in ("ready", "read-only")]
    for shard in range(len(now.shards)):
        troubles = [say(value) for name, say in TROUBLES.items() if (value := now.gauge(shard, name))]
        level = int(now.gauge(shard, "pressure_level"))
        if level:
            signs = [say(value) for name, say in SIGNS.items() if (value := now.gauge(shard, name))]
            what = LEVELS.get(level, "the server is newer than this command")
            troubles.insert(0, "; ".join([f"level {level}, {what}", *signs]))
        for name, text in REFUSALS.items():
            grown = now.refused(shard, name) - before.refused(shard, name) if before is not None else 0
            if grown > 0:
                troubles.append(text.format(count(grown)))
        found += [f"shard {shard}: {trouble}" for trouble in troubles]
    return found


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


# --- order ------------------------------------------------------------------------------------------------

SORTS = {"r": "rate", "c": "records", "s": "size", "l": "jobs", "n": "name"}
"""Keys of `topics top`, and what they sort topics by."""


def sorted_topics(topics: list[TopicRow], by: str) -> list[TopicRow]:
    if by == "name":
        return sorted(topics, key=lambda row: row.name)
    measures: dict[str, Callable[[TopicRow], float]] = {
        "rate": lambda row: row.appended_per_s,
        "records": lambda row: row.records,
        "size": lambda row: row.bytes,
        "jobs": lambda row: row.ready or 0,
    }
    return sorted(topics, key=lambda row: (-measures[by](row), row.name))
