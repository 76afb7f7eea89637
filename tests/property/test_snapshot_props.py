"""Snapshots: all or nothing."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from shared.cbor_body import dump_map
from shared.control_frames import Hole
from shared.file_header import SNAPSHOT_MAGIC, FileHeader, encode_file_header
from shared.format_errors import BadBytes, FormatError
from shared.frame import Frame, Kind, build_frame, decode_frame
from shared.snapshot_format import SnapshotEncoder, read_snapshot, read_snapshot_header
from shared.snapshot_items import (
    DedupeEntry,
    HotIndex,
    SealedRun,
    SnapBegin,
    SnapEnd,
    SnapItem,
    SnapSegment,
    SnapSegments,
    SnapTopic,
    decode_topic,
    encode_topic,
)
from tests.support.format_samples import U32, U64, flip, pread_of

HEADER = FileHeader(3, 11, 1_700_000_000_000)


@st.composite
def hot_indexes(draw: st.DrawFn) -> HotIndex:
    size = draw(st.integers(0, 4))

    def column(code: str, values: st.SearchStrategy[int]) -> array[int]:
        return array(code, draw(st.lists(values, min_size=size, max_size=size)))

    return HotIndex(
        column("Q", U64),
        column("Q", U64),
        column("Q", U64),
        column("I", U32),
        column("I", U32),
        column("I", U32),
        column("H", st.integers(0, 65535)),
    )


TOPICS = st.builds(
    SnapTopic,
    id=U64,
    name=st.text(),
    epoch=U64,
    config=st.dictionaries(st.text(max_size=5), st.integers(-5, 5), max_size=3),
    lsn=U64,
    head=U64,
    reserve=U64,
    ts=U64,
    floor=U64,
    reason=st.one_of(st.none(), st.text()),
    first=U64,
    count=U64,
    json_bytes=U64,
    holes=st.lists(st.builds(Hole, U64, U64, st.text()), max_size=2).map(tuple),
    deleted=st.one_of(st.none(), st.binary(max_size=20)),
    hot=hot_indexes(),
    sealed=st.lists(st.builds(SealedRun, U64, U64, U64, U64, U64, U64), max_size=2).map(tuple),
    dedupe=st.lists(st.builds(DedupeEntry, st.text(), U64, U64, U64), max_size=2).map(tuple),
    more=st.dictionaries(st.sampled_from(["queue", "routers"]), st.lists(U64), max_size=2),
)
SEGMENTS = SnapSegments(
    next_segment=3,
    segments=(SnapSegment(1, "cold", 1000, "00ff" * 4), SnapSegment(2, "hot", 10, "1234" * 4)),
    next_topic_id=9,
    clock=77,
    epoch=4,
)


def make_snapshot(topics: list[SnapTopic]) -> tuple[bytes, list[SnapItem]]:
    encoder = SnapshotEncoder(HEADER)
    parts = [encoder.begin(SnapBegin(3, 123))]
    parts += [encoder.topic(topic) for topic in topics]
    parts += [encoder.segments(SEGMENTS), encoder.end(end=456, clean=True, boot_id="boot")]
    end = SnapEnd(topics=len(topics), end=456, clean=True, boot_id="boot")
    return b"".join(parts), [SnapBegin(3, 123), *topics, SEGMENTS, end]


def read(content: bytes) -> list[SnapItem]:
    return list(read_snapshot(pread_of(content), len(content)))


TOPIC = SnapTopic(
    id=1,
    name="a",
    epoch=1,
    config={},
    lsn=5,
    head=9,
    reserve=9,
    ts=7,
    floor=0,
    reason=None,
    first=1,
    count=9,
    json_bytes=90,
)


@given(st.lists(TOPICS, max_size=4))
def test_a_snapshot_reads_back_as_it_was_written(topics: list[SnapTopic]) -> None:
    content, items = make_snapshot(topics)
    assert read(content) == items
    assert read_snapshot_header(pread_of(content)) == HEADER


@given(TOPICS)
def test_an_imported_topic_reads_back_as_it_was_written(topic: SnapTopic) -> None:
    raw = build_frame(Kind.TOPIC_IMPORT, 0, 64, topic.id, 77, encode_topic(topic))
    frame = decode_frame(memoryview(raw), 0, 64)
    assert isinstance(frame, Frame)
    assert decode_topic(frame) == topic


@given(st.binary(max_size=60))
def test_a_garbage_import_raises_only_bad_bytes(garbage: bytes) -> None:
    frame = decode_frame(memoryview(build_frame(Kind.TOPIC_IMPORT, 0, 64, 1, 77, garbage)), 0, 64)
    assert isinstance(frame, Frame)
    with pytest.raises(BadBytes):
        decode_topic(frame)


def test_s03_any_flipped_bit_of_a_snapshot_is_refused() -> None:
    content, items = make_snapshot([TOPIC])
    assert read(content) == items
    for bit in range(len(content) * 8):
        with pytest.raises(BadBytes):
            read(flip(content, bit))


def test_s03_a_snapshot_cut_anywhere_is_refused() -> None:
    content, _ = make_snapshot([TOPIC])
    for size in range(len(content)):
        with pytest.raises(BadBytes):
            read(content[:size])


@pytest.mark.parametrize("tail", [b"\0", bytes(100), b"?" * 100])
def test_s03_nothing_may_follow_the_end(tail: bytes) -> None:
    with pytest.raises(BadBytes):
        read(make_snapshot([TOPIC])[0] + tail)


@given(st.binary(max_size=200))
def test_s03_garbage_raises_only_format_errors(garbage: bytes) -> None:
    for content in (garbage, encode_file_header(SNAPSHOT_MAGIC, HEADER) + garbage):
        with pytest.raises(FormatError):
            read(content)


def frames_to_file(frames: list[SnapFrame]) -> bytes:
    content = encode_file_header(SNAPSHOT_MAGIC, HEADER)
    for kind, fields in frames:
        content += build_frame(kind, 0, len(content), 0, 0, dump_map(fields))
    return content


SnapFrame = tuple[int, dict[str, object]]
BEGIN: SnapFrame = (int(Kind.SNAP_BEGIN), {"shard": 3, "start": 1})
SOME_SEGMENTS: SnapFrame = (
    int(Kind.SNAP_SEGMENTS),
    {"next_segment": 1, "segments": [], "next_topic_id": 1, "clock": 1, "epoch": 1},
)
END: SnapFrame = (int(Kind.SNAP_END), {"topics": 0, "end": 1, "clean": False, "boot_id": ""})


def test_frames_in_another_order_or_number_are_refused() -> None:
    assert len(read(frames_to_file([BEGIN, SOME_SEGMENTS, END]))) == 3
    one_too_many: SnapFrame = (END[0], {**END[1], "topics": 1})
    other_shard: SnapFrame = (BEGIN[0], {**BEGIN[1], "shard": 4})
    file_end: SnapFrame = (int(Kind.FILE_END), {})
    wrong: list[list[SnapFrame]] = [
        [],
        [BEGIN],
        [BEGIN, END],
        [SOME_SEGMENTS, END],
        [BEGIN, SOME_SEGMENTS],
        [BEGIN, BEGIN, SOME_SEGMENTS, END],
        [BEGIN, SOME_SEGMENTS, SOME_SEGMENTS, END],
        [BEGIN, SOME_SEGMENTS, END, END],
        [BEGIN, SOME_SEGMENTS, one_too_many],
        [other_shard, SOME_SEGMENTS, END],
        [BEGIN, SOME_SEGMENTS, file_end],
    ]
    for frames in wrong:
        with pytest.raises(BadBytes):
            read(frames_to_file(frames))


def test_hot_columns_of_different_lengths_are_refused() -> None:
    crooked = replace(TOPIC, hot=HotIndex(first=array("Q", [1])))
    with pytest.raises(BadBytes, match="hot"):
        read(make_snapshot([crooked])[0])


def test_further_fields_must_not_hide_known_ones() -> None:
    with pytest.raises(ValueError, match="floor"):
        make_snapshot([replace(TOPIC, more={"floor": 1})])
