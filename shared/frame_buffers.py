"""Frames as the log writes them: what `frame.build_frame` makes, in as many buffers as save a copy.

Every ack passes through here, so it is compiled where modules are (tests/unit/shared/test_frame_buffers.py holds the
two ways against each other). Appends have a builder of their own: append_frame.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

from xxhash import xxh3_64, xxh3_64_intdigest

from shared.frame import FRAME_HEADER_FORMAT, FRAME_MAGIC, FRAME_MAX_BYTES, FRAME_MIN_BYTES, FRAME_VERSION

# From here on hashing part by part is cheaper than copying the joined frame once more.
STREAM_FROM_BYTES: Final = 16 << 10

# Final, as compiled code has what is final at hand, and looks other names up in a dict each time.
_pack_header: Final = Struct(f"<{FRAME_HEADER_FORMAT}").pack
_pack_checksum: Final = Struct("<Q").pack
_hash: Final = xxh3_64_intdigest


def frame_buffers(
    kind: int, flags: int, lsn: int, topic_id: int, ts_ms: int, body: bytes | Sequence[bytes]
) -> list[bytes]:
    """One frame as buffers that are written one after the other; a large body is not copied at all."""
    parts = [body] if isinstance(body, bytes) else body
    length = FRAME_MIN_BYTES
    for part in parts:
        length += len(part)
    if length > FRAME_MAX_BYTES:
        raise ValueError(f"a frame of {length} bytes exceeds {FRAME_MAX_BYTES}")
    header = _pack_header(FRAME_MAGIC, length, kind, FRAME_VERSION, flags, 0, lsn, topic_id, ts_ms)
    if length < STREAM_FROM_BYTES:
        frame = header + body if isinstance(body, bytes) else b"".join([header, *body])
        return [frame + _pack_checksum(_hash(frame))]
    checksum = xxh3_64(header)
    for part in parts:
        checksum.update(part)
    return [header, *parts, _pack_checksum(checksum.intdigest())]
