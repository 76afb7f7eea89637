"""Files of a worker that answers point into: descriptors by the worker's numbers, and who still sends from them."""

from __future__ import annotations

import os
from collections.abc import Sequence

from gateway.exchange import Extent
from shared.io.late_close import close_aside
from shared.wire import LinkError


class LeasedFiles:
    """Extents of an answer, resolved to descriptors that stay open until `release`."""

    __slots__ = ("_entries", "extents")

    def __init__(self, extents: list[Extent], entries: list[_OpenFile]) -> None:
        self.extents = extents
        self._entries = entries

    def release(self) -> None:
        entries, self._entries = self._entries, []
        for entry in entries:
            entry.users -= 1
            entry.close_if_unused()


class _OpenFile:
    __slots__ = ("fd", "retired", "users")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.users = 0
        self.retired = False

    def close_if_unused(self) -> None:
        if self.retired and self.users == 0 and self.fd >= 0:
            fd, self.fd = self.fd, -1
            close_aside(fd)


class FileTable:
    """Descriptors that a worker passed us, by its file numbers; closed when retired and in no response."""

    def __init__(self) -> None:
        self._files: dict[int, _OpenFile] = {}

    def __len__(self) -> int:
        return len(self._files)

    def add(self, file: int, fd: int) -> None:
        if file in self._files:
            os.close(fd)
            raise LinkError("a file number was given out twice")
        self._files[file] = _OpenFile(fd)

    def retire(self, file: int) -> None:
        entry = self._files.pop(file, None)
        if entry is None:
            raise LinkError("an unknown file was retired")
        entry.retired = True
        entry.close_if_unused()

    def retire_all(self) -> None:
        for file in list(self._files):
            self.retire(file)

    def lease(self, extents: Sequence[tuple[int, int, int]]) -> LeasedFiles:
        entries: list[_OpenFile] = []
        resolved: list[Extent] = []
        for file, offset, length in extents:
            entry = self._files.get(file)
            if entry is None:
                raise LinkError("an answer names a file that was never opened")
            entries.append(entry)
            resolved.append(Extent(entry.fd, offset, length))
        for entry in entries:
            entry.users += 1
        return LeasedFiles(resolved, entries)
