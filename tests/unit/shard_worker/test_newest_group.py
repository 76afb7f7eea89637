"""What was written to the log last is read from memory. Only the file's reads tell: the bytes are the same."""

from __future__ import annotations

import errno

import pytest

from shard_worker.disk.wal import Wal
from shared.frame import FRAME_MIN_BYTES, Kind
from shared.io.durable_fs import File
from tests.support.fake_disk import FakeDisk

KIB = 1 << 10


class Reads:
    """The file of a log, and how often it was read."""

    def __init__(self, file: File) -> None:
        self._file = file
        self.count = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)

    def pread(self, length: int, offset: int) -> bytes:
        self.count += 1
        return self._file.pread(length, offset)


def started(file_bytes: int = 1024 * KIB) -> tuple[FakeDisk, Wal, Reads]:
    disk = FakeDisk()
    disk.make_dir("/wal")
    wal = Wal(disk, "/wal", shard=0, file_bytes=file_bytes)
    wal.start(1, 0)
    return disk, wal, watched(wal, 1)


def watched(wal: Wal, number: int) -> Reads:
    reads = Reads(wal.files[number])
    wal.files[number] = reads  # type: ignore[assignment]
    return reads


def write(wal: Wal, *sizes: int) -> list[tuple[int, int]]:
    """One group of frames with bodies of these sizes; returns the lsn and the length of each."""
    found = [
        (wal.stage(Kind.SYNCED, 0, 0, 1000, bytes([n + 1]) * size), FRAME_MIN_BYTES + size)
        for n, size in enumerate(sizes)
    ]
    wal.write(1000)
    return found


def as_on_disk(wal: Wal, lsn: int, length: int) -> bytes:
    return wal.files[lsn >> 32].pread(length, lsn & 0xFFFFFFFF)


def test_the_newest_group_is_read_without_its_file() -> None:
    _, wal, reads = started()
    for lsn, length in write(wal, 100, 1000, 10):
        found = [wal.read(lsn, length), wal.read(lsn + 5, length - 5)]
        assert reads.count == 0
        assert found == [as_on_disk(wal, lsn, length), as_on_disk(wal, lsn + 5, length - 5)]
        reads.count = 0


def test_what_is_older_or_reaches_beyond_it_comes_from_the_file() -> None:
    _, wal, reads = started()
    older = write(wal, 100)[0]
    newer = write(wal, 50)[0]
    assert wal.read(*older) == as_on_disk(wal, *older)
    assert wal.read(older[0], older[1] + 1)[-1:] == wal.read(newer[0], 1)
    assert len(wal.read(newer[0], newer[1] + 7)) == newer[1] + 7
    assert reads.count == 4, "three from the file, and one to compare with"


def test_a_group_that_is_large_is_not_kept() -> None:
    _, wal, reads = started(file_bytes=4096 * KIB)
    lsn, length = write(wal, 300 * KIB)[0]
    assert wal.read(lsn, length) == as_on_disk(wal, lsn, length)
    assert reads.count == 2


def test_after_a_group_that_failed_the_one_before_is_read_and_what_takes_its_place() -> None:
    disk, wal, _ = started()
    kept = write(wal, 100)[0]
    disk.fail_on("write", error=errno.EIO)
    with pytest.raises(OSError):
        write(wal, 60)
    again = write(wal, 80)[0]
    assert again[0] == kept[0] + kept[1]
    for lsn, length in (kept, again):
        assert wal.read(lsn, length) == as_on_disk(wal, lsn, length)


def test_a_group_that_ends_in_the_next_file_is_read_there() -> None:
    _, wal, _ = started(file_bytes=64 * KIB)
    for lsn, length in write(wal, 40 * KIB, 40 * KIB, 10):
        assert wal.read(lsn, length) == as_on_disk(wal, lsn, length)
    assert set(wal.files) == {1, 2}
