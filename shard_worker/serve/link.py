"""One client of the worker: its socket, its session, and the answers of the turn.

Answers gather in `_messages` and leave as one frame per turn. What the socket does not take at once waits in
`_unsent`; while much waits there, nothing more is read from this client, so a slow one is slowed, not served from
ever more memory.
"""

from __future__ import annotations

import os
import socket
from array import array
from collections import deque
from typing import Final

from shard_worker.request import Extents, Timings
from shard_worker.serve.served_files import ServedFiles
from shared.limits import LINK_CREDITS, LINK_TURN_MAX_BYTES, LINK_UNSENT_MAX_BYTES
from shared.session import LinkState, ServerSession
from shared.wire import (
    MAX_FDS_PER_FRAME,
    Answer,
    Draining,
    FileOpened,
    FileRetired,
    LinkError,
    ServerMessage,
    Stats,
    TopicAdvanced,
    TopicNotice,
)
from shared.wire import Request as WireRequest

_OPEN: Final = LinkState.OPEN  # see shared/session.py: looking at an enum's member is not free
_HELLO: Final = LinkState.HELLO

# The frames of most turns are shorter; what is longer is taken with a second call. An object of this size is no
# trouble to the allocator.
_MOST_FIT_BYTES: Final = 32 << 10

# Shared by all links, as each takes out what came before it is the next one's turn. A fresh object of this size for
# every call would be mapped and unmapped by the allocator each time.
_received: Final = memoryview(bytearray(1 << 20))


class LinkGone(Exception):
    """The peer has closed, or broke the protocol; nothing but this link suffers."""


