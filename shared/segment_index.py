"""The index of a segment: which blocks hold which records of which topic. Layout: docs/disk-format.md §4.

Kept in arrays, not objects: a segment may hold a hundred thousand small topics.
"""

from array import array
from bisect import bisect_left
from collections.abc import Mapping, Sequence

import cbor2
import msgspec

from shared.cbor_body import as_bytes, as_list, as_map, as_text, as_uint, load_map
from shared.columns import FIELDS
from shared.file_header import FILE_HEADER_BYTES
from shared.format_errors import BadBytes
from shared.zstd_part import compress, decompress, raw_size

INDEX_MAX_RAW_BYTES = 256 << 20
FieldRanges = Mapping[str, tuple[bytes, bytes]]


class BlockEntry(msgspec.Struct, frozen=True):
    offset: int
    length: int
    topic_id: int
    first: int
    last: int
    count: int
    min_ts: int
    max_ts: int
    json_bytes: int
    ranges: FieldRanges
    """Smallest and largest value of each field that has any."""


class TopicEntry(msgspec.Struct, frozen=True):
    topic_id: int
    name: str
    epoch: int
    first: int
    last: int
    count: int
    json_bytes: int
    min_ts: int
    max_ts: int
    first_block: int
    blocks: int


class SegmentIndex:
    """Topics ascending by id, blocks in the order of the file; `deleted` records were left out."""

    def __init__(self, topics: Sequence[TopicEntry], blocks: Sequence[BlockEntry], deleted: int) -> None:
        self.deleted = deleted
        self._names = [topic.name for topic in topics]
        self._topic_ids = array("Q", [topic.topic_id for topic in topics])
        self._topics = array("Q")
        for topic in topics:
            self._topics.extend(_topic_numbers(topic))
        self._last_seqs = array("Q", [block.last for block in blocks])
        self._blocks = array("Q")
        for block in blocks:
            self._blocks.extend(_block_numbers(block))
        self._ranges = {ordinal: block.ranges for ordinal, block in enumerate(blocks) if block.ranges}

    @property
    def topic_count(self) -> int:
        return len(self._names)

    @property
    def block_count(self) -> int:
        return len(self._last_seqs)

    def topic_at(self, place: int) -> TopicEntry:
        """The topic at a place in the order of ids."""
        at = place * _TOPIC_NUMBERS
        epoch, *numbers = self._topics[at : at + _TOPIC_NUMBERS]
        return TopicEntry(self._topic_ids[place], self._names[place], epoch, *numbers)

    def topic(self, topic_id: int) -> TopicEntry | None:
        place = bisect_left(self._topic_ids, topic_id)
        if place == len(self._topic_ids) or self._topic_ids[place] != topic_id:
            return None
        return self.topic_at(place)

    def topics(self) -> list[TopicEntry]:
        return [self.topic_at(place) for place in range(self.topic_count)]

    def block(self, ordinal: int) -> BlockEntry:
        at = ordinal * _BLOCK_NUMBERS
        return _block_entry(self._blocks[at : at + _BLOCK_NUMBERS], self._ranges.get(ordinal, {}))

    def blocks_of(self, topic_id: int) -> range:
        """The ordinals of a topic's blocks."""
        topic = self.topic(topic_id)
        return range(topic.first_block, topic.first_block + topic.blocks) if topic else range(0)

    def block_for(self, topic_id: int, seq: int) -> int | None:
        """The block where reading from `seq` begins: the first one that reaches as far as `seq`."""
        blocks = self.blocks_of(topic_id)
        ordinal = bisect_left(self._last_seqs, seq, blocks.start, blocks.stop)
        return ordinal if ordinal < blocks.stop else None

    def glob_blocks(self, topic_id: int, field: str, prefix: bytes) -> list[int]:
        """The blocks of a topic that may hold a value beginning with `prefix`."""
        found = []
        for ordinal in self.blocks_of(topic_id):
            bounds = self._ranges.get(ordinal, {}).get(field)
            if bounds is None:
                continue
            smallest, largest = bounds
            if largest >= prefix and (smallest <= prefix or smallest.startswith(prefix)):
                found.append(ordinal)
        return found


_TOPIC_NUMBERS = 9
_BLOCK_NUMBERS = 9


def _topic_numbers(topic: TopicEntry) -> tuple[int, ...]:
    return (
        topic.epoch,
        topic.first,
        topic.last,
        topic.count,
        topic.json_bytes,
        topic.min_ts,
        topic.max_ts,
        topic.first_block,
        topic.blocks,
    )


def _block_numbers(block: BlockEntry) -> tuple[int, ...]:
    return (
        block.offset,
        block.length,
        block.topic_id,
        block.first,
        block.last,
        block.count,
        block.min_ts,
        block.max_ts,
        block.json_bytes,
    )


