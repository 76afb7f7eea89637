"""Ranges of records that are read again and again, put end to end in memory.

Records that were written in small batches lie in the log as many extents, and a gateway pays for a system call for
each of them, with every reader. What is asked for a second time is copied once, in one piece, into a file without a
name (`memfd`), and is one extent from then on. Nothing in the log ever changes, so a copy is never wrong; what readers
may no longer see, they are not answered with, whether it is in here or not.

Two files of a fixed size take turns: when the newer one is full the older one goes, with all that is in it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from shard_worker.request import Extents
from shared.limits import STITCHED_FILE_BYTES, STITCHED_MIN_EXTENTS, STITCHED_SEEN_MAX

FIRST_NUMBER: Final = 1 << 48
"""Files in here are numbered from this on, log files below it."""

_Key = tuple[int, int, int, int, int, int]


class StitchedReads:
    def __init__(self, read: Callable[[Extents], bytes], file_bytes: int = STITCHED_FILE_BYTES) -> None:
        """`read` brings the bytes of extents of the log."""
        self._read = read
        self._file_bytes = file_bytes
        self._files: dict[int, _MemoryFile] = {}  # at most two, the newer one last
        self._next_number = FIRST_NUMBER
        self._seen: dict[_Key, None] = {}  # asked for once
        self._retired: list[int] = []

    def __contains__(self, file: int) -> bool:
        return file in self._files

    def find(self, extents: Extents) -> Extents:
        """The same bytes in one extent, if they are here or worth to be; else the extents as they are."""
        if len(extents) < STITCHED_MIN_EXTENTS:
            return extents
        first, last = extents[0], extents[-1]
        size = sum([length for _, _, length in extents])
        # No two topics share a place in the log, and of one topic's batches between two places some may be missing
        # (deleted, evicted), but none can be exchanged for another.
        key = (first[0], first[1], last[0], last[1], len(extents), size)
        for number, file in self._files.items():
            offset = file.places.get(key)
            if offset is not None:
                return [(number, offset, size)]
        if key not in self._seen:
            if len(self._seen) >= STITCHED_SEEN_MAX:
                self._seen.clear()
            self._seen[key] = None
            return extents
        return self._keep(key, size, extents)

    def _keep(self, key: _Key, size: int, extents: Extents) -> Extents:
        if size > self._file_bytes // 2:
            return extents  # it would push out everything else
        try:
            file = self._with_room(size)
            offset = file.append(self._read(extents))
        except OSError:
            return extents  # no descriptor or no memory left: it works without
        file.places[key] = offset
        del self._seen[key]
        return [(file.number, offset, size)]

    def _with_room(self, size: int) -> _MemoryFile:
        if self._files:
            newest = self._files[next(reversed(self._files))]
            if newest.size + size <= self._file_bytes:
                return newest
        made = _MemoryFile(self._next_number)
        self._next_number += 1
        if len(self._files) == 2:
            oldest = next(iter(self._files))
            self._files.pop(oldest).close()
            self._retired.append(oldest)
        self._files[made.number] = made
        return made

    def descriptor(self, file: int) -> int:
        """For reading only."""
        return self._files[file].shown

    def take_retired(self) -> list[int]:
        """Numbers that nobody is answered with any more."""
        retired, self._retired = self._retired, []
        return retired

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()


class _MemoryFile:
    def __init__(self, number: int) -> None:
        self.number = number
        self.size = 0
        self.places: dict[_Key, int] = {}
        self._fd = os.memfd_create("topicsd-stitched", os.MFD_CLOEXEC)
        try:
            self.shown = os.open(f"/proc/self/fd/{self._fd}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            os.close(self._fd)
            raise

    def append(self, data: bytes) -> int:
        """Returns where it begins."""
        offset = self.size
        if os.pwrite(self._fd, data, offset) != len(data):
            raise OSError("a file in memory took only a part")
        self.size += len(data)
        return offset

    def close(self) -> None:
        os.close(self._fd)
        os.close(self.shown)
