"""Log files: headers, append frames, control frames."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.cbor_body import dump_map
from shared.control_frames import (
    Control,
    FileEnded,
    Hole,
    JobsDone,
    JobsLeased,
    JobsReleased,
    LeaseRow,
    RecordsDeleted,
    Sealed,
    SealedTopic,
    SegmentMoved,
    SegmentsReplaced,
    Session,
    Synced,
    TopicConfigured,
    TopicCreated,
    TopicDeleted,
    Watermark,
    decode_control,
    encode_control,
)
from shared.file_header import WAL_MAGIC, FileHeader, decode_file_header, encode_file_header
from shared.format_errors import BadBytes, FormatError, NewerVersion
from shared.frame import Frame, Kind, build_frame, decode_frame
from shared.match import Match
from shared.router_frames import (
    CursorRow,
    RouteForgotten,
    RouterCursors,
    RouterDefined,
    RouterDropped,
    RouteTrimmed,
)
from shared.router_types import RouterRules
from shared.wal_format import (
    FLAG_EXTRA,
    JSON_OFFSET,
    NO_EXTRA,
    AppendExtra,
    JobMark,
    MoveMark,
    RouterMark,
    build_append_body,
    decode_append,
    decode_wal_header,
    encode_extra,
    encode_wal_header,
    lsn_of,
    split_lsn,
)
from tests.property.test_frame_props import resealed
from tests.support.format_samples import ROW_LISTS, SEQS, TIMES, U32, U64, Row, every_flip, make_batch

LSN = lsn_of(2, 64)
CONFIGS = st.dictionaries(st.text(max_size=8), st.one_of(U64, st.text(max_size=8), st.none(), st.booleans()))
DIGESTS = st.integers(0, 2**64 - 1).map(lambda number: f"{number:016x}")
SEALED = st.builds(
    Sealed,
    U64,
    DIGESTS,
    U64,
    st.lists(st.builds(SealedTopic, U64, U64, U64, U64, U64, U64), max_size=3).map(tuple),
)
MATCHES = st.sampled_from([None, ["tag", "Eq", "x"], ["Or", [["key", "Eq", "a"], ["tag", "Glob", "b*"]]]])
MAYBE_U64 = st.one_of(st.none(), U64)
RULES = st.builds(
    RouterRules,
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.one_of(
        st.none(),
        st.builds(Match, st.sampled_from(["tag", "key", "node"]), st.just("Eq"), st.text(max_size=9)),
    ),
    st.booleans(),
    st.sampled_from(["at_least_once", "exactly_once"]),
)
CONTROLS: st.SearchStrategy[Control] = st.one_of(
    st.builds(TopicCreated, st.text(), U64, CONFIGS, U64),
    st.builds(TopicConfigured, CONFIGS),
    st.just(TopicDeleted()),
    st.builds(RecordsDeleted, U64, MAYBE_U64, MATCHES),
    st.builds(
        Watermark,
        MAYBE_U64,
        st.one_of(st.none(), st.text()),
        MAYBE_U64,
        st.one_of(st.none(), st.builds(Hole, U64, U64, st.text())),
    ),
    SEALED,
    st.builds(SegmentMoved, U64, st.sampled_from(["hot", "cold"])),
    st.builds(Synced, U64),
    st.just(FileEnded()),
    st.builds(
        SegmentsReplaced,
        st.lists(U64, max_size=3).map(tuple),
        st.lists(SEALED, max_size=2).map(tuple),
        st.lists(st.tuples(U64, st.binary(max_size=20)), max_size=2).map(tuple),
    ),
    st.builds(Session, st.text(), st.text()),
    st.builds(
        JobsLeased,
        st.lists(st.builds(LeaseRow, U64, st.text(), U64, U64, st.text()), max_size=4).map(tuple),
    ),
    st.builds(JobsDone, st.lists(U64, max_size=6).map(tuple), st.booleans()),
    st.builds(JobsReleased, st.lists(st.tuples(U64, U64), max_size=4).map(tuple)),
    st.builds(RouterDefined, st.text(), U64, st.text(), U64, U64, RULES),
    st.builds(RouterDropped, st.text(), U64),
    st.builds(
        RouterCursors, st.lists(st.builds(CursorRow, st.text(), U64, U64, U64, U64), max_size=4).map(tuple)
    ),
    st.builds(RouteTrimmed, st.text(), U64, U64, U64, U64),
    st.builds(RouteForgotten, st.text(), U64),
)
# An imported topic is a snapshot's topic: test_snapshot_props.
OTHER_KINDS = (Kind.APPEND, Kind.TOPIC_IMPORT)
CONTROL_KINDS = [kind for kind in Kind if kind < Kind.SNAP_BEGIN and kind not in OTHER_KINDS]


def framed(kind: int, body: bytes | list[bytes], flags: int = 0) -> Frame:
    frame = decode_frame(memoryview(build_frame(kind, flags, LSN, 9, 77, body)), 0, LSN)
    assert isinstance(frame, Frame)
    return frame


@given(U32, U64, U64)
def test_a_file_header_decodes_to_what_was_encoded(shard: int, number: int, created_ms: int) -> None:
    header = FileHeader(shard, number, created_ms)
    encoded = encode_wal_header(header)
    assert len(encoded) == 64
    assert decode_wal_header(encoded + b"more") == header


def test_any_flipped_bit_of_a_file_header_is_refused() -> None:
    for damaged in every_flip(encode_wal_header(FileHeader(1, 2, 3))):
        with pytest.raises(BadBytes):
            decode_wal_header(damaged)


def test_another_kind_of_file_and_a_newer_version_are_refused_by_name() -> None:
    with pytest.raises(BadBytes, match="TOPICSEG"):
        decode_file_header(b"TOPICSEG", encode_file_header(WAL_MAGIC, FileHeader(1, 2, 3)))
    newer = resealed(encode_wal_header(FileHeader(1, 2, 3)), 8, 2)
    with pytest.raises(NewerVersion, match="version 2"):
        decode_wal_header(newer)


@given(st.binary(max_size=80))
def test_a_garbage_header_raises_only_format_errors(garbage: bytes) -> None:
    for content in (garbage, WAL_MAGIC + garbage):
        with pytest.raises(FormatError):
            decode_wal_header(content)


@given(st.integers(1, 2**32 - 1), U32)
def test_an_lsn_splits_into_file_and_offset(number: int, offset: int) -> None:
    assert split_lsn(lsn_of(number, offset)) == (number, offset)


@given(
    SEQS,
    TIMES,
    ROW_LISTS,
    U32,
    st.builds(
        AppendExtra,
        st.one_of(st.none(), st.text()),
        st.one_of(st.none(), st.builds(RouterMark, st.text(), U64, U64)),
        st.lists(st.builds(JobMark, U32, U64, st.integers(-1000, 1000), st.one_of(st.none(), st.text()))).map(
            tuple
        ),
        st.lists(st.builds(MoveMark, U32, st.text())).map(tuple),
    ),
)
def test_an_append_decodes_to_what_was_built(
    first_seq: int, ts: int, rows: list[Row], reserve: int, marks: AppendExtra
) -> None:
    batch = make_batch(first_seq, ts, rows)
    wants_extra = marks != NO_EXTRA
    extra = encode_extra(marks)
    assert bool(extra) == wants_extra
    body = build_append_body(first_seq, len(rows), batch.json, reserve, batch.columns, extra)
    frame = framed(Kind.APPEND, body, batch.column_flags | (FLAG_EXTRA if wants_extra else 0))
    view = decode_append(frame)
    assert (view.first_seq, view.count, view.reserve) == (first_seq, len(rows), reserve)
    assert view.last_seq == first_seq + len(rows) - 1
    assert (bytes(view.json), bytes(view.columns)) == (batch.json, batch.columns)
    assert view.extra == marks
    assert view.decode_columns().values("tag") == [row.tag for row in rows]
    raw = build_frame(Kind.APPEND, frame.flags, LSN, 9, 77, body)
    assert raw[JSON_OFFSET : JSON_OFFSET + len(batch.json)] == batch.json


@given(st.integers(0, 65535), st.binary(max_size=100))
def test_a_garbage_append_raises_only_bad_bytes(flags: int, garbage: bytes) -> None:
    for shown in (flags, flags & 127):
        with contextlib.suppress(BadBytes):
            decode_append(framed(Kind.APPEND, garbage, shown)).decode_columns().verify()


@given(st.binary(max_size=60), st.integers(0, 2**32 - 1))
def test_a_garbage_extra_raises_only_bad_bytes(garbage: bytes, length: int) -> None:
    for stated in (length, length % 64):
        columns = garbage + stated.to_bytes(4, "little")
        with contextlib.suppress(BadBytes):
            decode_append(framed(Kind.APPEND, build_append_body(1, 1, b"{},", 0, columns), FLAG_EXTRA))


@pytest.mark.parametrize(
    "body",
    [
        build_append_body(1, 0, b"{},", 0),
        build_append_body(2**64 - 1, 2, b"{},{},", 0),
        build_append_body(1, 1, b"", 0),
        build_append_body(1, 1, b"{}", 0),
        [*build_append_body(1, 1, b"{},", 0), b"?"],
    ],
)
def test_an_append_that_contradicts_itself_is_refused(body: list[bytes]) -> None:
    with pytest.raises(BadBytes):
        decode_append(framed(Kind.APPEND, body))


@given(CONTROLS)
def test_a_control_frame_decodes_to_what_was_encoded(control: Control) -> None:
    assert decode_control(framed(control.kind, encode_control(control))) == control


def test_every_kind_of_the_log_is_an_append_or_a_control() -> None:
    for kind in CONTROL_KINDS:
        with contextlib.suppress(BadBytes):
            decode_control(framed(kind, b""))
        with pytest.raises(BadBytes) as caught:
            decode_control(framed(kind, b"\0"))
        assert "out of place" not in caught.value.reason


@given(st.sampled_from(CONTROL_KINDS), st.binary(max_size=60))
def test_a_garbage_control_raises_only_bad_bytes(kind: Kind, garbage: bytes) -> None:
    with contextlib.suppress(BadBytes):
        decode_control(framed(kind, garbage))


JUNK = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.binary(max_size=3)
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=6), st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)
FIELD_NAMES = st.one_of(
    st.sampled_from(
        ["name", "epoch", "config", "reserve", "upto", "before", "match", "floor", "reason", "hole"]
    ),
    st.sampled_from(["segment", "digest", "size", "topics", "tier", "lsn", "old", "new", "boot_id", "more"]),
    st.sampled_from(["leases", "seqs", "dead", "jobs"]),
)


@given(st.sampled_from(CONTROL_KINDS), st.dictionaries(FIELD_NAMES, JUNK, max_size=6))
def test_maps_of_the_wrong_shape_raise_only_bad_bytes(kind: Kind, value: dict[str, object]) -> None:
    with contextlib.suppress(BadBytes):
        decode_control(framed(kind, dump_map(value)))


@pytest.mark.parametrize(
    "body",
    [
        b"\xa1\x63lsn\x5b" + b"\x7f" * 8,  # a byte string of exabytes
        b"\xa1\x63lsn\x9b" + b"\x7f" * 8,  # a list of as many items
        b"\xbb" + b"\x7f" * 8,
        b"\x81" * 100_000,  # nested deeper than any stack
        b"\xa1\x63lsn\x01\x00",  # something behind the map
        b"\xa1\x63lsn\x20",  # -1
        b"\xa1\x63lsn\xf6",
        b"\xa1\x63lsn\xc2\x49" + b"\xff" * 9,  # 72 bits
        dump_map({"lsn": 1, "more": 2}),
        dump_map({}),
    ],
)
def test_absurd_cbor_is_refused(body: bytes) -> None:
    with pytest.raises(BadBytes):
        decode_control(framed(Kind.SYNCED, body))


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (Kind.JOBS_LEASED, {"leases": [[1, "t", 2, 3]]}),  # no node
        (Kind.JOBS_LEASED, {"leases": [[1, "t", 2, 3, "n", 4]]}),
        (Kind.JOBS_LEASED, {"leases": [[-1, "t", 2, 3, "n"]]}),
        (Kind.JOBS_LEASED, {"leases": [[1, None, 2, 3, "n"]]}),
        (Kind.JOBS_LEASED, {"leases": {"1": "t"}}),
        (Kind.JOBS_DONE, {"seqs": [1, 2]}),
        (Kind.JOBS_DONE, {"seqs": [1, "2"], "dead": False}),
        (Kind.JOBS_DONE, {"seqs": [1], "dead": 0}),
        (Kind.JOBS_RELEASED, {"jobs": [[1]]}),
        (Kind.JOBS_RELEASED, {"jobs": [[1, -5]]}),
        (Kind.JOBS_RELEASED, {"jobs": [1, 2]}),
        (Kind.JOBS_RELEASED, {"jobs": [], "more": 1}),
    ],
)
def test_a_frame_about_jobs_of_the_wrong_shape_is_refused(kind: Kind, body: dict[str, object]) -> None:
    with pytest.raises(BadBytes):
        decode_control(framed(kind, dump_map(body)))


@pytest.mark.parametrize(
    "extra",
    [
        {"jobs": [[0, 0, 0]]},
        {"jobs": [[0, -1, 0, None]]},
        {"jobs": [[0, 0, 1.5, None]]},
        {"jobs": [[0, 0, True, None]]},
        {"jobs": [[0, 0, 0, 7]]},
        {"jobs": 3},
        {"moved": [[0]]},
        {"moved": [["0", "q:1:1"]]},
        {"moved": [[0, None]]},
    ],
)
def test_marks_of_the_wrong_shape_are_refused(extra: dict[str, object]) -> None:
    cbor = dump_map(extra)
    tail = cbor + len(cbor).to_bytes(4, "little")
    with pytest.raises(BadBytes):
        decode_append(framed(Kind.APPEND, build_append_body(1, 1, b"{},", 0, b"", tail), FLAG_EXTRA))
