"""What is worth compiling: the way of a request through gateway, link and worker. Measured, not guessed
(docs/performance.md): what runs once per request or per turn is here, what runs once per start is not.

Modules of one group end up in one library; the groups are compiled at the same time.
"""

from __future__ import annotations

from typing import Final

GROUPS: Final[dict[str, tuple[str, ...]]] = {
    "shared": (
        "shared.io.idle_turns",
        "shared.session",
        "shared.wire",
    ),
    "shard_worker": (
        "shard_worker.arrivals",
        "shard_worker.commit",
        "shard_worker.core.bands",
        "shard_worker.core.batch",
        "shard_worker.core.catalog",
        "shard_worker.core.handout",
        "shard_worker.core.hot_index",
        "shard_worker.core.job",
        "shard_worker.core.job_json",
        "shard_worker.core.lease_queue",
        "shard_worker.core.lease_tokens",
        "shard_worker.core.reading",
        "shard_worker.core.seq_text",
        "shard_worker.core.shard_state",
        "shard_worker.core.stretches",
        "shard_worker.core.topic",
        "shard_worker.counters",
        "shard_worker.disk.record_store",
        "shard_worker.disk.wal",
        "shard_worker.engine",
        "shard_worker.held_writes",
        "shard_worker.lease_ops",
        "shard_worker.long_polls",
        "shard_worker.pending",
        "shard_worker.pressure",
        "shard_worker.queue_ops",
        "shard_worker.request",
        "shard_worker.serve.forward_times",
        "shard_worker.serve.link",
        "shard_worker.serve.pushes",
        "shard_worker.serve.served_files",
        "shard_worker.serve.stitched_reads",
        "shard_worker.serve.sync_thread",
        "shard_worker.serve.turns",
        "shard_worker.waiting_claims",
        "shared.append_frame",
    ),
    "gateway": (
        "gateway.core.auth",
        "gateway.core.caps",
        "gateway.core.router",
        "gateway.exchange",
        "gateway.fast_lane.answer_slot",
        "gateway.fast_lane.body_budget",
        "gateway.fast_lane.connection",
        "gateway.fast_lane.dispatch",
        "gateway.fast_lane.head",
        "gateway.fast_lane.lane",
        "gateway.fast_lane.output",
        "gateway.fast_lane.request_reader",
        "gateway.fast_lane.response_head",
        "gateway.fast_lane.turns",
        "gateway.full_lane.asgi_exchange",
        "gateway.handlers.queues",
        "gateway.handlers.records",
        "gateway.io.file_table",
        "gateway.io.patient_writes",
        "gateway.io.shard_link",
        "gateway.io.shard_pool",
        "gateway.service",
    ),
}
