"""One request of an HTTP/1.1 connection and the place its answer takes in line.

A slot is the `Exchange` the API sees. Slots stand in the order in which their requests came, and an
answer given early waits in its slot until the ones before it are sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from gateway.exchange import Exchange, Recall, Response, Stream, StreamHead

if TYPE_CHECKING:
    from gateway.fast_lane.http_stream import HttpStream


class SlotOwner(Protocol):
    """The connection, as its slots see it."""

    peer: str

    def answered(self, slot: AnswerSlot) -> None:
        """The slot has its response."""

    def open_stream(self, slot: AnswerSlot, head: StreamHead) -> HttpStream: ...


class AnswerSlot(Exchange):
    __slots__ = (
        "_callbacks",
        "_half_closed_callback",
        "_owner",
        "close",
        "head_only",
        "http10",
        "plain",
        "response",
        "stream",
    )

    def __init__(
        self,
        owner: SlotOwner,
        method: str,
        path: str,
        query: str,
        headers: Mapping[str, str],
        body: bytes,
        started: float,
        recall: Recall,
    ) -> None:
        super().__init__(
            method,
            path,
            query,
            headers,
            body=body,
            started=started,
            peer=owner.peer,
            extents_allowed=True,
            recall=recall,
        )
        self._owner = owner
        self.response: Response | None = None
        self.stream: HttpStream | None = None
        self.plain = True  # none of the next three holds
        self.close = False  # the connection ends after this answer
        self.head_only = False  # the request was HEAD
        self.http10 = False
        self._callbacks: list[Callable[[], None]] | None = None
        self._half_closed_callback: Callable[[], None] | None = None

    @property
    def answered(self) -> bool:
        return self.gone or self.response is not None or self.stream is not None

    def respond(self, response: Response) -> None:
        if self.gone:
            if response.release is not None:
                response.release()
            return
        assert self.response is None and self.stream is None, "an exchange is answered once"
        self.response = response
        self._callbacks = None
        self._owner.answered(self)

    def respond_stream(self, head: StreamHead) -> Stream:
        assert self.response is None and self.stream is None, "an exchange is answered once"
        self.stream = self._owner.open_stream(self, head)
        self._callbacks = None
        return self.stream

    def on_gone(self, callback: Callable[[], None]) -> None:
        if self.gone:
            callback()
        elif self.response is None and self.stream is None:
            if self._callbacks is None:
                self._callbacks = []
            self._callbacks.append(callback)

    def on_half_closed(self, callback: Callable[[], None]) -> None:
        if self.half_closed:
            callback()
        else:
            self._half_closed_callback = callback

    def half_close(self) -> None:
        """The client sends no more."""
        self.half_closed = True
        callback, self._half_closed_callback = self._half_closed_callback, None
        if callback is not None and not self.answered:
            callback()

    def lose(self) -> None:
        """The client has vanished: drop the answer, or tell those who prepare it."""
        if self.gone:
            return
        self.gone = True
        response, self.response = self.response, None
        if response is not None and response.release is not None:
            response.release()
        if self.stream is not None:
            self.stream.lose()
        callbacks, self._callbacks = self._callbacks, None
        for callback in callbacks or ():
            callback()
