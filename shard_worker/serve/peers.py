"""Links to the other workers, over the same protocol that the gateway speaks.

A link is opened when there is something to say and kept. If it cannot be opened, breaks, or stays silent for too long,
everything that waits on it is answered 503 and nothing is sent twice: who moves records repeats them under the same
identity (shard_worker/moves.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
import trio

from shared.io.child_channel import socket_path
from shared.limits import PEER_MAX_WAITING, PEER_SILENCE_S
from shared.routing import shard_for
from shared.session import ClientSession, LinkState
from shared.wire import Answer, Draining, LinkError

OnAnswer = Callable[[int], None]
OnReply = Callable[[int, bytes], None]

_RECV_BYTES = 1 << 16
_UNREACHABLE = 503


class _Message(msgspec.Struct, frozen=True):
    op: int
    topic: str
    body: bytes
    options: Mapping[str, object]
    on_reply: OnReply


class PeerLinks:
    """Implements `moves.Peers`. `after_answers` is called when answers have changed something, `on_lost` with the
    number of a shard whose worker has gone away."""

    def __init__(
        self,
        *,
        own: int,
        shards: int,
        socket_dir: str,
        version: str,
        after_answers: Callable[[], None],
        on_lost: Callable[[int], None] = lambda shard: None,
    ) -> None:
        self._own = own
        self._shards = shards
        self._socket_dir = socket_dir
        self._version = version
        self._after_answers = after_answers
        self._on_lost = on_lost
        self._links: dict[int, _PeerLink] = {}
        self._wanted = trio.Event()

    def shard_of(self, topic: str) -> int:
        return shard_for(topic, self._shards)

    def request(
        self,
        shard: int,
        op: int,
        topic: str,
        body: bytes,
        options: Mapping[str, object],
        on_answer: OnAnswer,
    ) -> None:
        self.ask(shard, op, topic, body, options, lambda status, _: on_answer(status))

    def ask(
        self,
        shard: int,
        op: int,
        topic: str,
        body: bytes,
        options: Mapping[str, object],
        on_reply: OnReply,
    ) -> None:
        link = self._links.get(shard)
        if link is None:
            path = socket_path(self._socket_dir, shard)
            link = self._links[shard] = _PeerLink(
                path, self._version, self._after_answers, lambda: self._on_lost(shard)
            )
            self._wanted.set()
        link.send(_Message(op, topic, body, options, on_reply))

    async def run(self) -> None:
        """Serve the links that are asked for, until cancelled."""
        running: set[int] = set()
        async with trio.open_nursery() as nursery:
            while True:
                for shard in self._links.keys() - running:
                    running.add(shard)
                    nursery.start_soon(self._links[shard].run)
                await self._wanted.wait()
                self._wanted = trio.Event()


class _PeerLink:
    def __init__(
        self, path: str, version: str, after_answers: Callable[[], None], on_lost: Callable[[], None]
    ) -> None:
        self._path = path
        self._version = version
        self._after_answers = after_answers
        self._on_lost = on_lost
        self._session: ClientSession[OnReply] | None = None
        self._waiting: list[_Message] = []
        self._something = trio.Event()

    def send(self, message: _Message) -> None:
        if len(self._waiting) >= PEER_MAX_WAITING:
            message.on_reply(_UNREACHABLE, b"")
            return
        self._waiting.append(message)
        self._something.set()

    async def run(self) -> None:
        while True:
            await self._something.wait()
            try:
                stream = await trio.open_unix_socket(self._path)
            except OSError:
                self._give_up([message.on_reply for message in self._take_waiting()])
                continue
            session: ClientSession[OnReply] = ClientSession(
                role="worker", version=self._version, max_queued=PEER_MAX_WAITING
            )
            self._session = session
            try:
                async with stream:
                    await self._talk(stream, session)
            except* (OSError, trio.BrokenResourceError, trio.ClosedResourceError, LinkError):
                pass  # whatever ended the link, those who wait are told below
            self._session = None
            unsent = [message.on_reply for message in self._take_waiting()]
            self._on_lost()
            self._give_up(session.close() + unsent)

    async def _talk(self, stream: trio.SocketStream, session: ClientSession[OnReply]) -> None:
        await stream.send_all(session.hello())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._send_all, stream, session)
            await self._receive_all(stream, session)
            nursery.cancel_scope.cancel()

    async def _send_all(self, stream: trio.SocketStream, session: ClientSession[OnReply]) -> None:
        while True:
            if session.state is LinkState.OPEN:
                for message in self._take_waiting():
                    session.submit(message.op, message.topic, message.body, message.options, message.on_reply)
                frame = session.take_outgoing()
                if frame:
                    await stream.send_all(frame)
                    continue
            await self._something.wait()
            self._something = trio.Event()

    async def _receive_all(self, stream: trio.SocketStream, session: ClientSession[OnReply]) -> None:
        while True:
            data = b""
            with trio.move_on_after(PEER_SILENCE_S) as silence:
                data = await stream.receive_some(_RECV_BYTES)
            if silence.cancelled_caught and not session.outstanding and not self._waiting:
                continue  # nothing to say on either side
            if not data:
                return
            answered = False
            for message in session.receive(data):
                if isinstance(message, Answer):
                    session.settle(message.id)(message.status, message.body)
                    answered = True
                elif isinstance(message, Draining):
                    return
            if answered:
                self._after_answers()
            self._something.set()  # the hello, or credits, may let more go out

    def _take_waiting(self) -> list[_Message]:
        taken, self._waiting = self._waiting, []
        if self._session is None:
            self._something = trio.Event()
        return taken

    def _give_up(self, waiters: list[OnReply]) -> None:
        for waiter in waiters:
            waiter(_UNREACHABLE, b"")
        if waiters:
            self._after_answers()
