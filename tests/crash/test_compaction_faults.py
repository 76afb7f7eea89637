"""Compaction and adoption: C4 to C8 on the fake disk, and the plain run."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable

import pytest

from shared.compaction import PlanOptions
from shared.errors import CorruptSegment
from tests.support.compaction_kit import (
    RECEIPTS,
    STAGING,
    names,
    plan_and_stage,
    run_jobs,
    seqs,
    stage,
)
from tests.support.fault_kit import (
    cold_path,
    crash_points,
    expect_healthy,
    expect_stable,
    flip_in_segment,
    picture,
    segment_is_intact,
    topics_of,
)
from tests.support.shard_driver import ShardDriver

BIG = 1 << 20
LAST_VALUES = {"cleanup": "compact", "delete_retention_ms": 1000, "durable": True}


def shard() -> ShardDriver:
    """Three cold segments and a hot one: a plain topic with deletes, one that keeps last values, one that is gone."""
    driver = ShardDriver(wal_file_bytes=1 << 16)
    driver.put("plain", durable=True)
    driver.put("last", **LAST_VALUES)
    driver.put("gone", durable=True)
    for number in range(4):
        driver.append("plain", [{"data": f"{number}.{at}", "tag": f"t{at}"} for at in range(4)])
        driver.append("last", [{"data": f"{number}.{at}", "key": f"k{at}"} for at in range(3)])
        driver.append("last", [{"data": f"free {number}"}])
        driver.append("gone", [{"data": number}])
        driver.clock.advance(10)
        assert driver.seal()
    assert driver.relocate() == 3
    driver.append("plain", [{"data": "hot"}])
    driver.delete_records("plain", match=["tag", "Eq", "t1"])
    driver.delete_topic("gone")
    driver.settle()
    return driver


def staged_shard() -> ShardDriver:
    driver = shard()
    plan_and_stage(driver)
    return driver


# What is left of "last" once its cold part (seqs 1 to 12) is compacted: the last three keyed ones, all without a key.
LAST_LEFT = [4, 8, 9, 10, 11, 12, 13, 14, 15, 16]


def compacted_picture(before: dict) -> dict:
    """What readers must see afterwards: everything but the superseded records of the topic that keeps last values."""
    left = [record for record in before["last"]["records"] if record["$seq"] in LAST_LEFT]
    size = before["last"]["bytes"] - _bytes(before["last"]["records"]) + _bytes(left)
    changed = before["last"] | {"records": left, "count": len(left), "earliest": 4, "bytes": size}
    return before | {"last": changed}


def _bytes(records: list) -> int:
    plain = [
        {key: value for key, value in record.items() if key not in ("$tag", "$key")} for record in records
    ]
    return sum(len(json.dumps(record, separators=(",", ":"))) + 1 for record in plain)


def test_c00_a_compaction_drops_what_is_dead_and_readers_see_the_same() -> None:
    driver = shard()
    before = picture(driver)
    old_bytes = sum(len(driver.disk.read_file(cold_path(number))) for number in (1, 2, 3))
    staged = plan_and_stage(driver)
    assert picture(driver) == before, "staging changes nothing"
    run_jobs(driver)
    assert picture(driver) == compacted_picture(before)
    (new,) = staged.new
    assert names(driver, f"{STAGING}") == []
    assert [driver.disk.exists(cold_path(number)) for number in (1, 2, 3)] == [False] * 3
    assert segment_is_intact(driver.disk, cold_path(new.number), new.digest)
    assert new.size < old_bytes
    assert [run.segment for run in topics_of(driver)["plain"].runs] == [new.number, 4]
    expect_healthy(driver)
    driver.lose_power(keep="none")
    assert picture(driver)["last"] == compacted_picture(before)["last"]


def test_c00_a_second_compaction_finds_nothing_to_do() -> None:
    driver = staged_shard()
    run_jobs(driver)
    driver.snapshot()
    assert stage(driver, "second") is None


def test_c00_a_reader_that_was_behind_is_told_the_truth() -> None:
    """Removed on purpose: silent. Expired: a tombstone, before and after."""
    driver = staged_shard()
    run_jobs(driver)
    answer = driver.read("last")
    assert answer["tombstone"] is None
    assert [record["$seq"] for record in answer["records"]] == LAST_LEFT
    assert answer["next_from_seq"] == 16
    assert driver.read("plain")["tombstone"] is None


def test_c00_expired_records_go_and_their_tombstone_stays() -> None:
    driver = shard()
    driver.put("plain", durable=True, ttl_ms=25)
    driver.clock.advance(1)
    driver.tick()  # sweeps
    driver.settle()
    floor = topics_of(driver)["plain"].floor
    assert floor > 1
    told = driver.read("plain")["tombstone"]
    assert told["reason"] == "ttl"
    staged = plan_and_stage(driver)
    run_jobs(driver)
    assert driver.read("plain")["tombstone"] == told
    (removed,) = [each for each in staged.removed if each.topic == "plain"]
    assert removed.seqs[0] == (1, floor - 1) or removed.seqs[0][0] == 1
    assert expect_stable(driver)["plain"]["floor"] == floor


def test_c00_the_receipt_lists_what_went_and_comes_when_the_files_are_gone() -> None:
    driver = shard()
    staged = plan_and_stage(driver)
    seen: list[tuple[list[str], list[bool]]] = []
    maintenance = driver.shard.maintenance
    real = maintenance.finish

    def finish(job: object) -> None:
        real(job)  # type: ignore[arg-type]
        files = [driver.disk.exists(cold_path(number)) for number in (1, 2, 3)]
        seen.append((names(driver, RECEIPTS), files))

    maintenance.finish = finish  # type: ignore[method-assign, assignment]
    run_jobs(driver)
    assert names(driver, RECEIPTS) == ["job.json"]
    for found, files in seen:
        assert "job.json" not in found or not any(files), "a receipt while an old file was still there"
    receipt = json.loads(driver.disk.read_file(f"{RECEIPTS}/job.json"))
    assert [old["number"] for old in receipt["before"]] == [1, 2, 3]
    assert [new["digest"] for new in receipt["after"]] == [new.digest for new in staged.new]
    topics = {each["topic"]: each for each in receipt["topics"]}
    assert topics["plain"]["seqs"] == [[2, 2], [6, 6], [10, 10]] and topics["plain"]["superseded"] == []
    assert topics["gone"]["seqs"] == [[1, 3]]
    assert topics["last"]["seqs"] == topics["last"]["superseded"] == [[1, 3], [5, 7]]
    before = sum(old["records"] for old in receipt["before"])
    assert before == receipt["records_removed"] + sum(new["records"] for new in receipt["after"])


def test_c00_the_lag_and_the_retention_of_a_topic_are_kept() -> None:
    driver = ShardDriver(wal_file_bytes=1 << 16)
    driver.put("t", cleanup="compact", min_compaction_lag_ms=100, delete_retention_ms=1000, durable=True)
    for at in range(4):  # 0 and 1 are older than the lag when it counts
        driver.append("t", [{"data": at, "key": "k"}, {"data": None, "key": "dead"}])
        assert driver.seal()
        driver.clock.advance(40)
    driver.append("t", [{"data": "hot"}])
    driver.seal()
    driver.relocate()
    plan_and_stage(driver, "first")
    run_jobs(driver)
    assert seqs(driver, "t") == [3, 4, 5, 6, 7, 8, 9], "the last old value of each key, and everything young"
    driver.clock.advance(2000)
    plan_and_stage(driver, "second")
    run_jobs(driver)
    assert seqs(driver, "t") == [7, 9], "the deletion itself has been visible long enough"


def test_c00_a_null_stays_while_an_older_value_is_out_of_reach() -> None:
    """The older value is in a segment that cannot be moved: without the null it would come back."""
    driver = ShardDriver(wal_file_bytes=1 << 16)
    driver.put("t", cleanup="compact", delete_retention_ms=1, durable=True)
    driver.append("t", [{"data": "old", "key": "k"}])
    driver.seal()
    driver.append("t", [{"data": None, "key": "k"}, {"data": 1, "key": "x"}])
    driver.seal()
    driver.append("t", [{"data": 2, "key": "x"}])
    driver.seal()
    driver.shard.maintenance._immovable.add(1)
    driver.append("t", [{"data": "hot"}])
    driver.seal()
    assert driver.relocate() == 2
    driver.clock.advance(1000)
    driver.snapshot()
    staged = stage(driver)
    assert staged is not None and not any(each.superseded for each in staged.removed)
    run_jobs(driver)
    assert seqs(driver, "t") == [1, 2, 3, 4, 5], "the null is still there"
    assert names(driver, STAGING) == [], "and nothing had to be refused"


def test_c00_segments_that_hold_what_lies_between_are_not_jumped_over() -> None:
    """A segment that stays hot stands between two cold ones: they must not become one."""
    driver = shard()
    driver.append("plain", [{"data": "more"}])
    driver.seal()
    driver.shard.maintenance._immovable.add(4)
    driver.append("plain", [{"data": "yet more"}])
    driver.seal()
    driver.append("plain", [{"data": "newest"}])
    driver.seal()
    driver.relocate()
    before = picture(driver)["plain"]
    staged = plan_and_stage(driver)
    assert next(new.old for new in staged.new) == [1, 2, 3]
    run_jobs(driver)
    assert picture(driver)["plain"] == before
    expect_stable(driver)


def test_c04_a_job_that_is_killed_at_any_point_leaves_old_or_new() -> None:
    """Before, during and after staging; whatever is left is adopted whole, or is no more than garbage."""
    before = picture(shard())
    after = compacted_picture(before)
    visited = 0

    def prepare() -> ShardDriver:
        driver = shard()
        driver.snapshot()
        return driver

    for crashed in crash_points(prepare, stage):
        visited += 1
        for driver in crashed.outcomes():
            assert picture(driver) == before, f"step {crashed.step}"
            run_jobs(driver)
            assert picture(driver) in (before, after), f"step {crashed.step}"
            driver.snapshot()
            stage(driver, "again")
            run_jobs(driver)
            assert picture(driver) == after, f"step {crashed.step}"
    assert visited >= 5


def test_c04_a_worker_that_is_killed_at_any_point_of_the_adoption_serves_old_or_new() -> None:
    before = picture(shard())
    after = compacted_picture(before)
    visited, switched = 0, 0
    for crashed in crash_points(staged_shard, run_jobs):
        visited += 1
        for driver in crashed.outcomes():
            shown = picture(driver)
            assert shown in (before, after), f"step {crashed.step}"
            switched += shown == after
            run_jobs(driver)
            assert picture(driver) == after, f"step {crashed.step}"
            expect_manifest_is_what_is_served(driver)
            assert names(driver, STAGING) == []
            assert names(driver, RECEIPTS) == ["job.json"], f"step {crashed.step}"
            expect_healthy(driver)
    assert visited >= 30 and switched > 0


def expect_manifest_is_what_is_served(driver: ShardDriver) -> None:
    from shared.io.manifest_files import load_manifest
    from tests.support.fault_kit import COLD_SHARD_DIR

    manifest, _ = load_manifest(driver.disk, COLD_SHARD_DIR)
    assert manifest is not None
    held = {segment.number: segment.digest for segment in manifest.segments}
    state = driver.engine.state
    served = {n: entry.digest for n, entry in state.segments.items() if entry.tier == "cold" and entry.runs}
    assert held == served
    assert list(driver.disk.list_dir(f"{COLD_SHARD_DIR}/data")) == [
        f"{number:010d}.seg" for number in sorted(held)
    ]


@pytest.mark.parametrize("cut", [0, 1, 40, -1])
def test_c05_a_staged_manifest_that_is_torn_is_refused_and_kept(cut: int) -> None:
    driver = staged_shard()
    before = picture(driver)
    path = f"{STAGING}/job.staged.json"
    size = len(driver.disk.read_file(path))
    driver.disk.resize(path, cut if cut >= 0 else size - 3)
    run_jobs(driver)
    assert picture(driver) == before
    assert "job.refused.json" in names(driver, STAGING)
    assert "job.staged.json" in names(driver, STAGING), "kept for inspection"
    run_jobs(driver)
    expect_healthy(driver)


def test_c05_of_two_jobs_at_once_one_is_adopted_and_the_other_refused() -> None:
    driver = shard()
    before = picture(driver)
    plan_and_stage(driver, "a")
    driver.clock.advance(1)
    assert stage(driver, "b") is not None
    run_jobs(driver)
    assert picture(driver) == compacted_picture(before)
    (refused,) = [name for name in names(driver, STAGING) if name.endswith(".refused.json")]
    told = json.loads(driver.disk.read_file(f"{STAGING}/{refused}"))
    assert told["job"] == "b" and "generation" in told["reason"]
    expect_stable(driver)


def test_c05_a_job_based_on_an_old_generation_is_refused() -> None:
    driver = shard()
    plan_and_stage(driver, "late")
    held = {name: driver.disk.read_file(f"{STAGING}/{name}") for name in names(driver, STAGING)}
    for name in held:
        driver.disk.unlink(f"{STAGING}/{name}")
    driver.clock.advance(1)
    plan_and_stage(driver, "first")
    run_jobs(driver)
    driver.delete_records("plain", match=["tag", "Eq", "t2"])
    before = picture(driver)
    for name, content in held.items():
        file = driver.disk.create(f"{STAGING}/{name}")
        file.pwritev([content], 0)
        file.close()
    run_jobs(driver)
    assert picture(driver) == before
    assert "late.refused.json" in names(driver, STAGING)


def test_c05_a_segment_that_moves_to_the_cold_tier_meanwhile_does_not_matter() -> None:
    driver = staged_shard()
    driver.append("plain", [{"data": "more"}])
    assert driver.seal()
    assert driver.relocate() >= 1
    before = picture(driver)
    run_jobs(driver)
    assert picture(driver) == compacted_picture(before)
    expect_stable(driver)


def _flip(driver: ShardDriver) -> None:
    flip_in_segment(driver.disk, f"{STAGING}/job.p0-a0.seg", 200)


def _cut(driver: ShardDriver) -> None:
    driver.disk.resize(f"{STAGING}/job.p0-a0.seg", 500)


def _remove(driver: ShardDriver) -> None:
    driver.disk.unlink(f"{STAGING}/job.p0-a0.seg")


def _swap(driver: ShardDriver) -> None:
    content = driver.disk.read_file(cold_path(1))
    driver.disk.unlink(f"{STAGING}/job.p0-a0.seg")
    file = driver.disk.create(f"{STAGING}/job.p0-a0.seg")
    file.pwritev([content], 0)
    file.close()


@pytest.mark.parametrize("damage", [_flip, _cut, _remove, _swap])
def test_c06_a_staged_segment_that_fails_verification_is_refused_and_kept(
    damage: Callable[[ShardDriver], None],
) -> None:
    driver = staged_shard()
    before = picture(driver)
    damage(driver)
    run_jobs(driver)
    assert picture(driver) == before
    found = names(driver, STAGING)
    assert "job.refused.json" in found and "job.staged.json" in found
    expect_healthy(driver)
    assert [driver.disk.exists(cold_path(number)) for number in (1, 2, 3)] == [True] * 3


def test_c06_a_job_that_lost_a_live_record_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import shared.segment_rewrite as rewriting

    real = rewriting.dead_in

    def forgetful(view: object, dropped: object, first: int, last: int) -> object:
        dead = real(view, dropped, first, last)  # type: ignore[arg-type]
        if view.name == "plain":  # type: ignore[attr-defined]
            dead.add(3)
        return dead

    driver = shard()
    before = picture(driver)
    with monkeypatch.context() as patched:
        patched.setattr(rewriting, "dead_in", forgetful)
        plan_and_stage(driver)
    run_jobs(driver)
    assert picture(driver) == before
    told = json.loads(driver.disk.read_file(f"{STAGING}/job.refused.json"))
    assert "seq 3 of topic plain is alive" in told["reason"]


def test_c06_a_job_that_drops_the_last_value_of_a_key_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import ops.coldstore.compact_local as job

    real = job.find_superseded

    def greedy(*args: object) -> object:
        found = real(*args)  # type: ignore[arg-type]
        for gone in found.values():
            gone.add(9)
        return found

    driver = shard()
    before = picture(driver)
    with monkeypatch.context() as patched:
        patched.setattr(job, "find_superseded", greedy)
        plan_and_stage(driver)
    run_jobs(driver)
    assert picture(driver) == before
    told = json.loads(driver.disk.read_file(f"{STAGING}/job.refused.json"))
    assert "last value of its key" in told["reason"]


def test_c06_a_segment_with_a_bad_block_is_refused_by_the_job_and_never_skipped() -> None:
    driver = shard()
    driver.snapshot()
    before = picture(driver)
    flip_in_segment(driver.disk, cold_path(2), 200)
    with pytest.raises(CorruptSegment) as caught:
        stage(driver)
    assert cold_path(2) in str(caught.value)
    assert names(driver, STAGING) == []
    assert picture(driver)["last"]["head"] == before["last"]["head"]


def test_c06_a_topic_that_stopped_keeping_last_values_keeps_its_records() -> None:
    driver = staged_shard()
    driver.put("last", **(LAST_VALUES | {"cleanup": "delete"}))
    before = picture(driver)
    run_jobs(driver)
    assert picture(driver) == before
    assert "job.refused.json" in names(driver, STAGING)


@pytest.mark.parametrize("when", ["before", "verified", "switching"])
def test_c07_deletes_that_come_between_plan_and_adoption_hold(when: str) -> None:
    driver = staged_shard()
    maintenance = driver.shard.maintenance
    assert maintenance.adoption is not None

    def delete() -> None:
        driver.delete_records("plain", match=["tag", "Eq", "t2"])
        driver.delete_records("last", before_seq=9)
        driver.append("plain", [{"data": "new"}])
        driver.append("last", [{"data": "new", "key": "k0"}])

    if when == "before":
        delete()
    maintenance.adoption.scan_soon()
    assert driver.finish_job(maintenance.next_job())  # scan
    job = maintenance.next_job()
    assert job is not None
    job.run()  # type: ignore[union-attr]
    if when == "verified":
        delete()
    maintenance.finish(job)
    if when == "switching":
        delete()
    run_jobs(driver)
    assert seqs(driver, "plain") == [1, 4, 5, 8, 9, 12, 13, 16, 17, 18]
    assert seqs(driver, "last") == [9, 10, 11, 12, 13, 14, 15, 16, 17]
    for name in ("plain", "last"):
        assert topics_of(driver)[name].bytes == _bytes(driver.read_all(name))
    expect_healthy(driver)
    driver.lose_power(keep="none")
    assert seqs(driver, "plain") == [1, 4, 5, 8, 9, 12, 13, 16, 17, 18]


def test_c07_a_topic_that_is_deleted_or_recreated_meanwhile_stays_so() -> None:
    driver = staged_shard()
    driver.delete_topic("plain")
    driver.append("plain", [{"data": "born again"}])
    run_jobs(driver)
    assert seqs(driver, "plain") == [1]
    assert expect_stable(driver)["plain"]["records"][0]["data"] == "born again"


def test_c07_caps_evict_the_same_before_and_after_a_restart() -> None:
    """Caps count live records: the frame of an adoption and the appends around it are applied in one order.

    The topic is not synced, so its appends would be visible before the frame, which waits for a sync.
    """
    driver = shard()
    driver.put("last", **(LAST_VALUES | {"durable": False, "cap_records": 18}))
    driver.append("last", [{"data": "the first one reserves seqs, and waits for that"}])
    plan_and_stage(driver)
    maintenance = driver.shard.maintenance
    assert maintenance.adoption is not None
    maintenance.adoption.scan_soon()
    assert driver.finish_job(maintenance.next_job())
    job = maintenance.next_job()
    assert job is not None
    job.run()  # type: ignore[union-attr]
    maintenance.finish(job)
    driver.start_append("last", [{"data": at} for at in range(4)])
    driver.commit()
    driver.sync()
    assert topics_of(driver)["last"].floor == 1, "eleven are left and four came: nothing is over the cap"
    expect_stable(driver)
    run_jobs(driver)
    expect_stable(driver)


def test_c08_a_reader_of_the_old_generation_reads_on_while_it_is_replaced() -> None:
    driver = staged_shard()
    topic = topics_of(driver)["plain"]
    pieces = topic.pieces(1, driver.engine.state.source)
    first = next(pieces)
    assert bytes(first.json)
    behind = driver.read("plain", 0, limit=2)
    run_jobs(driver)
    assert not driver.disk.exists(cold_path(1))
    rest = driver.read("plain", behind["next_from_seq"])
    assert [record["$seq"] for record in rest["records"]] == [4, 5, 7, 8, 9, 11, 12, 13, 15, 16, 17]


def test_c08_old_files_stay_until_neither_kept_snapshot_needs_them() -> None:
    driver = staged_shard()
    before = picture(driver)
    maintenance = driver.shard.maintenance
    assert maintenance.adoption is not None
    maintenance.adoption.scan_soon()
    for _ in range(3):  # scan, verify and switch, publish
        job = maintenance.next_job()
        if job is None:
            driver.sync()
            job = maintenance.next_job()
        assert driver.finish_job(job)
    assert picture(driver) == compacted_picture(before)
    assert all(driver.disk.exists(cold_path(number)) for number in (1, 2, 3))
    driver.lose_power(keep="none")  # replay stands before the frame, and looks into the old files
    assert picture(driver) == compacted_picture(before)
    run_jobs(driver)
    assert not any(driver.disk.exists(cold_path(number)) for number in (1, 2, 3))


@pytest.mark.parametrize("op", ["create", "write", "sync", "rename", "syncdir", "unlink", "open"])
def test_c02_a_cold_tier_that_fails_during_an_adoption_costs_nothing(op: str) -> None:
    driver = staged_shard()
    before = picture(driver)
    after = compacted_picture(before)
    from tests.support.shard_driver import COLD_DIR

    driver.disk.fail_on(op, error=errno.EIO, path_contains=COLD_DIR, times=None)  # type: ignore[arg-type]
    maintenance = driver.shard.maintenance
    assert maintenance.adoption is not None
    maintenance.adoption.scan_soon()
    for _ in range(12):
        driver.finish_job(maintenance.next_job())
        driver.sync()
    assert driver.append("plain", [{"data": "writes go on"}]).ok
    driver.disk.clear_faults()
    driver.delete_records("plain", match=["tag", "Eq", "none"])
    run_jobs(driver)
    shown = picture(driver)
    assert shown["last"] in (before["last"], after["last"])
    assert shown["plain"]["records"][:-1] == before["plain"]["records"]
    expect_healthy(driver)


def test_c00_merging_can_be_left_out_and_little_waste_can_be_left_alone() -> None:
    driver = shard()
    driver.snapshot()
    staged = stage(driver, "each", PlanOptions(merge=False))
    assert staged is not None and [new.old for new in staged.new] == [[1], [2], [3]]
    run_jobs(driver)
    expect_stable(driver)


def test_c04_a_job_some_of_whose_segments_died_before_it_was_published_is_not_taken_back() -> None:
    """Adopted by the log, one new segment dead and gone, then a restart: its other files are in use."""
    driver = shard()
    driver.snapshot()
    assert stage(driver, "job", PlanOptions(merge=False)) is not None
    maintenance = driver.shard.maintenance
    assert maintenance.adoption is not None
    maintenance.adoption.scan_soon()
    for _ in range(2):  # scan, verify; the switch waits for a sync
        assert driver.finish_job(maintenance.next_job())
    driver.sync()
    first = min(number for number in driver.engine.state.segments if number > 10**9)
    for topic in ("plain", "last"):
        driver.delete_records(topic, before_seq=5)
    assert not driver.engine.state.segments[first].runs
    for _ in range(3):
        driver.begin_snapshot()
        assert driver.finish_job(driver.end_snapshot())
    assert first not in driver.engine.state.segments
    before = picture(driver)
    driver.kill()
    run_jobs(driver)
    assert picture(driver) == before
    expect_manifest_is_what_is_served(driver)
    assert names(driver, STAGING) == []
