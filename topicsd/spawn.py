"""A child process of the supervisor, what ties the two together, and how one is started from scratch."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Final, NamedTuple, Protocol

WORKER_MODULE: Final = "shard_worker"
GATEWAY_MODULE: Final = "gateway"


class Process(Protocol):
    """What we do with a child, whoever started it; `subprocess.Popen` is one."""

    @property
    def pid(self) -> int: ...

    @property
    def returncode(self) -> int | None: ...

    def poll(self) -> int | None: ...

    def wait(self) -> int: ...

    def kill(self) -> None: ...


class Ends(NamedTuple):
    """One side's ends of the control socket and the status pipe."""

    control: socket.socket
    status_fd: int

    @property
    def fds(self) -> tuple[int, int]:
        return self.control.fileno(), self.status_fd

    def close(self) -> None:
        self.control.close()
        os.close(self.status_fd)


@contextmanager
def open_ends() -> Iterator[tuple[Ends, Ends]]:
    """Ours and the child's. The child's are closed at the end, and ours only if it comes to nothing."""
    with ExitStack() as theirs, ExitStack() as undo:
        control_theirs, control_ours = socket.socketpair()
        theirs.callback(control_theirs.close)
        undo.callback(control_ours.close)
        status_ours, status_theirs = os.pipe()
        theirs.callback(os.close, status_theirs)
        undo.callback(os.close, status_ours)
        yield Ends(control_ours, status_ours), Ends(control_theirs, status_theirs)
        undo.pop_all()


class Spawned:
    """A process that has been started, and our ends of what ties it to us."""

    def __init__(self, process: Process, ends: Ends) -> None:
        """Raises OSError."""
        self.process = process
        self.pidfd = os.pidfd_open(process.pid)
        self.control = ends.control
        self.status_fd = ends.status_fd

    def discard(self) -> None:
        """For one that nobody has spoken to yet."""
        self.process.kill()
        self.process.wait()
        self.control.close()
        os.close(self.status_fd)
        os.close(self.pidfd)


def spawn(module: str, *, env: Mapping[str, str]) -> Spawned:
    """Raises OSError, with nothing left behind."""
    import subprocess  # the first children come without it, while this process has better things to load

    with open_ends() as (ours, theirs), ExitStack() as undo:
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and a module of ours
            # -P: a directory named "gateway" where the server happens to be started is not ours.
            [sys.executable, "-P", "-m", module, "--status-fd", str(theirs.status_fd)],
            stdin=theirs.control.fileno(),
            pass_fds=[theirs.status_fd],
            env=env,
            # Out of the terminal's reach: Ctrl-C is for the supervisor, which then drains in order.
            start_new_session=True,
        )
        undo.callback(process.wait)
        undo.callback(process.kill)
        spawned = Spawned(process, ours)
        undo.pop_all()
    return spawned
