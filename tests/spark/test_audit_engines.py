"""Spark finds what the plain loop finds, on whole stores and on damaged ones."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from ops.coldstore.engines import SparkEngine
from shared.audit_report import Report
from shared.cold_plan import BIN_BYTES
from tests.support.audit_kit import (
    cold_segments,
    flip_byte,
    forge_segment,
    hot_segments,
    kinds,
    regions,
    run_audit,
)
from tests.support.cold_stores import StorePaths, rows, store_in

# A JVM on a busy machine may take minutes to start.
pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(600)]


def generated(directory: Path, seed: int) -> StorePaths:
    """Topics of many sizes, deletes, router copies, sealed and moved at random places."""
    rng = random.Random(seed)
    names = [f"topic-{number}" for number in range(rng.randint(2, 6))]
    with store_in(directory, hot_retain_segments=rng.randint(1, 2)) as (driver, paths):
        driver.put("capped", cap_records=60)
        for _ in range(rng.randint(3, 6)):
            for name in [*rng.sample(names, 2), "capped"]:
                driver.append(name, rows(1, rng.choice([1, 5, 40])))
            driver.clock.advance(rng.randint(0, 3))
            if rng.random() < 0.6:
                driver.delete_records(rng.choice(names), match=["tag", "Eq", f"tag-{rng.randint(0, 4)}"])
            driver.append("copies", [_copy(driver, "capped")])
            driver.seal()
        driver.relocate()
    return paths


def _copy(driver: Any, source: str) -> dict[str, Any]:
    """The last record of the source, as a router would copy it."""
    record = driver.read_all(source, inline=True, include_keys=True)[-1]
    epoch = driver.engine.state.catalog.visible[source].epoch
    mark = {"router": "r", "source": source, "epoch": epoch, "seq": record["$seq"]}
    key = {"key": record["$key"]} if "$key" in record else {}
    return {"data": record["data"], "meta": {"_topics_router": mark}, **key}


def comparable(report: Report) -> tuple[object, ...]:
    return (report.totals, report.findings, report.segments, report.topics, report.shards, report.verdict)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_spark_audit_equals_the_local_one(spark: Any, tmp_path: Path, seed: int) -> None:
    paths = generated(tmp_path, seed)
    engine = SparkEngine(spark)
    before = run_audit(paths)
    assert kinds(before) == {}
    assert comparable(run_audit(paths, engine=engine)) == comparable(before)
    files = [*cold_segments(paths), *hot_segments(paths)]
    rng = random.Random(seed)
    victim, forged, *_ = rng.sample(files, 2)
    flip_byte(victim, rng.choice(list(regions(victim).values())))
    forge_segment(forged, lambda json: json.replace(b"record ", b"forged "))
    local, spread = run_audit(paths, before), run_audit(paths, before, engine=engine)
    assert local.totals.errors >= 2
    assert comparable(spread) == comparable(local)
    whole = run_audit(paths, before, engine=engine, bin_bytes=BIN_BYTES)
    assert comparable(whole) == comparable(local), "files that are read whole, in one task"
