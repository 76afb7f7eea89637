"""Which blocks of which files a job reads, and how they are shared out to its tasks. Pure: no files, no clock.

A task costs tens of milliseconds whatever it does, so bins are large: 64 MiB, cut between blocks, and small
files share one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Final

from shared.segment_index import BlockEntry, SegmentIndex

BIN_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class Query:
    """What of a store is wanted. Bounds are inclusive; None = all."""

    topics: frozenset[str] | None = None
    from_seq: int | None = None
    to_seq: int | None = None
    from_ts: int | None = None
    to_ts: int | None = None

    def may_hold(self, block: BlockEntry) -> bool:
        """Can some record of the block be wanted, as far as seqs and times tell?"""
        return (
            (self.from_seq is None or block.last >= self.from_seq)
            and (self.to_seq is None or block.first <= self.to_seq)
            and (self.from_ts is None or block.max_ts >= self.from_ts)
            and (self.to_ts is None or block.min_ts <= self.to_ts)
        )


@dataclass(frozen=True, slots=True)
class LiveRule:
    """Which stored records of a topic are live: what a snapshot says about it."""

    segments: frozenset[int]
    """Only what these hold is the topic's; a segment that was replaced may hold the same records."""
    first: int
    deleted: bytes | None = None
    """A 64-bit roaring bitmap in the portable format."""


LiveRules = Mapping[tuple[str, int], LiveRule]
"""By topic name and epoch."""


@dataclass(frozen=True, slots=True)
class TopicPart:
    """A topic as the blocks of one slice belong to it."""

    name: str
    epoch: int
    live_from: int = 0
    deleted: bytes | None = None


@dataclass(frozen=True, slots=True)
class SegmentSlice:
    """Some blocks of one file."""

    path: str
    shard: int
    number: int
    blocks: tuple[tuple[int, BlockEntry], ...]
    """(ordinal, entry), ascending."""
    topics: Mapping[int, TopicPart] = field(default_factory=dict)
    """By topic id."""

    @property
    def bytes(self) -> int:
        return sum(entry.length for _, entry in self.blocks)


@dataclass(frozen=True, slots=True)
class Bin:
    """What one task reads."""

    slices: tuple[SegmentSlice, ...]

    @property
    def bytes(self) -> int:
        return sum(each.bytes for each in self.slices)


def slice_segment(
    path: str, shard: int, number: int, index: SegmentIndex, query: Query, rules: LiveRules | None = None
) -> SegmentSlice | None:
    """The blocks of a segment that hold what is wanted; None if there is none. Without rules all records count."""
    blocks: list[tuple[int, BlockEntry]] = []
    topics: dict[int, TopicPart] = {}
    for topic in index.topics():
        if query.topics is not None and topic.name not in query.topics:
            continue
        part = TopicPart(topic.name, topic.epoch)
        if rules is not None:
            rule = rules.get((topic.name, topic.epoch))
            if rule is None or number not in rule.segments:
                continue
            part = TopicPart(topic.name, topic.epoch, rule.first, rule.deleted)
        chosen = [
            (ordinal, entry)
            for ordinal in index.blocks_of(topic.topic_id)
            if query.may_hold(entry := index.block(ordinal)) and entry.last >= part.live_from
        ]
        if chosen:
            topics[topic.topic_id] = part
            blocks += chosen
    if not blocks:
        return None
    return SegmentSlice(path, shard, number, tuple(sorted(blocks, key=lambda each: each[0])), topics)


def pack_bins(slices: Iterable[SegmentSlice], target_bytes: int = BIN_BYTES) -> list[Bin]:
    """All blocks, once each and in order, in bins of about `target_bytes`; a block is never cut."""
    bins: list[Bin] = []
    current: list[SegmentSlice] = []
    room = target_bytes
    for each in slices:
        start = 0
        for place, (_, entry) in enumerate(each.blocks):
            if room < entry.length and (current or place > start):
                if place > start:
                    current.append(_part(each, start, place))
                bins.append(Bin(tuple(current)))
                current, room, start = [], target_bytes, place
            room -= entry.length
        if start < len(each.blocks):
            current.append(_part(each, start, len(each.blocks)))
    if current:
        bins.append(Bin(tuple(current)))
    return bins


def topic_order(slices: Iterable[SegmentSlice]) -> list[SegmentSlice]:
    """The same blocks, topic by topic, each ascending by seq: a slice holds one topic only."""
    found: list[tuple[tuple[str, int, int], SegmentSlice]] = []
    for each in slices:
        start = 0
        for topic_id, blocks in groupby(each.blocks, key=lambda block: block[1].topic_id):
            stop = start + sum(1 for _ in blocks)
            part = each.topics[topic_id]
            found.append(((part.name, part.epoch, each.blocks[start][1].first), _part(each, start, stop)))
            start = stop
    return [part for _, part in sorted(found, key=itemgetter(0))]


def _part(whole: SegmentSlice, start: int, stop: int) -> SegmentSlice:
    if start == 0 and stop == len(whole.blocks):
        return whole
    blocks = whole.blocks[start:stop]
    ids = {entry.topic_id for _, entry in blocks}
    topics = {topic_id: part for topic_id, part in whole.topics.items() if topic_id in ids}
    return SegmentSlice(whole.path, whole.shard, whole.number, blocks, topics)
