"""Memory that was needed for a while goes back to the kernel.

glibc keeps what is freed, for the next time, and gives each thread an arena of its own, in which a few small objects
hold megabytes. Our threads sync and seal, nearly one at a time, and need no arenas to keep out of each other's way.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from typing import Final

import trio

from shared.io.process_numbers import resident_bytes

_M_ARENA_MAX: Final = -8  # malloc.h
_LOOK_EVERY_S: Final = 0.5
_IDLE_SHARE: Final = 0.05  # of one core; heartbeats take less
_WORTH_BYTES: Final = 512 << 10


def use_one_arena() -> None:
    """To be called before there are threads. Whoever sets MALLOC_ARENA_MAX knows better."""
    mallopt = from_libc("mallopt")
    if mallopt is not None and "MALLOC_ARENA_MAX" not in os.environ:
        mallopt(_M_ARENA_MAX, 1)


async def return_spare_memory() -> None:
    """Whenever there is more of it and nothing to do, for as long as the loop runs."""
    malloc_trim = from_libc("malloc_trim")
    if malloc_trim is None:
        return
    kept_bytes = 0
    cpu_s = time.process_time()
    while True:
        await trio.sleep(_LOOK_EVERY_S)
        before_s, cpu_s = cpu_s, time.process_time()
        idle = cpu_s - before_s <= _IDLE_SHARE * _LOOK_EVERY_S
        if idle and resident_bytes() > kept_bytes + _WORTH_BYTES:
            malloc_trim(0)
            kept_bytes = resident_bytes()


def from_libc(name: str) -> Callable[..., int] | None:
    """None: another C library, which has ways of its own."""
    return getattr(ctypes.CDLL(None), name, None)