class Link:
    def __init__(self, sock: socket.socket, files: ServedFiles, *, shard: int, shards: int) -> None:
        self.sock = sock
        self._session = ServerSession(shard=shard, shards=shards, credits=LINK_CREDITS)
        self._files = files
        self._announced: set[int] = set()
        self._messages: list[ServerMessage] = []
        self._fds: list[int] = []  # of the files announced in this turn
        self._unsent: deque[tuple[memoryview, list[int]]] = deque()
        self.unsent_bytes = 0
        self._turn_bytes = 0  # of answers and pushes that leave with this turn
        self.deferred: deque[WireRequest] = (
            deque()
        )  # requests that wait because their answers would be too much
        self._stats = (-1, -1)

    def __repr__(self) -> str:
        return f"<Link {self.sock.fileno()} {self._session!r} unsent={self.unsent_bytes}>"

    # --- in ---------------------------------------------------------------------------------------------

    @property
    def open(self) -> bool:
        return self._session.state is not _HELLO

    def receive(self, topics: int, total_bytes: int) -> list[WireRequest]:
        """The requests that have arrived; raises LinkGone."""
        try:
            data = self.sock.recv(_MOST_FIT_BYTES)
            if len(data) == _MOST_FIT_BYTES:
                data += self._receive_more()
        except BlockingIOError:
            return []
        except OSError as err:
            raise LinkGone(str(err)) from err
        if not data:
            raise LinkGone("closed by the peer")
        try:
            requests = self._session.receive(data)
        except LinkError as err:
            raise LinkGone(str(err)) from err
        if self._session.client is not None and self._session.state is _HELLO:
            self._send(self._session.accept(topics=topics, bytes=total_bytes), [])
            self._stats = (topics, total_bytes)
            if not self._session.accepted:
                raise LinkGone("no protocol version in common")
        return requests

    def _receive_more(self) -> bytes:
        try:
            size = self.sock.recv_into(_received)
        except BlockingIOError:
            return b""
        return bytes(_received[:size])  # at the end of the stream nothing; the next call meets that end again

    @property
    def takes_files(self) -> bool:
        """Only a gateway sends files on; everyone else wants bytes."""
        return self._session.client is not None and self._session.client.role == "gateway"

    # --- out --------------------------------------------------------------------------------------------

    def answer(
        self,
        id: int,
        status: int,
        body: bytes,
        timings: Timings | None = None,
        extents: Extents | None = None,
        tail: bytes | None = None,
    ) -> None:
        if extents:
            shown = self._files.stitched(extents)
            if self._knows_file(shown) or self._announce({file for file, _, _ in shown}):
                self._messages.append(Answer(id, status, body, timings, shown, tail))
                return
            body = body + self._files.read(extents) + (tail or b"")
        self._messages.append(Answer(id, status, body, timings))
        self._turn_bytes += len(body)

    def _knows_file(self, shown: Extents) -> bool:
        """Is it one extent of a file that the peer has? Nearly always."""
        return len(shown) == 1 and shown[0][0] in self._announced

    def _announce(self, files: set[int]) -> bool:
        """Hand over the descriptors the peer has not got yet; False if this turn's frame takes no more."""
        new = files - self._announced
        if not self.takes_files or len(self._fds) + len(new) > MAX_FDS_PER_FRAME:
            return False
        fds: list[int] = []
        try:
            for file in new:
                # Duplicates of our own: the worker may retire a file before this socket takes its descriptor.
                fds.append(os.dup(self._files.descriptor(file)))
        except OSError:
            _close_all(fds)
            return False  # out of descriptors: bytes will do
        self._messages.extend(map(FileOpened, new))
        self._fds += fds
        self._announced |= new
        return True

    def retire(self, file: int) -> None:
        if file in self._announced:
            self._messages.append(FileRetired(file))
            self._announced.discard(file)

    def notify(self, notice: TopicNotice) -> None:
        if isinstance(notice, TopicAdvanced):
            if self.full:
                # A peer that does not keep up is told where things are, and reads them when it can.
                notice = notice._replace(records=None)
            self._turn_bytes += len(notice.records or b"")
        self._messages.append(notice)

    def drain(self) -> None:
        if self._session.state is _OPEN:
            self._messages.append(Draining())

    def flush(self, topics: int, total_bytes: int) -> int:
        """Send the turn's messages as one frame; raises LinkGone. Returns how many they are."""
        if self._session.state is _HELLO:
            return 0
        if (topics, total_bytes) != self._stats and (self._messages or topics != self._stats[0]):
            self._stats = (topics, total_bytes)
            self._messages.insert(0, Stats(topics, total_bytes))
        if not self._messages:
            return 0
        messages, self._messages = self._messages, []
        self._turn_bytes = 0
        fds, self._fds = self._fds, []
        self._send(self._session.encode(messages), fds)
        return len(messages)

    def _send(self, frame: bytes, fds: list[int]) -> None:
        sent = 0
        if not fds and not self._unsent:
            # Nearly always: then all of it leaves at once, and there is nothing to keep.
            try:
                sent = self.sock.send(frame)
            except BlockingIOError:
                pass
            except OSError as err:
                raise LinkGone(str(err)) from err
            if sent == len(frame):
                return
        self._unsent.append((memoryview(frame)[sent:], fds))
        self.unsent_bytes += len(frame) - sent
        self.send_more()
        if self.unsent_bytes > 4 * LINK_UNSENT_MAX_BYTES:
            raise LinkGone("the peer takes nothing any more")

    def send_more(self) -> None:
        while self._unsent:
            data, fds = self._unsent[0]
            try:
                sent = self._send_part(data, fds)
            except BlockingIOError:
                return
            except OSError as err:
                raise LinkGone(str(err)) from err
            self.unsent_bytes -= sent
            if sent:
                _close_all(fds)
            if sent == len(data):
                self._unsent.popleft()
            else:
                self._unsent[0] = (data[sent:], [])  # descriptors travel with the first byte

    def _send_part(self, data: memoryview, fds: list[int]) -> int:
        if not fds:
            return self.sock.send(data)
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", fds).tobytes())
        return self.sock.sendmsg([data], [rights])

    def close(self) -> None:
        _close_all(self._fds)
        for _, fds in self._unsent:
            _close_all(fds)
        self._unsent.clear()
        self.sock.close()

    @property
    def blocked(self) -> bool:
        """Is anything waiting for the socket to take more?"""
        return bool(self._unsent)

    @property
    def full(self) -> bool:
        """Have enough answers gathered for one turn?"""
        return self._turn_bytes > LINK_TURN_MAX_BYTES or self.congested

    @property
    def congested(self) -> bool:
        """Does so much wait that its requests should wait, too?"""
        return self.unsent_bytes > LINK_UNSENT_MAX_BYTES

    @property
    def in_flight(self) -> int:
        return self._session.in_flight


def _close_all(fds: list[int]) -> None:
    while fds:
        os.close(fds.pop())
