"""What replay could not read, and what that cost: kept while the log is read, named once its end is known."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

import msgspec

from shard_worker.core.shard_state import ShardState
from shard_worker.core.topic import Topic
from shared.control_frames import Hole
from shared.errors import CorruptFrame
from shared.frame import FRAME_HEADER_BYTES, Frame, Kind
from shared.wal_format import APPEND_HEADER_BYTES, JSON_OFFSET, split_lsn

_KIND_AT = 8
_CBOR_MAP = 5  # the major type, in the upper three bits of an item's first byte


class LogGap(msgspec.Struct, frozen=True):
    """A stretch of the log that could not be used, and what was known when replay came there."""

    path: str
    lsn: int
    end: int
    """The position where the log could be read again."""
    reason: str
    topic_id: int = 0
    """Whose frame it seems to have been; 0 if nothing says so."""
    head: int = 0
    """Of that topic."""
    suspects: frozenset[int] | None = None
    """Topics whose next records it may have been; None: anyone's."""

    def seqs(self, topic: Topic) -> tuple[int, int | None]:
        """What was lost: what a snapshot has of the batch, or else the seqs that turned out to be missing."""
        held = topic.hot.lsn
        index = bisect_left(held, self.lsn + JSON_OFFSET, topic.hot.start)
        if index < len(held) and held[index] == self.lsn + JSON_OFFSET:
            entry = topic.hot.entry(index)
            return entry.first, entry.last
        hole = next((hole for hole in topic.holes if hole.first == self.head + 1), None)
        return self.head + 1, hole.last if hole is not None else None

    def as_error(self, state: ShardState) -> CorruptFrame:
        topic = state.catalog.by_id.get(self.topic_id)
        first, last = self.seqs(topic) if topic is not None else (None, None)
        return CorruptFrame(
            path=self.path,
            offset=split_lsn(self.lsn)[1],
            reason=self.reason,
            topic=topic.name if topic is not None else None,
            first_seq=first,
            last_seq=last,
        )


def whose_records(frame: bytes, claimed_topic: int, state: ShardState) -> frozenset[int] | None:
    """Whose records one unreadable frame may hold. Any of its bytes may be the wrong one, so two must agree.

    An append goes on where its topic ended: where topic and seq fit each other, only topics with that end come into
    question (the topic id itself may be wrong). A body that begins like a CBOR map holds no records.
    """
    if len(frame) < FRAME_HEADER_BYTES + APPEND_HEADER_BYTES:
        return frozenset()
    if frame[_KIND_AT] != Kind.APPEND:
        return frozenset() if frame[FRAME_HEADER_BYTES] >> 5 == _CBOR_MAP else None
    first = int.from_bytes(frame[FRAME_HEADER_BYTES : FRAME_HEADER_BYTES + 8], "little")
    fitting = frozenset(topic.id for topic in state.catalog.by_id.values() if topic.head + 1 == first)
    return fitting if claimed_topic in fitting else None


class LogDamage(msgspec.Struct):
    gaps: list[LogGap] = msgspec.field(default_factory=list)
    holes: list[tuple[Topic, Hole]] = msgspec.field(default_factory=list)
    """Seqs that the next append behind a gap showed to be missing."""
    known_upto: dict[int, int] = msgspec.field(default_factory=dict)
    """By topic id, how far in the log its head is certain: by its snapshot, or by its last append since."""
    strangers: Counter[int] = msgspec.field(default_factory=Counter)
    """Records of topics that nothing has told of, by topic id: their creation lies in a gap."""
    _deleted: set[int] = msgspec.field(default_factory=set)

    def add(self, gap: LogGap, state: ShardState) -> None:
        if not self.gaps:
            self.known_upto = {topic.id: topic.lsn for topic in state.catalog.by_id.values()}
        self.gaps.append(gap)

    def before(self, state: ShardState, frame: Frame) -> int:
        """Call it in front of every frame behind a gap; what it returns goes to `after`."""
        topic = state.catalog.by_id.get(frame.topic_id)
        if frame.kind == Kind.TOPIC_DELETE:
            self._deleted.add(frame.topic_id)
        elif frame.kind == Kind.APPEND and topic is None:
            self.strangers[frame.topic_id] += int.from_bytes(frame.body[8:12], "little")
        return len(topic.holes) if topic is not None else 0

    def after(self, state: ShardState, frame: Frame, holes_before: int) -> None:
        topic = state.catalog.by_id.get(frame.topic_id)
        if topic is None or frame.kind not in (Kind.APPEND, Kind.TOPIC_CREATE, Kind.TOPIC_IMPORT):
            return
        self.known_upto[topic.id] = max(self.known_upto.get(topic.id, 0), frame.lsn)
        self.holes.extend((topic, hole) for hole in topic.holes[holes_before:])

    def end_unknown(self, topic: Topic) -> list[LogGap]:
        """The gaps in which the topic's newest records may have been, with nothing behind them to tell."""
        certain = self.known_upto.get(topic.id, 0)
        return [
            gap
            for gap in self.gaps
            if certain < gap.lsn and (gap.suspects is None or topic.id in gap.suspects)
        ]

    def lost_topics(self) -> dict[int, int]:
        """Ids of topics whose creation was lost, with the number of their records in the log."""
        return {id_: count for id_, count in self.strangers.items() if id_ not in self._deleted}
