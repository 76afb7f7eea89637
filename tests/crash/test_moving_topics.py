"""Changing the number of shards, cut anywhere: every topic is in one place, whole, when the next start is done.

P8 of the fault catalogue, on the fake disk; tests/e2e has it with real processes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from shard_worker.shard import Shard
from shared.routing import shard_for
from shared.settings import Settings
from tests.support.fake_disk import FakeDisk, PowerCut
from tests.support.shard_driver import DATA_DIR, ManualClock, ShardDriver
from topicsd.reshard import ensure_shard_count
from topicsd.store_file import Store, open_store, save_store

WAL_BYTES = 1 << 16
TOPICS = [f"topic-{number}" for number in range(8)]
Content = dict[str, Any]


class MovingDriver(ShardDriver):
    """A driver of any shard, not only of the first."""

    def __init__(self, disk: FakeDisk, number: int, clock: ManualClock) -> None:
        self.number = number
        super().__init__(disk, clock=clock, wal_file_bytes=WAL_BYTES, cold_dir=None)

    def reopen(self) -> None:
        super().reopen()
        if self.number:
            self.shard = open_shard(self.disk, self.settings, self.number, self.clock)


def open_shard(disk: FakeDisk, settings: Settings, number: int, clock: ManualClock) -> Shard:
    return Shard.open(disk, settings, number, wall_ms=clock, clock=lambda: 0.0, wal_file_bytes=WAL_BYTES)


def filled_disk(clock: ManualClock) -> FakeDisk:
    """One shard whose topics are of every kind: hot, sealed, both, deleted in part, capped, empty, ephemeral."""
    disk = FakeDisk()
    disk.make_dir(DATA_DIR)
    save_store(disk, DATA_DIR, Store(format=1, shards=1))
    shard = ShardDriver(disk, clock=clock, wal_file_bytes=WAL_BYTES, cold_dir=None)
    for number, topic in enumerate(TOPICS):
        shard.put(topic, durability=("fsync", "disk", "memory", "ephemeral")[number % 4])
        if number != 7:
            shard.append(
                topic, [{"data": {"n": place, "of": topic}, "tag": f"t{place % 3}"} for place in range(9)]
            )
    shard.put(TOPICS[0], cap_records=4)
    shard.seal(TOPICS[:3])
    shard.delete_records(TOPICS[1], match=["tag", "Eq", "t1"])
    shard.append(TOPICS[2], [{"data": "after the seal", "key": "k"}], idempotency_key="once")
    shard.delete_records(TOPICS[4], before_seq=4)
    shard.close()
    return disk


def contents(disk: FakeDisk, shards: int, clock: ManualClock) -> Content:
    """Everything a reader can find out, by topic. Fails if a topic is twice or in the wrong place."""
    found: Content = {}
    for number in range(shards):
        driver = MovingDriver(disk, number, clock)
        for item in driver.list()[0]:
            name = item["topic"]
            assert name not in found, f"{name} is on two shards"
            assert shard_for(name, shards) == number
            state = driver.state(name).json
            read = driver.read(name, include_tags=True, include_keys=True, limit=1000)
            wanted = ("head_seq", "earliest_seq", "count", "epoch", "config")
            found[name] = [{key: state[key] for key in wanted}, read["records"], read["tombstone"]]
        driver.close()
    return found


def move(disk: FakeDisk, shards: int, clock: ManualClock) -> None:
    settings = replace(Settings(), data_dir=DATA_DIR, cold_dir=None, wal_shards=shards, min_free_bytes=0)

    @contextmanager
    def opened(number: int) -> Iterator[Shard]:
        yield open_shard(disk, settings, number, clock)

    store = open_store(disk, DATA_DIR, shards=shards)
    moved = ensure_shard_count(disk, settings, store, lambda done, total: None, opened)
    assert (moved.shards, moved.moving_to) == (shards, None)
    assert moved.id, "a new history"


@pytest.fixture(scope="module")
def start() -> tuple[FakeDisk, Content]:
    clock = ManualClock()
    disk = filled_disk(clock)
    return disk, contents(disk.clone(), 1, clock)


@pytest.mark.parametrize("path", [(3,), (3, 2), (2, 1), (5, 1, 4)])
def test_p08_topics_move_whole(start: tuple[FakeDisk, Content], path: tuple[int, ...]) -> None:
    disk, before = start[0].clone(), start[1]
    clock = ManualClock()
    for shards in path:
        move(disk, shards, clock)
    assert contents(disk, path[-1], clock) == before


def test_p08_an_idempotency_key_moves_with_its_topic(start: tuple[FakeDisk, Content]) -> None:
    disk, clock = start[0].clone(), ManualClock()
    move(disk, 3, clock)
    driver = MovingDriver(disk, shard_for(TOPICS[2], 3), clock)
    repeat = driver.append(TOPICS[2], [{"data": "again"}], idempotency_key="once")
    assert repeat.json["deduped"] is True


def cut_and_finish(disk: FakeDisk, cut_at: int, *, half: bool, then: int, clock: ManualClock) -> bool:
    """Move to 3 shards, cut after `cut_at` calls, lose power, then move to `then`. False: it was not cut."""
    disk.crash_after(cut_at, half=half, seed=cut_at)
    try:
        move(disk, 3, clock)
    except PowerCut:
        disk.lose_power(seed=cut_at)
        move(disk, then, clock)
        return True
    return False


def calls_of_a_move(start: FakeDisk) -> int:
    disk = start.clone()
    before = disk.calls
    move(disk, 3, ManualClock())
    return disk.calls - before


def check_cuts(start: tuple[FakeDisk, Content], points: list[int]) -> None:
    for point in points:
        for half in (False, True):
            for then in (3, 2):
                disk, clock = start[0].clone(), ManualClock()
                assert cut_and_finish(disk, point, half=half, then=then, clock=clock), point
                assert contents(disk, then, clock) == start[1], (point, half, then)


def test_p08_a_move_cut_anywhere_is_finished_by_the_next_start(start: tuple[FakeDisk, Content]) -> None:
    total = calls_of_a_move(start[0])
    assert total > 50
    check_cuts(start, sorted({1, total - 1, *range(3, total, total // 10)}))


@pytest.mark.exhaustive
def test_p08_a_move_cut_at_every_call_is_finished_by_the_next_start(start: tuple[FakeDisk, Content]) -> None:
    total = calls_of_a_move(start[0])
    check_cuts(start, list(range(1, total)))
    print(f"crash points of a move tried: {(total - 1) * 4}, losses: 0")


class Stopped(Exception):
    pass


def test_p08_a_move_that_is_told_to_stop_is_finished_by_the_next_start(
    start: tuple[FakeDisk, Content], monkeypatch: pytest.MonkeyPatch
) -> None:
    # One topic per step, so that there are places to stop at.
    monkeypatch.setattr("shard_worker.moving.MOVE_PASS_TOPICS", 1)
    disk, before = start[0].clone(), start[1]
    clock = ManualClock()
    settings = replace(Settings(), data_dir=DATA_DIR, cold_dir=None, wal_shards=3, min_free_bytes=0)

    @contextmanager
    def opened(number: int) -> Iterator[Shard]:
        yield open_shard(disk, settings, number, clock)

    moved = 0

    def progress(done: int, total: int) -> None:
        nonlocal moved
        moved = done

    def proceed() -> None:
        if moved >= 2:
            raise Stopped

    store = open_store(disk, DATA_DIR, shards=3)
    with pytest.raises(Stopped):
        ensure_shard_count(disk, settings, store, progress, opened, proceed)
    assert moved == 2
    assert open_store(disk, DATA_DIR, shards=3).moving_to == 3
    move(disk, 3, clock)
    assert contents(disk, 3, clock) == before
