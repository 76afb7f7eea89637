"""What a service manager is told, by the protocol of sd_notify(3): datagrams of `NAME=value` lines.

Without `NOTIFY_SOCKET` in the environment nobody listens, and every message goes nowhere.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Mapping
from typing import Final

# The manager reads its socket all the time; should it not, we are not to hang with it.
_SEND_TIMEOUT_S: Final = 1.0


class ServiceNotifier:
    def __init__(self, address: str | None = None, *, watchdog_s: float | None = None) -> None:
        """`watchdog_s`: within this time of each other the manager wants to see `WATCHDOG=1`."""
        self._address = "\0" + address[1:] if address is not None and address.startswith("@") else address
        self.watchdog_s = watchdog_s

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> ServiceNotifier:
        address = env.get("NOTIFY_SOCKET", "")
        if not address.startswith(("/", "@")):
            return cls()
        usec = env.get("WATCHDOG_USEC", "")
        meant = env.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        watchdog_s = int(usec) / 1e6 if meant and usec.isdecimal() and int(usec) > 0 else None
        return cls(address, watchdog_s=watchdog_s)

    def send(self, **fields: str | int) -> None:
        """For example `send(READY=1, STATUS="serving")`. Never fails: nothing we do depends on who listens."""
        if self._address is None:
            return
        lines = [f"{name}={str(value).replace(chr(10), ' ')}" for name, value in fields.items()]
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.settimeout(_SEND_TIMEOUT_S)
            sock.sendto("\n".join(lines).encode(), self._address)


def monotonic_usec() -> int:
    """For `MONOTONIC_USEC`: the manager's own clock, to tell this reload from an earlier one."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
