"""The audit finds every kind of damage and names it, and calls nothing damage that has a recorded reason.

Each test damages a copy of one clean store; that the copy is damaged, or looks clean on purpose, is shown first.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from shared.audit_report import Report
from shared.columns import COLUMN_META
from shared.manifest import Manifest, decode_manifest, encode_manifest, manifest_checksum, manifest_name
from shared.segment_reader import read_block, read_index, read_trailer
from shared.snapshot_items import SnapSegment, SnapTopic
from tests.support.audit_kit import (
    cold_segments,
    copy_store,
    edit_manifest,
    edit_snapshots,
    flip_byte,
    forge_segment,
    hot_segments,
    is_intact,
    kinds,
    newest_manifest_path,
    recompute_everything,
    regions,
    run_audit,
)
from tests.support.cold_stores import StorePaths, fill_with_history, rows, store_in
from tests.support.format_samples import pread_of

TOPICS = ("alpha", "beta", "capped", "old", "plain")


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[StorePaths, Report]]:
    with store_in(tmp_path_factory.mktemp("clean"), hot_retain_segments=2) as (driver, paths):
        fill_with_history(driver)
    report = run_audit(paths)
    assert (kinds(report), report.verdict) == ({}, "clean")
    assert [row.tier for row in report.segments] == ["cold"] * 3 + ["hot"] * 3
    assert len(report.topics) >= 3 and report.totals.live > 200
    yield paths, report


@pytest.fixture
def store(clean: tuple[StorePaths, Report], tmp_path: Path) -> StorePaths:
    return copy_store(clean[0], tmp_path)


@pytest.fixture
def before(clean: tuple[StorePaths, Report], store: StorePaths) -> Report:
    """The report of the night before, of this very copy."""
    return run_audit(store)


def test_c03_a_copy_of_a_clean_store_is_clean_with_and_without_history(
    store: StorePaths, before: Report
) -> None:
    again = run_audit(store, before)
    assert (kinds(again), again.verdict) == ({}, "clean")
    assert again.previous is not None
    assert [row.sha256 for row in again.topics] == [row.sha256 for row in before.topics]


REGIONS = {
    "file header": {"bad_header"},
    "file header checksum": {"bad_header"},
    "block magic": {"bad_block"},
    "block header": {"bad_block"},
    "block header checksum": {"bad_block"},
    "block columns": {"bad_block"},
    "block JSON": {"bad_block"},
    "block JSON checksum": {"bad_block"},
    "terms": {"bad_footer"},
    "index": {"bad_footer"},
    "trailer": {"bad_footer"},
    "trailer checksum": {"bad_footer"},
}


@pytest.mark.parametrize("tier", ["hot", "cold"])
@pytest.mark.parametrize("region", REGIONS)
def test_c03_a_flipped_bit_in_any_region_is_found_and_named(
    store: StorePaths, region: str, tier: str
) -> None:
    path = (cold_segments(store) if tier == "cold" else hot_segments(store))[0]
    places = regions(path)
    assert set(places) == set(REGIONS)
    flip_byte(path, places[region])
    report = run_audit(store)
    assert report.verdict == "findings"
    named = [found for found in report.findings if found.get("path") == path]
    assert {found["kind"] for found in named} == REGIONS[region]
    if "bad_block" in REGIONS[region]:
        (found,) = named
        assert found["topic"] in TOPICS and found["first_seq"] <= found["last_seq"]
        content = Path(path).read_bytes()
        index = read_index(pread_of(content), read_trailer(pread_of(content), len(content)))
        block = index.block(1)
        assert block.offset <= found["offset"] < block.offset + block.length
    if region not in ("index", "trailer", "trailer checksum"):
        assert sum(kinds(report).values()) == 1, "nothing else is said of it: its other blocks are audited"


def test_c03_a_flipped_bit_is_found_in_json_that_is_not_even_decompressed(store: StorePaths) -> None:
    path = cold_segments(store)[0]
    content = Path(path).read_bytes()
    index = read_index(pread_of(content), read_trailer(pread_of(content), len(content)))
    (plain,) = [topic for topic in index.topics() if topic.name == "plain"]
    block = index.block(plain.first_block)
    assert not read_block(pread_of(content), block).header.flags & COLUMN_META
    flip_byte(path, block.offset + block.length - 20)
    report = run_audit(store)
    assert kinds(report) == {"bad_block": 1}
    assert (report.findings[0]["topic"], report.findings[0]["reason"]) == ("plain", "block JSON checksum")


@pytest.mark.parametrize("length", [0, 10, 64, 200, -1, -64, -65])
def test_c03_a_truncated_file_is_found(store: StorePaths, length: int) -> None:
    path = cold_segments(store)[1]
    content = Path(path).read_bytes()
    Path(path).write_bytes(content[:length])
    assert not is_intact(path)
    report = run_audit(store)
    named = {found["kind"] for found in report.findings if found.get("path") == path}
    assert named >= {"size_differs", "bad_footer"}
    assert "gap" in kinds(report), "the records it held are named by topic and seq"


def test_c03_a_file_that_grew_is_found(store: StorePaths) -> None:
    path = cold_segments(store)[0]
    Path(path).write_bytes(Path(path).read_bytes() + b"x")
    assert not is_intact(path)
    assert {"size_differs", "bad_footer"} <= kinds(run_audit(store)).keys()


@pytest.mark.parametrize("tier", ["hot", "cold"])
def test_c03_a_missing_file_is_found_with_the_records_that_it_held(
    store: StorePaths, before: Report, tier: str
) -> None:
    path = (cold_segments(store) if tier == "cold" else hot_segments(store))[-1]
    os.unlink(path)
    report = run_audit(store, before)
    assert {"missing_file", "gap", "history_dropped"} <= kinds(report).keys()
    (found,) = [found for found in report.findings if found["kind"] == "missing_file"]
    assert found["path"] == path
    gap = next(found for found in report.findings if found["kind"] == "gap")
    assert gap["topic"] in TOPICS and gap["first_seq"] <= gap["last_seq"]


def test_c03_foreign_and_orphaned_files_are_found(store: StorePaths) -> None:
    hot = hot_segments(store)[0]
    for path in (f"{store.shard}/segments/notes.txt", f"{store.cold_shard}/data/0000000001.seg.bak"):
        Path(path).write_bytes(b"not ours")
    orphan = f"{store.cold_shard}/data/0000000099.seg"
    Path(orphan).write_bytes(Path(hot).read_bytes())
    report = run_audit(store)
    found = kinds(report)
    assert found["foreign_file"] == 2 and found["orphan_file"] == 1
    assert found["wrong_file"] == 1, "and the orphan is a segment of another number"
    Path(hot).write_bytes(b"GIF89a" * 100)
    assert not is_intact(hot)
    assert "bad_header" in kinds(run_audit(store))


def test_c03_segments_swapped_with_each_other_are_found(store: StorePaths) -> None:
    first, second, *_ = cold_segments(store)
    one, two = Path(first).read_bytes(), Path(second).read_bytes()
    Path(first).write_bytes(two)
    Path(second).write_bytes(one)
    assert is_intact(first) and is_intact(second), "each of them is whole: only its place is wrong"
    found = kinds(run_audit(store))
    assert found["wrong_file"] == 2
    assert found.get("size_differs", 0) + found.get("digest_differs", 0) == 2


def test_c03_a_segment_with_other_content_and_valid_checksums_is_not_the_recorded_one(
    store: StorePaths,
) -> None:
    path = cold_segments(store)[0]
    forge_segment(path, lambda json: json.replace(b"record 1", b"forged 1"))
    found = kinds(run_audit(store))
    assert found.keys() & {"digest_differs", "size_differs"}


def test_c05_a_half_written_manifest_is_found(store: StorePaths) -> None:
    path = newest_manifest_path(store)
    Path(path).write_bytes(Path(path).read_bytes()[:-30])
    with pytest.raises(ValueError):
        decode_manifest(Path(path).read_bytes())
    report = run_audit(store)
    assert "bad_manifest" in kinds(report)
    assert path in {found.get("path") for found in report.findings}


def test_c05_an_old_manifest_that_is_in_force_again_is_found(store: StorePaths, before: Report) -> None:
    newest = newest_manifest_path(store)
    os.unlink(newest)
    report = run_audit(store, before)
    assert {"manifest_went_back", "manifest_disagrees"} <= kinds(report).keys()
    assert "manifest_disagrees" in kinds(run_audit(store)), "also without history: the snapshot knows better"


def test_c05_an_old_manifest_replayed_under_a_new_number_is_found(store: StorePaths) -> None:
    newest = Path(newest_manifest_path(store))
    manifest = decode_manifest(newest.read_bytes())
    oldest = min(Path(store.cold_shard).glob("manifest-*"))
    replayed = decode_manifest(oldest.read_bytes())
    Path(f"{store.cold_shard}/{manifest_name(manifest.generation + 1)}").write_bytes(oldest.read_bytes())
    assert "wrong_file" in kinds(run_audit(store)), "the bytes name their own generation"
    forged = replace(replayed, generation=manifest.generation + 1)
    Path(f"{store.cold_shard}/{manifest_name(manifest.generation + 1)}").write_bytes(encode_manifest(forged))
    assert "manifest_chain" in kinds(run_audit(store))
    linked = replace(forged, previous=manifest_checksum(newest.read_bytes()))
    Path(f"{store.cold_shard}/{manifest_name(manifest.generation + 1)}").write_bytes(encode_manifest(linked))
    found = kinds(run_audit(store))
    assert "manifest_chain" not in found and found["manifest_disagrees"] == 2


def test_c05_a_manifest_that_describes_a_segment_wrongly_is_found(store: StorePaths) -> None:
    def shift(manifest: Manifest) -> Manifest:
        held = manifest.segments[0]
        topic = replace(held.topics[0], first=held.topics[0].first + 1)
        return replace(
            manifest, segments=(replace(held, topics=(topic, *held.topics[1:])), *manifest.segments[1:])
        )

    edit_manifest(store, shift)
    assert kinds(run_audit(store)) == {"manifest_disagrees": 1}


def test_c05_edited_history_is_found_although_every_checksum_was_recomputed(
    store: StorePaths, before: Report
) -> None:
    path = cold_segments(store)[0]
    size, digest = forge_segment(path, lambda json: json.replace(b"record 1", b"forged 1"))
    recompute_everything(store, 1, size, digest)
    assert kinds(run_audit(store)) == {}, "without history nothing gives it away"
    report = run_audit(store, before)
    found = kinds(report)
    assert found["history_rewritten"] >= 2, "the segment, and its topics"
    named = [found for found in report.findings if found["kind"] == "history_rewritten"]
    assert path in {found.get("path") for found in named}
    assert {"alpha", "beta"} <= {found.get("topic") for found in named}
    assert "manifest_went_back" in found, "the same generation is another file"


def test_c05_a_segment_dropped_from_every_record_is_found(store: StorePaths, before: Report) -> None:
    os.unlink(cold_segments(store)[1])

    def without(manifest: Manifest) -> Manifest:
        return replace(manifest, segments=tuple(held for held in manifest.segments if held.number != 2))

    edit_manifest(store, without)

    def topic_without(topic: SnapTopic) -> SnapTopic:
        return replace(topic, sealed=tuple(run for run in topic.sealed if run.segment != 2))

    edit_snapshots(store, topic_without, lambda segment: segment if segment.number != 2 else None)
    report = run_audit(store, before)
    assert {"gap", "history_dropped"} <= kinds(report).keys()
    dropped = next(found for found in report.findings if found["kind"] == "history_dropped")
    assert (dropped["segment"], dropped["topic"]) == (2, "alpha")


def test_c05_floors_heads_and_deletes_that_move_back_are_found(store: StorePaths, before: Report) -> None:
    def undo(topic: SnapTopic) -> SnapTopic:
        if topic.name == "capped":
            return replace(topic, floor=topic.floor - 5, first=topic.first - 5)
        if topic.name == "alpha":
            return replace(topic, deleted=None)
        return topic

    edit_snapshots(store, undo)
    report = run_audit(store, before)
    undone = [found for found in report.findings if found["kind"] == "history_undone"]
    assert {found["topic"] for found in undone} == {"capped", "alpha"}
    assert any("live again" in str(found["reason"]) for found in undone)


def test_c07_a_deleted_record_in_a_segment_made_later_is_found(tmp_path: Path) -> None:
    def sealed_store(name: str, *, deleting: bool) -> StorePaths:
        with store_in(tmp_path / name) as (driver, paths):
            driver.append("alpha", rows(1, 20))
            if deleting:
                driver.delete_records("alpha", match=["tag", "Eq", "tag-3"])
            driver.snapshot()
            driver.seal()
        return paths

    store, twin = sealed_store("store", deleting=True), sealed_store("twin", deleting=False)
    assert kinds(run_audit(store)) == kinds(run_audit(twin)) == {}
    (path,), (whole,) = hot_segments(store), hot_segments(twin)
    shutil.copyfile(whole, path)  # a seal that did not leave the deleted ones out
    size, digest = forge_segment(path, lambda json: json)

    def as_it_is(segment: SnapSegment) -> SnapSegment:
        return replace(segment, size=size, digest=digest)

    edit_snapshots(store, edit_segment=as_it_is)
    report = run_audit(store)
    found = [each for each in report.findings if each["severity"] == "error"]
    assert {(each["kind"], each["path"], each["topic"]) for each in found} == {
        ("delete_not_honoured", path, "alpha")
    }
    assert [(each["first_seq"], each["last_seq"]) for each in found] == [(3, 3), (13, 13)]


def test_c07_topics_on_the_wrong_shard_are_found(store: StorePaths) -> None:
    Path(f"{store.data}/store.json").write_text('{"format":1,"shards":5}')
    report = run_audit(store)
    wrong = [found for found in report.findings if found["kind"] == "wrong_shard"]
    assert wrong and all(found["topic"] in TOPICS for found in wrong)
    Path(f"{store.data}/store.json").write_text('{"format":1,"shards":5,"moving_to":1}')
    assert kinds(run_audit(store)) == {}, "on the move to one shard, all may be here"