def _block_entry(numbers: Sequence[int], ranges: FieldRanges) -> BlockEntry:
    offset, length, topic_id, first, last, count, min_ts, max_ts, json_bytes = numbers
    return BlockEntry(offset, length, topic_id, first, last, count, min_ts, max_ts, json_bytes, ranges)


def encode_index(topics: Sequence[TopicEntry], blocks: Sequence[BlockEntry], deleted: int) -> bytes:
    """The stored form. `topics` ascending by id, `blocks` in the order of the file."""
    topic_rows = [[topic.topic_id, topic.name, *_topic_numbers(topic)] for topic in topics]
    block_rows = [
        [*_block_numbers(block), {field: list(bounds) for field, bounds in block.ranges.items()}]
        for block in blocks
    ]
    raw = cbor2.dumps({"topics": topic_rows, "blocks": block_rows, "deleted": deleted})
    if len(raw) > INDEX_MAX_RAW_BYTES:
        raise ValueError(f"a segment index of {len(raw)} bytes exceeds {INDEX_MAX_RAW_BYTES}")
    return compress(raw)


def decode_index(stored: bytes | memoryview, blocks_end: int) -> SegmentIndex:
    """The index of a file whose blocks end at `blocks_end`, checked to be consistent in itself."""
    size = raw_size(stored)
    if size > INDEX_MAX_RAW_BYTES:
        raise BadBytes(f"a segment index of {size} bytes")
    fields = load_map(decompress(stored, size))
    topics = fields.need("topics", lambda value: [_as_topic(row) for row in as_list(value)])
    blocks = fields.need("blocks", lambda value: [_as_block(row) for row in as_list(value)])
    deleted = fields.need("deleted", as_uint)
    fields.done()
    _check_places(blocks, blocks_end)
    _check_topics(topics, blocks)
    return SegmentIndex(topics, blocks, deleted)


def _as_topic(row: object) -> TopicEntry:
    topic_id, name, *numbers = as_list(row, 2 + _TOPIC_NUMBERS)
    return TopicEntry(as_uint(topic_id), as_text(name), *map(as_uint, numbers))


def _as_block(row: object) -> BlockEntry:
    *numbers, ranges = as_list(row, _BLOCK_NUMBERS + 1)
    return _block_entry([as_uint(number) for number in numbers], _as_ranges(ranges))


def _as_ranges(value: object) -> FieldRanges:
    ranges: dict[str, tuple[bytes, bytes]] = {}
    for field, bounds in as_map(value).items():
        smallest, largest = as_list(bounds, 2)
        ranges[field] = (as_bytes(smallest), as_bytes(largest))
        if field not in FIELDS or ranges[field][0] > ranges[field][1]:
            raise BadBytes(f"range of {field}")
    return ranges


def _check_places(blocks: Sequence[BlockEntry], blocks_end: int) -> None:
    """The blocks stand back to back between header and terms."""
    at = FILE_HEADER_BYTES
    for block in blocks:
        if block.offset != at:
            raise BadBytes("blocks are not back to back", block.offset)
        at += block.length
    if at != blocks_end:
        raise BadBytes("blocks and terms do not meet", at)


def _check_topics(topics: Sequence[TopicEntry], blocks: Sequence[BlockEntry]) -> None:
    """Each block belongs to one topic, whose summary is the sum of its blocks."""
    covered = 0
    previous = -1
    for topic in topics:
        mine = blocks[topic.first_block : topic.first_block + topic.blocks]
        if topic.topic_id <= previous or not mine or len(mine) != topic.blocks:
            raise BadBytes(f"index of topic {topic.topic_id}")
        if summarise_topic(topic.topic_id, topic.name, topic.epoch, topic.first_block, mine) != topic:
            raise BadBytes(f"blocks of topic {topic.topic_id} do not add up")
        covered += topic.blocks
        previous = topic.topic_id
    # Topics differ and blocks name theirs: the right number means that each block is covered once.
    if covered != len(blocks):
        raise BadBytes("blocks without a topic")


def summarise_topic(
    topic_id: int, name: str, epoch: int, first_block: int, blocks: Sequence[BlockEntry]
) -> TopicEntry:
    """A topic's entry from its blocks, which must be its own and ascend by seq."""
    last = -1
    for block in blocks:
        if block.topic_id != topic_id or block.first <= last or block.last < block.first:
            raise BadBytes(f"blocks of topic {topic_id} are out of order", block.offset)
        last = block.last
    return TopicEntry(
        topic_id,
        name,
        epoch,
        first=blocks[0].first,
        last=last,
        count=sum(block.count for block in blocks),
        json_bytes=sum(block.json_bytes for block in blocks),
        min_ts=min(block.min_ts for block in blocks),
        max_ts=max(block.max_ts for block in blocks),
        first_block=first_block,
        blocks=len(blocks),
    )
