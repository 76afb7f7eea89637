"""Reads a log file without touching what was allocated and never written.

That is most of the newest file, and a start after a kill would read it several times to find that it is blank. Asked
for before anything is read: to the kernel, zeros that have been read are data like any other.
"""

from __future__ import annotations

from shared.io.durable_fs import File


class WrittenPart:
    def __init__(self, file: File) -> None:
        self._file = file
        self._size = file.size()
        self.end = file.data_end()

    def pread(self, length: int, offset: int) -> bytes:
        """The same bytes as from the file."""
        written = max(0, min(length, self.end - offset))
        content = self._file.pread(written, offset) if written else b""
        if len(content) < written:
            return content
        return content + bytes(max(0, min(length, self._size - offset) - written))
