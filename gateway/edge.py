"""The public port: accepts, and gives every connection to the lane that can serve it.

A connection starts on the fast lane, which reads its first bytes. HTTP/2, WebSocket upgrades and paths
outside the API are handed over to the full lane together with the bytes already read; on a keep-alive
connection that may happen at any request, once the answers before it are sent.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import trio

from gateway.api import ApiPort
from gateway.fast_lane.acceptor import Acceptor, open_listeners
from gateway.fast_lane.bounds import MAX_FULL_LANE_CONNECTIONS, EdgeOptions
from gateway.fast_lane.lane import FastLane
from gateway.fast_lane.refusals import error_response
from gateway.full_lane.door import FullLaneDoor, Host
from gateway.io.poller import Poller
from shared.errors import Throttled

if TYPE_CHECKING:
    from gateway.full_lane.app import Register

__all__ = ["Edge", "EdgeOptions", "open_listeners", "serve"]


class Edge:
    """Both lanes behind one set of listeners."""

    def __init__(
        self, api: ApiPort, options: EdgeOptions | None = None, *, registrations: Sequence[Register] = ()
    ) -> None:
        self.options = options or EdgeOptions()
        self._api = api
        self._registrations = registrations
        self._lane = FastLane(api, self.options, self._hand_over)
        self._door = FullLaneDoor(self._load_full_lane)
        self._acceptor: Acceptor | None = None
        self._stop = trio.Event()
        self.addresses: list[tuple[str, int]] = []

    @property
    def poller(self) -> Poller:
        """Where a shard link registers to be read in the same turns as the clients."""
        return self._lane.turns

    @property
    def connections(self) -> int:
        return len(self._lane) + self._door.connections

    @property
    def accepting(self) -> bool:
        return self._acceptor is not None and not self._acceptor.paused

    def turn(self) -> AbstractContextManager[None]:
        """Gather the answers given inside it: each connection is sent to once, at the end."""
        return self._lane.turn()

    async def serve(
        self,
        listeners: Sequence[socket.socket],
        *,
        task_status: trio.TaskStatus[Edge] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve on listening sockets, which it takes over, until cancelled or drained."""
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(self._door.run)
                self._acceptor = Acceptor(self._lane.turns, listeners, self._lane.adopt)
                self.addresses = [listener.getsockname()[:2] for listener in listeners]
                nursery.start_soon(self._lane.turns.run)
                nursery.start_soon(self._tick)
                task_status.started(self)
                try:
                    await self._stop.wait()
                finally:
                    # Hypercorn shields its sends: only a dead socket ends one that is stuck.
                    self._door.abort()
                    nursery.cancel_scope.cancel()
        finally:
            self.stop_accepting()
            self._lane.abort()
            for listener in listeners:
                listener.close()

    def stop_accepting(self) -> None:
        if self._acceptor is not None:
            self._acceptor.close()
            self._acceptor = None

    async def drain(self, timeout_s: float) -> bool:
        """Stop accepting, finish what is in flight, end `serve`. False if the time was not enough."""
        self.stop_accepting()
        with trio.move_on_after(timeout_s) as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._lane.drain)
                nursery.start_soon(self._door.drain)
        self._stop.set()
        return not scope.cancelled_caught

    async def _tick(self) -> None:
        while True:
            await trio.sleep(self.options.tick_ms / 1000)
            self._lane.check_deadlines()
            if self._acceptor is not None:
                self._acceptor.retry()

    def _load_full_lane(self) -> Host:
        # Here, for the first connection that needs it: see gateway/full_lane/door.py.
        from gateway.full_lane.lane import build_lane

        return build_lane(self._api, self._lane, self.options, self._registrations)

    def _hand_over(self, sock: socket.socket, unread: bytes, peer: str) -> None:
        if self._door.connections < MAX_FULL_LANE_CONNECTIONS:
            self._door.serve(sock, unread)
            return
        answer = error_response(Throttled(limit="full_lane_connections", max=MAX_FULL_LANE_CONNECTIONS))
        self._lane.reject(sock, peer, answer)


async def serve(
    api: ApiPort,
    *,
    host: str = "127.0.0.1",
    port: int = 4000,
    listeners: Sequence[socket.socket] | None = None,
    options: EdgeOptions | None = None,
    registrations: Sequence[Register] = (),
    task_status: trio.TaskStatus[Edge] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve the API. `listeners` (inherited or passed by systemd) take the place of `host` and `port`."""
    edge = Edge(api, options, registrations=registrations)
    if listeners is None:
        listeners = await open_listeners(host, port, backlog=edge.options.backlog)
    await edge.serve(listeners, task_status=task_status)
