"""Walking over the frames of a file, whatever its size, in bounded memory.

`pread(length, offset)` gives the bytes at a place, fewer only at the end of the file.
"""

from collections.abc import Callable, Iterator
from struct import Struct

import msgspec

from shared.format_errors import NewerVersion
from shared.frame import (
    FRAME_HEADER_BYTES,
    FRAME_MAGIC,
    FRAME_MAX_BYTES,
    FRAME_MIN_BYTES,
    BadFrame,
    Blank,
    Frame,
    Kind,
    NeedMore,
    decode_frame,
)

Pread = Callable[[int, int], bytes]

CHUNK_BYTES = 1 << 20
# For what is only looked at once, megabytes of zeros mostly: the next piece takes the place of the last one in memory.
# Larger ones would each be new memory from the kernel, which costs more than reading into it.
_GLANCE_BYTES = 1 << 16
_FILE_END = int(Kind.FILE_END)
_LSN_AT = 16
_lsn_bytes = Struct("<Q").pack
_unpack_length = Struct("<I").unpack_from


class End(msgspec.Struct, frozen=True):
    """The frames reach exactly to the end of the range, or to a FILE_END frame."""


class Torn(msgspec.Struct, frozen=True):
    """Bytes that are neither a frame nor blank. Torn tail or damage: what follows decides, see §7."""

    reason: str
    claimed_topic: int = 0


class Stop(msgspec.Struct, frozen=True):
    """Why a scan ended; `offset` is the place behind the last good frame."""

    offset: int
    verdict: End | Torn | Blank


def scan_frames(
    pread: Pread, start: int, end: int, lsn_base: int, chunk_bytes: int = CHUNK_BYTES
) -> Iterator[Frame | Stop]:
    """Every frame from `start`, then exactly one Stop. `Frame.end` is an offset in the file.

    `lsn_base` is the lsn of the file's byte 0 (0 for snapshots and manifests). A frame's body is a view
    of its chunk: keep copies, not views, beyond the next step. A newer frame raises NewerVersion.
    """
    position = origin = start
    view = memoryview(b"")
    while True:
        found = decode_frame(view, position - origin, lsn_base + position, origin)
        if isinstance(found, Frame):
            yield found
            position = found.end
            if found.kind == _FILE_END:
                yield Stop(position, End())
                return
            continue
        if not isinstance(found, NeedMore):
            if isinstance(found, BadFrame):
                yield Stop(position, Torn(found.reason, found.claimed_topic))
            else:
                yield Stop(position, found)
            return
        if position + found.bytes_needed > end:
            yield Stop(position, _verdict_on_rest(pread, position, end))
            return
        length = min(max(chunk_bytes, found.bytes_needed), end - position)
        view, origin = memoryview(pread(length, position)), position
        if len(view) < length:
            end = position + len(view)


def find_valid_frame(
    pread: Pread,
    start: int,
    end: int,
    lsn_base: int,
    chunk_bytes: int = _GLANCE_BYTES,
    blank_from: int | None = None,
) -> int | None:
    """The offset of the first intact frame at or behind `start`, also of a newer one.

    The caller may know that there are only zeros from `blank_from` on, where no frame can begin.
    """
    overlap = len(FRAME_MAGIC) - 1
    assert chunk_bytes > overlap
    position = start
    search_end = end if blank_from is None else min(end, blank_from)
    while position < search_end:
        chunk = pread(min(chunk_bytes, search_end - position), position)
        at = chunk.find(FRAME_MAGIC)
        while at >= 0:
            # Records may be full of the magic; the lsn behind it tells almost always without a read.
            offset = position + at
            lsn, expected = chunk[at + _LSN_AT : at + _LSN_AT + 8], _lsn_bytes(lsn_base + offset)
            if expected.startswith(lsn) and _is_frame(pread, offset, end, lsn_base):
                return offset
            at = chunk.find(FRAME_MAGIC, at + 1)
        if len(chunk) <= overlap:
            break
        position += len(chunk) - overlap
    return None


def is_blank(pread: Pread, start: int, end: int, chunk_bytes: int = _GLANCE_BYTES) -> bool:
    """Whether the range holds nothing but zeros."""
    position = start
    zeros = bytes(
        min(chunk_bytes, max(0, end - start))
    )  # to compare with: ten times as fast as counting them
    while position < end:
        chunk = pread(min(chunk_bytes, end - position), position)
        if not chunk:
            break
        if chunk != zeros[: len(chunk)]:
            return False
        position += len(chunk)
    return True


def _verdict_on_rest(pread: Pread, position: int, end: int) -> End | Torn | Blank:
    # A frame that reaches over the end has a header, which is not blank; anything else is shorter than one.
    rest = pread(min(FRAME_MIN_BYTES, end - position), position) if position < end else b""
    if not rest:
        return End()
    return Blank() if rest.count(0) == len(rest) else Torn("the file ends inside a frame")


def _is_frame(pread: Pread, offset: int, end: int, lsn_base: int) -> bool:
    header = pread(FRAME_HEADER_BYTES, offset)
    if len(header) < FRAME_HEADER_BYTES or header[_LSN_AT : _LSN_AT + 8] != _lsn_bytes(lsn_base + offset):
        return False
    (length,) = _unpack_length(header, 4)
    if not FRAME_MIN_BYTES <= length <= min(FRAME_MAX_BYTES, end - offset):
        return False
    try:
        return isinstance(decode_frame(memoryview(pread(length, offset)), 0, lsn_base + offset), Frame)
    except NewerVersion:
        return True
