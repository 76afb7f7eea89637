"""The tokens of leases, many at a time: what a worker's leases have in common, and a number in hex.

Numbers of the same 4096 share their leading digits, and the last three come from a table, as in seq_text.py.
"""

from __future__ import annotations

from typing import Final

_TABLE: Final = 4096
_TABLE_BITS: Final = 12
_THREE_DIGITS: Final = [f"{number:03x}" for number in range(_TABLE)]
_BYTES: Final = [digits.encode() for digits in _THREE_DIGITS]


class _Leading:
    """A prefix with leading digits, the last one asked for: what is claimed now and what is acked now have the same,
    nearly always."""

    __slots__ = ("_high", "_prefix", "_text")

    def __init__(self) -> None:
        self._prefix = ""
        self._high = 0
        self._text = "0"

    def of(self, prefix: str, high: int) -> str:
        if high != self._high or prefix != self._prefix:
            self._prefix, self._high, self._text = prefix, high, f"{prefix}{high:x}"
        return self._text


_leading: Final = _Leading()


def token_of(prefix: str, number: int) -> str:
    head, low = _head(prefix, number, 1)
    return f"{prefix}{number:x}" if head is None else head + _THREE_DIGITS[low]


def token_list(prefix: str, number: int, count: int) -> list[str]:
    """The tokens of `number` and the next ones."""
    head, low = _head(prefix, number, count)
    if head is None:
        return [f"{prefix}{each:x}" for each in range(number, number + count)]
    return [head + rest for rest in _THREE_DIGITS[low : low + count]]


def token_parts(prefix: str, number: int, count: int) -> tuple[bytes, list[bytes]]:
    """What the tokens of `number` and the next ones begin with, and how each goes on."""
    head, low = _head(prefix, number, count)
    if head is None:
        return prefix.encode(), [b"%x" % each for each in range(number, number + count)]
    return head.encode(), _BYTES[low : low + count]


def tokens_are(tokens: list[str], prefix: str, number: int) -> bool:
    """Are these the tokens of `number` and the next ones?"""
    count = len(tokens)
    head, low = _head(prefix, number, count)
    if head is None or "," in prefix:
        return tokens == token_list(prefix, number, count)
    # Equal texts are equal lists: with a comma in a token there would be too many of them.
    return ",".join(tokens) == head + ("," + head).join(_THREE_DIGITS[low : low + count])


def _head(prefix: str, number: int, count: int) -> tuple[str | None, int]:
    """The prefix with the leading digits, if all have the same, and where the table goes on; else None."""
    high, low = number >> _TABLE_BITS, number & (_TABLE - 1)
    return (_leading.of(prefix, high) if high and low + count <= _TABLE else None), low
