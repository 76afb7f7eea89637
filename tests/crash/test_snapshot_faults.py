"""Snapshots under every fault of the catalogue, S1 to S6."""

from __future__ import annotations

import errno
from collections.abc import Callable
from struct import pack
from typing import Any

import pytest
from xxhash import xxh3_64_intdigest

from shared.errors import CorruptFrame, FormatTooNew
from shared.file_header import FILE_HEADER_BYTES
from shared.frame import Kind
from tests.support.fake_disk import FakeDisk
from tests.support.fault_kit import (
    ROOMY,
    SNAPSHOTS_DIR,
    appends,
    crash_points,
    data_of,
    expect_healthy,
    expect_prefix,
    expect_read_only_for_damage,
    expect_stable,
    flip_in_frame,
    make_snapshot_due,
    picture,
    reopened,
    segment_path,
    snapshot_is_intact,
    snapshot_numbers,
    snapshot_path,
    wal_numbers,
    wal_path,
)
from tests.support.shard_driver import ShardDriver


def shard_with(count: int = 4, *, wal_file_bytes: int = ROOMY, **overrides: object) -> ShardDriver:
    """Topics with everything a snapshot holds: deletes, floors, keys, sealed and hot records."""
    driver = ShardDriver(wal_file_bytes=wal_file_bytes, **overrides)
    driver.put("f", durable=True)
    driver.put("capped", durable=True, cap_records=3)
    driver.put("expired", durable=True, ttl_ms=60_000)
    for number in range(count):
        assert driver.append(
            "f", [{"data": number, "tag": f"t{number % 2}"}], idempotency_key=f"k{number}"
        ).ok
        assert driver.append("capped", [{"data": number}]).ok
        assert driver.append("expired", [{"data": number}]).ok
    driver.seal()
    driver.append("f", [{"data": "hot", "tag": "t0"}, {"data": "hot too", "key": "k"}])
    driver.delete_records("f", match="t1", before_seq=3)
    driver.sync()
    return driver


def with_two_snapshots(**overrides: object) -> ShardDriver:
    driver = shard_with(**overrides)  # type: ignore[arg-type]
    assert driver.snapshot()
    driver.append("f", [{"data": "between"}])
    assert driver.snapshot()
    driver.append("f", [{"data": "behind"}])
    driver.sync()
    assert snapshot_numbers(driver.disk) == [1, 2]
    return driver


# --- S1 ---------------------------------------------------------------------------------------------------

SNAPSHOT_OPS = ["create", "write", "sync", "rename", "syncdir"]


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("op", SNAPSHOT_OPS)
def test_s01_a_snapshot_that_fails_leaves_the_old_one_and_the_log(op: str, error: int) -> None:
    driver = with_two_snapshots(count=40, wal_file_bytes=4096)
    files = wal_numbers(driver.disk)
    before = picture(driver)
    driver.disk.fail_on(op, error=error, path_contains="/snapshots")  # type: ignore[arg-type]
    make_snapshot_due(driver)
    maintenance = driver.shard.maintenance
    job = maintenance.next_job()
    while job is None and maintenance.stepping:
        job = maintenance.next_job()
    driver.sync()
    driver.finish_job(job or maintenance.next_job())
    assert maintenance.counters.failures == 1
    assert "napshot" in maintenance.counters.last_failure
    assert snapshot_numbers(driver.disk)[:2] == [1, 2], "the old ones stay"
    assert wal_numbers(driver.disk) == files, "the log is not trimmed"
    assert not [name for name in driver.disk.list_dir(SNAPSHOTS_DIR) if name.endswith(".tmp")]
    assert driver.append("f", [{"data": "goes on"}]).ok
    driver.kill()
    assert data_of(driver, "f")[-1] == "goes on"
    assert {name: held for name, held in picture(driver).items() if name != "f"} == {
        name: held for name, held in before.items() if name != "f"
    }
    assert driver.snapshot(), "the next one works"
    expect_healthy(driver)


