from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shard_worker.core.seq_set import SeqSet

SEQS = st.one_of(st.integers(1, 300), st.integers(2**40, 2**40 + 300), st.integers(2**63, 2**64 - 2))


def set_of(*seqs: int) -> SeqSet:
    made = SeqSet()
    for seq in seqs:
        made.add(seq)
    return made


def test_an_empty_set_holds_nothing() -> None:
    empty = SeqSet()
    assert len(empty) == 0
    assert 1 not in empty
    assert empty.count(1, 100) == 0
    assert list(empty.within(1, 100)) == []
    assert empty.first_absent(5) == 5


def test_adding_twice_counts_once() -> None:
    assert len(set_of(4, 4)) == 1


def test_count_and_within_include_both_ends() -> None:
    held = set_of(1, 3, 5, 6, 9)
    assert held.count(3, 6) == 3
    assert list(held.within(3, 6)) == [3, 5, 6]
    assert held.count(7, 8) == 0
    assert held.count(6, 5) == 0


def test_forget_below_keeps_the_bound_itself() -> None:
    held = set_of(1, 2, 3)
    held.forget_below(3)
    assert list(held.within(1, 9)) == [3]
    held.forget_below(0)
    assert len(held) == 1


@pytest.mark.parametrize("run", [1, 2, 3, 7, 64, 1000, 65_536, 100_000])
def test_first_absent_gallops_over_a_dense_run_to_its_exact_end(run: int) -> None:
    held = SeqSet()
    for seq in range(10, 10 + run):
        held.add(seq)
    assert held.first_absent(10) == 10 + run
    assert held.first_absent(9) == 9
    assert held.first_absent(9 + run) == 10 + run


def test_a_copy_is_independent() -> None:
    held = set_of(1)
    twin = held.copy()
    twin.add(2)
    held.add(3)
    assert 2 not in held and 3 not in twin


def test_the_stored_form_gives_the_same_set() -> None:
    held = set_of(1, 2, 3, 2**40, 2**64 - 2)
    twin = SeqSet(held.to_bytes())
    assert list(twin.within(0, 2**64 - 1)) == [1, 2, 3, 2**40, 2**64 - 2]


@pytest.mark.parametrize("stored", [b"\0", b"garbage", b"\xff" * 40])
def test_garbage_in_place_of_the_stored_form_is_a_value_error(stored: bytes) -> None:
    with pytest.raises(ValueError):
        SeqSet(stored)


@given(st.sets(SEQS, max_size=60), SEQS, SEQS)
def test_a_set_agrees_with_pythons_own(seqs: set[int], low: int, high: int) -> None:
    held = set_of(*seqs)
    assert list(held.within(low, high)) == sorted(seq for seq in seqs if low <= seq <= high)
    assert held.count(low, high) == sum(low <= seq <= high for seq in seqs)
    absent = low
    while absent in seqs:
        absent += 1
    assert held.first_absent(low) == absent
    assert len(SeqSet(held.to_bytes())) == len(seqs)
