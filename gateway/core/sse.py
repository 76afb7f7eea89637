"""What watchers are told, as SSE frames and as WebSocket messages. Pure: text in, bytes out.

An `Event` is built once and shared by every reader that gets it; what differs per reader is only the `id:` line
in front. Records are stored as their writers wrote them, line breaks between JSON tokens included. A line break
would end the line of an SSE field, so every line of the JSON gets a `data:` of its own; the client joins them
with a newline, which is white space to JSON as well.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from gateway.exchange import Frame
from shared.errors import TopicsError

RETRY = b"retry: 2000\n\n"

_encoder = msgspec.json.Encoder()
# CR alone ends a line too; a string cannot hold either of them unescaped.
_LINE_BREAK = re.compile(rb"\r\n|\r|\n")


class Event:
    """One event for any number of readers. `data` is a JSON object; `ws` is what a WebSocket gets instead."""

    __slots__ = ("_frame", "_sse", "_ws", "data", "name")

    def __init__(self, name: str, data: bytes, *, ws: bytes | None = None) -> None:
        self.name = name
        self.data = data
        self._sse: bytes | None = None
        self._ws: str | None = None if ws is None else _ws_text(name, ws)
        self._frame: Frame | None = None

    def __repr__(self) -> str:
        return f"Event({self.name}, {self.data[:200]!r})"

    @property
    def sse(self) -> bytes:
        """Everything but the `id:` line, with the empty line that ends the event."""
        if self._sse is None:
            data = self.data
            if b"\n" in data or b"\r" in data:
                data = _LINE_BREAK.sub(b"\ndata: ", data)
            self._sse = b"event: %b\ndata: %b\n\n" % (self.name.encode(), data)
        return self._sse

    @property
    def ws(self) -> str:
        if self._ws is None:
            self._ws = _ws_text(self.name, self.data)
        return self._ws

    def frame_alone(self, topic: str, seq: int) -> Frame:
        """The whole frame for readers that watch nothing but this topic: the same bytes for all of them."""
        if self._frame is None:
            self._frame = Frame(id_line({topic: seq}) + self.sse)
        return self._frame


def _ws_text(name: str, data: bytes) -> str:
    return f'{{"op":"{name.replace("-", "_")}",{data[1:].decode()}'


def id_line(positions: Mapping[str, object]) -> bytes:
    """`id:` is base64url of the map topic → seq after the event, without padding."""
    return b"id: %b\n" % urlsafe_b64encode(_encoder.encode(positions)).rstrip(b"=")


def record(topic: str, records: bytes, from_seq: int, to_seq: int, head_seq: int) -> Event:
    """`records`: the JSON objects, separated by commas."""
    data = b'{"topic":"%b","records":[%b],"from_seq":%d,"to_seq":%d,"head_seq":%d}'
    return Event("record", data % (topic.encode(), records, from_seq, to_seq, head_seq))


def tombstone(topic: str, reason: str, gap_from: int, gap_to: int, earliest_seq: int, head_seq: int) -> Event:
    data = b'{"topic":"%b","reason":"%b","gap_from":%d,"gap_to":%d,"earliest_seq":%d,"head_seq":%d}'
    return Event(
        "tombstone",
        data % (topic.encode(), reason.encode(), gap_from, gap_to, earliest_seq, head_seq),
    )


def caught_up(topic: str, head_seq: int) -> Event:
    return Event("caught-up", b'{"topic":"%b","head_seq":%d}' % (topic.encode(), head_seq))


def topic_deleted(topic: str, head_seq: int, reason: str) -> Event:
    data = b'{"topic":"%b","head_seq":%d,"reason":"%b"}' % (topic.encode(), head_seq, reason.encode())
    return Event("topic-deleted", data)


def error(status: int, problem: TopicsError, topics: Sequence[str] = ()) -> Event:
    """429 and 503 advise: the stream goes on by itself. 410 ends it."""
    code, message, detail = problem.public()
    more: dict[str, object] = {"message": message}
    if topics:
        more["topics"] = list(topics)
    if detail is not None:
        more["detail"] = detail
    if problem.retry_after_ms is not None and status != 410:
        more["retry_after_ms"] = problem.retry_after_ms
    return Event(
        "error",
        _encoder.encode({"code": status, "error": code, **more}),
        ws=_encoder.encode({"code": code, "status": status, **more}),
    )


def shutting_down() -> Event:
    text = "the server is shutting down; reconnect to go on"
    return Event("error", _encoder.encode({"code": "server_shutting_down", "message": text}))


def ended(code: str, message: str) -> Event:
    """The last event of a stream that is closed by us; its session may go on."""
    return Event(
        "error",
        _encoder.encode({"code": 410, "error": code, "message": message}),
        ws=_encoder.encode({"code": code, "status": 410, "message": message}),
    )


def _retry() -> Event:
    event = Event("retry", b"{}")
    event._sse = RETRY
    return event


RETRY_FIRST: Final = _retry()
"""How soon an EventSource reconnects: the first thing on every stream, and no event to its listeners."""


def heartbeat(wall_ms: int) -> bytes:
    return b": hb %d\n\n" % wall_ms