@pytest.mark.parametrize("nth", range(1, 8))
def test_s01_a_slice_that_fails_ends_the_snapshot_instead_of_leaving_topics_out(nth: int) -> None:
    driver = ShardDriver(wal_file_bytes=4096)
    for number in range(5):
        driver.append(f"t{number}", [{"data": number}], config={"durable": True})
    driver.snapshot()
    driver.begin_snapshot()
    driver.disk.fail_on("write", nth=nth, path_contains=".snap")
    failed = False
    for _ in range(6):
        try:
            driver.step_snapshot(1)
        except OSError:
            failed = True
    driver.sync()
    driver.finish_job(driver.end_snapshot())
    assert driver.shard.maintenance.counters.failures or not failed
    assert all(snapshot_is_intact(driver.disk, number) for number in snapshot_numbers(driver.disk))
    driver.lose_power(keep="none")
    assert [data_of(driver, f"t{number}") for number in range(5)] == [[number] for number in range(5)]
    expect_healthy(driver)


def test_s01_a_full_disk_gets_its_space_back() -> None:
    driver = shard_with()
    used = driver.disk.used_bytes()
    driver.disk.capacity_bytes = used + 300
    make_snapshot_due(driver)
    for _ in range(10):
        driver.finish_job(driver.shard.maintenance.next_job())
        driver.sync()
    assert driver.shard.maintenance.counters.failures
    assert driver.disk.used_bytes() <= used + 200, "only the log has grown"


def test_s01_failed_housekeeping_does_not_stop_the_worker() -> None:
    for path in (".snap", ".wal", ".seg"):
        driver = with_two_snapshots(count=40, wal_file_bytes=4096)
        driver.seal()
        driver.delete_records("f", before_seq=10**6)
        driver.delete_records("capped", before_seq=10**6)
        driver.delete_records("expired", before_seq=10**6)
        driver.disk.fail_on("unlink", path_contains=path, times=None)
        for number in range(4):
            driver.append("f", [{"data": number}])
            assert driver.snapshot()
        driver.disk.clear_faults()
        driver.kill()
        expect_prefix_of_data(driver, [0, 1, 2, 3])
        assert driver.snapshot() and driver.snapshot()
        expect_healthy(driver)


def expect_prefix_of_data(driver: ShardDriver, wanted: list[Any]) -> None:
    assert data_of(driver, "f") == wanted


# --- S2 ---------------------------------------------------------------------------------------------------


def test_s02_crash_at_each_step_of_a_snapshot() -> None:
    """Before the rename, between rename and directory sync, before and while pruning snapshots, log and segments."""
    before = picture(with_two_snapshots(count=12, wal_file_bytes=4096))
    visited = 0
    for crashed in crash_points(
        lambda: with_two_snapshots(count=12, wal_file_bytes=4096), lambda driver: driver.snapshot()
    ):
        visited += 1
        for driver in crashed.outcomes():
            assert picture(driver) == before, f"step {crashed.step}"
            expect_healthy(driver)
    assert visited >= 7


def test_s02_the_temporary_file_of_a_crash_is_removed_at_the_next_start() -> None:
    driver = shard_with()
    driver.begin_snapshot()
    driver.step_snapshot()
    assert driver.disk.exists(snapshot_path(1) + ".tmp")
    driver.kill()
    assert not driver.disk.exists(snapshot_path(1) + ".tmp")
    expect_healthy(driver)


# --- S3 ---------------------------------------------------------------------------------------------------


def reheaded(disk: FakeDisk, path: str, change: Callable[[bytearray], None]) -> None:
    """Change the file's header and put its checksum right."""
    header = bytearray(disk.read_file(path)[:56])
    change(header)
    disk.overwrite(path, 0, bytes(header) + pack("<Q", xxh3_64_intdigest(bytes(header))))


