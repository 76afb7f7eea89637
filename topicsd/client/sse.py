"""Server-sent events from bytes in any pieces, as the HTML standard reads them. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class SseEvent(NamedTuple):
    name: str
    data: bytes
    id: str | None
    """The last one seen up to here; it belongs to the stream, not to this event alone."""


class SseParser:
    def __init__(self) -> None:
        self._pieces: list[bytes] = []  # of an unfinished line
        self._after_return = False  # the line before ended with CR: an LF now belongs to that
        self._name = ""
        self._data: list[bytes] = []
        self.last_id: str | None = None

    def feed(self, data: bytes) -> Iterator[SseEvent]:
        for line in self._lines(data):
            if not line:
                if self._data:
                    yield SseEvent(self._name or "message", b"\n".join(self._data), self.last_id)
                self._name, self._data = "", []
                continue
            field, _, value = line.partition(b":")
            value = value[1:] if value.startswith(b" ") else value
            if field == b"data":
                self._data.append(value)
            elif field == b"event":
                self._name = value.decode(errors="replace")
            elif field == b"id" and b"\0" not in value:
                self.last_id = value.decode(errors="replace")

    def _lines(self, data: bytes) -> Iterator[bytes]:
        if self._after_return and data:
            data = data[1:] if data.startswith(b"\n") else data
            self._after_return = False
        if b"\r" in data:
            self._after_return = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *whole, rest = data.split(b"\n")
        for line in whole:
            self._pieces.append(line)
            # Emptied before the line is handed out: whoever takes it may stop there and go on later.
            pieces, self._pieces = self._pieces, []
            yield b"".join(pieces)
        if rest:
            self._pieces.append(rest)
