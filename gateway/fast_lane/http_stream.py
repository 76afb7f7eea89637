"""An open-ended answer on an HTTP/1.1 connection: the `Stream` a producer pushes frames into.

A frame goes straight into the socket. What the socket does not take is held by the connection's
output, and until that is sent no further frame is taken: one frame is all a slow reader costs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gateway.exchange import Frame
from gateway.fast_lane.response_head import LAST_CHUNK


class StreamOwner(Protocol):
    """The connection, as its stream sees it."""

    def stream_send(self, data: bytes) -> bool:
        """Send or hold `data`; True if all of it left."""

    def stream_stalled_ms(self) -> float: ...
    def stream_ended(self) -> None: ...


class HttpStream:
    __slots__ = (
        "_blocked",
        "_chunked",
        "_ended",
        "_gone_callbacks",
        "_head",
        "_last",
        "_owner",
        "_refused",
        "_writable",
        "gone",
        "started",
    )

    def __init__(self, owner: StreamOwner, head: bytes, *, chunked: bool, head_only: bool) -> None:
        self._owner = owner
        self._head = head
        self._chunked = chunked
        self._blocked = True  # until its head is sent, which waits for earlier answers
        self._ended = False
        self._last = b""
        self._refused = False
        self._writable: Callable[[], None] | None = None
        self._gone_callbacks: list[Callable[[], None]] = []
        self.started = False
        self.gone = head_only  # HEAD: there will never be anybody to push to

    def push(self, frame: Frame) -> bool:
        if self._blocked or self.gone:
            self._refused = True
            return False
        # Set first: the owner may find the client gone, or everything drained, before it returns.
        self._blocked = True
        if self._owner.stream_send(frame.chunk if self._chunked else frame.data):
            self._blocked = False
        return True

    def end(self, last: Frame | None = None) -> None:
        if self.gone:
            return
        self._ended = self.gone = True
        self._gone_callbacks.clear()
        self._last = b"" if last is None else (last.chunk if self._chunked else last.data)
        if self._chunked:
            self._last += LAST_CHUNK
        if self.started:
            self._finish()

    def stalled_ms(self) -> float:
        return self._owner.stream_stalled_ms()

    def on_writable(self, callback: Callable[[], None]) -> None:
        self._writable = callback

    def on_gone(self, callback: Callable[[], None]) -> None:
        if not self.gone:
            self._gone_callbacks.append(callback)
        elif not self._ended:
            callback()

    # --- called by the connection -------------------------------------------------------------

    def start(self) -> None:
        """Its turn in line has come."""
        self.started = True
        left = self._owner.stream_send(self._head)
        if self.gone:
            self._finish()
        elif left:
            self.drained()

    def drained(self) -> None:
        """Everything sent so far has left."""
        self._blocked = False
        if self._refused and self._writable is not None and not self.gone:
            self._refused = False
            self._writable()

    def lose(self) -> None:
        if not self.gone:
            self.gone = True
            callbacks, self._gone_callbacks = self._gone_callbacks, []
            for callback in callbacks:
                callback()

    def _finish(self) -> None:
        if self._last:
            self._owner.stream_send(self._last)
        self._owner.stream_ended()
