"""The first children of the server, started before anybody can tell them what to do.

`topicsd/loader.py` loads their code and forks them while this process loads the rest of its own. They wait for their
boot line, and if it never comes, because the start is refused after all, for the end of the control socket. Nothing
depends on them: a child that did not come this way is started from scratch (`topicsd/spawn.py`).
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
from collections.abc import Sequence
from typing import Final, Self

from topicsd.loader_start import ForkedLoader, Loader
from topicsd.spawn import Ends, Spawned, open_ends

_PR_SET_CHILD_SUBREAPER: Final = 36
_ANSWER_MAX_BYTES: Final = 64


class AdoptedProcess:
    """A child that another process of ours has forked."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self._reap(os.WNOHANG)

    def wait(self) -> int:
        returncode = self._reap(0)
        assert returncode is not None
        return returncode

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def _reap(self, flags: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, flags)
            if pid != 0:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


class Forerunners:
    """Children that were started ahead of time. Ends those that nobody took."""

    def __init__(self, loader: Loader | ForkedLoader | None = None) -> None:
        self._loader = loader
        self._asked_for: list[tuple[str, Ends]] = []
        self._pids: list[int] = []
        self._waiting: list[tuple[str, Spawned]] = []

    @property
    def link(self) -> socket.socket | None:
        """Readable when there is something for `hear`; None: no more will come."""
        return None if self._loader is None else self._loader.link

    def start(self, modules: Sequence[str]) -> None:
        """Have these forked, in this order, and no others. Raises OSError: then they may come or not."""
        if self._loader is None:
            return
        try:
            _adopt_orphans(True)  # the loader is their parent until it ends
            for module in modules:
                with open_ends() as (ours, theirs):
                    socket.send_fds(self._loader.link, [module.encode()], theirs.fds)
                self._asked_for.append((module, ours))
        finally:
            self._loader.link.shutdown(socket.SHUT_WR)

    def hear(self) -> None:
        """Take the loader's next word. Blocks until there is one."""
        assert self._loader is not None
        try:
            answer = self._loader.link.recv(_ANSWER_MAX_BYTES)
        except ConnectionResetError:
            return  # it was killed before it had read everything; what it said before comes next
        if answer:
            self._pids.append(int(answer))
        else:
            self._take_over(self._loader)

    def take(self, module: str) -> Spawned | None:
        for at, (name, spawned) in enumerate(self._waiting):
            if name == module:
                del self._waiting[at]
                return spawned
        return None

    def give_up(self) -> None:
        """Go on without those that have not come yet."""
        if self._loader is not None:
            os.kill(self._loader.pid, signal.SIGKILL)
        while self._loader is not None:
            self.hear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.give_up()
        while self._waiting:
            self._waiting.pop()[1].discard()

    def _take_over(self, loader: Loader | ForkedLoader) -> None:
        """The loader has ended, so its children are ours now."""
        loader.link.close()
        os.waitpid(loader.pid, 0)
        self._loader = None
        _adopt_orphans(False)
        for at, (module, ends) in enumerate(self._asked_for):
            try:
                self._waiting.append((module, Spawned(AdoptedProcess(self._pids[at]), ends)))
            except (IndexError, OSError):
                ends.close()  # one that was forked all the same takes it for the end
        self._asked_for.clear()


def _adopt_orphans(adopt: bool) -> None:
    """Whether processes whose parent ends become our children, if they descend from us. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, int(adopt), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "children of a child cannot be adopted here")
