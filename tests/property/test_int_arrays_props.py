"""Columns of integers handled whole say the same as a loop over their elements."""

from __future__ import annotations

from array import array
from itertools import pairwise

from hypothesis import assume, example, given
from hypothesis import strategies as st

from shared.int_arrays import add_if_rising_u32, is_ascending, is_strictly_ascending

_LENGTHS = st.sampled_from((0, 1, 15, 16, 17, 300, 2047, 2048, 2049, 4095, 5000))


@st.composite
def columns(draw: st.DrawFn, codes: str = "IQ") -> array[int]:
    """Mostly ascending, with a place where it may not be; some values use the highest bit."""
    code = draw(st.sampled_from(codes))
    length, step = draw(_LENGTHS), draw(st.integers(0, 3))
    start = draw(st.sampled_from((0, 7, 1 << 20, (1 << 31) - 2000, (1 << 32) - 20_000)))
    values = [start + at * step for at in range(length)]
    if values and draw(st.booleans()):
        values[draw(st.integers(0, length - 1))] = draw(st.integers(0, (1 << 32) - 1))
    return array(code, values)


@given(columns())
@example(array("I", range(2048)) + array("I", range(2047, 4000)))
@example(array("Q", range(2048)) + array("Q", range(2046, 4000)))
def test_ascending_is_told_as_by_looking_at_every_pair(values: array[int]) -> None:
    assert is_ascending(values) == all(low <= high for low, high in pairwise(values))
    assert is_strictly_ascending(values) == all(low < high for low, high in pairwise(values))


@given(
    st.lists(st.tuples(st.integers(0, (1 << 31) - 1), st.integers(0, (1 << 31) - 1)), max_size=50),
    st.booleans(),
)
@example([(1 << 31, 1 << 31)], False)
@example([(5, 1), ((1 << 32) - 1, 7), (9, 7)], False)
def test_columns_are_added_element_by_element_if_their_sums_rise(
    pairs: list[tuple[int, int]], ordered: bool
) -> None:
    if ordered:
        pairs = sorted(pairs, key=sum)
    left = array("I", [one for one, _ in pairs])
    right = array("I", [other for _, other in pairs])
    sums = [one + other for one, other in pairs]
    rising = all(low < high for low, high in pairwise(sums)) and all(each < 1 << 32 for each in sums)
    assert add_if_rising_u32(left.tobytes(), right.tobytes()) == (array("I", sums) if rising else None)


@given(columns("I"), st.integers(0, 1000))
@example(array("I", range(1, 2049)), 5)
@example(array("I", range(1, 2050)), 5)
def test_long_columns_are_added_likewise(values: array[int], step: int) -> None:
    sums = [value + step for value in values]
    assume(not sums or max(sums) < 1 << 32)
    steps = array("I", (step,)) * len(values)
    expected = array("I", sums) if is_strictly_ascending(values) else None
    assert add_if_rising_u32(values.tobytes(), steps.tobytes()) == expected


def test_columns_of_different_lengths_are_not_added() -> None:
    assert add_if_rising_u32(array("I", (1, 2)).tobytes(), array("I", (1,)).tobytes()) is None
