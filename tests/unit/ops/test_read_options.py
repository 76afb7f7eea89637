"""Options of the data source: what is wrong is said with what would be right, before any file is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from ops.coldstore.places import NoStore
from ops.coldstore.source import BadOption, ReadOptions, plan_bins
from shared.cold_plan import BIN_BYTES, Query
from tests.support.cold_stores import fill, store_in


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "say where the store is"),
        ({"path": "/x", "mode": "lines"}, "mode is records, keys or blocks"),
        ({"path": "/x", "columns": "seq,colour"}, "there is no column colour in mode records"),
        ({"path": "/x", "mode": "blocks", "columns": "data"}, "there is no column data in mode blocks"),
        ({"path": "/x", "from_seq": "x"}, "from_seq is a whole number"),
    ],
)
def test_a_wrong_option_says_what_is_right(options: dict[str, str], told: str) -> None:
    with pytest.raises(BadOption, match=told):
        ReadOptions.parse(options)


def test_what_is_left_out_means_everything() -> None:
    found = ReadOptions.parse({"path": "/x"})
    assert (found.query, found.bin_bytes, found.include_deleted) == (Query(), BIN_BYTES, False)
    assert found.columns[0] == "topic" and "data" in found.columns


def test_a_place_without_a_store_and_a_cold_segment_without_its_directory_are_said(tmp_path: Path) -> None:
    with pytest.raises(NoStore, match="no data directory"):
        plan_bins(ReadOptions.parse({"path": str(tmp_path)}))
    with store_in(tmp_path / "store", hot_retain_segments=1) as (driver, paths):
        fill(driver, ["t"], segments=2)
        driver.relocate()
    with pytest.raises(NoStore, match="is in the cold tier: name its directory"):
        plan_bins(ReadOptions.parse({"path": paths.data}))
    (work,) = plan_bins(ReadOptions.parse({"path": paths.data, "cold": paths.cold}))
    assert [each.number for each in work.slices] == [1, 2]
