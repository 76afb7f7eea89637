"""The one place that touches Hypercorn's inner classes (pinned to 0.18).

Hypercorn's public `serve()` wants to accept by itself. We have accepted already and read the first
bytes, so each connection gets a `TCPServer` of its own on a stream that returns those bytes first.
"""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Any, cast

import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.events import Event, Updated
from hypercorn.protocol.h2 import H2Protocol
from hypercorn.trio.lifespan import Lifespan
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ASGIFramework, ConnectionState, LifespanState

from gateway.fast_lane.bounds import MAX_HEAD_BYTES, EdgeOptions

log = logging.getLogger(__name__)

_SEND_PIECE_BYTES = 64 * 1024
_WEBSOCKET_PING_S = 20.0
_APP_SHUTDOWN_S = 2.0
_MAX_REQUESTS = 1 << 30  # all the streams that one HTTP/2 connection has numbers for


class ReplayStream(trio.abc.HalfCloseableStream):
    """A socket stream that first returns bytes which were read before. Has what `TCPServer` asks for."""

    def __init__(self, stream: trio.SocketStream, unread: bytes, *, write_timeout_s: float) -> None:
        self._stream = stream
        self._write_timeout_s = write_timeout_s
        self._unread = unread
        self.socket = stream.socket
        self.before_receive: Callable[[], Awaitable[None]] | None = None

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        if self.before_receive is not None:
            await self.before_receive()
        if not self._unread:
            return bytes(await self._stream.receive_some(max_bytes))
        await trio.lowlevel.checkpoint()
        size = len(self._unread) if max_bytes is None else max_bytes
        data, self._unread = self._unread[:size], self._unread[size:]
        return data

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        # Hypercorn shields its sends from cancellation, so a reader that has stalled must be given up here.
        view = memoryview(data)
        for start in range(0, len(view), _SEND_PIECE_BYTES):
            with trio.move_on_after(self._write_timeout_s) as scope:
                await self._stream.send_all(view[start : start + _SEND_PIECE_BYTES])
            if scope.cancelled_caught:
                raise trio.BrokenResourceError("the client does not read")

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()


class ConnectionServer(TCPServer):
    """Hypercorn's, with an idle time that always starts, and ends with the connection.

    The last message of an answer ends its stream, which is a disconnect to the app and cancels whoever sends it, on
    the way to start the idle time: the connection would stay for ever. And bytes that h2 has handed out must leave,
    or the two ends no longer agree on the state of their header compression.
    """

    _over = False

    async def protocol_send(self, event: Event) -> None:
        if self._over and isinstance(event, Updated):
            return
        with trio.CancelScope(shield=True):  # bounded by ReplayStream's write timeout
            await super().protocol_send(event)

    async def _read_data(self) -> None:
        self.stream.before_receive = self._note_idle
        await super()._read_data()
        # The peer is gone. Left alone, the idle time would keep its socket until it is up.
        self._over = True
        await self.idle_task.stop()

    async def _note_idle(self) -> None:
        """A stream that the client resets ends without a word from Hypercorn."""
        protocol = self.protocol.protocol
        if isinstance(protocol, H2Protocol) and not protocol.streams and self.idle_task._handle is None:
            await self.protocol_send(Updated(idle=True))


class HypercornHost:
    """Runs one ASGI app for any number of connections that were accepted elsewhere."""

    def __init__(self, app: object, options: EdgeOptions) -> None:
        self._app = ASGIWrapper(cast(ASGIFramework, app))
        self._config = _config(options)
        self._context = WorkerContext(None)
        self._state = LifespanState()
        self._nursery: trio.Nursery | None = None
        self._sockets: set[socket.socket] = set()
        self._empty = trio.Event()
        self._write_timeout_s = options.write_timeout_ms / 1000

    @property
    def connections(self) -> int:
        return len(self._sockets)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Start the app and serve until cancelled; then shut the app down."""
        lifespan = Lifespan(self._app, self._config, self._state)
        # The app's own task outlives our cancellation: it must still hear that it is to shut down.
        life = trio.CancelScope(shield=True)

        async def live(*, task_status: trio.TaskStatus[None]) -> None:
            with life:
                await lifespan.handle_lifespan(task_status=task_status)

        async with trio.open_nursery() as nursery:
            await nursery.start(live)
            try:
                await lifespan.wait_for_startup()
                try:
                    async with trio.open_nursery() as self._nursery:
                        task_status.started()
                        await trio.sleep_forever()
                finally:
                    self._nursery = None
                    with trio.move_on_after(_APP_SHUTDOWN_S, shield=True):
                        await lifespan.wait_for_shutdown()
            finally:
                life.cancel()

    def serve(self, sock: socket.socket, unread: bytes) -> None:
        """Take over a connected socket."""
        if self._nursery is None:
            sock.close()
            return
        self._sockets.add(sock)
        self._nursery.start_soon(self._serve, sock, unread)

    async def drain(self) -> None:
        """Let open requests finish and idle connections close. The caller bounds the time."""
        await self._context.terminated.set()
        while self._sockets:
            self._empty = trio.Event()
            await self._empty.wait()

    def abort(self) -> None:
        """Break every connection, so that nothing waits for a client any more."""
        for sock in self._sockets:
            with contextlib.suppress(OSError):  # it may be broken already
                sock.shutdown(socket.SHUT_RDWR)

    async def _serve(self, sock: socket.socket, unread: bytes) -> None:
        stream = ReplayStream(
            trio.SocketStream(trio.socket.from_stdlib_socket(sock)),
            unread,
            write_timeout_s=self._write_timeout_s,
        )
        try:
            # The annotation of TCPServer names only the TLS stream; it serves plain ones as well.
            state = ConnectionState(self._state)
            await ConnectionServer(
                self._app, self._config, self._context, cast(Any, state), cast(Any, stream)
            )
        except Exception as err:
            # Frames for a stream that was answered early, bytes that are no protocol at all: Hypercorn
            # lets some of these escape. They concern this connection alone.
            log.warning("full_lane.connection_failed", extra={"error": repr(err)})
        finally:
            self._sockets.discard(sock)
            sock.close()
            if not self._sockets:
                self._empty.set()


def _config(options: EdgeOptions) -> Config:
    config = Config()
    config.errorlog = logging.getLogger("gateway.full_lane.hypercorn")
    config.include_server_header = False
    config.keep_alive_timeout = options.keepalive_timeout_ms / 1000
    # Its default of 1000 ends a connection in the middle of use; a request that crosses the goodbye is lost.
    config.keep_alive_max_requests = _MAX_REQUESTS
    config.h11_max_incomplete_size = MAX_HEAD_BYTES
    config.h2_max_header_list_size = MAX_HEAD_BYTES
    config.websocket_ping_interval = _WEBSOCKET_PING_S
    config.websocket_max_message_size = options.max_body_bytes
    return config
