"""Frames as the log writes them: what `frame.build_frame` makes, in as many buffers as save a copy.

Every ack passes through here, so it is compiled where modules are (tests/unit/shared/test_frame_buffers.py holds the
two ways against each other). Appends have a builder of their own: append_frame.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from librt.strings import BytesWriter, read_i64_be, write_i64_le
from xxhash import xxh3_64, xxh3_64_digest

from shared.frame import FRAME_MAGIC, FRAME_MAX_BYTES, FRAME_MIN_BYTES, FRAME_VERSION
from shared.packing import put_u32, put_u64

# From here on hashing part by part is cheaper than copying the joined frame once more.
STREAM_FROM_BYTES: Final = 16 << 10

# Final, as compiled code has what is final at hand, and looks other names up in a dict each time.
_magic: Final = FRAME_MAGIC
_digest: Final = xxh3_64_digest
_VERSION_BITS: Final = FRAME_VERSION << 8


def put_head(
    writer: BytesWriter, length: int, kind: int, flags: int, lsn: int, topic_id: int, ts_ms: int
) -> None:
    """The layout of frame.FRAME_HEADER_FORMAT. Refuses a frame that is too long."""
    if length > FRAME_MAX_BYTES:
        raise ValueError(f"a frame of {length} bytes exceeds {FRAME_MAX_BYTES}")
    assert 0 <= kind < 1 << 8 and 0 <= flags < 1 << 16, "each has its own bytes"
    writer.write(_magic)
    put_u32(writer, length)
    put_u64(writer, kind | _VERSION_BITS | flags << 16)  # a byte, a byte, two, and four that are reserved
    put_u64(writer, lsn)
    put_u64(writer, topic_id)
    put_u64(writer, ts_ms)


def with_checksum(writer: BytesWriter) -> bytes:
    """The frame that is in `writer`, complete."""
    # A digest is big-endian, as all the world prints it. Its number stays one of the machine: no object is made of it.
    write_i64_le(writer, read_i64_be(_digest(writer.getvalue()), 0))
    return writer.getvalue()


def frame_buffers(
    kind: int, flags: int, lsn: int, topic_id: int, ts_ms: int, body: bytes | Sequence[bytes]
) -> list[bytes]:
    """One frame as buffers that are written one after the other; a large body is not copied at all."""
    parts = [body] if isinstance(body, bytes) else body
    length = FRAME_MIN_BYTES
    for part in parts:
        length += len(part)
    writer = BytesWriter()
    put_head(writer, length, kind, flags, lsn, topic_id, ts_ms)
    if length < STREAM_FROM_BYTES:
        for part in parts:
            writer.write(part)
        return [with_checksum(writer)]
    header = writer.getvalue()
    checksum = xxh3_64(header)
    for part in parts:
        checksum.update(part)
    return [header, *parts, checksum.digest()[::-1]]
