"""What a worker tells about itself: the body of a METRICS answer (docs/wire-protocol.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from shard_worker.core.job import JobState
from shard_worker.core.lease_queue import LeaseQueue, written_at
from shard_worker.core.piece import PieceSource
from shard_worker.core.router import Router
from shard_worker.core.topic import Topic
from shard_worker.shard import Shard
from shared.io.process_numbers import cpu_seconds, open_descriptors, resident_bytes
from shared.limits import TOPIC_SERIES_MAX
from shared.wire import encode_metrics

if TYPE_CHECKING:
    from shard_worker.wal_archive import WalArchive


def worker_metrics(shard: Shard) -> bytes:
    engine, maintenance = shard.engine, shard.maintenance
    state, wal, counters = engine.state, engine.wal.counters, engine.counters
    pressure = shard.pressure
    now_ms = engine.now_ms()
    queues = QueueTotals()
    routers = RouterTotals()
    by_class: dict[str, int] = {}
    per_topic: dict[str, dict[str, int]] = {}
    records = 0
    for name, topic in state.catalog.visible.items():
        by_class[topic.config.durability] = by_class.get(topic.config.durability, 0) + 1
        records += topic.count
        jobs = {} if topic.queue is None else queues.add(topic, topic.queue, now_ms, state.source)
        jobs |= {} if topic.routers is None else routers.add(topic, topic.routers)
        if len(per_topic) < TOPIC_SERIES_MAX:
            per_topic[name] = {"records": topic.count, "bytes": topic.bytes, "head_seq": topic.head, **jobs}
    return encode_metrics(
        {
            "gauges": {
                "topics": len(state.catalog),
                "topics_by_class": {"durability": by_class},
                "records_live": records,
                "bytes_live": state.live_bytes,
                "wal_files": len(engine.wal.files),
                "segments": len(state.segments),
                "wal_queue_depth": engine.commits.waiting,
                "long_polls": engine.waiting_polls,
                "waiting_claims": engine.queues.waiting_claims,
                **queues.gauges(),
                **routers.gauges(),
                "routers_retrying": sum(view.state == "retrying" for view in engine.forwarder.views()),
                "block_cache_bytes": shard.store.cache.used_bytes,
                "read_only": int(engine.commits.read_only is not None),
                "disk_free_bytes": maintenance.free_bytes,
                "process_resident_bytes": resident_bytes(),
                "process_open_descriptors": open_descriptors(),
                "pressure_level": pressure.level,
                "loop_lag_ms": round(pressure.signals.lag_ms, 3),
                "ipc_backlog_bytes": pressure.signals.backlog_bytes,
                "unsynced_wait_bytes": engine.commits.waiting_bytes,
                "commit_window_ms": pressure.commit_window_ms,
                "throttled_waiting": len(engine.held),
                **_archive_gauges(shard.archive),
            },
            "counters": {
                "process_cpu_seconds_total": round(cpu_seconds(), 3),
                "wal_frames_total": wal.frames,
                "wal_batches_total": wal.groups,
                "wal_fsyncs_total": wal.syncs,
                "wal_bytes_written_total": wal.bytes,
                "wal_rotations_total": wal.rotations,
                "appends_total": counters.appends,
                "records_appended_total": counters.records_appended,
                "reads_total": counters.reads,
                "records_read_total": counters.records_read,
                "records_deleted_total": counters.records_deleted,
                "records_evicted_total": state.evicted,
                "jobs_claimed_total": counters.jobs_claimed,
                "jobs_acked_total": counters.jobs_acked,
                "router_forwarded_total": counters.copies_forwarded,
                "router_copies_arrived_total": counters.copies_arrived,
                "router_trims_total": counters.routes_trimmed,
                "router_retries_total": counters.forward_retries,
                "seals_total": maintenance.counters.seals,
                "snapshots_total": maintenance.counters.snapshots,
                "segments_relocated_total": maintenance.counters.relocated,
                "segments_dropped_total": maintenance.counters.segments_dropped,
                "compactions_adopted_total": maintenance.counters.compactions_adopted,
                "compactions_refused_total": maintenance.counters.compactions_refused,
                "maintenance_failures_total": maintenance.counters.failures,
                "pushes_coalesced_total": pressure.counters.pushes_coalesced,
                "pushes_paused_total": pressure.counters.pushes_paused,
                "commits_widened_total": pressure.counters.commits_widened,
                "throttled_requests_total": engine.commits.throttled,
                **_archive_counters(shard.archive),
                "block_cache_hits_total": shard.store.cache.hits,
                "block_cache_misses_total": shard.store.cache.misses,
            },
            "histograms": {
                "wal_fsync_ms": counters.syncs.to_map(),
                "queue_wait_ms": counters.job_waits.to_map(),
                "throttle_wait_ms": counters.throttle_waits.to_map(),
            },
            "per_topic": per_topic,
        }
    )


def _archive_gauges(archive: WalArchive | None) -> dict[str, int]:
    """There without an archive, too: an alert on a series that is missing never fires."""
    lag, failing = (0, False) if archive is None else (archive.lag_files, bool(archive.last_failure))
    return {"wal_archive_lag_files": lag, "wal_archive_failing": int(failing)}


def _archive_counters(archive: WalArchive | None) -> dict[str, int]:
    files, failures = (0, 0) if archive is None else (archive.handed_over, archive.failures)
    return {"wal_archive_files_total": files, "wal_archive_failures_total": failures}


class RouterTotals:
    """Numbers of all routers together. `router_lag_max` is that of the one that is furthest behind."""

    def __init__(self) -> None:
        self._routers = self._lag = self._lag_max = 0

    def add(self, topic: Topic, routers: Mapping[str, Router]) -> dict[str, int]:
        """Counts the routers of one source; returns its own numbers."""
        lags = [router.lag(topic.head) for router in routers.values()]
        self._routers += len(lags)
        self._lag += sum(lags)
        self._lag_max = max(self._lag_max, *lags)
        forwarded = sum(router.forwarded for router in routers.values())
        return {"routers": len(lags), "router_lag": max(lags), "router_forwarded": forwarded}

    def gauges(self) -> dict[str, int]:
        return {"routers": self._routers, "router_lag": self._lag, "router_lag_max": self._lag_max}


class QueueTotals:
    """Numbers of all queues together. `oldest_ready_age_ms` is that of the job that has waited longest anywhere."""

    def __init__(self) -> None:
        self._sums = dict.fromkeys(("ready", "in_flight", "delayed", "dead_lettered"), 0)
        self._oldest_ready_age_ms = 0

    def add(self, topic: Topic, queue: LeaseQueue, now_ms: int, source: PieceSource) -> dict[str, int]:
        """Counts one queue; returns its own numbers."""
        queue.settle(topic, now_ms)
        own = {
            "ready": queue.ready(topic),
            "in_flight": queue.in_flight,
            "delayed": queue.delayed,
            "dead_lettered": queue.dead_lettered,
        }
        for name, number in own.items():
            self._sums[name] += number
        seq = oldest_ready(topic, queue)
        age_ms = max(0, now_ms - written_at(topic, seq, source)) if seq is not None else 0
        self._oldest_ready_age_ms = max(self._oldest_ready_age_ms, age_ms)
        return {f"queue_{name}": number for name, number in own.items()} | {
            "queue_oldest_ready_age_ms": age_ms
        }

    def gauges(self) -> dict[str, int]:
        sums = {f"queue_{name}": number for name, number in self._sums.items()}
        return sums | {"queue_oldest_ready_age_ms": self._oldest_ready_age_ms}


_OLDEST_STEPS = 10_000


def oldest_ready(topic: Topic, queue: LeaseQueue) -> int | None:
    """The job with the lowest seq that somebody could have had by now; jobs are written in the order of their seqs.

    Those in front of it are leased or delayed. There may be very many of them, and this is only a number: so a
    search that does not find it soon gives up where it stands, which is younger than the truth.
    """
    seq = topic.next_live(topic.live_from)
    for _ in range(_OLDEST_STEPS):
        if seq > topic.head:
            return None
        job = queue.jobs.get(seq)
        if job is None or job.state in (JobState.READY, JobState.BLOCKED):
            return seq
        seq = topic.next_live(seq + 1)
    return seq if seq <= topic.head else None
