"""A relay in front of a server, which can lose it: the port stays, the connections and the way through do not."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from types import TracebackType
from typing import Self


class TcpRelay:
    def __init__(self, target_port: int) -> None:
        self.target_port = target_port  # may change: a server that comes back has another one
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._lock = threading.Lock()
        self._through = True
        self.connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cut()
        # shutdown wakes the accept that close alone would leave waiting.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def cut(self) -> None:
        """Reset every connection, and let no new one through until `restore`."""
        with self._lock:
            self._through = False
            pairs, self._pairs = self._pairs, set()
        for pair in pairs:
            for sock in pair:
                _reset(sock)

    def restore(self) -> None:
        with self._lock:
            self._through = True

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            try:
                server = socket.create_connection(("127.0.0.1", self.target_port))
            except OSError:
                _reset(client)
                continue
            pair = (client, server)
            with self._lock:
                through = self._through
                if through:
                    self._pairs.add(pair)
            if not through:
                _reset(client)
                server.close()
                continue
            for source, sink in (pair, pair[::-1]):
                threading.Thread(target=self._copy, args=(source, sink), daemon=True).start()

    def _copy(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)


def _reset(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        # Both directions at once: a thread that is blocked in recv would keep the socket alive otherwise.
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()
