"""Listening sockets that a service manager has opened for us (systemd.socket(5), sd_listen_fds(3)).

The manager keeps them open while the server restarts, so that clients wait instead of being refused, and a port
below 1024 needs no privilege here.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Final

from shared.settings import Settings, is_loopback
from topicsd.exits import Exit, StartRefused

FIRST_FD: Final = 3
FD_NAME: Final = "http"
"""`FileDescriptorName=` of our socket unit. If any socket has this name, the others are left alone."""


def take_inherited_port(env: Mapping[str, str], settings: Settings) -> list[socket.socket]:
    """The sockets meant for this process; none if there are none. Raises StartRefused."""
    if env.get("LISTEN_PID") != str(os.getpid()):
        return []
    count = env.get("LISTEN_FDS", "")
    fds = range(FIRST_FD, FIRST_FD + (int(count) if count.isdecimal() else 0))
    names = env.get("LISTEN_FDNAMES", "").split(":")
    if FD_NAME in names:
        fds_wanted = [fd for fd, name in zip(fds, names, strict=False) if name == FD_NAME]
    else:
        fds_wanted = list(fds)
    listeners = [_listener(fd) for fd in fds_wanted]
    for listener in listeners:
        _refuse_open_door(listener, settings)
    return listeners


def _listener(fd: int) -> socket.socket:
    try:
        sock = socket.socket(fileno=fd)
        sock.set_inheritable(False)
        listening = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as err:
        raise _refused(fd, f"is no socket ({err.strerror})") from err
    if sock.family not in (socket.AF_INET, socket.AF_INET6) or sock.type != socket.SOCK_STREAM:
        raise _refused(fd, "is not a TCP socket: use ListenStream= with a port")
    if not listening:
        raise _refused(fd, "does not listen: use Accept=no")
    sock.setblocking(False)
    return sock


def _refuse_open_door(listener: socket.socket, settings: Settings) -> None:
    """The rule of `host`, for an address that the settings do not know."""
    host = listener.getsockname()[0]
    if is_loopback(host) or settings.allow_insecure_no_auth or len(settings.key_ring()) > 0:
        return
    raise StartRefused(
        Exit.BAD_SETTINGS,
        f"the inherited socket listens on {host}, which others can reach, and there are no API keys: set "
        "TOPICS_API_KEYS_FILE, let the socket listen on 127.0.0.1, or set TOPICS_ALLOW_INSECURE_NO_AUTH=1",
    )


def _refused(fd: int, why: str) -> StartRefused:
    return StartRefused(Exit.CANNOT_LISTEN, f"descriptor {fd}, passed by the service manager, {why}")
