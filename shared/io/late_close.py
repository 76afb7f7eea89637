"""Closing what has been unlinked, in a thread.

The last one to close such a file frees its blocks and its pages in the cache: 16 ms for a log file of 64 MiB, during
which nobody else would be served. Closing anything else is cheaper than a thread.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

log = logging.getLogger(__name__)

_WORTH_A_THREAD_BYTES: Final = 1 << 20


def call_aside(closings: Sequence[Callable[[], None]]) -> None:
    """Call them one after the other: sooner or later, or now if there is no thread to be had."""
    try:
        threading.Thread(target=_call, args=(closings,), name="late-close").start()
    except RuntimeError:
        _call(closings)


def _call(closings: Sequence[Callable[[], None]]) -> None:
    for close in closings:
        try:
            close()
        except OSError as err:
            log.warning("file.close_failed", extra={"reason": str(err)})


def close_aside(fd: int) -> None:
    """Close it, at once if that is cheap."""
    file = os.fstat(fd)
    if file.st_nlink == 0 and file.st_size >= _WORTH_A_THREAD_BYTES:
        call_aside((partial(os.close, fd),))
    else:
        os.close(fd)
