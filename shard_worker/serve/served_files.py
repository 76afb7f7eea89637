"""Read-only descriptors for a gateway that sends from them: of log files, and of copies of what is in them."""

from __future__ import annotations

import os

from shard_worker.disk.wal import Wal
from shard_worker.request import Extents
from shard_worker.serve.stitched_reads import StitchedReads


class ServedFiles:
    def __init__(self, wal: Wal) -> None:
        self._wal = wal
        self._fds: dict[int, int] = {}
        self._stitched = StitchedReads(self.read)

    def stitched(self, extents: Extents) -> Extents:
        """Where the same bytes can be had for the least calls; valid until the end of the turn."""
        return self._stitched.find(extents)

    def descriptor(self, file: int) -> int:
        """Opened apart from the writer's: who gets it can read, and nothing else."""
        if file in self._stitched:
            return self._stitched.descriptor(file)
        if file not in self._fds:
            self._fds[file] = os.open(self._wal.files[file].path, os.O_RDONLY | os.O_CLOEXEC)
        return self._fds[file]

    def read(self, extents: Extents) -> bytes:
        """Of log files."""
        return b"".join([self._wal.files[file].pread(length, offset) for file, offset, length in extents])

    def forget(self, file: int) -> int | None:
        """Its descriptor, if it had one: for the caller to close."""
        return self._fds.pop(file, None)

    def take_retired(self) -> list[int]:
        """Files that have gone on their own: links must be told, at the end of the turn."""
        return self._stitched.take_retired()

    def close(self) -> None:
        while self._fds:
            os.close(self._fds.popitem()[1])
        self._stitched.close()
