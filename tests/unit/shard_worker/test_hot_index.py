from __future__ import annotations

from array import array

import pytest

from shard_worker.core.hot_index import IN_MEMORY, HotEntry, HotIndex


def filled(batches: list[tuple[int, int]], *, lsn: int = 1000) -> HotIndex:
    """One entry per (first seq, records); times are ten times the first seq."""
    index = HotIndex()
    for first, count in batches:
        index.append(first, count, 10 * first, lsn + first if lsn else IN_MEMORY, 100 * count, 0)
    return index


def test_an_empty_index_has_no_entries_and_no_last_seq() -> None:
    index = HotIndex()
    assert len(index) == 0
    assert index.last_seq() == 0
    assert index.index_of(1) == 0
    assert index.first_not_older(5) == 0
    assert index.drop_before(0) == []


def test_an_entry_comes_back_as_it_was_added() -> None:
    index = HotIndex()
    index.append(7, 3, 1_700_000_000_000, 1 << 33 | 64, 250, 17)
    assert index.entry(0) == HotEntry(7, 3, 1_700_000_000_000, 1 << 33 | 64, 250, 17)
    assert index.entry(0).last == 9
    assert index.last_seq() == 9
    assert index.live[0] == 250


@pytest.mark.parametrize(
    ("seq", "found"),
    [(0, 0), (1, 0), (3, 0), (4, 1), (5, 1), (6, 2), (9, 2), (10, 2), (12, 2), (13, 3), (99, 3)],
)
def test_index_of_finds_the_entry_that_holds_a_seq_or_the_next_one(seq: int, found: int) -> None:
    # Seqs 6 to 9 are a hole.
    assert filled([(1, 3), (4, 2), (10, 3)]).index_of(seq) == found


def test_index_of_never_looks_in_front_of_the_start() -> None:
    index = filled([(1, 2), (3, 2), (5, 2)])
    index.drop_before(1)
    assert index.index_of(1) == 1
    assert index.index_of(3) == 1
    assert index.index_of(6) == 2


def test_first_not_older_is_strict_about_older() -> None:
    index = filled([(1, 1), (2, 1), (3, 1)])
    assert index.first_not_older(10) == 0
    assert index.first_not_older(11) == 1
    assert index.first_not_older(30) == 2
    assert index.first_not_older(31) == 3


def test_dropping_returns_only_the_entries_that_lived_in_memory() -> None:
    index = filled([(1, 1)], lsn=0)
    index.append(2, 1, 20, 5000, 10, 0)
    index.append(3, 1, 30, IN_MEMORY, 10, 0)
    assert [entry.first for entry in index.drop_before(2)] == [1]
    assert len(index) == 1
    assert index.last_seq() == 3


def test_dropping_everything_leaves_an_index_that_can_be_added_to() -> None:
    index = filled([(1, 2), (3, 2)])
    index.drop_before(2)
    assert len(index) == 0
    assert index.last_seq() == 0
    index.append(5, 1, 50, 9, 10, 0)
    assert index.index_of(5) == index.start
    assert index.last_seq() == 5


def test_arrays_are_cut_once_half_of_many_entries_is_dead() -> None:
    index = filled([(seq, 1) for seq in range(1, 601)])
    index.drop_before(255)
    assert len(index.first) == 600, "too few to be worth a move"
    index.drop_before(299)
    assert len(index.first) == 600, "less than half"
    index.drop_before(300)
    assert len(index.first) == 300
    assert index.start == 0
    assert all(
        len(column) == 300
        for column in (index.lsn, index.ts, index.size, index.live, index.count, index.flags)
    )
    assert index.entry(index.index_of(301)).first == 301
    assert index.last_seq() == 600


def test_an_index_from_columns_equals_one_that_was_filled() -> None:
    index = filled([(1, 3), (4, 2)])
    twin = HotIndex.of(
        index.first, index.lsn, index.ts, index.size, array("I", [250, 0]), index.count, index.flags
    )
    assert [twin.entry(i) for i in range(2)] == [index.entry(i) for i in range(2)]
    assert list(twin.live) == [250, 0]
    assert twin.start == 0


def test_live_bytes_are_the_sizes_until_something_goes() -> None:
    index = filled([(1, 2), (3, 1)])
    assert index.live is index.size
    index.take_off(0, 50)
    assert (list(index.size), list(index.live)) == ([200, 100], [150, 100])
    index.append(4, 1, 40, 1004, 70, 0)
    assert (list(index.size), list(index.live)) == ([200, 100, 70], [150, 100, 70])
    assert list(index.in_log().live) == [150, 100, 70]


@pytest.mark.parametrize("gone", [0, 10])
def test_cutting_the_front_off_keeps_sizes_and_live_bytes_together(gone: int) -> None:
    index = filled([(seq, 1) for seq in range(1, 601)])
    if gone:
        index.take_off(599, gone)
    index.drop_before(500)
    assert len(index) == 100 and index.start == 0
    assert len(index.size) == len(index.live) == len(index.first) == 100
    assert (index.size[99], index.live[99]) == (100, 100 - gone)


def test_a_copy_shares_or_parts_like_its_original() -> None:
    index = filled([(1, 1), (2, 1)])
    twin = index.in_log()
    assert twin.live is twin.size and twin.size is not index.size
    index.take_off(1, 5)
    assert list(twin.live) == [100, 100] and list(index.live) == [100, 95]
