"""A repair that is killed at any of its changes to the disk is finished by the next one, and costs no more."""

from __future__ import annotations

import pytest

from shared.errors import DataDamage
from shared.wal_format import JSON_OFFSET
from tests.support.fake_disk import PowerCut
from tests.support.fault_kit import (
    COLD_SHARD_DIR,
    KEEPS,
    appends,
    cold_path,
    expect_read_only_for_damage,
    flip_in_frame,
    flip_in_segment,
    reopened,
    segment_parts,
)
from tests.support.repair_kit import (
    TOPICS,
    WRITTEN,
    content,
    expect_whole,
    furnished,
    hot_segment,
    repair,
    story,
    survey,
)
from tests.support.shard_driver import ShardDriver, small_limits


def badly_hurt() -> ShardDriver:
    """Damage in a log file in front of the snapshot and behind it, in a segment of each tier, and in the manifest."""
    driver = furnished()
    for frame in (appends(driver.disk)[-16], appends(driver.disk)[-5]):
        flip_in_frame(driver.disk, frame, JSON_OFFSET + 3)
    for path in (hot_segment(driver), cold_path(1)):
        block = segment_parts(driver.disk, path).blocks[0]
        flip_in_segment(driver.disk, path, block.offset + block.length - 12)
    newest = max(name for name in driver.disk.list_dir(COLD_SHARD_DIR) if name.startswith("manifest"))
    driver.disk.flip_bit(f"{COLD_SHARD_DIR}/{newest}", 150, 2)
    return driver


@pytest.mark.parametrize("stride", [11, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_a_repair_that_is_killed_anywhere_is_finished_by_the_next_and_costs_no_more(stride: int) -> None:
    with small_limits():
        hurt = badly_hurt()
        original = set(content(hurt.disk).values())
        uncut = reopened(hurt)
        uncut.disk = hurt.disk.clone()
        wanted = expect_whole(uncut, repair(uncut))
        assert 0 < sum(map(len, wanted.values())) < 40
        step = 0
        while True:
            step += stride
            driver = reopened(hurt)
            driver.disk = hurt.disk.clone()
            driver.disk.crash_after(step, half=True, seed=step)
            try:
                repair(driver)
            except PowerCut:
                pass
            else:
                break
            keep, seed = KEEPS[step % len(KEEPS)]
            driver.disk.lose_power(seed + step, keep)
            expect_started_honestly(driver, wanted)
            repair(driver)
            assert survey(driver).damage == []
            kept = set(content(driver.disk).values())
            assert original <= kept, f"step {step}: evidence is gone"
            assert served(driver) == wanted, f"step {step}"
        assert step > 30


def expect_started_honestly(driver: ShardDriver, wanted: dict[str, set[int]]) -> None:
    """Somebody starts the server between the two: it refuses, or takes no writes, or is repaired already."""
    twin = reopened(driver)
    twin.disk = driver.disk.clone()
    try:
        twin.reopen()
    except DataDamage:
        return
    if twin.shard.report.damage:
        expect_read_only_for_damage(twin)
    else:
        assert served(twin) == wanted


def served(driver: ShardDriver) -> dict[str, set[int]]:
    """The lost seqs by topic, of which readers are told."""
    driver.reopen()
    assert driver.shard.report.damage == []
    lost = {}
    for name in TOPICS:
        records, told = story(driver, name)
        assert all(data == WRITTEN[name][seq - 1] for seq, data in records.items())
        lost[name] = set(range(1, len(WRITTEN[name]) + 1)) - records.keys()
        assert lost[name] <= told
    assert driver.append("a", [{"data": "after"}]).ok
    return lost
