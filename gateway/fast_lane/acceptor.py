"""Listening sockets: opening them, and accepting in turns."""

from __future__ import annotations

import errno
import logging
import select
import socket
from collections.abc import Callable, Sequence

import trio

from gateway.fast_lane.bounds import MAX_ACCEPTS_PER_TURN
from gateway.fast_lane.turns import TurnLoop

log = logging.getLogger(__name__)

# Nothing is wrong with the client or the listener: there is no room at the moment.
_NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


async def open_listeners(host: str, port: int, *, backlog: int) -> list[socket.socket]:
    """One listener per address of `host`, all on the same port. Port 0: any free one."""
    found = await trio.socket.getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_ADDRCONFIG
    )
    listeners: list[socket.socket] = []
    try:
        for family, kind, proto, _, address in dict.fromkeys(found):
            sock = socket.socket(family, kind, proto)
            listeners.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                # "::" is understood as every address of the machine, IPv4 included.
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if host == "::" else 1)
            chosen = listeners[0].getsockname()[1] if port == 0 and len(listeners) > 1 else port
            sock.bind((address[0], chosen, *address[2:]))
            sock.listen(backlog)
    except BaseException:
        for sock in listeners:
            sock.close()
        raise
    return listeners


class Acceptor:
    """Accepts on listeners that live in a turn loop, and pauses while the process is out of descriptors."""

    def __init__(
        self, turns: TurnLoop, listeners: Sequence[socket.socket], adopt: Callable[[socket.socket, str], None]
    ) -> None:
        self._turns = turns
        self._adopt = adopt
        self._listening = list(listeners)
        self._paused: list[socket.socket] = []
        for listener in self._listening:
            listener.setblocking(False)
            self._register(listener)

    @property
    def paused(self) -> bool:
        return bool(self._paused)

    def retry(self) -> None:
        """Try again where there was no room."""
        paused, self._paused = self._paused, []
        for listener in paused:
            self._register(listener)

    def close(self) -> None:
        for listener in self._listening:
            if listener not in self._paused:
                self._turns.unregister(listener.fileno())
            listener.close()
        self._listening.clear()
        self._paused.clear()

    def _register(self, listener: socket.socket) -> None:
        self._turns.register(listener.fileno(), select.EPOLLIN, lambda _: self._accept(listener))

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(MAX_ACCEPTS_PER_TURN):
            try:
                sock, address = listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as err:
                if err.errno not in _NO_ROOM:
                    continue  # that client is gone already (ECONNABORTED and its like, accept(2))
                # Left in the set, the listener would wake us again and again for nothing.
                log.warning("edge.accept_paused", extra={"reason": err.strerror})
                self._turns.unregister(listener.fileno())
                self._paused.append(listener)
                return
            try:
                sock.setblocking(False)
                if listener.family != socket.AF_UNIX:
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._adopt(sock, _peer_name(address))
            except OSError:
                sock.close()


def _peer_name(address: object) -> str:
    if isinstance(address, tuple):
        host, port = address[0], address[1]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return "unix"
