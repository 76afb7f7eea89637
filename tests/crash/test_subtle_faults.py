"""Faults that no catalogue named and that were found by looking: one test per way to lose, double or stall.

Each test goes the way that once failed, and asserts what a caller was promised. What a link may cost is in
tests/unit/shard_worker/test_links.py.
"""

from __future__ import annotations

import errno
from unittest.mock import patch

import pytest

import shard_worker.core.shard_state as shard_state_module
import shard_worker.engine as engine_module
import shard_worker.maintenance as maintenance_module
from shard_worker.core.piece import Piece
from shard_worker.moving import move_topics
from shared.errors import DiskFault, ReadOnlyShard
from shared.wire import Op
from tests.crash.test_moving_topics import contents, filled_disk, move
from tests.support.fault_kit import data_of
from tests.support.shard_driver import Answer, ManualClock, ShardDriver

ROOMY = 1 << 20
DAY_MS = 86_400_000
EVERY_REFUSAL = [errno.ENOSPC, errno.EIO]


def roomy(**overrides: object) -> ShardDriver:
    return ShardDriver(wal_file_bytes=ROOMY, cold_dir=None, **overrides)


def topics_in(driver: ShardDriver) -> list[str]:
    return sorted(driver.engine.state.catalog.visible)


# --- moving topics to another shard -----------------------------------------------------------------------


def move_all(source: ShardDriver, target: ShardDriver) -> None:
    topics = list(source.engine.state.catalog.by_id.values())
    move_topics(target.disk, source.shard, target.shard, topics, lambda count: None)


def restart(*drivers: ShardDriver) -> None:
    for driver in drivers:
        driver.disk.clear_faults()
        driver.lose_power(keep="none")


@pytest.mark.parametrize("error", EVERY_REFUSAL)
@pytest.mark.parametrize("nth", [1, 2], ids=["segment-frame", "import-frame"])
def test_a_move_whose_target_log_refuses_a_frame_stops_and_loses_nothing(error: int, nth: int) -> None:
    source, target = roomy(), roomy()
    source.put("t", durability="fsync")
    source.append("t", [{"data": number} for number in range(10)])
    target.disk.fail_on("write", nth=nth, error=error, path_contains="/wal/")
    with pytest.raises(DiskFault):
        move_all(source, target)
    restart(source, target)
    assert data_of(source, "t") == [*range(10)]
    assert topics_in(target) == []

    move_all(source, target)
    restart(source, target)
    assert topics_in(source) == []
    assert data_of(target, "t") == [*range(10)]


@pytest.mark.parametrize("error", EVERY_REFUSAL)
def test_a_move_whose_source_log_refuses_the_delete_leaves_no_copy_that_could_win_later(error: int) -> None:
    source, target = roomy(), roomy()
    source.put("t", durability="fsync")
    source.append("t", [{"data": "old"}])
    source.disk.fail_on("write", error=error, path_contains="/wal/")
    with pytest.raises(DiskFault):
        move_all(source, target)
    restart(source, target)
    assert data_of(source, "t") == data_of(target, "t") == ["old"]

    move_all(source, target)  # as the next start does, before anybody can write
    restart(source, target)
    assert topics_in(source) == []
    target.append("t", [{"data": "acked"}])
    move_all(target, source)
    restart(source, target)
    assert data_of(source, "t") == ["old", "acked"]
    assert topics_in(target) == []


@pytest.mark.parametrize("error", EVERY_REFUSAL)
def test_a_change_of_the_shard_count_is_finished_after_any_write_to_a_log_was_refused(error: int) -> None:
    clock = ManualClock()
    start = filled_disk(clock)
    before = contents(start.clone(), 1, clock)
    refused = 0
    for nth in range(1, 13):  # there are eleven
        disk = start.clone()
        disk.fail_on("write", nth=nth, error=error, path_contains="/wal/")
        try:
            move(disk, 3, clock)
        except (DiskFault, OSError):
            refused += 1
        disk.clear_faults()
        disk.lose_power(seed=nth)
        move(disk, 3, clock)
        assert contents(disk, 3, clock) == before, nth
    assert refused >= 6


