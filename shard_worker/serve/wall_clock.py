"""The wall clock of a worker. A file of its own, to be compiled: every turn looks at it."""

from __future__ import annotations

import time
from typing import Final

_time_ns: Final = time.time_ns


def wall_ms() -> int:
    return _time_ns() // 1_000_000
