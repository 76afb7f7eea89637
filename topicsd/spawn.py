"""Starts the process of a child, and starts the first ones ahead of time.

Nothing here needs the event loop: a child takes a quarter of a second to load its code, and so the first
children are started before this process loads the rest of its own. They wait for their boot line, and if it
never comes, because the start is refused after all, for the end of the control socket.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Final, Self

from shared.settings import SETTINGS
from topicsd.service_notify import MANAGER_ENV

WORKER_MODULE: Final = "shard_worker"
GATEWAY_MODULE: Final = "gateway"


class Spawned:
    """A process that has been started, and our ends of what ties it to us."""

    def __init__(
        self, process: subprocess.Popen[bytes], *, pidfd: int, control: socket.socket, status_fd: int
    ) -> None:
        self.process = process
        self.pidfd = pidfd
        self.control = control
        self.status_fd = status_fd

    def discard(self) -> None:
        """For one that nobody has spoken to yet."""
        self.process.kill()
        self.process.wait()
        self.control.close()
        os.close(self.status_fd)
        os.close(self.pidfd)


def spawn(module: str, *, env: Mapping[str, str]) -> Spawned:
    """Raises OSError, with nothing left behind."""
    with ExitStack() as theirs, ExitStack() as undo:
        control_theirs, control_ours = socket.socketpair()
        theirs.callback(control_theirs.close)
        undo.callback(control_ours.close)
        status_ours, status_theirs = os.pipe()
        theirs.callback(os.close, status_theirs)
        undo.callback(os.close, status_ours)
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and a module of ours
            # -P: a directory named "gateway" where the server happens to be started is not ours.
            [sys.executable, "-P", "-m", module, "--status-fd", str(status_theirs)],
            stdin=control_theirs.fileno(),
            pass_fds=[status_theirs],
            env=env,
            # Out of the terminal's reach: Ctrl-C is for the supervisor, which then drains in order.
            start_new_session=True,
        )
        undo.callback(process.wait)
        undo.callback(process.kill)
        pidfd = os.pidfd_open(process.pid)
        undo.pop_all()
    return Spawned(process, pidfd=pidfd, control=control_ours, status_fd=status_ours)


class Forerunners:
    """Children that were started before anybody could tell them what to do. Ends those that nobody took."""

    def __init__(self) -> None:
        self._waiting: list[tuple[str, Spawned]] = []

    def start(self, modules: Sequence[str], *, env: Mapping[str, str]) -> None:
        """Raises OSError; those started before it wait as before."""
        for module in modules:
            self._waiting.append((module, spawn(module, env=env)))

    def take(self, module: str) -> Spawned | None:
        for at, (name, spawned) in enumerate(self._waiting):
            if name == module:
                del self._waiting[at]
                return spawned
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        while self._waiting:
            self._waiting.pop()[1].discard()


def child_environment(env: Mapping[str, str]) -> dict[str, str]:
    """The environment for children: what they must know comes over the socket, and secrets not at all."""
    ours_alone = {*MANAGER_ENV, *(row.env for row in SETTINGS if row.secret)}
    return {name: value for name, value in env.items() if name not in ours_alone}
