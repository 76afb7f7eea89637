"""The public port, held by the supervisor so that it outlives a gateway."""

from __future__ import annotations

import errno
import logging
import os
import socket
from collections.abc import Sequence
from typing import Final

import trio

from gateway.fast_lane.acceptor import open_listeners
from shared.io.durable_fs import FileSystem, write_atomically
from shared.settings import Settings
from topicsd.exits import Exit, StartRefused

log = logging.getLogger(__name__)

BACKLOG: Final = 1024
# If our predecessor was killed, its gateway still has the port until it has noticed.
_BUSY_RETRY_S: Final = 2.0
_BUSY_PAUSE_S: Final = 0.05


async def open_public_port(settings: Settings) -> list[socket.socket]:
    """Listening sockets, one per address of the host."""
    give_up_at = trio.current_time() + _BUSY_RETRY_S
    while True:
        try:
            return await open_listeners(settings.host, settings.port, backlog=BACKLOG)
        except socket.gaierror as err:
            message = f"host: {settings.host} cannot be resolved: {err.strerror}"
            raise StartRefused(Exit.BAD_SETTINGS, message) from err
        except OSError as err:
            if err.errno != errno.EADDRINUSE or trio.current_time() >= give_up_at:
                message = f"cannot listen on {settings.host} port {settings.port}: {err.strerror}"
                raise StartRefused(Exit.CANNOT_LISTEN, message) from err
        await trio.sleep(_BUSY_PAUSE_S)


def public_url(host: str, listeners: Sequence[socket.socket]) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port_number(listeners)}"


def port_number(listeners: Sequence[socket.socket]) -> int:
    port: int = listeners[0].getsockname()[1]
    return port


class PortFile:
    """`port_file`: the number of the port, there only while it is true or after a crash."""

    def __init__(self, fs: FileSystem, path: str | None) -> None:
        self._fs = fs
        self._path = None if path is None else os.path.abspath(path)

    def clear(self) -> None:
        """Remove the number of an earlier run, before somebody waits for ours."""
        if self._path is None:
            return
        try:
            if self._fs.exists(self._path):
                self._fs.unlink(self._path)
        except OSError as err:
            raise self._refused(err) from err

    def write(self, port: int) -> None:
        if self._path is None:
            return
        try:
            write_atomically(self._fs, self._path, [b"%d\n" % port])
        except OSError as err:
            raise self._refused(err) from err

    def _refused(self, err: OSError) -> StartRefused:
        message = f"port_file: {self._path} cannot be written: {err.strerror}"
        return StartRefused(Exit.BAD_SETTINGS, message)
