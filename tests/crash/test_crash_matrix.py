"""One workload that touches everything, cut after every change it makes to the file system.

At each point the power goes (keeping nothing, everything or a random part of what was not synced) or the process is
killed, the shard recovers, the oracles of `CheckedShard` judge it, and it must go on working. Recovery itself is cut,
too. `make test` takes an even spread of points, `make test-exhaustive` all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self

import pytest

from tests.support.checked_shard import CheckedShard
from tests.support.fake_disk import FakeDisk, Keep, PowerCut
from tests.support.shard_driver import small_limits

POINTS_IN_CI = 90
RECOVERY_POINTS_IN_CI = 16
CLASSES = ("fsync", "disk", "memory", "ephemeral")
Fate = tuple[Keep | None, int]  # what is kept of the unsynced, and the seed; None: only the process dies


@pytest.fixture(autouse=True)
def _low_limits() -> Iterator[None]:
    with small_limits():
        yield


class ArmedDisk(FakeDisk):
    """Stays armed over the restarts of the workload, until its point is reached."""

    def kill_process(self) -> Self:
        armed = None if self._powerless else self._crash
        super().kill_process()
        self._crash = armed
        return self


class Workload:
    """Always the same steps in the same order."""

    def __init__(self) -> None:
        self.shard = CheckedShard(ArmedDisk(), open=False)
        self._serial = 0

    def run(self) -> None:
        shard = self.shard
        shard.driver.reopen()
        self._create()
        for durability in CLASSES:
            self._write(durability, 3)
        self._stage_and_sync()
        self._delete_and_configure()
        shard.seal()
        for durability in CLASSES:
            self._write(durability, 2)
        shard.snapshot()
        self._delete_topic()
        shard.seal()
        shard.relocate()
        shard.delete_records("fsync", match=("key", "Eq", "k1"))
        shard.snapshot()
        shard.kill()
        self._expire()
        for durability in CLASSES:
            self._write(durability, 2, size=300)
        shard.seal(["fsync", "memory"])
        shard.relocate()
        shard.snapshot()
        shard.check_everything()
        shard.close_and_reopen()
        self._stage_and_sync()
        shard.seal()
        shard.delete_records("disk", before=1000)
        shard.snapshot()
        shard.snapshot()
        self._write("disk", 2)
        shard.commit()

    def _records(self, count: int, size: int) -> list[dict[str, Any]]:
        records = []
        for _ in range(count):
            self._serial += 1
            record: dict[str, Any] = {"data": f'"{self._serial}{"x" * size}"'}
            if self._serial % 2:
                record["tag"] = f"t{self._serial % 3}"
            if self._serial % 3 == 0:
                record["key"] = f"k{self._serial % 2}"
            records.append(record)
        return records

    def _write(self, name: str, calls: int, *, size: int = 40, wait: str = "answered") -> None:
        for call in range(calls):
            idem = f"i{self._serial}" if call == 0 else None
            self.shard.append(name, self._records(1 + call * 2, size), node="n1", idem=idem, wait=wait)

    def _create(self) -> None:
        for durability in CLASSES:
            self.shard.put(durability, {"durability": durability})

    def _stage_and_sync(self) -> None:
        """Several topics in one group, a second group behind it, one sync for both."""
        shard = self.shard
        for durability in CLASSES:
            self._write(durability, 1, wait="staged")
        shard.commit()
        self._write("fsync", 1, wait="committed")
        shard.begin_sync(run=True)
        self._write("disk", 1, wait="committed")
        shard.finish_sync()
        shard.sync()

    def _delete_and_configure(self) -> None:
        shard = self.shard
        shard.delete_records("fsync", before=3)
        shard.delete_records("disk", match=("tag", "Glob", "t"))
        shard.put("memory", {"cap_records": 4})
        shard.put("disk", {"durability": "fsync"})
        self._write("disk", 1)
        shard.put("disk", {"durability": "disk"})

    def _delete_topic(self) -> None:
        shard = self.shard
        shard.append("gone", self._records(2, 40), config={"durability": "fsync"})
        shard.delete_topic("gone", wait="committed")
        shard.append("gone", self._records(1, 40), config={"durability": "fsync"})

    def _expire(self) -> None:
        shard = self.shard
        shard.put("memory", {"ttl_ms": 1000})
        shard.driver.clock.advance(1500)
        shard.read("memory")
        shard.commit()


def run_until_cut(point: int, *, half: bool) -> CheckedShard:
    """The shard whose power is off at the `point`-th change."""
    workload = Workload()
    workload.shard.disk.crash_after(point, half=half, seed=point)
    try:
        workload.run()
    except PowerCut:
        workload.shard._take_answers()
    else:
        raise AssertionError(f"point {point} lies behind the end")
    return workload.shard


def count_points() -> int:
    workload = Workload()
    workload.run()
    return workload.shard.disk.calls


def stop(disk: FakeDisk, fate: Fate) -> bool:
    """Returns whether unsynced bytes may have gone."""
    keep, seed = fate
    if keep is None:
        disk.kill_process()
    else:
        disk.lose_power(seed, keep)
    return keep is not None


def survives(cut: CheckedShard, fate: Fate) -> None:
    twin = cut.twin(cut.disk.clone())
    power_lost = stop(twin.disk, fate)
    twin.recover(power_lost=power_lost)
    goes_on(twin)


def survives_a_cut_recovery(cut: CheckedShard, fate: Fate, point: int, second: Fate) -> bool:
    """False if recovery was over before the second cut."""
    twin = cut.twin(cut.disk.clone())
    power_lost = stop(twin.disk, fate)
    twin.disk.crash_after(point, half=point % 2 == 0, seed=point)
    try:
        twin.driver.reopen()
        return False
    except PowerCut:
        power_lost = stop(twin.disk, second) or power_lost
    twin.recover(power_lost=power_lost)
    goes_on(twin)
    return True


def goes_on(shard: CheckedShard) -> None:
    """It can be read, written and recovered again, to the same state."""
    shard.check_everything()
    for name in [*shard.topic_names(), "new"]:
        shard.append(name, [{"data": '"after"'}])
    shard.sync()
    shard.check_everything()
    shard.check_rebuild(power_lost=True)


def spread(total: int, wanted: int) -> list[int]:
    """`wanted` points of 1…total: both ends and an even spread between them."""
    if total <= wanted:
        return list(range(1, total + 1))
    return sorted({1 + round(place * (total - 1) / (wanted - 1)) for place in range(wanted)})


def fates(point: int, seeds: int) -> list[Fate]:
    return [("none", 0), ("all", 0), (None, 0), *(("random", point * 31 + seed) for seed in range(seeds))]


def test_the_workload_touches_every_kind_of_change() -> None:
    workload = Workload()
    workload.run()
    shard = workload.shard
    files = shard.disk.files()
    counters = shard.driver.shard.maintenance.counters
    assert any(path.startswith("/cold/") and path.endswith(".seg") for path in files)
    assert counters.seals >= 1 and counters.snapshots >= 2
    # The log was rotated and trimmed.
    assert min(path for path in files if path.endswith(".wal")) > "/data/shard-0000/wal/0000000001.wal"
    shard.check_everything()


def test_nothing_synced_is_lost_at_sampled_crash_points() -> None:
    for point in spread(count_points(), POINTS_IN_CI):
        cut = run_until_cut(point, half=point % 2 == 1)
        for fate in fates(point, seeds=1):
            survives(cut, fate)


def test_recovery_can_be_cut_short_and_repeated() -> None:
    for point in spread(count_points(), RECOVERY_POINTS_IN_CI):
        cut = run_until_cut(point, half=False)
        for at in (1, 2, 4, 7, 11):
            if not survives_a_cut_recovery(cut, ("random", point), at, ("random", point + at)):
                break
            survives_a_cut_recovery(cut, (None, 0), at, ("none", 0))


@pytest.mark.exhaustive
def test_nothing_synced_is_lost_at_any_crash_point() -> None:
    total, tried, losses = count_points(), 0, 0
    for point in range(1, total + 1):
        for half in (False, True):
            cut = run_until_cut(point, half=half)
            for fate in fates(point, seeds=6):
                survives(cut, fate)
                tried += 1
    print(f"\ncrash points tried: {tried} ({total} places), losses: {losses}")


@pytest.mark.exhaustive
def test_recovery_can_be_cut_anywhere() -> None:
    total, tried, losses = count_points(), 0, 0
    for point in spread(total, total // 2):
        cut = run_until_cut(point, half=point % 2 == 1)
        for first, second in ((("random", point), ("random", point + 1)), ((None, 0), ("random", point))):
            at = 1
            while survives_a_cut_recovery(cut, first, at, second):
                at, tried = at + 1, tried + 1
    print(f"\ncrash points during recovery tried: {tried}, losses: {losses}")
