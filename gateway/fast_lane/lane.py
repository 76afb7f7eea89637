"""The fast lane: all HTTP/1.1 connections, in turns.

A turn takes what every ready socket brought, starts each complete request, flushes the API once, and
sends the answers that are there. An answer given outside a turn (by a timer, by a link that is read
elsewhere) is sent at once, without waking a task; `turn()` gathers many such answers into one round.
"""

from __future__ import annotations

import logging
import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import trio

from gateway.api import ApiPort
from gateway.exchange import Response
from gateway.fast_lane.answer_slot import AnswerSlot
from gateway.fast_lane.body_budget import BodyBudget
from gateway.fast_lane.bounds import EdgeOptions
from gateway.fast_lane.connection import Connection
from gateway.fast_lane.dispatch import dispatch
from gateway.fast_lane.head import HeadParser
from gateway.fast_lane.response_head import HeadCache
from gateway.fast_lane.turns import TurnLoop

log = logging.getLogger(__name__)

HandOver = Callable[[socket.socket, bytes, str], None]
"""Takes a socket, the bytes already read from it, and the peer's name."""


class FastLane:
    def __init__(self, api: ApiPort, options: EdgeOptions, hand_over: HandOver) -> None:
        self._api = api
        self._hand_over = hand_over
        self._connections: dict[int, Connection] = {}
        self._dirty: list[Connection] = []
        self._resumable: list[Connection] = []
        self._closable: list[socket.socket] = []
        self._empty = trio.Event()
        self.options = options
        self.turns = TurnLoop(self._settle, self._contain)
        self.head_parser = HeadParser()
        self.body_budget = BodyBudget(
            max_body_bytes=options.max_body_bytes, total_bytes=options.max_incoming_bytes
        )
        self.heads = HeadCache()
        self.heads.set_second(int(time.time()))
        self.draining = False

    @property
    def now(self) -> float:
        return self.turns.now

    def __len__(self) -> int:
        return len(self._connections)

    def adopt(self, sock: socket.socket, peer: str) -> None:
        """Serve a connected, non-blocking socket."""
        connection = Connection(self, sock, peer, self.turns.now)
        self._connections[connection.fd] = connection
        self.turns.register(connection.fd, select.EPOLLIN, connection.on_event)

    def reject(self, sock: socket.socket, peer: str, response: Response) -> None:
        """Answer a connection that nobody has room for, and close it."""
        self.adopt(sock, peer)
        self._connections[sock.fileno()].reject(response)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Gather the answers given inside: one send per connection and one API flush at the end."""
        if self.turns.in_turn:
            yield
            return
        self.turns.now = time.perf_counter()
        self.turns.in_turn = True
        try:
            yield
        finally:
            self.turns.in_turn = False
            self._settle()

    # --- called by connections --------------------------------------------------------------------

    def handle(self, slot: AnswerSlot) -> None:
        dispatch(self._api, slot)

    def guard(self, callback: Callable[[], None]) -> None:
        """Run something of the API's that must not disturb the caller's own clean-up."""
        try:
            callback()
        except Exception:
            log.exception("edge.callback_failed")

    def mark(self, connection: Connection) -> None:
        """Let the connection look at its answers at the end of this turn; outside of a turn, now."""
        if not connection.dirty:
            connection.dirty = True
            self._dirty.append(connection)
            if not self.turns.in_turn:
                with self.turn():
                    pass

    def resume_later(self, connection: Connection) -> None:
        self._resumable.append(connection)

    def forget(self, connection: Connection, *, close: bool) -> None:
        del self._connections[connection.fd]
        if close:
            self.turns.forget(connection.fd)
            # Not before the end of the turn: a socket accepted meanwhile would get the same number, and
            # with it the events of this one.
            self._closable.append(connection.sock)
            if not self.turns.in_turn:
                self._close_sockets()
        else:
            self.turns.unregister(connection.fd)
        if not self._connections:
            self._empty.set()

    def hand_over(self, connection: Connection, unread: bytes) -> None:
        connection.closed = True
        self.forget(connection, close=False)
        self._hand_over(connection.sock, unread, connection.peer)

    # --- turns and time -----------------------------------------------------------------------------

    def _settle(self) -> int:
        """The end of a turn: requests go to the shards first, so that they work while we send. Returns to how many."""
        self.turns.in_turn = True
        sent = 0
        self.heads.set_second(int(time.time()))
        try:
            self._api.flush()
            while self._dirty or self._resumable:
                dirty, self._dirty = self._dirty, []
                sent += len(dirty)
                for connection in dirty:
                    connection.dirty = False
                    try:
                        connection.send_ready()
                    except Exception:
                        log.exception("edge.send_failed", extra={"peer": connection.peer})
                        connection.lose()
                if self._resumable:
                    resumable, self._resumable = self._resumable, []
                    for connection in resumable:
                        connection.resume()
                    self._api.flush()
        finally:
            self.turns.in_turn = False
            self._close_sockets()
        return sent

    def _close_sockets(self) -> None:
        while self._closable:
            self._closable.pop().close()

    def _contain(self, fd: int) -> bool:
        connection = self._connections.get(fd)
        if connection is None:
            return False
        connection.lose()
        return True

    def check_deadlines(self) -> None:
        with self.turn():
            now = self.turns.now
            for connection in list(self._connections.values()):
                connection.check_deadline(now)

    # --- the end ------------------------------------------------------------------------------------

    async def drain(self) -> None:
        """Finish what has begun, closing each connection after its last answer. Bound the time outside."""
        self.draining = True
        with self.turn():
            for connection in list(self._connections.values()):
                connection.drain()
        while self._connections:
            self._empty = trio.Event()
            await self._empty.wait()

    def abort(self) -> None:
        with self.turn():
            for connection in list(self._connections.values()):
                connection.lose()
        self.turns.close()
