"""One worker per data directory: an exclusive `flock` on `<dir>/LOCK`.

The kernel drops the lock with the last descriptor, so a killed holder never blocks its successor and
no stale lock has to be judged. The pid in the file only serves the error message. The file is never
removed: a process still waiting on the old inode would lock something that no longer has a name.

The descriptor is close-on-exec. A child made by a bare fork would share the lock and keep it alive.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from types import TracebackType
from typing import Self

LOCK_NAME = "LOCK"

# Longer than any pid; bounds what we read from a file that someone else may have put there.
_PID_TEXT_BYTES = 32


class DirectoryLocked(Exception):
    """Another process owns the directory. `holder_pid` is None if it could not be read."""

    def __init__(self, *, path: str, holder_pid: int | None) -> None:
        holder = "an unknown process" if holder_pid is None else f"process {holder_pid}"
        super().__init__(f"data directory {path} is in use by {holder}")
        self.path = path
        self.holder_pid = holder_pid


class DirLock:
    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._fd: int | None = None

    def __repr__(self) -> str:
        return f"DirLock({self._directory!r}, held={self.held})"

    @property
    def held(self) -> bool:
        return self._fd is not None

    def acquire(self) -> None:
        """Take the lock or raise `DirectoryLocked` at once; never waits."""
        assert self._fd is None, "lock is already held by this object"
        lock_path = os.path.join(self._directory, LOCK_NAME)
        fd = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            self._lock(fd)
            _write_pid(fd)
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd

    def release(self) -> None:
        """Give the lock back; does nothing if it is not held."""
        fd, self._fd = self._fd, None
        if fd is None:
            return
        try:
            # Still under the lock, so this cannot wipe the pid of a successor.
            os.ftruncate(fd, 0)
        finally:
            os.close(fd)

    def _lock(self, fd: int) -> None:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as err:
            raise DirectoryLocked(path=self._directory, holder_pid=_read_pid(fd)) from err

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()


def _write_pid(fd: int) -> None:
    try:
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode("ascii"), 0)
    except OSError as err:
        # A full disk must still be served for reading, and the pid is only a hint.
        if err.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise


def _read_pid(fd: int) -> int | None:
    # The holder may be between locking and writing, so anything may stand here.
    with contextlib.suppress(ValueError):
        return int(os.pread(fd, _PID_TEXT_BYTES, 0).decode("ascii"))
    return None
