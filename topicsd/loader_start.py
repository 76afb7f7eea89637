"""Starts the process that loads the children's code: `topicsd/loader.py`.

It is forked as soon as what all processes of the server share is loaded (`ForkedLoader`). With a secret in our
environment it is started by argv instead, first of all (`Loader`): a fork has the environment of its parent, in
`/proc` and in memory. That costs a second interpreter, and everything is loaded twice at the same time.

This is the first code that `topicsd serve` runs, so it imports little: not even `typing`.
"""

from __future__ import annotations

import gc
import os
import resource
import socket
import sys
from collections.abc import Mapping

# Addressed to this process alone: a child that inherited them could speak to the service manager in our name.
MANAGER_ENV = (
    "NOTIFY_SOCKET",
    "WATCHDOG_USEC",
    "WATCHDOG_PID",
    "LISTEN_FDS",
    "LISTEN_PID",
    "LISTEN_FDNAMES",
    "CREDENTIALS_DIRECTORY",
)
# Settings that are secrets. Named here, because the table of settings is not loaded yet.
SECRET_ENV = ("TOPICS_API_KEYS",)

_MODULE = "topicsd.loader"
# For `ps`, while it loads. Its children put their own words there, which need the room.
_ARGS = ("--for-children-of", "topicsd-serve")


class Loader:
    """The process, and the socket over which it is asked for children."""

    def __init__(self, *, env: Mapping[str, str]) -> None:
        """Begins to load, in an environment for children. Raises OSError."""
        self.link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # -P: a directory named "gateway" where the server happens to be started is not ours.
        argv = [sys.executable, "-P", "-m", _MODULE, *_ARGS]
        stdin = [(os.POSIX_SPAWN_DUP2, theirs.fileno(), 0)]
        try:
            self.pid = os.posix_spawn(sys.executable, argv, env, file_actions=stdin, setsid=True)
        except OSError:
            self.link.close()
            raise
        finally:
            theirs.close()


class ForkedLoader:
    """The same, as a copy of this process."""

    def __init__(self) -> None:
        """Returns in both of them. Raises OSError. What all share is loaded, and nothing runs: no loop, no thread."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # What is loaded stays for good: collections need not look at it, and it stays shared between processes.
        gc.freeze()
        try:
            self.pid = os.fork()
        except OSError:
            ours.close()
            theirs.close()
            raise
        self.is_copy = self.pid == 0
        self.link, other = (theirs, ours) if self.is_copy else (ours, theirs)
        other.close()

    def run(self) -> None:
        """What the copy has to go on with: it ends in here, and so do the children that it forks."""
        from topicsd.loader import main

        # What a process that is started by argv does not have in the first place.
        os.setsid()
        os.dup2(self.link.fileno(), 0)
        self.link.close()
        for name in MANAGER_ENV:
            os.environ.pop(name, None)
        if not sys.flags.safe_path:
            try:
                os.getcwd()
            except FileNotFoundError:
                pass  # for a directory that is gone `python -m` has put nothing there
            else:
                # As by -P: it is where the server happens to be started, or where its script lies.
                del sys.path[0]
        main()


def child_environment(env: Mapping[str, str]) -> dict[str, str]:
    """The environment for children: what they must know comes over the socket, and secrets not at all."""
    return {name: value for name, value in env.items() if name not in (*MANAGER_ENV, *SECRET_ENV)}


def raise_file_limit() -> None:
    """For the children, which inherit it: every client is a descriptor."""
    # The soft limit is low for the sake of programs that use select().
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
