"""How far a long job is, on stderr: one line that is drawn over on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Final, TextIO

_EVERY_S: Final = 10.0
_REDRAW_S: Final = 0.2


class Progress:
    def __init__(self, stream: TextIO | None = None, *, quiet: bool = False) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._quiet = quiet
        self._drawn = False
        self._last = 0.0

    def say(self, text: str) -> None:
        if not self._quiet:
            self._clear()
            self._stream.write(f"{text}\n")
            self._stream.flush()

    def task(self, what: str) -> Callable[[int, int], None]:
        """To be called with (done, all) as the work goes on."""
        began = time.monotonic()

        def advance(done: int, total: int) -> None:
            now = time.monotonic()
            finished = done >= total
            terminal = self._stream.isatty()
            if self._quiet or (not finished and now - self._last < (_REDRAW_S if terminal else _EVERY_S)):
                return
            self._last = now
            share = done / total if total else 1.0
            spent = now - began
            rest = f", about {spent / share - spent:.0f} s to go" if 0 < share < 1 and spent > 2 else ""
            text = f"{what}: {share:4.0%} after {spent:.0f} s{rest}"
            if terminal and not finished:
                self._clear()
                self._stream.write(text)
                self._drawn = True
            else:
                self._clear()
                self._stream.write(text + "\n")
            self._stream.flush()

        return advance

    def _clear(self) -> None:
        if self._drawn:
            self._stream.write("\r\x1b[K")
            self._drawn = False
