"""Arrays of integers that are written by hand are what the library writes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shared.cbor_body import dump_map
from shared.cbor_uints import dump_uints
from shared.control_frames import JobsDone, Synced, encode_control


@given(
    st.sampled_from([0, 1, 65_000, 65_536, 1_000_000, 2**32 - 40, 2**32, 2**60]),
    st.sampled_from([0, 1, 8, 23, 24, 100, 255, 256, 1000]),
    st.booleans(),
)
def test_a_frame_of_acks_is_byte_for_byte_that_of_the_library(first: int, count: int, dead: bool) -> None:
    fact = JobsDone(tuple(range(first, first + count)), dead)
    assert encode_control(fact) == dump_map(fact.to_map())


@given(st.lists(st.integers(0x10000, 0xFFFFFFFF), max_size=80))
def test_any_order_of_integers_is_kept(values: list[int]) -> None:
    assert b"\xa1\x61v" + dump_uints(tuple(values)) == dump_map({"v": values})


@given(st.integers(0x10000 - 3, 0x10000 + 3) | st.integers(0xFFFFFFFF - 40, 0xFFFFFFFF), st.integers(1, 30))
def test_runs_at_the_edges_of_their_width_are_those_of_the_library(first: int, count: int) -> None:
    values = list(range(first, first + count))
    assert b"\xa1\x61v" + dump_uints(tuple(values)) == dump_map({"v": values})


@given(st.integers(0x10000, 0xFFFFFFF0), st.permutations(range(8)))
def test_neighbours_out_of_order_are_not_taken_for_a_run(first: int, order: list[int]) -> None:
    values = [first + place for place in order]
    assert b"\xa1\x61v" + dump_uints(tuple(values)) == dump_map({"v": values})


@given(st.one_of(st.integers(0, 2**64 - 1), st.sampled_from([2**32 - 1, 2**32, 2**64 - 1])))
def test_a_frame_that_vouches_for_a_sync_is_byte_for_byte_that_of_the_library(lsn: int) -> None:
    assert encode_control(Synced(lsn)) == dump_map(Synced(lsn).to_map())
