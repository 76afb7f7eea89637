"""One frame of the log, applied as live traffic would have applied it."""

from __future__ import annotations

from shard_worker.core.shard_state import ShardState
from shared.columns import COLUMNS_MASK
from shared.control_frames import FileEnded, decode_control
from shared.format_errors import BadBytes
from shared.frame import Frame, Kind
from shared.snapshot_items import decode_topic
from shared.wal_format import FLAG_EXTRA, JSON_OFFSET, NO_EXTRA, decode_append, decode_append_header

# Not looked up in the enum for each of millions of frames.
_APPEND = int(Kind.APPEND)


def replay_frame(state: ShardState, frame: Frame) -> None:
    """Raises BadBytes if the frame is intact but contradicts the log before it."""
    if frame.kind == _APPEND:
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
    _, flags, lsn, topic_id, ts_ms, body, _ = frame
    topic = state.catalog.by_id.get(topic_id)
    if topic is None or lsn <= topic.lsn:
        return  # of a topic that was deleted since, or in the snapshot already
    first, count, size, reserve = decode_append_header(flags, body)
    extra = NO_EXTRA
    if flags & FLAG_EXTRA:
        extra = decode_append(frame).extra
        flags &= COLUMNS_MASK
    if first <= topic.head:
        raise BadBytes(f"seq {first} of topic {topic.name} is in the log twice")
    last = first + count - 1
    state.apply_append(topic, lsn, ts_ms, first, count, lsn + JSON_OFFSET, size, flags, last + reserve, extra)
