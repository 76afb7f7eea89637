"""Closing what has been unlinked, in a thread (shared/io/late_close.py)."""

from __future__ import annotations

import os
import threading
from functools import partial
from pathlib import Path

import pytest

from shared.io.late_close import call_aside, close_aside


def _wait_for_closers() -> None:
    for thread in threading.enumerate():
        if thread.name == "late-close":
            thread.join()


def test_closings_run_in_order_and_in_another_thread() -> None:
    ran: list[tuple[int, bool]] = []
    own = threading.get_ident()

    def note(number: int) -> None:
        ran.append((number, threading.get_ident() != own))

    call_aside([partial(note, number) for number in range(3)])
    _wait_for_closers()
    assert ran == [(0, True), (1, True), (2, True)]


def test_a_closing_that_fails_does_not_keep_the_others_open(caplog: pytest.LogCaptureFixture) -> None:
    ran: list[str] = []

    def fail() -> None:
        raise OSError("the disk is gone")

    call_aside([fail, partial(ran.append, "next")])
    _wait_for_closers()
    assert ran == ["next"]
    assert [record.message for record in caplog.records] == ["file.close_failed"]


def test_without_a_thread_it_is_done_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", full)
    ran: list[int] = []
    call_aside([partial(ran.append, 1)])
    assert ran == [1]


def _opened(path: Path, size: int, *, unlinked: bool) -> int:
    path.touch()
    os.truncate(path, size)
    fd = os.open(path, os.O_RDONLY)
    if unlinked:
        path.unlink()
    return fd


@pytest.mark.parametrize("unlinked", [True, False])
@pytest.mark.parametrize("size", [0, 4096, (1 << 20) - 1, 1 << 20, 8 << 20])
def test_a_descriptor_is_closed_whatever_it_is_of(tmp_path: Path, size: int, unlinked: bool) -> None:
    fd = _opened(tmp_path / "log", size, unlinked=unlinked)
    close_aside(fd)
    _wait_for_closers()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_only_a_large_file_without_a_name_is_worth_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[object] = []
    monkeypatch.setattr("shared.io.late_close.call_aside", started.append)
    fds = [
        _opened(tmp_path / f"{size}-{unlinked}", size, unlinked=unlinked)
        for size in (1000, 2 << 20)
        for unlinked in (False, True)
    ]
    for fd in fds:
        close_aside(fd)
    assert len(started) == 1
    for fd in fds[:3]:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)
    os.close(fds[3])
