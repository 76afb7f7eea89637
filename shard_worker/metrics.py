"""What a worker tells about itself: the body of a METRICS answer (docs/wire-protocol.md)."""

from __future__ import annotations

from shard_worker.shard import Shard
from shared.limits import TOPIC_SERIES_MAX
from shared.wire import encode_metrics


def worker_metrics(shard: Shard) -> bytes:
    engine, maintenance = shard.engine, shard.maintenance
    state, wal, counters = engine.state, engine.wal.counters, engine.counters
    by_class: dict[str, int] = {}
    per_topic: dict[str, dict[str, int]] = {}
    records = 0
    for name, topic in state.catalog.visible.items():
        by_class[topic.config.durability] = by_class.get(topic.config.durability, 0) + 1
        records += topic.count
        if len(per_topic) < TOPIC_SERIES_MAX:
            per_topic[name] = {"records": topic.count, "bytes": topic.bytes, "head_seq": topic.head}
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
                "block_cache_bytes": shard.store.cache.used_bytes,
                "read_only": int(engine.commits.read_only is not None),
            },
            "counters": {
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
                "seals_total": maintenance.counters.seals,
                "snapshots_total": maintenance.counters.snapshots,
                "segments_relocated_total": maintenance.counters.relocated,
                "segments_dropped_total": maintenance.counters.segments_dropped,
                "maintenance_failures_total": maintenance.counters.failures,
                "block_cache_hits_total": shard.store.cache.hits,
                "block_cache_misses_total": shard.store.cache.misses,
            },
            "histograms": {"wal_fsync_ms": counters.syncs.to_map()},
            "per_topic": per_topic,
        }
    )
