"""Snapshot files: a shard's state without its records. Layout: docs/disk-format.md §5.

A snapshot is written and read as a stream of frames. It counts only if it is whole: reading raises on
anything torn, also at the very end, so a caller must not act on its items before the last one came.
"""

from collections.abc import Iterator

from shared.cbor_body import dump_map
from shared.file_header import (
    FILE_HEADER_BYTES,
    SNAPSHOT_MAGIC,
    FileHeader,
    decode_file_header,
    encode_file_header,
)
from shared.format_errors import BadBytes
from shared.frame import Kind, build_frame
from shared.frame_scan import End, Pread, Stop, Torn, scan_frames
from shared.snapshot_items import (
    SnapBegin,
    SnapEnd,
    SnapItem,
    SnapSegments,
    SnapTopic,
    decode_snapshot_frame,
    segments_map,
    topic_map,
)

# Which kind may follow which; 0 stands for the file's header.
_FOLLOWS: dict[int, tuple[int, ...]] = {
    0: (Kind.SNAP_BEGIN,),
    Kind.SNAP_BEGIN: (Kind.SNAP_TOPIC, Kind.SNAP_SEGMENTS),
    Kind.SNAP_TOPIC: (Kind.SNAP_TOPIC, Kind.SNAP_SEGMENTS),
    Kind.SNAP_SEGMENTS: (Kind.SNAP_END,),
    Kind.SNAP_END: (),
}


class SnapshotEncoder:
    """Gives the bytes of a snapshot piece by piece, to be written in the order of the calls:
    header, begin, topics, segments, end."""

    def __init__(self, header: FileHeader) -> None:
        self._header = header
        self._at = 0
        self._topics = 0

    def begin(self, item: SnapBegin) -> bytes:
        """The file's header and first frame."""
        assert self._at == 0
        header = encode_file_header(SNAPSHOT_MAGIC, self._header)
        self._at = len(header)
        return header + self._frame(Kind.SNAP_BEGIN, 0, {"shard": item.shard, "start": item.start})

    def topic(self, topic: SnapTopic) -> bytes:
        self._topics += 1
        return self._frame(Kind.SNAP_TOPIC, topic.id, topic_map(topic))

    def segments(self, item: SnapSegments) -> bytes:
        return self._frame(Kind.SNAP_SEGMENTS, 0, segments_map(item))

    def end(self, *, end: int, clean: bool, boot_id: str) -> bytes:
        fields: dict[str, object] = {"topics": self._topics, "end": end, "clean": clean, "boot_id": boot_id}
        return self._frame(Kind.SNAP_END, 0, fields)

    def _frame(self, kind: Kind, topic_id: int, fields: dict[str, object]) -> bytes:
        assert self._at
        frame = build_frame(kind, 0, self._at, topic_id, self._header.created_ms, dump_map(fields))
        self._at += len(frame)
        return frame


def read_snapshot_header(pread: Pread) -> FileHeader:
    return decode_file_header(SNAPSHOT_MAGIC, pread(FILE_HEADER_BYTES, 0))


def read_snapshot(pread: Pread, size: int) -> Iterator[SnapItem]:
    """SnapBegin, every SnapTopic, SnapSegments, SnapEnd; BadBytes or NewerVersion if it is not whole."""
    header = read_snapshot_header(pread)
    previous = topics = 0
    for step in scan_frames(pread, FILE_HEADER_BYTES, size, 0):
        if isinstance(step, Stop):
            _check_stop(step, previous)
            return
        if step.kind not in _FOLLOWS[previous]:
            raise BadBytes(f"frame kind {step.kind} is out of place", step.lsn)
        previous = step.kind
        try:
            item = decode_snapshot_frame(step)
        except BadBytes as err:
            raise BadBytes(err.reason, step.lsn) from err
        if isinstance(item, SnapBegin) and item.shard != header.shard:
            raise BadBytes("header and body name different shards", step.lsn)
        topics += isinstance(item, SnapTopic)
        if isinstance(item, SnapEnd) and item.topics != topics:
            raise BadBytes(f"{topics} topics instead of {item.topics}", step.lsn)
        yield item


def _check_stop(stop: Stop, last_kind: int) -> None:
    if not isinstance(stop.verdict, End):
        raise BadBytes(stop.verdict.reason if isinstance(stop.verdict, Torn) else "zeros", stop.offset)
    if last_kind != Kind.SNAP_END:
        raise BadBytes("the snapshot has no end", stop.offset)
