"""An append frame in one go: what `wal_format.build_append_body` and `frame.frame_buffers` make together, without the
steps in between. Every write passes through here (tests/unit/shared/test_append_frame.py holds the two ways against
each other)."""

from __future__ import annotations

from struct import Struct
from typing import Final

from xxhash import xxh3_64, xxh3_64_intdigest

from shared.frame import FRAME_HEADER_FORMAT, FRAME_MAGIC, FRAME_MAX_BYTES, FRAME_MIN_BYTES, FRAME_VERSION
from shared.wal_format import APPEND_HEADER_BYTES, APPEND_HEADER_FORMAT

APPEND_KIND: Final = 1
APPEND_MIN_BYTES: Final = FRAME_MIN_BYTES + APPEND_HEADER_BYTES
"""Both headers and the checksum."""

# From here on hashing part by part is cheaper than copying the joined frame once more.
_STREAM_FROM_BYTES: Final = 4 << 10

# Final, as compiled code has what is final at hand, and looks other names up in a dict each time.
_pack_headers: Final = Struct(f"<{FRAME_HEADER_FORMAT}{APPEND_HEADER_FORMAT}").pack
_pack_checksum: Final = Struct("<Q").pack
_hash: Final = xxh3_64_intdigest


def append_buffers(
    flags: int,
    lsn: int,
    topic_id: int,
    ts_ms: int,
    first_seq: int,
    count: int,
    reserve: int,
    json: bytes,
    columns: bytes,
    extra: bytes,
) -> list[bytes]:
    """The frame as buffers that are written one after the other. `extra` is the outcome of encode_extra or empty."""
    json_len = len(json)
    rest_len = len(columns) + len(extra)
    length = APPEND_MIN_BYTES + json_len + rest_len
    headers = _pack_headers(
        FRAME_MAGIC,
        length,
        APPEND_KIND,
        FRAME_VERSION,
        flags,
        0,
        lsn,
        topic_id,
        ts_ms,
        first_seq,
        count,
        json_len,
        reserve,
        rest_len,
    )
    if length < _STREAM_FROM_BYTES:
        frame = b"".join((headers, json, columns, extra)) if rest_len else headers + json
        return [frame + _pack_checksum(_hash(frame))]
    if length > FRAME_MAX_BYTES:
        raise ValueError(f"a frame of {length} bytes exceeds {FRAME_MAX_BYTES}")
    checksum = xxh3_64(headers)
    checksum.update(json)
    checksum.update(columns)
    checksum.update(extra)
    return [headers, json, columns, extra, _pack_checksum(checksum.intdigest())]
