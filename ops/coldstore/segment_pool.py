"""Many segments open for reading at once, with few open files: a bin may be made of thousands of tiny ones."""

from __future__ import annotations

from collections import OrderedDict
from types import TracebackType
from typing import Final

from shared.errors import CorruptSegment
from shared.io.durable_fs import File, FileSystem
from shared.manifest import ManifestSegment
from shared.segment_rewrite import OpenSegment

OPEN_FILES: Final = 64
INDEXES_KEPT: Final = 4096


class SegmentPool:
    """Segments by their manifest entries. Files are opened when they are read, and closed when others need room."""

    def __init__(self, fs: FileSystem, directory: str, shard: int) -> None:
        self._fs = fs
        self._directory = directory
        self._shard = shard
        self._files: OrderedDict[str, File] = OrderedDict()
        self._segments: OrderedDict[int, OpenSegment] = OrderedDict()

    def __enter__(self) -> SegmentPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._files:
            self._files.popitem()[1].close()

    def open(self, segment: ManifestSegment) -> OpenSegment:
        """Whatever is wrong with it becomes an error that names the file."""
        found = self._segments.get(segment.number)
        if found is None:
            found = self._segments[segment.number] = self._read(segment)
            if len(self._segments) > INDEXES_KEPT:
                self._segments.popitem(last=False)
        return found

    def _read(self, segment: ManifestSegment) -> OpenSegment:
        path = f"{self._directory}/{segment.path}"
        size = self._file(path).size()
        if size != segment.size:
            raise CorruptSegment(path=path, reason=f"{size} bytes instead of {segment.size}")

        def pread(length: int, offset: int) -> bytes:
            return self._file(path).pread(length, offset)

        return OpenSegment.read(path, segment.number, self._shard, pread, size)

    def _file(self, path: str) -> File:
        file = self._files.get(path)
        if file is not None:
            self._files.move_to_end(path)
            return file
        if len(self._files) >= OPEN_FILES:
            self._files.popitem(last=False)[1].close()
        try:
            file = self._files[path] = self._fs.open(path)
        except FileNotFoundError as err:
            reason = "the file is missing: has a newer generation replaced it?"
            raise CorruptSegment(path=path, reason=reason) from err
        return file
