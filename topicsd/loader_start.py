"""Starts the process that loads the children's code.

That is the first thing `topicsd serve` does, so this module imports little: not even `typing`.
"""

from __future__ import annotations

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


def child_environment(env: Mapping[str, str]) -> dict[str, str]:
    """The environment for children: what they must know comes over the socket, and secrets not at all."""
    return {name: value for name, value in env.items() if name not in (*MANAGER_ENV, *SECRET_ENV)}


def raise_file_limit() -> None:
    """For the children, which inherit it: every client is a descriptor."""
    # The soft limit is low for the sake of programs that use select().
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
