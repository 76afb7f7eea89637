"""Files of format 1 open for ever, and say exactly what they said."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.control_frames import decode_control
from shared.frame import Frame, Kind
from shared.frame_scan import End, Stop, scan_frames
from shared.manifest import decode_manifest, manifest_checksum
from shared.segment_reader import read_header, read_index, read_terms, read_trailer
from shared.segment_scan import iter_records, verify_segment
from shared.snapshot_format import read_snapshot, read_snapshot_header
from shared.snapshot_items import decode_topic
from shared.wal_format import AppendView, decode_append, decode_wal_header, lsn_of
from tests.golden import content_v1 as content
from tests.golden import make_v1
from tests.golden.content_v1 import Record
from tests.support.format_samples import pread_of

FOLDER = Path(__file__).parent / "v1"
WAL = (FOLDER / "0000000002.wal").read_bytes()
IMPORT_WAL = (FOLDER / "0000000003.wal").read_bytes()
QUEUE_WAL = (FOLDER / "0000000007.wal").read_bytes()
ROUTER_WAL = (FOLDER / "0000000008.wal").read_bytes()
SEGMENT = (FOLDER / "0000000005.seg").read_bytes()
SNAPSHOT = (FOLDER / "0000000004.snap").read_bytes()
MANIFEST = (FOLDER / "manifest-0000000006").read_bytes()


def wal_frames() -> list[Frame]:
    *frames, stop = scan_frames(pread_of(WAL), 64, len(WAL), lsn_of(2, 0))
    assert stop == Stop(len(WAL) - 256, End())
    return [frame for frame in frames if isinstance(frame, Frame)]


def records_of(view: AppendView, ts: int) -> list[Record]:
    columns = view.decode_columns()
    columns.verify()
    records: list[Record] = []
    start = 0
    meta = columns.meta or [0] * view.count
    for place, end in enumerate(columns.ends):
        labels = columns.node(place), columns.tag(place), columns.key(place)
        json = bytes(view.json[start : end - 1])
        records.append((view.first_seq + place, ts, json, *labels, meta[place]))
        start = end
    return records


def test_the_files_are_the_ones_that_were_committed() -> None:
    found = [
        manifest_checksum(file)
        for file in (WAL, SEGMENT, SNAPSHOT, MANIFEST, IMPORT_WAL, QUEUE_WAL, ROUTER_WAL)
    ]
    assert [f"{checksum:016x}" for checksum in found] == [
        "29de8b2bf6d1adae",
        "9daf2e77edad9d5a",
        "b3a61c5df143aad0",
        "5eeab371b20fdfca",
        "e08ae3b879f43956",
        "6d8a831d0f78f820",
        "db07b55cff39fd46",
    ]


def test_the_log_file_opens() -> None:
    assert decode_wal_header(WAL) == content.WAL_HEADER
    frames = wal_frames()
    appends = [frame for frame in frames if frame.kind == Kind.APPEND]
    for frame, (records, reserve, idem, router) in zip(appends, content.APPENDS, strict=True):
        view = decode_append(frame)
        assert records_of(view, frame.ts_ms) == records
        assert (frame.topic_id, view.reserve) == (7, reserve)
        assert (view.extra.idem, view.extra.router) == (idem, router)
        assert WAL[frame.lsn % 2**32 + view.json_offset :].startswith(bytes(view.json))


def test_the_log_file_holds_every_kind_of_control_frame() -> None:
    controls = [frame for frame in wal_frames() if frame.kind != Kind.APPEND]
    assert [(frame.topic_id, decode_control(frame)) for frame in controls] == content.CONTROLS
    # Kinds may be added to the format, so this names those of its first day.
    assert {frame.kind for frame in controls} == set(range(2, 13))


def test_the_second_log_file_holds_an_imported_topic() -> None:
    assert decode_wal_header(IMPORT_WAL) == content.IMPORT_WAL_HEADER
    frame, end, stop = scan_frames(pread_of(IMPORT_WAL), 64, len(IMPORT_WAL), lsn_of(3, 0))
    assert isinstance(frame, Frame) and isinstance(end, Frame)
    assert (frame.kind, frame.topic_id) == (Kind.TOPIC_IMPORT, content.IMPORTED.id)
    assert (end.kind, stop) == (Kind.FILE_END, Stop(len(IMPORT_WAL), End()))
    assert decode_topic(frame) == content.IMPORTED


def test_the_third_log_file_holds_the_frames_of_queues() -> None:
    assert decode_wal_header(QUEUE_WAL) == content.QUEUE_WAL_HEADER
    *frames, stop = scan_frames(pread_of(QUEUE_WAL), 64, len(QUEUE_WAL), lsn_of(7, 0))
    assert stop == Stop(len(QUEUE_WAL), End())
    append, *controls = [frame for frame in frames if isinstance(frame, Frame)]
    view = decode_append(append)
    assert records_of(view, append.ts_ms) == content.RICH
    assert (append.topic_id, view.extra) == (12, content.QUEUE_EXTRA)
    assert [(frame.topic_id, decode_control(frame)) for frame in controls] == content.QUEUE_CONTROLS
    assert {frame.kind for frame in controls} == {16, 17, 18, 10}


def test_the_fourth_log_file_holds_the_frames_of_routers() -> None:
    assert decode_wal_header(ROUTER_WAL) == content.ROUTER_WAL_HEADER
    *frames, stop = scan_frames(pread_of(ROUTER_WAL), 64, len(ROUTER_WAL), lsn_of(8, 0))
    assert stop == Stop(len(ROUTER_WAL), End())
    controls = [frame for frame in frames if isinstance(frame, Frame)]
    assert [(frame.topic_id, decode_control(frame)) for frame in controls] == content.ROUTER_CONTROLS
    assert {frame.kind for frame in controls} == {24, 25, 26, 27, 28, 10}


def test_the_segment_opens() -> None:
    pread = pread_of(SEGMENT)
    assert read_header(pread) == content.SEGMENT_HEADER
    found = [
        (each.topic_id, (each.seq, each.ts, bytes(each.json), each.node, each.tag, each.key))
        for each in iter_records(pread, len(SEGMENT))
    ]
    assert found == [
        (topic[0], record[:6])
        for topic, blocks in content.SEGMENT_TOPICS
        for records in blocks
        for record in records
    ]
    verdict = verify_segment(pread, len(SEGMENT), "507731db25926b2d")
    assert verdict.findings == ()
    assert (verdict.blocks, verdict.records) == (4, 13)


def test_the_index_and_the_terms_of_the_segment_open() -> None:
    pread = pread_of(SEGMENT)
    trailer = read_trailer(pread, len(SEGMENT))
    index, terms = read_index(pread, trailer), read_terms(pread, trailer)
    assert [(topic.topic_id, topic.name, topic.epoch) for topic in index.topics()] == [
        (7, "orders/eu", 1),
        (8, "sparse", 3),
        (9, "zeta", 1),
    ]
    assert index.deleted == content.SEGMENT_DELETED
    assert list(index.blocks_of(7)) == [1, 2]
    assert [index.block_for(7, seq) for seq in (1, 4, 5, 13, 14)] == [1, 1, 2, 2, None]
    assert terms.find_blocks(7, "tag", b"red") == [1]
    assert terms.find_blocks(8, "tag", b"red") == [3]
    assert terms.find_blocks(7, "tag", b"") == [1]
    assert terms.find_blocks(8, "key", b"k2") == [3]
    assert terms.find_blocks(7, "node", b"edge-1") == [1]
    assert terms.find_blocks(9, "tag", b"red") == []
    assert index.block(1).ranges == {
        "node": (b"edge-1", b"edge-1"),
        "tag": (b"", b"red"),
        "key": (b"k1", b"k2"),
    }


def test_the_snapshot_opens() -> None:
    assert read_snapshot_header(pread_of(SNAPSHOT)) == content.SNAPSHOT_HEADER
    assert list(read_snapshot(pread_of(SNAPSHOT), len(SNAPSHOT))) == content.SNAPSHOT


def test_the_manifest_opens() -> None:
    assert decode_manifest(MANIFEST) == content.MANIFEST


def test_the_generator_refuses_to_overwrite() -> None:
    before = {path.name: path.read_bytes() for path in FOLDER.iterdir()}
    with pytest.raises(SystemExit, match="never overwritten"):
        make_v1.main()
    assert {path.name: path.read_bytes() for path in FOLDER.iterdir()} == before
