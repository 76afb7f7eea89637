"""An edge on a loopback port with a trivial API behind it, and a client that speaks raw bytes."""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio

from gateway.api import ApiPort
from gateway.edge import Edge, EdgeOptions, open_listeners
from gateway.exchange import Exchange, Response
from gateway.full_lane.app import Register

QUICK = EdgeOptions(
    max_body_bytes=1 << 20,
    request_timeout_ms=10_000,
    keepalive_timeout_ms=10_000,
    write_timeout_ms=10_000,
    linger_ms=300,
    tick_ms=20,
)


@dataclass
class EchoApi(ApiPort):
    """Answers at once with what it was asked, or lets a test decide through `on_request`."""

    on_request: Callable[[Exchange], None] | None = None
    seen: list[Exchange] = field(default_factory=list)
    flushes: int = 0

    def handle(self, exchange: Exchange) -> None:
        self.seen.append(exchange)
        if self.on_request is not None:
            self.on_request(exchange)
        else:
            exchange.respond(echo(exchange))

    def flush(self) -> None:
        self.flushes += 1


def echo(exchange: Exchange) -> Response:
    text = f"{exchange.method} {exchange.path} {exchange.query} "
    return Response(200, text.encode() + exchange.body, content_type="text/plain")


@asynccontextmanager
async def running_edge(
    api: EchoApi,
    options: EdgeOptions = QUICK,
    *,
    host: str = "127.0.0.1",
    registrations: Sequence[Register] = (),
) -> AsyncIterator[Edge]:
    edge = Edge(api, options, registrations=registrations)
    listeners = await open_listeners(host, 0, backlog=options.backlog)
    async with trio.open_nursery() as nursery:
        await nursery.start(edge.serve, listeners)
        yield edge
        nursery.cancel_scope.cancel()


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes


class RawClient:
    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.buffer = b""

    async def send(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def more(self) -> bool:
        with trio.fail_after(5):
            data = await self.stream.receive_some(1 << 16)
        self.buffer += data
        return bool(data)

    async def until(self, mark: bytes) -> bytes:
        while mark not in self.buffer:
            assert await self.more(), f"closed after {self.buffer!r}"
        found, _, self.buffer = self.buffer.partition(mark)
        return found

    async def take(self, count: int) -> bytes:
        while len(self.buffer) < count:
            assert await self.more(), f"closed after {self.buffer!r}"
        found, self.buffer = self.buffer[:count], self.buffer[count:]
        return found

    async def answer(self, *, head_only: bool = False) -> Answer:
        lines = (await self.until(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
        length = 0 if head_only else int(headers.get("content-length", 0))
        return Answer(int(lines[0].split()[1]), headers, await self.take(length))

    async def chunk(self) -> bytes:
        size = int(await self.until(b"\r\n"), 16)
        data = await self.take(size)
        assert await self.take(2) == b"\r\n"
        return data

    async def closed(self) -> bool:
        """True once the server has closed; False if it sends something instead."""
        try:
            return not self.buffer and not await self.more()
        except trio.BrokenResourceError:
            return True

    def reset(self) -> None:
        """Vanish without a goodbye."""
        self.stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.stream.socket.close()


async def connect(edge: Edge, *, receive_buffer: int | None = None) -> RawClient:
    host, port = edge.addresses[0]
    sock = trio.socket.socket(trio.socket.AF_INET6 if ":" in host else trio.socket.AF_INET)
    if receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    await sock.connect((host, port))
    return RawClient(trio.SocketStream(sock))


async def eventually(condition: Callable[[], bool]) -> None:
    """Let the server's tasks run until `condition` holds."""
    with trio.fail_after(5):
        while not condition():  # noqa: ASYNC110 (sockets and kernel state have no event to wait for)
            await trio.sleep(0.005)


def get(target: str, *headers: str) -> bytes:
    return "\r\n".join((f"GET {target} HTTP/1.1", "Host: x", *headers, "", "")).encode("latin-1")


def post(target: str, body: bytes, *headers: str) -> bytes:
    lines = (f"POST {target} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *headers, "", "")
    return "\r\n".join(lines).encode("latin-1") + body
