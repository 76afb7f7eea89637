"""The way into the full lane, which is loaded for the first connection that needs it.

Quart, Hypercorn and what they bring take half a second and 25 MB, and a server that is asked for nothing but
the API never needs them. Connections that come while they are loaded wait; the fast lane goes on, because the
loading is done in a thread.
"""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Callable
from typing import Protocol

import trio

log = logging.getLogger(__name__)


class Host(Protocol):
    """The lane behind the door; see gateway/full_lane/hypercorn_glue.py."""

    @property
    def connections(self) -> int: ...
    async def run(self, *, task_status: trio.TaskStatus[None] = ...) -> None: ...
    def serve(self, sock: socket.socket, unread: bytes) -> None: ...
    async def drain(self) -> None: ...
    def abort(self) -> None: ...


class FullLaneDoor:
    def __init__(self, load: Callable[[], Host]) -> None:
        """`load` imports and builds the lane; it runs in a thread, once."""
        self._load = load
        self._host: Host | None = None
        self._nursery: trio.Nursery | None = None
        self._waiting: list[tuple[socket.socket, bytes]] = []
        self._nobody_waits = trio.Event()

    @property
    def connections(self) -> int:
        return len(self._waiting) + (0 if self._host is None else self._host.connections)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Let connections in until cancelled."""
        try:
            async with trio.open_nursery() as self._nursery:
                task_status.started()
                await trio.sleep_forever()
        finally:
            self._nursery = None
            self._turn_away()

    def serve(self, sock: socket.socket, unread: bytes) -> None:
        """Take over a connected socket and the bytes that were read from it."""
        if self._host is not None:
            self._host.serve(sock, unread)
        elif self._nursery is None:
            sock.close()
        else:
            self._waiting.append((sock, unread))
            if len(self._waiting) == 1:
                self._nursery.start_soon(self._open, self._nursery)

    async def drain(self) -> None:
        """Let open requests finish and idle connections close. The caller bounds the time."""
        while self._waiting:
            self._nobody_waits = trio.Event()
            await self._nobody_waits.wait()
        if self._host is not None:
            await self._host.drain()

    def abort(self) -> None:
        """Break every connection, so that nothing waits for a client any more."""
        for sock, _ in self._waiting:
            with contextlib.suppress(OSError):  # it may be broken already
                sock.shutdown(socket.SHUT_RDWR)
        if self._host is not None:
            self._host.abort()

    async def _open(self, nursery: trio.Nursery) -> None:
        started = trio.current_time()
        try:
            # A thread that is given up only finishes an import that nobody waits for.
            host = await trio.to_thread.run_sync(self._load, abandon_on_cancel=True)
            await nursery.start(host.run)
        except Exception:
            # A broken installation costs these connections, and neither the API nor the next try.
            log.exception("full_lane.not_loaded")
            self._turn_away()
            return
        self._host = host
        log.info("full_lane.loaded", extra={"took_ms": round((trio.current_time() - started) * 1000)})
        waiting, self._waiting = self._waiting, []
        for sock, unread in waiting:
            host.serve(sock, unread)
        self._nobody_waits.set()

    def _turn_away(self) -> None:
        while self._waiting:
            self._waiting.pop()[0].close()
        self._nobody_waits.set()
