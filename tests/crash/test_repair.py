"""Verify and repair: damage in every kind of file is found, repaired and told to readers."""

from __future__ import annotations

import dataclasses

import pytest
from msgspec import structs

from shared.errors import CorruptSnapshot
from shared.frame import Kind
from shared.io.manifest_files import load_manifest, write_next_manifest
from shared.wal_format import JSON_OFFSET
from tests.support.fault_kit import (
    COLD_SHARD_DIR,
    ROOMY,
    all_frames,
    appends,
    cold_path,
    expect_read_only_for_damage,
    flip_in_frame,
    flip_in_segment,
    reopened,
    segment_parts,
    segment_path,
    snapshot_numbers,
    snapshot_path,
    wal_numbers,
    wal_path,
)
from tests.support.repair_kit import (
    TOPICS,
    WRITTEN,
    content,
    furnished,
    hot_segment,
    repair,
    repaired,
    story,
    survey,
)
from tests.support.shard_driver import ShardDriver, small_limits

# --- the log ------------------------------------------------------------------------------------------------


def test_a_healthy_shard_is_clean_and_repair_does_nothing() -> None:
    driver = furnished()
    before = content(driver.disk)
    assert survey(driver).damage == []
    assert repair(driver).clean
    assert content(driver.disk) == before


def test_a_torn_tail_is_a_note() -> None:
    driver = furnished()
    frame = all_frames(driver.disk)[-1]
    driver.disk.overwrite(frame.path, frame.end, b"TFR1 half a frame")
    found = survey(driver)
    assert found.damage == [] and any("torn tail" in note for note in found.notes)
    assert repair(driver).clean


def test_a_bad_frame_with_more_behind_it_costs_its_records() -> None:
    driver = furnished()
    frame = appends(driver.disk)[-5]
    flip_in_frame(driver.disk, frame, JSON_OFFSET + 3)
    twin = reopened(driver)
    twin.disk = driver.disk.clone().kill_process()
    twin.reopen()
    expect_read_only_for_damage(twin)
    lost = repaired(driver)
    assert sum(map(len, lost.values())) == 3
    assert set(range(frame.append.first_seq, frame.append.last_seq + 1)) in lost.values()


def test_a_bad_frame_in_front_of_the_snapshot_is_found_too() -> None:
    """Replay begins behind it, so only a read would have noticed."""
    driver = furnished()
    frame = appends(driver.disk)[-16]
    flip_in_frame(driver.disk, frame, JSON_OFFSET + 3)
    twin = reopened(driver)
    twin.disk = driver.disk.clone().kill_process()
    twin.reopen()
    assert twin.shard.report.damage == []
    assert sum(map(len, repaired(driver).values())) == 3


def test_the_last_batch_of_a_topic_leaves_a_hole_behind_its_head() -> None:
    driver = furnished(stop=False)
    driver.put("c")
    driver.settle()
    driver.disk.kill_process()
    frame = [frame for frame in appends(driver.disk) if frame.append.last_seq == len(WRITTEN["b"])][-1]
    flip_in_frame(driver.disk, frame, JSON_OFFSET + 3)
    lost = repaired(driver)
    assert sum(map(len, lost.values())) == 3


def test_a_sector_of_garbage_over_many_frames() -> None:
    driver = furnished()
    frame = appends(driver.disk)[-8]
    driver.disk.overwrite(frame.path, frame.offset + 10, b"\xa5" * 700)
    lost = repaired(driver)
    assert sum(map(len, lost.values())) >= 6


def test_a_bad_log_header_costs_nothing() -> None:
    driver = furnished(small=True)
    number = wal_numbers(driver.disk)[-2]
    driver.disk.flip_bit(wal_path(number), 17, 0)
    with pytest.raises(Exception, match="corrupt_frame"):
        reopened(driver).reopen()
    driver.disk.kill_process()
    assert repaired(driver) == {"a": set(), "b": set()}


@pytest.mark.parametrize("which", [0, 1, -2])
def test_a_missing_log_file_costs_what_was_in_it(which: int) -> None:
    driver = furnished(small=True)
    number = wal_numbers(driver.disk)[which]
    gone = [frame.append for frame in appends(driver.disk) if frame.file_no == number]
    driver.disk.remove(wal_path(number))
    lost = repaired(driver)
    assert sum(map(len, lost.values())) <= sum(append.count for append in gone)


def test_without_any_log_the_snapshot_and_the_segments_serve() -> None:
    driver = furnished()
    for number in wal_numbers(driver.disk):
        driver.disk.remove(wal_path(number))
    lost = repaired(driver)
    assert lost["a"] and min(lost["a"]) > 36


# --- snapshots ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", [0, 1])
def test_a_bad_snapshot_is_moved_aside(which: int) -> None:
    driver = furnished()
    path = snapshot_path(snapshot_numbers(driver.disk)[which])
    driver.disk.flip_bit(path, 200, 1)
    assert repaired(driver) == {"a": set(), "b": set()}


# --- segments and the cold tier -----------------------------------------------------------------------------


def test_a_bad_block_costs_its_records_and_no_others() -> None:
    with small_limits():
        driver = furnished()
        path = hot_segment(driver)
        block = segment_parts(driver.disk, path).blocks[1]
        flip_in_segment(driver.disk, path, block.offset + block.length - 12)
        lost = repaired(driver)
    assert sorted(map(len, lost.values())) == [0, block.count]
    assert set(range(block.first, block.last + 1)) in lost.values()


