"""One HTTP exchange, seen without its transport: what a lane hands to the API and gets back.

Both lanes build an `Exchange` per request and pass it to `Api.handle`. The API calls `respond` or
`respond_stream` exactly once, at once or in a later turn; the lane turns the answer into bytes of
its own protocol. Nothing behind this line knows whether it serves HTTP/1.1, HTTP/2 or a test.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol


class Extent:
    """Bytes of an open file; the descriptor stays valid until the response is sent or dropped."""

    __slots__ = ("fd", "length", "offset")

    def __init__(self, fd: int, offset: int, length: int) -> None:
        self.fd = fd
        self.offset = offset
        self.length = length

    def __repr__(self) -> str:
        return f"Extent({self.fd}, {self.offset}, {self.length})"


JSON: Final = "application/json"


class Response:
    """A complete answer. The body is `body`, then all extents, then `tail`.

    `headers` leaves out Content-Length, Date, Connection and Transfer-Encoding: those belong to the lane.
    `release` is called once when the extents are sent or dropped.
    """

    __slots__ = ("body", "content_type", "extents", "headers", "release", "status", "tail")

    def __init__(
        self,
        status: int,
        body: bytes = b"",
        content_type: str = JSON,
        headers: Sequence[tuple[str, str]] = (),
        extents: Sequence[Extent] = (),
        tail: bytes = b"",
        release: Callable[[], None] | None = None,
    ) -> None:
        self.status = status
        self.body = body
        self.content_type = content_type
        self.headers = headers
        self.extents = extents
        self.tail = tail
        self.release = release

    def __repr__(self) -> str:
        return f"<Response {self.status} {self.content_type} {self.content_length()} bytes>"

    @property
    def only_body(self) -> bool:
        """Is there nothing to it but a status, a type and a body?"""
        return not (self.headers or self.extents or self.tail) and self.release is None

    @property
    def only_extent(self) -> bool:
        """Is it a successful document around one part of a file?"""
        return len(self.extents) == 1 and not self.headers and self.status == 200

    def content_length(self) -> int:
        return len(self.body) + sum(e.length for e in self.extents) + len(self.tail)


class StreamHead:
    """The start of an open-ended answer; `headers` as in `Response`."""

    __slots__ = ("content_type", "headers", "status")

    def __init__(
        self,
        status: int = 200,
        content_type: str = "text/event-stream; charset=utf-8",
        headers: Sequence[tuple[str, str]] = (),
    ) -> None:
        self.status = status
        self.content_type = content_type
        self.headers = headers


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


class Recall:
    """What the API has found out about a method, a path and headers, for the next request that has the same.

    A lane that remembers what it has parsed keeps one with it; so who repeats a request is looked at once.
    """

    __slots__ = ("headers_seen", "idempotency_key", "name", "plain_json", "refused", "route", "wants_gzip")

    def __init__(self) -> None:
        self.route: object | None = None  # of the router; None: nobody has asked it yet
        self.name = ""  # the one in the path, decoded
        self.refused = False  # is it none that the route accepts?
        self.headers_seen = False  # is known what follows?
        self.plain_json = False  # the body is declared to be JSON, and not compressed
        self.wants_gzip = False
        self.idempotency_key: str | None = None

    def for_topic(self, name: str) -> Recall:
        """The same for another topic: of a request that differs in nothing but this valid name in its path."""
        other = Recall()
        if self.route is not None and not self.refused:
            other.route = self.route
            other.name = name
            other.headers_seen = self.headers_seen
            other.plain_json = self.plain_json
            other.wants_gzip = self.wants_gzip
            other.idempotency_key = self.idempotency_key
        return other


class Exchange(ABC):
    """One request, complete (headers and body read, transfer coding removed, limits checked).

    A class and no Protocol: the API looks at a dozen of these fields per request, and compiled code finds them at
    fixed places in a class only.
    """

    __slots__ = (
        "body",
        "extents_allowed",
        "gone",
        "half_closed",
        "headers",
        "method",
        "path",
        "peer",
        "query",
        "recall",
        "started",
    )

    def __init__(
        self,
        method: str,
        path: str,
        query: str,
        headers: Mapping[str, str],
        *,
        body: bytes,
        started: float,
        peer: str,
        extents_allowed: bool,
        recall: Recall,
    ) -> None:
        self.method = method  # upper case; a HEAD request arrives as GET and the lane drops the body
        self.path = path  # raw, still percent-encoded, without the query
        self.query = query  # raw, without "?"; empty if there is none
        self.headers = headers  # lower-case names; repeated ones joined by ", "; read-only, shared
        self.body = body  # as sent: Content-Encoding is the API's business
        self.extents_allowed = extents_allowed  # may the response carry extents
        self.started = started  # time.perf_counter() when its first byte was read
        self.peer = peer  # for logs
        self.recall = recall
        self.gone = False  # set by the lane when the client has vanished: the answer will be dropped
        self.half_closed = (
            False  # the client sends no more. It may still read, or be gone: hand it no lease late
        )

    @property
    @abstractmethod
    def answered(self) -> bool:
        """Is there nothing more to answer?"""

    @abstractmethod
    def respond(self, response: Response) -> None: ...

    @abstractmethod
    def respond_stream(self, head: StreamHead) -> Stream: ...

    @abstractmethod
    def on_gone(self, callback: Callable[[], None]) -> None:
        """Call `callback` once if the client vanishes before the response was given."""

    @abstractmethod
    def on_half_closed(self, callback: Callable[[], None]) -> None:
        """Call `callback` once if the client stops sending before the response was given; at once if it has."""
