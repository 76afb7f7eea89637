"""Sharing blocks out to tasks: each block once, in order, no bin too full; and Arrow rows equal the records."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from ops.coldstore.arrow_blocks import RECORD_FIELDS, BlockPlace, record_batch, wanted_rows
from shared.cold_plan import (
    BIN_BYTES,
    LiveRule,
    Query,
    SegmentSlice,
    TopicPart,
    pack_bins,
    slice_segment,
    topic_order,
)
from shared.segment_index import BlockEntry
from shared.segment_reader import read_block, read_index, read_trailer
from shared.segment_writer import SegmentTopic
from tests.support.format_samples import Batch, batch_lists, make_segment, pread_of

SIZES = st.lists(st.lists(st.integers(88, 5000), min_size=1, max_size=12), max_size=12)


def slices_of(sizes: list[list[int]]) -> list[SegmentSlice]:
    found = []
    for number, lengths in enumerate(sizes):
        blocks = [
            (ordinal, BlockEntry(ordinal, length, number, 1, 1, 1, 0, 0, 1, {}))
            for ordinal, length in enumerate(lengths)
        ]
        found.append(SegmentSlice(f"{number}.seg", 0, number, tuple(blocks), {number: TopicPart("t", 1)}))
    return found


@given(SIZES, st.integers(100, 8000))
def test_every_block_is_in_one_bin_in_order_and_no_bin_is_overfull(
    sizes: list[list[int]], target: int
) -> None:
    bins = pack_bins(slices_of(sizes), target)
    flat = [
        (part.number, ordinal, entry.length)
        for work in bins
        for part in work.slices
        for ordinal, entry in part.blocks
    ]
    assert flat == [(n, o, length) for n, lengths in enumerate(sizes) for o, length in enumerate(lengths)]
    for work in bins:
        assert work.bytes <= target or sum(len(part.blocks) for part in work.slices) == 1
    for left, right in pairwise(bins):
        assert left.bytes + right.slices[0].blocks[0][1].length > target, "a bin is closed only if it is full"


def test_twenty_thousand_tiny_files_make_few_bins() -> None:
    bins = pack_bins(slices_of([[37_000]] * 20_000))
    assert len(bins) == -(-20_000 // (BIN_BYTES // 37_000))


TOPICS_OF_BLOCKS = st.lists(st.lists(st.integers(1, 3), max_size=6).map(sorted), max_size=6)


@given(TOPICS_OF_BLOCKS)
def test_in_the_order_of_topics_every_block_is_there_once_and_seqs_ascend(segments: list[list[int]]) -> None:
    heads = dict.fromkeys(range(1, 4), 0)
    slices = []
    for number, topics in enumerate(segments):
        blocks = []
        for ordinal, topic in enumerate(topics):
            heads[topic] += 1
            entry = BlockEntry(ordinal, 88, topic, heads[topic], heads[topic], 1, 0, 0, 1, {})
            blocks.append((ordinal, entry))
        parts = {topic: TopicPart(f"t{topic}", 1) for topic in topics}
        if blocks:
            slices.append(SegmentSlice(f"{number}.seg", 0, number, tuple(blocks), parts))
    ordered = topic_order(slices)
    assert all(len(part.topics) == 1 for part in ordered)
    flat = [(entry.topic_id, entry.first) for part in ordered for _, entry in part.blocks]
    assert flat == [(topic, seq) for topic, head in heads.items() for seq in range(1, head + 1)]
    assert {(p.number, o) for p in ordered for o, _ in p.blocks} == {
        (p.number, o) for p in slices for o, _ in p.blocks
    }


def rows_of(batches: list[Batch]) -> list[dict[str, Any]]:
    found = []
    for batch in batches:
        for place, row in enumerate(batch.rows):
            labels = {name: value.decode() if (value := getattr(row, name)) is not None else None
                      for name in ("node", "tag", "key")}  # fmt: skip
            parts = {"meta": row.meta.decode() or None, "data": row.payload.decode()}
            found.append({"seq": batch.first_seq + place, "ts": batch.ts, **labels, **parts})
    return found


def read_rows(content: bytes, query: Query, rules: Any, columns: list[str]) -> list[dict[str, Any]]:
    pread = pread_of(content)
    index = read_index(pread, read_trailer(pread, len(content)))
    work = slice_segment("7.seg", 3, 7, index, query, rules)
    found: list[dict[str, Any]] = []
    for ordinal, entry in work.blocks if work else ():
        part = work.topics[entry.topic_id]  # type: ignore[union-attr]
        block = read_block(pread, entry)
        place = BlockPlace(part.name, part.epoch, 3, 7, ordinal)
        batch = record_batch(block, place, columns)
        batch.validate(full=True)
        found += wanted_rows(batch, block, part, query).to_pylist()
    return found


@given(batch_lists(), st.integers(0, 30), st.integers(0, 60), st.sets(st.integers(0, 50)), st.booleans())
def test_arrow_rows_are_the_records_that_are_live_and_asked_for(
    batches: list[Batch], low: int, high: int, gone: set[int], by_ts: bool
) -> None:
    content, _ = make_segment([(SegmentTopic(4, "t", 9), batches)])
    everything = rows_of(batches)
    columns = list(RECORD_FIELDS)
    found = read_rows(content, Query(), None, columns)
    assert [{name: row[name] for name in everything[0]} for row in found] == everything
    assert {(row["topic"], row["epoch"], row["shard"], row["segment"]) for row in found} == {("t", 9, 3, 7)}
    assert all(json.loads(row["data"]) is not None or row["data"] == "null" for row in found)
    query = Query(from_ts=1001, to_ts=1002) if by_ts else Query(from_seq=low, to_seq=high)
    rule = LiveRule(frozenset({7}), low // 2, bytes(BitMap64(gone).serialize()))
    expected = [
        row["seq"]
        for row in everything
        if row["seq"] >= low // 2
        and row["seq"] not in gone
        and (1001 <= row["ts"] <= 1002 if by_ts else low <= row["seq"] <= high)
    ]
    assert [row["seq"] for row in read_rows(content, query, {("t", 9): rule}, ["seq"])] == expected


@given(batch_lists())
def test_records_of_a_topic_that_is_gone_or_served_from_elsewhere_are_not_shown(batches: list[Batch]) -> None:
    content, _ = make_segment([(SegmentTopic(4, "t", 9), batches)])
    for rules in ({}, {("t", 8): LiveRule(frozenset({7}), 1)}, {("t", 9): LiveRule(frozenset({6, 8}), 1)}):
        assert read_rows(content, Query(), rules, ["seq"]) == []
    assert read_rows(content, Query(topics=frozenset({"u"})), None, ["seq"]) == []
