"""Children that are started ahead of time wait for their boot line, and leave nothing behind if none comes."""

from __future__ import annotations

import os
import sys

import pytest

from topicsd.spawn import Forerunners, child_environment, spawn

WAITS = "tests.support.fake_gateway"  # for its boot line, as every child does


def env() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def open_descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def test_a_forerunner_that_nobody_takes_is_ended_and_one_that_was_taken_is_not() -> None:
    before = open_descriptors()
    with Forerunners() as forerunners:
        forerunners.start([WAITS, WAITS], env=env())
        taken = forerunners.take(WAITS)
        assert taken is not None and forerunners.take("another") is None
        left = forerunners.take(WAITS)
        assert left is not None and forerunners.take(WAITS) is None
        forerunners._waiting.append((WAITS, left))
    assert gone(left.process.pid) and not gone(taken.process.pid)
    taken.discard()
    assert gone(taken.process.pid)
    assert open_descriptors() == before


def test_a_child_whose_boot_line_never_comes_ends_by_itself_and_well() -> None:
    child = spawn(WAITS, env=env())
    try:
        child.control.close()
        assert child.process.wait(30) == 0
    finally:
        child.discard()


def test_a_process_that_cannot_be_started_leaves_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    before = open_descriptors()
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(OSError):
        spawn(WAITS, env=env())
    assert open_descriptors() == before


def test_children_get_neither_secrets_nor_what_the_service_manager_says_to_us() -> None:
    given = {"TOPICS_API_KEYS": "s3cret", "NOTIFY_SOCKET": "/run/x", "LISTEN_FDS": "1", "PATH": "/bin"}
    assert child_environment(given) == {"PATH": "/bin"}
