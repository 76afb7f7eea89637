"""Is a log file, or its beginning, worth keeping a copy of? Frame by frame, as a replay would read it."""

from __future__ import annotations

from collections.abc import Iterator

from shared.file_header import FILE_HEADER_BYTES
from shared.format_errors import BadBytes
from shared.frame import Frame, Kind
from shared.frame_scan import Pread, Stop, Torn, scan_frames
from shared.wal_format import decode_wal_header, lsn_of


def log_frames(
    pread: Pread, size: int, shard: int, number: int, start: int = FILE_HEADER_BYTES
) -> Iterator[Frame]:
    """The frames of a copy that holds nothing else; BadBytes if it is not one, or not this file's."""
    header = decode_wal_header(pread(FILE_HEADER_BYTES, 0))
    if (header.shard, header.number) != (shard, number):
        raise BadBytes(f"this is file {header.number} of shard {header.shard}")
    for found in scan_frames(pread, start, size, lsn_of(number, 0)):
        if not isinstance(found, Stop):
            yield found
        elif isinstance(found.verdict, Torn):
            raise BadBytes(found.verdict.reason, found.offset)


def log_length(pread: Pread, size: int, shard: int, number: int, upto: int | None = None) -> int:
    """How many bytes of a log file to copy: up to its FILE_END frame, or to the offset `upto`, which must be the end
    of a frame. BadBytes if the frames do not get there."""
    end = size if upto is None else upto
    last, kind = FILE_HEADER_BYTES, 0
    for frame in log_frames(pread, end, shard, number):
        last, kind = frame.end, frame.kind
    if upto is None and kind != Kind.FILE_END:
        raise BadBytes("the file does not end with its FILE_END frame", last)
    if upto is not None and last != upto:
        raise BadBytes(f"the frames end there, not at {upto}", last)
    return last