def torn(disk: FakeDisk, path: str) -> None:
    disk.resize(path, len(disk.read_file(path)) * 2 // 3)


def torn_to_zeros(disk: FakeDisk, path: str) -> None:
    half = len(disk.read_file(path)) // 2
    disk.overwrite(path, half, bytes(half))


def cut_before_its_end(disk: FakeDisk, path: str) -> None:
    content = disk.read_file(path)
    at = max(place for place in range(64, len(content) - 8) if content[place : place + 4] == b"TFR1")
    assert content[at + 8] == Kind.SNAP_END
    disk.resize(path, at)


def frame_starts(content: bytes) -> list[int]:
    starts, at = [], FILE_HEADER_BYTES
    while at < len(content):
        starts.append(at)
        at += int.from_bytes(content[at + 4 : at + 8], "little")
    return starts


def absurd_length(disk: FakeDisk, path: str) -> None:
    starts = frame_starts(disk.read_file(path))
    disk.overwrite(path, starts[1] + 4, pack("<I", 2**31))


def zero_length(disk: FakeDisk, path: str) -> None:
    starts = frame_starts(disk.read_file(path))
    disk.overwrite(path, starts[1] + 4, bytes(4))


DAMAGE: dict[str, Callable[[FakeDisk, str], None]] = {
    "torn": torn,
    "torn_to_zeros": torn_to_zeros,
    "without_end": cut_before_its_end,
    "bad_checksum": lambda disk, path: disk.flip_bit(path, 200, 3),
    "bad_header_checksum": lambda disk, path: disk.flip_bit(path, 60, 0),
    "bad_magic": lambda disk, path: disk.overwrite(path, 0, b"NOTASNAP"),
    "another_file_kind": lambda disk, path: reheaded(
        disk, path, lambda header: header.__setitem__(slice(0, 8), b"TOPICWAL")
    ),
    "absurd_length": absurd_length,
    "zero_length": zero_length,
    "empty": lambda disk, path: disk.resize(path, 0),
    "only_a_header": lambda disk, path: disk.resize(path, FILE_HEADER_BYTES),
    "half_a_header": lambda disk, path: disk.resize(path, 30),
    "garbage_behind_the_end": lambda disk, path: disk.overwrite(path, len(disk.read_file(path)), b"x" * 100),
    "zeros_behind_the_end": lambda disk, path: disk.overwrite(path, len(disk.read_file(path)), bytes(100)),
    "all_zeros": lambda disk, path: disk.overwrite(path, 0, bytes(len(disk.read_file(path)))),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_s03_a_damaged_snapshot_is_skipped_and_the_previous_one_serves(damage: str) -> None:
    driver = with_two_snapshots(count=30, wal_file_bytes=4096)
    assert wal_numbers(driver.disk)[0] > 1, "a full replay would not do"
    before = picture(driver)
    driver.disk.kill_process()
    DAMAGE[damage](driver.disk, snapshot_path(2))
    assert not snapshot_is_intact(driver.disk, 2) and snapshot_is_intact(driver.disk, 1)
    driver.reopen()
    assert picture(driver) == before
    assert driver.shard.report.damage == []
    assert [note for note in driver.shard.report.notes if snapshot_path(2) in note]
    expect_healthy(driver)
    # The damaged one does not get in the way of those that follow.
    for _ in range(3):
        driver.append("f", [{"data": "more"}])
        assert driver.snapshot()
    newest = snapshot_numbers(driver.disk)
    assert all(snapshot_is_intact(driver.disk, number) for number in newest[-2:])
    expect_healthy(driver)


@pytest.mark.parametrize("damage", ["torn", "empty", "bad_magic", "bad_checksum"])
def test_s03_with_every_snapshot_damaged_a_full_replay_serves(damage: str) -> None:
    driver = with_two_snapshots()
    assert wal_numbers(driver.disk) == [1]
    before = picture(driver)
    driver.disk.kill_process()
    for number in (1, 2):
        DAMAGE[damage](driver.disk, snapshot_path(number))
        assert not snapshot_is_intact(driver.disk, number)
    driver.reopen()
    assert picture(driver) == before
    assert len(driver.shard.report.notes) == 2
    expect_healthy(driver)


def test_s03_new_snapshots_outlive_damaged_ones_and_the_log_is_not_trimmed_too_early() -> None:
    driver = with_two_snapshots(count=30)
    for _ in range(2):
        assert driver.snapshot()
    assert (snapshot_numbers(driver.disk), wal_numbers(driver.disk)) == ([3, 4], [1])
    driver.disk.kill_process()
    for number in (3, 4):
        torn(driver.disk, snapshot_path(number))
        assert not snapshot_is_intact(driver.disk, number)
    driver.wal_file_bytes = 4096
    driver.reopen()
    for number in range(4):
        driver.seal()
        for _ in range(20):
            driver.append("f", [{"data": "x" * 100}])
        assert driver.snapshot()
        assert any(snapshot_is_intact(driver.disk, held) for held in snapshot_numbers(driver.disk)), number
        before = picture(driver)
        twin = reopened(driver)
        twin.disk = driver.disk.clone().kill_process()
        twin.reopen()
        assert picture(twin) == before, f"after snapshot {number} a restart works"


@pytest.mark.parametrize("kept", [1, 2])
def test_s03_either_of_the_two_can_stand_in_for_the_other(kept: int) -> None:
    """Also when a segment died between them, and across a restart."""
    driver = ShardDriver(wal_file_bytes=4096)
    driver.put("t", durable=True)
    for number in range(30):
        driver.append("t", [{"data": number, "tag": "old" if number < 15 else "new"}])
        if number == 14:
            driver.seal()
    driver.snapshot()
    driver.delete_records("t", match="old")
    driver.snapshot()
    before = picture(driver)
    driver.kill()
    assert picture(driver) == before
    lost = snapshot_numbers(driver.disk)[-kept % 2]
    driver.disk.kill_process()
    driver.disk.flip_bit(snapshot_path(lost), 150, 1)
    assert not snapshot_is_intact(driver.disk, lost)
    driver.reopen()
    assert picture(driver) == before
    assert driver.shard.report.damage == []


@pytest.mark.parametrize("part", ["header", "frame"])
def test_s03_a_newer_snapshot_is_refused_not_skipped(part: str) -> None:
    driver = with_two_snapshots()
    path = snapshot_path(2)
    driver.disk.kill_process()
    if part == "header":
        reheaded(driver.disk, path, lambda header: header.__setitem__(slice(8, 12), pack("<I", 7)))
    else:
        content = driver.disk.read_file(path)
        start = frame_starts(content)[1]
        length = int.from_bytes(content[start + 4 : start + 8], "little")
        frame = bytearray(content[start : start + length])
        frame[9] = 7
        frame[-8:] = pack("<Q", xxh3_64_intdigest(bytes(frame[:-8])))
        driver.disk.overwrite(path, start, bytes(frame))
    assert not snapshot_is_intact(driver.disk, 2)
    with pytest.raises(FormatTooNew, match="version 7"):
        driver.reopen()
    assert snapshot_numbers(driver.disk) == [1, 2]


def test_s03_a_snapshot_of_another_shard_is_skipped() -> None:
    driver = with_two_snapshots()
    before = picture(driver)
    driver.disk.kill_process()
    foreign = foreign_snapshot()
    driver.disk.remove(snapshot_path(2))
    driver.disk.place(snapshot_path(2), foreign)
    assert snapshot_is_intact(driver.disk, 2), "intact, but not ours"
    driver.reopen()
    assert picture(driver) == before
    assert any("shard 1" in note for note in driver.shard.report.notes)


def foreign_snapshot() -> bytes:
    from shared.file_header import FileHeader
    from shared.snapshot_format import SnapshotEncoder
    from shared.snapshot_items import SnapBegin, SnapSegments

    encoder = SnapshotEncoder(FileHeader(1, 2, 5))
    return b"".join(
        (
            encoder.begin(SnapBegin(1, 1 << 32 | 64)),
            encoder.segments(SnapSegments(next_segment=1, segments=(), next_topic_id=1, clock=5, epoch=0)),
            encoder.end(end=1 << 32 | 64, clean=False, boot_id="x"),
        )
    )


def test_s03_a_snapshot_that_cannot_be_read_is_skipped() -> None:
    driver = with_two_snapshots(count=30, wal_file_bytes=4096)
    before = picture(driver)
    driver.disk.kill_process()
    driver.disk.fail_on("read", path_contains=snapshot_path(2), times=None)
    driver.reopen()
    assert picture(driver) == before
    assert any("unusable snapshot" in note for note in driver.shard.report.notes)


# --- S4 ---------------------------------------------------------------------------------------------------


def ahead_of_its_log() -> tuple[ShardDriver, list[Any]]:
    """A snapshot that holds records of `f` whose frames are not in the log any more, and those that are."""
    driver = ShardDriver(wal_file_bytes=ROOMY)
    driver.put("f", durable=True)
    driver.put("g", durable=True)
    driver.append("f", [{"data": "safe"}])
    driver.append("g", [{"data": "safe"}])
    driver.begin_snapshot()
    for number in range(3):
        driver.append("f", [{"data": number}])
    while driver.step_snapshot():
        pass
    assert driver.finish_job(driver.end_snapshot())
    return driver, appends(driver.disk)


def test_s04_a_snapshot_is_never_taken_ahead_of_the_synced_log() -> None:
    driver = ShardDriver(wal_file_bytes=ROOMY)
    driver.put("d")
    driver.append("d", [{"data": 0}])
    driver.sync()
    driver.begin_snapshot()
    driver.append("d", [{"data": 1}])  # acked, applied, not synced
    while driver.step_snapshot():
        pass
    maintenance = driver.shard.maintenance
    assert maintenance.next_job() is None or driver.engine.wal.synced
    assert snapshot_numbers(driver.disk) == []
    twin = reopened(driver)
    twin.disk = driver.disk.clone().lose_power(keep="none")
    twin.reopen()
    assert data_of(twin, "d") == [0]
    driver.finish_job(driver.end_snapshot())
    driver.sync()
    driver.lose_power(keep="none")
    assert data_of(driver, "d") == [0, 1]


@pytest.mark.parametrize("how", ["zeros", "short"])
def test_s04_a_snapshot_ahead_of_the_surviving_log_is_damage_and_serves_no_garbage(how: str) -> None:
    driver, frames = ahead_of_its_log()
    lost = next(frame for frame in frames if frame.append.first_seq == 3)
    driver.disk.lose_power(keep="all")
    if how == "zeros":
        size = len(driver.disk.read_file(lost.path))
        driver.disk.overwrite(lost.path, lost.offset, bytes(size - lost.offset))
    else:
        driver.disk.resize(lost.path, lost.offset)
    assert [frame.append.first_seq for frame in appends(driver.disk) if frame.topic_id == 1] == [1, 2]
    for _ in range(3):
        driver.reopen()
        assert driver.shard.report.damage, "reported after every restart"
        expect_read_only_for_damage(driver)
        assert [record["data"] for record in driver.read("f", limit=2)["records"]] == ["safe", 0]
        answer = driver.read_answer("f", 2)
        assert (answer.status, answer.json["error"]["detail"]["reason"]) == (500, "corrupt_frame")
        assert data_of(driver, "g") == ["safe"], "the others are read as ever"
        driver.disk.kill_process()


def test_s04_a_log_file_that_the_snapshot_needs_is_missing() -> None:
    driver = with_two_snapshots(count=30, wal_file_bytes=4096)
    while len(wal_numbers(driver.disk)) < 3:
        driver.append("f", [{"data": "x" * 500}])
    driver.snapshot()
    driver.disk.lose_power(keep="all")
    newest = wal_numbers(driver.disk)[-1]
    driver.disk.remove(wal_path(newest))
    for _ in range(2):
        with pytest.raises(CorruptFrame) as caught:
            driver.reopen()
        assert caught.value.path == wal_path(newest)


# --- S5 ---------------------------------------------------------------------------------------------------


def test_s05_writes_arriving_while_a_snapshot_is_taken_are_neither_lost_nor_doubled() -> None:
    """One slice per topic; before, between and behind them every kind of change to every topic."""
    names = ["a", "b", "c"]

    def change(driver: ShardDriver, step: int) -> None:
        for name in names:
            driver.append(
                name,
                [{"data": f"{name}{step}", "tag": f"t{step}"}, {"data": step, "tag": "gone"}],
                idempotency_key=f"k{step}",
            )
            driver.delete_records(name, match=["tag", "Eq", "gone"])
        driver.append(f"new{step}", [{"data": step}], config={"durable": True})
        driver.put("b", durable=True, cap_records=3 + step)
        if step == 2:
            driver.delete_topic("c")
            driver.append("c", [{"data": "again"}], config={"durable": True})

    driver = ShardDriver(wal_file_bytes=4096)
    for name in names:
        driver.put(name, durable=True)
    change(driver, 0)
    driver.begin_snapshot()
    step = 1
    while driver.step_snapshot(1):
        change(driver, step)
        step += 1
    assert step == 5, "a, b, c and new0 had a slice of their own"
    job = driver.end_snapshot()
    change(driver, step)
    assert driver.finish_job(job)
    change(driver, step + 1)
    driver.sync()
    before = picture(driver)
    assert snapshot_is_intact(driver.disk, 1)
    driver.lose_power(keep="none")
    assert picture(driver) == before
    answer = driver.append("a", [{"data": 1}, {"data": 2}], idempotency_key="k3")
    assert answer.json["deduped"] is True
    expect_healthy(driver)


def test_s05_a_write_that_waits_for_its_sync_while_a_snapshot_is_taken() -> None:
    driver = ShardDriver(wal_file_bytes=ROOMY)
    driver.put("f", durable=True)
    driver.append("f", [{"data": 0}])
    waiting = driver.start_append("f", [{"data": 1}])
    driver.commit()
    driver.begin_snapshot()
    while driver.step_snapshot(1):
        pass
    assert waiting.answer is None
    driver.finish_job(driver.end_snapshot())
    driver.settle()
    assert waiting.answer is not None and waiting.answer.ok
    driver.lose_power(keep="none")
    expect_prefix(driver, "f", [0, 1])
    expect_healthy(driver)


def test_s05_crash_at_each_step_of_a_snapshot_that_is_written_to_meanwhile() -> None:
    def busy() -> ShardDriver:
        driver = ShardDriver(wal_file_bytes=4096)
        for name in ("a", "b"):
            driver.put(name, durable=True)
            driver.append(name, [{"data": 0}])
        driver.snapshot()
        return driver

    acked: list[int] = []

    def act(driver: ShardDriver) -> None:
        acked.clear()
        driver.begin_snapshot()
        for number in (1, 2, 3):
            driver.step_snapshot(1)
            driver.append("a", [{"data": number}])
            driver.append("b", [{"data": number}])
            acked.append(number)
        driver.finish_job(driver.end_snapshot())

    for crashed in crash_points(busy, act):
        held = [0, *acked]
        for driver in crashed.outcomes(kill_too=False):
            for name in ("a", "b"):
                expect_prefix(driver, name, held, [len(held)])
            assert driver.shard.report.damage == []
            expect_stable(driver)


def test_s05_damage_in_a_frame_that_the_snapshot_already_holds_is_not_served() -> None:
    driver, frames = ahead_of_its_log()
    driver.append("g", [{"data": "later"}])
    driver.append("g", [{"data": "latest"}])
    flipped = next(frame for frame in frames if frame.topic_id == 1 and frame.append.first_seq == 3)
    flip_in_frame(driver.disk, flipped, 70)
    driver.lose_power(keep="all")
    (found,) = driver.shard.report.damage
    assert (found.path, found.offset) == (flipped.path, flipped.offset)
    assert (found.topic, found.first_seq, found.last_seq) == ("f", 3, 3)
    assert driver.read_answer("f", 2).status == 500
    assert [record["data"] for record in driver.read("f", 3)["records"]] == [2]


# --- S6 ---------------------------------------------------------------------------------------------------


def test_s06_all_snapshots_gone_a_full_replay_gives_the_same_state() -> None:
    driver = with_two_snapshots()
    assert wal_numbers(driver.disk) == [1]
    before = picture(driver)
    driver.disk.kill_process()
    for number in snapshot_numbers(driver.disk):
        driver.disk.remove(snapshot_path(number))
    driver.reopen()
    assert picture(driver) == before
    expect_healthy(driver)


def test_s06_all_snapshots_gone_and_the_log_trimmed_stops_the_start() -> None:
    driver = with_two_snapshots(count=30, wal_file_bytes=4096)
    assert wal_numbers(driver.disk)[0] > 1
    driver.disk.kill_process()
    for number in snapshot_numbers(driver.disk):
        driver.disk.remove(snapshot_path(number))
    for _ in range(2):
        with pytest.raises(CorruptFrame, match="missing"):
            driver.reopen()
    assert driver.disk.exists(segment_path(1)), "nothing was tidied away"
