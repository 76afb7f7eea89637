"""The log under every fault of the catalogue, W1 to W22."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from struct import pack
from typing import Any

import pytest

from shard_worker.disk.dir_lock import DirectoryLocked, DirLock
from shard_worker.request import Request
from shard_worker.shard import Shard
from shared.errors import CorruptFrame, DiskFault, FormatTooNew
from shared.file_header import FILE_HEADER_BYTES, WAL_MAGIC
from shared.frame import FRAME_MIN_BYTES, Kind, build_frame
from shared.io.durable_fs import RealFileSystem
from shared.limits import MiB
from shared.settings import Settings
from shared.wal_format import JSON_OFFSET, lsn_of
from shared.wire import Op
from tests.support.fake_disk import FakeDisk
from tests.support.fault_kit import (
    KEEPS,
    ROOMY,
    Placed,
    all_frames,
    appends,
    crash_points,
    damage_frame,
    data_of,
    expect_healthy,
    expect_prefix,
    expect_read_only_for_damage,
    expect_stable,
    flip_in_frame,
    frame_of_kind,
    frame_of_version,
    frames_in,
    is_intact,
    picture,
    quarantined,
    reopened,
    snapshot_path,
    tear_frame,
    topics_of,
    wal_numbers,
    wal_path,
)
from tests.support.shard_driver import ShardDriver

RICH = {"data": {"sku": "A"}, "tag": "order-1", "node": "eu-1", "key": "k1", "meta": {"trace": "ab"}}


def shard_with(count: int = 3, *, wal_file_bytes: int = ROOMY, **overrides: object) -> ShardDriver:
    """An fsync topic `f` and a disk topic `d`, each with the records 0 … count - 1, one call per record."""
    driver = ShardDriver(wal_file_bytes=wal_file_bytes, **overrides)
    driver.put("f", durable=True)
    driver.put("d")
    for number in range(count):
        assert driver.append("f", [{"data": number}]).ok
        assert driver.append("d", [{"data": number}]).ok
    driver.sync()
    return driver


def last_append(driver: ShardDriver) -> Placed:
    return appends(driver.disk)[-1]


# --- W1 … W4: the disk refuses ----------------------------------------------------------------------------


@pytest.mark.parametrize("error", [errno.EIO, errno.EROFS, errno.ENODEV])
def test_w01_eio_on_write_fails_the_whole_group(error: int) -> None:
    driver = shard_with()
    before = picture(driver)
    driver.disk.fail_on("write", error=error, path_contains="/wal/")
    calls = [
        driver.start_append("f", [{"data": "lost"}]),
        driver.start_append("d", [{"data": "lost"}, {"data": "too"}]),
        driver.start_append("made", [{"data": "lost"}]),
    ]
    driver.commit()
    assert [call.answer and call.answer.status for call in calls] == [503, 503, 503]
    assert {call.answer and call.answer.error for call in calls} == {"shard_unavailable"}
    assert picture(driver) == before

    assert driver.append("f", [{"data": 3}]).json["first_seq"] == 4, "the seq was not used up"
    assert driver.append("d", [{"data": 3}]).json["first_seq"] == 4
    driver.sync()
    for keep, seed in KEEPS:
        twin = reopened(driver)
        twin.disk = driver.disk.clone().lose_power(seed, keep)
        twin.reopen()
        expect_prefix(twin, "f", [0, 1, 2, 3])
        assert "made" not in topics_of(twin)
        expect_healthy(twin)


def test_w01_eio_in_the_second_file_of_a_group_takes_the_first_part_back_too() -> None:
    driver = shard_with(3, wal_file_bytes=4096)
    before, files = picture(driver), wal_numbers(driver.disk)
    size = 4096 - FILE_HEADER_BYTES - 200
    driver.disk.fail_on("write", error=errno.EIO, path_contains=wal_path(files[-1] + 1))
    calls = [driver.start_append("f", [{"data": "x" * (size // 2)}]) for _ in range(3)]
    driver.commit()
    assert [call.answer and call.answer.status for call in calls] == [503, 503, 503]
    assert wal_numbers(driver.disk) == files, "the new file is gone again"
    assert picture(driver) == before
    driver.kill()
    assert picture(driver) == before
    expect_healthy(driver)


def test_w01_a_group_that_cannot_be_taken_back_stops_the_worker_unanswered() -> None:
    driver = shard_with()
    driver.disk.short_write(1, 60, path_contains="/wal/")
    driver.disk.fail_on("truncate", path_contains="/wal/")
    call = driver.start_append("f", [{"data": 3}])
    with pytest.raises(DiskFault):
        driver.commit()
    assert call.answer is None, "nobody knows what the log holds, so nobody is told anything"
    driver.disk.clear_faults()
    driver.kill()
    expect_prefix(driver, "f", [0, 1, 2], [3])
    expect_healthy(driver)


def test_w01_a_failed_create_leaves_no_topic_and_its_idempotency_key_is_free() -> None:
    driver = ShardDriver(wal_file_bytes=ROOMY)
    driver.disk.fail_on("write", path_contains="/wal/")
    refused = driver.append("t", [{"data": 1}], idempotency_key="k")
    assert refused.status == 503
    assert driver.read("t")["error"]["code"] == "topic_not_found"
    again = driver.append("t", [{"data": 1}], idempotency_key="k")
    assert (again.status, again.json["deduped"], again.json["first_seq"]) == (201, False, 1)


def test_w02_enospc_turns_the_shard_read_only_and_it_heals() -> None:
    driver = ShardDriver(FakeDisk(capacity_bytes=20_000), wal_file_bytes=4096)
    driver.put("f", durable=True)
    acked = []
    while (answer := driver.append("f", [{"data": len(acked), "meta": {"pad": "x" * 300}}])).ok:
        acked.append(len(acked))
        assert len(acked) < 100, "the disk never filled up"
    assert (answer.status, answer.error) == (503, "shard_unavailable")
    assert answer.json["error"]["detail"]["reason"] == "read_only"
    assert answer.timings["retry_after_ms"] > 0
    before = picture(driver)
    assert data_of(driver, "f") == acked, "reads go on"
    driver.tick()
    assert driver.append("f", [{"data": "still full"}]).status == 503

    driver.disk.capacity_bytes = 1 << 20
    driver.tick()
    assert picture(driver) == before
    assert driver.append("f", [{"data": len(acked)}]).json["first_seq"] == len(acked) + 1
    driver.lose_power(keep="none")
    expect_prefix(driver, "f", [*acked, len(acked)])


def test_w02_the_low_water_mark_stops_writes_before_anything_fails() -> None:
    driver = ShardDriver(FakeDisk(capacity_bytes=1 << 20), wal_file_bytes=ROOMY, min_free_bytes=1 << 16)
    driver.append("t", [{"data": 1}])
    driver.disk.place("/filler", bytes((1 << 20) - driver.disk.used_bytes() - 1000))
    driver.tick()
    refused = driver.append("t", [{"data": 2}])
    assert refused.json["error"]["detail"]["reason"] == "read_only"
    assert "min_free_bytes" in refused.json["error"]["message"]
    assert data_of(driver, "t") == [1]
    driver.disk.remove("/filler")
    driver.tick()
    assert driver.append("t", [{"data": 2}]).json["first_seq"] == 2


def test_w02_a_full_disk_survives_a_restart_and_still_serves() -> None:
    driver = ShardDriver(FakeDisk(capacity_bytes=20_000), wal_file_bytes=4096)
    driver.put("f", durable=True)
    acked = []
    while driver.append("f", [{"data": len(acked), "meta": {"pad": "x" * 300}}]).ok:
        acked.append(len(acked))
    driver.disk.place("/filler", bytes(20_000 - driver.disk.used_bytes()))
    driver.kill()
    assert data_of(driver, "f") == acked
    driver.disk.remove("/filler")
    driver.disk.capacity_bytes = 1 << 20
    driver.tick()
    assert driver.append("f", [{"data": "more"}]).ok


def test_w02_seqs_that_a_power_cut_took_are_not_given_out_again_by_a_start_on_a_full_disk() -> None:
    driver = ShardDriver(wal_file_bytes=ROOMY)
    driver.put("d")
    acked = [driver.append("d", [{"data": number}]).json["first_seq"] for number in range(5)]
    driver.disk.lose_power(keep="none")
    driver.disk.fail_on("write", error=errno.ENOSPC, path_contains="/wal/", times=None)
    driver.reopen()
    assert driver.append("d", [{"data": "full"}]).status == 503
    driver.disk.clear_faults()
    driver.tick()
    taken = driver.append("d", [{"data": "new"}]).json["first_seq"]
    assert taken > max(acked)
    driver.sync()
    driver.lose_power(keep="none")
    assert [record["$seq"] for record in driver.read_all("d")][-1] == taken


def start_on_a_full_disk_after_a_power_cut(*topics: str) -> ShardDriver:
    driver = ShardDriver(wal_file_bytes=ROOMY)
    for topic in topics:
        driver.put(topic)
        for number in range(5):
            driver.append(topic, [{"data": number}])
    driver.disk.lose_power(keep="none")
    driver.disk.fail_on("write", error=errno.ENOSPC, path_contains="/wal/", times=None)
    driver.reopen()
    assert driver.append(topics[0], [{"data": "full"}]).status == 503
    driver.disk.clear_faults()
    driver.tick()
    return driver


def test_w02_a_session_that_began_on_a_full_disk_is_in_the_log_before_its_first_write() -> None:
    driver = start_on_a_full_disk_after_a_power_cut("d")
    first = driver.append("d", [{"data": "new"}]).json["first_seq"]
    before = picture(driver)
    # Without the session the log would seem to end before the power cut, and this kill would look like another one.
    driver.kill()
    assert picture(driver) == before
    assert driver.append("d", [{"data": "next"}]).json["first_seq"] == first + 1


def test_w02_with_the_session_go_the_holes_of_topics_that_nobody_has_written_to_since() -> None:
    driver = start_on_a_full_disk_after_a_power_cut("d", "idle")
    before = picture(driver)["idle"]
    driver.append("d", [{"data": "new"}])
    driver.kill()
    assert picture(driver)["idle"] == before
    # 5 were acked before the power cut, whether they survived it or not.
    assert driver.append("idle", [{"data": "next"}]).json["first_seq"] > 5


def test_w02_a_disk_that_fills_up_again_does_not_lose_the_session() -> None:
    driver = start_on_a_full_disk_after_a_power_cut("d")
    driver.disk.fail_on("write", error=errno.ENOSPC, path_contains="/wal/")
    assert driver.append("d", [{"data": "full again"}]).status == 503
    driver.tick()
    driver.append("d", [{"data": "new"}])
    before = picture(driver)
    driver.kill()
    assert picture(driver) == before


@pytest.mark.parametrize("written", [1, 39, 40, 63, 64, 100, 180, 250])
def test_w03_short_write_is_never_half_a_frame(written: int) -> None:
    driver = shard_with()
    before = picture(driver)
    driver.disk.short_write(1, written, path_contains="/wal/")
    calls = [driver.start_append("f", [RICH]), driver.start_append("d", [RICH])]
    driver.commit()
    assert [call.answer and call.answer.status for call in calls] == [503, 503]
    assert picture(driver) == before
    driver.kill()
    assert picture(driver) == before
    assert driver.shard.report.notes == [], "what was half written is cut off before anyone is told"
    expect_healthy(driver)


def test_w03_a_short_write_without_an_error_is_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(Settings(), data_dir=str(tmp_path), min_free_bytes=0)
    shard, answers = open_real(settings)
    whole = os.pwritev

    def short(fd: int, buffers: Any, offset: int) -> int:
        return whole(fd, [b"".join(bytes(buffer) for buffer in buffers)[:37]], offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", short)
        send(shard, answers, 1, Op.APPEND, "t", b'{"records":[{"data":"%b"}]}' % (b"x" * 500))
    assert answers[1][0] == 201
    shard.engine.wal.close()
    again, answers = open_real(settings)
    assert again.report.damage == [] and again.report.notes == []
    send(again, answers, 1, Op.READ, "t", b"{}")
    assert b"x" * 500 in answers[1][1]
    again.engine.wal.close()


def test_w04_eio_on_fdatasync_fails_the_group_and_is_never_retried() -> None:
    driver = shard_with()
    call = driver.start_append("f", [{"data": 3}])
    driver.commit()
    driver.disk.fail_on("sync", path_contains="/wal/")
    job = driver.engine.begin_sync()
    with pytest.raises(DiskFault) as caught:
        job.run()
    assert "/wal/" in caught.value.path
    assert call.answer is None
    assert data_of(driver, "f") == [0, 1, 2], "what was not synced is not visible"
    assert not driver.engine.sync_due(), "a second try could succeed over lost bytes"
    twin = reopened(driver)
    twin.disk = driver.disk.clone().lose_power(keep="none")
    twin.reopen()
    expect_prefix(twin, "f", [0, 1, 2])
    expect_healthy(twin)


def test_w04_what_a_failed_sync_left_in_the_page_cache_is_written_again_before_it_is_built_on() -> None:
    driver = shard_with()
    driver.start_append("f", [{"data": 3}])
    driver.append("d", [{"data": 3}])
    driver.commit()
    driver.disk.fail_on("sync", path_contains="/wal/")
    with pytest.raises(DiskFault):
        driver.engine.begin_sync().run()
    # The kernel now believes these pages clean. The next process reads them, and must not trust them.
    driver.kill()
    expect_prefix(driver, "f", [0, 1, 2], [3])
    seen = data_of(driver, "f")
    acked = driver.append("f", [{"data": "after"}])
    assert acked.ok
    driver.lose_power(keep="none")
    assert driver.shard.report.damage == []
    assert data_of(driver, "f") == [*seen, "after"]
    expect_healthy(driver)


def test_w04_a_failed_sync_of_the_directory_is_as_fatal() -> None:
    driver = shard_with(1, wal_file_bytes=4096)
    call = driver.start_append("f", [{"data": "x" * 4000}])
    driver.commit()
    driver.disk.fail_on("syncdir", path_contains="/wal")
    with pytest.raises(DiskFault):
        driver.engine.begin_sync().run()
    assert call.answer is None


# --- W5, W6: around the sync ------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["memory", "disk", "fsync"])
def test_w05_power_lost_before_the_sync_loses_at_most_the_unsynced_tail(durability: str) -> None:
    for keep, seed in [*KEEPS, *(("random", seed) for seed in range(10, 40))]:
        driver = ShardDriver(wal_file_bytes=ROOMY)
        driver.put("t", durability=durability)
        driver.append("t", [{"data": 0}])
        driver.sync()
        calls = [driver.start_append("t", [{"data": number}]) for number in (1, 2, 3)]
        driver.commit()
        assert all((call.answer is None) == (durability == "fsync") for call in calls)
        driver.lose_power(seed, keep)  # type: ignore[arg-type]
        expect_prefix(driver, "t", [0], [1, 2, 3])
        assert driver.shard.report.damage == []
        taken = driver.append("t", [{"data": "next"}]).json["first_seq"]
        if durability != "fsync":
            assert taken > 4, "acked seqs are never given out again"
        expect_stable(driver)


def test_w06_power_lost_right_after_the_sync_loses_nothing() -> None:
    driver = shard_with()
    call = driver.start_append("f", [RICH, {"data": None}])
    more = driver.start_append("d", [RICH])
    driver.sync()
    assert call.answer is not None and call.answer.ok and more.answer is not None and more.answer.ok
    before = picture(driver)
    for keep, seed in KEEPS:
        twin = reopened(driver)
        twin.disk = driver.disk.clone().lose_power(seed, keep)
        twin.reopen()
        after = picture(twin)
        assert after["f"] == before["f"]
        assert after["d"]["records"] == before["d"]["records"]
        expect_healthy(twin)


# --- W7 … W10: bad bytes ----------------------------------------------------------------------------------


def frame_parts(frame: Placed) -> dict[str, range]:
    view = frame.append
    json_end = JSON_OFFSET + len(view.json)
    length = len(frame.raw)
    return {
        "magic": range(4),
        "length": range(4, 8),
        "header": range(8, 40),
        "append_header": range(40, 64),
        "json": range(JSON_OFFSET, json_end),
        "columns": range(json_end, length - 8),
        "checksum": range(length - 8, length),
    }


PARTS = ["magic", "length", "header", "append_header", "json", "columns", "checksum"]


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("end", ["kill", "power"])
def test_w07_tail_torn_inside_every_part_of_a_frame(part: str, end: str) -> None:
    base = shard_with()
    assert base.append("f", [RICH, RICH]).ok
    torn = last_append(base)
    region = frame_parts(torn)[part]
    assert len(region) >= 4
    for kept in {region.start + 1, region.start + len(region) // 2, region.stop - 1}:
        driver = reopened(base)
        driver.disk = base.disk.clone()
        driver.disk.kill_process() if end == "kill" else driver.disk.lose_power(keep="all")
        tear_frame(driver.disk, torn, kept)
        left = driver.disk.read_file(torn.path)[torn.offset :].rstrip(b"\0")
        driver.reopen()
        expect_prefix(driver, "f", [0, 1, 2])
        assert [note for note in driver.shard.report.notes if f"at byte {torn.offset}" in note]
        assert left in quarantined(driver.disk).values(), "the torn bytes are kept as evidence"
        assert driver.append("f", [{"data": 3}]).json["first_seq"] == 4
        expect_healthy(driver)


def test_w07_tail_torn_at_every_single_byte() -> None:
    base = shard_with(1)
    assert base.append("f", [RICH]).ok
    torn = last_append(base)
    for kept in range(1, len(torn.raw)):
        driver = reopened(base)
        driver.disk = base.disk.clone().lose_power(keep="all")
        tear_frame(driver.disk, torn, kept)
        driver.reopen()
        expect_prefix(driver, "f", [0])
        assert driver.shard.report.damage == []


def test_w07_tail_torn_by_a_file_that_ends_early() -> None:
    base = shard_with()
    assert base.append("f", [RICH]).ok
    torn = last_append(base)
    for size in (torn.offset + 1, torn.offset + 39, torn.offset + 48, torn.end - 1):
        driver = reopened(base)
        driver.disk = base.disk.clone().lose_power(keep="all")
        assert is_intact(driver.disk, torn)
        driver.disk.resize(torn.path, size)
        assert not is_intact(driver.disk, torn)
        driver.reopen()
        expect_prefix(driver, "f", [0, 1, 2])
        expect_healthy(driver)


def test_w07_cutting_a_torn_tail_can_itself_be_interrupted() -> None:
    def torn() -> ShardDriver:
        driver = shard_with()
        driver.append("f", [RICH])
        frame = last_append(driver)
        driver.disk.lose_power(keep="all")
        tear_frame(driver.disk, frame, 70)
        return driver

    for crashed in crash_points(torn, lambda driver: driver.reopen()):
        for driver in crashed.outcomes():
            expect_prefix(driver, "f", [0, 1, 2])
            expect_healthy(driver)


GARBAGE_LENGTHS = [0, 1, FRAME_MIN_BYTES - 1, 257 << 20, 2**31, 2**32 - 1]


@pytest.mark.parametrize("length", GARBAGE_LENGTHS)
def test_w08_garbage_length_at_the_end_is_a_torn_tail(length: int) -> None:
    driver = shard_with()
    driver.append("f", [{"data": 3}])
    frame = last_append(driver)
    damage_frame(driver.disk, frame, 4, pack("<I", length))
    driver.lose_power(keep="all")
    expect_prefix(driver, "f", [0, 1, 2])
    assert driver.shard.report.damage == []
    assert quarantined(driver.disk)
    expect_healthy(driver)


@pytest.mark.parametrize("length", [*GARBAGE_LENGTHS, 60, 5000])
def test_w08_garbage_length_in_the_middle_is_damage_and_nothing_is_read_by_it(length: int) -> None:
    driver = shard_with()
    frame = next(frame for frame in appends(driver.disk) if frame.append.first_seq == 2)
    damage_frame(driver.disk, frame, 4, pack("<I", length))
    driver.lose_power(keep="all")
    (found,) = driver.shard.report.damage
    assert (found.path, found.offset) == (frame.path, frame.offset)
    expect_read_only_for_damage(driver)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("end", ["kill", "power"])
def test_w09_bit_flip_in_the_last_frame_is_a_torn_tail_if_nothing_valid_follows(part: str, end: str) -> None:
    driver = shard_with()
    driver.append("f", [RICH, RICH])
    frame = last_append(driver)
    assert all_frames(driver.disk)[-1] == frame
    region = frame_parts(frame)[part]
    flip_in_frame(driver.disk, frame, region.start + len(region) // 2, bit=3)
    driver.kill() if end == "kill" else driver.lose_power(keep="all")
    assert driver.shard.report.damage == []
    assert any("torn tail" in note for note in driver.shard.report.notes)
    expect_prefix(driver, "f", [0, 1, 2])
    expect_healthy(driver)


def test_w09_a_valid_frame_behind_it_makes_it_damage() -> None:
    driver = shard_with()
    flipped = last_append(driver)
    driver.append("d", [{"data": 3}])
    driver.sync()
    driver.append("d", [{"data": 4}])
    flip_in_frame(driver.disk, flipped, 70)
    assert len([frame for frame in all_frames(driver.disk) if frame.offset > flipped.offset]) == 0
    driver.lose_power(keep="all")
    assert driver.shard.report.damage
    assert data_of(driver, "d")[-2:] == [3, 4]


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("end", ["kill", "power"])
def test_w10_bit_flip_in_the_middle_is_named_and_nothing_is_cut(part: str, end: str) -> None:
    driver = shard_with(2)
    driver.append("f", [RICH, RICH])
    for number in (4, 5):
        driver.append("f", [{"data": number}])
        driver.append("d", [{"data": number}])
    driver.sync()
    frame = next(
        frame for frame in appends(driver.disk) if frame.topic_id == 1 and frame.append.first_seq == 3
    )
    region = frame_parts(frame)[part]
    flip_in_frame(driver.disk, frame, region.start + len(region) // 2, bit=1)
    log = driver.disk.read_file(frame.path)
    driver.kill() if end == "kill" else driver.lose_power(keep="all")

    (found,) = driver.shard.report.damage
    assert isinstance(found, CorruptFrame)
    assert (found.path, found.offset) == (frame.path, frame.offset)
    if part != "header":  # the flipped bit is in the topic's id
        assert (found.topic, found.first_seq, found.last_seq) == ("f", 3, 4)
        assert "topic f, seqs 3..4" in str(found)
    assert driver.disk.read_file(frame.path).startswith(log.rstrip(b"\0")), "not a byte was cut"

    first = driver.read("f")
    assert [record["data"] for record in first["records"]] == [0, 1]
    rest = driver.read("f", first["next_from_seq"])
    assert (rest["tombstone"]["gap_from"], rest["tombstone"]["gap_to"]) == (3, 4)
    assert [record["data"] for record in rest["records"]] == [4, 5]
    assert data_of(driver, "d") == [0, 1, 4, 5]
    expect_read_only_for_damage(driver)
    expect_stable(driver)


def test_w10_damage_is_reported_again_after_every_restart() -> None:
    driver = shard_with(5)
    flip_in_frame(driver.disk, appends(driver.disk)[4], 66)
    for restart in range(3):
        driver.lose_power(restart, "all")
        assert len(driver.shard.report.damage) == 1
        expect_read_only_for_damage(driver)
    driver.close()
    driver.reopen()
    assert len(driver.shard.report.damage) == 1, "a clean shutdown does not bury it"


def test_w10_damage_in_front_of_a_restart_is_damage_whatever_was_written_since() -> None:
    driver = shard_with(2)
    driver.kill()
    last = appends(driver.disk)[-1]
    flip_in_frame(driver.disk, last, 66)
    driver.lose_power(keep="all")
    assert driver.shard.report.damage, "the restart had synced everything in front of it"


def test_w10_several_damaged_places_are_all_named() -> None:
    driver = shard_with(6)
    frames = [frame for frame in appends(driver.disk) if frame.topic_id == 1]
    for frame in (frames[1], frames[3]):
        flip_in_frame(driver.disk, frame, 66)
    driver.lose_power(keep="all")
    assert [found.offset for found in driver.shard.report.damage] == [frames[1].offset, frames[3].offset]
    assert [found.first_seq for found in driver.shard.report.damage] == [2, 4]


def test_w10_damage_in_a_file_that_is_not_the_newest() -> None:
    driver = shard_with(30, wal_file_bytes=4096)
    assert len(wal_numbers(driver.disk)) >= 3
    frame = next(frame for frame in frames_in(driver.disk, 2) if frame.kind == Kind.APPEND)
    flip_in_frame(driver.disk, frame, 66)
    driver.lose_power(keep="all")
    (found,) = driver.shard.report.damage
    assert (found.path, found.offset) == (wal_path(2), frame.offset)
    expect_read_only_for_damage(driver)


def test_w10_a_file_cut_short_in_the_middle_of_the_log_is_damage() -> None:
    driver = shard_with(30, wal_file_bytes=4096)
    cut = frames_in(driver.disk, 2)[3]
    driver.disk.resize(wal_path(2), cut.offset)
    assert len(frames_in(driver.disk, 2)) == 3
    driver.lose_power(keep="all")
    (found,) = driver.shard.report.damage
    assert (found.path, found.offset) == (wal_path(2), cut.offset)


def test_w10_a_file_cut_short_behind_a_frame_that_looks_like_an_end_is_still_damage() -> None:
    driver = shard_with(2, wal_file_bytes=4096)
    # A newline of the client's stands where a FILE_END frame has its kind, 40 bytes before the frame's end.
    body = b'{"records":[{"data":[%b]}]}' % (b"\n" * 60)
    driver.call(Op.APPEND, "f", body)
    cut = last_append(driver)
    assert cut.raw[-48:][8] == Kind.FILE_END
    while len(wal_numbers(driver.disk)) < 3:
        driver.append("f", [{"data": "x" * 500}])
    driver.disk.resize(cut.path, cut.end)
    driver.lose_power(keep="all")
    (found,) = driver.shard.report.damage
    assert (found.path, found.offset) == (cut.path, cut.end)


# --- W11 … W13: lost and reordered writes -----------------------------------------------------------------


def test_w11_zeroed_range_with_frames_behind_it_is_damage() -> None:
    driver = shard_with(5)
    gone = [frame for frame in appends(driver.disk) if frame.topic_id == 1][1:3]
    start, end = gone[0].offset, gone[1].end
    driver.disk.overwrite(gone[0].path, start, bytes(end - start))
    assert not is_intact(driver.disk, gone[0]) and not is_intact(driver.disk, gone[1])
    driver.lose_power(keep="all")
    (found,) = driver.shard.report.damage
    assert (found.path, found.offset) == (gone[0].path, start)
    assert "zeros" in found.reason
    assert [record["data"] for record in driver.read_all("f")] == [0, 3, 4]
    expect_read_only_for_damage(driver)


def test_w11_a_zeroed_sector_inside_a_frame_is_damage() -> None:
    driver = shard_with(1)
    driver.append("f", [{"data": "y" * 3000}])
    frame = last_append(driver)
    driver.append("f", [{"data": 2}])
    driver.sync()
    driver.append("f", [{"data": 3}])
    sector = (frame.offset // 512 + 2) * 512
    damage_frame(driver.disk, frame, sector - frame.offset, bytes(512))
    driver.lose_power(keep="all")
    (found,) = driver.shard.report.damage
    assert (found.path, found.offset, found.topic, found.first_seq) == (frame.path, frame.offset, "f", 2)


def test_w11_the_preallocated_rest_is_not_damage() -> None:
    driver = shard_with()
    content = driver.disk.read_file(wal_path(1))
    assert content.endswith(bytes(1000))
    driver.lose_power(keep="all")
    assert driver.shard.report.notes == [] and driver.shard.report.damage == []


def unsynced_groups(driver: ShardDriver) -> list[Placed]:
    """Three groups that nothing has synced yet; their append frames."""
    known = len(appends(driver.disk))
    for number in range(3):
        driver.append("d", [{"data": f"unsynced {number}"}])
    return appends(driver.disk)[known:]


@pytest.mark.parametrize("lost", [0, 1])
def test_w12_unsynced_groups_in_the_wrong_order_are_a_torn_tail(lost: int) -> None:
    driver = shard_with()
    groups = unsynced_groups(driver)
    assert len(groups) == 3
    driver.disk.lose_power(keep="all")
    # The group came too late for the power cut, the ones behind it did not.
    driver.disk.overwrite(groups[lost].path, groups[lost].offset, bytes(len(groups[lost].raw)))
    assert not is_intact(driver.disk, groups[lost]) and is_intact(driver.disk, groups[2])
    driver.reopen()
    assert driver.shard.report.damage == []
    assert any("out of order" in note for note in driver.shard.report.notes)
    assert data_of(driver, "d") == [0, 1, 2, *[f"unsynced {number}" for number in range(lost)]]
    assert groups[2].raw in b"".join(quarantined(driver.disk).values())
    expect_healthy(driver)


def test_w12_whatever_order_the_disk_chooses_a_prefix_is_left() -> None:
    for seed in range(120):
        driver = shard_with(2, wal_file_bytes=4096)
        for number in range(12):
            driver.append("d", [{"data": f"unsynced {number}", "meta": {"pad": "z" * (number * 40)}}])
        driver.lose_power(seed)
        assert driver.shard.report.damage == [], f"seed {seed}"
        expect_prefix(driver, "f", [0, 1])
        expect_prefix(driver, "d", [0, 1], [f"unsynced {number}" for number in range(12)])
        assert driver.append("f", [{"data": 2}]).ok


def test_w12_groups_that_were_synced_before_are_never_taken_for_unsynced_ones() -> None:
    driver = shard_with()
    groups = unsynced_groups(driver)
    driver.sync()
    driver.append("d", [{"data": "behind the sync"}])  # brings the frame that says so
    driver.disk.lose_power(keep="all")
    damage_frame(driver.disk, groups[0], 0, bytes(len(groups[0].raw)))
    driver.reopen()
    assert driver.shard.report.damage


@pytest.mark.parametrize("durable", [True, False])
def test_w13_half_a_group_leaves_a_prefix_of_every_topic(durable: bool) -> None:
    driver = shard_with(1)
    for name in ("a", "b"):
        driver.put(name, durable=durable)
    for number in range(4):
        driver.start_append("a", [{"data": number}])
        driver.start_append("b", [{"data": number}])
    known = len(appends(driver.disk))
    driver.commit()
    group = appends(driver.disk)[known:]
    assert len(group) == 8
    for frame in group:
        for kept in (0, 20, len(frame.raw) - 1):
            twin = reopened(driver)
            twin.disk = driver.disk.clone().lose_power(keep="all")
            tear_frame(twin.disk, frame, kept)
            twin.reopen()
            assert twin.shard.report.damage == []
            held = [data_of(twin, name) for name in ("a", "b")]
            assert held[0] == list(range(len(held[0]))) and held[1] == list(range(len(held[1])))
            assert 0 <= len(held[0]) - len(held[1]) <= 1, "a prefix of the group, in its order"
            expect_prefix(twin, "f", [0])


# --- W14 … W16: files of the log --------------------------------------------------------------------------


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_w14_failed_preallocation_fails_the_group_and_leaves_no_file(error: int) -> None:
    driver = shard_with(3, wal_file_bytes=4096)
    before, files = picture(driver), wal_numbers(driver.disk)
    driver.disk.fail_on("allocate", error=error, path_contains="/wal/")
    refused = driver.append("f", [{"data": "x" * 3500}])
    assert refused.status == 503
    assert wal_numbers(driver.disk) == files
    assert picture(driver) == before
    driver.tick()
    assert driver.append("f", [{"data": 3}]).json["first_seq"] == 4
    assert driver.append("f", [{"data": "x" * 3500}]).ok, "the next attempt rotates"
    driver.lose_power(keep="none")
    expect_prefix(driver, "f", [0, 1, 2, 3, "x" * 3500])


def test_w14_failed_preallocation_at_the_first_start_does_not_prevent_the_second() -> None:
    disk = FakeDisk()
    disk.fail_on("allocate", error=errno.ENOSPC, path_contains="/wal/")
    with pytest.raises(OSError):
        ShardDriver(disk, wal_file_bytes=ROOMY)
    for ended in (disk.clone().kill_process(), disk.clone().lose_power(keep="all")):
        driver = ShardDriver(ended, wal_file_bytes=ROOMY)
        assert driver.append("t", [{"data": 1}]).ok
        expect_healthy(driver)


def test_w14_a_disk_that_cannot_reserve_fails_with_the_write_instead() -> None:
    driver = ShardDriver(FakeDisk(capacity_bytes=2 * 4096 + 500), wal_file_bytes=4096)
    driver.put("f", durable=True)
    acked = []
    while driver.append("f", [{"data": len(acked), "meta": {"pad": "x" * 200}}]).ok:
        acked.append(len(acked))
    assert acked
    expect_prefix(driver, "f", acked)
    driver.kill()
    expect_prefix(driver, "f", acked)


@pytest.mark.parametrize("error", [errno.EIO, errno.EACCES, errno.EMFILE])
def test_w15_a_log_that_cannot_be_opened_stops_the_start(error: int) -> None:
    driver = shard_with(20, wal_file_bytes=4096)
    before = picture(driver)
    for number in wal_numbers(driver.disk):
        driver.disk.kill_process()
        files = {path: driver.disk.read_file(path) for path in driver.disk.files()}
        driver.disk.fail_on("open", error=error, path_contains=wal_path(number))
        with pytest.raises(OSError):
            driver.reopen()
        assert {path: driver.disk.read_file(path) for path in driver.disk.files()} == files
    driver.disk.clear_faults()
    driver.kill()
    assert picture(driver) == before


def test_w15_a_log_that_is_gone_while_snapshots_exist_stops_the_start() -> None:
    driver = shard_with()
    driver.snapshot()
    driver.disk.lose_power(keep="all")
    for number in wal_numbers(driver.disk):
        driver.disk.remove(wal_path(number))
    with pytest.raises(CorruptFrame, match="the log is gone"):
        driver.reopen()
    assert wal_numbers(driver.disk) == [], "no empty log was started over the data"


def test_w15_a_log_that_is_gone_while_segments_exist_stops_the_start() -> None:
    driver = shard_with()
    driver.seal()
    driver.disk.lose_power(keep="all")
    driver.disk.remove(wal_path(1))
    with pytest.raises(CorruptFrame, match="the log is gone"):
        driver.reopen()


def test_w15_a_missing_file_in_the_middle_stops_the_start_and_is_named() -> None:
    driver = shard_with(30, wal_file_bytes=4096)
    driver.disk.lose_power(keep="all")
    driver.disk.remove(wal_path(2))
    with pytest.raises(CorruptFrame) as caught:
        driver.reopen()
    assert caught.value.path == wal_path(2)


@pytest.mark.parametrize("damage", ["flip", "foreign", "number", "shard"])
def test_w15_a_damaged_header_over_existing_data_stops_the_start(damage: str) -> None:
    driver = shard_with()
    driver.disk.lose_power(keep="all")
    path = wal_path(1)
    if damage == "flip":
        driver.disk.flip_bit(path, 20, 0)
    elif damage == "foreign":
        driver.disk.overwrite(path, 0, b"NOTAWAL!")
    else:
        from shared.file_header import FileHeader, encode_file_header

        header = FileHeader(1, 1, 5) if damage == "shard" else FileHeader(0, 9, 5)
        driver.disk.overwrite(path, 0, encode_file_header(WAL_MAGIC, header))
    content = driver.disk.read_file(path)
    with pytest.raises(CorruptFrame) as caught:
        driver.reopen()
    assert caught.value.path == path
    assert driver.disk.read_file(path) == content, "evidence stays as it is"


def test_w16_crash_at_each_step_of_the_first_start() -> None:
    for crashed in crash_points(
        lambda: ShardDriver(open=False, wal_file_bytes=ROOMY), lambda driver: driver.reopen()
    ):
        for driver in crashed.outcomes():
            assert driver.shard.report.damage == []
            assert driver.append("t", [{"data": 1}]).json["first_seq"] == 1
            expect_healthy(driver)


def nearly_full() -> ShardDriver:
    """One more record of 600 bytes rotates the log."""
    driver = shard_with(2, wal_file_bytes=4096)
    while frames_in(driver.disk, 1)[-1].end < 3300:
        driver.append("f", [{"data": "pad"}])
    assert wal_numbers(driver.disk) == [1]
    return driver


def test_w16_crash_at_each_step_of_rotation() -> None:
    visited = 0
    acked = data_of(nearly_full(), "f")

    def rotate(driver: ShardDriver) -> None:
        driver.start_append("d", [{"data": "y" * 300}])
        driver.start_append("f", [{"data": "x" * 600}])
        driver.commit()
        driver.sync()
        assert wal_numbers(driver.disk) == [1, 2]

    for crashed in crash_points(nearly_full, rotate):
        visited += 1
        for driver in crashed.outcomes():
            assert driver.shard.report.damage == [], f"step {crashed.step}"
            expect_prefix(driver, "f", acked, ["x" * 600])
            expect_prefix(driver, "d", [0, 1], ["y" * 300])
            expect_healthy(driver)
    assert visited >= 5, "create, allocate, header, write, sync, directory"


def test_w16_the_new_files_entry_is_lost() -> None:
    driver = nearly_full()
    acked = data_of(driver, "f")
    driver.start_append("f", [{"data": "x" * 600}])
    driver.commit()
    assert wal_numbers(driver.disk) == [1, 2]
    driver.disk.lose_power(keep="all")
    driver.disk.remove(wal_path(2))
    driver.reopen()
    assert driver.shard.report.damage == []
    expect_prefix(driver, "f", acked)
    assert driver.append("f", [{"data": "again"}]).ok
    expect_healthy(driver)


@pytest.mark.parametrize("content", [b"", bytes(4096), bytes(64) + b"\0" * 100])
def test_w16_a_new_file_without_content_is_taken_for_never_written(content: bytes) -> None:
    driver = nearly_full()
    acked = data_of(driver, "f")
    driver.disk.lose_power(keep="all")
    driver.disk.place(wal_path(2), content)
    driver.reopen()
    assert driver.shard.report.damage == []
    expect_prefix(driver, "f", acked)
    expect_healthy(driver)


def test_w16_a_new_file_whose_header_was_lost_before_its_first_sync_is_a_torn_tail() -> None:
    driver = nearly_full()
    acked = data_of(driver, "f")
    driver.start_append("f", [{"data": "x" * 600}])
    driver.commit()
    driver.disk.lose_power(keep="all")
    driver.disk.overwrite(wal_path(2), 0, bytes(FILE_HEADER_BYTES))
    assert frames_in(driver.disk, 2), "its frames survived"
    driver.reopen()
    assert driver.shard.report.damage == []
    expect_prefix(driver, "f", acked, ["x" * 600])
    expect_healthy(driver)


def test_w16_a_header_lost_behind_a_sync_stops_the_start() -> None:
    driver = nearly_full()
    driver.append("f", [{"data": "x" * 600}])
    driver.append("f", [{"data": "more"}])
    driver.disk.lose_power(keep="all")
    driver.disk.overwrite(wal_path(2), 0, bytes(FILE_HEADER_BYTES))
    with pytest.raises(CorruptFrame) as caught:
        driver.reopen()
    assert caught.value.path == wal_path(2)


def test_w16_cutting_off_several_unsynced_files_can_itself_be_interrupted() -> None:
    acked = data_of(nearly_full(), "f")

    def out_of_order() -> ShardDriver:
        driver = nearly_full()
        known = len(appends(driver.disk))
        while len(wal_numbers(driver.disk)) < 4:
            driver.start_append("f", [{"data": "x" * 900}])
            driver.commit()
        lost = appends(driver.disk)[known]
        driver.disk.lose_power(keep="all")
        damage_frame(driver.disk, lost, 0, bytes(len(lost.raw)))
        return driver

    for crashed in crash_points(out_of_order, lambda driver: driver.reopen()):
        for driver in crashed.outcomes():
            assert driver.shard.report.damage == [], f"step {crashed.step}"
            expect_prefix(driver, "f", acked)
            expect_healthy(driver)


def test_w16_unsynced_frames_of_a_rotated_file_are_synced_by_the_next_start() -> None:
    driver = nearly_full()
    acked = data_of(driver, "f")
    driver.append("d", [{"data": "in the old file"}])
    driver.start_append("f", [{"data": "x" * 600}])
    driver.commit()
    assert wal_numbers(driver.disk) == [1, 2]
    driver.kill()
    before = picture(driver)
    assert driver.append("f", [{"data": "acked"}]).ok
    driver.lose_power(keep="none")
    assert driver.shard.report.damage == []
    expect_prefix(driver, "f", [*acked, "x" * 600, "acked"])
    assert data_of(driver, "d") == [record["data"] for record in before["d"]["records"]]


# --- W17 … W22 --------------------------------------------------------------------------------------------


def test_w17_a_frame_at_the_wrong_offset_is_never_applied() -> None:
    driver = shard_with()
    frame = next(frame for frame in appends(driver.disk) if frame.topic_id == 1)
    end = all_frames(driver.disk)[-1].end
    driver.disk.lose_power(keep="all")
    driver.disk.overwrite(frame.path, end, frame.raw)
    misplaced = replace(frame, offset=end, end=end + len(frame.raw))
    assert not is_intact(driver.disk, misplaced), "the frame names its place"
    driver.reopen()
    expect_prefix(driver, "f", [0, 1, 2])
    assert driver.shard.report.damage == []
    assert frame.raw in quarantined(driver.disk).values()
    expect_healthy(driver)


def test_w17_a_frame_written_over_another_one_is_damage() -> None:
    driver = shard_with(5)
    frames = [frame for frame in appends(driver.disk) if frame.topic_id == 1]
    assert len(frames[0].raw) == len(frames[2].raw)
    damage_frame(driver.disk, frames[2], 0, frames[0].raw)
    driver.lose_power(keep="all")
    (found,) = driver.shard.report.damage
    assert (found.path, found.offset) == (frames[2].path, frames[2].offset)
    assert "written for position" in found.reason
    assert [record["data"] for record in driver.read_all("f")] == [0, 1, 3, 4]


def test_w17_a_frame_of_another_file_number_is_refused() -> None:
    driver = shard_with()
    end = all_frames(driver.disk)[-1].end
    foreign = build_frame(Kind.TOPIC_DELETE, 0, lsn_of(7, end), 1, 1, b"")
    driver.disk.lose_power(keep="all")
    driver.disk.overwrite(wal_path(1), end, foreign)
    driver.reopen()
    expect_prefix(driver, "f", [0, 1, 2])


def trimmed() -> tuple[ShardDriver, dict[int, bytes]]:
    """A shard whose first log files are gone, and what they held."""
    driver = shard_with(30, wal_file_bytes=4096)
    old = {number: driver.disk.read_file(wal_path(number)) for number in wal_numbers(driver.disk)}
    driver.delete_records("f", before_seq=11)
    driver.seal()
    driver.snapshot()
    driver.append("f", [{"data": "between"}])
    driver.snapshot()
    gone = {number: old[number] for number in old if number not in wal_numbers(driver.disk)}
    assert len(gone) >= 2
    return driver, gone


@pytest.mark.parametrize("which", ["oldest", "newest", "all"])
def test_w18_an_old_file_that_reappears_brings_nothing_back(which: str) -> None:
    driver, gone = trimmed()
    before = picture(driver)
    driver.disk.kill_process()
    back = {"oldest": [min(gone)], "newest": [max(gone)], "all": list(gone)}[which]
    for number in back:
        driver.disk.place(wal_path(number), gone[number])
    driver.reopen()
    assert picture(driver) == before
    expect_healthy(driver)
    if which == "oldest":
        assert gone[min(gone)] in quarantined(driver.disk).values()


def test_w18_a_trim_that_was_interrupted_is_finished_or_harmless() -> None:
    def ready() -> ShardDriver:
        driver = shard_with(30, wal_file_bytes=4096)
        driver.seal()
        driver.snapshot()
        driver.append("f", [{"data": "between"}])
        driver.sync()
        return driver

    before = picture(ready())
    for crashed in crash_points(ready, lambda driver: driver.snapshot()):
        for driver in crashed.outcomes():
            after = picture(driver)
            assert after["f"] == before["f"]
            assert after["d"]["records"] == before["d"]["records"]
            expect_healthy(driver)


def test_w19_crash_while_draining_at_shutdown() -> None:
    def busy() -> ShardDriver:
        driver = shard_with(10, wal_file_bytes=4096)
        driver.start_append("d", [{"data": "last"}])
        driver.start_append("f", [{"data": "unacked"}])
        return driver

    visited = 0
    for crashed in crash_points(busy, lambda driver: driver.close()):
        visited += 1
        for driver in crashed.outcomes():
            assert driver.shard.report.damage == [], f"step {crashed.step}"
            expect_prefix(driver, "f", list(range(10)), ["unacked"])
            expect_prefix(driver, "d", list(range(10)), ["last"])
            expect_healthy(driver)
    assert visited >= 6


def test_w19_a_clean_shutdown_loses_nothing_and_leaves_no_gap() -> None:
    driver = shard_with(3)
    driver.append("d", [{"data": "last"}])
    before = picture(driver)
    driver.close()
    driver.disk.lose_power(keep="none")
    driver.reopen()
    assert picture(driver) == before
    assert driver.append("d", [{"data": "next"}]).json["first_seq"] == 5


def test_w19_a_shutdown_of_a_full_shard_still_syncs_what_was_acked() -> None:
    driver = ShardDriver(FakeDisk(capacity_bytes=1 << 20), wal_file_bytes=ROOMY, min_free_bytes=1 << 16)
    for number in (0, 1, 2, "acked"):
        driver.append("d", [{"data": number}])
    driver.disk.place("/filler", bytes((1 << 20) - driver.disk.used_bytes() - 1000))
    driver.tick()
    assert driver.append("d", [{"data": "refused"}]).status == 503
    driver.close()
    driver.lose_power(keep="none")
    assert data_of(driver, "d") == [0, 1, 2, "acked"]


def test_w19_a_snapshot_that_fails_at_shutdown_does_not_fail_the_shutdown() -> None:
    for op, error in (
        ("create", errno.ENOSPC),
        ("write", errno.ENOSPC),
        ("sync", errno.EIO),
        ("rename", errno.EIO),
    ):
        driver = shard_with(3)
        driver.append("d", [{"data": "acked"}])
        driver.disk.fail_on(op, error=error, path_contains=".snap")  # type: ignore[arg-type]
        driver.close()
        driver.disk.clear_faults()
        driver.lose_power(keep="none")
        assert data_of(driver, "d") == [0, 1, 2, "acked"]
        expect_healthy(driver)


# A worker in a process of its own, as far as the lock is concerned: lock, open, one write, wait, close.
WORKER = """
import sys
from dataclasses import replace
from shared.io.durable_fs import RealFileSystem
from shared.settings import Settings
from shard_worker.disk.dir_lock import DirectoryLocked, DirLock
from shard_worker.shard import Shard
import os
root = sys.argv[1]
os.makedirs(root + "/shard-0000", exist_ok=True)
try:
    lock = DirLock(root + "/shard-0000")
    lock.acquire()
