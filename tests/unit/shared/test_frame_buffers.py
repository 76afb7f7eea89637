"""The log's way to a frame makes the same bytes as the plain one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.frame import FRAME_MAX_BYTES, FRAME_MIN_BYTES, Kind, build_frame
from shared.frame_buffers import STREAM_FROM_BYTES, frame_buffers

u64 = st.integers(0, 2**64 - 1)
_EDGE = STREAM_FROM_BYTES - FRAME_MIN_BYTES
BODIES = st.sampled_from([b"", b"a body", b"x" * (_EDGE - 1), b"x" * _EDGE, b"y" * 100_000])


@given(
    kind=st.sampled_from([Kind.JOBS_DONE, Kind.WATERMARK, Kind.SEALED]),
    flags=st.integers(0, 2**16 - 1),
    lsn=u64,
    topic_id=u64,
    ts=u64,
    body=BODIES | st.lists(BODIES, max_size=4),
)
def test_both_ways_make_the_same_bytes(
    kind: Kind, flags: int, lsn: int, topic_id: int, ts: int, body: bytes | list[bytes]
) -> None:
    made = b"".join(frame_buffers(kind, flags, lsn, topic_id, ts, body))
    assert made == build_frame(kind, flags, lsn, topic_id, ts, body)


def test_a_large_body_is_not_copied() -> None:
    body = bytes(STREAM_FROM_BYTES)
    assert any(part is body for part in frame_buffers(Kind.SEALED, 0, 64, 1, 1, body))


def test_too_long_a_frame_is_refused() -> None:
    with pytest.raises(ValueError, match="exceeds"):
        frame_buffers(Kind.SEALED, 0, 64, 1, 1, bytes(FRAME_MAX_BYTES))
