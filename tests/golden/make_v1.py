"""Writes the golden files of format 1: `python -m tests.golden.make_v1`.

Only files that are absent are written. One that exists is never written again: if it no longer opens,
the reader is wrong.
"""

from __future__ import annotations

import sys
from array import array
from itertools import accumulate
from pathlib import Path

from shared.columns import DATA_NULL, HAS_KEY, HAS_META, HAS_NODE, HAS_TAG, Columns, encode_columns
from shared.control_frames import FileEnded, encode_control
from shared.frame import Kind, build_frame
from shared.manifest import encode_manifest
from shared.record_assembler import RecordAssembler
from shared.segment_writer import SegmentBuilder, SegmentTopic
from shared.snapshot_format import SnapshotEncoder
from shared.snapshot_items import SnapBegin, SnapEnd, SnapSegments, encode_topic
from shared.wal_format import (
    FLAG_EXTRA,
    AppendExtra,
    build_append_body,
    encode_extra,
    encode_wal_header,
    lsn_of,
)
from tests.golden import content_v1 as content
from tests.golden.content_v1 import Record

FOLDER = Path(__file__).parent / "v1"


def encode_records(records: list[Record]) -> tuple[bytes, int, bytes]:
    """(JSON part, column flags, columns)"""
    parts = [record[2] + b"," for record in records]
    flags = bytes(
        (HAS_NODE if node is not None else 0)
        | (HAS_TAG if tag is not None else 0)
        | (HAS_KEY if key is not None else 0)
        | (HAS_META if meta else 0)
        | (DATA_NULL if b'"data":null' in json else 0)
        for _, _, json, node, tag, key, meta in records
    )
    column_flags, columns = encode_columns(
        count=len(records),
        ends=array("I", accumulate(map(len, parts))),
        flags=flags,
        meta=array("I", [record[6] for record in records]),
        nodes=[record[3] for record in records],
        tags=[record[4] for record in records],
        keys=[record[5] for record in records],
    )
    return b"".join(parts), column_flags, columns


def make_wal() -> bytes:
    file = encode_wal_header(content.WAL_HEADER)

    def place(kind: int, flags: int, topic_id: int, ts_ms: int, body: bytes | list[bytes]) -> None:
        nonlocal file
        lsn = lsn_of(content.WAL_HEADER.number, len(file))
        file += build_frame(kind, flags, lsn, topic_id, ts_ms, body)

    for records, reserve, idem, router in content.APPENDS:
        json, flags, columns = encode_records(records)
        extra = b""
        if idem is not None or router is not None:
            flags |= FLAG_EXTRA
            extra = encode_extra(AppendExtra(idem, router))
        body = build_append_body(records[0][0], len(records), json, reserve, columns, extra)
        place(Kind.APPEND, flags, 7, records[0][1], body)
    for topic_id, control in content.CONTROLS:
        place(control.kind, 0, topic_id, content.NOW_MS + 3, encode_control(control))
    assert isinstance(content.CONTROLS[-1][1], FileEnded)
    return file + bytes(256)


def make_import_wal() -> bytes:
    """Topics moving between shards came after the other files had been committed."""
    header, imported = content.IMPORT_WAL_HEADER, content.IMPORTED
    file = encode_wal_header(header)
    lsn = lsn_of(header.number, len(file))
    file += build_frame(Kind.TOPIC_IMPORT, 0, lsn, imported.id, content.NOW_MS, encode_topic(imported))
    return file + build_frame(Kind.FILE_END, 0, lsn_of(header.number, len(file)), 0, content.NOW_MS, b"")


def make_queue_wal() -> bytes:
    """Queues came later still: their frames, and what an append says about jobs and moved records."""
    header, extra = content.QUEUE_WAL_HEADER, encode_extra(content.QUEUE_EXTRA)
    file = encode_wal_header(header)
    json, flags, columns = encode_records(content.RICH)
    body = build_append_body(2, len(content.RICH), json, 0, columns, extra)
    lsn = lsn_of(header.number, len(file))
    file += build_frame(Kind.APPEND, flags | FLAG_EXTRA, lsn, 12, content.NOW_MS + 1, body)
    for topic_id, control in content.QUEUE_CONTROLS:
        lsn = lsn_of(header.number, len(file))
        file += build_frame(control.kind, 0, lsn, topic_id, content.NOW_MS + 3, encode_control(control))
    return file


def make_router_wal() -> bytes:
    """The frames of routers; their progress at a destination is in the first log file."""
    header = content.ROUTER_WAL_HEADER
    file = encode_wal_header(header)
    for topic_id, control in content.ROUTER_CONTROLS:
        lsn = lsn_of(header.number, len(file))
        file += build_frame(control.kind, 0, lsn, topic_id, content.NOW_MS + 4, encode_control(control))
    return file


def make_segment() -> bytes:
    header = content.SEGMENT_HEADER
    builder = SegmentBuilder(header.shard, header.number, header.created_ms)
    file = builder.header
    for topic, blocks in content.SEGMENT_TOPICS:
        for records in blocks:
            assembler = RecordAssembler()
            for record in records:
                json, flags, columns = encode_records([record])
                view = Columns(flags, 1, len(json), memoryview(columns))
                assembler.add(memoryview(json), view, 0, 1, record[0], record[1])
            file += builder.add_block(SegmentTopic(*topic), assembler.finish())
    return file + builder.finish(content.SEGMENT_DELETED)


def make_snapshot() -> bytes:
    encoder = SnapshotEncoder(content.SNAPSHOT_HEADER)
    file = b""
    for item in content.SNAPSHOT:
        if isinstance(item, SnapBegin):
            file += encoder.begin(item)
        elif isinstance(item, SnapSegments):
            file += encoder.segments(item)
        elif isinstance(item, SnapEnd):
            file += encoder.end(end=item.end, clean=item.clean, boot_id=item.boot_id)
        else:
            file += encoder.topic(item)
    return file


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    files = {
        "0000000002.wal": make_wal(),
        "0000000003.wal": make_import_wal(),
        "0000000007.wal": make_queue_wal(),
        "0000000008.wal": make_router_wal(),
        "0000000005.seg": make_segment(),
        "0000000004.snap": make_snapshot(),
        "manifest-0000000006": encode_manifest(content.MANIFEST),
    }
    absent = [name for name in files if not (FOLDER / name).exists()]
    if not absent:
        sys.exit("all golden files exist, and golden files are never overwritten")
    for name in absent:
        # Exclusive: the check above must not be all that stands between a rerun and an old file.
        with (FOLDER / name).open("xb") as out:
            out.write(files[name])


if __name__ == "__main__":
    main()
