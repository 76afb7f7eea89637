"""The ends of a batch's records, moved behind other batches: as a loop over numbers says, or refused."""

from __future__ import annotations

from array import array
from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st
from librt.strings import BytesWriter

from shard_worker.disk.moved_ends import move_ends
from shared.int_arrays import dump, load_u32

_LENGTHS = st.sampled_from((1, 2, 15, 16, 17, 300, 2047, 2048, 2049, 5000))


@st.composite
def columns(draw: st.DrawFn) -> list[int]:
    """Mostly rising, with a place where it may not be; some values use the highest bit."""
    length, step = draw(_LENGTHS), draw(st.integers(0, 3))
    start = draw(st.sampled_from((0, 1, 7, 1 << 20, (1 << 31) - 2000, (1 << 32) - 20_000)))
    values = [start + at * step for at in range(length)]
    if draw(st.booleans()):
        values[draw(st.integers(0, length - 1))] = draw(st.integers(0, (1 << 32) - 1))
    return values


def moved(ends: list[int], size: int, before: int, *, at: int = 0) -> list[int] | None:
    writer = BytesWriter()
    log = bytes(at) + dump(array("I", ends)) + b"checksum"
    if not move_ends(writer, log, at, len(ends), size, before):
        return None
    return list(load_u32(writer.getvalue()))


@given(columns(), st.integers(0, 1 << 28), st.integers(0, 9))
@example(list(range(1, 2049)), 5, 0)
@example([1 << 31], 0, 0)
@example([5, (1 << 32) - 1, 9], 1, 0)
def test_ends_that_rise_are_moved_and_others_refused(ends: list[int], before: int, at: int) -> None:
    rising = ends[0] > 0 and all(low < high for low, high in pairwise(ends)) and ends[-1] < 1 << 31
    expected = [before + end for end in ends] if rising else None
    assert moved(ends, ends[-1], before, at=at) == expected


@given(st.lists(st.integers(1, 1 << 20), min_size=1, max_size=50), st.booleans())
def test_any_ends_at_all(ends: list[int], ordered: bool) -> None:
    if ordered:
        ends = sorted(ends)
    rising = all(low < high for low, high in pairwise(ends))
    assert moved(ends, ends[-1], 3) == ([3 + end for end in ends] if rising else None)


def test_they_end_where_the_json_part_does() -> None:
    assert moved([10, 20], 20, 0) == [10, 20]
    assert moved([10, 20], 21, 0) is None
    assert moved([10, 20], 19, 0) is None


def test_a_log_that_is_cut_off_has_none() -> None:
    assert not move_ends(BytesWriter(), dump(array("I", [1, 2])), 0, 3, 3, 0)
    assert not move_ends(BytesWriter(), b"", 0, 2, 3, 0)
