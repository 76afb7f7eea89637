"""Neighbouring seqs, by their first and last one."""

from __future__ import annotations

from collections.abc import Collection, Iterable

Stretch = tuple[int, int]


def stretches_of(seqs: Collection[int]) -> list[Stretch]:
    """Each run of neighbours, ascending. What is there twice counts once."""
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


def seqs_of(stretches: Iterable[Stretch]) -> list[int]:
    found: list[int] = []
    for first, last in stretches:
        found += range(first, last + 1)
    return found


def count_of(stretches: Iterable[Stretch]) -> int:
    return sum(last - first + 1 for first, last in stretches)
