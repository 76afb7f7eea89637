"""Runs a command inside the sandbox that a systemd unit asks for, as far as that can be had without systemd.

`python -m tests.support.unit_sandbox UNIT COMMAND…`: the unit's SystemCallFilter=, expanded by systemd-analyze and
loaded with libseccomp, MemoryDenyWriteExecute= and NoNewPrivileges=. A forbidden system call kills the caller, where
the unit would only fail it: a test should not overlook one.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from ctypes.util import find_library
from pathlib import Path

_KILL_PROCESS, _ALLOW = 0x80000000, 0x7FFF0000
_PR_SET_NO_NEW_PRIVS, _PR_SET_MDWE = 38, 65


def available() -> bool:
    return bool(shutil.which("systemd-analyze") and find_library("seccomp"))


def directives(unit: Path) -> dict[str, list[str]]:
    """All values of each directive, in the order of the file."""
    found: dict[str, list[str]] = {}
    for line in unit.read_text().splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


def expand(name: str) -> set[str]:
    """The system calls of a set such as `@system-service`; of a plain name, itself."""
    if not name.startswith("@"):
        return {name}
    done = subprocess.run(
        ["systemd-analyze", "syscall-filter", "--no-pager", name], capture_output=True, text=True, check=True
    )
    words = [line.strip() for line in done.stdout.splitlines()[1:]]
    return set().union(*(expand(word) for word in words if word and not word.startswith("#")))


def allowed_calls(unit: Path) -> set[str]:
    allowed = expand("@default")
    for value in directives(unit)["SystemCallFilter"]:
        named = set().union(*(expand(word) for word in value.removeprefix("~").split()))
        allowed = allowed - named if value.startswith("~") else allowed | named
    return allowed


def enter(unit: Path) -> None:
    calls = allowed_calls(unit)
    libc = ctypes.CDLL(None, use_errno=True)
    seccomp = ctypes.CDLL(find_library("seccomp"))
    seccomp.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(seccomp.seccomp_init(ctypes.c_uint32(_KILL_PROCESS)))
    for name in calls:
        number = seccomp.seccomp_syscall_resolve_name(name.encode())
        if number >= 0:
            seccomp.seccomp_rule_add(context, ctypes.c_uint32(_ALLOW), ctypes.c_int(number), ctypes.c_uint(0))
    assert libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    libc.prctl(_PR_SET_MDWE, 1, 0, 0, 0)  # kernels before 6.3 do not know it
    assert seccomp.seccomp_load(context) == 0


if __name__ == "__main__":
    enter(Path(sys.argv[1]))
    os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
