"""Status lines and headers of answers, prebuilt as far as they repeat.

`HeadCache.prefix` is the hot path: heads of this second (for the Date header) are kept. Those of JSON are found by
status and length, as answers to one kind of request have nearly always the same few lengths.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

from gateway.exchange import JSON

_KEPT_UP_TO: Final = 2048  # bytes of a body whose head is kept

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK: Final = b"0\r\n\r\n"
BODYLESS: Final = frozenset({100, 101, 204, 304})
_REASONS: Final = {status.value: status.phrase for status in HTTPStatus}
_DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def http_date(second: int) -> str:
    """As in RFC 9110, whatever the locale. email.utils has it too, and the parser of e-mail with it."""
    at = time.gmtime(second)
    clock = f"{at.tm_hour:02d}:{at.tm_min:02d}:{at.tm_sec:02d}"
    return f"{_DAYS[at.tm_wday]}, {at.tm_mday:02d} {_MONTHS[at.tm_mon - 1]} {at.tm_year:04d} {clock} GMT"


class HeadCache:
    __slots__ = ("_date", "_prefixes", "_second", "_whole")

    def __init__(self) -> None:
        self._second = -1
        self._date = ""
        self._prefixes: dict[tuple[int, str], bytes] = {}
        self._whole: dict[int, bytes] = {}  # of JSON with status 200, by the length of the body

    def set_second(self, second: int) -> None:
        if second != self._second:
            self._second = second
            self._date = http_date(second)
            self._prefixes.clear()
            self._whole.clear()

    def prefix(self, status: int, content_type: str, length: int) -> bytes:
        """To be followed by a body of this length."""
        if status != 200 or content_type is not JSON or length > _KEPT_UP_TO:
            return self._with_length(status, content_type, length)
        found = self._whole.get(length)
        if found is None:
            found = self._whole[length] = self._with_length(status, content_type, length)
        return found

    def _with_length(self, status: int, content_type: str, length: int) -> bytes:
        key = (status, content_type)
        start = self._prefixes.get(key)
        if start is None:
            start = (self._start(status, content_type) + "Content-Length: ").encode("latin-1")
            self._prefixes[key] = start
        return b"%b%d\r\n\r\n" % (start, length)

    def full(
        self,
        status: int,
        content_type: str,
        headers: Sequence[tuple[str, str]],
        *,
        length: int | None,
        connection: str | None,
    ) -> bytes:
        """A whole head. `length` None: the body is chunked, or ends with the connection."""
        lines = [self._start(status, content_type)]
        for name, value in headers:
            # What we write here comes from our own code, but a value may quote a request.
            assert not any(c in "\r\n\0" for c in name + value), "a header must be one line"
            lines.append(f"{name}: {value}\r\n")
        if length is None:
            if connection != "close":
                lines.append("Transfer-Encoding: chunked\r\n")
        elif status not in BODYLESS:
            lines.append(f"Content-Length: {length}\r\n")
        if connection is not None:
            lines.append(f"Connection: {connection}\r\n")
        lines.append("\r\n")
        return "".join(lines).encode("latin-1")

    def _start(self, status: int, content_type: str) -> str:
        reason = _REASONS.get(status, "")
        return f"HTTP/1.1 {status} {reason}\r\nContent-Type: {content_type}\r\nDate: {self._date}\r\n"
