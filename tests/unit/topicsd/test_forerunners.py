"""Children that another process forks ahead of time become ours, and leave nothing behind if nobody takes them."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from topicsd.forerunners import Forerunners
from topicsd.loader_start import Loader
from topicsd.spawn import Spawned

WAITS = "tests.support.fake_gateway"  # for its boot line, as every child does


def env() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def wait_until(condition: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < give_up_at
        time.sleep(0.005)


def open_descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def children_of(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def words_of(pid: int) -> list[bytes]:
    """Of its command line, as `ps` shows it."""
    return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")


def hear_all(forerunners: Forerunners) -> None:
    while forerunners.link is not None:
        forerunners.hear()


def taken_from(forerunners: Forerunners) -> Spawned:
    found = forerunners.take(WAITS)
    assert found is not None
    return found


def test_a_forerunner_that_nobody_takes_is_ended_and_one_that_was_taken_is_not() -> None:
    before = open_descriptors()
    with Forerunners(Loader(env=env())) as forerunners:
        forerunners.start([WAITS, WAITS])
        hear_all(forerunners)
        taken = taken_from(forerunners)
        assert forerunners.take("another") is None
        left = taken_from(forerunners)
        assert forerunners.take(WAITS) is None
        forerunners._waiting.append((WAITS, left))
    assert gone(left.process.pid) and not gone(taken.process.pid)
    taken.discard()
    assert gone(taken.process.pid) and taken.process.returncode == -signal.SIGKILL
    assert open_descriptors() == before


def test_a_forerunner_is_our_child_in_a_session_of_its_own_and_looks_as_if_started_by_name() -> None:
    with Forerunners(Loader(env=env())) as forerunners:
        forerunners.start([WAITS])
        hear_all(forerunners)
        child = taken_from(forerunners)
        pid = child.process.pid
        try:
            assert pid in children_of(os.getpid())
            assert os.getsid(pid) == pid
            # We hear of it when it is forked, and what it shows is its own first deed.
            wait_until(lambda: os.fsencode(WAITS) in words_of(pid))
            shown = [os.fsencode(w) for w in (sys.executable, "-P", "-m", WAITS, "--status-fd")]
            *words, status_fd = words_of(pid)
            assert words == shown
            own = {f"/proc/{pid}/fd/{number}" for number in (0, 1, 2, int(status_fd))}
            # It makes a number of its own for the control socket, and may have come to that already.
            wait_until(lambda: os.path.exists(f"/proc/{pid}/fd"))
            sockets = [p for p in Path(f"/proc/{pid}/fd").iterdir() if str(p) not in own]
            assert len(sockets) <= 1
        finally:
            child.discard()


def test_a_forerunner_whose_boot_line_never_comes_ends_by_itself_and_well() -> None:
    with Forerunners(Loader(env=env())) as forerunners:
        forerunners.start([WAITS])
        hear_all(forerunners)
        child = taken_from(forerunners)
        child.control.close()
        assert child.process.wait() == 0
        assert child.process.poll() == 0  # known, however often it is asked
        child.discard()


def test_without_anybody_asked_for_the_loader_ends() -> None:
    before = open_descriptors()
    with Forerunners(loader := Loader(env=env())):
        assert not gone(loader.pid)
    assert gone(loader.pid)
    assert open_descriptors() == before


@pytest.mark.parametrize("seen", [False, True])
def test_a_loader_that_dies_takes_nothing_with_it_but_the_time_it_would_have_saved(seen: bool) -> None:
    before = open_descriptors()
    with Forerunners(loader := Loader(env=env())) as forerunners:
        os.kill(loader.pid, signal.SIGKILL)
        if seen:
            select.select([loader.link], [], [])
        with contextlib.suppress(BrokenPipeError):
            forerunners.start([WAITS, WAITS])
        hear_all(forerunners)
        assert forerunners.take(WAITS) is None
    assert open_descriptors() == before


def test_where_children_cannot_be_adopted_nobody_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(adopt: bool) -> None:
        if adopt:
            raise PermissionError(errno.EPERM, "not here")

    monkeypatch.setattr("topicsd.forerunners._adopt_orphans", refuse)
    before = open_descriptors()
    with Forerunners(loader := Loader(env=env())) as forerunners:
        with pytest.raises(PermissionError):
            forerunners.start([WAITS])
        hear_all(forerunners)
        assert gone(loader.pid) and forerunners.take(WAITS) is None
    assert open_descriptors() == before


def test_a_loader_that_hangs_is_given_up() -> None:
    before = open_descriptors()
    with Forerunners(loader := Loader(env=env())) as forerunners:
        os.kill(loader.pid, signal.SIGSTOP)
        forerunners.start([WAITS])
        forerunners.give_up()
        assert forerunners.link is None and forerunners.take(WAITS) is None
    assert open_descriptors() == before


def test_a_loader_that_cannot_be_started_leaves_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    before = open_descriptors()
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(OSError):
        Loader(env=env())
    assert open_descriptors() == before


def test_without_a_loader_nobody_comes() -> None:
    with Forerunners() as forerunners:
        forerunners.start([WAITS])
        assert forerunners.link is None and forerunners.take(WAITS) is None