# --- reserved seqs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("power", [False, True], ids=["kill", "power-cut"])
def test_a_topic_written_to_while_it_becomes_ephemeral_never_hands_out_a_seq_twice(power: bool) -> None:
    driver = roomy()
    driver.put("t", durability="fsync")
    driver.append("t", [{"data": 1}])
    change = driver.submit(Op.PUT_TOPIC, "t", {"durability": "ephemeral"})
    write = driver.start_append("t", [{"data": 2}])  # while the change waits for its sync
    driver.sync()
    assert change.answer is not None and write.answer is not None and write.answer.ok
    acked = 0
    for number in range(20):
        acked = driver.append("t", [{"data": number}]).json["last_seq"]
    if power:
        driver.lose_power(keep="none")
    else:
        driver.kill()
    assert driver.append("t", [{"data": "after"}]).json["first_seq"] > acked


def test_a_refused_group_takes_back_its_own_reservation_and_not_one_that_a_running_sync_covers() -> None:
    driver = ShardDriver(wal_file_bytes=4 << 20)
    driver.put("t")
    driver.append("t", [{"data": 0}] * 1000)
    driver.sync()
    topic = driver.engine.state.catalog.visible["t"]
    driver.append("t", [{"data": 0}] * (topic.reserved_synced - topic.head))
    raised = topic.reserved
    assert raised > topic.reserved_synced, "this test needs a raise that is not synced"
    driver.begin_sync()
    driver.disk.fail_on("write", error=errno.EIO, path_contains="/wal/")
    refused = driver.start_append("t", [{"data": 1}] * 3000)
    driver.commit()
    assert refused.answer is not None and refused.answer.status == 503
    assert topic.reserved == raised
    driver.finish_sync()
    assert topic.reserved == topic.reserved_synced == raised

    assert driver.snapshot()
    acked = driver.append("t", [{"data": "acked"}] * 500).json["last_seq"]
    driver.lose_power(keep="none")
    assert driver.append("t", [{"data": "after"}]).json["first_seq"] > acked


def test_a_refused_raise_does_not_count_as_durable_after_the_next_sync() -> None:
    driver = roomy()
    driver.put("t")
    driver.sync()
    topic = driver.engine.state.catalog.visible["t"]
    reserved = topic.reserved
    driver.disk.fail_on("write", error=errno.EIO, path_contains="/wal/")
    refused = driver.start_append("t", [{"data": 1}] * 3000)
    driver.commit()
    assert refused.answer is not None and refused.answer.status == 503
    driver.put("other")
    driver.sync()
    assert topic.reserved == topic.reserved_synced == reserved


def test_idle_topics_give_their_reservation_back_although_another_one_is_busy() -> None:
    driver = roomy()
    idle = [f"idle-{number}" for number in range(5)]
    for name in ["busy", *idle]:
        driver.append(name, [{"data": 0}])
    driver.sync()
    visible = driver.engine.state.catalog.visible
    assert all(visible[name].reserved > visible[name].head for name in idle)
    for second in range(180):
        driver.clock.advance(1000)
        if second % 30 == 0:
            driver.append("busy", [{"data": second}])
            driver.sync()
        driver.tick()
    driver.sync()
    assert {name: visible[name].reserved - visible[name].head for name in idle} == dict.fromkeys(idle, 0)
    driver.lose_power(keep="none")
    visible = driver.engine.state.catalog.visible
    assert [visible[name].holes for name in idle] == [[]] * len(idle)


# --- out of descriptors -----------------------------------------------------------------------------------


def capped_and_sealed() -> ShardDriver:
    """A topic `t` at its cap, its oldest records in a segment that is not open, and another topic `o`."""
    driver = roomy()
    driver.put("t", cap_bytes=400)
    driver.put("o")
    for number in range(8):
        driver.append("t", [{"data": "x" * 5, "tag": "a"}, {"data": number}])
    driver.append("o", [{"data": 0}])
    driver.sync()
    assert driver.seal(["t"])
    driver.kill()
    return driver


def run_out(driver: ShardDriver, *, times: int | None = None) -> None:
    driver.disk.fail_on("open", error=errno.EMFILE, path_contains=".seg", times=times)


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE])
def test_out_of_descriptors_a_read_is_told_to_come_again_and_nothing_counts_as_damaged(error: int) -> None:
    driver = capped_and_sealed()
    before = driver.read_all("t")
    driver.kill()
    driver.disk.fail_on("open", error=error, path_contains=".seg", times=None)
    refused = driver.read_answer("t")
    assert (refused.status, refused.error) == (503, "shard_unavailable")
    assert refused.timings["retry_after_ms"] > 0
    driver.disk.clear_faults()
    assert driver.read_all("t") == before
    driver.kill()
    assert driver.shard.report.damage == []


