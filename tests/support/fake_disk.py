"""An in-memory disk that forgets what was not synced, tears writes and fails on cue.

Each file has two sides: `current` (the page cache, what every read shows) and `durable` (the platter),
with the unsynced changes between them listed in order. Directories are the same, with a journal of
entry changes in place of writes. Nothing here uses a clock or a global random source, so equal calls
and equal seeds give equal disks.

What a power cut may do, beyond dropping everything unsynced:

- each unsynced write is on its own kept, dropped, cut to a prefix, or kept in some of its 512-byte
  sectors only; so a later write may last where an earlier one did not;
- a lost write past the end may still have grown the file, which then reads as zeros there;
- each directory keeps some prefix of its journal. A rename between two directories is one step in both
  journals: it lasts whole or not at all, and syncing either directory makes it last.

The process side (open handles, armed crash) ends with `lose_power` and `kill_process`; injected faults
belong to the disk and stay until used up or `clear_faults`.
"""

from __future__ import annotations

import errno
import os
import posixpath
import random
import threading
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NoReturn, Self

from shared.io.durable_fs import File, FileSystem

SECTOR_BYTES = 512
UNLIMITED_FREE_BYTES = 1 << 40

Op = Literal[
    "write", "sync", "syncdir", "create", "open", "rename", "unlink", "allocate", "truncate", "mkdir", "read"
]
Keep = Literal["random", "none", "all"]

MUTATING: frozenset[Op] = frozenset(
    {"write", "allocate", "truncate", "sync", "create", "rename", "unlink", "syncdir", "mkdir"}
)


class PowerCut(BaseException):
    """The armed crash point was reached. Not an Exception, so that no handler of the product survives it."""


class DeadHandle(AssertionError):
    """A file opened before a power cut or kill was used after it: the process that had it is gone."""


@dataclass(frozen=True, slots=True)
class _Write:
    offset: int
    content: bytes

    @property
    def end(self) -> int:
        return self.offset + len(self.content)


@dataclass(frozen=True, slots=True)
class _Grow:
    size: int


@dataclass(frozen=True, slots=True)
class _SetSize:
    size: int


_Change = _Write | _Grow | _SetSize


def _grow(content: bytearray, size: int) -> None:
    if size > len(content):
        content.extend(bytes(size - len(content)))


def _apply(content: bytearray, change: _Change) -> None:
    match change:
        case _Write(offset, written):
            if written:
                _grow(content, offset)
                content[offset : offset + len(written)] = written
        case _Grow(size):
            _grow(content, size)
        case _SetSize(size):
            _grow(content, size)
            del content[size:]


class _FileNode:
    def __init__(self, ino: int) -> None:
        self.ino = ino
        self.current = bytearray()
        self.durable = bytearray()
        self.unsynced: list[_Change] = []

    def change(self, change: _Change) -> None:
        _apply(self.current, change)
        self.unsynced.append(change)

    def sync(self) -> None:
        for change in self.unsynced:
            _apply(self.durable, change)
        self.unsynced.clear()

    def lose_dirty_pages(self) -> None:
        # As Linux does after a failed writeback: the pages stay readable and count as clean, so the next
        # sync has nothing to write. Sizes are metadata, journaled apart, and still arrive with it.
        self.unsynced = [
            _Grow(change.end) if isinstance(change, _Write) else change for change in self.unsynced
        ]

    def settle(self, keep: Keep, rng: random.Random) -> None:
        """Become what the platter holds after a power cut."""
        if keep != "none":
            for change in self.unsynced:
                for part in [change] if keep == "all" else _surviving(change, rng):
                    _apply(self.durable, part)
        self.unsynced.clear()
        self.current = bytearray(self.durable)

    def damage(self, change: _Write | _SetSize) -> None:
        """Change the platter and the page cache at once, behind the product's back."""
        _apply(self.current, change)
        if not self.unsynced:
            _apply(self.durable, change)
            return
        # Bytes that never reached the platter cannot rot there; and what is still to be written must
        # carry the damage too, or the next sync would repair it.
        platter_bytes = len(self.durable)
        _apply(self.durable, change)
        del self.durable[platter_bytes:]
        self.unsynced.append(change)


