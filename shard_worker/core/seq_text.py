"""Seqs as text, many at a time.

Numbers of the same thousand share their leading digits, and the last three come from a table: formatting each number
by itself takes two to five times as long, and appends do it twice per record.
"""

from __future__ import annotations

from typing import Final

_THREE_DIGITS: Final = [b"%03d" % number for number in range(1000)]
_NUMBERS: Final = [b"%d" % number for number in range(1000)]


def seq_runs(first: int, count: int) -> list[tuple[bytes, list[bytes]]]:
    """(leading digits, the rest of each number) of first, first + 1, …, thousand by thousand."""
    runs: list[tuple[bytes, list[bytes]]] = []
    end = first + count
    while first < end:
        thousand, low = first // 1000, first % 1000
        high = min(1000, low + end - first)
        if thousand:
            runs.append((b"%d" % thousand, _THREE_DIGITS[low:high]))
        else:
            runs.append((b"", _NUMBERS[low:high]))
        first += high - low
    return runs


def seq_list(first: int, count: int) -> bytes:
    """`first,first+1,…`"""
    if count == 1:
        return b"%d" % first
    return b",".join([head + (b"," + head).join(rest) for head, rest in seq_runs(first, count)])
