"""An append frame in one go: what `wal_format.build_append_body` and `frame.frame_buffers` make together, without the
steps in between. Every write passes through here (tests/unit/shared/test_append_frame.py holds the two ways against
each other)."""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter
from xxhash import xxh3_64

from shared.frame import FRAME_MIN_BYTES
from shared.frame_buffers import put_head, with_checksum
from shared.packing import put_u32, put_u64
from shared.wal_format import APPEND_HEADER_BYTES

APPEND_KIND: Final = 1
APPEND_MIN_BYTES: Final = FRAME_MIN_BYTES + APPEND_HEADER_BYTES
"""Both headers and the checksum."""

# From here on hashing part by part is cheaper than copying the joined frame once more.
_STREAM_FROM_BYTES: Final = 4 << 10


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
    writer = BytesWriter()
    put_head(writer, length, APPEND_KIND, flags, lsn, topic_id, ts_ms)
    # The layout of wal_format.APPEND_HEADER_FORMAT.
    put_u64(writer, first_seq)
    put_u32(writer, count)
    put_u32(writer, json_len)
    put_u32(writer, reserve)
    put_u32(writer, rest_len)
    if length < _STREAM_FROM_BYTES:
        writer.write(json)
        if rest_len:
            writer.write(columns)
            writer.write(extra)
        return [with_checksum(writer)]
    headers = writer.getvalue()
    checksum = xxh3_64(headers)
    checksum.update(json)
    checksum.update(columns)
    checksum.update(extra)
    return [headers, json, columns, extra, checksum.digest()[::-1]]