def _surviving(change: _Change, rng: random.Random) -> Iterator[_Change]:
    fate = rng.choice(("kept", "dropped", "prefix", "sectors"))
    if not isinstance(change, _Write):
        # A size is one number in an inode: there or not.
        if fate in ("kept", "prefix"):
            yield change
        return
    if fate == "kept":
        yield change
        return
    if rng.random() < 0.5:
        yield _Grow(change.end)
    if fate == "prefix":
        yield _Write(change.offset, change.content[: rng.randrange(len(change.content) + 1)])
    elif fate == "sectors":
        for sector in _sectors(change):
            if rng.random() < 0.5:
                yield sector


def _sectors(write: _Write) -> Iterator[_Write]:
    start = write.offset
    while start < write.end:
        end = min(write.end, start - start % SECTOR_BYTES + SECTOR_BYTES)
        yield _Write(start, write.content[start - write.offset : end - write.offset])
        start = end


class _DirNode:
    def __init__(self, ino: int) -> None:
        self.ino = ino
        self.current: dict[str, _Node] = {}
        self.durable: dict[str, _Node] = {}
        self.journal: list[_Step] = []


_Node = _FileNode | _DirNode


@dataclass(slots=True, eq=False)
class _Step:
    """One atomic change of directory entries: (directory, name, what it now names)."""

    serial: int
    effects: list[tuple[_DirNode, str, _Node | None]]

    def dirs(self) -> list[_DirNode]:
        return list({directory.ino: directory for directory, _, _ in self.effects}.values())

    def apply(self, side: Literal["current", "durable"]) -> None:
        for directory, name, node in self.effects:
            entries = directory.current if side == "current" else directory.durable
            if node is None:
                entries.pop(name, None)
            else:
                entries[name] = node


@dataclass(slots=True)
class _Fault:
    op: Op
    nth: int
    error: int
    path_contains: str | None
    times: int | None
    written_bytes: int = 0
    seen: int = 0

    def fires(self, op: Op, paths: Sequence[str]) -> bool:
        if op != self.op:
            return False
        if self.path_contains is not None and not any(self.path_contains in path for path in paths):
            return False
        self.seen += 1
        return self.seen >= self.nth and (self.times is None or self.seen < self.nth + self.times)


@dataclass(frozen=True, slots=True)
class _Crash:
    at_call: int
    half: bool
    seed: int


@dataclass(frozen=True, slots=True)
class _Refusal:
    """Why a call fails, and how many bytes of it happen all the same."""

    error: BaseException
    done_bytes: int = 0


def _fail(number: int, path: str) -> NoReturn:
    raise OSError(number, os.strerror(number), path)


def _normal(path: str) -> str:
    # normpath keeps exactly two leading slashes, as POSIX allows them a meaning; here they have none.
    return "/" + posixpath.normpath("/" + path).lstrip("/")


class FakeFile(File):
    """A handle. Dies with its process: every use but `close` then raises `DeadHandle`."""

    def __init__(self, disk: FakeDisk, node: _FileNode, path: str, *, write: bool, process: int) -> None:
        self._disk = disk
        self._node = node
        self._path = path
        self._write = write
        self._process = process
        self._closed = False

    def __repr__(self) -> str:
        return f"FakeFile({self._path!r}, ino={self._node.ino})"

    @property
    def path(self) -> str:
        return self._path

    def fileno(self) -> int:
        return -1

    def size(self) -> int:
        with self._disk._lock:
            self._check_usable()
            return len(self._node.current)

    def pread(self, length: int, offset: int) -> bytes:
        if length < 0 or offset < 0:
            _fail(errno.EINVAL, self._path)
        with self._disk._lock:
            self._check_usable()
            self._disk._admit("read", self._path)
            with memoryview(self._node.current) as content:
                return bytes(content[offset : offset + length])

    def pwritev(self, buffers: Sequence[bytes | memoryview], offset: int) -> int:
        if offset < 0:
            _fail(errno.EINVAL, self._path)
        with self._disk._lock:
            self._check_usable()
            if not self._write:
                _fail(errno.EBADF, self._path)
            content = b"".join(buffers)
            refusal = self._disk._judge("write", [self._path], len(content))
            if refusal is None:
                refusal = self._disk._judge_space(self._node, _Write(offset, content), self._path)
            done = content if refusal is None else content[: refusal.done_bytes]
            if done:
                self._node.change(_Write(offset, done))
            if refusal is not None:
                raise refusal.error
            return len(content)

    def allocate(self, size: int) -> None:
        with self._disk._lock:
            self._check_usable()
            growth = size - len(self._node.current)
            if growth <= 0:
                return
            if not self._write:
                _fail(errno.EBADF, self._path)
            refusal = self._disk._judge("allocate", [self._path], growth)
            if refusal is None:
                refusal = self._disk._judge_space(self._node, _Grow(size), self._path)
            done = growth if refusal is None else refusal.done_bytes
            if done:
                self._node.change(_Grow(size - growth + done))
            if refusal is not None:
                raise refusal.error

    def truncate(self, size: int) -> None:
        if size < 0:
            _fail(errno.EINVAL, self._path)
        with self._disk._lock:
            self._check_usable()
            if not self._write:
                _fail(errno.EINVAL, self._path)
            self._disk._admit("truncate", self._path)
            refusal = self._disk._judge_space(self._node, _Grow(size), self._path)
            if refusal is not None:
                raise refusal.error
            self._node.change(_SetSize(size))

    def sync_data(self) -> None:
        with self._disk._lock:
            self._check_usable()
            refusal = self._disk._judge("sync", [self._path], 0)
            if refusal is None:
                self._node.sync()
                return
            if isinstance(refusal.error, OSError):
                self._node.lose_dirty_pages()
            raise refusal.error

    def close(self) -> None:
        # Never fails, even when dead or after a PowerCut: it is what `finally` blocks call while unwinding.
        with self._disk._lock:
            self._closed = True
            self._disk._handles.discard(self)

    def _check_usable(self) -> None:
        if self._process != self._disk._process:
            raise DeadHandle(f"{self._path} was opened before the last power cut or kill")
        self._disk._check_power()
        if self._closed:
            _fail(errno.EBADF, self._path)


