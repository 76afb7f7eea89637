"""Building a segment file, block by block. Pure: the caller writes what each step returns, in order."""

from typing import NamedTuple

from xxhash import xxh3_64

from shared.columns import FIELDS
from shared.control_frames import Sealed, SealedTopic
from shared.file_header import FileHeader
from shared.record_assembler import AssembledRecords
from shared.segment_format import encode_block, encode_segment_header
from shared.segment_index import BlockEntry, TopicEntry, encode_index, summarise_topic
from shared.segment_terms import encode_terms, encode_trailer, term_hash
from shared.zstd_part import compressor


class SegmentTopic(NamedTuple):
    topic_id: int
    name: str
    epoch: int


class SegmentBuilder:
    """Write `header`, then what every `add_block` returns, then what `finish` returns.

    All blocks of a topic come one after another, ascending by seq.
    """

    def __init__(self, shard: int, number: int, created_ms: int) -> None:
        self.number = number
        self.header = encode_segment_header(FileHeader(shard, number, created_ms))
        self.size = len(self.header)
        """Bytes so far."""
        self.topics: list[TopicEntry] = []
        """Ascending by id; complete after `finish`."""
        self._digest = xxh3_64(self.header)
        self._blocks: list[BlockEntry] = []
        self._terms: list[tuple[int, int]] = []
        self._started: list[tuple[SegmentTopic, int]] = []
        """Each topic with the ordinal of its first block."""
        self._topic_ids: set[int] = set()
        self._deflate = compressor()
        self._finished = False

    @property
    def block_count(self) -> int:
        return len(self._blocks)

    def add_block(self, topic: SegmentTopic, records: AssembledRecords) -> bytes:
        assert not self._finished
        if not self._started or topic != self._started[-1][0]:
            if topic.topic_id in self._topic_ids:
                raise ValueError(f"the blocks of topic {topic.topic_id} are not adjacent")
            self._topic_ids.add(topic.topic_id)
            self._started.append((topic, len(self._blocks)))
        block = encode_block(topic.topic_id, records, self._deflate)
        self._digest.update(block[72:80])
        self._digest.update(block[-8:])
        entry = BlockEntry(
            self.size,
            len(block),
            topic.topic_id,
            records.first_seq,
            records.last_seq,
            records.count,
            records.min_ts,
            records.max_ts,
            len(records.json),
            self._add_terms(topic.topic_id, records),
        )
        self._blocks.append(entry)
        self.size += len(block)
        return block

    def _add_terms(self, topic_id: int, records: AssembledRecords) -> dict[str, tuple[bytes, bytes]]:
        ranges = {}
        for field in FIELDS:
            values = records.distinct(field)
            if values:
                ranges[field] = (min(values), max(values))
                self._terms.extend((term_hash(topic_id, field, value), len(self._blocks)) for value in values)
        return ranges

    def finish(self, deleted: int = 0) -> bytes:
        """Terms, index and trailer. `deleted`: how many records were left out as deleted or evicted."""
        assert not self._finished
        self._finished = True
        stops = [start for _, start in self._started[1:]] + [len(self._blocks)]
        # An empty segment has a stop and no topic.
        for (topic, start), stop in zip(self._started, stops, strict=False):
            self.topics.append(summarise_topic(*topic, start, self._blocks[start:stop]))
        self.topics.sort(key=lambda topic: topic.topic_id)
        terms = encode_terms(self._terms)
        index = encode_index(self.topics, self._blocks, deleted)
        trailer = encode_trailer(self.size, terms, index, len(self._blocks))
        self._digest.update(trailer)
        tail = terms + index + trailer
        self.size += len(tail)
        return tail

    @property
    def digest(self) -> str:
        assert self._finished
        return self._digest.hexdigest()

    def sealed(self) -> Sealed:
        """What the log says about the finished segment."""
        topics = tuple(
            SealedTopic(topic.topic_id, topic.first, topic.last, topic.count, topic.json_bytes, topic.max_ts)
            for topic in self.topics
        )
        return Sealed(self.number, self.digest, self.size, topics)
