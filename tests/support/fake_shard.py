"""A worker that speaks the real protocol over a real socket, and answers as a test tells it.

`answer` decides per request: an `Answer` is sent at once, None leaves the request open. Everything a worker
may do to a link, and everything it must not, has a method: raw bytes, small pieces, descriptors, silence,
death.
"""

from __future__ import annotations

import array
import os
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import trio

from gateway.fast_lane.turns import TurnLoop
from gateway.io.link_options import LinkOptions
from gateway.io.shard_pool import ShardPool
from shared.io.child_channel import socket_path
from shared.session import ServerSession
from shared.wire import Answer, LinkError, Op, Request, ServerMessage

# Quick enough for tests, and far from what a loaded machine takes for a turn.
QUICK_LINK = LinkOptions(
    hello_timeout_s=0.2,
    ping_after_s=0.05,
    hang_after_s=0.2,
    tick_s=0.02,
    backoff_min_s=0.005,
    backoff_max_s=0.02,
)

Script = Callable[[Request], Answer | None]


def ok(request: Request) -> Answer | None:
    """Answer everything with its own topic and body."""
    if request.op == Op.PING:
        return Answer(request.id, 200, b"")
    return Answer(request.id, 200, b'{"topic":"%b"' % request.topic.encode())


def silent(request: Request) -> Answer | None:
    """Answer nothing but PINGs, as a worker with long polls only."""
    return Answer(request.id, 200, b"") if request.op == Op.PING else None


class FakeShard:
    def __init__(
        self, socket_dir: str, *, shard: int = 0, shards: int = 1, credits: int = 100, answer: Script = ok
    ) -> None:
        self.answer = answer
        self.says_hello = True
        self._reading = trio.Event()
        self._reading.set()
        self._sending = trio.Lock()
        self.chunk_bytes = 0  # > 0: send everything in pieces of this size
        self.requests: list[Request] = []
        self.hellos = 0
        self.violations: list[str] = []  # what the gateway did against the protocol
        self._path = socket_path(socket_dir, shard)
        self._shard, self._shards, self._credits = shard, shards, credits
        self._links: list[tuple[trio.SocketStream, ServerSession]] = []

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        listener = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with listener:
            await listener.bind(self._path)
            listener.listen(8)
            task_status.started()
            try:
                async with trio.open_nursery() as nursery:
                    while True:
                        sock, _ = await listener.accept()
                        nursery.start_soon(self._serve, trio.SocketStream(sock))
            finally:
                os.unlink(self._path)

    async def _serve(self, stream: trio.SocketStream) -> None:
        session = ServerSession(shard=self._shard, shards=self._shards, credits=self._credits)
        link = (stream, session)
        self._links.append(link)
        try:
            async for data in stream:
                requests = session.receive(bytes(data))
                if session.client is not None and session.state.value == "hello":
                    self.hellos += 1
                    if self.says_hello:
                        await self._send(stream, session.accept(topics=0, bytes=0))
                self.requests += requests
                answers = [answer for request in requests if (answer := self.answer(request)) is not None]
                if answers:
                    await self._send(stream, session.encode(answers))
                await self._reading.wait()
        except LinkError as err:
            self.violations.append(err.message)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return
        finally:
            if link in self._links:
                self._links.remove(link)
            await trio.aclose_forcefully(stream)

    async def _send(self, stream: trio.SocketStream, data: bytes) -> None:
        size = self.chunk_bytes or len(data)
        # A test sends while the fake answers: frames must not mix.
        async with self._sending:
            for start in range(0, len(data), size):
                await stream.send_all(data[start : start + size])
                if self.chunk_bytes:
                    await trio.lowlevel.checkpoint()

    async def send(self, *messages: ServerMessage) -> None:
        stream, session = self._links[-1]
        await self._send(stream, session.encode(messages))

    async def send_raw(self, data: bytes) -> None:
        await self._send(self._links[-1][0], data)

    async def send_with_fds(self, fds: Sequence[int], *messages: ServerMessage) -> None:
        """The descriptors travel with the first byte of the frame."""
        stream, session = self._links[-1]
        control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds).tobytes())]
        frame = session.encode(messages)
        async with self._sending:
            sent = await stream.socket.sendmsg([frame], control)
        assert sent == len(frame)

    def stop_reading(self) -> None:
        """From after the next bytes on."""
        self._reading = trio.Event()

    def resume_reading(self) -> None:
        self._reading.set()

    def say_and_go(self, *messages: ServerMessage) -> None:
        """Send these and close the newest link, before anybody else can run."""
        stream, session = self._links[-1]
        sock = stream.socket
        if messages:
            frame = session.encode(messages)
            assert socket.socket.send(sock._sock, frame) == len(frame)  # type: ignore[attr-defined]
        sock.close()

    async def die(self) -> None:
        """Drop every link, as the kernel does for a killed worker."""
        for stream, _ in list(self._links):
            await trio.aclose_forcefully(stream)


@asynccontextmanager
async def running_pool(
    socket_dir: str, *, shards: int = 1, options: LinkOptions = QUICK_LINK
) -> AsyncIterator[ShardPool]:
    """A pool whose links are served by a turn loop, as in the gateway."""
    pool = ShardPool(shards=shards, socket_dir=socket_dir, version="test", options=options)
    failed: list[int] = []

    def handler_failed(fd: int) -> bool:
        failed.append(fd)
        return True

    def end_of_turn() -> int:
        pool.flush()
        return 0

    turns = TurnLoop(end_of_turn, handler_failed)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(turns.run)
            nursery.start_soon(pool.run, turns)
            yield pool
            nursery.cancel_scope.cancel()
    finally:
        turns.close()
    assert not failed


async def eventually(condition: Callable[[], object]) -> None:
    """Wait for other tasks, not for time: it ends as soon as the condition holds."""
    with trio.fail_after(5):
        while not condition():  # noqa: ASYNC110  any condition, not one that somebody signals
            await trio.sleep(0.002)
