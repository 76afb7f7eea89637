"""Frames: the unit of the log, of snapshots and of manifests. Layout: docs/disk-format.md §3.1.

F1 a frame decodes only at the position it was written for, and only if its checksum is right;
F2 a frame that is intact but of a newer version or unknown kind raises, so that nobody skips it.
"""

from collections.abc import Sequence
from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple

import msgspec
from xxhash import xxh3_64_intdigest

from shared.format_errors import NewerVersion

FRAME_MAGIC = b"TFR1"
FRAME_VERSION: Final = 1
FRAME_HEADER_BYTES: Final = 40
FRAME_CHECKSUM_BYTES: Final = 8
FRAME_MIN_BYTES: Final = FRAME_HEADER_BYTES + FRAME_CHECKSUM_BYTES
FRAME_MAX_BYTES: Final = 256 << 20
FRAME_LENGTH_AT = 4
TOPIC_ID_AT = 24

FRAME_HEADER_FORMAT = "4sIBBHIQQQ"
_HEADER = Struct(f"<{FRAME_HEADER_FORMAT}")
_pack_header = _HEADER.pack
_unpack_header = _HEADER.unpack_from
_CHECKSUM = Struct("<Q")
_pack_checksum = _CHECKSUM.pack
_BLANK = bytes(FRAME_MIN_BYTES)


class Kind(IntEnum):
    APPEND = 1
    TOPIC_CREATE = 2
    TOPIC_CONFIG = 3
    TOPIC_DELETE = 4
    RECORDS_DELETE = 5
    WATERMARK = 6
    SEALED = 7
    SEGMENT_MOVED = 8
    SYNCED = 9
    FILE_END = 10
    SEGMENTS_REPLACED = 11
    SESSION = 12
    TOPIC_IMPORT = 13
    JOBS_LEASED = 16
    JOBS_DONE = 17
    JOBS_RELEASED = 18
    ROUTER_DEFINED = 24
    ROUTER_DROPPED = 25
    ROUTER_CURSORS = 26
    ROUTE_TRIMMED = 27
    ROUTE_FORGOTTEN = 28
    SNAP_BEGIN = 64
    SNAP_TOPIC = 65
    SNAP_SEGMENTS = 66
    SNAP_END = 67
    MANIFEST = 80


_KNOWN_KINDS = frozenset(int(kind) for kind in Kind)


class Frame(NamedTuple):
    kind: int
    flags: int
    lsn: int
    topic_id: int
    ts_ms: int
    body: memoryview
    """A view: it keeps the buffer it was decoded from alive."""
    end: int
    """Where the next frame starts, counted like the `origin` given to the decoder."""


class NeedMore(msgspec.Struct, frozen=True):
    """The buffer ends before the frame does."""

    bytes_needed: int
    """Counted from the frame's first byte; a guess until the header is complete, never too many."""


class BadFrame(msgspec.Struct, frozen=True):
    reason: str
    claimed_topic: int = 0
    """What the header says, for reports only: nothing vouches for it."""


class Blank(msgspec.Struct, frozen=True):
    """Zeros where a frame could stand: preallocated space, or a lost write."""


def build_frame(
    kind: int, flags: int, lsn: int, topic_id: int, ts_ms: int, body: bytes | Sequence[bytes | memoryview]
) -> bytes:
    """One frame in one piece; the log, which has large ones and many, builds its own in frame_buffers.py."""
    parts = (body,) if isinstance(body, bytes) else body
    length = FRAME_MIN_BYTES + sum(map(len, parts))
    if length > FRAME_MAX_BYTES:
        raise ValueError(f"a frame of {length} bytes exceeds {FRAME_MAX_BYTES}")
    header = _pack_header(FRAME_MAGIC, length, kind, FRAME_VERSION, flags, 0, lsn, topic_id, ts_ms)
    frame = b"".join((header, *parts))
    return frame + _pack_checksum(xxh3_64_intdigest(frame))


def decode_frame(
    buf: memoryview, offset: int, lsn: int, origin: int = 0
) -> Frame | NeedMore | BadFrame | Blank:
    """The frame at `buf[offset:]`, which must be the one written for position `lsn`.

    `origin` is the position that `buf[0]` stands for; it only serves `Frame.end`.
    """
    available = len(buf) - offset
    if available < FRAME_MIN_BYTES:
        return NeedMore(FRAME_MIN_BYTES)
    magic, length, kind, version, flags, reserved, frame_lsn, topic_id, ts_ms = _unpack_header(buf, offset)
    if magic != FRAME_MAGIC:
        if buf[offset : offset + FRAME_MIN_BYTES] == _BLANK:
            return Blank()
        return BadFrame("no frame magic")
    # The position comes before the length: a garbage length must not make the caller read on.
    if frame_lsn != lsn:
        return BadFrame(f"frame written for position {frame_lsn:#x}")
    if not FRAME_MIN_BYTES <= length <= FRAME_MAX_BYTES:
        return BadFrame(f"frame length {length}", topic_id)
    if available < length:
        return NeedMore(length)
    body_end = offset + length - FRAME_CHECKSUM_BYTES
    (checksum,) = _CHECKSUM.unpack_from(buf, body_end)
    if xxh3_64_intdigest(buf[offset:body_end]) != checksum:
        return BadFrame("frame checksum", topic_id)
    # Only now, behind the checksum: a flipped bit must not pass for a newer writer.
    if version > FRAME_VERSION:
        raise NewerVersion(version, FRAME_VERSION, "frame version")
    if version != FRAME_VERSION or reserved:
        return BadFrame("frame header", topic_id)
    if kind not in _KNOWN_KINDS:
        raise NewerVersion(kind, max(_KNOWN_KINDS), "frame kind")
    body = buf[offset + FRAME_HEADER_BYTES : body_end]
    return Frame(kind, flags, frame_lsn, topic_id, ts_ms, body, origin + offset + length)