except DirectoryLocked as err:
    print("refused", err.holder_pid, flush=True)
    sys.exit(3)
shard = Shard.open(RealFileSystem(), replace(Settings(), data_dir=root, min_free_bytes=0), 0,
                   wall_ms=lambda: 1, clock=lambda: 0.0, wal_file_bytes=1 << 20)
print("open", flush=True)
sys.stdin.read()
shard.close()
"""


def test_w20_two_workers_on_one_directory_the_second_is_refused(tmp_path: Path) -> None:
    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", WORKER, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    first = start()
    try:
        assert first.stdout is not None and first.stdin is not None
        assert first.stdout.readline() == "open\n"
        wal = tmp_path / "shard-0000" / "wal" / "0000000001.wal"
        content = wal.read_bytes()
        with start() as second:
            said, _ = second.communicate(timeout=60)
            assert (said, second.returncode) == (f"refused {first.pid}\n", 3)
        with pytest.raises(DirectoryLocked):
            DirLock(str(tmp_path / "shard-0000")).acquire()
        assert wal.read_bytes() == content, "the refused one touched nothing"
        first.kill()
        first.wait(timeout=60)
        with start() as third:
            assert third.stdout is not None and third.stdin is not None
            assert third.stdout.readline() == "open\n", "a killed worker blocks nobody"
            third.communicate("", timeout=60)
            assert third.returncode == 0
    finally:
        first.kill()
        first.communicate()


def test_w21_a_sync_that_stalls_for_ten_seconds_bounds_memory_and_loses_nothing() -> None:
    driver = shard_with(1, wal_file_bytes=1 << 22, max_unsynced_bytes=1 * MiB)
    payload = "x" * 60_000
    waiting = [driver.start_append("f", [{"data": payload}])]
    driver.commit()
    stalled = driver.engine.begin_sync()
    refused = 0
    for _ in range(40):
        driver.clock.advance(250)
        call = driver.start_append("f", [{"data": payload}])
        driver.commit()
        if call.answer is not None:
            refused += 1
            assert (call.answer.status, call.answer.error) == (429, "throttled")
            assert call.answer.json["error"]["detail"]["retry_after_ms"] > 0
        else:
            waiting.append(call)
        assert not driver.engine.sync_due(), "one sync at a time"
    assert refused and len(waiting) * len(payload) <= 1 * MiB + 2 * len(payload)
    assert data_of(driver, "f") == [0], "reads go on, and show nothing that is not safe"

    stalled.run()
    driver.engine.finish_sync(stalled)
    driver.settle()
    assert all(call.answer is not None and call.answer.status == 200 for call in waiting)
    assert driver.append("f", [{"data": "after"}]).ok, "the pressure is gone"
    driver.lose_power(keep="none")
    expect_prefix(driver, "f", [0, *[payload] * len(waiting), "after"])


def test_w21_a_disk_topic_is_held_back_too_once_its_reserved_seqs_are_used() -> None:
    driver = shard_with(1, wal_file_bytes=1 << 24, max_unsynced_bytes=1 * MiB)
    stalled = driver.engine.begin_sync()
    batch = [{"data": "y" * 500}] * 200
    statuses = []
    for _ in range(60):
        call = driver.start_append("d", batch)
        driver.commit()
        statuses.append(call.answer.status if call.answer is not None else None)
    assert 429 in statuses
    stalled.run()
    driver.engine.finish_sync(stalled)
    driver.settle()
    accepted = sum(status != 429 for status in statuses)
    assert driver.state("d").json["count"] == 1 + 200 * accepted
    driver.lose_power(keep="none")
    assert driver.state("d").json["count"] == 1 + 200 * accepted


@pytest.mark.parametrize("place", ["last", "middle"])
def test_w22_a_newer_frame_is_refused_and_the_version_named(place: str) -> None:
    driver = shard_with()
    frame = appends(driver.disk)[-1 if place == "last" else 1]
    driver.disk.lose_power(keep="all")
    damage_frame_with = frame_of_version(frame, 2)
    driver.disk.overwrite(frame.path, frame.offset, damage_frame_with)
    files = {path: driver.disk.read_file(path) for path in driver.disk.files()}
    with pytest.raises(FormatTooNew) as caught:
        driver.reopen()
    assert (caught.value.needed_version, caught.value.supported_version) == (2, 1)
    assert caught.value.path == frame.path
    assert "version 2" in str(caught.value)
    assert {path: driver.disk.read_file(path) for path in driver.disk.files()} == files


def test_w22_an_unknown_kind_is_refused_not_skipped() -> None:
    driver = shard_with()
    end = all_frames(driver.disk)[-1]
    driver.disk.lose_power(keep="all")
    place = replace(end, offset=end.end)
    driver.disk.overwrite(end.path, end.end, frame_of_kind(place, 63))
    with pytest.raises(FormatTooNew) as caught:
        driver.reopen()
    assert caught.value.needed_version == 63


def test_w22_a_newer_frame_behind_damage_is_refused_too() -> None:
    driver = shard_with()
    frames = appends(driver.disk)
    driver.disk.lose_power(keep="all")
    flip_in_frame(driver.disk, frames[1], 66)
    driver.disk.overwrite(frames[-1].path, frames[-1].offset, frame_of_version(frames[-1], 3))
    with pytest.raises(FormatTooNew):
        driver.reopen()


def test_w22_a_newer_file_header_is_refused() -> None:
    from xxhash import xxh3_64_intdigest

    driver = shard_with()
    driver.snapshot()
    driver.disk.lose_power(keep="all")
    for path in (wal_path(1), snapshot_path(1)):
        kept = driver.disk.read_file(path)[:64]
        body = kept[:8] + pack("<I", 2) + kept[12:56]
        driver.disk.overwrite(path, 0, body + pack("<Q", xxh3_64_intdigest(body)))
        with pytest.raises(FormatTooNew) as caught:
            driver.reopen()
        assert caught.value.needed_version == 2
        driver.disk.overwrite(path, 0, kept)
    driver.kill()
    expect_prefix(driver, "f", [0, 1, 2])


# --- a shard on the real disk -----------------------------------------------------------------------------


class _Answers(dict[int, tuple[int, bytes]]):
    def answer(self, id: int, status: int, body: bytes, *_: object) -> None:
        self[id] = (status, body)


def open_real(settings: Settings) -> tuple[Shard, _Answers]:
    shard = Shard.open(
        RealFileSystem(), settings, 0, wall_ms=lambda: 1, clock=lambda: 0.0, wal_file_bytes=1 << 16
    )
    return shard, _Answers()


def send(shard: Shard, answers: _Answers, id: int, op: int, topic: str, body: bytes) -> None:
    shard.engine.submit(Request(answers, id, op, topic, body, {"inline": True}))
    shard.engine.sync_now()
