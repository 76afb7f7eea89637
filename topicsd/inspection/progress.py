"""How far a long piece of work is: one line on stderr that is written over, and only on a terminal."""

from __future__ import annotations

import sys
import time

import click

_EVERY_S = 0.2


class ProgressLine:
    def __init__(self, *, shown: bool | None = None) -> None:
        self._shown = sys.stderr.isatty() if shown is None else shown
        self._what = ""
        self._last = 0.0

    def begin(self, what: str) -> None:
        self._what, self._last = what, 0.0

    def __call__(self, path: str, done: int, total: int) -> None:
        now = time.monotonic()
        if self._shown and now - self._last >= _EVERY_S:
            self._last = now
            part = 100 * done // total if total else 100
            click.echo(f"\r\x1b[2K{self._what}: {part:3d} %  {path}", err=True, nl=False)

    def clear(self) -> None:
        if self._shown:
            click.echo("\r\x1b[2K", err=True, nl=False)
