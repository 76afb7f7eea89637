"""When the next sealing pass starts: late, so that one pass with one set of syncs takes what many would have.

Between two passes lies a rest, unless so much is written meanwhile that the next one is large enough already, or that
what is not sealed grows beyond its bound. No clock: callers pass the seconds of a steady one, and how much the log has
taken since the process started. See docs/decisions/0013-paced-sealing.md.
"""

from __future__ import annotations

import math

import msgspec


class SealPace(msgspec.Struct):
    rest_s: float
    max_bytes: int
    max_frames: int
    _rest_until_s: float = 0.0
    _bytes: int = 0
    _frames: int = 0

    def begin(self, log_bytes: int, log_frames: int) -> None:
        """A pass takes what there is now; its rest begins when it has ended."""
        self._bytes, self._frames = log_bytes, log_frames
        self._rest_until_s = math.inf

    def end(self, now_s: float) -> None:
        """The pass is over, whatever came of it."""
        self._rest_until_s = now_s + self.rest_s

    def is_time(self, now_s: float, log_bytes: int, log_frames: int) -> bool:
        return (
            now_s >= self._rest_until_s
            or log_bytes - self._bytes >= self.max_bytes
            or log_frames - self._frames >= self.max_frames
        )
