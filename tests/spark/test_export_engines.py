"""Spark exports what the local engine exports, and Spark SQL reads it as the docs print it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from ops.coldstore.export import LocalExport, run_export
from ops.coldstore.export_spark import SparkExport
from tests.unit.ops.test_export import DOCS, seal, shard, write

# On a busy machine Spark alone takes minutes to start.
pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(600)]


def rows(out: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for path in sorted(out.glob("topic=*/day=*/*.parquet")):
        part = str(path.parent.relative_to(out))
        found += [{"part": part, **row} for row in pq.ParquetFile(path).read().to_pylist()]
    return sorted(found, key=lambda row: (row["part"], row["epoch"], row["seq"]))


def test_spark_exports_what_the_local_engine_exports(spark: Any, tmp_path: Path) -> None:
    driver = shard(tmp_path)
    for _ in range(3):
        write(driver, "orders", 20)
        write(driver, "news:eu", 3)
        seal(driver)
    driver.delete_records("orders", match=["tag", "Eq", "t1"])
    driver.snapshot()
    places = (str(tmp_path / "data"), str(tmp_path / "cold"))
    _, local = run_export(*places, str(tmp_path / "local"), LocalExport(), now_ms=1, bin_bytes=800)
    _, by_spark = run_export(*places, str(tmp_path / "spark"), SparkExport(spark), now_ms=1, bin_bytes=800)
    assert local == by_spark == 39
    assert rows(tmp_path / "local") == rows(tmp_path / "spark")
    assert run_export(*places, str(tmp_path / "spark"), SparkExport(spark), now_ms=2)[1] == 0
    (printed,) = [
        block
        for block in re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
        if "read.parquet" in block
    ]
    exec(printed.replace("/data/parquet", str(tmp_path / "spark")), {"spark": spark})
    found = spark.sql("select topic, day, seq from records").collect()
    assert {row.topic for row in found} == {"orders", "news:eu"} and len(found) == 39
