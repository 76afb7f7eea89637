"""An exchange and a stream without a connection: they keep what they are given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gateway.exchange import Frame, Recall, Response, Stream, StreamHead


@dataclass(slots=True)
class RecordedStream:
    """A stream without a connection: always writable until `blocked` is set."""

    head: StreamHead
    frames: list[bytes] = field(default_factory=list)
    gone: bool = False
    blocked: bool = False
    ended: bool = False
    stalled_for_ms: float = 0.0
    writable_callback: Callable[[], None] | None = None
    gone_callbacks: list[Callable[[], None]] = field(default_factory=list)

    def push(self, frame: Frame) -> bool:
        if self.gone or self.blocked or self.ended:
            return False
        self.frames.append(frame.data)
        return True

    def end(self, last: Frame | None = None) -> None:
        if last is not None and not self.gone:
            self.frames.append(last.data)
        self.ended = True
        self.gone = True

    def stalled_ms(self) -> float:
        return self.stalled_for_ms

    def on_writable(self, callback: Callable[[], None]) -> None:
        self.writable_callback = callback

    def on_gone(self, callback: Callable[[], None]) -> None:
        self.gone_callbacks.append(callback)


@dataclass(slots=True)
class RecordedExchange:
    """An exchange without a connection, for tests and for in-process calls."""

    method: str
    path: str
    query: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    extents_allowed: bool = False
    started: float = 0.0
    peer: str = "test"
    gone: bool = False
    half_closed: bool = False
    recall: Recall = field(default_factory=Recall)
    response: Response | None = None
    stream: RecordedStream | None = None

    def respond(self, response: Response) -> None:
        assert self.response is None and self.stream is None, "an exchange is answered once"
        self.response = response

    def respond_stream(self, head: StreamHead) -> Stream:
        assert self.response is None and self.stream is None, "an exchange is answered once"
        self.stream = RecordedStream(head)
        return self.stream

    def on_gone(self, callback: Callable[[], None]) -> None:
        return None

    def on_half_closed(self, callback: Callable[[], None]) -> None:
        return None
