"""Segment files opened for reading, with the file named in every error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ops.coldstore.places import SegmentPlace
from shared.cold_plan import TopicPart
from shared.errors import CorruptSegment
from shared.file_header import FileHeader
from shared.format_errors import BadBytes, FormatError
from shared.io.durable_fs import File, FileSystem
from shared.segment_index import BlockEntry, SegmentIndex
from shared.segment_reader import read_header, read_index, read_trailer


@contextmanager
def opened(fs: FileSystem, path: str) -> Iterator[File]:
    file = fs.open(path)
    try:
        yield file
    finally:
        file.close()


def open_index(fs: FileSystem, place: SegmentPlace) -> tuple[FileHeader, SegmentIndex]:
    """Header and index; CorruptSegment if they cannot be trusted."""
    try:
        with opened(fs, place.path) as file:
            size = file.size()
            if place.size is not None and size != place.size:
                raise BadBytes(f"{size} bytes instead of {place.size}", min(size, place.size))
            header = read_header(file.pread)
            return header, read_index(file.pread, read_trailer(file.pread, size))
    except FormatError as err:
        raise named(err, place.path) from err
    except FileNotFoundError as err:
        raise CorruptSegment(path=place.path, reason="the file is missing") from err


def named(
    err: FormatError, path: str, entry: BlockEntry | None = None, topic: TopicPart | None = None
) -> CorruptSegment:
    """The error of a codec, which knows no files, as the error of this one."""
    base = 0 if entry is None else entry.offset
    offset = base + err.offset if isinstance(err, BadBytes) else base
    reason = err.reason if isinstance(err, BadBytes) else str(err)
    if entry is None or topic is None:
        return CorruptSegment(path=path, offset=offset, reason=reason)
    return CorruptSegment(
        path=path, offset=offset, reason=reason, topic=topic.name, first_seq=entry.first, last_seq=entry.last
    )
