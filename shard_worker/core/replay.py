"""One frame of the log, applied as live traffic would have applied it."""

from __future__ import annotations

from shard_worker.core.shard_state import ShardState
from shared.control_frames import FileEnded, decode_control
from shared.format_errors import BadBytes
from shared.frame import Frame, Kind
from shared.snapshot_items import decode_topic
from shared.wal_format import JSON_OFFSET, decode_append


def replay_frame(state: ShardState, frame: Frame) -> None:
    """Raises BadBytes if the frame is intact but contradicts the log before it."""
    if frame.kind == Kind.APPEND:
        _replay_append(state, frame)
        return
    if frame.kind == Kind.TOPIC_IMPORT:
        state.apply_import(frame.lsn, frame.ts_ms, decode_topic(frame))
        return
    fact = decode_control(frame)
    if isinstance(fact, FileEnded):
        return
    state.apply(frame.lsn, frame.topic_id, frame.ts_ms, fact)


def _replay_append(state: ShardState, frame: Frame) -> None:
    topic = state.catalog.by_id.get(frame.topic_id)
    if topic is None or frame.lsn <= topic.lsn:
        return  # of a topic that was deleted since, or in the snapshot already
    view = decode_append(frame)
    if view.first_seq <= topic.head:
        raise BadBytes(f"seq {view.first_seq} of topic {topic.name} is in the log twice")
    state.apply_append(
        topic,
        frame.lsn,
        frame.ts_ms,
        view.first_seq,
        view.count,
        frame.lsn + JSON_OFFSET,
        len(view.json),
        view.column_flags,
        view.last_seq + view.reserve,
        view.extra,
    )
