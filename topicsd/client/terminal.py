"""A full-screen view on a terminal: redrawn in place, keys without Enter, everything put back at the end."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from types import FrameType

ENTER = "\x1b[?1049h\x1b[?25l\x1b[2J"  # the other screen, no cursor
LEAVE = "\x1b[?25h\x1b[?1049l"
BEGIN_FRAME, END_FRAME = "\x1b[?2026h", "\x1b[?2026l"  # terminals that know it show the frame at once


class Screen:
    """`draw` rewrites lines over what is there; nothing is ever cleared first, so nothing flickers."""

    def __init__(self) -> None:
        self._out = sys.stdout.fileno()
        self._in = sys.stdin.fileno()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)

    @property
    def size(self) -> os.terminal_size:
        try:
            return os.get_terminal_size(self._out)
        except OSError:
            return os.terminal_size((80, 24))

    def draw(self, lines: list[str]) -> None:
        # \x1b[K clears the rest of a line and \x1b[J what is below the last one. One write, so that no half is shown.
        body = "\r\n".join(f"{line}\x1b[K" for line in lines)
        self._write(f"{BEGIN_FRAME}\x1b[H{body}\x1b[J{END_FRAME}")

    def key(self, wait_s: float) -> str | None:
        """The next key, "" if the window has changed, or None when the time is over."""
        ready, _, _ = select.select([self._in, self._wake_read], [], [], max(0.0, wait_s))
        if self._wake_read in ready:
            os.read(self._wake_read, 4096)
            return ""
        if self._in in ready:
            data = os.read(self._in, 64)
            # The terminal is gone: the same as leaving.
            return data[:1].decode(errors="replace") if data else "q"
        return None

    @contextlib.contextmanager
    def opened(self) -> Iterator[Screen]:
        before = termios.tcgetattr(self._in)

        def woken(number: int, _frame: FrameType | None) -> None:
            if number == signal.SIGTERM:
                raise KeyboardInterrupt
            if number == signal.SIGCONT:
                # Whoever was in front meanwhile may have changed both.
                tty.setcbreak(self._in)
                self._write(ENTER)
            with contextlib.suppress(BlockingIOError):
                os.write(self._wake_write, b"x")

        def suspend(_number: int, _frame: FrameType | None) -> None:
            self._write(LEAVE)
            termios.tcsetattr(self._in, termios.TCSADRAIN, before)
            os.kill(os.getpid(), signal.SIGSTOP)

        handlers = {
            signal.SIGWINCH: woken,
            signal.SIGCONT: woken,
            signal.SIGTERM: woken,
            signal.SIGTSTP: suspend,
        }
        old = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            tty.setcbreak(self._in)
            self._write(ENTER)
            yield self
        finally:
            self._write(LEAVE)
            termios.tcsetattr(self._in, termios.TCSADRAIN, before)
            for number, handler in old.items():
                signal.signal(number, handler)

    def _write(self, text: str) -> None:
        data = text.encode(errors="replace")
        with contextlib.suppress(OSError):  # the terminal is gone; its reader will notice
            while data:
                data = data[os.write(self._out, data) :]
