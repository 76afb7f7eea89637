"""Bugs that the models have found, each as the shortest story that shows it.

docs/testing.md says how to bring them back.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest

from shared.errors import DiskFault
from shared.wire import Op
from tests.support.checked_shard import CheckedShard
from tests.support.shard_driver import ShardDriver, small_limits

PLAIN = [{"data": "1"}]
TAGGED = [{"data": "1", "tag": "x"}]
LONG = [{"data": '"' + "x" * 200 + '"'}]


@pytest.fixture(autouse=True)
def _low_limits() -> Iterator[None]:
    with small_limits():
        yield


@pytest.fixture
def shard() -> CheckedShard:
    return CheckedShard()


def test_m01_reader_of_a_recreated_topic_passes_the_hole_at_its_end(shard: CheckedShard) -> None:
    shard.append("t", LONG, config={"durability": "disk"})
    shard.lose_power(0, "all")
    assert shard.live.by_name("t").holes, "the reservation must have become a hole"  # type: ignore[union-attr]
    found = shard.read("t", 1000)
    assert found is not None and len(found.records) == 1


def test_m02_ttl_does_not_claim_what_was_deleted_on_purpose(shard: CheckedShard) -> None:
    shard.put("t", {"durability": "fsync", "ttl_ms": 1000})
    shard.append("t", TAGGED)
    shard.append("t", TAGGED)
    shard.delete_records("t", match=("tag", "Eq", "x"))
    shard.driver.clock.advance(900)
    shard.append("t", PLAIN)
    shard.driver.clock.advance(900)  # the deleted ones would have expired by now, the third has not
    found = shard.read("t")
    assert found is not None and found.tombstone is None and len(found.records) == 1


def test_m03_replay_finds_a_segment_that_has_moved_since(shard: CheckedShard) -> None:
    shard.append("t", [*TAGGED, *PLAIN], config={"durability": "fsync"})
    shard.seal()
    shard.delete_records("t", match=("tag", "Eq", "x"))  # replay looks into the segment here …
    shard.append("t", PLAIN)
    shard.seal()
    shard.relocate()  # … and hears only here that it is in the cold tier
    assert any(path.startswith("/cold/") for path in shard.disk.files())
    shard.kill()
    shard.check_everything()


def test_m04_a_reservation_is_not_given_back_before_it_is_synced(shard: CheckedShard) -> None:
    shard.put("t", {"durability": "disk"})
    for _ in range(5):  # the last one raises the reservation, and nobody syncs that
        shard.append("t", PLAIN)
    shard.driver.clock.advance(61_000)
    shard.tick()  # a topic at rest gives its reservation back
    shard.sync()
    shard.tick()
    shard.append("t", PLAIN)
    shard.append("t", PLAIN)
    shard.lose_power(0, "none")
    shard.append("t", PLAIN)
    shard.check_everything()


def test_m05_a_write_does_not_go_to_a_topic_that_is_being_deleted(shard: CheckedShard) -> None:
    shard.append("t", PLAIN, wait="committed", config={"durability": "disk"})
    shard.begin_sync(run=True)  # the create is on its way …
    shard.delete_topic("t", wait="staged")  # … the delete behind it …
    shard.finish_sync()  # … and now the create is there
    shard.append("t", PLAIN, wait="answered", config={"durability": "disk"})
    shard.check_everything()
    shard.kill()
    shard.check_everything()
    assert shard.live.by_name("t").count == 1  # type: ignore[union-attr]


def test_m06_a_delete_that_fails_leaves_the_topic_that_was_created_meanwhile(shard: CheckedShard) -> None:
    shard.append("t", PLAIN, wait="committed", config={"durability": "disk"})
    shard.begin_sync(run=True)
    shard.delete_topic("t", wait="staged")
    shard.disk.fail_on("write", 1, errno.EIO, "/wal/")
    shard.faulty = True
    shard.finish_sync()  # the create is there; the delete behind it is refused
    shard.append("t", PLAIN)
    shard.check_everything()
    assert shard.live.by_name("t").count == 2  # type: ignore[union-attr]


def test_m07_a_disk_that_fails_under_a_request_ends_the_worker() -> None:
    driver = ShardDriver()
    driver.put("t", durability="fsync", ttl_ms=1000)
    driver.append("t", PLAIN)
    driver.clock.advance(2000)
    driver.disk.fail_on("write", 1, errno.EIO, "/wal/")
    driver.disk.fail_on("truncate", 1, errno.EIO, "/wal/")
    with pytest.raises(DiskFault):
        driver.submit(Op.STATE, "t")  # writes down what has expired, and cannot even undo that


def test_m08_a_write_that_fails_while_another_is_planned_leaves_no_gap(shard: CheckedShard) -> None:
    shard.put("t", {"durability": "disk", "ttl_ms": 1000, "discard": "reject", "cap_records": 9})
    shard.append("t", PLAIN)
    engine = shard.driver.engine
    first = shard.driver.start_append("t", PLAIN)
    shard.driver.clock.advance(2000)
    shard.disk.fail_on("write", 1, errno.EIO, "/wal/")
    # Planning this one sweeps what has expired, which writes the group that the first one is in.
    second = shard.driver.start_append("t", PLAIN)
    shard.driver.settle()
    answers = [call.answer for call in (first, second)]
    assert all(answer is not None for answer in answers)
    acked = [answer.json["first_seq"] for answer in answers if answer is not None and answer.ok]
    topic = engine.state.catalog.visible["t"]
    assert acked == list(range(2, topic.head + 1)) and not topic.holes


def test_m09_seqs_of_a_topic_that_was_ephemeral_are_not_used_again(shard: CheckedShard) -> None:
    driver = shard.driver
    driver.append("t", PLAIN * 3, config={"durability": "ephemeral"})
    driver.put("t", durability="disk")
    driver.kill()
    answer = driver.append("t", PLAIN).json
    assert answer["first_seq"] > 3
    stone = driver.read("t")["tombstone"]
    assert (stone["gap_from"], stone["gap_to"]) == (1, answer["first_seq"] - 1)


def test_m10_a_write_behind_a_change_of_class_has_the_new_class(shard: CheckedShard) -> None:
    driver = shard.driver
    driver.append("t", PLAIN, config={"durability": "ephemeral"})
    driver.submit(Op.PUT_TOPIC, "t", {"durability": "fsync"})
    call = driver.start_append("t", PLAIN)
    driver.settle()
    assert call.answer is not None and call.answer.json["first_seq"] == 2
    driver.lose_power(0, "none")
    assert [record["$seq"] for record in driver.read_all("t")] == [2]


def test_m11_what_an_ephemeral_topic_lost_stays_lost_when_it_changes(shard: CheckedShard) -> None:
    driver = shard.driver
    driver.append("t", PLAIN * 2, config={"durability": "disk"})
    driver.put("t", durability="ephemeral")
    driver.kill()
    assert driver.read_all("t") == []
    driver.put("t", durability="disk")
    driver.kill()
    assert driver.read_all("t") == []


def test_m12_a_snapshot_of_a_topic_with_records_in_memory_counts_right(shard: CheckedShard) -> None:
    driver = shard.driver
    driver.append("t", [*PLAIN, *TAGGED, *PLAIN], config={"durability": "ephemeral"})
    driver.delete_records("t", match="x")
    driver.put("t", durability="disk", cap_records=4)
    for _ in range(3):
        driver.append("t", PLAIN)
    driver.snapshot()
    driver.kill()
    state = driver.state("t").json
    assert (state["earliest_seq"], state["count"]) == (4, 3)
    for _ in range(3):
        driver.append("t", PLAIN)
    state = driver.state("t").json
    records = driver.read_all("t")
    assert [record["$seq"] for record in records] == [6, 7, 8, 9]
    assert (state["earliest_seq"], state["count"]) == (6, 4)


def test_m13_keys_of_an_ephemeral_topic_go_with_its_records(shard: CheckedShard) -> None:
    driver = shard.driver
    driver.append("t", PLAIN, config={"durability": "ephemeral", "cap_records": 1}, idempotency_key="evicted")
    driver.append("t", PLAIN, idempotency_key="held")
    driver.close()
    driver.reopen()
    for key in ("held", "evicted"):
        assert driver.append("t", PLAIN, idempotency_key=key).json["deduped"] is False


def test_m14_a_floor_inside_a_hole_leaves_the_rest_of_the_hole_told(shard: CheckedShard) -> None:
    driver = shard.driver
    driver.append("t", PLAIN * 5, config={"durability": "ephemeral"})
    driver.put("t", cap_records=3)
    driver.put("t", durability="disk")
    driver.kill()
    first = driver.read("t")
    second = driver.read("t", first["next_from_seq"])
    stones = [answer["tombstone"] for answer in (first, second)]
    assert [(stone["gap_from"], stone["gap_to"]) for stone in stones] == [(1, 2), (3, 5)]


def test_m15_what_records_in_memory_evicted_does_not_come_back_without_them(shard: CheckedShard) -> None:
    driver = shard.driver
    shard.append("t", PLAIN * 2, config={"durability": "disk", "cap_records": 4})
    shard.put("t", {"durability": "ephemeral"})
    shard.append("t", PLAIN * 2)
    shard.put("t", {"durability": "disk"})
    shard.append("t", PLAIN)
    assert [record["$seq"] for record in driver.read_all("t")] == [2, 3, 4, 5]
    shard.kill()
    assert [record["$seq"] for record in driver.read_all("t")] == [2, 5]
    shard.check_everything()


def test_m16_removing_a_seq_that_was_lost_removes_nothing() -> None:
    driver = ShardDriver()
    driver.append("t", PLAIN, config={"durability": "disk"})
    driver.lose_power(0, "all")
    topic = driver.engine.state.catalog.visible["t"]
    assert topic.holes
    assert topic.apply_remove([topic.head], driver.engine.state.source) == 0
    assert topic.count == 1


def test_m17_a_floor_that_a_power_cut_took_leaves_its_losses_told(shard: CheckedShard) -> None:
    shard.append("t", PLAIN, config={"durability": "ephemeral"})
    shard.kill()
    lost = shard.live.by_name("t").head  # type: ignore[union-attr]
    shard.append("t", PLAIN * 2)
    shard.put("t", {"durability": "memory", "ttl_ms": 1000})
    shard.snapshot()
    shard.driver.clock.advance(2000)
    found = shard.read("t")
    assert found is not None and found.tombstone is not None and found.tombstone.gap_to == lost + 2
    shard.lose_power(0, "none")  # that floor was not synced; the records in memory are gone all the same
    found = shard.read("t")
    assert found is not None and found.tombstone is not None and found.tombstone.gap_to == lost
    shard.check_everything()


def test_m18_a_synced_floor_above_records_in_memory_stays_where_it_is(shard: CheckedShard) -> None:
    shard.append("t", PLAIN, config={"durability": "ephemeral", "ttl_ms": 1000})
    shard.kill()
    shard.append("t", PLAIN * 2)
    shard.driver.clock.advance(2000)
    shard.append("t", PLAIN)
    told = shard.read("t")  # stages the floor …
    shard.put("t", {"durability": "disk"})  # … and this hears only of the one before
    shard.kill()
    found = shard.read("t")
    assert told is not None and told.tombstone is not None and found is not None
    assert found.tombstone is not None
    gap = (1, told.tombstone.gap_to, "mixed")
    assert (found.tombstone.gap_from, found.tombstone.gap_to, found.tombstone.reason) == gap
    shard.check_everything()


def test_m19_floors_that_caps_moved_over_records_in_memory_are_kept_with_their_reason(
    shard: CheckedShard,
) -> None:
    shard.append("t", PLAIN * 3, config={"durability": "ephemeral", "cap_records": 3})
    shard.append("t", PLAIN * 2)
    shard.put("t", {"durability": "disk", "ttl_ms": 1000})
    shard.kill()
    shard.append("t", PLAIN)
    shard.driver.clock.advance(2000)
    found = shard.read("t")  # cap before, TTL now
    assert found is not None and found.tombstone is not None and found.tombstone.reason == "mixed"
    shard.check_everything()


@pytest.mark.parametrize("changes", [{"ttl_ms": 0}, {"ttl_ms": 60_000}, {"cap_records": 3}])
@pytest.mark.parametrize("durability", ["disk", "fsync"])
def test_m20_what_had_expired_before_a_change_of_the_config_is_lost_to_the_ttl(
    shard: CheckedShard, durability: str, changes: dict[str, int]
) -> None:
    shard.append("t", PLAIN * 5, config={"durability": durability, "ttl_ms": 1000})
    shard.driver.clock.advance(2000)
    shard.put("t", changes)  # and nobody has looked since
    for _ in range(2):
        found = shard.read("t")
        assert found is not None and found.records == [] and found.tombstone is not None
        assert (found.tombstone.gap_to, found.tombstone.reason) == (5, "ttl")
        shard.kill()


def test_m21_a_floor_is_kept_by_the_yardstick_if_it_was_written_although_something_else_failed(
    shard: CheckedShard,
) -> None:
    shard.append("t", PLAIN * 5, config={"durability": "memory"})
    shard.put("t", {"durability": "fsync", "ttl_ms": 1000, "cap_records": 6})
    shard.disk.fail_on("sync", 1, errno.EIO, "/segments/")
    shard.faulty = True
    shard.driver.clock.advance(1001)
    shard.check_everything()  # all five have expired …
    shard.append("t", PLAIN)
    shard.append("t", PLAIN)  # … so no cap is met here
    shard.sync()
    shard.check_rebuild()


def test_m22_a_floor_that_could_not_be_written_is_no_floor_yet(shard: CheckedShard) -> None:
    shard.append("t", PLAIN * 3, config={"durability": "fsync", "ttl_ms": 1000, "cap_records": 3})
    shard.driver.clock.advance(1001)
    shard.disk.fail_on("write", 1, errno.EIO, "/wal/")
    shard.faulty = True
    shard.read("t")
    shard.commit()
    shard.append("t", PLAIN)  # the cap takes one, as the log knows of no floor; then the TTL takes the others
    found = shard.read("t")
    assert found is not None and found.tombstone is not None and found.tombstone.reason == "mixed"
    shard.sync()
    shard.check_rebuild()


def test_m23_a_floor_that_a_power_cut_took_is_not_kept_under_another_reason(shard: CheckedShard) -> None:
    shard.append("t", PLAIN * 3, config={"durability": "ephemeral"})
    shard.put("t", {"durability": "memory", "ttl_ms": 1000})
    shard.driver.clock.advance(1001)
    shard.append("t", PLAIN)
    shard.sync()
    shard.read("t")
    shard.commit()
    assert shard.live.by_name("t").reason == "ttl"  # type: ignore[union-attr]
    shard.lose_power(0, "none")  # that floor was not synced; a hole is told of in its place
    assert shard.live.by_name("t").floor == 1  # type: ignore[union-attr]
    shard.driver.clock.advance(1001)
    shard.check_everything()


def test_m24_a_floor_that_was_written_together_with_something_else_is_kept_by_the_yardstick(
    shard: CheckedShard,
) -> None:
    shard.append("t", PLAIN * 3, config={"durability": "fsync", "ttl_ms": 1000, "cap_records": 3})
    shard.disk.fail_on("sync", 1, errno.EIO, "/snapshots/")
    shard.faulty = True
    shard.driver.clock.advance(1001)
    shard.read("t")  # stages the floor …
    shard.append("t", PLAIN)  # … which leaves with this
    shard.put("t", {"ttl_ms": 0})
    shard.check_rebuild()


def test_m25_what_a_cap_took_for_records_in_memory_has_not_expired(shard: CheckedShard) -> None:
    shard.append("t", PLAIN * 3, config={"durability": "disk", "cap_records": 3})
    shard.put("t", {"durability": "ephemeral"})
    shard.append("t", PLAIN * 3)
    shard.put("t", {"durability": "disk", "ttl_ms": 1000})
    shard.driver.clock.advance(1001)
    shard.check_rebuild()


def test_m26_a_floor_that_could_not_be_written_makes_no_room(shard: CheckedShard) -> None:
    config = {"durability": "fsync", "ttl_ms": 1000, "cap_records": 3, "discard": "reject"}
    shard.append("t", PLAIN * 3, config=config)
    shard.driver.clock.advance(1001)
    shard.disk.fail_on("write", 1, errno.EIO, "/wal/")
    shard.faulty = True
    refused = shard.append("t", PLAIN)
    assert refused is not None and refused.answer is not None and refused.answer.error == "topic_full"
    shard.append("t", PLAIN)
    shard.check_rebuild()


def test_m27_what_the_first_records_in_memory_evicted_is_not_counted_after_a_restart(
    shard: CheckedShard,
) -> None:
    shard.append("t", PLAIN * 3, config={"durability": "fsync", "cap_records": 3})
    shard.put("t", {"durability": "ephemeral"})
    shard.append("t", PLAIN * 2)
    shard.seal()  # of the stored ones the last is left
    shard.put("t", {"durability": "memory"})
    shard.kill()
    shard.check_everything()


@pytest.mark.parametrize("residents", [0, 1])
def test_m28_a_floor_that_a_cap_moves_on_its_way_to_the_disk_holds_up_no_other(
    shard: CheckedShard, residents: int
) -> None:
    shard.append("t", PLAIN * 2, config={"durability": "memory"})
    shard.append("t", LONG)
    shard.put("t", {"durability": "ephemeral"})
    if residents:
        shard.append("t", PLAIN)
    shard.driver.clock.advance(6000)
    shard.put("t", {"cap_bytes": 300, "ttl_ms": 5000}, "staged")
    shard.put("t", {"cap_bytes": 250}, "staged")
    shard.put("t", {"cap_bytes": 0})
    gated = shard.driver.engine.state.catalog.visible["t"].gated
    assert bool(gated) == bool(residents)
    shard.check_everything()
    shard.check_rebuild()
