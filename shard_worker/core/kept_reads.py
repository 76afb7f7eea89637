"""Answers that are given again as long as nothing changes in their topic.

Many readers of a topic that come along one after the other ask for the same ranges, and a range of the log is answered
with the same few numbers each time: where its bytes are, and what is said in front of them and behind. These are kept
by the very bytes of the question. Only answers from extents are: there the working out is nearly all of the work, and
there is nothing else in them that takes memory.

An answer holds while what it was worked out from is the same:

- the topic's head, its floor and its first live record;
- the number of its batches in the log: while the head stays, it changes if and only if some are sealed or dropped;
- how often records were removed (`removals`);
- its config, in which there must be no TTL, because then time alone changes the answer.

Holes change only together with the head, the floor or `removals`.
"""

from __future__ import annotations

from shard_worker.core.reading import ReadResult
from shard_worker.core.topic import Topic
from shard_worker.request import Extents, Timings
from shared.limits import KEPT_READS_MAX, KEPT_READS_MAX_QUESTION_BYTES


class KeptRead:
    """What is answered, and what it was worked out from. It knows its topic by the epoch, which no other ever has: a
    topic that is deleted must not stay in memory for it."""

    __slots__ = (
        "_batches",
        "_config",
        "_epoch",
        "_floor",
        "_head",
        "_live_from",
        "_removals",
        "delivered",
        "extents",
        "opening",
        "tail",
        "timings",
    )

    def __init__(self, topic: Topic, result: ReadResult, timings: Timings) -> None:
        self.opening = result.head_json(topic)
        self.tail = result.tail_json(topic)
        self.extents: Extents = result.extents
        self.delivered = result.delivered
        self.timings = timings
        self._epoch = topic.epoch
        self._config = topic.config
        self._batches = len(topic.hot)
        self._head = topic.head
        self._floor = topic.floor
        self._live_from = topic.live_from
        self._removals = topic.removals

    def holds(self, topic: Topic) -> bool:
        return (
            topic.head == self._head
            and topic.epoch == self._epoch
            and topic.floor == self._floor
            and topic.live_from == self._live_from
            and topic.removals == self._removals
            and topic.config is self._config
            and len(topic.hot) == self._batches
        )


class KeptReads:
    def __init__(self) -> None:
        self._kept: dict[tuple[str, bytes], KeptRead] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, name: str, question: bytes) -> KeptRead | None:
        """Ask whether it still `holds`."""
        return self._kept.get((name, question))

    def keep(self, topic: Topic, question: bytes, read: KeptRead) -> None:
        if topic.config.ttl_ms or len(question) > KEPT_READS_MAX_QUESTION_BYTES:
            return
        key = (topic.name, question)
        if key not in self._kept and len(self._kept) >= KEPT_READS_MAX:
            self._kept.clear()
        self._kept[key] = read
