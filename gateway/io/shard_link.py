"""One link to one worker's socket.

Requests of a turn leave in one frame at `flush`, large ones earlier; answers are handed to their callbacks from the
turn in which they arrive, with no task in between. A trio task (`run`) only connects, reconnects and watches for
silence.

Every request gets exactly one reply: its answer; `Throttled` if the link's bounds are full (a write that would
rather wait does so first, see patient_writes.py);
`ShardUnavailable` if there is no link, or if the link ends first. The latter is never retried here: whether
the worker carried it out is unknown, and only the client knows if repeating it is safe.
"""

from __future__ import annotations

import array
import logging
import os
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final, Protocol

import trio

from gateway.io.file_table import FileTable as FileTable
from gateway.io.file_table import LeasedFiles as LeasedFiles
from gateway.io.link_options import LinkOptions
from gateway.io.patient_writes import PatientWrites
from gateway.io.poller import READABLE, WRITABLE, Poller
from shared.errors import ShardUnavailable, Throttled, TopicsError
from shared.limits import LINK_SEND_AT_BYTES, KiB
from shared.session import ClientSession, LinkState
from shared.wire import (
    MAX_FDS_PER_FRAME,
    Answer,
    Draining,
    FileOpened,
    FileRetired,
    LinkError,
    Op,
    Options,
    ServerMessage,
    Stats,
    TopicNotice,
)

log = logging.getLogger(__name__)

RECV_BYTES: Final = 256 * KiB
_CONTROL_BYTES: Final = socket.CMSG_SPACE(MAX_FDS_PER_FRAME * 4)
# Plain numbers: `&` with a member of socket's enums is a function in Python that takes longer than the system call.
_CLOSE_ON_EXEC: Final = int(socket.MSG_CMSG_CLOEXEC)
_CONTROL_CUT: Final = int(socket.MSG_CTRUNC)
_PEERCRED = struct.Struct("3i")  # pid, uid, gid
THROTTLED_RETRY_MS: Final = 100

# Shared by all links, as each takes out what came before it is the next one's turn. A fresh object of this size for
# every call would be mapped and unmapped by the allocator each time.
_received: Final = memoryview(bytearray(RECV_BYTES))

_OPEN: Final = LinkState.OPEN  # see shared/session.py: looking at an enum's member is not free
_HELLO: Final = LinkState.HELLO

Reply = Answer | TopicsError
OnReply = Callable[[Reply, LeasedFiles | None], None]


class LinkListener(Protocol):
    """Who is told what a shard says without being asked."""

    def link_up(self, shard: int) -> None: ...
    def link_down(self, shard: int, reason: str) -> None:
        """After everyone who waited for an answer was refused."""

    def notice(self, notice: TopicNotice) -> None:
        """In order with the answers of the same link."""


class _Phase(Enum):
    """What the current connection attempt has come to; the lifecycle task waits for it to change."""

    CONNECTING = "connecting"
    UP = "up"
    DOWN = "down"


