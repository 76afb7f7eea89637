"""Several segments become one without their dead records. Pure: bytes in through `pread`, bytes out in order.

Every block that is read is verified; a bad one raises, so that a damaged segment is never rewritten without the part
that could not be read.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec
from pyroaring import BitMap64

from shared.block_cutting import Stretch, join_blocks
from shared.compaction import KeyColumns, TopicView
from shared.errors import CorruptSegment
from shared.format_errors import BadBytes, FormatError
from shared.limits import BLOCK_TARGET_BYTES
from shared.segment_format import Block, BlockColumns
from shared.segment_index import BlockEntry, SegmentIndex
from shared.segment_reader import (
    Pread,
    read_block,
    read_block_columns,
    read_header,
    read_index,
    read_trailer,
)
from shared.segment_writer import SegmentBuilder, SegmentTopic

_B = TypeVar("_B", bound=BlockColumns)


class OpenSegment(msgspec.Struct, frozen=True):
    """A segment that can be read, and its index."""

    path: str
    number: int
    pread: Pread
    index: SegmentIndex

    @classmethod
    def read(cls, path: str, number: int, shard: int, pread: Pread, size: int) -> OpenSegment:
        try:
            header = read_header(pread)
            if (header.number, header.shard) != (number, shard):
                raise BadBytes(f"this is segment {header.number} of shard {header.shard}")
            return cls(path, number, pread, read_index(pread, read_trailer(pread, size)))
        except FormatError as err:
            raise CorruptSegment(path=path, offset=getattr(err, "offset", None), reason=str(err)) from err

    def columns_of(self, topic_id: int) -> Iterator[BlockColumns]:
        for ordinal in self.index.blocks_of(topic_id):
            yield self._read(read_block_columns, ordinal)

    def blocks_of(self, topic_id: int) -> Iterator[Block]:
        for ordinal in self.index.blocks_of(topic_id):
            yield self._read(read_block, ordinal)

    def _read(self, read: Callable[[Pread, BlockEntry], _B], ordinal: int) -> _B:
        entry = self.index.block(ordinal)
        try:
            return read(self.pread, entry)
        except FormatError as err:
            topic = self.index.topic(entry.topic_id)
            raise CorruptSegment(
                path=self.path,
                offset=entry.offset,
                reason=str(err),
                topic=None if topic is None else topic.name,
                first_seq=entry.first,
                last_seq=entry.last,
            ) from err


class Rewrite(msgspec.Struct):
    """One segment made of several. Iterate over `run`, write what it yields; then look at the rest."""

    sources: Sequence[OpenSegment]
    """In the order of seqs."""
    topics: Mapping[int, TopicView]
    dropped: Mapping[int, BitMap64]
    builder: SegmentBuilder
    block_bytes: int = BLOCK_TARGET_BYTES
    removed: dict[SegmentTopic, BitMap64] = msgspec.field(default_factory=dict)
    """What was in the sources and is not in the result."""

    def run(self) -> Iterator[bytes]:
        yield self.builder.header
        left_out = 0
        for topic, sources in sorted(self._topics().items()):
            gone = BitMap64()
            for records in join_blocks(self._kept(topic, sources, gone), self.block_bytes):
                yield self.builder.add_block(topic, records)
            if gone:
                self.removed[topic] = gone
                left_out += len(gone)
        before = sum(source.index.deleted for source in self.sources)
        yield self.builder.finish(deleted=before + left_out)

    def _topics(self) -> dict[SegmentTopic, list[OpenSegment]]:
        """Each with the sources that hold it, in their order."""
        found: dict[SegmentTopic, list[OpenSegment]] = {}
        for source in self.sources:
            for entry in source.index.topics():
                found.setdefault(SegmentTopic(entry.topic_id, entry.name, entry.epoch), []).append(source)
        return found

    def _kept(
        self, topic: SegmentTopic, sources: Sequence[OpenSegment], gone: BitMap64
    ) -> Iterator[tuple[Stretch, list[tuple[int, int]]]]:
        view = self.topics.get(topic.topic_id)
        dropped = self.dropped.get(topic.topic_id)
        for source in sources:
            for block in source.blocks_of(topic.topic_id):
                if view is None or view.epoch != topic.epoch:
                    gone.update(block.seqs)
                    continue
                yield block, _split(block, dead_in(view, dropped, block.seqs[0], block.seqs[-1]), gone)


def dead_in(view: TopicView, dropped: BitMap64 | None, first: int, last: int) -> BitMap64:
    dead = view.dead_within(first, last)
    if dropped is not None:
        inside = BitMap64()
        inside.add_range(first, last + 1)
        dead |= inside & dropped
    return dead


def _split(block: Block, dead: BitMap64, gone: BitMap64) -> list[tuple[int, int]]:
    """The stretches [low, high) of the block that live; the rest goes to `gone`."""
    if not dead:
        return [(0, len(block.seqs))]
    stored = BitMap64(block.seqs)
    gone |= stored & dead
    kept: list[tuple[int, int]] = []
    low = high = 0
    for at in _places(block.seqs, stored - dead):
        if at != high:
            if high > low:
                kept.append((low, high))
            low = at
        high = at + 1
    if high > low:
        kept.append((low, high))
    return kept


def _places(seqs: Sequence[int], chosen: BitMap64) -> Iterable[int]:
    """Where in `seqs` the chosen ones stand."""
    if isinstance(seqs, range):
        first = seqs.start
        return [seq - first for seq in chosen]
    return [bisect_left(seqs, seq) for seq in chosen]


def key_columns(sources: Iterable[OpenSegment], view: TopicView) -> Iterator[KeyColumns]:
    """The topic's live records, block by block. `sources` in the order of seqs."""
    for source in sources:
        for block in source.columns_of(view.id):
            keys, times, flags = block.columns.values("key"), block.times, block.columns.flags
            dead = view.dead_within(block.seqs[0], block.seqs[-1])
            if not dead:
                yield KeyColumns(keys, block.seqs, times, flags)
                continue
            live = [at for at, seq in enumerate(block.seqs) if seq not in dead]
            if live:
                yield KeyColumns(
                    [keys[at] for at in live],
                    [block.seqs[at] for at in live],
                    times if isinstance(times, int) else [times[at] for at in live],
                    bytes(flags[at] for at in live),
                )