def test_out_of_descriptors_a_capped_topic_takes_writes_and_everybody_is_answered() -> None:
    driver = capped_and_sealed()
    run_out(driver)
    calls = [
        driver.start_append("o", [{"data": "in front"}]),
        driver.start_append("t", [{"data": "evicts"}]),
        driver.start_append("o", [{"data": "behind"}]),
    ]
    driver.sync()
    assert [call.answer and call.answer.status for call in calls] == [200, 200, 200]
    assert driver.state("t").json["bytes"] <= 400
    driver.disk.clear_faults()
    assert data_of(driver, "t")[-1] == "evicts"
    driver.kill()
    assert data_of(driver, "o") == [0, "in front", "behind"]
    assert data_of(driver, "t")[-1] == "evicts"
    assert driver.shard.report.damage == []


def test_out_of_descriptors_a_read_behind_writes_of_its_turn_costs_none_of_them_the_answer() -> None:
    driver = capped_and_sealed()
    driver.append("t", [{"data": 0}])
    driver.append("o", [{"data": 1}])
    driver.sync()
    driver.kill()
    run_out(driver, times=1)
    writes = [driver.start_append("t", [{"data": "evicts"}]), driver.start_append("o", [{"data": 2}])]
    read = driver.submit(Op.READ, "t", {"from_seq": 0})
    driver.sync()
    assert read.answer is not None and read.answer.status in (200, 503)
    assert [call.answer and call.answer.status for call in writes] == [200, 200]
    assert driver.append("o", [{"data": 3}]).json["count"] == 1
    assert data_of(driver, "o") == [0, 1, 2, 3]
    driver.kill()
    assert data_of(driver, "o") == [0, 1, 2, 3]


@pytest.mark.parametrize("by_a_read", [False, True], ids=["end-of-turn", "read-of-the-same-turn"])
def test_a_frame_that_is_in_the_log_but_cannot_be_followed_ends_the_process(by_a_read: bool) -> None:
    driver = roomy()
    driver.append("t", [{"data": number, "tag": f"t{number % 2}"} for number in range(6)])
    driver.sync()
    driver.seal(["t"])
    driver.append("t", [{"data": 6}])
    driver.sync()
    driver.submit(Op.DELETE_RECORDS, "t", {"match": ["tag", "Eq", "t1"]})
    write = driver.start_append("t", [{"data": 7}])
    driver.shard.store.forget_segment(1)
    run_out(driver)
    with pytest.raises(DiskFault):
        if by_a_read:
            driver.submit(Op.READ, "t", {"from_seq": 0})
        else:
            driver.commit()
    assert write.answer is None, "nobody knows yet what the log holds"
    driver.disk.clear_faults()
    driver.kill()
    assert data_of(driver, "t") == [0, 2, 4, 6, 7]
    assert driver.shard.report.damage == []


# --- snapshots --------------------------------------------------------------------------------------------


def queue_with_a_dead_job(**config: object) -> ShardDriver:
    """A queue whose only job is held by `a`, for 100 ms, and goes to the dead letters after that."""
    driver = roomy()
    driver.put("q", type="queue", max_deliveries=1, dead_letter="dead", **config)
    driver.put("dead")
    driver.append("q", [{"data": "job"}])
    driver.sync()
    assert driver.call(Op.CLAIM, "q", {"node": "a", "lease_ms": 100}).json["count"] == 1
    return driver


def expect_the_same_after_a_kill(driver: ShardDriver) -> None:
    driver.settle()
    driver.sync()
    driver.settle()
    live = {name: data_of(driver, name) for name in ("q", "dead")}
    assert sorted(live["q"] + live["dead"]) == ["job", "job 2"]
    driver.kill()
    assert driver.shard.report.damage == []
    assert {name: data_of(driver, name) for name in ("q", "dead")} == live


def test_a_snapshot_whose_first_commit_wakes_a_claim_misses_nothing_that_the_claim_wrote() -> None:
    driver = queue_with_a_dead_job()
    driver.submit(Op.CLAIM, "q", {"node": "b", "wait_ms": 30_000})
    driver.sync()
    driver.clock.advance(200)  # the lease has run out, and nobody has looked yet
    driver.start_append("q", [{"data": "job 2"}])
    driver.begin_snapshot()
    while driver.step_snapshot():
        pass
    assert driver.finish_job(driver.end_snapshot())
    expect_the_same_after_a_kill(driver)


