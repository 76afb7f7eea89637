"""Copies of what is read again: the same bytes, bounded, and never for who reads once."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from shard_worker.request import Extents
from shard_worker.serve import stitched_reads
from shard_worker.serve.stitched_reads import FIRST_NUMBER, StitchedReads

LOG = {1: bytes(range(256)) * 40, 2: b"second file " * 900}


def read_log(extents: Extents) -> bytes:
    return b"".join(LOG[file][offset : offset + length] for file, offset, length in extents)


@pytest.fixture
def stitched() -> Iterator[StitchedReads]:
    made = StitchedReads(read_log, file_bytes=1000)
    yield made
    made.close()


def bytes_of(stitched: StitchedReads, extents: Extents) -> bytes:
    (file, offset, length) = extents[0]
    assert len(extents) == 1 and file in stitched
    return os.pread(stitched.descriptor(file), length, offset)


def piece(start: int, count: int = 4, size: int = 10) -> Extents:
    """Batches of `size` bytes with gaps between them."""
    return [(1, start + 20 * number, size) for number in range(count)]


def test_what_is_read_twice_is_one_extent_with_the_same_bytes(stitched: StitchedReads) -> None:
    across_files = [(1, 5, 10), (1, 30, 7), (2, 0, 12), (2, 24, 12)]
    for wanted in (piece(0), across_files):
        assert stitched.find(wanted) is wanted
        once = stitched.find(list(wanted))
        assert bytes_of(stitched, once) == read_log(wanted)
        assert stitched.find(list(wanted)) == once


def test_ranges_that_differ_in_one_batch_are_told_apart(stitched: StitchedReads) -> None:
    whole, shorter, later = piece(0, 5), piece(0, 4), piece(20, 4)
    holed = [*whole[:2], *whole[3:]]
    half_way = [(1, 3, 7), *whole[1:]]
    for wanted in (whole, shorter, later, holed, half_way):
        stitched.find(wanted)
        assert bytes_of(stitched, stitched.find(wanted)) == read_log(wanted)
    for wanted in (whole, shorter, later, holed, half_way):
        assert bytes_of(stitched, stitched.find(wanted)) == read_log(wanted)


def test_few_extents_and_large_ranges_are_left_as_they_are(stitched: StitchedReads) -> None:
    for wanted in (piece(0, 2), piece(0, 3, size=200)):
        for _ in range(3):
            assert stitched.find(wanted) is wanted


def test_two_files_at_most_and_the_older_one_is_retired(stitched: StitchedReads) -> None:
    ranges = [piece(1 + number, 10, size=19) for number in range(15)]  # five fill a file
    for wanted in ranges:
        stitched.find(wanted)
        assert bytes_of(stitched, stitched.find(wanted)) == read_log(wanted)
    assert stitched.take_retired() == [FIRST_NUMBER]
    assert stitched.take_retired() == []
    assert FIRST_NUMBER not in stitched and FIRST_NUMBER + 1 in stitched and FIRST_NUMBER + 2 in stitched
    assert stitched.find(ranges[0]) is ranges[0]  # forgotten with its file
    assert bytes_of(stitched, stitched.find(ranges[-1])) == read_log(ranges[-1])


def test_without_descriptors_everything_is_read_from_the_log(
    stitched: StitchedReads, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(24, "Too many open files")

    wanted = piece(0)
    stitched.find(wanted)
    with monkeypatch.context() as patched:
        patched.setattr(stitched_reads.os, "memfd_create", refuse)
        assert stitched.find(wanted) is wanted
    assert bytes_of(stitched, stitched.find(wanted)) == read_log(wanted)


def test_who_gets_the_descriptor_can_only_read(stitched: StitchedReads) -> None:
    stitched.find(piece(0))
    ((file, _, _),) = stitched.find(piece(0))
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.pwrite(stitched.descriptor(file), b"x", 0)


def test_what_was_asked_for_once_is_remembered_within_a_bound(stitched: StitchedReads) -> None:
    for number in range(stitched_reads.STITCHED_SEEN_MAX + 1):
        stitched.find([(7, number, 1), (7, number + 10_000, 1), (7, number + 20_000, 1)])
    assert len(stitched._seen) == 1
