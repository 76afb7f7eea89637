"""The datagrams of sd_notify."""

from __future__ import annotations

import os
import socket
import uuid
from pathlib import Path

import pytest

from topicsd.service_notify import ServiceNotifier


def test_fields_are_lines_and_a_value_never_makes_another(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(5)
        notifier = ServiceNotifier.from_env({"NOTIFY_SOCKET": str(tmp_path / "notify")})
        notifier.send(READY=1, STATUS="a\nSTOPPING=1")
        assert manager.recv(1000) == b"READY=1\nSTATUS=a STOPPING=1"


def test_an_abstract_address_starts_with_an_at_sign() -> None:
    name = f"topicsd-test-{uuid.uuid4()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"\0{name}")
        manager.settimeout(5)
        ServiceNotifier.from_env({"NOTIFY_SOCKET": f"@{name}"}).send(READY=1)
        assert manager.recv(1000) == b"READY=1"


@pytest.mark.parametrize("address", ["", "/nowhere/at/all", "relative"])
def test_nobody_listening_is_no_error(address: str) -> None:
    ServiceNotifier.from_env({"NOTIFY_SOCKET": address}).send(READY=1)


@pytest.mark.parametrize(
    ("env", "watchdog_s"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "nonsense"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
    ],
)
def test_the_watchdog_is_that_of_this_process(env: dict[str, str], watchdog_s: float | None) -> None:
    assert ServiceNotifier.from_env({"NOTIFY_SOCKET": "/run/notify", **env}).watchdog_s == watchdog_s
