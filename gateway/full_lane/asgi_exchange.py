"""The exchange and the stream of one API call that arrived by ASGI."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import MappingProxyType

import trio

from gateway.exchange import Exchange, Frame, Recall, Response, Stream, StreamHead
from gateway.full_lane.asgi_types import Scope


class AsgiStream:
    """The `Stream` of one HTTP/2 answer: at most one frame waits while another is being sent."""

    def __init__(self, head: StreamHead, *, head_only: bool) -> None:
        self._frames: list[bytes] = []
        self._wake = trio.Event()
        self._refused = False
        self._ended = False
        self._writable: Callable[[], None] | None = None
        self._gone_callbacks: list[Callable[[], None]] = []
        self._sending = False  # a frame was taken, and has not left yet
        self._taken_at = 0.0
        self.head = head
        self.gone = head_only

    def push(self, frame: Frame) -> bool:
        if self.gone or self._frames:
            self._refused = True
            return False
        self._frames.append(frame.data)
        self._wake.set()
        return True

    def end(self, last: Frame | None = None) -> None:
        if not self.gone:
            if last is not None:
                self._frames.append(last.data)
            self._ended = self.gone = True
            self._gone_callbacks.clear()
            self._wake.set()

    def stalled_ms(self) -> float:
        return (time.perf_counter() - self._taken_at) * 1000 if self._sending else 0.0

    def on_writable(self, callback: Callable[[], None]) -> None:
        self._writable = callback

    def on_gone(self, callback: Callable[[], None]) -> None:
        if not self.gone:
            self._gone_callbacks.append(callback)
        elif not self._ended:
            callback()

    def lose(self) -> None:
        if not self.gone:
            self.gone = True
            callbacks, self._gone_callbacks = self._gone_callbacks, []
            for callback in callbacks:
                callback()

    async def next_frame(self) -> bytes | None:
        """The next frame to send; None at the end. Asking for it means that the one before has left."""
        self._sending = False
        if self._refused and not self._frames and self._writable is not None and not self.gone:
            self._refused = False
            self._writable()
        while not self._frames:
            if self.gone:
                return None
            self._wake = trio.Event()
            await self._wake.wait()
        self._sending = True
        self._taken_at = time.perf_counter()
        return self._frames.pop(0)


class AsgiExchange(Exchange):
    """One API call over ASGI."""

    def __init__(self, scope: Scope, started: float) -> None:
        method = str(scope["method"])
        client = scope.get("client")
        super().__init__(
            "GET" if method == "HEAD" else method,
            bytes(scope["raw_path"]).decode("latin-1"),
            bytes(scope["query_string"]).decode("latin-1"),
            MappingProxyType(_headers(scope)),
            body=b"",
            started=started,
            peer=f"{client[0]}:{client[1]}" if client else "unknown",
            extents_allowed=False,
            recall=Recall(),
        )
        self.head_only = method == "HEAD"
        self.response: Response | None = None
        self.stream: AsgiStream | None = None
        self.ready = trio.Event()
        self._callbacks: list[Callable[[], None]] = []

    @property
    def answered(self) -> bool:
        return self.gone or self.ready.is_set()

    def respond(self, response: Response) -> None:
        if self.gone:
            if response.release is not None:
                response.release()
            return
        assert not self.ready.is_set(), "an exchange is answered once"
        assert not response.extents, "extents were not allowed"
        self.response = response
        self._callbacks.clear()
        self.ready.set()

    def respond_stream(self, head: StreamHead) -> Stream:
        assert not self.ready.is_set(), "an exchange is answered once"
        self.stream = AsgiStream(head, head_only=self.head_only)
        if self.gone:
            self.stream.lose()
        self._callbacks.clear()
        self.ready.set()
        return self.stream

    def on_gone(self, callback: Callable[[], None]) -> None:
        if self.gone:
            callback()
        elif not self.ready.is_set():
            self._callbacks.append(callback)

    def on_half_closed(self, callback: Callable[[], None]) -> None:
        """Every HTTP/2 request ends its sending side; leaving is a reset."""

    def lose(self) -> None:
        if self.gone:
            return
        self.gone = True
        if self.stream is not None:
            self.stream.lose()
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()


def _headers(scope: Scope) -> dict[str, str]:
    headers: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name = bytes(raw_name).decode("latin-1").lower()
        value = bytes(raw_value).decode("latin-1").strip(" \t")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers
