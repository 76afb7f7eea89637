"""Answers as text for people: tables, pairs, sizes and times. Colours are dropped unless stdout is a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import click

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def size_text(size: int) -> str:
    amount, unit = float(size), 0
    while amount >= 1024 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{size} B" if unit == 0 else f"{amount:.1f} {_UNITS[unit]}"


def time_text(ms: object) -> str:
    if not isinstance(ms, int) or not ms:
        return "-"
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def seqs_text(first: object, last: object) -> str:
    return str(first) if first == last else f"{first}..{last}"


def cell(value: object) -> str:
    return "-" if value is None else str(value)


def table(headings: Sequence[str], rows: Iterable[Sequence[object]], *, right: str = "") -> list[str]:
    """Lines of equal columns. `right`: the headings, space-separated, of columns of numbers."""
    texts = [[cell(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(headings, *texts, strict=True)]
    numbers = [heading in right.split(" ") for heading in headings]

    def line(cells: Sequence[str]) -> str:
        parts = (
            text.rjust(width) if number else text.ljust(width)
            for text, width, number in zip(cells, widths, numbers, strict=True)
        )
        return "  ".join(parts).rstrip()

    return [click.style(line(headings), bold=True), *map(line, texts)]


def pairs(rows: Iterable[tuple[str, object]]) -> list[str]:
    known = [(name, cell(value)) for name, value in rows]
    width = max(len(name) for name, _ in known)
    return [f"{click.style(name.ljust(width), bold=True)}  {value}" for name, value in known]


def bad(text: str) -> str:
    return click.style(text, fg="red")


def good(text: str) -> str:
    return click.style(text, fg="green")
