"""Prometheus' text format, version 0.0.4: families of numbers become the text that a scraper reads.

By hand, because prometheus-client brings an HTTP server, asyncio and 6 MB with it, for a format of three kinds
of lines. It gives the same bytes (tests/unit/gateway/test_exposition.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Kind = Literal["gauge", "counter", "histogram"]


class Family:
    """All numbers of one name. The name of a counter is given without its `_total`."""

    def __init__(self, kind: Kind, name: str, about: str, labels: Sequence[str] = ()) -> None:
        self._kind = kind
        self._name = f"{name}_total" if kind == "counter" else name
        self._about = about
        self._labels = labels
        self._lines: list[str] = []

    def add(self, label_values: Sequence[str], value: float) -> None:
        assert self._kind != "histogram"
        self._line("", dict(zip(self._labels, label_values, strict=True)), value)

    def add_histogram(
        self, label_values: Sequence[str], buckets: Iterable[tuple[float, float]], count: float, total: float
    ) -> None:
        """`buckets` are upper bounds with cumulative counts, ascending, without the last one (+Inf)."""
        assert self._kind == "histogram"
        labels = dict(zip(self._labels, label_values, strict=True))
        for bound, below in buckets:
            self._line("_bucket", {**labels, "le": repr(float(bound))}, below)
        self._line("_bucket", {**labels, "le": "+Inf"}, count)
        self._line("_count", labels, count)
        self._line("_sum", labels, total)

    def text(self) -> str:
        head = f"# HELP {self._name} {_escaped(self._about)}\n# TYPE {self._name} {self._kind}\n"
        return head + "".join(self._lines)

    def _line(self, suffix: str, labels: dict[str, str], value: float) -> None:
        inner = ",".join(f'{name}="{_quoted(labels[name])}"' for name in sorted(labels))
        where = f"{{{inner}}}" if inner else ""
        self._lines.append(f"{self._name}{suffix}{where} {_number(value)}\n")


def single(kind: Kind, name: str, about: str, value: float) -> Family:
    """A family of one number, without labels."""
    family = Family(kind, name, about)
    family.add((), value)
    return family


def render(families: Iterable[Family]) -> bytes:
    return "".join(family.text() for family in families).encode()


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', r"\"")


def _number(value: float) -> str:
    value = float(value)
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    text = repr(value)
    whole, _, rest = text.partition(".")
    if value > 0 and len(whole) > 6 and rest:
        # As Go writes it, which uses exponents sooner than Python.
        mantissa = f"{whole[0]}.{whole[1:]}{rest}".rstrip("0.")
        return f"{mantissa}e+{len(whole) - 1:02d}"
    return text
