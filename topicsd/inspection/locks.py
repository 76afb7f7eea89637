"""Who holds a lock, without touching it: taking one even for an instant could make a start fail."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass

_PID_TEXT_BYTES = 32
_COMMAND_MAX_BYTES = 4096


@dataclass(frozen=True, slots=True)
class LockState:
    path: str
    holder: int | None
    """The process that has it; None if nobody does."""
    written_pid: int | None
    """What the file says: the last holder, if it was killed."""
    command: str | None


def lock_state(path: str) -> LockState:
    holder = lock_holder(path)
    return LockState(path, holder, _written_pid(path), _command(holder) if holder is not None else None)


def lock_holder(path: str) -> int | None:
    """From the kernel's list of locks. 0: held by a process that we cannot see from here (another container)."""
    try:
        found = os.stat(path)
        with open("/proc/locks", encoding="ascii") as file:
            lines = file.read().splitlines()
    except OSError:
        return None
    wanted = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    for line in lines:
        fields = line.split()
        if "->" not in fields and len(fields) >= 6 and fields[1] == "FLOCK" and fields[5] == wanted:
            return max(int(fields[4]), 0)
    return None


def _written_pid(path: str) -> int | None:
    with suppress(OSError, ValueError), open(path, "rb") as file:
        return int(file.read(_PID_TEXT_BYTES))
    return None


def _command(pid: int) -> str | None:
    with suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read(_COMMAND_MAX_BYTES).rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")
    return None
