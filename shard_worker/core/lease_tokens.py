"""The tokens of leases, many at a time: what a worker's leases have in common, and a number in hex.

Numbers of the same 4096 share their leading digits, and the last three come from a table, as in seq_text.py.
"""

from __future__ import annotations

_TABLE = 4096
_THREE_DIGITS = [f"{number:03x}" for number in range(_TABLE)]
_NUMBERS = [f"{number:x}" for number in range(_TABLE)]


def token_of(prefix: str, number: int) -> str:
    return f"{prefix}{number:x}"


def token_list(prefix: str, number: int, count: int) -> list[str]:
    """The tokens of `number` and the next ones."""
    found: list[str] = []
    end = number + count
    while number < end:
        high, low = divmod(number, _TABLE)
        upto = min(_TABLE, low + end - number)
        if high:
            head = f"{prefix}{high:x}"
            found += [head + rest for rest in _THREE_DIGITS[low:upto]]
        else:
            found += [prefix + rest for rest in _NUMBERS[low:upto]]
        number += upto - low
    return found
