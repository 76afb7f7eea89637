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


@pytest.mark.parametrize("size", [0, 4096, (1 << 20) - 1, 1 << 20, 8 << 20])
def test_a_descriptor_is_closed_whatever_its_size(tmp_path: Path, size: int) -> None:
    path = tmp_path / "log"
    path.touch()
    os.truncate(path, size)
    fd = os.open(path, os.O_RDONLY)
    close_aside(fd)
    _wait_for_closers()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_only_a_large_file_is_worth_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[object] = []
    monkeypatch.setattr("shared.io.late_close.call_aside", started.append)
    fds = []
    for size in (1000, 2 << 20):
        path = tmp_path / str(size)
        path.touch()
        os.truncate(path, size)
        fds.append(os.open(path, os.O_RDONLY))
    for fd in fds:
        close_aside(fd)
    assert len(started) == 1
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fds[0])
    os.close(fds[1])
