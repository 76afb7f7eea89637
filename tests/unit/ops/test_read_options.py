"""Options of the data source: what is wrong is said with what would be right, before any file is read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from ops.coldstore.places import NoStore
from ops.coldstore.record_rows import record_rows
from ops.coldstore.source import BadOption, ReadOptions, Unopened, pack_places, plan_bins, plan_tasks
from shared.cold_plan import BIN_BYTES, Bin, Query, SegmentSlice
from shared.errors import CorruptSegment
from shared.io.durable_fs import RealFileSystem
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


def test_planning_opens_no_file_that_fits_into_a_task_and_the_records_are_the_same(tmp_path: Path) -> None:
    with store_in(tmp_path / "store", hot_retain_segments=1) as (driver, paths):
        fill(driver, ["t", "u"], segments=4)
        driver.delete_records("t", match=["tag", "Eq", "tag-1"])
        driver.delete_records("u", before_seq=50)
        driver.relocate()
        driver.snapshot()
    options = ReadOptions.parse({"path": paths.data, "cold": paths.cold})
    one_by_one = plan_bins(replace(options, bin_bytes=1))
    assert all(isinstance(work, Bin) for work in plan_tasks(replace(options, bin_bytes=1))), "none fits"
    (work,) = plan_tasks(options)
    assert isinstance(work, Unopened)
    for segments in ([1, 2, 3, 4], [2]):
        kept = frozenset(segments)
        shown = list(pack_places([p for p in work.places if p.number in kept], work.rules, 1 << 30))
        found = [each.open(RealFileSystem(), options.query) for each in shown]
        assert all(rule.segments <= kept for each in shown for rule in each.rules[0].values())
        expected = [part for part in _slices(one_by_one) if part.number in kept]
        assert _seqs(_slices(found), options) == _seqs(expected, options) != []
    Path(paths.cold, "shard-0000/data/0000000002.seg").write_bytes(b"")
    plan_tasks(options)
    with pytest.raises(CorruptSegment, match=r"0000000002\.seg"):
        plan_bins(options)


def _slices(bins: Iterable[Bin]) -> list[SegmentSlice]:
    return [part for work in bins for part in work.slices]


def _seqs(slices: list[SegmentSlice], options: ReadOptions) -> list[tuple[str, int]]:
    batches = record_rows(RealFileSystem(), Bin(tuple(slices)), ("topic", "seq"), options.query)
    return sorted((row["topic"], row["seq"]) for batch in batches for row in batch.to_pylist())
