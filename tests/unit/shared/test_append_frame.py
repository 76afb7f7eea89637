"""The quick way to an append frame makes the same bytes as the general one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared import append_frame, frame
from shared.append_frame import append_buffers
from shared.frame import Kind
from shared.frame_buffers import frame_buffers
from shared.wal_format import build_append_body

u32, u64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)


@given(
    flags=st.integers(0, 2**16 - 1),
    lsn=u64,
    topic_id=u64,
    ts=u64,
    first=u64,
    count=u32,
    reserve=u32,
    json=st.sampled_from([b"{},", b"x" * 4_023, b"x" * 4_024, b"x" * 4_025, b"x" * 16_312, b"y" * 100_000]),
    columns=st.sampled_from([b"", b"abcd"]),
    extra=st.sampled_from([b"", b"\xa0\x01\x00\x00\x00"]),
)
def test_both_ways_make_the_same_bytes(
    flags: int,
    lsn: int,
    topic_id: int,
    ts: int,
    first: int,
    count: int,
    reserve: int,
    json: bytes,
    columns: bytes,
    extra: bytes,
) -> None:
    body = build_append_body(first, count, json, reserve, columns, extra)
    plain = b"".join(frame_buffers(Kind.APPEND, flags, lsn, topic_id, ts, body))
    quick = append_buffers(flags, lsn, topic_id, ts, first, count, reserve, json, columns, extra)
    assert b"".join(quick) == plain


def test_constants_are_those_of_the_formats() -> None:
    assert append_frame.APPEND_KIND == Kind.APPEND
    assert len(b"".join(append_buffers(0, 0, 0, 0, 1, 1, 0, b"", b"", b""))) == append_frame.APPEND_MIN_BYTES


def test_too_long_a_frame_is_refused() -> None:
    with pytest.raises(ValueError, match="exceeds"):
        append_buffers(0, 0, 0, 0, 1, 1, 0, bytes(frame.FRAME_MAX_BYTES), b"", b"")
