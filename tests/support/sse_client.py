"""An SSE client on a plain socket: what came, byte for byte and frame by frame, as a browser would take it."""

from __future__ import annotations

import base64
import json
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

Json = dict[str, Any]


@dataclass(frozen=True)
class Frame:
    event: str
    data: Json
    id: str | None = None

    @property
    def cursors(self) -> Json:
        assert self.id is not None
        return decode_id(self.id)


@dataclass(frozen=True)
class Comment:
    text: str


def decode_id(text: str) -> Json:
    found: Json = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    return found


def encode_id(cursors: Mapping[str, object]) -> str:
    return base64.urlsafe_b64encode(json.dumps(cursors).encode()).decode().rstrip("=")


@dataclass
class SseParser:
    """The algorithm of the HTML standard, on bytes that come in any pieces."""

    retry: int | None = None
    last_id: str = ""
    _rest: bytes = b""
    _data: list[str] = field(default_factory=list)
    _event: str = ""

    def feed(self, data: bytes) -> Iterator[Frame | Comment]:
        self._rest += data
        while True:
            at = min((i for i in (self._rest.find(b"\n"), self._rest.find(b"\r")) if i >= 0), default=-1)
            if at < 0 or (self._rest[at : at + 1] == b"\r" and at + 1 == len(self._rest)):
                return
            end = at + 2 if self._rest[at : at + 2] == b"\r\n" else at + 1
            line, self._rest = self._rest[:at].decode(), self._rest[end:]
            yield from self._line(line)

    def _line(self, line: str) -> Iterator[Frame | Comment]:
        if not line:
            if self._data:
                yield Frame(self._event or "message", json.loads("\n".join(self._data)), self.last_id or None)
            self._data, self._event = [], ""
            return
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not name:
            yield Comment(value)
        elif name == "data":
            self._data.append(value)
        elif name == "event":
            self._event = value
        elif name == "id":
            self.last_id = value
        elif name == "retry":
            self.retry = int(value)


class ChunkedBody:
    def __init__(self) -> None:
        self._rest = b""
        self.ended = False

    def feed(self, data: bytes) -> bytes:
        self._rest += data
        body = b""
        while not self.ended and b"\r\n" in self._rest:
            head, _, rest = self._rest.partition(b"\r\n")
            size = int(head, 16)
            if len(rest) < size + 2:
                break
            body += rest[:size]
            self._rest = rest[size + 2 :]
            self.ended = size == 0
        return body


class SseClient:
    """Opens a stream; `frames` waits for as many as are asked for."""

    def __init__(
        self,
        port: int,
        url: str,
        *,
        last_id: str | None = None,
        token: str | None = None,
        receive_buffer: int | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 15,
    ) -> None:
        self.url = url
        self.sock = socket.socket()
        if receive_buffer is not None:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.sock.settimeout(timeout_s)
        self._timeout_s = timeout_s
        self.sock.connect(("127.0.0.1", port))
        sent = {"Host": "x", "Accept": "text/event-stream", **(headers or {})}
        if last_id is not None:
            sent["Last-Event-ID"] = last_id
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        lines = [f"GET {url} HTTP/1.1", *(f"{name}: {value}" for name, value in sent.items()), "", ""]
        self.sock.sendall("\r\n".join(lines).encode())
        self.parser = SseParser()
        self._chunks = ChunkedBody()
        self.comments: list[str] = []
        self.raw = b""
        self._waiting: list[Frame] = []
        self.last_id = last_id or ""
        self._read_head()

    def _read_head(self) -> None:
        data = b""
        while b"\r\n\r\n" not in data:
            more = self.sock.recv(65536)
            assert more, f"closed after {data!r}"
            data += more
        head, _, body = data.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        self.status = int(first.split()[1])
        self.headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        self.body = b""
        if "content-length" in self.headers:
            while len(body) < int(self.headers["content-length"]):
                body += self.sock.recv(65536)
            self.body = body
        else:
            self._take(body)

    def _take(self, data: bytes) -> None:
        body = self._chunks.feed(data)
        self.raw += body
        for item in self.parser.feed(body):
            if isinstance(item, Comment):
                self.comments.append(item.text)
            else:
                self._waiting.append(item)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def error(self) -> Json:
        found: Json = json.loads(self.body)["error"]
        return found

    def receive(self, size: int = 65536) -> bool:
        """Take what has come; False at the end of the stream."""
        if self._chunks.ended:
            return False
        data = self.sock.recv(size)
        self._take(data)
        return bool(data) and not self._chunks.ended

    def frames(self, count: int = 1) -> list[Frame]:
        while len(self._waiting) < count:
            going_on = self.receive()
            assert going_on or len(self._waiting) >= count, f"the stream ended after {self._waiting}"
        return self.taken(count)

    def taken(self, count: int | None = None) -> list[Frame]:
        """Those that have come, without waiting. `last_id` is that of the last one handed out."""
        count = len(self._waiting) if count is None else count
        found, self._waiting = self._waiting[:count], self._waiting[count:]
        if found:
            self.last_id = found[-1].id or self.last_id
        return found

    def next(self, event: str | None = None) -> Frame:
        (frame,) = self.frames(1)
        assert event is None or frame.event == event, frame
        return frame

    def until(self, enough: Callable[[Frame], bool]) -> list[Frame]:
        """All frames up to the first one that is enough."""
        found: list[Frame] = []
        while not found or not enough(found[-1]):
            found += self.frames(1)
        return found

    def caught_up(self, topic: str) -> list[Frame]:
        return self.until(lambda frame: frame.event == "caught-up" and frame.data["topic"] == topic)

    def rest(self) -> list[Frame]:
        """Everything up to the end of the stream."""
        while self.receive():
            pass
        assert self._chunks.ended, "the connection broke"
        return self.taken()

    def silent_for(self, seconds: float) -> bool:
        """Does nothing but comments come for a while?"""
        give_up_at = time.monotonic() + seconds
        while not self._waiting:
            left = give_up_at - time.monotonic()
            if left <= 0:
                self.sock.settimeout(self._timeout_s)
                return True
            self.sock.settimeout(left)
            try:
                self.receive()
            except TimeoutError:
                continue
        self.sock.settimeout(self._timeout_s)
        return False

    def comment(self) -> str:
        while not self.comments:
            assert self.receive()
        return self.comments.pop(0)

    def close(self) -> None:
        self.sock.close()

    def reset(self) -> None:
        """Vanish, with whatever was still on its way."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()


def seqs(frames: list[Frame], topic: str | None = None) -> list[int]:
    """Of all records in these frames."""
    return [
        record["$seq"]
        for frame in frames
        if frame.event == "record" and topic in (None, frame.data["topic"])
        for record in frame.data["records"]
    ]


def datas(frames: list[Frame], topic: str | None = None) -> list[Any]:
    return [
        record["data"]
        for frame in frames
        if frame.event == "record" and topic in (None, frame.data["topic"])
        for record in frame.data["records"]
    ]
