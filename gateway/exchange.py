"""One HTTP exchange, seen without its transport: what a lane hands to the API and gets back.

Both lanes build an `Exchange` per request and pass it to `Api.handle`. The API calls `respond` or
`respond_stream` exactly once, at once or in a later turn; the lane turns the answer into bytes of
its own protocol. Nothing behind this line knows whether it serves HTTP/1.1, HTTP/2 or a test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec


class Extent(msgspec.Struct, frozen=True):
    """Bytes of an open file; the descriptor stays valid until the response is sent or dropped."""

    fd: int
    offset: int
    length: int


class FileTooShort(OSError):
    """A file ended inside an extent. The promised length cannot be kept: the connection must end."""


class Response(msgspec.Struct):
    """A complete answer. The body is `body`, then all extents, then `tail`.

    `headers` leaves out Content-Length, Date, Connection and Transfer-Encoding: those belong to the lane.
    """

    status: int
    body: bytes = b""
    content_type: str = "application/json"
    headers: Sequence[tuple[str, str]] = ()
    extents: Sequence[Extent] = ()
    tail: bytes = b""
    release: Callable[[], None] | None = None  # called once when the extents are sent or dropped

    def content_length(self) -> int:
        return len(self.body) + sum(e.length for e in self.extents) + len(self.tail)


class StreamHead(msgspec.Struct, frozen=True):
    """The start of an open-ended answer; `headers` as in `Response`."""

    status: int = 200
    content_type: str = "text/event-stream; charset=utf-8"
    headers: Sequence[tuple[str, str]] = ()


class Frame:
    """A piece of a stream, built once and pushed to any number of streams."""

    __slots__ = ("_chunk", "data")

    def __init__(self, data: bytes) -> None:
        assert data, "an empty chunk would end a chunked body"
        self.data = data
        self._chunk: bytes | None = None

    @property
    def chunk(self) -> bytes:
        """The data as one chunk of a chunked body, encoded on first use and then shared."""
        if self._chunk is None:
            self._chunk = b"%x\r\n%b\r\n" % (len(self.data), self.data)
        return self._chunk


class Stream(Protocol):
    """An open-ended answer. It holds at most one unsent frame, so its memory is bounded by the producer's."""

    gone: bool  # the client has vanished or the stream has ended: pushing is pointless

    def push(self, frame: Frame) -> bool:
        """Send without blocking. False: not taken, because earlier bytes are still unsent (or it is gone)."""

    def end(self, last: Frame | None = None) -> None:
        """Finish the body, after `last` if given, which is always taken."""

    def stalled_ms(self) -> float:
        """How long the client has taken nothing of what waits for it; 0 if nothing waits."""

    def on_writable(self, callback: Callable[[], None]) -> None:
        """Call `callback` each time a `push` that was refused would be taken again. It replaces the last."""

    def on_gone(self, callback: Callable[[], None]) -> None:
        """Call `callback` once when the client vanishes before `end`; at once if it has already."""


class Exchange(Protocol):
    """One request, complete (headers and body read, transfer coding removed, limits checked)."""

    method: str  # upper case; a HEAD request arrives as GET and the lane drops the body
    path: str  # raw, still percent-encoded, without the query
    query: str  # raw, without "?"; empty if there is none
    headers: Mapping[str, str]  # lower-case names; repeated ones joined by ", "; read-only, shared
    body: bytes  # as sent: Content-Encoding is the API's business
    extents_allowed: bool  # may the response carry extents
    started: float  # time.perf_counter() when its first byte was read
    peer: str  # for logs
    gone: bool  # set by the lane when the client has vanished: the answer will be dropped
    half_closed: bool  # the client sends no more. It may still read, or be gone: hand it no lease late

    def respond(self, response: Response) -> None: ...
    def respond_stream(self, head: StreamHead) -> Stream: ...
    def on_gone(self, callback: Callable[[], None]) -> None:
        """Call `callback` once if the client vanishes before the response was given."""

    def on_half_closed(self, callback: Callable[[], None]) -> None:
        """Call `callback` once if the client stops sending before the response was given; at once if it has."""
