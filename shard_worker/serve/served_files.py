"""Read-only descriptors of log files, to be handed to a gateway that sends from them."""

from __future__ import annotations

import os

from shard_worker.disk.wal import Wal
from shard_worker.request import Extents


class ServedFiles:
    def __init__(self, wal: Wal) -> None:
        self._wal = wal
        self._fds: dict[int, int] = {}

    def descriptor(self, file: int) -> int:
        """Opened apart from the writer's: who gets it can read, and nothing else."""
        if file not in self._fds:
            self._fds[file] = os.open(self._wal.files[file].path, os.O_RDONLY | os.O_CLOEXEC)
        return self._fds[file]

    def read(self, extents: Extents) -> bytes:
        return b"".join(self._wal.files[file].pread(length, offset) for file, offset, length in extents)

    def retire(self, file: int) -> None:
        fd = self._fds.pop(file, None)
        if fd is not None:
            os.close(fd)

    def close(self) -> None:
        for file in list(self._fds):
            self.retire(file)