class ShardLink:
    def __init__(
        self,
        *,
        shard: int,
        shards: int,
        path: str,
        version: str,
        options: LinkOptions | None = None,
    ) -> None:
        self.shard = shard
        self.topics = 0  # last known totals of the shard
        self.bytes = 0
        self.reason = "not connected yet"  # why it is not up
        self.throttled = 0  # requests refused because the link was full
        self.listener: LinkListener | None = None
        self._patient: PatientWrites[LeasedFiles] = PatientWrites()
        self._shards = shards
        self._path = path
        self._poller: Poller | None = None  # while it runs
        self._version = version
        self._options = options or LinkOptions()
        self._max_unsent_bytes = self._options.max_unsent_bytes
        self._session: ClientSession[OnReply] = self._new_session(first_id=1)
        self._files = FileTable()
        self._fds: deque[int] = deque()  # arrived, and not named by a notice yet
        self._sock: socket.socket | None = None
        self._unsent = memoryview(b"")  # rest of a frame that the socket did not take
        self._phase = _Phase.DOWN
        self._phase_changed = trio.Event()
        self._wanted_now = trio.Event()  # ends a pause between two tries
        self._heard = False  # since the watch has looked last
        self._last_heard = 0.0  # as far as it has seen
        self._ping_sent: float | None = None

    def __repr__(self) -> str:
        return f"ShardLink(shard {self.shard}, {self._phase.value}, {self._session!r})"

    def _new_session(self, first_id: int) -> ClientSession[OnReply]:
        return ClientSession(
            role="gateway",
            version=self._version,
            max_queued=self._options.max_queued,
            first_id=first_id,
        )

    # --- what handlers use ----------------------------------------------------------------------------

    @property
    def up(self) -> bool:
        return self._session.state is LinkState.OPEN

    @property
    def in_flight(self) -> int:
        return self._session.in_flight

    @property
    def queued(self) -> int:
        return self._session.queued

    def request(self, op: int, topic: str, body: bytes, options: Options | None, on_reply: OnReply) -> int:
        """Send at the next flush, or now if much has gathered.

        Returns an id for `cancel`; 0 if there is nothing to cancel. To cancel what has been replied to does nothing.
        """
        session = self._session
        if session.state is not _OPEN:
            on_reply(ShardUnavailable(shard=self.shard, reason=self.reason), None)
            return 0
        # While writes wait for room, those that come later may not take it from them.
        if not self._has_room(len(body)) or (op == Op.APPEND and self._patient):
            if op != Op.APPEND or not self._patient.offer(
                topic, body, options, on_reply, trio.current_time()
            ):
                self._throttle(on_reply)
            return 0
        id_ = session.submit(op, topic, body, options, on_reply)
        if session.unsent_bytes >= LINK_SEND_AT_BYTES:
            self.flush()
        return id_

    def _has_room(self, size: int) -> bool:
        session = self._session
        if not session.has_room():
            return False
        pending = session.unsent_bytes + len(self._unsent) + size
        return pending <= self._max_unsent_bytes or not session.outstanding

    def _throttle(self, on_reply: OnReply) -> None:
        self.throttled += 1
        self._reply(on_reply, Throttled(retry_after_ms=THROTTLED_RETRY_MS))

    def _release_patient(self) -> None:
        patient, now = self._patient, trio.current_time()
        while patient and self._session.state is LinkState.OPEN and self._has_room(patient.next_bytes):
            write = patient.take(now)
            self._session.submit(Op.APPEND, write.topic, write.body, write.options, write.reply)

    def cancel(self, id_: int) -> None:
        """Nobody waits for this READ any more. Its reply still comes, and may be dropped."""
        withdrawn = self._session.cancel(id_)
        if withdrawn is not None:
            self._reply(withdrawn, ShardUnavailable(shard=self.shard, reason="the client is gone"))

    def end_waits(self) -> None:
        """Let the shard answer every READ and CLAIM that waits, as it stands; before we leave."""
        if self.up:
            self._session.end_waits()
            self.flush()

    def flush(self) -> None:
        """Send what has gathered, unless an earlier frame still waits for the socket: then it gathers on."""
        if self._sock is None or self._unsent:
            return
        if self._patient:
            self._release_patient()
        try:
            frame = self._session.take_outgoing()
        except LinkError as err:
            self._go_down(err.message)
            return
        if frame:
            self._unsent = memoryview(frame)
            self._send(self._sock)
            if self._unsent:
                self._watch_socket(READABLE | WRITABLE)

    # --- the socket -----------------------------------------------------------------------------------

    def _watch_socket(self, mask: int) -> None:
        if self._sock is not None and self._poller is not None:
            self._poller.modify(self._sock.fileno(), mask)

    def _on_event(self, mask: int) -> None:
        try:
            if mask & ~WRITABLE:
                self._on_readable()
            if mask & WRITABLE:
                self._on_writable()
        except Exception:
            # Ours, and not known which: a link in an unknown state may not answer anybody.
            log.exception("link.failed", extra={"shard": self.shard})
            self._go_down("internal error")

    def _send(self, sock: socket.socket) -> None:
        try:
            while self._unsent:
                sent = sock.send(self._unsent)
                self._unsent = self._unsent[sent:]
        except BlockingIOError:
            return
        except (BrokenPipeError, ConnectionResetError):
            # It is gone. What it has answered before is there to be read, and then the end, which takes us down.
            self._unsent = memoryview(b"")
        except OSError as err:
            self._go_down(f"sending failed: {err.strerror}")

    def _on_writable(self) -> None:
        if self._sock is None:
            return
        self._send(self._sock)
        if self._sock is not None and not self._unsent:
            self._watch_socket(READABLE)
            self.flush()

    def _on_readable(self) -> None:
        while self._sock is not None:
            try:
                data = self._receive(self._sock)
            except BlockingIOError:
                return
            except OSError as err:
                self._go_down(f"receiving failed: {err.strerror}")
                return
            except LinkError as err:
                self._go_down(err.message)
                return
            if not data:
                self._go_down("the worker closed the link")
                return
            self._handle(data)
            if len(data) < RECV_BYTES:
                break
        if self._session.queued or self._patient:
            self.flush()

    def _receive(self, sock: socket.socket) -> bytes:
        size, control, flags, _ = sock.recvmsg_into([_received], _CONTROL_BYTES, _CLOSE_ON_EXEC)
        for level, kind, payload in control:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds = array.array("i")
                fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
                self._fds.extend(fds)
        if flags & _CONTROL_CUT:
            # Also what the kernel does when this process has no descriptor left.
            raise LinkError("descriptors were lost on the way")
        return bytes(_received[:size])

    def _handle(self, data: bytes) -> None:
        self._heard = True
        was_hello = self._session.state is _HELLO
        try:
            messages = self._session.receive(data)
            if was_hello and self._session.state is _OPEN:
                self._opened()
            for message in messages:
                if type(message) is Answer:
                    self._answer(message)
                elif type(message) is Stats:
                    self.topics, self.bytes = message.topics, message.bytes
                else:
                    self._notice(message)
        except LinkError as err:
            self._go_down(err.message)

    def _answer(self, answer: Answer) -> None:
        # Lease first: if it fails the waiter is still in the session, and gets its 503 with all the others.
        leased = None if answer.extents is None else self._files.lease(answer.extents)
        try:
            on_reply = self._session.settle(answer.id)
        except LinkError:
            if leased is not None:
                leased.release()
            raise
        self._reply(on_reply, answer, leased)

    def _reply(self, on_reply: OnReply, reply: Reply, leased: LeasedFiles | None = None) -> None:
        try:
            on_reply(reply, leased)
        except Exception:
            # A bug behind one answer must not cost the others theirs.
            log.exception("link.reply.failed", extra={"shard": self.shard})

    def _notice(self, notice: ServerMessage) -> None:
        match notice:
            case FileOpened(file):
                if not self._fds:
                    raise LinkError("a file was announced and its descriptor did not come")
                self._files.add(file, self._fds.popleft())
            case FileRetired(file):
                self._files.retire(file)
            case Draining():
                self.reason = "it is shutting down"
                self._refuse([*self._session.drain(), *self._give_up_patient()])
            case Answer() | Stats():
                raise AssertionError("who receives them sees to them")
            case _:
                self._tell(lambda listener: listener.notice(notice))

    def _tell(self, tell: Callable[[LinkListener], None]) -> None:
        if self.listener is None:
            return
        try:
            tell(self.listener)
        except Exception:
            # A bug among the readers of one topic must not cost the shard its link.
            log.exception("link.listener.failed", extra={"shard": self.shard})

    def _refuse(self, waiters: Sequence[OnReply]) -> None:
        for on_reply in waiters:
            self._reply(on_reply, ShardUnavailable(shard=self.shard, reason=self.reason))

    def _opened(self) -> None:
        peer = self._session.peer
        assert peer is not None
        if (peer.shard, peer.shards) != (self.shard, self._shards):
            raise LinkError(
                f"this is shard {peer.shard} of {peer.shards}, not {self.shard} of {self._shards}"
            )
        self.topics, self.bytes = peer.topics, peer.bytes
        self.reason = ""
        self._set_phase(_Phase.UP)
        log.info("link.up", extra={"shard": self.shard})
        self._tell(lambda listener: listener.link_up(self.shard))
        self.flush()

    def _go_down(self, reason: str, *, level: int = logging.WARNING) -> None:
        sock, self._sock = self._sock, None
        if sock is None:
            return
        was_up = self._phase is _Phase.UP
        log.log(level, "link.down", extra={"shard": self.shard, "reason": reason})
        if self._poller is not None:
            self._poller.unregister(sock.fileno())
        sock.close()
        self.reason = reason
        self._unsent = memoryview(b"")
        self._ping_sent = None
        waiters = [*self._session.close(), *self._give_up_patient()]
        self._set_phase(_Phase.DOWN)
        self._files.retire_all()
        while self._fds:
            os.close(self._fds.popleft())
        # Last: a callback may send the next request, which must find the link down.
        self._refuse(waiters)
        if was_up:
            self._tell(lambda listener: listener.link_down(self.shard, reason))

    def _give_up_patient(self) -> list[OnReply]:
        return [write.on_reply for write in self._patient.take_all(trio.current_time())]

    # --- the lifecycle task ---------------------------------------------------------------------------

    def _set_phase(self, phase: _Phase) -> None:
        self._phase = phase
        self._phase_changed.set()
        self._phase_changed = trio.Event()

    def connect_now(self) -> None:
        """The worker is there, as somebody knows who saw it start: do not wait for the next try."""
        self._wanted_now.set()

    async def run(self, poller: Poller) -> None:
        """Keep the link up until cancelled; its socket is served by `poller`."""
        self._poller = poller
        backoff_s = self._options.backoff_min_s
        try:
            while True:
                if self._connect(poller):
                    with trio.move_on_after(self._options.hello_timeout_s):
                        await self._leave(_Phase.CONNECTING)
                    if self._phase is _Phase.UP:
                        backoff_s = self._options.backoff_min_s
                        await self._watch()
                    else:
                        self._go_down("the worker does not say hello")
                with trio.move_on_after(backoff_s):
                    await self._wanted_now.wait()
                self._wanted_now = trio.Event()
                backoff_s = min(backoff_s * 2, self._options.backoff_max_s)
        finally:
            self._go_down("the gateway is shutting down", level=logging.INFO)

    async def _leave(self, phase: _Phase) -> None:
        while self._phase is phase:
            await self._phase_changed.wait()

    def _connect(self, poller: Poller) -> bool:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            sock.connect(self._path)
            _check_peer(sock)
            session = self._new_session(self._session.next_id)
            sock.sendall(session.hello())
        except (OSError, LinkError) as err:
            sock.close()
            self.reason = "it is starting" if isinstance(err, OSError) else err.message
            return False
        self._session = session
        self._files = FileTable()
        self._sock = sock
        self._set_phase(_Phase.CONNECTING)
        poller.register(sock.fileno(), READABLE, self._on_event)
        return True

    async def _watch(self) -> None:
        while self._phase is _Phase.UP:
            with trio.move_on_after(self._options.tick_s):
                await self._leave(_Phase.UP)
            if self._phase is _Phase.UP:
                self._check_silence(trio.current_time())
                for write in self._patient.take_expired(trio.current_time()):
                    self._throttle(write.on_reply)

    def _check_silence(self, now: float) -> None:
        if self._ping_sent is not None:
            if now - self._ping_sent > self._options.hang_after_s:
                self._go_down("the worker hangs")
            return
        if self._heard:
            self._heard, self._last_heard = False, now
        silence = now - self._last_heard
        if not self._session.outstanding or silence <= self._options.ping_after_s:
            return
        if self._session.state is LinkState.OPEN:
            self._ping_sent = now
            self._session.submit(Op.PING, "", b"", None, self._on_pong)
            self.flush()
        elif silence > self._options.hang_after_s:
            # A draining worker takes no PING, and must finish what it has all the same.
            self._go_down("the worker hangs while it shuts down")

    def _on_pong(self, reply: Reply, leased: LeasedFiles | None) -> None:
        self._ping_sent = None


def _check_peer(sock: socket.socket) -> None:
    """Only our own user may be behind the socket: anyone else could answer for our data."""
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEERCRED.size)
    _, uid, _ = _PEERCRED.unpack(credentials)
    if uid != os.getuid():
        raise LinkError(f"the socket belongs to user {uid}")
