"""A worker's loop over a real Unix socket, with a shard on the fake disk, and a peer that talks to it.

async with running(ShardDriver()) as worker:
    client = await worker.connect()
    answer = await client.call(Op.READ, "t", b"{}")
"""

from __future__ import annotations

import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from shard_worker.serve.turns import TurnLoop
from shared.session import ClientSession, FrameSplitter, LinkState
from shared.wire import Answer, ServerMessage
from tests.support.shard_driver import ShardDriver


class Client:
    """A peer of a running worker. Notes how long each frame was: a turn's answers leave as one."""

    def __init__(self, stream: trio.SocketStream, role: str) -> None:
        self.stream = stream
        self.session: ClientSession[None] = ClientSession(role=role, version="test", max_queued=10_000)
        self.frames: list[int] = []
        self._splitter = FrameSplitter()
        self._early: list[ServerMessage] = []

    async def shake_hands(self) -> None:
        await self.stream.send_all(self.session.hello())
        while self.session.state is LinkState.HELLO:
            await self._take()

    async def ask(self, op: int, topic: str = "", body: bytes = b"", count: int = 1) -> list[int]:
        ids = [self.session.submit(op, topic, body, None, None) for _ in range(count)]
        await self.stream.send_all(self.session.take_outgoing())
        return ids

    async def call(self, op: int, topic: str = "", body: bytes = b"") -> Answer:
        (id_,) = await self.ask(op, topic, body)
        return (await self.answers(1, {id_}))[0]

    async def answers(self, count: int, ids: set[int] | None = None) -> list[Answer]:
        """The next `count` answers (to `ids`), in the order in which they came."""
        found: list[Answer] = []
        while len(found) < count:
            if not self._early:
                await self._take()
                continue
            message = self._early.pop(0)
            if isinstance(message, Answer):
                self.session.settle(message.id)
                assert ids is None or message.id in ids
                found.append(message)
        return found

    async def until(self, kind: type[ServerMessage]) -> ServerMessage:
        while True:
            while self._early:
                message = self._early.pop(0)
                if isinstance(message, kind):
                    return message
            await self._take()

    async def _take(self) -> None:
        data = await self.stream.receive_some(1 << 16)
        if not data:
            raise EOFError("the worker hung up")
        self.frames += [end - start for start, end in self._splitter.find(data)[1]]
        self._early += self.session.receive(data)

    async def expect_end(self) -> None:
        with pytest.raises((EOFError, trio.BrokenResourceError)):
            while True:
                await self._take()


class Worker:
    def __init__(self, driver: ShardDriver, loop: TurnLoop, path: str) -> None:
        self.driver = driver
        self.loop = loop
        self.path = path

    async def connect(self, role: str = "gateway") -> Client:
        client = Client(await trio.open_unix_socket(self.path), role)
        await client.shake_hands()
        return client

    async def connect_raw(self) -> Client:
        return Client(await trio.open_unix_socket(self.path), "gateway")


@asynccontextmanager
async def running(driver: ShardDriver) -> AsyncIterator[Worker]:
    # Not tmp_path: a socket's path has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="tsd") as directory:
        path = f"{directory}/shard"
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen()
        listener.setblocking(False)
        loop = TurnLoop(driver.shard, listener, shards=1, socket_dir=directory)
        try:
            with trio.fail_after(10):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(loop.run)
                    yield Worker(driver, loop, path)
                    if not loop._stopped:
                        loop.stop()
        finally:
            loop.close()
            listener.close()