def test_a_snapshot_begun_behind_a_turn_that_granted_leases_misses_none_of_them() -> None:
    driver = queue_with_a_dead_job(leases_durable=True)
    for node in "bc":
        driver.submit(Op.CLAIM, "q", {"node": node, "wait_ms": 30_000})
    driver.sync()
    driver.clock.advance(99)
    driver.start_append("q", [{"data": "job 2"}])
    driver.commit()
    assert not driver.engine.commits.staged, "a turn leaves nothing behind"
    driver.clock.advance(2)
    driver.begin_snapshot()
    while driver.step_snapshot():
        pass
    assert driver.finish_job(driver.end_snapshot())
    expect_the_same_after_a_kill(driver)


def test_a_replay_begins_no_later_than_the_oldest_staged_frame() -> None:
    driver = roomy()
    driver.put("t")
    driver.sync()
    driver.append("t", [{"data": 1}])
    begin = driver.engine.wal.end
    driver.start_append("t", [{"data": 2}])
    driver.start_append("t", [{"data": 3}])
    assert driver.engine.wal.end > begin
    assert driver.engine.commits.oldest_unapplied() <= begin


def test_a_topic_that_cannot_be_sealed_does_not_keep_snapshots_from_starting() -> None:
    driver = ShardDriver(wal_file_bytes=8192, cold_dir=None, segment_max_events=50)
    driver.put("t", durability="ephemeral")
    driver.append("t", [{"data": "resident"}])
    driver.put("t", durability="disk")
    with patch.object(maintenance_module, "SNAPSHOT_EVERY_WAL_BYTES", 20_000):
        for turn in range(400):
            driver.append("t", [{"data": "x" * 100}])
            if turn % 20 == 0:
                driver.sync()
                driver.tick()
            driver.finish_job(driver.shard.maintenance.next_job())
    counters = driver.shard.maintenance.counters
    assert counters.seals == 0, "this test needs a topic that cannot be sealed"
    assert counters.snapshots >= 2


def log_at_first_snapshot(topics: int) -> int:
    """How much is written to a shard with so many topics before it begins a snapshot by itself."""
    driver = ShardDriver(cold_dir=None)
    for number in range(topics):
        driver.put(f"t{number}")
    with (
        patch.object(maintenance_module, "SNAPSHOT_EVERY_WAL_BYTES", 80_000),
        patch.object(maintenance_module, "SNAPSHOT_SOONEST_WAL_BYTES", 10_000),
        patch.object(maintenance_module, "SNAPSHOT_MANY_TOPICS", 16),
    ):
        while not driver.shard.maintenance.counters.snapshots:
            driver.append("t0", [{"data": "x" * 100}])
            driver.sync()
            driver.finish_job(driver.shard.maintenance.next_job())
    return driver.engine.wal.counters.bytes


def test_the_fewer_topics_there_are_the_sooner_a_snapshot_is_taken() -> None:
    assert 10_000 <= log_at_first_snapshot(1) < 11_000
    assert 40_000 <= log_at_first_snapshot(8) < 41_000
    assert 80_000 <= log_at_first_snapshot(16) < 81_000
    assert 80_000 <= log_at_first_snapshot(32) < 81_000


def test_a_snapshot_that_failed_is_not_tried_again_before_more_is_written() -> None:
    driver = ShardDriver(cold_dir=None)
    driver.put("t")
    maintenance = driver.shard.maintenance
    with patch.object(maintenance_module, "SNAPSHOT_SOONEST_WAL_BYTES", 10_000):
        for _ in range(100):
            driver.append("t", [{"data": "x" * 100}])
        driver.sync()
        assert maintenance._is_snapshot_due()
        with patch.object(maintenance_module, "SnapshotWriter", side_effect=OSError(28, "full")):
            assert maintenance.next_job() is None
        assert not maintenance._is_snapshot_due()
        for _ in range(15):
            driver.append("t", [{"data": "x" * 100}])
        assert maintenance._is_snapshot_due()


def test_a_snapshot_waits_quietly_while_the_shard_is_read_only_and_is_finished_later() -> None:
    driver = roomy()
    driver.put("t")
    driver.append("t", [{"data": 1}])
    driver.sync()
    maintenance = driver.shard.maintenance
    driver.begin_snapshot()
    assert maintenance.stepping
    driver.engine.commits.read_only = ReadOnlyShard(shard=0, free_bytes=0, min_free_bytes=1)
    # The worker calls `next_job` again at once for as long as it is stepping.
    assert maintenance.next_job() is None
    assert not maintenance.stepping
    driver.tick()  # there is room again
    assert driver.engine.commits.read_only is None
    assert maintenance.stepping
    assert driver.finish_job(driver.end_snapshot())
    assert maintenance.counters.snapshots == 1


# --- what is remembered, and for how long -----------------------------------------------------------------


