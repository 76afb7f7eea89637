"""Router copies against their source: the audit compares data and key, and counts copies that were made twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.audit_kit import kinds, run_audit
from tests.support.cold_stores import rows, store_in
from tests.support.shard_driver import ShardDriver


def copy_of(driver: ShardDriver, source: str, seq: int) -> dict[str, Any]:
    (record,) = driver.read(source, seq - 1, inline=True, include_keys=True, limit=1)["records"]
    epoch = driver.engine.state.catalog.visible[source].epoch
    mark = {"router": "r1", "source": source, "epoch": epoch, "seq": seq}
    key = {"key": record["$key"]} if "$key" in record else {}
    return {"data": record["data"], "meta": {**record.get("meta", {}), "_topics_router": mark}, **key}


def change_nothing(copies: list[dict[str, Any]]) -> None:
    pass


def change_data(copies: list[dict[str, Any]]) -> None:
    copies[4]["data"] = {"n": "forged"}


def change_key(copies: list[dict[str, Any]]) -> None:
    copies[4]["key"] = "another"


def copy_twice(copies: list[dict[str, Any]]) -> None:
    copies.insert(4, copies[3])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (change_nothing, None),
        (change_data, "router r1 copied seq 5 of source, which holds something else"),
        (change_key, "router r1 copied seq 5 of source, which holds something else"),
        (copy_twice, "seq 4 of source was copied before, as seq 4"),
    ],
)
def test_a_copy_that_differs_from_its_source_is_named(tmp_path: Path, change: Any, told: str | None) -> None:
    with store_in(tmp_path, hot_retain_segments=1) as (driver, paths):
        driver.append("source", rows(1, 20))
        copies = [copy_of(driver, "source", seq) for seq in range(1, 16)]
        change(copies)
        driver.append("dest", copies)
        driver.append("dest", [{"data": {"text": '"_topics_router"'}, "meta": {"_topics_router": "mine"}}])
        driver.seal()
        driver.append("source", rows(21, 5))
        driver.seal()
        driver.relocate()
    report = run_audit(paths)
    if told is None:
        assert kinds(report) == {}
        return
    assert kinds(report) == {"copy_differs": 1}
    (found,) = [each for each in report.findings if each["kind"] == "copy_differs"]
    assert (found["reason"], found["topic"], found["first_seq"]) == (told, "dest", 5)
    assert found["path"] == f"{paths.cold_shard}/data/0000000001.seg"


def test_a_source_that_is_gone_is_a_notice(tmp_path: Path) -> None:
    with store_in(tmp_path) as (driver, paths):
        driver.append("source", rows(1, 3))
        driver.append("dest", [copy_of(driver, "source", 2)])
        driver.seal()
        driver.delete_topic("source")
    report = run_audit(paths)
    assert (kinds(report), report.totals.notices) == ({}, 1)
    assert report.findings[0]["kind"] == "router_source_gone"
