from __future__ import annotations

import errno

import pytest

from shard_worker.disk.quarantine import quarantine_copy, quarantine_file
from tests.support.fake_disk import FakeDisk

ASIDE = "/d/quarantine"


def disk_with(path: str, content: bytes) -> FakeDisk:
    disk = FakeDisk()
    disk.make_dir("/d/wal")
    disk.make_dir(ASIDE)
    disk.place(path, content)
    return disk


def test_a_file_is_moved_and_nothing_of_it_is_lost_in_a_power_cut() -> None:
    disk = disk_with("/d/wal/0000000001.wal", b"evidence")
    target = quarantine_file(disk, "/d/wal/0000000001.wal", ASIDE)
    disk.lose_power(keep="none")
    assert disk.files() == [target]
    assert disk.read_file(target) == b"evidence"


def test_names_in_quarantine_are_never_overwritten() -> None:
    disk = disk_with("/d/wal/a.wal", b"one")
    first = quarantine_file(disk, "/d/wal/a.wal", ASIDE)
    disk.place("/d/wal/a.wal", b"two")
    second = quarantine_file(disk, "/d/wal/a.wal", ASIDE)
    assert first != second
    assert (disk.read_file(first), disk.read_file(second)) == (b"one", b"two")


def test_a_tail_is_copied_without_the_zeros_behind_it() -> None:
    disk = disk_with("/d/wal/a.wal", b"good" + b"torn\0tail" + bytes(5000))
    copy = quarantine_copy(disk, disk.open("/d/wal/a.wal"), 4, ASIDE)
    assert disk.read_file(copy) == b"torn\0tail"
    assert copy.endswith("a.wal.torn-at-4.1")
    disk.lose_power(keep="none")
    assert disk.read_file(copy) == b"torn\0tail", "durable before the caller cuts the original"


def test_zeros_between_chunks_of_a_long_tail_are_kept() -> None:
    tail = b"x" * 100 + bytes(9 << 20) + b"y" * 100
    disk = disk_with("/d/wal/a.wal", tail)
    copy = quarantine_copy(disk, disk.open("/d/wal/a.wal"), 0, ASIDE)
    assert disk.read_file(copy) == tail


def test_the_same_place_torn_twice_gives_two_copies() -> None:
    disk = disk_with("/d/wal/a.wal", b"torn")
    file = disk.open("/d/wal/a.wal")
    assert quarantine_copy(disk, file, 0, ASIDE) != quarantine_copy(disk, file, 0, ASIDE)


@pytest.mark.parametrize("op", ["create", "write", "sync", "syncdir"])
def test_a_copy_that_fails_leaves_the_original_untouched(op: str) -> None:
    disk = disk_with("/d/wal/a.wal", b"torn")
    file = disk.open("/d/wal/a.wal")
    disk.fail_on(op, error=errno.ENOSPC, path_contains="quarantine")  # type: ignore[arg-type]
    with pytest.raises(OSError):
        quarantine_copy(disk, file, 0, ASIDE)
    assert disk.read_file("/d/wal/a.wal") == b"torn"
