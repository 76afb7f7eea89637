"""Lines of a descriptor, as soon as they are whole, and pauses between them."""

from __future__ import annotations

import os
import select

from topicsd.client.errors import BadInput

CHUNK = 256 * 1024
LINE_MAX_BYTES = 64 * 1024 * 1024
"""A request is no larger by default; a "line" beyond it is most likely no text at all."""


class Lines:
    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._pieces: list[bytes] = []  # of a line whose end has not come yet
        self._bytes = 0
        self.ended = False

    def take(self, wait_s: float | None) -> list[bytes]:
        """Whole lines, without their ends; none of them after a pause of `wait_s`, and at the end of the input."""
        while not self.ended:
            # Regular files are always ready.
            if not select.select([self._fd], [], [], wait_s)[0]:
                return []
            data = os.read(self._fd, CHUNK)
            if not data:
                self.ended = True
                last = b"".join(self._pieces)
                return [_without_return(last)] if last else []
            if b"\n" in data:
                *whole, rest = data.split(b"\n")
                whole[0] = b"".join((*self._pieces, whole[0]))
                self._pieces, self._bytes = [rest] if rest else [], len(rest)
                return [_without_return(line) for line in whole]
            self._pieces.append(data)
            self._bytes += len(data)
            if self._bytes > LINE_MAX_BYTES:
                raise BadInput("a line is longer than 64 MiB; is this text with one record per line?")
        return []


def _without_return(line: bytes) -> bytes:
    return line[:-1] if line.endswith(b"\r") else line
