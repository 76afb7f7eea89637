"""What people and programs see: NDJSON, tables, colour on a terminal only, progress on stderr."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Sequence

import msgspec

from topicsd.client.errors import OutputClosed

_encoder = msgspec.json.Encoder()


class Output:
    """Stdout in bytes. A reader that has left ends the command quietly."""

    def __init__(self) -> None:
        self._buffer = sys.stdout.buffer
        self.is_terminal = sys.stdout.isatty()
        self.colour = self.is_terminal and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"

    def line(self, raw: bytes) -> None:
        """One line of NDJSON. Records keep the bytes of their writer, whose line breaks stand between tokens
        (a string cannot hold one), so a space does as well."""
        if b"\n" in raw or b"\r" in raw:
            raw = raw.replace(b"\r", b" ").replace(b"\n", b" ")
        self.write(raw + b"\n")

    def json(self, value: object) -> None:
        self.line(_encoder.encode(value))

    def text(self, text: str) -> None:
        self.write(text.encode(errors="backslashreplace") + b"\n")

    def write(self, data: bytes) -> None:
        try:
            self._buffer.write(data)
        except BrokenPipeError:
            self._closed()

    def flush(self) -> None:
        try:
            self._buffer.flush()
        except BrokenPipeError:
            self._closed()

    def _closed(self) -> None:
        # The interpreter flushes stdout once more when it ends, and would complain.
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
        raise OutputClosed

    def paint(self, text: str, style: str) -> str:
        return f"\x1b[{STYLES[style]}m{text}\x1b[0m" if self.colour else text

    def table(self, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Columns of numbers are aligned right, those of words left; a head with a leading ">" is of numbers."""
        for number, line in enumerate(table_lines(heads, rows)):
            self.text(self.paint(line, "head") if number == 0 else line)

    def pairs(self, rows: Sequence[tuple[str, str]]) -> None:
        width = max(len(name) for name, _ in rows)
        for name, value in rows:
            self.text(f"{self.paint(name.ljust(width), 'dim')}  {value}")


STYLES = {"head": "1", "dim": "2", "bad": "31", "good": "32", "warn": "33"}


def note(text: str) -> None:
    """A line for the person who watches; never mixed into what a program reads."""
    try:
        sys.stderr.write(f"topics: {text}\n")
        sys.stderr.flush()
    except BrokenPipeError:
        return


class Progress:
    """One line on stderr that is rewritten in place; nothing at all if stderr is no terminal."""

    def __init__(self, *, shown: bool = True) -> None:
        self._shown = shown and sys.stderr.isatty()
        self._next_at = time.monotonic() + 0.5  # what is done sooner needs no progress
        self._drawn = False

    def show(self, text: str) -> None:
        now = time.monotonic()
        if self._shown and now >= self._next_at:
            self._next_at = now + 0.1
            self._drawn = True
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()

    def clear(self) -> None:
        if self._drawn:
            self._drawn = False
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def table_lines(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    numeric = [head.startswith(">") for head in heads]
    lines = [[head.removeprefix(">") for head in heads], *([printable(cell) for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    return [
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in lines
    ]


def printable(text: str) -> str:
    """Nothing that a terminal would obey."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "�" for c in text)


def count(number: float) -> str:
    return f"{number:,.0f}"


def size(number: float) -> str:
    """Bytes for people: 3 digits are enough to compare."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "B" or number >= 100 else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:,.1f} TiB"


def duration(ms: float) -> str:
    if ms < 1000:
        return f"{ms:.0f} ms"
    seconds = ms / 1000
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"


def moment(ms: int | None) -> str:
    if ms is None:
        return "never"
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ms / 1000))


def records(number: int) -> str:
    return "1 record" if number == 1 else f"{count(number)} records"


def seq_range(first: int, last: int) -> str:
    return f"seq {first}" if first == last else f"seq {first}…{last}"
