"""A shard whose intake is full: who is refused with which advice, who waits instead, and that nothing is half done."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from shared.limits import (
    RETRY_AFTER_DEFAULT_MS,
    THROTTLE_RETRY_MAX_MS,
    THROTTLE_RETRY_MIN_MS,
    THROTTLE_WAIT_MAX_MS,
    MiB,
)
from shared.wire import Op
from tests.support.shard_driver import Call, ShardDriver

PAYLOAD = "x" * 300_000


class FullShard(ShardDriver):
    """A megabyte may wait for a sync, and a sync has begun that takes as long as a test wants."""

    def __init__(self, **overrides: object) -> None:
        super().__init__(wal_file_bytes=64 * MiB, cold_dir=None, max_unsynced_bytes=MiB, **overrides)
        self.put("f", durable=True)
        self.waiting: list[Call] = []

    def fill(self) -> None:
        self.begin_sync()
        while not self.engine.commits.full:
            self.waiting.append(self.start_append("f", [{"data": PAYLOAD}]))
            self.commit()

    def patient(self, data: object, topic: str = "f", **fields: object) -> Call:
        call = self.start_append(topic, [{"data": data}], disable_backpressure=True, **fields)
        self.commit()
        return call

    def impatient(self, data: object) -> Call:
        call = self.start_append("f", [{"data": data}])
        self.commit()
        return call

    def data(self) -> list[object]:
        return [record["data"] for record in self.read_all("f", max_bytes=8 * MiB)]


@pytest.fixture
def shard() -> FullShard:
    shard = FullShard()
    shard.fill()
    return shard


def refused(call: Call) -> int:
    """The advice of a 429."""
    assert call.answer is not None and (call.answer.status, call.answer.error) == (429, "throttled")
    advice = call.answer.json["error"]["detail"]["retry_after_ms"]
    assert call.answer.timings["retry_after_ms"] == advice
    return int(advice)


def test_a_patient_write_waits_where_others_are_refused(shard: FullShard) -> None:
    patient = [shard.patient(n) for n in range(3)]
    assert all(call.answer is None for call in patient)
    refused(shard.impatient("no"))
    shard.clock.advance(1234)
    shard.settle()
    shard.settle()
    for call in patient:
        assert call.answer is not None and call.answer.status == 200
        assert call.answer.timings["throttle_wait_ms"] == 1234
        assert "fsync_ms" in call.answer.timings, "it is as durable as any other"
    assert shard.data() == [PAYLOAD] * len(shard.waiting) + [0, 1, 2], "in the order in which they came"
    for call in shard.waiting:
        assert call.answer is not None and "throttle_wait_ms" not in call.answer.timings


def test_what_waits_is_acked_only_when_it_is_safe(shard: FullShard) -> None:
    call = shard.patient("late")
    shard.finish_sync()
    assert call.answer is None, "tried again, staged, and not synced yet"
    shard.lose_power(keep="none")
    assert "late" not in shard.data()


def test_waiting_goes_on_while_there_is_no_room(shard: FullShard) -> None:
    calls = [shard.patient(PAYLOAD) for _ in range(9)]
    rounds = 0
    while any(call.answer is None for call in calls):
        answered = [call.answer is not None for call in calls]
        assert answered == sorted(answered, reverse=True), "first come, first served"
        assert shard.engine.commits.waiting_bytes <= MiB + len(PAYLOAD) + 100
        shard.clock.advance(100)
        shard.sync()
        rounds += 1
    assert rounds >= 3, "not all at once"
    assert len(shard.data()) == len(shard.waiting) + 9


def test_after_the_longest_wait_it_is_refused_like_the_others(shard: FullShard) -> None:
    call = shard.patient("never")
    assert shard.engine.next_deadline_ms() == shard.engine.now_ms() + THROTTLE_WAIT_MAX_MS
    shard.clock.advance(THROTTLE_WAIT_MAX_MS - 1)
    shard.tick()
    assert call.answer is None
    shard.clock.advance(1)
    shard.tick()
    refused(call)
    shard.settle()
    assert "never" not in shard.data()


@pytest.mark.parametrize("bound", [("THROTTLED_MAX_REQUESTS", 2), ("THROTTLED_MAX_BYTES", 150)])
def test_what_waits_is_bounded(shard: FullShard, bound: tuple[str, int]) -> None:
    with patch(f"shard_worker.held_writes.{bound[0]}", bound[1]):
        calls = [shard.patient(n) for n in range(3)]
        assert [call.answer is None for call in calls] == [True, True, False]
        refused(calls[2])
        shard.settle()
        shard.settle()
    assert shard.data()[-2:] == [0, 1]
    assert shard.engine.held._bytes == 0


def test_a_link_that_is_gone_takes_its_waiting_writes_along(shard: FullShard) -> None:
    shard.patient("gone")
    shard.engine.forget_sink(shard._sink)
    assert len(shard.engine.held) == 0
    shard.sync()
    assert "gone" not in shard.data()


def test_a_repeat_of_a_write_that_waits_is_recognised(shard: FullShard) -> None:
    first = shard.patient("once", idempotency_key="k")
    again = shard.patient("once", idempotency_key="k")
    shard.settle()
    shard.settle()
    assert first.answer is not None and again.answer is not None
    assert first.answer.json["deduped"] is False and again.answer.json["deduped"] is True
    assert shard.data().count("once") == 1


def test_a_write_that_is_wrong_is_told_so_at_once(shard: FullShard) -> None:
    call = shard.submit(Op.APPEND, "f", b'{"records":[],"disable_backpressure":true}')
    assert call.answer is not None and call.answer.status == 400


def test_without_pressure_the_flag_changes_nothing() -> None:
    shard = FullShard()
    answer = shard.append("f", [{"data": 1}], disable_backpressure=True)
    assert answer.ok and "throttle_wait_ms" not in answer.timings


def test_reads_go_on_when_the_intake_is_full(shard: FullShard) -> None:
    assert shard.state("f").ok
    assert shard.read("f")["records"] == []


def test_a_group_that_cannot_be_written_leaves_no_weight_behind() -> None:
    shard = FullShard()
    call = shard.start_append("f", [{"data": PAYLOAD}])
    assert shard.engine.commits.waiting_bytes > len(PAYLOAD)
    with patch.object(shard.engine.wal, "write", side_effect=OSError(5, "I/O error")):
        shard.commit()
    assert call.answer is not None and call.answer.status == 503
    assert shard.engine.commits.waiting_bytes == 0


def test_a_turn_that_brings_too_much_at_once_is_refused_in_part() -> None:
    """Before anything of it is written: what is staged counts."""
    shard = FullShard()
    calls = [shard.start_append("f", [{"data": PAYLOAD}]) for _ in range(10)]
    shard.settle()
    statuses = [call.answer.status for call in calls if call.answer is not None]
    assert statuses == [200] * 4 + [429] * 6
    assert len(shard.data()) == 4
    assert shard.engine.commits.throttled == 6


def test_the_advice_follows_the_pace_of_the_syncs() -> None:
    shard = FullShard()

    def sync_takes(ms: float) -> None:
        shard.start_append("f", [{"data": PAYLOAD}])
        shard.commit()
        job = shard.engine.begin_sync()
        job.run()
        job.run_ms = ms
        shard.engine.finish_sync(job)
        shard.commit()

    def advice() -> int:
        shard.fill()
        given = refused(shard.impatient("no"))
        shard.settle()
        return given

    shard.engine.commits._sync_ms_per_byte = 0.0  # no sync was measured yet
    assert advice() == RETRY_AFTER_DEFAULT_MS
    for _ in range(30):
        sync_takes(200.0)
    assert 600 <= advice() <= 1000, "four times as much waits as one sync took"
    for _ in range(30):
        sync_takes(0.001)
    assert advice() == THROTTLE_RETRY_MIN_MS
    for _ in range(30):
        sync_takes(60_000.0)
    assert advice() == THROTTLE_RETRY_MAX_MS


def test_what_waits_for_no_sync_needs_no_room() -> None:
    shard = FullShard()
    shard.put("d")
    assert shard.append("d", [{"data": 0}]).ok
    shard.fill()
    assert refused(shard.impatient("no")) > 0
    within = shard.start_append("d", [{"data": 1}] * 100)
    shard.commit()
    assert within.answer is not None and within.answer.status == 200
    beyond = shard.start_append("d", [{"data": 2}] * 2000)
    new = shard.start_append("new", [{"data": 3}])
    shard.commit()
    for call in (beyond, new):
        refused(call)
    shard.settle()
    assert shard.state("d").json["count"] == 101 and shard.state("new").status == 404
