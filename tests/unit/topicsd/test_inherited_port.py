"""Which of the descriptors that a service manager passes are taken."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from dataclasses import replace

import pytest

from shared.settings import Settings
from topicsd import inherited_port
from topicsd.exits import StartRefused
from topicsd.inherited_port import take_inherited_port

FIRST = 900  # above anything that is open here


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Two listening sockets at the first numbers; their ports."""
    monkeypatch.setattr(inherited_port, "FIRST_FD", FIRST)
    ports = []
    for place in range(2):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            ports.append(listener.getsockname()[1])
            os.dup2(listener.fileno(), FIRST + place)
    yield ports
    for place in range(2):
        with contextlib.suppress(OSError):  # taken, and closed with its socket
            os.close(FIRST + place)


def ports_taken(**env: str) -> list[int]:
    meant_for_us = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "2"}
    found = take_inherited_port({**meant_for_us, **env}, Settings())
    try:
        assert all(not listener.get_inheritable() for listener in found)
        return [listener.getsockname()[1] for listener in found]
    finally:
        for listener in found:
            listener.close()


def test_without_names_all_are_taken(passed: list[int]) -> None:
    assert ports_taken() == passed


def test_with_names_only_ours_is_taken(passed: list[int]) -> None:
    assert ports_taken(LISTEN_FDNAMES="metrics:http") == passed[1:]


@pytest.mark.parametrize(
    "env", [{"LISTEN_PID": "1"}, {"LISTEN_PID": ""}, {"LISTEN_FDS": "0"}, {"LISTEN_FDS": "x"}]
)
def test_what_is_meant_for_others_or_nobody_is_left_alone(passed: list[int], env: dict[str, str]) -> None:
    assert ports_taken(**env) == []


def test_the_rule_about_keys_goes_by_the_real_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inherited_port, "FIRST_FD", FIRST)
    env = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"}
    for settings, allowed in (
        (Settings(), False),
        (replace(Settings(), allow_insecure_no_auth=True), True),
        (Settings().with_file_keys("a-key"), True),
    ):
        with socket.create_server(("0.0.0.0", 0)) as listener:
            os.dup2(listener.fileno(), FIRST)
        if allowed:
            for found in take_inherited_port(env, settings):
                found.close()
        else:
            with pytest.raises(StartRefused, match="no API keys"):
                take_inherited_port(env, settings)
