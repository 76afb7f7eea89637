"""A child that is started from scratch waits for its boot line, and leaves nothing behind if none comes."""

from __future__ import annotations

import os
import sys

import pytest

from shared.settings import SETTINGS
from topicsd.loader_start import SECRET_ENV, child_environment
from topicsd.spawn import spawn

WAITS = "tests.support.fake_gateway"  # for its boot line, as every child does


def env() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def open_descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


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


def test_every_secret_is_known_before_the_table_of_settings_is_loaded() -> None:
    assert set(SECRET_ENV) == {row.env for row in SETTINGS if row.secret}
