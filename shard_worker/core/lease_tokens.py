"""The tokens of leases, many at a time: what a worker's leases have in common, and a number in hex.

Numbers of the same 4096 share their leading digits, and the last three come from a table, as in seq_text.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

_TABLE = 4096
_THREE_DIGITS = [f"{number:03x}" for number in range(_TABLE)]
_BYTES = [digits.encode() for digits in _THREE_DIGITS]


def token_of(prefix: str, number: int) -> str:
    return f"{prefix}{number:x}"


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


def tokens_are(tokens: Sequence[str], prefix: str, number: int) -> bool:
    """Are these the tokens of `number` and the next ones?"""
    count = len(tokens)
    head, low = _head(prefix, number, count)
    if head is None or "," in prefix:
        return list(tokens) == token_list(prefix, number, count)
    # Equal texts are equal lists: with a comma in a token there would be too many of them.
    return ",".join(tokens) == head + ("," + head).join(_THREE_DIGITS[low : low + count])


def _head(prefix: str, number: int, count: int) -> tuple[str | None, int]:
    """The prefix with the leading digits, if all have the same, and where the table goes on; else None."""
    high, low = divmod(number, _TABLE)
    return (_leading(prefix, high) if high and low + count <= _TABLE else None), low


@lru_cache(maxsize=64)  # what is claimed now and what is acked now are seldom far apart
def _leading(prefix: str, high: int) -> str:
    return f"{prefix}{high:x}"