def test_idempotency_keys_of_idle_topics_are_forgotten_when_their_window_is_over() -> None:
    driver = roomy()
    for number in range(40):
        driver.append(f"idle-{number % 4}", [{"data": 1}], idempotency_key=f"k{number}")
    assert driver.engine.state.dedupe_keys == 40
    driver.tick()
    assert driver.engine.state.dedupe_keys == 40
    driver.clock.advance(DAY_MS)
    driver.tick()
    assert driver.engine.state.dedupe_keys == 0


def test_at_the_bound_a_new_idempotency_key_is_refused_and_none_is_forgotten_inside_its_window() -> None:
    driver = roomy()
    with patch.object(engine_module, "DEDUPE_MAX_KEYS_PER_SHARD", 10):
        for number in range(10):
            driver.append("t", [{"data": number}], idempotency_key=f"k{number}")
        for topic in ("t", "new"):
            refused = driver.append(topic, [{"data": "more"}], idempotency_key="more")
            assert refused.status == 429
            assert refused.json["error"]["detail"]["limit"] == "idempotency_keys"
        driver.sync()
        assert topics_in(driver) == ["t"], "a refused write makes no topic"
        for number in range(10):
            repeat = driver.append("t", [{"data": number}], idempotency_key=f"k{number}").json
            assert (repeat["deduped"], repeat["first_seq"]) == (True, number + 1)
        assert driver.append("t", [{"data": "without a key"}]).ok
        driver.clock.advance(DAY_MS)
        assert driver.append("t", [{"data": "later"}], idempotency_key="k0").json["deduped"] is False
    assert data_of(driver, "t") == [*range(10), "without a key", "later"]


def arrive(driver: ShardDriver, number: int) -> Answer:
    options = {"moved": [f"q:1:{number}"], "durability": "disk"}
    return driver.call(Op.APPEND_MOVED, "dead", {"records": [{"data": number}]}, options)


def test_a_repeated_move_appends_nothing_although_its_record_is_gone_and_the_shard_has_restarted() -> None:
    driver = roomy()
    driver.put("dead")
    for number in range(12):
        assert arrive(driver, number).ok
    driver.delete_records("dead", before_seq=1000)
    assert arrive(driver, 11).json == {"moved": 0}
    driver.sync()
    assert driver.snapshot() and driver.snapshot()  # the second lets go of the log
    driver.kill()
    assert arrive(driver, 11).json == {"moved": 0}
    assert data_of(driver, "dead") == []


def test_the_identities_of_moved_records_are_bounded_and_the_oldest_go_first_also_after_a_restart() -> None:
    driver = roomy()
    driver.put("dead")
    with patch.object(shard_state_module, "MOVED_IDENTITIES_MAX", 5):
        for number in range(8, 15):
            arrive(driver, number)
        topic = driver.engine.state.catalog.visible["dead"]
        assert [*topic.moved] == [f"q:1:{number}" for number in range(10, 15)]
        driver.sync()
        assert driver.snapshot() and driver.snapshot()
        driver.kill()
        arrive(driver, 15)
        topic = driver.engine.state.catalog.visible["dead"]
        assert [*topic.moved] == [f"q:1:{number}" for number in range(11, 16)]


# --- requests ---------------------------------------------------------------------------------------------


def test_a_write_that_is_refused_as_invalid_makes_no_topic() -> None:
    driver = roomy()
    both = {"data": 1, "delay_ms": 5, "deliver_at": 99}
    refused = driver.append("new", [both], config={"type": "queue"})
    assert refused.status == 400
    driver.sync()
    assert driver.state("new").status == 404
    driver.kill()
    assert topics_in(driver) == []


def test_a_second_delete_by_tag_reads_one_batch_and_not_all_of_them() -> None:
    driver = ShardDriver(wal_file_bytes=64 << 20, cold_dir=None)
    for batch in range(9):
        driver.append("t", [{"data": 1, "tag": f"{batch}-{place}"} for place in range(1000)])
    store, reads = driver.shard.store, 0
    original = store.hot_piece

    def counted(*args: object) -> Piece:
        nonlocal reads
        reads += 1
        return original(*args)  # type: ignore[arg-type]

    with patch.object(store, "hot_piece", counted):
        assert driver.delete_records("t", match=["tag", "Eq", "5-0"]).json["deleted"] == 1
        assert reads >= 9, "the index is built from all batches once"
        reads = 0
        assert driver.delete_records("t", match=["tag", "Eq", "5-1"]).json["deleted"] == 1
        assert reads <= 1
