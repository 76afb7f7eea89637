"""Segments and sealing under every fault of the catalogue, G1 to G8."""

from __future__ import annotations

import errno
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from shard_worker.moving import move_topics
from shared.errors import CorruptSegment
from shared.file_header import FileHeader
from shared.frame import Kind
from shared.segment_format import BLOCK_HEADER_BYTES, encode_segment_header
from shared.segment_terms import TRAILER_BYTES, encode_trailer
from tests.support.fake_disk import FakeDisk
from tests.support.fault_kit import (
    ROOMY,
    SEGMENTS_DIR,
    all_frames,
    appends,
    crash_points,
    data_of,
    expect_healthy,
    expect_prefix,
    flip_in_frame,
    flip_in_segment,
    picture,
    reopened,
    segment_is_intact,
    segment_parts,
    segment_path,
    topics_of,
    wal_numbers,
)
from tests.support.shard_driver import Answer, ShardDriver

RICH = {"data": {"sku": "A"}, "tag": "order-1", "node": "eu-1", "key": "k1", "meta": {"trace": "ab"}}


def shard_with(count: int = 6, *, wal_file_bytes: int = 4096, **overrides: object) -> ShardDriver:
    driver = ShardDriver(wal_file_bytes=wal_file_bytes, **overrides)
    for name in ("a", "b"):
        driver.put(name, durable=True)
        for number in range(count):
            assert driver.append(name, [{**RICH, "data": number, "tag": f"t{number % 3}"}]).ok
    driver.delete_records("a", match="t1", before_seq=4)
    return driver


def expect_one_place(driver: ShardDriver) -> None:
    """Every live record is in exactly one authoritative place: a run of a segment, or the log."""
    for topic in topics_of(driver).values():
        spans = [(run.first, run.last) for run in topic.runs]
        spans += [
            (entry.first, entry.last)
            for entry in map(topic.hot.entry, range(topic.hot.start, len(topic.hot.first)))
        ]
        assert spans == sorted(spans)
        assert all(before[1] < after[0] for before, after in pairwise(spans))
        for run in topic.runs:
            assert driver.disk.exists(driver.shard.store.segment_path(run.segment))


def expect_refused(answer: Answer, reason: str = "corrupt_segment") -> None:
    assert answer.status == 500
    error = answer.json["error"]
    assert (error["code"], error["detail"]["reason"]) == ("internal", reason)
    assert "records" not in answer.json


# --- G1, G2 -----------------------------------------------------------------------------------------------


def test_g01_crash_at_each_step_of_sealing() -> None:
    """From the first byte of the segment to the moment when the log files go."""
    before = picture(shard_with())
    seen: set[str] = set()

    def seal_and_trim(driver: ShardDriver) -> None:
        assert driver.seal()
        driver.sync()
        for _ in range(2):
            assert driver.snapshot()
        assert wal_numbers(driver.disk)[0] > 1, "the log files are gone"

    visited = 0
    for crashed in crash_points(shard_with, seal_and_trim):
        visited += 1
        for driver in crashed.outcomes():
            assert picture(driver) == before, f"step {crashed.step}"
            expect_one_place(driver)
            expect_healthy(driver)
            seen.add("sealed" if any(topic.runs for topic in topics_of(driver).values()) else "in the log")
    assert seen == {"sealed", "in the log"}
    assert visited >= 12


