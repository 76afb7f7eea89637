"""Records that are gone for good, taken out of a topic so that its readers are told: a hole in their place.

Only repair does this. Whoever keeps records (a batch, a run) is changed by the caller; here is what all of them share.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from shard_worker.core.seq_set import SeqSet
from shard_worker.core.topic import REASON_MIXED, Topic
from shared.control_frames import Hole


class Lost(NamedTuple):
    """A new hole, and how many records were in it: others of its seqs may have been deleted before."""

    first: int
    last: int
    records: int


def lose(topic: Topic, first: int, last: int) -> Iterator[Lost]:
    """Turn the live seqs of first…last into holes; what was deleted on purpose at either end stays silent."""
    last = min(last, topic.head)
    while (first := topic.next_live(first)) <= last:
        # One hole up to the next one there is: holes never overlap.
        stop = min([last, *(hole.first - 1 for hole in topic.holes if hole.first > first)])
        end = stop
        while not topic.live_between(end, end):
            end -= 1
        yield _lose_stretch(topic, first, end)
        first = stop + 1


def absent(topic: Topic, seqs: Sequence[int]) -> list[int]:
    """Seqs between the first and the last of a block's that the topic takes for live, and that are not in the block.

    Sealing leaves out what is dead, so they were removed before; the log has lost the frame that said so.
    """
    if seqs[-1] - seqs[0] + 1 == len(seqs):
        return []
    held = frozenset(seqs)
    return [seq for seq in live_seqs(topic, seqs[0], seqs[-1]) if seq not in held]


def live_seqs(topic: Topic, first: int, last: int) -> Iterator[int]:
    while (first := topic.next_live(first)) <= last:
        yield first
        first += 1


def let_go(topic: Topic, seqs: list[int]) -> None:
    """They were removed, and nobody knew: as silent as their removal was."""
    if not seqs:
        return
    if topic.deleted is None:
        topic.deleted = SeqSet()
    for seq in seqs:
        topic.deleted.add(seq)
        if topic.queue is not None:
            topic.queue.forget(seq)
    topic.count -= len(seqs)
    topic.removals += 1
    topic.live_from = topic.next_live(topic.live_from) if topic.count else topic.head + 1


def _lose_stretch(topic: Topic, first: int, last: int) -> Lost:
    hole = Hole(first, last, REASON_MIXED)
    records = topic.live_between(first, last)
    topic.count -= records
    if topic.deleted is not None:
        # A seq is either in a hole or deleted: otherwise it would be subtracted twice from what lives.
        topic.deleted.forget(first, last)
    topic.holes = _merged(sorted([*topic.holes, hole]))
    topic.live_from = topic.next_live(topic.live_from) if topic.count else topic.head + 1
    topic.removals += 1
    _forget_traces(topic, first, last)
    return Lost(first, last, records)


def _merged(holes: list[Hole]) -> list[Hole]:
    joined: list[Hole] = []
    for hole in holes:
        if joined and joined[-1].last + 1 == hole.first and joined[-1].reason == hole.reason:
            joined[-1] = joined[-1]._replace(last=hole.last)
        else:
            joined.append(hole)
    return joined


def _forget_traces(topic: Topic, first: int, last: int) -> None:
    """A client that tries again must not be told that it is done, and nobody gets a job that cannot be read."""
    if topic.dedupe is not None:
        topic.dedupe = topic.dedupe.without(first, last)
    topic.moved = {identity: seq for identity, seq in topic.moved.items() if not first <= seq <= last}
    if topic.queue is not None:
        for seq in [seq for seq in topic.queue.jobs if first <= seq <= last]:
            topic.queue.forget(seq)
