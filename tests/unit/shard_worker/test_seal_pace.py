"""Sealing passes are rare and large while much is written, and what is not sealed stays bounded."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest

from shard_worker import maintenance as maintenance_module
from shard_worker.core.seal_pace import SealPace
from shard_worker.disk.sealing import SealJob
from tests.support.shard_driver import ShardDriver


class PacedShard(ShardDriver):
    """Ten records of a topic make it ripe; the steady clock is moved by hand."""

    def __init__(self, **overrides: object) -> None:
        small: dict[str, Any] = {"segment_max_events": 10, "segment_max_age_ms": 0, "wal_file_bytes": 8 << 20}
        super().__init__(**{"cold_dir": None, **small, **overrides})
        self.now_s = 0.0
        self.engine.clock = lambda: self.now_s
        self.maintenance = self.shard.maintenance
        self.maintenance.pace = SealPace(rest_s=1.0, max_bytes=1 << 20, max_frames=1000)

    def write(self, topic: str, records: int = 10, *, size: int = 10) -> None:
        self.append(topic, [{"data": "x" * size}] * records)

    def job(self) -> SealJob | None:
        job = self.maintenance.next_job()
        assert job is None or isinstance(job, SealJob)
        return job

    def sealed_names(self) -> list[str]:
        job = self.job()
        if job is None:
            return []
        assert self.finish_job(job)
        return sorted(share.topic.name for share in job.plan.shares)


def test_the_first_topic_that_is_ripe_is_sealed_at_once() -> None:
    shard = PacedShard()
    shard.write("a", 9)
    assert shard.sealed_names() == []
    shard.write("a", 1)
    assert shard.sealed_names() == ["a"]


def test_what_becomes_ripe_while_sealing_rests_is_sealed_together() -> None:
    shard = PacedShard()
    shard.write("a")
    assert shard.sealed_names() == ["a"]
    shard.now_s += 0.5
    for topic in ("a", "b", "c"):
        shard.write(topic)
    assert not shard.maintenance.due, "the worker is not woken for what has to wait"
    assert shard.sealed_names() == []
    shard.now_s += 0.5
    shard.write("a", 1)
    assert shard.maintenance.due
    assert shard.sealed_names() == ["a", "b", "c"]
    assert shard.maintenance.counters.seals == 2


def test_the_rest_counts_from_the_end_of_a_pass() -> None:
    shard = PacedShard()
    shard.write("a")
    job = shard.job()
    shard.now_s += 5.0
    assert shard.finish_job(job)
    shard.write("b")
    assert shard.sealed_names() == []


def test_what_is_written_during_a_pass_does_not_start_the_next_one_at_once() -> None:
    shard = PacedShard()
    shard.write("a")
    job = shard.job()
    shard.now_s += 5.0
    shard.write("a", 3)
    shard.write("b")
    assert shard.finish_job(job)
    assert shard.sealed_names() == []
    shard.now_s += 1.0
    shard.tick()
    assert shard.sealed_names() == ["b"], "three records are left of the other one"


def test_a_ripe_topic_that_is_not_written_any_more_is_sealed_by_the_next_tick_behind_the_rest() -> None:
    shard = PacedShard()
    shard.write("a")
    shard.sealed_names()
    shard.write("b")
    shard.now_s += 0.9
    shard.tick()
    assert shard.sealed_names() == []
    shard.now_s += 0.2
    shard.tick()
    assert shard.sealed_names() == ["b"]


def test_so_many_bytes_of_log_end_the_rest() -> None:
    shard = PacedShard()
    shard.write("a")
    shard.sealed_names()
    shard.write("b", size=60_000)
    assert shard.sealed_names() == []
    shard.write("b", size=60_000)
    assert shard.sealed_names() == ["b"]


def test_so_many_frames_end_the_rest() -> None:
    shard = PacedShard()
    shard.write("a")
    shard.sealed_names()
    for _ in range(900):
        shard.write("b", 1)
    assert shard.sealed_names() == []
    for _ in range(200):
        shard.write("b", 1)
    assert shard.sealed_names() == ["b"]


def test_a_pass_for_old_records_takes_what_is_ripe_along() -> None:
    shard = PacedShard(segment_max_age_ms=10_000)
    shard.write("old", 1)
    shard.write("a")
    assert shard.sealed_names() == ["a"]
    shard.clock.advance(11_000)
    shard.write("b")
    assert shard.sealed_names() == []
    shard.tick()
    assert shard.sealed_names() == ["b", "old"]


def test_too_many_log_files_are_sealed_without_waiting() -> None:
    shard = PacedShard(wal_file_bytes=4096)
    shard.write("a")
    shard.sealed_names()
    with patch.object(maintenance_module, "WAL_MAX_FILES_BEFORE_SEAL", 2):
        while len(shard.engine.wal.files) <= 2:
            shard.write("few", 1, size=500)
            shard.write("b", size=10)
        assert "few" in shard.sealed_names()


def test_a_pass_that_fails_is_not_tried_again_before_the_worker_asks() -> None:
    shard = PacedShard()
    shard.write("a")
    shard.disk.fail_on("create", path_contains=".seg")
    assert not shard.finish_job(shard.job())
    assert shard.sealed_names() == ["a"]


def test_without_a_pace_every_ripe_topic_is_due() -> None:
    shard = PacedShard()
    shard.maintenance.pace = None
    for _ in range(3):
        shard.write("a")
        assert shard.sealed_names() == ["a"]


# --- what a start has to replay ---------------------------------------------------------------------------


def snapshots_after(shard: ShardDriver, writes: int) -> int:
    for _ in range(writes):
        shard.append("t", [{"data": 1}])
    shard.sync()
    maintenance = shard.shard.maintenance
    if maintenance.next_job() is None and maintenance.stepping:
        shard.finish_job(shard.end_snapshot())
    return maintenance.counters.snapshots


def test_so_many_small_frames_make_a_snapshot_due() -> None:
    with patch.object(maintenance_module, "SNAPSHOT_EVERY_WAL_FRAMES", 100):
        shard = ShardDriver(cold_dir=None, wal_file_bytes=1 << 20)
        assert snapshots_after(shard, 50) == 0
        assert snapshots_after(shard, 60) == 1
        assert snapshots_after(shard, 50) == 1, "counted from that snapshot on"


@pytest.mark.parametrize("limit", ["SNAPSHOT_EVERY_WAL_FRAMES", "SNAPSHOT_EVERY_WAL_BYTES"])
def test_a_shard_that_is_killed_again_and_again_does_not_have_ever_more_to_replay(limit: str) -> None:
    with patch.object(maintenance_module, limit, 100 if limit.endswith("FRAMES") else 20_000):
        shard = ShardDriver(cold_dir=None, wal_file_bytes=1 << 20)
        replayed = []
        for _ in range(12):
            snapshots_after(shard, 40)
            shard.kill()
            replayed.append(shard.shard.report.frames)
    assert max(replayed) < 250, replayed


def test_small_snapshots_are_taken_sooner_and_large_ones_are_not() -> None:
    shard = ShardDriver(cold_dir=None, wal_file_bytes=1 << 20)
    with (
        patch.object(maintenance_module, "SNAPSHOT_EVERY_WAL_FRAMES", 400),
        patch.object(maintenance_module, "SNAPSHOT_SOONEST_WAL_FRAMES", 50),
    ):
        assert snapshots_after(shard, 60) == 1, "one topic, and hardly anything in it"
        assert snapshots_after(shard, 60) == 2
        size = shard.shard.maintenance.snapshot.size
        assert size > 0
        with patch.object(maintenance_module, "SNAPSHOT_LARGE_BYTES", size):
            assert snapshots_after(shard, 60) == 2, "as large as the last one was, it may wait"
            shard.kill()
            assert shard.shard.maintenance.snapshot.size == size, "known from the file after a start"
            assert snapshots_after(shard, 60) == 0, "of this session"
            assert snapshots_after(shard, 300) == 1
        with patch.object(maintenance_module, "SNAPSHOT_MANY_TOPICS", 1):
            assert snapshots_after(shard, 60) == 1, "many topics, too"
            assert snapshots_after(shard, 350) == 2