def test_g01_an_unfinished_segment_is_removed_at_the_next_start() -> None:
    driver = shard_with()
    job = driver.begin_seal()
    assert job is not None
    job.run()  # the file is there, the log does not know
    assert driver.disk.exists(segment_path(1))
    driver.disk.place(segment_path(9) + ".tmp", b"half a segment")
    driver.kill()
    assert driver.disk.list_dir(SEGMENTS_DIR) == []
    assert driver.seal()
    assert driver.disk.list_dir(SEGMENTS_DIR) == ["0000000002.seg"], "its number is not used again"
    expect_healthy(driver)


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("op", ["create", "write", "sync", "rename", "syncdir"])
def test_g02_a_seal_that_fails_keeps_the_log_and_is_tried_again(op: str, error: int) -> None:
    driver = shard_with()
    before, files = picture(driver), wal_numbers(driver.disk)
    driver.disk.fail_on(op, error=error, path_contains="/segments")  # type: ignore[arg-type]
    assert not driver.seal()
    assert driver.shard.maintenance.counters.failures == 1
    assert picture(driver) == before
    assert wal_numbers(driver.disk) == files
    assert not [name for name in driver.disk.list_dir(SEGMENTS_DIR) if name.endswith(".tmp")]
    assert driver.shard.maintenance.due, "still due"
    twin = reopened(driver)
    twin.disk = driver.disk.clone().lose_power(keep="none")
    twin.reopen()
    assert picture(twin) == before

    assert driver.finish_job(driver.shard.maintenance.next_job())
    assert picture(driver) == before
    expect_one_place(driver)
    driver.kill()
    assert picture(driver) == before
    expect_healthy(driver)


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_g02_a_segment_that_the_log_cannot_take_note_of_changes_nothing(error: int) -> None:
    driver = shard_with()
    before = picture(driver)
    driver.disk.fail_on("write", error=error, path_contains="/wal/")
    driver.seal()
    assert picture(driver) == before
    assert all(not topic.runs for topic in topics_of(driver).values())
    driver.tick()
    assert driver.seal()
    assert picture(driver) == before
    driver.kill()
    assert picture(driver) == before
    expect_healthy(driver)


def test_g02_one_damaged_batch_does_not_hold_up_the_sealing_of_others() -> None:
    driver = shard_with()
    driver.snapshot()
    driver.close()
    bad = next(frame for frame in appends(driver.disk) if frame.topic_id == 1 and frame.append.first_seq == 5)
    flip_in_frame(driver.disk, bad, 100)
    driver.reopen()
    assert driver.shard.report.damage == [], "in front of the snapshot: found when it is touched"
    maintenance = driver.shard.maintenance
    driver.finish_job(driver.begin_seal())
    for _ in range(5):
        driver.finish_job(maintenance.next_job())
    assert not maintenance.due
    assert topics_of(driver)["b"].runs and not topics_of(driver)["a"].runs
    assert data_of(driver, "b") == list(range(6))
    assert [record["data"] for record in driver.read("a", 5)["records"]] == [5]
    expect_refused(driver.read_answer("a", 4), "corrupt_frame")


# --- G3: bit flips ----------------------------------------------------------------------------------------


def sealed_shard() -> ShardDriver:
    """Segment 1 with three topics, one of two blocks; segment 2 and the log hold more of each. Nothing is cached."""
    driver = ShardDriver(wal_file_bytes=1 << 20, cold_dir=None)
    for name in ("a", "big", "c"):
        driver.put(name, durable=True)
    for _ in range(3):
        driver.append("big", [{"data": "x" * 10, "tag": f"t{at % 7}"} for at in range(1000)])
    for name in ("a", "c"):
        driver.append(name, [{**RICH, "data": number} for number in range(5)])
    assert driver.seal()
    for name in ("a", "big", "c"):
        driver.append(name, [{"data": "second segment", "tag": "late"}])
    assert driver.seal()
    for name in ("a", "big", "c"):
        driver.append(name, [{"data": "in the log"}])
    driver.sync()
    driver.kill()
    parts = segment_parts(driver.disk, segment_path(1))
    assert [len(parts.blocks_of(topic_id)) for topic_id in (1, 2, 3)] == [1, 2, 1]
    return driver


