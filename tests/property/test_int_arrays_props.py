"""Columns of integers handled whole say the same as a loop over their elements."""

from __future__ import annotations

from array import array
from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from shared.int_arrays import U64, is_ascending, is_strictly_ascending

_LENGTHS = st.sampled_from((0, 1, 15, 16, 17, 300, 2047, 2048, 2049, 4095, 5000))


@st.composite
def columns(draw: st.DrawFn) -> array[int]:
    """Mostly ascending, with a place where it may not be; some values use the highest bit."""
    code = draw(st.sampled_from(("I", "Q", U64)))
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
