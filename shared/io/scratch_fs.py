"""A file system over another one that keeps every change to itself.

Tools run the product's own code on it, recovery for one, and see what it would do: reads show the files below with
the changes made here, and nothing below ever changes. Changes live in memory and end with the object.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import NoReturn

from shared.io.durable_fs import File, FileSystem
from shared.io.object_store import is_bucket

_PAGE_BYTES = 1 << 16


class _Content:
    """One file: what lies below up to `kept`, zeros behind that, changed pages on top."""

    def __init__(self, fs: FileSystem, below: str | None) -> None:
        self._fs = fs
        self._path = below
        self._below: File | None = None
        self._handles = 0
        self.size = 0
        if below is not None:
            self._below = fs.open(below)
            self.size = self._below.size()
        self._kept = self.size
        self._pages: dict[int, bytearray] = {}

    def opened(self) -> None:
        self._handles += 1

    def closed(self) -> None:
        """With the last handle goes the file below: a store may have more of them than a process may open."""
        self._handles -= 1
        if not self._handles and self._below is not None:
            self._below.close()
            self._below = None

    def read(self, length: int, offset: int) -> bytes:
        end = min(self.size, offset + length)
        if end <= offset:
            return b""
        touched = [
            page for page in self._pages if offset < (page + 1) * _PAGE_BYTES and page * _PAGE_BYTES < end
        ]
        plain = self._from_below(offset, end)
        if not touched:
            return plain
        found = bytearray(plain)
        for page in touched:
            start = page * _PAGE_BYTES
            low, high = max(start, offset), min(start + _PAGE_BYTES, end)
            found[low - offset : high - offset] = self._pages[page][low - start : high - start]
        return bytes(found)

    def _from_below(self, offset: int, end: int) -> bytes:
        kept = min(end, self._kept)
        found = b""
        if self._path is not None and kept > offset:
            if self._below is None:
                self._below = self._fs.open(self._path)
            found = self._below.pread(kept - offset, offset)
        return found if len(found) == end - offset else found.ljust(end - offset, b"\0")

    def write(self, content: bytes, offset: int) -> None:
        # Recovery writes what it has read once more: that is no change, and must not fill the memory.
        if offset + len(content) <= self.size and self.read(len(content), offset) == content:
            return
        self.size = max(self.size, offset + len(content))
        at = 0
        while at < len(content):
            page, inside = divmod(offset + at, _PAGE_BYTES)
            part = content[at : at + _PAGE_BYTES - inside]
            self._page(page)[inside : inside + len(part)] = part
            at += len(part)

    def _page(self, page: int) -> bytearray:
        held = self._pages.get(page)
        if held is None:
            start = page * _PAGE_BYTES
            below = self._from_below(start, min(start + _PAGE_BYTES, self.size)) if start < self.size else b""
            held = self._pages[page] = bytearray(below.ljust(_PAGE_BYTES, b"\0"))
        return held

    def truncate(self, size: int) -> None:
        if size < self.size:
            self._kept = min(self._kept, size)
            for page in list(self._pages):
                start = page * _PAGE_BYTES
                if start >= size:
                    del self._pages[page]
                elif size < start + _PAGE_BYTES:
                    self._pages[page][size - start :] = bytes(start + _PAGE_BYTES - size)
        self.size = size


class ScratchFile(File):
    def __init__(self, content: _Content, path: str, *, write: bool) -> None:
        self._content: _Content | None = content
        content.opened()
        self._path = path
        self._write = write

    @property
    def path(self) -> str:
        return self._path

    def fileno(self) -> int:
        return -1

    def size(self) -> int:
        return self._open().size

    def pread(self, length: int, offset: int) -> bytes:
        return self._open().read(length, offset)

    def pwritev(self, buffers: Sequence[bytes | memoryview], offset: int) -> int:
        content = b"".join(buffers)
        self._writable().write(content, offset)
        return len(content)

    def allocate(self, size: int) -> None:
        content = self._writable()
        if size > content.size:
            content.truncate(size)

    def truncate(self, size: int) -> None:
        self._writable().truncate(size)

    def sync_data(self) -> None:
        self._open()

    def close(self) -> None:
        content, self._content = self._content, None
        if content is not None:
            content.closed()

    def _open(self) -> _Content:
        if self._content is None:
            _fail(errno.EBADF, self._path)
        return self._content

    def _writable(self) -> _Content:
        if not self._write:
            _fail(errno.EBADF, self._path)
        return self._open()


class ScratchFileSystem(FileSystem):
    def __init__(self, below: FileSystem) -> None:
        self._below = below
        # What differs from below by path: a file, or None where there is nothing any more.
        self._changed: dict[str, _Content | None] = {}
        self._read: dict[
            str, _Content
        ] = {}  # files below that were opened: every handle sees the same changes
        self._made: set[str] = set()

    def boot_id(self) -> str:
        return self._below.boot_id()

    def free_bytes(self, path: str) -> int:
        while not is_bucket(path) and not self._below.exists(path) and path not in ("", "/", "."):
            path = os.path.dirname(path)
        return self._below.free_bytes(path or ".")

    def make_dir(self, path: str) -> None:
        if is_bucket(path):
            return
        path = _place(path)
        while path not in self._made and not self._below.exists(path):
            self._made.add(path)
            path = os.path.dirname(path)

    def list_dir(self, path: str) -> list[str]:
        names = set(self._below.list_dir(path))
        directory = _place(path)
        for changed, content in self._changed.items():
            parent, name = os.path.split(changed)
            if parent == directory:
                (names.add if content is not None else names.discard)(name)
        names.update(name for parent, name in map(os.path.split, self._made) if parent == directory)
        return sorted(names)

    def exists(self, path: str) -> bool:
        place = _place(path)
        if place in self._changed:
            return self._changed[place] is not None
        return place in self._made or self._below.exists(path)

    def create(self, path: str) -> File:
        if self.exists(path):
            _fail(errno.EEXIST, path)
        content = self._changed[_place(path)] = _Content(self._below, None)
        return ScratchFile(content, path, write=True)

    def open(self, path: str, *, write: bool = False) -> File:
        return ScratchFile(self._find(path), path, write=write)

    def rename(self, old: str, new: str) -> None:
        content = self._find(old)
        self._forget(old)
        self._changed[_place(new)] = content

    def rename_new(self, old: str, new: str) -> None:
        if self.exists(new):
            _fail(errno.EEXIST, new)
        self.rename(old, new)

    def unlink(self, path: str) -> None:
        if not self.exists(path):
            _fail(errno.ENOENT, path)
        self._forget(path)

    def sync_dir(self, path: str) -> None:
        pass

    def _find(self, path: str) -> _Content:
        place = _place(path)
        if place in self._changed:
            content = self._changed[place]
            if content is None:
                _fail(errno.ENOENT, path)
            return content
        if place not in self._read:
            self._read[place] = _Content(self._below, path)
        return self._read[place]

    def _forget(self, path: str) -> None:
        place = _place(path)
        self._read.pop(place, None)
        self._changed[place] = None


def _place(path: str) -> str:
    """One spelling for every path."""
    return path.rstrip("/") if is_bucket(path) else os.path.abspath(path)


def _fail(number: int, path: str) -> NoReturn:
    raise OSError(number, os.strerror(number), path)
