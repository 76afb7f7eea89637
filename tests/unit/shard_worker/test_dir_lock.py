"""The lock is about processes, so most of these tests start one."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shard_worker.disk.dir_lock import LOCK_NAME, DirectoryLocked, DirLock

HOLD = """
import sys
from shard_worker.disk.dir_lock import DirLock
with DirLock(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""

TRY = """
import sys
from shard_worker.disk.dir_lock import DirectoryLocked, DirLock
try:
    DirLock(sys.argv[1]).acquire()
except DirectoryLocked as err:
    print(err.holder_pid)
"""


@contextmanager
def holder(directory: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that has the lock; leaving the block lets it go."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(timeout=30)


def test_a_second_process_is_refused_and_told_who_holds_the_lock(tmp_path: Path) -> None:
    with DirLock(str(tmp_path)):
        tried = subprocess.run(
            [sys.executable, "-c", TRY, str(tmp_path)], capture_output=True, text=True, check=True, timeout=60
        )
    assert tried.stdout == f"{os.getpid()}\n"


def test_the_refusal_names_directory_and_pid(tmp_path: Path) -> None:
    with holder(tmp_path) as process, pytest.raises(DirectoryLocked) as caught:
        DirLock(str(tmp_path)).acquire()
    assert caught.value.path == str(tmp_path)
    assert caught.value.holder_pid == process.pid
    assert str(tmp_path) in str(caught.value)
    assert str(process.pid) in str(caught.value)


def test_a_killed_holder_frees_the_lock(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=30)
        with DirLock(str(tmp_path)) as lock:
            assert lock.held
            assert (tmp_path / LOCK_NAME).read_text() == f"{os.getpid()}\n"


def test_a_holder_that_ends_frees_the_lock(tmp_path: Path) -> None:
    with holder(tmp_path):
        pass
    with DirLock(str(tmp_path)) as lock:
        assert lock.held


def test_a_second_lock_in_the_same_process_is_refused_too(tmp_path: Path) -> None:
    with DirLock(str(tmp_path)), pytest.raises(DirectoryLocked):
        DirLock(str(tmp_path)).acquire()


def test_a_refused_attempt_leaks_no_descriptor_and_leaves_the_pid(tmp_path: Path) -> None:
    with DirLock(str(tmp_path)):
        open_before = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            with pytest.raises(DirectoryLocked):
                DirLock(str(tmp_path)).acquire()
        assert len(os.listdir("/proc/self/fd")) == open_before
        assert (tmp_path / LOCK_NAME).read_text() == f"{os.getpid()}\n"


def test_release_can_be_repeated_and_the_lock_taken_again(tmp_path: Path) -> None:
    lock = DirLock(str(tmp_path))
    lock.release()
    for _ in range(2):
        lock.acquire()
        assert lock.held
        lock.release()
        lock.release()
        assert not lock.held
    assert (tmp_path / LOCK_NAME).read_bytes() == b""


@pytest.mark.parametrize("content", [b"", b"not a pid", b"\xff\xfe"])
def test_an_unreadable_pid_does_not_hide_the_refusal(tmp_path: Path, content: bytes) -> None:
    with DirLock(str(tmp_path)):
        (tmp_path / LOCK_NAME).write_bytes(content)
        with pytest.raises(DirectoryLocked, match="unknown process") as caught:
            DirLock(str(tmp_path)).acquire()
    assert caught.value.holder_pid is None


def test_a_full_disk_does_not_prevent_locking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_args: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with DirLock(str(tmp_path)), pytest.raises(DirectoryLocked) as caught:
        DirLock(str(tmp_path)).acquire()
    assert caught.value.holder_pid is None


def test_another_write_error_is_reported_and_frees_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_args: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    lock = DirLock(str(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", broken)
        with pytest.raises(OSError):
            lock.acquire()
    assert not lock.held
    lock.acquire()
    lock.release()


def test_a_planted_symlink_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / LOCK_NAME).symlink_to(victim)
    with pytest.raises(OSError):
        DirLock(str(tmp_path)).acquire()
    assert victim.read_text() == "precious"


def test_a_missing_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        DirLock(str(tmp_path / "absent")).acquire()
