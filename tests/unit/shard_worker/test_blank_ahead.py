"""Zeros that the log writes behind its end, so that syncs which follow each other closely have less to do."""

from __future__ import annotations

import errno

from shard_worker.disk.wal import Wal
from shared.file_header import FILE_HEADER_BYTES
from shared.frame import Kind
from tests.support.fake_disk import FakeDisk
from tests.support.fault_kit import expect_healthy, expect_stable
from tests.support.shard_driver import ShardDriver

KIB = 1 << 10
FILE_BYTES = 1024 * KIB


def started(file_bytes: int = FILE_BYTES) -> tuple[FakeDisk, Wal]:
    disk = FakeDisk()
    disk.make_dir("/wal")
    wal = Wal(disk, "/wal", shard=0, file_bytes=file_bytes)
    wal.start(1, 0)
    return disk, wal


def write(wal: Wal, now_ms: int, size: int = 1000, *, awaited: bool = True) -> None:
    wal.stage(Kind.SYNCED, 0, 0, now_ms, bytes(range(1, 251)) * (size // 250))
    wal.write(now_ms)
    if awaited:
        wal.note_awaited(now_ms)


def zeros_written(disk: FakeDisk, wal: Wal, count: int, **how: int) -> int:
    """How many of so many groups brought zeros with them: each is a write of its own."""
    before = disk.calls
    for nth in range(count):
        write(wal, 1000 + nth * how.get("apart_ms", 1), how.get("size", 1000))
    return disk.calls - before - count


def test_groups_that_somebody_waits_for_have_zeros_behind_them_if_they_follow_closely() -> None:
    disk, wal = started()
    assert zeros_written(disk, wal, 100) == 1, "256 KiB last for a while"
    assert zeros_written(disk, wal, 10, size=100_000) > 1, "and are written again when they are used up"


def test_groups_that_come_now_and_then_have_none() -> None:
    disk, wal = started()
    assert zeros_written(disk, wal, 10, apart_ms=21) == 0


def test_groups_that_nobody_waits_for_have_none() -> None:
    disk, wal = started()
    before = disk.calls
    for nth in range(10):
        write(wal, 1000 + nth, awaited=False)
    assert disk.calls == before + 10


def test_the_file_reads_as_if_there_were_none_and_is_no_longer() -> None:
    _, wal = started(file_bytes=64 * KIB)
    for nth in range(20):
        write(wal, 1000 + nth)
    file = wal.files[1]
    assert file.size() == 64 * KIB
    end = wal.end & 0xFFFFFFFF
    content = file.pread(64 * KIB, 0)
    assert content[end:] == bytes(64 * KIB - end)
    assert bytes(100) not in content[FILE_HEADER_BYTES:end]


def test_a_disk_that_refuses_them_refuses_nobody() -> None:
    disk, wal = started()
    write(wal, 1000)
    wal.stage(Kind.SYNCED, 0, 0, 1001, b"body")
    wal.write(1001)
    disk.fail_on("write", error=errno.ENOSPC)
    wal.note_awaited(1001)
    write(wal, 1002)
    assert wal.files[1].pread(4, FILE_HEADER_BYTES) != bytes(4)


def test_after_a_group_that_was_cut_off_they_are_written_anew() -> None:
    disk, wal = started()
    write(wal, 1000)
    write(wal, 1001)
    wal.stage(Kind.SYNCED, 0, 0, 1002, b"body")
    disk.fail_on("write", error=errno.EIO)
    try:
        wal.write(1002)
    except OSError:
        pass
    else:
        raise AssertionError("the disk took it")
    assert zeros_written(disk, wal, 2) == 1


def test_whatever_a_power_cut_leaves_of_them_acked_records_are_there() -> None:
    for seed in range(20):
        driver = ShardDriver(wal_file_bytes=1 << 20)
        driver.put("f", durable=True)
        for number in range(30):
            assert driver.append("f", [{"data": number}]).ok
        driver.lose_power(seed=seed)
        assert [record["data"] for record in driver.read("f")["records"]] == list(range(30))
        expect_healthy(driver)
        expect_stable(driver)