class FakeDisk(FileSystem):
    def __init__(self, *, capacity_bytes: int | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        self.calls = 0
        # The product syncs in worker threads while its loop goes on writing.
        self._lock = threading.RLock()
        self._root = _DirNode(0)
        self._next_ino = 1
        self._next_serial = 0
        self._boot = 1
        self._process = 0
        self._handles: set[FakeFile] = set()
        self._faults: list[_Fault] = []
        self._crash: _Crash | None = None
        self._powerless = False

    def __repr__(self) -> str:
        return f"FakeDisk(files={len(self.files())}, calls={self.calls}, boot={self._boot})"

    # --- FileSystem ---

    def boot_id(self) -> str:
        self._check_power()
        return str(uuid.UUID(int=self._boot))

    def free_bytes(self, path: str) -> int:
        with self._lock:
            self._check_power()
            if self._find(path) is None:
                _fail(errno.ENOENT, path)
            return self._free_bytes()

    def make_dir(self, path: str) -> None:
        with self._lock:
            self._check_power()
            missing: list[str] = []
            existing = _normal(path)
            while not self.exists(existing):
                missing.append(existing)
                existing = posixpath.dirname(existing)
            if not missing and isinstance(self._find(existing), _FileNode):
                _fail(errno.EEXIST, path)
            # Like the real one: a killed process may have left this entry visible but unsynced.
            if not isinstance(self._find(existing), _FileNode):
                self.sync_dir(posixpath.dirname(existing))
            for each in reversed(missing):
                self._admit("mkdir", each)
                parent, name = self._parent(each)
                self._record((parent, name, _DirNode(self._new_ino())))
                self.sync_dir(posixpath.dirname(each))

    def list_dir(self, path: str) -> list[str]:
        with self._lock:
            self._check_power()
            node = self._find(path)
            if node is None:
                return []
            if isinstance(node, _FileNode):
                _fail(errno.ENOTDIR, path)
            return sorted(node.current)

    def exists(self, path: str) -> bool:
        with self._lock:
            self._check_power()
            try:
                return self._find(path) is not None
            except NotADirectoryError:
                return False

    def create(self, path: str) -> File:
        with self._lock:
            self._admit("create", path)
            parent, name = self._parent(path)
            if name in parent.current:
                _fail(errno.EEXIST, path)
            node = _FileNode(self._new_ino())
            self._record((parent, name, node))
            return self._handle(node, path, write=True)

    def open(self, path: str, *, write: bool = False) -> File:
        with self._lock:
            self._admit("open", path)
            return self._handle(self._file(path), path, write=write)

    def rename(self, old: str, new: str) -> None:
        with self._lock:
            self._admit("rename", old, new)
            old_parent, old_name = self._parent(old)
            new_parent, new_name = self._parent(new)
            node = old_parent.current.get(old_name)
            if node is None:
                _fail(errno.ENOENT, old)
            if _normal(old).startswith(_normal(new) + "/"):
                _fail(errno.ENOTEMPTY, new)
            replaced = new_parent.current.get(new_name)
            if replaced is node:
                return
            if isinstance(node, _DirNode):
                if _normal(new).startswith(_normal(old) + "/"):
                    _fail(errno.EINVAL, new)
                if isinstance(replaced, _FileNode):
                    _fail(errno.ENOTDIR, new)
                if replaced is not None and replaced.current:
                    _fail(errno.ENOTEMPTY, new)
            elif isinstance(replaced, _DirNode):
                _fail(errno.EISDIR, new)
            self._record((old_parent, old_name, None), (new_parent, new_name, node))

    def rename_new(self, old: str, new: str) -> None:
        with self._lock:
            if self.exists(new):
                _fail(errno.EEXIST, new)
            self.rename(old, new)

    def unlink(self, path: str) -> None:
        with self._lock:
            self._admit("unlink", path)
            self._file(path)
            parent, name = self._parent(path)
            self._record((parent, name, None))

    def sync_dir(self, path: str) -> None:
        with self._lock:
            self._admit("syncdir", path)
            directory = self._find(path)
            if directory is None:
                _fail(errno.ENOENT, path)
            if isinstance(directory, _FileNode):
                _fail(errno.ENOTDIR, path)
            self._commit(directory)

    # --- crashes ---

    def lose_power(self, seed: int = 0, keep: Keep = "random") -> Self:
        """Become the disk after a power cut: synced bytes, and of the rest what `keep` and `seed` say."""
        with self._lock:
            rng = random.Random(seed)
            nodes = sorted(self._all_nodes(), key=lambda node: node.ino)
            self._settle_journals([node for node in nodes if isinstance(node, _DirNode)], keep, rng)
            for node in nodes:
                if isinstance(node, _FileNode):
                    node.settle(keep, rng)
            self._boot += 1
            self._end_process()
        return self

    def kill_process(self) -> Self:
        """As SIGKILL: handles die, the page cache and the boot id stay, nothing becomes durable."""
        with self._lock:
            self._end_process()
        return self

    def crash_after(self, n: int, *, half: bool = False, seed: int = 0) -> None:
        """Make the n-th mutating call from now, and all that follows it, raise `PowerCut`.

        That call has no effect; with `half`, a write or allocate happens up to a seed-chosen point.
        """
        assert n >= 1, "calls are counted from 1"
        self._crash = _Crash(self.calls + n, half, seed)

    # --- faults ---

    def fail_on(
        self,
        op: Op,
        nth: int = 1,
        error: int = errno.EIO,
        path_contains: str | None = None,
        times: int | None = 1,
    ) -> None:
        """Fail the nth matching call from now and the `times` - 1 after it (None: all of them).

        A failed call has no effect, but a failed sync loses the file's dirty bytes for good.
        """
        self._faults.append(_Fault(op, nth, error, path_contains, times))

    def short_write(
        self, nth: int, written_bytes: int, *, error: int = errno.EIO, path_contains: str | None = None
    ) -> None:
        """Let the nth matching write from now put down only `written_bytes`, then fail."""
        self._faults.append(_Fault("write", nth, error, path_contains, 1, written_bytes))

    def clear_faults(self) -> None:
        self._faults.clear()

    # --- looking and damaging, beside the product: no call is counted, no fault fires ---

    def files(self, prefix: str = "/") -> list[str]:
        """Sorted absolute paths of all files that start with `prefix`."""
        with self._lock:
            return sorted(path for path, _ in self._walk("", self._root) if path.startswith(prefix))

    def read_file(self, path: str) -> bytes:
        with self._lock:
            return bytes(self._file(path).current)

    def flip_bit(self, path: str, offset: int, bit: int) -> None:
        with self._lock:
            node = self._file(path)
            assert 0 <= offset < len(node.current), f"no byte {offset} in {path}"
            node.damage(_Write(offset, bytes([node.current[offset] ^ (1 << bit)])))

    def overwrite(self, path: str, offset: int, content: bytes) -> None:
        with self._lock:
            self._file(path).damage(_Write(offset, content))

    def resize(self, path: str, size: int) -> None:
        with self._lock:
            self._file(path).damage(_SetSize(size))

    def place(self, path: str, content: bytes) -> None:
        """Put a durable file there, as a backup tool or an older version would have."""
        with self._lock:
            parent, name = self._parent(path)
            assert name not in parent.current, f"{path} is taken"
            self._forget_entry(parent, name)
            node = _FileNode(self._new_ino())
            node.damage(_Write(0, content))
            parent.current[name] = parent.durable[name] = node

    def remove(self, path: str) -> None:
        """Make the file vanish for good, synced or not."""
        with self._lock:
            self._file(path)
            self._forget_entry(*self._parent(path))

    def used_bytes(self) -> int:
        with self._lock:
            nodes = {node.ino: node for _, node in self._walk("", self._root)}
            # An unlinked file keeps its space until the last handle goes.
            nodes.update({handle._node.ino: handle._node for handle in self._handles})
            return sum(len(node.current) for node in nodes.values())

    def clone(self) -> FakeDisk:
        """An independent disk in the same state, armed faults and crash included; handles stay behind."""
        with self._lock:
            twin = FakeDisk(capacity_bytes=self.capacity_bytes)
            twin._root = self._copy_nodes()
            twin.calls = self.calls
            twin._next_ino = self._next_ino
            twin._next_serial = self._next_serial
            twin._boot = self._boot
            twin._faults = [
                _Fault(f.op, f.nth, f.error, f.path_contains, f.times, f.written_bytes, f.seen)
                for f in self._faults
            ]
            twin._crash = self._crash
            twin._powerless = self._powerless
            return twin

    def copy(self) -> FakeDisk:
        return self.clone()

    # --- admission of calls ---

    def _check_power(self) -> None:
        if self._powerless:
            raise PowerCut("the power is off; call lose_power() or kill_process() first")

    def _admit(self, op: Op, *paths: str) -> None:
        refusal = self._judge(op, paths, 0)
        if refusal is not None:
            raise refusal.error

    def _judge(self, op: Op, paths: Sequence[str], size_bytes: int) -> _Refusal | None:
        self._check_power()
        if op in MUTATING:
            self.calls += 1
            crash = self._crash
            if crash is not None and self.calls >= crash.at_call:
                self._powerless = True
                done = random.Random(crash.seed).randrange(size_bytes + 1) if crash.half else 0
                return _Refusal(PowerCut(f"power cut at call {self.calls} ({op} {paths[0]})"), done)
        # Every fault sees every call, or the counts of one would depend on the others.
        firing = [fault for fault in self._faults if fault.fires(op, paths)]
        if not firing:
            return None
        error = OSError(firing[0].error, os.strerror(firing[0].error), paths[0])
        return _Refusal(error, min(firing[0].written_bytes, size_bytes))

    def _judge_space(self, node: _FileNode, change: _Write | _Grow, path: str) -> _Refusal | None:
        if self.capacity_bytes is None:
            return None
        if isinstance(change, _Write) and not change.content:
            return None
        end = change.end if isinstance(change, _Write) else change.size
        largest = len(node.current) + self._free_bytes()
        if end <= max(largest, len(node.current)):
            return None
        error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        # A write fills what is left before it fails, as the kernel does; a reservation takes all or nothing.
        done = max(0, largest - change.offset) if isinstance(change, _Write) else 0
        return _Refusal(error, done)

    def _free_bytes(self) -> int:
        if self.capacity_bytes is None:
            return UNLIMITED_FREE_BYTES
        return max(0, self.capacity_bytes - self.used_bytes())

    # --- the tree ---

    def _find(self, path: str) -> _Node | None:
        node: _Node | None = self._root
        for name in _normal(path).split("/"):
            if not name:
                continue
            if isinstance(node, _FileNode):
                _fail(errno.ENOTDIR, path)
            node = None if node is None else node.current.get(name)
        return node

    def _parent(self, path: str) -> tuple[_DirNode, str]:
        parent_path, name = posixpath.split(_normal(path))
        parent = self._find(parent_path)
        if parent is None:
            _fail(errno.ENOENT, path)
        if isinstance(parent, _FileNode):
            _fail(errno.ENOTDIR, path)
        return parent, name

    def _file(self, path: str) -> _FileNode:
        node = self._find(path)
        if node is None:
            _fail(errno.ENOENT, path)
        if isinstance(node, _DirNode):
            _fail(errno.EISDIR, path)
        return node

    def _walk(self, path: str, directory: _DirNode) -> Iterator[tuple[str, _FileNode]]:
        for name, node in directory.current.items():
            if isinstance(node, _DirNode):
                yield from self._walk(f"{path}/{name}", node)
            else:
                yield f"{path}/{name}", node

    def _all_nodes(self) -> list[_Node]:
        """Everything that a name leads to, led to or may lead to again after a power cut."""
        found: dict[int, _Node] = {}
        waiting: list[_Node] = [self._root]
        while waiting:
            node = waiting.pop()
            if node.ino in found:
                continue
            found[node.ino] = node
            if isinstance(node, _DirNode):
                waiting += node.current.values()
                waiting += node.durable.values()
                for step in node.journal:
                    for directory, _, target in step.effects:
                        waiting.append(directory)
                        if target is not None:
                            waiting.append(target)
        return list(found.values())

    def _new_ino(self) -> int:
        self._next_ino += 1
        return self._next_ino - 1

    def _handle(self, node: _FileNode, path: str, *, write: bool) -> FakeFile:
        handle = FakeFile(self, node, path, write=write, process=self._process)
        self._handles.add(handle)
        return handle

    def _end_process(self) -> None:
        self._process += 1
        self._handles.clear()
        self._crash = None
        self._powerless = False

    # --- directory journals ---

    def _record(self, *effects: tuple[_DirNode, str, _Node | None]) -> None:
        step = _Step(self._next_serial, list(effects))
        self._next_serial += 1
        step.apply("current")
        for directory in step.dirs():
            directory.journal.append(step)

    def _commit(self, directory: _DirNode) -> None:
        # A step shared with another directory takes that one's earlier steps along: journals keep order.
        chosen: dict[int, _Step] = {}
        waiting = list(directory.journal)
        while waiting:
            step = waiting.pop()
            if step.serial in chosen:
                continue
            chosen[step.serial] = step
            for other in step.dirs():
                waiting += [earlier for earlier in other.journal if earlier.serial < step.serial]
        for serial in sorted(chosen):
            chosen[serial].apply("durable")
            for touched in chosen[serial].dirs():
                touched.journal.remove(chosen[serial])

    def _settle_journals(self, dirs: Sequence[_DirNode], keep: Keep, rng: random.Random) -> None:
        steps = {step.serial: step for directory in dirs for step in directory.journal}
        left: dict[int, int] = {}
        for directory in dirs:
            length = len(directory.journal)
            left[directory.ino] = {"all": length, "none": 0, "random": rng.randint(0, length)}[keep]
        for serial in sorted(steps):
            touched = steps[serial].dirs()
            lasts = all(left[directory.ino] > 0 for directory in touched)
            for directory in touched:
                # One lost step ends the prefix of every directory it touches.
                left[directory.ino] = left[directory.ino] - 1 if lasts else 0
            if lasts:
                steps[serial].apply("durable")
        for directory in dirs:
            directory.journal.clear()
            directory.current = dict(directory.durable)

    def _forget_entry(self, directory: _DirNode, name: str) -> None:
        directory.current.pop(name, None)
        directory.durable.pop(name, None)
        for step in directory.journal:
            step.effects = [
                (d, n, None if d is directory and n == name else target) for d, n, target in step.effects
            ]

    def _copy_nodes(self) -> _DirNode:
        files: dict[int, _FileNode] = {}
        dirs: dict[int, _DirNode] = {}
        steps: dict[int, _Step] = {}
        originals = self._all_nodes()
        for node in originals:
            if isinstance(node, _DirNode):
                dirs[node.ino] = _DirNode(node.ino)
            else:
                twin = files[node.ino] = _FileNode(node.ino)
                twin.current = bytearray(node.current)
                twin.durable = bytearray(node.durable)
                twin.unsynced = list(node.unsynced)
        twins: dict[int, _Node] = {**files, **dirs}
        for node in originals:
            if isinstance(node, _FileNode):
                continue
            dirs[node.ino].current = {name: twins[each.ino] for name, each in node.current.items()}
            dirs[node.ino].durable = {name: twins[each.ino] for name, each in node.durable.items()}
            for step in node.journal:
                if step.serial not in steps:
                    effects = [
                        (dirs[d.ino], n, None if each is None else twins[each.ino])
                        for d, n, each in step.effects
                    ]
                    steps[step.serial] = _Step(step.serial, effects)
                dirs[node.ino].journal.append(steps[step.serial])
        return dirs[self._root.ino]