def region(driver: ShardDriver, name: str) -> range:
    parts = segment_parts(driver.disk, segment_path(1))
    block = parts.blocks_of(1)[0]
    content = driver.disk.read_file(segment_path(1))
    columns = int.from_bytes(content[block.offset + 56 : block.offset + 60], "little")
    json_at = block.offset + BLOCK_HEADER_BYTES + columns
    trailer = parts.trailer
    return {
        "header": range(64),
        "block_header": range(block.offset, block.offset + 72),
        "block_checksum": range(block.offset + 72, block.offset + 80),
        "columns": range(block.offset + BLOCK_HEADER_BYTES, json_at),
        "json": range(json_at, block.offset + block.length - 8),
        "json_checksum": range(block.offset + block.length - 8, block.offset + block.length),
        "terms": range(trailer.terms_at, trailer.terms_at + trailer.terms_len),
        "index": range(trailer.index_at, trailer.index_at + trailer.index_len),
        "trailer": range(parts.size - TRAILER_BYTES, parts.size),
    }[name]


BLOCK_REGIONS = ["block_header", "block_checksum", "columns", "json", "json_checksum"]
FILE_REGIONS = ["header", "index", "trailer"]


def places(where: range) -> set[int]:
    return {where.start, where.start + len(where) // 3, where.start + len(where) // 2, where.stop - 1}


@pytest.mark.parametrize("name", BLOCK_REGIONS)
def test_g03_bit_flip_in_a_block_is_refused_and_its_neighbours_are_served(name: str) -> None:
    base = sealed_shard()
    where = region(base, name)
    assert len(where) > 0
    for place in places(where):
        driver = reopened(base)
        driver.disk = base.disk.clone().kill_process()
        flip_in_segment(driver.disk, segment_path(1), place, bit=place % 8)
        driver.reopen()
        expect_refused(driver.read_answer("a"))
        expect_refused(driver.read_answer("a", 3, include_tags=True, node="nobody"))
        assert [record["data"] for record in driver.read("a", 5)["records"]] == [
            "second segment",
            "in the log",
        ]
        assert [record["data"] for record in driver.read("c")["records"]][:5] == [0, 1, 2, 3, 4]
        assert len(driver.read_all("big")) == 3002
        assert driver.append("a", [{"data": "writes go on"}]).ok


def test_g01_a_segment_whose_frame_in_the_log_is_damaged_is_not_tidied_away() -> None:
    driver = shard_with(cold_dir=None)
    driver.seal()
    driver.append("a", [{"data": "later"}])
    driver.append("a", [{"data": "latest"}])
    before = picture(driver)
    frame = next(frame for frame in all_frames(driver.disk) if frame.kind == Kind.SEALED)
    flip_in_frame(driver.disk, frame, 60)
    for _ in range(2):
        driver.lose_power(keep="all")
        assert driver.shard.report.damage
        assert driver.disk.exists(segment_path(1)), "evidence, and perhaps the only copy"
        assert picture(driver) == before, "the log still has them"


def test_g01_a_topic_that_was_moved_here_is_served_although_its_segment_frame_is_damaged() -> None:
    source = shard_with(cold_dir=None)
    target = ShardDriver(wal_file_bytes=4096, cold_dir=None)
    topics = list(topics_of(source).values())
    wanted = {name: data_of(source, name) for name in topics_of(source)}
    move_topics(target.disk, source.shard, target.shard, topics, lambda count: None)
    target.append("a", [{"data": "later"}])
    target.append("a", [{"data": "latest"}])
    frame = next(frame for frame in all_frames(target.disk) if frame.kind == Kind.SEALED)
    flip_in_frame(target.disk, frame, 60)
    target.lose_power(keep="all")
    assert target.shard.report.damage
    assert data_of(target, "a") == [*wanted["a"], "later", "latest"]
    assert data_of(target, "b") == wanted["b"]


@pytest.mark.parametrize("name", FILE_REGIONS)
def test_g03_bit_flip_in_header_index_or_trailer_is_refused_and_other_files_are_served(name: str) -> None:
    base = sealed_shard()
    for place in places(region(base, name)):
        driver = reopened(base)
        driver.disk = base.disk.clone().kill_process()
        flip_in_segment(driver.disk, segment_path(1), place, bit=place % 8)
        driver.reopen()
        for topic in ("a", "big", "c"):
            expect_refused(driver.read_answer(topic))
        assert [record["data"] for record in driver.read("a", 5)["records"]] == [
            "second segment",
            "in the log",
        ]
        assert driver.append("a", [{"data": "writes go on"}]).ok


def test_g03_the_error_names_the_file_for_the_operator_and_not_for_the_client() -> None:
    driver = sealed_shard()
    flip_in_segment(driver.disk, segment_path(1), region(driver, "json").start + 3)
    answer = driver.read_answer("a")
    expect_refused(answer)
    assert b"/data/" not in answer.text and b".seg" not in answer.text
    topic = topics_of(driver)["a"]
    with pytest.raises(CorruptSegment) as caught:
        next(iter(driver.shard.store.sealed_pieces(1, topic.id, 1, 5))).json  # noqa: B018
    block = segment_parts(driver.disk, segment_path(1)).blocks_of(topic.id)[0]
    assert (caught.value.path, caught.value.offset) == (segment_path(1), block.offset)
    assert "checksum" in caught.value.reason


def test_g03_one_bad_block_of_a_topic_leaves_its_other_blocks_readable() -> None:
    driver = sealed_shard()
    first, second = segment_parts(driver.disk, segment_path(1)).blocks_of(2)
    flip_in_segment(driver.disk, segment_path(1), first.offset + first.length - 20)
    expect_refused(driver.read_answer("big", first.last - 1))
    assert driver.read("big", first.last)["records"][0]["$seq"] == second.first


def test_g03_bit_flip_in_the_terms_stops_the_search_and_no_read() -> None:
    base = sealed_shard()
    for place in places(region(base, "terms")):
        driver = reopened(base)
        driver.disk = base.disk.clone().kill_process()
        flip_in_segment(driver.disk, segment_path(1), place)
        driver.reopen()
        before = picture(driver)
        assert [record["data"] for record in driver.read("a")["records"]][:5] == [0, 1, 2, 3, 4]
        expect_refused(driver.delete_records("a", match="order-1"))
        assert picture(driver) == before, "all or nothing"
        assert driver.append("a", [{"data": "writes go on"}]).ok
        driver.kill()
        assert driver.shard.report.damage == []
        assert data_of(driver, "a")[:5] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("name", ["block_header", "columns", "index"])
def test_g03_a_delete_that_cannot_look_into_a_block_is_refused_before_it_is_written(name: str) -> None:
    driver = sealed_shard()
    flip_in_segment(driver.disk, segment_path(1), region(driver, name).start + 5)
    frames = len([frame for frame in all_frames(driver.disk) if frame.kind == Kind.RECORDS_DELETE])
    held = topics_of(driver)["a"].count
    others = driver.start_append("c", [{"data": "in the same turn"}])
    expect_refused(driver.delete_records("a", match="order-1"))
    driver.settle()
    assert others.answer is not None and others.answer.ok, "the rest of the turn is not disturbed"
    assert topics_of(driver)["a"].count == held
    assert len([frame for frame in all_frames(driver.disk) if frame.kind == Kind.RECORDS_DELETE]) == frames
    driver.kill()
    assert driver.shard.report.damage == []
    assert topics_of(driver)["a"].count == held


def test_g03_a_delete_by_tag_needs_no_json_and_works_over_damaged_json() -> None:
    driver = sealed_shard()
    flip_in_segment(driver.disk, segment_path(1), region(driver, "json").start + 3)
    answer = driver.delete_records("a", match="order-1")
    assert (answer.status, answer.json["deleted"]) == (200, 5)
    assert [record["data"] for record in driver.read("a")["records"]] == ["second segment", "in the log"]


def test_g03_a_delete_of_everything_before_a_seq_gets_rid_of_a_damaged_block() -> None:
    driver = sealed_shard()
    flip_in_segment(driver.disk, segment_path(1), region(driver, "columns").start + 3)
    expect_refused(driver.read_answer("a"))
    assert driver.delete_records("a", before_seq=6).json["deleted"] == 5
    assert [record["data"] for record in driver.read("a")["records"]] == ["second segment", "in the log"]
    driver.kill()
    assert driver.shard.report.damage == []


def damaged_oldest_block(**config: object) -> ShardDriver:
    """A topic of several records in one damaged block, and neighbours in the same segment."""
    driver = ShardDriver(wal_file_bytes=4096, cold_dir=None)
    driver.put("t", durable=True, **config)
    driver.put("other", durable=True)
    for number in range(10):
        driver.clock.advance(10)
        driver.append("t", [{"data": number}])
    driver.append("other", [{"data": 1}])
    driver.seal()
    driver.sync()
    driver.kill()
    block = segment_parts(driver.disk, segment_path(1)).blocks_of(1)[0]
    flip_in_segment(driver.disk, segment_path(1), block.offset + BLOCK_HEADER_BYTES + 3)
    expect_refused(driver.read_answer("t"))
    return driver


def expect_unharmed_by_removal(driver: ShardDriver, live: int) -> None:
    topic = topics_of(driver)["t"]
    assert (topic.count, topic.live_from) == (live, topic.head - live + 1)
    assert topic.bytes > 0
    assert data_of(driver, "other") == [1]
    state = (topic.count, topic.head, topic.floor, topic.live_from, topic.reason)
    driver.kill()
    topic = topics_of(driver)["t"]
    assert driver.shard.report.damage == [], "replay met the same block and went on"
    assert (topic.count, topic.head, topic.floor, topic.live_from, topic.reason) == state
    assert driver.append("other", [{"data": 2}]).ok


def test_g03_a_cap_evicts_records_of_a_damaged_block() -> None:
    driver = damaged_oldest_block(cap_records=10)
    for number in range(4):
        assert driver.append("t", [{"data": f"new {number}"}]).ok
    assert [record["data"] for record in driver.read("t", 10)["records"]][-1] == "new 3"
    expect_unharmed_by_removal(driver, 10)


def test_g03_a_cap_of_bytes_evicts_records_of_a_damaged_block() -> None:
    driver = damaged_oldest_block(cap_bytes=450)
    held = topics_of(driver)["t"].count
    for number in range(6):
        assert driver.append("t", [{"data": number}]).ok
        topic = topics_of(driver)["t"]
        assert topic.bytes <= 450
    assert held - 1 <= topic.count <= held + 1
    expect_unharmed_by_removal(driver, topic.count)


def test_g03_a_damaged_block_that_expires_stops_neither_ticks_nor_lists() -> None:
    driver = damaged_oldest_block(ttl_ms=1000)
    driver.clock.advance(950)  # some of its records have expired, the newest has not
    driver.tick()
    items, _ = driver.list()
    assert [item["topic"] for item in items] == ["other", "t"]
    assert driver.state("t").ok
    assert driver.append("t", [{"data": "new"}]).ok
    driver.clock.advance(500)
    driver.tick()
    assert [record["data"] for record in driver.read("t", 10)["records"]] == ["new"]
    expect_unharmed_by_removal(driver, 1)


def test_g03_a_delete_in_the_middle_of_a_damaged_block() -> None:
    driver = damaged_oldest_block()
    answer = driver.delete_records("t", before_seq=4)
    assert (answer.status, answer.json["deleted"], answer.json["earliest_seq"]) == (200, 3, 4)
    expect_unharmed_by_removal(driver, 7)
    assert driver.delete_records("t", before_seq=11).json["deleted"] == 7
    assert (topics_of(driver)["t"].bytes, topics_of(driver)["t"].runs) == (0, [])


def test_g03_a_delete_replayed_over_a_block_that_rotted_since_brings_nothing_back() -> None:
    driver = sealed_shard()
    assert driver.delete_records("a", match="order-1").json["deleted"] == 5
    assert driver.delete_records("big", match="t3").json["deleted"] > 400
    held = [record["$seq"] for record in driver.read_all("big")]
    driver.disk.kill_process()
    flip_in_segment(driver.disk, segment_path(1), region(driver, "columns").start + 3)
    driver.reopen()
    assert driver.shard.report.damage, "the search could not be repeated, so writes wait for the operator"
    expect_refused(driver.read_answer("a"))
    assert [record["$seq"] for record in driver.read_all("big")] == held
    assert [record["data"] for record in driver.read("a", 5)["records"]] == ["second segment", "in the log"]


def test_g03_a_file_that_cannot_be_read_is_a_named_error_too() -> None:
    driver = sealed_shard()
    driver.disk.fail_on("read", path_contains=segment_path(1), times=None)
    expect_refused(driver.read_answer("a"))
    assert [record["data"] for record in driver.read("a", 5)["records"]] == ["second segment", "in the log"]
    driver.disk.clear_faults()
    assert len(driver.read("a")["records"]) == 7, "and it heals with the disk"


def test_g03_a_log_that_cannot_be_read_is_a_named_error_for_that_read() -> None:
    driver = sealed_shard()
    driver.disk.fail_on("read", path_contains="/wal/", times=None)
    expect_refused(driver.read_answer("a", 6, include_tags=True), "corrupt_frame")
    driver.disk.clear_faults()
    assert driver.read("a", 6)["records"]


# --- G4, G5: wrong files ----------------------------------------------------------------------------------


def truncated(disk: FakeDisk, path: str) -> None:
    disk.resize(path, len(disk.read_file(path)) * 2 // 3)


def without_trailer(disk: FakeDisk, path: str) -> None:
    disk.resize(path, len(disk.read_file(path)) - TRAILER_BYTES)


def replaced(content: Callable[[FakeDisk], bytes]) -> Callable[[FakeDisk, str], None]:
    def put(disk: FakeDisk, path: str) -> None:
        new = content(disk)
        disk.resize(path, 0)
        disk.overwrite(path, 0, new)

    return put


def of_another_shard(disk: FakeDisk) -> bytes:
    """The same blocks, sealed by shard 1: intact in itself."""
    content = disk.read_file(segment_path(1))
    return encode_segment_header(FileHeader(1, 1, 5)) + content[64:]


WRONG_FILES: dict[str, Callable[[FakeDisk, str], None]] = {
    "truncated": truncated,
    "without_trailer": without_trailer,
    "one_byte_short": lambda disk, path: disk.resize(path, len(disk.read_file(path)) - 1),
    "longer": lambda disk, path: disk.overwrite(path, len(disk.read_file(path)), b"x"),
    "empty": lambda disk, path: disk.resize(path, 0),
    "only_a_header": lambda disk, path: disk.resize(path, 64),
    "zeros": lambda disk, path: disk.overwrite(path, 0, bytes(len(disk.read_file(path)))),
    "foreign": replaced(lambda disk: b"GIF89a" + bytes(5000)),
    "a_log_file": replaced(lambda disk: disk.read_file("/data/shard-0000/wal/0000000001.wal")[:6000]),
    "renamed_from_another_segment": replaced(lambda disk: disk.read_file(segment_path(2))),
    "of_another_shard": replaced(of_another_shard),
    "missing": lambda disk, path: disk.remove(path),
}


@pytest.mark.parametrize("kind", WRONG_FILES)
def test_g04_a_truncated_empty_foreign_or_renamed_file_is_refused(kind: str) -> None:
    driver = sealed_shard()
    assert segment_is_intact(driver.disk, segment_path(1))
    driver.disk.kill_process()
    path = segment_path(1)
    entry = driver.engine.state.segments[1]
    WRONG_FILES[kind](driver.disk, path)
    if kind == "missing":
        assert not driver.disk.exists(path)
    else:
        assert not segment_is_intact(driver.disk, path, entry.digest)
    driver.reopen()
    for topic in ("a", "big", "c"):
        expect_refused(driver.read_answer(topic))
        assert [
            record["data"] for record in driver.read(topic, 3000 if topic == "big" else 5)["records"]
        ] == [
            "second segment",
            "in the log",
        ]
    assert driver.append("a", [{"data": "writes go on"}]).ok
    driver.kill()
    expect_refused(driver.read_answer("a"))
    assert driver.disk.exists(path) or kind == "missing", "nothing was tidied away"


@pytest.mark.parametrize(
    ("terms_at", "terms_len", "index_len"),
    [
        (10**9, None, None),
        (0, None, None),
        (None, 2**31, None),
        (None, None, 2**31),
        (None, 0, None),
        (None, None, 0),
    ],
)
def test_g05_a_footer_pointing_outside_is_refused(
    terms_at: int | None, terms_len: int | None, index_len: int | None
) -> None:
    driver = sealed_shard()
    path = segment_path(1)
    parts = segment_parts(driver.disk, path)
    trailer = parts.trailer
    terms_len = trailer.terms_len if terms_len is None else terms_len
    index_len = trailer.index_len if index_len is None else index_len

    class Sized(bytes):
        """Bytes that claim another length, to make a trailer that lies with a right checksum."""

        size: int

        def __len__(self) -> int:
            return self.size

    terms, index = Sized(), Sized()
    terms.size, index.size = terms_len, index_len
    lying = encode_trailer(trailer.terms_at if terms_at is None else terms_at, terms, index, trailer.blocks)
    assert segment_is_intact(driver.disk, path)
    driver.disk.overwrite(path, parts.size - TRAILER_BYTES, lying)
    assert not segment_is_intact(driver.disk, path)
    for topic in ("a", "big", "c"):
        expect_refused(driver.read_answer(topic))
    assert [record["data"] for record in driver.read("a", 5)["records"]] == ["second segment", "in the log"]


# --- G6, G7: races ----------------------------------------------------------------------------------------


def test_g06_sealing_the_same_range_twice_leaves_one_copy() -> None:
    driver = shard_with()
    before = picture(driver)
    first, second = driver.begin_seal(), driver.begin_seal()
    assert first is not None and second is not None
    assert driver.finish_job(first) and driver.finish_job(second)
    assert picture(driver) == before
    expect_one_place(driver)
    assert driver.engine.state.segments[2].runs == 0
    driver.kill()
    assert picture(driver) == before
    for _ in range(3):
        assert driver.snapshot()
    assert driver.disk.list_dir(SEGMENTS_DIR) == ["0000000001.seg"], "the second copy goes"
    driver.kill()
    assert picture(driver) == before
    expect_healthy(driver)


def test_g06_a_seal_that_is_replayed_over_a_snapshot_that_holds_it_changes_nothing() -> None:
    driver = shard_with()
    driver.begin_snapshot()
    while driver.step_snapshot(1):
        driver.append("a", [{"data": "between"}])
    job = driver.begin_seal() or driver.end_snapshot()
    driver.finish_job(job)
    driver.seal()
    driver.sync()
    before = picture(driver)
    for _ in range(3):
        driver.kill()
        assert picture(driver) == before
        expect_one_place(driver)


RACES: dict[str, Callable[[ShardDriver], Any]] = {
    "append": lambda driver: driver.append("a", [RICH, RICH]),
    "delete_by_tag": lambda driver: driver.delete_records("a", match="t2"),
    "delete_before": lambda driver: driver.delete_records("a", before_seq=5),
    "delete_everything": lambda driver: driver.delete_records("a", before_seq=100),
    "delete_all_and_append": lambda driver: (
        driver.delete_records("a", before_seq=100),
        driver.append("a", [RICH]),
    ),
    "evict": lambda driver: driver.put("a", durable=True, cap_records=2),
    "delete_topic": lambda driver: driver.delete_topic("a"),
    "recreate_topic": lambda driver: (
        driver.delete_topic("a"),
        driver.append("a", [{"data": "anew"}], config={"durable": True}),
    ),
    "expire": lambda driver: (
        driver.put("a", durable=True, ttl_ms=10),
        driver.clock.advance(1000),
        driver.tick(),
        driver.append("a", [RICH]),
    ),
}


@pytest.mark.parametrize("race", RACES)
def test_g07_a_change_racing_a_seal_is_kept(race: str) -> None:
    plain = shard_with()
    RACES[race](plain)
    expected = picture(plain)

    driver = shard_with()
    job = driver.begin_seal()
    assert job is not None
    RACES[race](driver)
    job.run()
    driver.shard.maintenance.finish(job)
    assert picture(driver) == expected
    expect_one_place(driver)
    driver.sync()
    driver.kill()
    assert picture(driver) == expected
    for _ in range(2):
        assert driver.snapshot()
    driver.kill()
    assert picture(driver) == expected
    expect_healthy(driver)


def test_g07_crash_at_each_step_of_a_seal_that_is_written_to_meanwhile() -> None:
    acked: list[str] = []

    def act(driver: ShardDriver) -> None:
        acked.clear()
        job = driver.begin_seal()
        assert job is not None
        driver.append("a", [{"data": "during"}])
        acked.append("during")
        job.run()
        driver.append("a", [{"data": "before it counts"}])
        acked.append("before it counts")
        driver.shard.maintenance.finish(job)
        driver.append("a", [{"data": "after"}])
        acked.append("after")
        driver.snapshot()

    more = ["during", "before it counts", "after"]
    base = data_of(shard_with(), "b")
    before = data_of(shard_with(), "a")
    for crashed in crash_points(shard_with, act):
        kept = list(acked)
        for driver in crashed.outcomes():
            held = data_of(driver, "a")
            assert held[: len(before) + len(kept)] == before + kept
            assert held[len(before) :] == more[: len(held) - len(before)]
            expect_prefix(driver, "b", base)
            expect_one_place(driver)
            expect_healthy(driver)


# --- G8 ---------------------------------------------------------------------------------------------------


def test_g08_readers_of_a_log_file_that_is_trimmed_keep_their_descriptor() -> None:
    driver = shard_with(30)
    frame = appends(driver.disk)[0]
    file = driver.engine.wal.files[frame.file_no]
    wanted = file.pread(len(frame.raw), frame.offset)
    driver.seal()
    for _ in range(2):
        driver.append("a", [{"data": "more"}])
        driver.snapshot()
    assert not driver.disk.exists(frame.path)
    assert file in driver.shard.maintenance.counters.retired_files, "handed over, to be closed by its user"
    assert file.pread(len(frame.raw), frame.offset) == wanted == frame.raw


def test_g08_a_piece_that_was_loaded_outlives_its_segment() -> None:
    driver = shard_with()
    driver.seal()
    topic = topics_of(driver)["b"]
    (piece,) = driver.shard.store.sealed_pieces(1, topic.id, 1, topic.head)
    wanted = bytes(piece.json)
    (untouched,) = driver.shard.store.sealed_pieces(1, topic.id, 1, topic.head)
    for name in ("a", "b"):
        driver.delete_records(name, before_seq=100)
    for _ in range(3):
        driver.snapshot()
    assert driver.disk.list_dir(SEGMENTS_DIR) == []
    assert bytes(piece.json) == wanted
    # What is still to be loaded either comes whole from memory or is refused by name: never as other bytes.
    try:
        assert bytes(untouched.json) == wanted
    except CorruptSegment as err:
        assert err.path == segment_path(1)


def test_g08_a_read_in_the_turn_of_a_drop_sees_the_records_or_their_absence() -> None:
    driver = shard_with(wal_file_bytes=ROOMY)
    driver.seal()
    driver.snapshot()
    delete = driver.submit(7, "b", {"before_seq": 100})
    read = driver.submit(2, "b", {})
    driver.commit()
    driver.settle()
    assert delete.answer is not None and read.answer is not None
    assert [record["data"] for record in read.answer.json["records"]] in ([], list(range(6)))
