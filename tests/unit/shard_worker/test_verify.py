"""Checking the files of a shard that goes on working: what it removes or moves meanwhile is no damage."""

from __future__ import annotations

from collections.abc import Callable

from shard_worker.core.shard_state import TIER_COLD
from shard_worker.disk.shard_paths import shard_paths
from shard_worker.disk.verify import SegmentFact, ShardFacts, Verification
from tests.support.fault_kit import segment_path, wal_numbers, wal_path
from tests.support.shard_driver import ShardDriver


def facts_of(driver: ShardDriver) -> ShardFacts:
    state, wal = driver.engine.state, driver.engine.wal
    return ShardFacts(
        min(wal.files),
        wal.written,
        {
            number: SegmentFact(number, entry.tier, entry.size, entry.digest, entry.runs > 0)
            for number, entry in state.segments.items()
        },
    )


def damage(
    driver: ShardDriver, facts: ShardFacts, refresh: Callable[[], ShardFacts] | None = None
) -> list[str]:
    paths = shard_paths(driver.settings, 0)
    check = Verification(driver.disk, paths, 0, facts, lambda *_: None, refresh)
    check.run()
    return [str(found) for found in check.damage]


def busy() -> ShardDriver:
    driver = ShardDriver()
    for _ in range(2):
        for _n in range(20):
            driver.append("t", [{"data": "v" * 200}], config={"durable": True})
        driver.seal()
    return driver


def test_files_that_are_trimmed_or_moved_while_they_are_read_are_no_damage() -> None:
    driver = busy()
    before = facts_of(driver)
    assert damage(driver, before) == []
    for _ in range(3):
        driver.snapshot()
    assert driver.relocate() == 1
    assert before.first_file < min(wal_numbers(driver.disk))
    assert driver.engine.state.segments[1].tier == TIER_COLD and not driver.disk.exists(segment_path(1))
    assert damage(driver, before, lambda: facts_of(driver)) == []
    # The same facts about a shard that nobody writes to would mean that files are missing.
    assert len(damage(driver, before)) == before_files(before, driver) + 1


def before_files(before: ShardFacts, driver: ShardDriver) -> int:
    return min(wal_numbers(driver.disk)) - before.first_file


def test_files_that_a_worker_still_needs_are_missed() -> None:
    driver = busy()
    facts = facts_of(driver)
    driver.disk.remove(wal_path(facts.first_file))
    driver.disk.remove(segment_path(1))
    found = damage(driver, facts, lambda: facts)
    assert len(found) == 2 and all("missing" in text for text in found)


def test_what_is_written_behind_the_end_that_was_told_is_not_looked_at() -> None:
    driver = busy()
    facts = facts_of(driver)
    file_no, offset = facts.end >> 32, facts.end & 0xFFFFFFFF
    driver.disk.overwrite(wal_path(file_no), offset, b"TFR1 half a frame of a write under way")
    assert damage(driver, facts, lambda: facts) == []
