"""The only door to the disk for data files: `FileSystem`, and the real one.

Everything that must survive a crash goes through this protocol, so that the tests can put a disk
behind it that loses unsynced bytes, forgets unsynced renames, tears writes and fails on cue
(tests/support/fake_disk.py). Nobody else in the product calls fsync, rename or unlink.

What the two implementations agree on:

- A write is visible to every later read at once, and durable only after `sync_data` of that file.
- A new name, a rename or a removal is visible at once, and durable only after `sync_dir`.
- `boot_id` changes exactly when unsynced bytes may have been lost (a power cut, not a dead process).
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import uuid
from collections.abc import Sequence
from typing import Protocol

# Linux takes at most this many buffers in one call (UIO_MAXIOV).
IOV_MAX = 1024
BOOT_ID_PATH = "/proc/sys/kernel/random/boot_id"


class File(Protocol):
    """An open file. `fileno` is a real descriptor where there is one, else -1."""

    @property
    def path(self) -> str: ...
    def fileno(self) -> int: ...
    def size(self) -> int: ...
    def pread(self, length: int, offset: int) -> bytes:
        """Up to `length` bytes; fewer only at the end of the file."""

    def pwritev(self, buffers: Sequence[bytes | memoryview], offset: int) -> int:
        """Write all buffers at `offset`, going on after short writes; returns the byte count."""

    def data_end(self) -> int:
        """From here on there are only zeros, as far as is known without reading; at most its size."""
        return self.size()

    def allocate(self, size: int) -> None:
        """Make the file at least `size` bytes long, new space reading as zeros."""

    def truncate(self, size: int) -> None: ...
    def sync_data(self) -> None: ...
    def close(self) -> None: ...


class FileSystem(Protocol):
    def boot_id(self) -> str: ...
    def free_bytes(self, path: str) -> int: ...
    def make_dir(self, path: str) -> None:
        """Create the directory (mode 0700) and its parents if absent; sync each parent."""

    def list_dir(self, path: str) -> list[str]:
        """Sorted names; empty if the directory is absent."""

    def exists(self, path: str) -> bool: ...
    def create(self, path: str) -> File:
        """A new empty file, read-write; fails with FileExistsError if the name is taken."""

    def open(self, path: str, *, write: bool = False) -> File: ...
    def rename(self, old: str, new: str) -> None: ...
    def rename_new(self, old: str, new: str) -> None:
        """Like `rename`, but FileExistsError if the new name is taken, whoever took it and when."""

    def unlink(self, path: str) -> None: ...
    def sync_dir(self, path: str) -> None: ...


class RealFile(File):
    """A descriptor and the path it was opened by. One owner; not for use by two threads at once."""

    def __init__(self, fd: int, path: str) -> None:
        self._fd = fd
        self._path = path

    def __repr__(self) -> str:
        return f"RealFile({self._path!r}, fd={self._fd})"

    @property
    def path(self) -> str:
        return self._path

    def fileno(self) -> int:
        return self._fd

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def pread(self, length: int, offset: int) -> bytes:
        found = os.pread(self._fd, length, offset)
        if len(found) == length or not found:
            return found
        return self._pread_rest(found, length, offset)

    def _pread_rest(self, found: bytes, length: int, offset: int) -> bytes:
        # One short read does not prove the end of the file (a call moves 2 GiB at most); an empty one does.
        parts = [found]
        done = len(found)
        while done < length:
            part = os.pread(self._fd, length - done, offset + done)
            if not part:
                break
            parts.append(part)
            done += len(part)
        return b"".join(parts)

    def pwritev(self, buffers: Sequence[bytes | memoryview], offset: int) -> int:
        if offset < 0:
            # The system call behind os.pwritev takes -1 for "the current position" and would overwrite
            # the start of the file.
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), self._path)
        # len() and not nbytes keeps the sum in C; so views must be of single bytes, as everywhere here.
        if len(buffers) == 1:
            # Nearly always, and 2 µs cheaper than setting up a vector of one.
            total = len(buffers[0])
            written = os.pwrite(self._fd, buffers[0], offset)
        else:
            total = sum(map(len, buffers))
            written = os.pwritev(self._fd, buffers, offset) if len(buffers) <= IOV_MAX else 0
        if written == total:
            return total
        self._pwritev_rest(buffers, offset, written, total)
        return total

    def _pwritev_rest(
        self, buffers: Sequence[bytes | memoryview], offset: int, written: int, total: int
    ) -> None:
        views = [memoryview(buffer) for buffer in buffers]
        first, skip = 0, written
        while written < total:
            while skip >= len(views[first]):
                skip -= len(views[first])
                first += 1
            views[first] = views[first][skip:]
            skip = os.pwritev(self._fd, views[first : first + IOV_MAX], offset + written)
            if skip == 0:
                # Nothing written and no reason given: going on could spin for ever.
                raise OSError(errno.EIO, "write made no progress", self._path)
            written += skip

    def data_end(self) -> int:
        # Allocated and never written is a hole to lseek(2), and reads as zeros. What was written and not yet synced
        # is data, and a file system that knows no holes calls everything data.
        end = 0
        try:
            while True:
                data = os.lseek(self._fd, end, os.SEEK_DATA)
                end = os.lseek(self._fd, data, os.SEEK_HOLE)
        except OSError as err:
            if err.errno == errno.ENXIO:  # no data at or behind `end`
                return end
            return self.size()

    def allocate(self, size: int) -> None:
        old_size = self.size()
        if size <= old_size:
            return
        try:
            os.posix_fallocate(self._fd, old_size, size - old_size)
        except OSError as err:
            if err.errno in (errno.EOPNOTSUPP, errno.EINVAL):
                # This file system cannot reserve space. The length is still right; ENOSPC then comes
                # with the write instead of here.
                os.ftruncate(self._fd, size)
                return
            # Some file systems keep the part that did fit, and a full disk needs it back.
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, old_size)
            raise

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def sync_data(self) -> None:
        if self._fd < 0:
            # os.fdatasync would raise ValueError, which no handler of disk errors catches.
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self._path)
        os.fdatasync(self._fd)

    def close(self) -> None:
        # Forgotten first: a late use must fail with EBADF, not reach another file that got the number.
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class RealFileSystem(FileSystem):
    def __init__(self) -> None:
        self._boot_id: str | None = None

    def boot_id(self) -> str:
        if self._boot_id is None:
            self._boot_id = _read_boot_id()
        return self._boot_id

    def free_bytes(self, path: str) -> int:
        stats = os.statvfs(path)
        # f_bavail, not f_bfree: blocks reserved for root are not ours to count on.
        return stats.f_bavail * stats.f_frsize

    def make_dir(self, path: str) -> None:
        missing: list[str] = []
        existing = os.path.abspath(path)
        while not self.exists(existing):
            missing.append(existing)
            existing = os.path.dirname(existing)
        if not missing and not os.path.isdir(existing):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        # An earlier run may have died between the mkdir and the sync: the entry is visible, not durable.
        # A parent we may not read is one we did not create in.
        with contextlib.suppress(PermissionError):
            self.sync_dir(os.path.dirname(existing))
        for each in reversed(missing):
            try:
                os.mkdir(each, 0o700)
            except FileExistsError:
                # Workers starting together share parents; whoever was first, both sync.
                if not os.path.isdir(each):
                    raise
            self.sync_dir(os.path.dirname(each))

    def list_dir(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def exists(self, path: str) -> bool:
        # Not os.path.exists: it answers False to EIO and EACCES too, and a store that believes that
        # would start empty over existing data.
        try:
            os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def create(self, path: str) -> File:
        return RealFile(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), path)

    def open(self, path: str, *, write: bool = False) -> File:
        file = RealFile(os.open(path, (os.O_RDWR if write else os.O_RDONLY) | os.O_CLOEXEC), path)
        # Reading is allowed to open a directory and would fail only later, far from the cause.
        if stat.S_ISDIR(os.fstat(file.fileno()).st_mode):
            file.close()
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return file

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new)

    def rename_new(self, old: str, new: str) -> None:
        try:
            os.link(old, new)
        except OSError as err:
            if err.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
                raise
            # No hard links here (FAT, some network mounts): two writers at the same instant are not told apart.
            if self.exists(new):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new) from None
            os.rename(old, new)
            return
        os.unlink(old)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def sync_dir(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _read_boot_id() -> str:
    try:
        with open(BOOT_ID_PATH, encoding="ascii") as file:
            found = file.read().strip()
    except (OSError, UnicodeDecodeError):
        found = ""
    # An id never seen before makes recovery assume a power cut: slower, and never wrong.
    return found or str(uuid.uuid4())


def write_atomically(fs: FileSystem, path: str, buffers: Sequence[bytes | memoryview]) -> None:
    """Replace `path` so that a crash at any point leaves the old content or the new, whole.

    On return the new content is durable. After an error the old content is still in place, except
    when only the last step failed (`sync_dir`): then the new one is visible, but may not last.
    """
    aside = path + ".tmp"
    if fs.exists(aside):
        fs.unlink(aside)
    file = fs.create(aside)
    try:
        try:
            file.pwritev(buffers, 0)
            # Before the rename: the other order can leave the new name on bytes that never arrived.
            file.sync_data()
        finally:
            file.close()
        fs.rename(aside, path)
    except OSError:
        # On a full disk the leftover would hold the very space that is missing. If it cannot go now,
        # the next write removes it; the caller needs the first error, not this one.
        with contextlib.suppress(OSError):
            fs.unlink(aside)
        raise
    fs.sync_dir(os.path.dirname(path) or ".")


def read_whole(fs: FileSystem, path: str) -> bytes:
    file = fs.open(path)
    try:
        return file.pread(file.size(), 0)
    finally:
        file.close()
