"""Neighbouring seqs, by their first and last one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

Stretch = tuple[int, int]


def stretches_of(seqs: Collection[int]) -> list[Stretch]:
    """Each run of neighbours, ascending. What is there twice counts once."""
    if isinstance(seqs, tuple) and is_run(seqs):
        return [(seqs[0], seqs[-1])]
    ordered = sorted(set(seqs))
    if not ordered:
        return []
    first = ordered[0]
    if ordered[-1] - first == len(ordered) - 1:
        return [(first, ordered[-1])]
    found: list[Stretch] = []
    last = first
    for seq in ordered:
        if seq > last + 1:
            found.append((first, last))
            first = seq
        last = seq
    found.append((first, last))
    return found


def is_run(seqs: Sequence[int]) -> bool:
    """Are they neighbours, one behind the other?"""
    count = len(seqs)
    if not count or seqs[-1] - seqs[0] != count - 1:
        return False
    return count == 1 or list(seqs) == list(range(seqs[0], seqs[-1] + 1))


def seqs_of(stretches: Iterable[Stretch]) -> list[int]:
    found: list[int] = []
    for first, last in stretches:
        found += range(first, last + 1)
    return found


def count_of(stretches: Iterable[Stretch]) -> int:
    count = 0
    for first, last in stretches:
        count += last - first + 1
    return count
