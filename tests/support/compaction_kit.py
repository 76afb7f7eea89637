"""Compacting a shard on the fake disk: what a job does, what the worker does with it, and what readers must see."""

from __future__ import annotations

from typing import Any

from ops.coldstore.compact_local import compact_local
from ops.coldstore.staging import ShardPlace, load_basis
from shared.compaction import PlanOptions
from shared.staged import Staged
from tests.support.fault_kit import COLD_SHARD_DIR
from tests.support.shard_driver import COLD_DIR, DATA_DIR, ShardDriver

PLACE = ShardPlace(0, DATA_DIR, COLD_DIR)
STAGING = f"{COLD_SHARD_DIR}/staging"
RECEIPTS = f"{COLD_SHARD_DIR}/receipts"


def stage(driver: ShardDriver, job: str = "job", options: PlanOptions | None = None) -> Staged | None:
    """What a job does, from what is on disk now."""
    basis = load_basis(driver.disk, PLACE)
    if basis is None:
        return None
    return compact_local(driver.disk, PLACE, basis, job=job, now_ms=driver.clock(), options=options)


def plan_and_stage(driver: ShardDriver, job: str = "job", options: PlanOptions | None = None) -> Staged:
    driver.settle()
    assert driver.snapshot()
    staged = stage(driver, job, options)
    assert staged is not None
    return staged


def run_jobs(driver: ShardDriver, limit: int = 60) -> None:
    """Look at the staging directory, and do everything that follows from it."""
    maintenance = driver.shard.maintenance
    assert maintenance.adoption is not None
    maintenance.adoption.scan_soon()
    idle = 0
    for _ in range(limit):
        job = maintenance.next_job()
        if job is not None:
            idle = 0
            driver.finish_job(job)
        elif not maintenance.stepping:
            idle += 1
            driver.sync()
            if idle > 2:
                return
    raise AssertionError("the work does not end")


def names(driver: ShardDriver, directory: str) -> list[str]:
    return list(driver.disk.list_dir(directory))


def seqs(driver: ShardDriver, topic: str) -> list[int]:
    return [record["$seq"] for record in driver.read_all(topic)]


def without(picture: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {
        name: {key: value for key, value in shown.items() if key not in keys}
        for name, shown in picture.items()
    }
