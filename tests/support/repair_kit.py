"""What the tests of repair share: a shard with records everywhere, and what must be true when it was repaired.

`expect_whole` opens the shard, reads everything, compares with what was written and asks a reader at seq 0 to account
for every seq: as a record, or as part of a tombstone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shard_worker.disk.repair import RepairReport, repair_shard
from shard_worker.disk.survey import Survey, survey_shard
from tests.support.fake_disk import FakeDisk
from tests.support.fault_kit import (
    ROOMY,
    SEGMENTS_DIR,
    reopened,
)
from tests.support.shard_driver import ShardDriver

TOPICS = ("a", "b")
Damage = Callable[[ShardDriver], None]


def survey(driver: ShardDriver) -> Survey:
    now = driver.clock.now_ms
    return survey_shard(
        driver.disk, driver.settings, 0, now, lambda *_: None, wal_file_bytes=driver.wal_file_bytes
    )


def repair(driver: ShardDriver, *, dry: bool = False) -> RepairReport:
    now = driver.clock.now_ms
    return repair_shard(
        driver.disk, driver.settings, 0, now, lambda *_: None, dry=dry, wal_file_bytes=driver.wal_file_bytes
    )


def content(disk: FakeDisk) -> dict[str, bytes]:
    return {path: disk.read_file(path) for path in disk.files()}


def furnished(*, stop: bool = True, small: bool = False) -> ShardDriver:
    """Records in the cold tier, in a hot segment, in log files before and behind the newest snapshot."""
    driver = ShardDriver(wal_file_bytes=4096 if small else ROOMY)
    for name in TOPICS:
        driver.put(name, durable=True)
    for part in range(6):
        for name in TOPICS:
            for n in range(4):
                records = [{"data": f"{name}{part}{n}{i}" + "x" * 20, "tag": f"t{i}"} for i in range(3)]
                driver.append(name, records)
        if part in (0, 1, 2):
            driver.seal()
        if part in (2, 4):
            driver.snapshot()
        if part == 2:
            driver.relocate()
    if stop:
        driver.settle()
        driver.disk.kill_process()
    return driver


WRITTEN = {
    name: [f"{name}{part}{n}{i}" + "x" * 20 for part in range(6) for n in range(4) for i in range(3)]
    for name in TOPICS
}


def story(driver: ShardDriver, topic: str) -> tuple[dict[int, Any], set[int]]:
    """What a reader from the beginning is told: records by seq, and the seqs in tombstones."""
    records: dict[int, Any] = {}
    told: set[int] = set()
    at = 0
    while True:
        answer = driver.read(topic, at, limit=7)
        if answer["tombstone"] is not None:
            gap = answer["tombstone"]
            told |= set(range(gap["gap_from"], gap["gap_to"] + 1))
        records |= {record["$seq"]: record["data"] for record in answer["records"]}
        if answer["caught_up"]:
            return records, told
        assert answer["next_from_seq"] > at
        at = answer["next_from_seq"]


def expect_whole(driver: ShardDriver, report: RepairReport) -> dict[str, set[int]]:
    """The repaired shard serves; returns the lost seqs by topic, which are exactly those that were reported."""
    twin = reopened(driver)
    twin.reopen()
    assert twin.shard.report.damage == []
    lost = {}
    for name in TOPICS:
        records, told = story(twin, name)
        for seq, data in records.items():
            assert data == WRITTEN[name][seq - 1]
        lost[name] = set(range(1, len(WRITTEN[name]) + 1)) - records.keys()
        assert not records.keys() & told
        assert lost[name] <= told, f"{name}: {sorted(lost[name] - told)} are lost silently"
        reported = {
            seq for loss in report.losses if loss.topic == name for seq in range(loss.first, loss.last + 1)
        }
        assert reported == told
        state = twin.state(name).json
        assert state["count"] == len(records)
        answer = twin.append(name, [{"data": "after"}])
        assert answer.ok
        assert answer.json["first_seq"] > len(WRITTEN[name]), "an acked seq was given out twice"
    twin.close()
    assert survey(twin).damage == []
    return lost


def repaired(driver: ShardDriver) -> dict[str, set[int]]:
    """Damage is found, a dry run changes nothing and says the same, and the repair leaves nothing to find."""
    assert survey(driver).damage
    before = content(driver.disk)
    planned = repair(driver, dry=True)
    assert content(driver.disk) == before
    report = repair(driver)
    assert report.damage and report == planned
    after = survey(driver)
    assert after.damage == []
    evidence = set(content(driver.disk).values())
    assert set(before.values()) <= evidence, "a file is gone"
    return expect_whole(driver, report)


def hot_segment(driver: ShardDriver) -> str:
    return f"{SEGMENTS_DIR}/{driver.disk.list_dir(SEGMENTS_DIR)[-1]}"
