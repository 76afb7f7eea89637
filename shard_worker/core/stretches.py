"""Neighbouring seqs, by their first and last one."""

from __future__ import annotations

from collections.abc import Collection, Iterable

Stretch = tuple[int, int]


def stretches_of(seqs: Collection[int]) -> list[Stretch]:
    """Each run of neighbours, ascending. What is there twice counts once."""
    if isinstance(seqs, tuple) and _is_run(seqs):
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


def _is_run(seqs: tuple[int, ...]) -> bool:
    """Are they neighbours, one behind the other?"""
    if not seqs:
        return False
    expected = seqs[0]
    for seq in seqs:
        if seq != expected:
            return False
        expected += 1
    return True


def seqs_of(stretches: Iterable[Stretch]) -> list[int]:
    found: list[int] = []
    for first, last in stretches:
        # Not `+= range(…)`: compiled, a loop is cheaper than making the range, for a claim's worth of them.
        for seq in range(first, last + 1):
            found.append(seq)
    return found


def count_of(stretches: Iterable[Stretch]) -> int:
    count = 0
    for first, last in stretches:
        count += last - first + 1
    return count
