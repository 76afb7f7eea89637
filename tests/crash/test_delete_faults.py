"""Deletes, floors and idempotency keys under every fault of the catalogue, D1 to D7."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from shared.control_frames import Control, RecordsDeleted, TopicCreated, Watermark, encode_control
from shared.frame import Kind
from shared.wal_format import build_append_body
from tests.support.fault_kit import (
    COLD_SHARD_DIR,
    KEEPS,
    SEGMENTS_DIR,
    all_frames,
    cold_path,
    crash_points,
    data_of,
    expect_healthy,
    expect_stable,
    flip_in_frame,
    picture,
    reopened,
    segment_path,
    topics_of,
    wal_numbers,
)
from tests.support.shard_driver import ShardDriver


def in_three_tiers(durability: str = "fsync", topics: tuple[str, ...] = ("t", "u")) -> ShardDriver:
    """Each topic has records with the tags cold-…, sealed-… and hot-…, in a cold segment, a hot one and the log."""
    driver = ShardDriver(wal_file_bytes=4096)
    for name in topics:
        driver.put(name, durability=durability)
    for tier in ("cold", "sealed", "hot"):
        for name in topics:
            for number in range(3):
                record = {"data": f"{tier} {number}", "tag": f"{tier}-{number % 2}", "key": f"k{number}"}
                driver.append(name, [{**record, "node": f"{tier}-node"}, {"data": "plain"}])
        if tier != "hot":
            assert driver.seal()
    driver.relocate()
    driver.sync()
    assert driver.disk.exists(cold_path(1)) and driver.disk.exists(segment_path(2))
    topic = topics_of(driver)[topics[0]]
    assert [run.segment for run in topic.runs] == [1, 2] and len(topic.hot) == 3
    return driver


def trim(driver: ShardDriver) -> None:
    """The log file with everything that happened so far goes."""
    newest = max(wal_numbers(driver.disk))
    driver.seal()
    for _ in range(3):
        while max(wal_numbers(driver.disk)) <= newest:
            driver.append("filler", [{"data": "x" * 500}])
        driver.seal()
        assert driver.snapshot()
    assert min(wal_numbers(driver.disk)) > newest


DELETES: dict[str, dict[str, Any]] = {
    "cold_by_tag": {"match": "cold-0"},
    "sealed_by_tag": {"match": "sealed-0"},
    "hot_by_tag": {"match": "hot-0"},
    "all_tiers_by_key": {"match": ["key", "Eq", "k1"]},
    "by_glob": {"match": ["tag", "Glob", "sealed-*"]},
    "glob_over_all": {"match": ["tag", "Glob", "*"]},
    "by_node": {"match": ["node", "Eq", "cold-node"]},
    "before_in_cold": {"before_seq": 4},
    "before_in_sealed": {"before_seq": 10},
    "before_in_hot": {"before_seq": 15},
    "everything": {"before_seq": 1000},
    "by_key_before": {"match": ["key", "Glob", "k*"], "before_seq": 9},
}


def survivors(before: list[dict[str, Any]], wanted: dict[str, Any]) -> list[dict[str, Any]]:
    """What must be left, worked out from the records themselves."""
    match = wanted.get("match")
    if isinstance(match, str):
        match = ["tag", "Eq", match]

    def removed(record: dict[str, Any]) -> bool:
        if "before_seq" in wanted and record["$seq"] >= wanted["before_seq"]:
            return False
        if match is None:
            return True
        field, op, value = match
        held = record.get(f"${field}")
        return held is not None and (held == value if op == "Eq" else held.startswith(value[:-1]))

    return [record for record in before if not removed(record)]


@pytest.mark.parametrize("name", DELETES)
def test_d01_a_delete_survives_power_loss_and_a_trimmed_log_in_every_tier(name: str) -> None:
    driver = in_three_tiers()
    before = picture(driver)
    wanted = survivors(before["t"]["records"], DELETES[name])
    assert len(wanted) < len(before["t"]["records"])
    answer = driver.delete_records("t", **DELETES[name])
    assert answer.json["deleted"] == len(before["t"]["records"]) - len(wanted)
    assert picture(driver)["t"]["records"] == wanted

    for keep, seed in KEEPS:
        twin = reopened(driver)
        twin.disk = driver.disk.clone().lose_power(seed, keep)
        twin.reopen()
        assert picture(twin)["t"]["records"] == wanted
        assert picture(twin)["u"] == before["u"], "the other topic in the same segments is untouched"

    trim(driver)
    assert picture(driver)["t"]["records"] == wanted
    driver.lose_power(keep="none")
    assert picture(driver)["t"]["records"] == wanted
    assert picture(driver)["u"]["records"] == before["u"]["records"]
    assert picture(driver)["t"]["floor"] == 1, "asked for, so nobody is told of a loss"
    assert driver.read("t")["tombstone"] is None
    expect_healthy(driver)


@pytest.mark.parametrize("durability", ["memory", "disk"])
def test_d01_a_delete_of_an_unsynced_class_survives_a_kill_and_is_whole_after_a_power_cut(
    durability: str,
) -> None:
    driver = in_three_tiers(durability)
    before = picture(driver)["t"]["records"]
    wanted = survivors(before, DELETES["all_tiers_by_key"])
    driver.delete_records("t", **DELETES["all_tiers_by_key"])
    twin = reopened(driver)
    twin.disk = driver.disk.clone().kill_process()
    twin.reopen()
    assert picture(twin)["t"]["records"] == wanted
    for keep, seed in KEEPS:
        twin = reopened(driver)
        twin.disk = driver.disk.clone().lose_power(seed, keep)
        twin.reopen()
        assert picture(twin)["t"]["records"] in (before, wanted)


def test_d01_records_deleted_while_they_are_sealed_or_moved_stay_deleted() -> None:
    driver = in_three_tiers()
    wanted = survivors(picture(driver)["t"]["records"], DELETES["all_tiers_by_key"])
    seal = driver.begin_seal()
    driver.delete_records("t", **DELETES["all_tiers_by_key"])
    assert driver.finish_job(seal)
    move = driver.begin_relocation()
    assert driver.finish_job(move)
    driver.sync()
    for _ in range(2):
        assert picture(driver)["t"]["records"] == wanted
        trim(driver)
        driver.lose_power(keep="none")


# --- D2 … D4 ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["all_tiers_by_key", "glob_over_all", "before_in_sealed", "everything"])
def test_d02_crash_midway_through_a_delete_leaves_all_of_it_or_nothing(name: str) -> None:
    before = picture(in_three_tiers())
    wanted = survivors(before["t"]["records"], DELETES[name])
    acked: list[bool] = []

    def act(driver: ShardDriver) -> None:
        acked.clear()
        acked.append(driver.delete_records("t", **DELETES[name]).ok)
        driver.snapshot()

    for crashed in crash_points(in_three_tiers, act):
        was_acked = bool(acked)
        for driver in crashed.outcomes():
            after = picture(driver)
            assert after["t"]["records"] in ([wanted] if was_acked else [before["t"]["records"], wanted])
            assert after["u"] == before["u"]
            expect_stable(driver)


def test_d02_two_deletes_are_replayed_in_their_order_with_the_writes_between_them() -> None:
    driver = in_three_tiers()
    driver.delete_records("t", match="hot-0")
    driver.append("t", [{"data": "again", "tag": "hot-0"}])
    driver.delete_records("t", match="cold-0")
    driver.append("t", [{"data": "and again", "tag": "cold-0"}])
    before = picture(driver)
    assert [record["data"] for record in before["t"]["records"]][-2:] == ["again", "and again"]
    driver.kill()
    assert picture(driver) == before


def test_d03_a_delete_that_clears_a_whole_segment_frees_its_file() -> None:
    driver = in_three_tiers()
    driver.delete_records("t", before_seq=13)
    assert driver.disk.exists(cold_path(1)), "another topic lives there"
    driver.delete_records("u", match=["key", "Glob", "*"], before_seq=13)
    driver.delete_records("u", before_seq=13)
    assert all(not topic.runs for topic in topics_of(driver).values())
    before = picture(driver)
    for _ in range(4):
        assert driver.snapshot()
    assert driver.disk.files(f"{COLD_SHARD_DIR}/data") == []
    assert driver.disk.list_dir(SEGMENTS_DIR) == []
    assert driver.engine.state.segments == {}
    assert picture(driver) == before
    driver.lose_power(keep="none")
    assert picture(driver) == before
    expect_healthy(driver)


def test_d03_crash_at_each_step_of_dropping_a_dead_segment() -> None:
    def cleared() -> ShardDriver:
        driver = in_three_tiers(topics=("t",))
        driver.delete_records("t", before_seq=13)
        driver.snapshot()
        return driver

    before = picture(cleared())
    for crashed in crash_points(cleared, lambda driver: (driver.snapshot(), driver.snapshot())):
        for driver in crashed.outcomes(kill_too=False):
            assert picture(driver) == before, f"step {crashed.step}"
            for _ in range(3):
                assert driver.snapshot()
            assert driver.disk.list_dir(SEGMENTS_DIR) == []
            expect_healthy(driver)


def test_d03_a_segment_goes_only_when_neither_kept_snapshot_needs_it() -> None:
    driver = in_three_tiers(topics=("t",))
    assert driver.snapshot()
    driver.delete_records("t", before_seq=13)
    assert driver.snapshot()
    assert driver.disk.exists(cold_path(1)) and driver.disk.exists(segment_path(2))
    driver.kill()
    assert driver.disk.exists(cold_path(1)) and driver.disk.exists(segment_path(2))


def test_d03_hot_batches_that_are_all_dead_do_not_hold_the_log_back() -> None:
    driver = ShardDriver(wal_file_bytes=4096)
    driver.put("t", durable=True)
    driver.append("t", [{"data": "kept"}])
    driver.seal()
    for number in range(20):
        driver.append("t", [{"data": number, "tag": "gone"}])
    driver.delete_records("t", match="gone")
    newest = max(wal_numbers(driver.disk))
    while max(wal_numbers(driver.disk)) <= newest + 1:
        driver.append("other", [{"data": "x" * 900}])
    driver.seal()
    for _ in range(2):
        assert driver.snapshot()
    assert min(wal_numbers(driver.disk)) > newest
    assert data_of(driver, "t") == ["kept"]
    driver.kill()
    assert data_of(driver, "t") == ["kept"]
    assert driver.append("t", [{"data": "next"}]).json["first_seq"] == 22


class Log:
    """Frames written as a log may hold them, whatever the engine would have written."""

    def __init__(self, driver: ShardDriver) -> None:
        self._driver = driver
        self._wal = driver.engine.wal

    def control(self, topic_id: int, fact: Control, ts: int = 1) -> None:
        self._wal.stage(fact.kind, 0, topic_id, ts, encode_control(fact))

    def append(self, topic_id: int, seq: int, value: bytes) -> None:
        json = b'{"$seq":%d,"$ts":1,"data":%b},' % (seq, value)
        self._wal.stage(Kind.APPEND, 0, topic_id, 1, build_append_body(seq, 1, json, 0))

    def replay(self) -> None:
        self._wal.write(1)
        job = self._wal.begin_sync()
        job.run()
        self._driver.kill()


def test_d04_a_delete_replayed_before_its_topic_exists_removes_nothing_later() -> None:
    driver = ShardDriver(wal_file_bytes=1 << 16)
    log = Log(driver)
    log.control(9, RecordsDeleted(100, 50, None))
    log.control(9, RecordsDeleted(100, None, ["tag", "Eq", "x"]))
    log.control(9, TopicCreated("late", 5, {"durability": "fsync"}, 0))
    for seq in (1, 2, 3):
        log.append(9, seq, b"%d" % seq)
    log.replay()
    assert data_of(driver, "late") == [1, 2, 3]
    expect_healthy(driver)


@pytest.mark.parametrize(
    "fact", [RecordsDeleted(100, 50, None), RecordsDeleted(100, None, ["node", "Glob", "*"])]
)
def test_d04_a_delete_is_bounded_by_what_existed_when_it_was_logged(fact: RecordsDeleted) -> None:
    driver = ShardDriver(wal_file_bytes=1 << 16)
    log = Log(driver)
    log.control(9, TopicCreated("t", 5, {"durability": "fsync"}, 0))
    log.append(9, 1, b"1")
    log.control(9, fact)
    log.append(9, 2, b"2")
    log.append(9, 3, b"3")
    log.replay()
    assert data_of(driver, "t") == ([2, 3] if fact.match is None else [1, 2, 3])
    expect_healthy(driver)


def test_d04_a_delete_whose_target_is_in_the_snapshot_already_gone_changes_nothing() -> None:
    driver = in_three_tiers()
    driver.begin_snapshot()
    driver.delete_records("t", match="hot-0")
    driver.append("t", [{"data": "new", "tag": "hot-0"}])
    while driver.step_snapshot(1):
        pass
    assert driver.finish_job(driver.end_snapshot())
    driver.append("t", [{"data": "newer", "tag": "hot-0"}])
    before = picture(driver)
    driver.kill()
    assert picture(driver) == before


# --- D5: floors -------------------------------------------------------------------------------------------


def test_d05_floors_replayed_out_of_order_never_move_back() -> None:
    driver = ShardDriver(wal_file_bytes=1 << 16)
    log = Log(driver)
    log.control(9, TopicCreated("t", 5, {"durability": "fsync"}, 0))
    for seq in range(1, 11):
        log.append(9, seq, b"%d" % seq)
    for floor in (4, 8, 2, 6, 8):
        log.control(9, Watermark(floor=floor, reason="ttl"))
    log.replay()
    topic = topics_of(driver)["t"]
    assert (topic.floor, topic.live_from, topic.count) == (8, 8, 3)
    assert data_of(driver, "t") == [8, 9, 10]
    answer = driver.read("t")
    assert (answer["tombstone"]["gap_from"], answer["tombstone"]["gap_to"]) == (1, 7)
    expect_healthy(driver)


def test_d05_a_floor_beyond_the_head_does_not_swallow_what_comes_later() -> None:
    driver = ShardDriver(wal_file_bytes=1 << 16)
    log = Log(driver)
    log.control(9, TopicCreated("t", 5, {"durability": "fsync"}, 0))
    log.append(9, 1, b"1")
    log.control(9, Watermark(floor=1000, reason="cap"))
    log.append(9, 2, b"2")
    log.replay()
    assert data_of(driver, "t") == [2]


ENDS: dict[str, Callable[[ShardDriver], object]] = {
    "kill": lambda driver: driver.kill(),
    "power": lambda driver: driver.lose_power(keep="none"),
    "snapshot": lambda driver: (driver.snapshot(), driver.kill()),
    "clean": lambda driver: (driver.close(), driver.disk.kill_process(), driver.reopen()),
    "sealed": lambda driver: (driver.seal(), driver.sync(), driver.kill()),
}


@pytest.mark.parametrize("end", ENDS)
def test_d05_what_a_cap_evicted_does_not_return_when_the_cap_is_loosened(end: str) -> None:
    driver = ShardDriver(wal_file_bytes=4096)
    driver.put("t", durable=True, cap_records=3)
    for number in range(10):
        driver.append("t", [{"data": number}])
    driver.put("t", durable=True, cap_records=100)
    assert data_of(driver, "t") == [7, 8, 9]
    driver.sync()
    ENDS[end](driver)
    assert data_of(driver, "t") == [7, 8, 9]
    tombstone = driver.read("t")["tombstone"]
    assert (tombstone["gap_from"], tombstone["gap_to"], tombstone["reason"]) == (1, 7, "cap")
    driver.put("t", durable=True, cap_records=0)
    ENDS[end](driver)
    assert data_of(driver, "t") == [7, 8, 9]
    expect_healthy(driver)


@pytest.mark.parametrize("end", ENDS)
def test_d05_what_has_expired_does_not_return_when_the_clock_is_set_back(end: str) -> None:
    driver = ShardDriver(wal_file_bytes=4096)
    driver.put("t", durable=True, ttl_ms=1000)
    for number in range(4):
        driver.append("t", [{"data": number}])
        driver.clock.advance(400)
    seen = driver.read("t")
    assert [record["data"] for record in seen["records"]] == [2, 3]
    driver.sync()
    driver.clock.advance(-1_000_000)
    ENDS[end](driver)
    answer = driver.read("t")
    assert [record["data"] for record in answer["records"]] == [2, 3]
    assert answer["tombstone"]["reason"] == "ttl"
    driver.put("t", durable=True, ttl_ms=0)
    assert data_of(driver, "t") == [2, 3], "a longer TTL brings nothing back either"
    written = driver.append("t", [{"data": "now"}])
    assert written.ok
    times = [record["$ts"] for record in driver.read("t")["records"]]
    assert times == sorted(times), "time never runs backwards in a topic"
    expect_healthy(driver)


def test_d05_an_expired_record_that_nobody_looked_at_stays_gone_once_it_was_reported() -> None:
    driver = ShardDriver(wal_file_bytes=4096)
    driver.put("t", durable=True, ttl_ms=1000)
    driver.append("t", [{"data": "old"}])
    driver.clock.advance(5000)
    assert driver.state("t").json["count"] == 0
    driver.sync()
    driver.clock.advance(-5000)
    driver.lose_power(keep="none")
    assert driver.state("t").json["count"] == 0
    assert driver.append("t", [{"data": "new"}]).json["first_seq"] == 2


def test_d05_two_reasons_for_one_floor_are_mixed_and_stay_so() -> None:
    driver = ShardDriver(wal_file_bytes=4096)
    driver.put("t", durable=True, ttl_ms=1000, cap_records=3)
    for number in range(5):
        driver.append("t", [{"data": number}])
    driver.clock.advance(5000)
    driver.append("t", [{"data": 5}])
    assert driver.read("t")["tombstone"]["reason"] == "mixed"
    driver.sync()
    driver.lose_power(keep="none")
    assert driver.read("t")["tombstone"]["reason"] == "mixed"


def test_d05_the_frame_of_a_floor_that_rots_is_damage() -> None:
    driver = ShardDriver(wal_file_bytes=1 << 16)
    driver.put("t", durable=True, ttl_ms=1000)
    driver.append("t", [{"data": 0}])
    driver.clock.advance(5000)
    driver.read("t")
    driver.sync()
    driver.append("t", [{"data": 1}])
    frame = next(frame for frame in all_frames(driver.disk) if frame.kind == Kind.WATERMARK)
    flip_in_frame(driver.disk, frame, 45)
    driver.lose_power(keep="all")
    assert driver.shard.report.damage


# --- D6, D7: idempotency keys -----------------------------------------------------------------------------

RECORDS = [{"data": 1, "tag": "x"}, {"data": 2}]


@pytest.mark.parametrize("durability", ["disk", "fsync"])
@pytest.mark.parametrize("end", ENDS)
def test_d06_a_retry_after_a_crash_finds_the_first_copy(end: str, durability: str) -> None:
    driver = ShardDriver(wal_file_bytes=4096)
    driver.put("t", durability=durability)
    driver.append("t", [{"data": 0}])
    first = driver.append("t", RECORDS, idempotency_key="k")
    driver.append("t", [{"data": 3}])
    driver.sync()
    ENDS[end](driver)
    again = driver.append("t", RECORDS, idempotency_key="k")
    assert again.status == 200
    assert again.json["deduped"] is True
    assert (again.json["first_seq"], again.json["seqs"]) == (2, first.json["seqs"])
    assert data_of(driver, "t") == [0, 1, 2, 3]
    other = driver.append("t", RECORDS, idempotency_key="k2")
    assert other.json["deduped"] is False
    expect_healthy(driver)


def test_d06_crash_at_each_step_between_write_and_retry_leaves_one_copy() -> None:
    def ready() -> ShardDriver:
        driver = ShardDriver(wal_file_bytes=4096)
        driver.put("t", durable=True)
        driver.append("t", [{"data": 0}])
        return driver

    acked: list[list[int]] = []

    def act(driver: ShardDriver) -> None:
        acked.clear()
        acked.append(driver.append("t", RECORDS, idempotency_key="k").json["seqs"])
        driver.snapshot()

    for crashed in crash_points(ready, act):
        seqs = list(acked)
        for driver in crashed.outcomes():
            retried = driver.append("t", RECORDS, idempotency_key="k")
            assert retried.ok
            if seqs:
                assert retried.json["deduped"] and retried.json["seqs"] == seqs[0]
            assert data_of(driver, "t") == [0, 1, 2]
            expect_healthy(driver)


def test_d06_a_key_is_forgotten_with_its_window_also_after_a_restart() -> None:
    driver = ShardDriver(wal_file_bytes=4096)
    driver.put("t", durable=True, idempotency_window_ms=1000)
    driver.append("t", RECORDS, idempotency_key="k")
    driver.clock.advance(1000)
    driver.kill()
    assert driver.append("t", RECORDS, idempotency_key="k").json["deduped"] is True
    driver.clock.advance(1)
    driver.snapshot()
    driver.kill()
    assert driver.append("t", RECORDS, idempotency_key="k").json["deduped"] is False
    assert data_of(driver, "t") == [1, 2, 1, 2]


def test_d06_a_key_belongs_to_its_topic_and_epoch() -> None:
    driver = ShardDriver(wal_file_bytes=4096)
    for name in ("t", "u"):
        driver.append(name, RECORDS, idempotency_key="k", config={"durable": True})
    driver.delete_topic("t")
    again = driver.append("t", RECORDS, idempotency_key="k", config={"durable": True})
    assert (again.status, again.json["deduped"]) == (201, False)
    driver.kill()
    assert driver.append("t", RECORDS, idempotency_key="k").json["deduped"] is True
    assert data_of(driver, "t") == [1, 2]


def test_d06_a_retry_whose_records_were_deleted_meanwhile_is_still_a_repeat() -> None:
    driver = in_three_tiers()
    first = driver.append("t", RECORDS, idempotency_key="k")
    driver.delete_records("t", before_seq=10**6)
    driver.seal()
    driver.snapshot()
    driver.kill()
    again = driver.append("t", RECORDS, idempotency_key="k")
    assert (again.json["deduped"], again.json["seqs"]) == (True, first.json["seqs"])
    assert data_of(driver, "t") == []


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
@pytest.mark.parametrize("new_topic", [True, False])
def test_d07_two_retries_at_once_get_one_set_of_seqs(durability: str, new_topic: bool) -> None:
    driver = ShardDriver(wal_file_bytes=1 << 16)
    if not new_topic:
        driver.put("t", durability=durability)
    config = {"durability": durability}
    calls = [driver.start_append("t", RECORDS, idempotency_key="k", config=config) for _ in range(3)]
    driver.commit()
    calls.append(driver.start_append("t", RECORDS, idempotency_key="k", config=config))
    driver.settle()
    calls.append(driver.start_append("t", RECORDS, idempotency_key="k", config=config))
    driver.settle()
    answers = [call.answer.json for call in calls if call.answer is not None]
    assert len(answers) == 5
    assert [answer["deduped"] for answer in answers] == [False, True, True, True, True]
    assert {tuple(answer["seqs"]) for answer in answers} == {(1, 2)}
    assert data_of(driver, "t") == [1, 2]


def test_d07_if_the_first_fails_its_followers_fail_with_it_and_the_key_is_free() -> None:
    driver = ShardDriver(wal_file_bytes=1 << 16)
    driver.put("t", durable=True)
    driver.disk.fail_on("write", path_contains="/wal/")
    calls = [driver.start_append("t", RECORDS, idempotency_key="k") for _ in range(3)]
    driver.commit()
    assert [call.answer and call.answer.status for call in calls] == [503, 503, 503]
    again = driver.append("t", RECORDS, idempotency_key="k")
    assert (again.json["deduped"], again.json["seqs"]) == (False, [1, 2])
    driver.kill()
    assert data_of(driver, "t") == [1, 2]


def test_d07_a_retry_while_the_first_waits_for_its_sync_is_answered_with_it() -> None:
    driver = ShardDriver(wal_file_bytes=1 << 16)
    driver.put("t", durable=True)
    first = driver.start_append("t", RECORDS, idempotency_key="k")
    driver.commit()
    job = driver.engine.begin_sync()
    second = driver.start_append("t", RECORDS, idempotency_key="k")
    driver.commit()
    assert first.answer is None and second.answer is None, "a repeat is not told of success before it is one"
    job.run()
    driver.engine.finish_sync(job)
    assert first.answer is not None and second.answer is not None
    assert (first.answer.json["deduped"], second.answer.json["deduped"]) == (False, True)
    driver.lose_power(keep="none")
    assert data_of(driver, "t") == [1, 2]
