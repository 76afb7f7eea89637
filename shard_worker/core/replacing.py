"""A topic's sealed records change their place: several runs become one, in a segment that a compaction made.

Which records are live is the topic's own knowledge, before and after. What the new segment no longer holds is either
dead already, or in `dropped`, which dies here: silently, as everything does that somebody asked for.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

from shard_worker.core.piece import PieceSource
from shard_worker.core.seq_set import SeqSet
from shard_worker.core.topic import Run
from shared.control_frames import SealedTopic
from shared.errors import DataDamage

if TYPE_CHECKING:
    from shard_worker.core.topic import Topic


class NewRun(NamedTuple):
    segment: int
    share: SealedTopic
    """first…last stands for the old runs in that stretch; count and bytes are those of the file."""


def replace_runs(
    topic: Topic,
    old: Collection[int],
    parts: Sequence[NewRun],
    dropped: SeqSet | None,
    source: PieceSource,
) -> None:
    if dropped is not None:
        _let_go(topic, dropped)
    runs: list[Run] = []
    placed: set[int] = set()
    for run in topic.runs:
        if run.segment not in old:
            runs.append(run)
            continue
        topic.bytes -= run.live
        source.run_dropped(run.segment)
        part = _part_for(run, parts)
        if part is None or part.segment in placed:
            continue
        placed.add(part.segment)
        live = _live_bytes(topic, part, source)
        if live:
            runs.append(Run(part.segment, part.share.first, part.share.last, live, part.share.max_ts))
            topic.bytes += live
            source.run_added(part.segment)
    topic.runs = runs
    topic.settle(source)


def runs_together(topic: Topic, old: Collection[int]) -> bool:
    """Do the topic's runs in these segments follow each other, so that one can stand for all of them?"""
    places = [at for at, run in enumerate(topic.runs) if run.segment in old]
    return not places or places[-1] - places[0] == len(places) - 1


def _part_for(run: Run, parts: Sequence[NewRun]) -> NewRun | None:
    for part in parts:
        if part.share.first <= run.first and run.last <= part.share.last:
            return part
    return None


def _let_go(topic: Topic, dropped: SeqSet) -> None:
    for seq in dropped.within(topic.live_from, topic.head):
        if topic.is_live(seq):
            if topic.deleted is None:
                topic.deleted = SeqSet()
            topic.deleted.add(seq)
            topic.count -= 1
    topic.removals += 1


def _live_bytes(topic: Topic, part: NewRun, source: PieceSource) -> int:
    """The bytes of the live records in the new run. Only blocks in which something died meanwhile are looked into."""
    share = part.share
    live = topic.live_between(share.first, share.last)
    if live == share.count:
        return share.json_bytes
    if not live:
        return 0
    try:
        return sum(
            piece.size
            if piece.size is not None and topic.live_between(piece.first, piece.last) == piece.count
            else topic.live_bytes_of(piece)
            for piece in source.sealed_pieces(part.segment, topic.id, share.first, share.last)
        )
    except DataDamage:
        # As with evictions: a guess, never a failure. Zero would mean that nothing lives there.
        return max(1, share.json_bytes * live // share.count)
