"""Clients that offer a server more than it can take, and remember what they were told.

All of them are tasks of one trio loop with a socket each. Every record names its writer and counts up; a number that
was refused is never sent again, so that a record that should not be there shows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import trio

from tests.support.sse_client import ChunkedBody, Comment, Frame, SseParser

Json = dict[str, Any]


@dataclass(eq=False)
class Connection:
    """HTTP/1.1, one request at a time."""

    port: int
    _stream: trio.SocketStream | None = None
    _rest: bytes = b""

    async def ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, dict[str, str], bytes]:
        if self._stream is None:
            self._stream = await trio.open_tcp_stream("127.0.0.1", self.port)
        head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nAccept: application/json\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        await self._stream.send_all(head.encode() + body)
        status, headers = await self._head()
        while len(self._rest) < (size := int(headers["content-length"])):
            self._rest += await self._more()
        answer, self._rest = self._rest[:size], self._rest[size:]
        return status, headers, answer

    async def open_stream(self, path: str) -> None:
        self._stream = await trio.open_tcp_stream("127.0.0.1", self.port)
        await self._stream.send_all(
            f"GET {path} HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\n\r\n".encode()
        )
        status, _ = await self._head()
        assert status == 200

    async def chunk(self) -> bytes:
        data, self._rest = self._rest or await self._more(), b""
        return data

    async def _head(self) -> tuple[int, dict[str, str]]:
        while b"\r\n\r\n" not in self._rest:
            self._rest += await self._more()
        head, _, self._rest = self._rest.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        pairs = (line.partition(": ") for line in lines)
        return int(first.split()[1]), {name.lower(): value for name, _, value in pairs}

    async def _more(self) -> bytes:
        assert self._stream is not None
        data = await self._stream.receive_some(1 << 18)
        assert data, "the server hung up"
        return bytes(data)


@dataclass(eq=False)
class Writer:
    """Sends record after record until told to stop; comes back at once when it is refused."""

    topic: str
    name: str
    pad: int = 0  # bytes
    patient: bool = False
    pause_s: float = 0.0
    acked: dict[int, int] = field(default_factory=dict)  # n: seq
    refused: set[int] = field(default_factory=set)
    waited_ms: list[float] = field(default_factory=list)

    @property
    def sent(self) -> int:
        return len(self.acked) + len(self.refused)

    async def run(self, port: int, stop: trio.Event) -> None:
        connection = Connection(port)
        more: Json = {"disable_backpressure": True} if self.patient else {}
        n = 0
        while not stop.is_set():
            n += 1
            record = {"data": {"w": self.name, "n": n, "pad": "x" * self.pad}}
            body = json.dumps({"records": [record], **more}).encode()
            status, headers, answer = await connection.ask("POST", f"/v0/topics/{self.topic}", body)
            self._judge(n, status, headers, json.loads(answer))
            await trio.sleep(self.pause_s)

    def _judge(self, n: int, status: int, headers: dict[str, str], answer: Json) -> None:
        if status == 200:
            assert answer["count"] == 1 and answer["topic"] == self.topic, "someone else's answer"
            self.acked[n] = answer["first_seq"]
            if "throttle_wait_ms" in answer["performance"]:
                self.waited_ms.append(answer["performance"]["throttle_wait_ms"])
            return
        assert (status, answer["error"]["code"]) == (429, "throttled"), answer
        advice = answer["error"]["detail"]["retry_after_ms"]
        assert advice > 0 and int(headers["retry-after"]) == max(1, -(-advice // 1000))
        self.refused.add(n)


@dataclass(eq=False)
class Watcher:
    """An SSE stream over several topics; checks that it is told every seq once, in order."""

    topics: Iterable[str]
    seen: dict[str, list[Json]] = field(default_factory=dict)

    async def run(self, port: int) -> None:
        wanted = {"topics": {name: {"from_seq": 0} for name in self.topics}}
        status, _, answer = await Connection(port).ask("POST", "/v0/watch", json.dumps(wanted).encode())
        assert status < 300, answer
        stream = Connection(port)
        await stream.open_stream(json.loads(answer)["stream_url"])
        chunks, parser = ChunkedBody(), SseParser()
        while True:
            for item in parser.feed(chunks.feed(await stream.chunk())):
                if not isinstance(item, Comment):
                    self._take(item)

    def _take(self, frame: Frame) -> None:
        if frame.event != "record":
            assert frame.event == "caught-up", frame
            return
        seen = self.seen.setdefault(frame.data["topic"], [])
        for record in frame.data["records"]:
            assert record["$seq"] == len(seen) + 1, "a gap, or a repetition"
            seen.append(record)


@dataclass(eq=False)
class Reader:
    """Reads somewhere in a topic, again and again: what stands at a seq never changes."""

    topic: str
    known: dict[int, tuple[str, int]] = field(default_factory=dict)
    reads: int = 0

    async def run(self, port: int, stop: trio.Event) -> None:
        connection = Connection(port)
        from_seq = 0
        while not stop.is_set():
            body = json.dumps({"from_seq": from_seq, "limit": 5}).encode()
            status, _, answer = await connection.ask("POST", f"/v0/topics/{self.topic}/diff", body)
            assert status == 200, answer
            page = json.loads(answer)
            for record in page["records"]:
                where = (record["data"]["w"], record["data"]["n"])
                assert self.known.setdefault(record["$seq"], where) == where
            self.reads += 1
            from_seq = 0 if page["caught_up"] else page["next_from_seq"]
            await trio.sleep(0.02)
