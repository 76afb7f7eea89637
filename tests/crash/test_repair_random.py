"""Random stores, random damage: repair ends clean, loses nothing silently, and makes nothing up.

A reader from seq 0 must account for every seq that was ever acked: it is shown with the data that was written, or it
is in a tombstone, or somebody removed it before. The last records of all go to a topic of their own and are not judged:
damage at the very end of a log cannot be told from a torn tail.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from shard_worker.disk.repair import repair_shard
from shard_worker.disk.survey import survey_shard
from shared.errors import DataDamage
from tests.support.fake_disk import FakeDisk
from tests.support.fault_kit import snapshot_is_intact, snapshot_numbers, wal_numbers, wal_path
from tests.support.shard_driver import ShardDriver, small_limits

TOPICS = ("log", "capped", "queue")
Written = dict[str, dict[int, Any]]


def furnish(rng: random.Random) -> tuple[ShardDriver, Written, dict[str, set[int]]]:
    driver = ShardDriver(wal_file_bytes=rng.choice((2048, 8192, 1 << 16)))
    driver.put("log", durable=True)
    driver.put("capped", cap_records=12, durable=True)
    driver.put("queue", type="queue", durable=True)
    written: Written = {name: {} for name in TOPICS}
    removed: dict[str, set[int]] = {name: set() for name in TOPICS}
    for n in range(rng.randint(8, 40)):
        name = rng.choice(TOPICS)
        match rng.randrange(10):
            case 0 | 1 | 2 | 3 | 4:
                batch = [
                    {"data": f"{n}.{i}" + "y" * rng.randrange(30), "tag": f"t{i}"}
                    for i in range(rng.randint(1, 4))
                ]
                first = driver.append(name, batch).json["first_seq"]
                written[name] |= {first + i: record["data"] for i, record in enumerate(batch)}
            case 5:
                driver.delete_records(name, match=["tag", "Eq", "t1"])
            case 6:
                driver.delete_records(name, before_seq=rng.randint(1, len(written[name]) + 1))
            case 7:
                driver.seal([rng.choice(TOPICS)] if rng.randrange(2) else None)
            case 8:
                driver.snapshot()
            case 9:
                driver.relocate()
    for name in TOPICS:
        shown = {record["$seq"] for record in driver.read_all(name, 0)}
        removed[name] = written[name].keys() - shown
    for n in range(3):
        driver.append("last", [{"data": n}], config={"durable": True})
    if rng.randrange(2):
        driver.close()
    driver.disk.kill_process()
    return driver, written, removed


def damage(disk: FakeDisk, rng: random.Random) -> list[str]:
    done = []
    for _ in range(rng.randint(1, 3)):
        path = rng.choice(disk.files())
        # A newest log file that ends early is a torn tail to everyone.
        last = path == wal_path(wal_numbers(disk)[-1])
        size = len(disk.read_file(path).rstrip(b"\0"))
        match rng.randrange(8) if not last else 7:
            case 0:
                disk.remove(path)
                done.append(f"removed {path}")
            case 1:
                disk.resize(path, rng.randrange(size + 1))
                done.append(f"cut {path}")
            case 2:
                at = rng.randrange(max(size, 1))
                disk.overwrite(path, at, bytes(rng.randrange(1, 200)))
                done.append(f"zeros in {path} at {at}")
            case _:
                at = rng.randrange(max(size, 1))
                disk.flip_bit(path, at, rng.randrange(8))
                done.append(f"a bit of {path} at {at}")
    return done


def story(driver: ShardDriver, topic: str) -> tuple[dict[int, Any], set[int]]:
    records: dict[int, Any] = {}
    told: set[int] = set()
    at = 0
    while True:
        answer = driver.read(topic, at, limit=5)
        assert "error" not in answer, answer
        if (gap := answer["tombstone"]) is not None:
            told |= set(range(gap["gap_from"], min(gap["gap_to"], 500) + 1))
        records |= {record["$seq"]: record["data"] for record in answer["records"]}
        if answer["caught_up"]:
            return records, told
        assert answer["next_from_seq"] > at
        at = answer["next_from_seq"]


def check(seed: int) -> str:
    rng = random.Random(seed)
    driver, written, removed = furnish(rng)
    done = damage(driver.disk, rng)
    arguments = (driver.disk, driver.settings, 0, driver.clock.now_ms, lambda *_: None)
    kept = {path: driver.disk.read_file(path) for path in driver.disk.files()}
    try:
        report = repair_shard(*arguments, wal_file_bytes=driver.wal_file_bytes)
    except DataDamage as err:
        assert not any(snapshot_is_intact(driver.disk, number) for number in snapshot_numbers(driver.disk)), (
            err,
            done,
        )
        assert {path: driver.disk.read_file(path) for path in driver.disk.files()} == kept
        return "refused"
    found = set(map(driver.disk.read_file, driver.disk.files()))
    assert set(kept.values()) <= found, done
    assert survey_shard(*arguments, wal_file_bytes=driver.wal_file_bytes).damage == [], done
    driver.reopen()
    assert driver.shard.report.damage == [], done
    forgotten = any("whose name is in an unreadable part" in note for note in report.notes)
    beginning = any("0000000001.wal" in text or "/wal:" in text for text in report.damage)
    for name in TOPICS:
        if name not in driver.engine.state.catalog.visible:
            assert forgotten or beginning, (name, done)
            continue
        records, told = story(driver, name)
        for seq, data in records.items():
            assert written[name].get(seq) == data, (name, seq, done)
        silent = written[name].keys() - records.keys() - told - removed[name]
        assert not silent, (name, sorted(silent), done, report)
        state = driver.state(name).json
        assert state["count"] == len(records), (name, done)
        if name == "queue":
            assert state["queue"]["ready"] == len(records)
        answer = driver.append(name, [{"data": "after"}])
        assert answer.ok, answer.text
        assert answer.json["first_seq"] > max(written[name], default=0), (name, done)
    return "repaired" if report.damage else "clean"


@pytest.mark.parametrize("part", [0, *(pytest.param(n, marks=pytest.mark.exhaustive) for n in range(1, 20))])
def test_no_loss_is_silent_whatever_was_damaged(part: int) -> None:
    with small_limits():
        outcomes = [check(1000 * part + seed) for seed in range(30)]
    assert outcomes.count("repaired") > 10, outcomes
