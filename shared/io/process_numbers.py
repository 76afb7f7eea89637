"""What this process takes of the machine, for metrics."""

from __future__ import annotations

import os
import time

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    """0 where there is no /proc."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    except OSError:
        return 0


def open_descriptors() -> int:
    try:
        return len(os.listdir("/proc/self/fd")) - 1  # one is the listing itself
    except OSError:
        return 0


def cpu_seconds() -> float:
    return time.process_time()