@pytest.mark.parametrize("part", ["header", "index", "terms", "trailer"])
def test_damage_around_the_blocks_costs_nothing(part: str) -> None:
    driver = furnished()
    path = hot_segment(driver)
    parts = segment_parts(driver.disk, path)
    at = {
        "header": 20,
        "index": parts.trailer.index_at + 5,
        "terms": parts.trailer.terms_at + 9,
        "trailer": parts.size - 30,
    }
    flip_in_segment(driver.disk, path, at[part])
    assert repaired(driver) == {"a": set(), "b": set()}


def test_a_missing_segment_costs_all_of_it() -> None:
    driver = furnished()
    path = hot_segment(driver)
    records = sum(block.count for block in segment_parts(driver.disk, path).blocks)
    driver.disk.remove(path)
    lost = repaired(driver)
    assert sum(map(len, lost.values())) == records


def test_a_bad_cold_segment_is_rewritten_and_leaves_the_manifest() -> None:
    with small_limits():
        driver = furnished()
        path = cold_path(1)
        block = segment_parts(driver.disk, path).blocks[0]
        flip_in_segment(driver.disk, path, block.offset + block.length - 12)
        lost = repaired(driver)
    assert sum(map(len, lost.values())) == block.count
    assert f"{COLD_SHARD_DIR}/quarantine/0000000001.seg.1" in driver.disk.files()


def test_an_intact_copy_in_the_other_tier_takes_over() -> None:
    driver = furnished()
    driver.disk.place(segment_path(1), driver.disk.read_file(cold_path(1)))
    flip_in_segment(driver.disk, cold_path(1), 100)
    assert repaired(driver) == {"a": set(), "b": set()}


def test_a_cold_tier_that_is_not_there_is_not_declared_lost() -> None:
    driver = furnished()
    for path in driver.disk.files("/cold"):
        driver.disk.remove(path)
    before = content(driver.disk)
    driver.settings = dataclasses.replace(driver.settings, cold_dir="/elsewhere")
    with pytest.raises(Exception, match="mount it"):
        repair(driver)
    assert content(driver.disk) == before


def test_a_manifest_does_not_go_on_listing_what_nobody_needs_and_nobody_can_read() -> None:
    """As after a repair that was killed right behind its commit."""
    driver = furnished()
    current, checksum = load_manifest(driver.disk, COLD_SHARD_DIR)
    assert current is not None
    stale = structs.replace(current.segments[0], number=77, path="data/0000000077.seg")
    driver.disk.place(cold_path(77), driver.disk.read_file(cold_path(1)))
    segments = [*current.segments, stale]
    write_next_manifest(driver.disk, COLD_SHARD_DIR, 0, driver.clock.now_ms, current, checksum, segments)
    assert repaired(driver) == {"a": set(), "b": set()}
    after, _ = load_manifest(driver.disk, COLD_SHARD_DIR)
    assert after is not None and after.segments == current.segments
    assert f"{COLD_SHARD_DIR}/quarantine/0000000077.seg.1" in driver.disk.files()


def test_a_bad_manifest_is_replaced() -> None:
    driver = furnished()
    newest = max(name for name in driver.disk.list_dir(COLD_SHARD_DIR) if name.startswith("manifest"))
    driver.disk.flip_bit(f"{COLD_SHARD_DIR}/{newest}", 150, 2)
    assert repaired(driver) == {"a": set(), "b": set()}


# --- frames that are not records ------------------------------------------------------------------------------


def test_a_segment_that_the_log_has_forgotten_gives_its_records_back() -> None:
    """The frame that told of the first segment is lost, and the next one seems to begin where that began."""
    driver = ShardDriver(wal_file_bytes=ROOMY)
    for part in range(2):
        for name in TOPICS:
            for n in range(4):
                driver.append(name, [{"data": f"{name}{part}{n}{i}" + "x" * 20} for i in range(3)])
        driver.seal()
    driver.settle()
    driver.disk.kill_process()
    flip_in_frame(driver.disk, next(f for f in all_frames(driver.disk) if f.kind == Kind.SEALED), 60)
    report = repair(driver)
    assert report.damage and report.losses == []
    assert survey(driver).damage == []
    driver.reopen()
    for name in TOPICS:
        records, told = story(driver, name)
        assert list(records.values()) == WRITTEN[name][:24] and not told


def test_a_topic_whose_creation_is_lost_is_reported_and_its_id_not_used_again() -> None:
    driver = ShardDriver(wal_file_bytes=ROOMY)
    driver.append("known", [{"data": 1}], config={"durable": True})
    driver.append("unknown", [{"data": 2}, {"data": 3}], config={"durable": True})
    driver.append("known", [{"data": 4}])
    driver.settle()
    driver.disk.kill_process()
    creation = [frame for frame in all_frames(driver.disk) if frame.kind == Kind.TOPIC_CREATE][1]
    flip_in_frame(driver.disk, creation, 60)
    report = repair(driver)
    assert any("2 records belong to a topic (id 2)" in note for note in report.notes)
    assert survey(driver).damage == []
    driver.reopen()
    assert list(story(driver, "known")[0].values()) == [1, 4]
    driver.append("another", [{"data": 5}])
    assert driver.engine.state.catalog.visible["another"].id > 2


def test_without_a_readable_snapshot_or_the_beginning_of_the_log_repair_refuses() -> None:
    driver = furnished(small=True)
    assert min(wal_numbers(driver.disk)) > 1
    for number in snapshot_numbers(driver.disk):
        driver.disk.flip_bit(snapshot_path(number), 200, 1)
    before = content(driver.disk)
    assert survey(driver).damage
    with pytest.raises(CorruptSnapshot, match="restore this shard from a backup"):
        repair(driver)
    assert content(driver.disk) == before
