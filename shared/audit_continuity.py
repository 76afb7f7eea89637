"""Is every record of a topic that should be there stored exactly once? Pure.

What should be there is what the snapshot calls live: every seq from the first live one up to the end of the sealed
part that is neither deleted (by a call, an ack or a compaction) nor in a recorded hole. A gap with a reason is no gap.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pyroaring import BitMap64

from shared.audit_blocks import TopicRun
from shared.audit_findings import Finding
from shared.routing import shard_for
from shared.snapshot_items import SnapTopic

MAX_RANGES_NAMED = 50
"""Findings per topic and kind; more of the same tell nobody anything."""


@dataclass(frozen=True, slots=True)
class TopicState:
    """What a snapshot says about a topic, as far as its sealed records are concerned."""

    shard: int
    name: str
    epoch: int
    head: int
    floor: int
    first: int
    """The first live seq; head + 1 if there is none."""
    sealed_end: int
    """Behind it records are in the log."""
    segments: tuple[int, ...]
    deleted: BitMap64
    holes: BitMap64

    @classmethod
    def of(cls, topic: SnapTopic, shard: int) -> TopicState:
        holes = BitMap64()
        for hole in topic.holes:
            holes.add_range(hole.first, hole.last + 1)
        return cls(
            shard,
            topic.name,
            topic.epoch,
            topic.head,
            topic.floor,
            topic.first,
            topic.hot.first[0] - 1 if len(topic.hot.first) else topic.head,
            tuple(run.segment for run in topic.sealed),
            BitMap64.deserialize(topic.deleted) if topic.deleted is not None else BitMap64(),
            holes,
        )

    def live(self) -> BitMap64:
        """Every sealed seq that a reader would be given."""
        found = BitMap64()
        if self.first <= self.sealed_end:
            found.add_range(self.first, self.sealed_end + 1)
        return found - self.deleted - self.holes

    def is_dead(self, seqs: BitMap64) -> BitMap64:
        """Those of `seqs` that existed and are gone."""
        below = BitMap64()
        below.add_range(0, min(self.first, self.head + 1))
        return seqs & (below | self.deleted)


@dataclass(frozen=True, slots=True)
class TopicOutcome:
    findings: list[Finding]
    missing: BitMap64


def check_topic(state: TopicState, runs: Sequence[TopicRun], paths: dict[int, str]) -> TopicOutcome:
    """`runs` are the topic's shares of the segments that the snapshot serves it from, in the order of seqs.

    `paths` says where a segment is.
    """
    findings: list[Finding] = []
    seen = BitMap64()
    previous: TopicRun | None = None
    for run in runs:
        if both := seen & run.present:
            for first, last in _named(both):
                findings.append(
                    _at(state, run, paths, "duplicate", "stored in an earlier segment too", first, last)
                )
        seen |= run.present
        if previous is not None and previous.last < run.first and run.min_ts < previous.max_ts:
            reason = f"begins at time {run.min_ts}, and segment {previous.segment} ends at {previous.max_ts}"
            findings.append(_at(state, run, paths, "ts_order", reason, run.first, run.last))
        previous = run
    live = state.live()
    missing = live - seen
    for first, last in _first_ones(spans_of(missing, live), missing):
        findings.append(
            Finding(
                kind="gap",
                reason=f"{count_text(missing, first, last)} without a recorded reason",
                shard=state.shard,
                topic=state.name,
                epoch=state.epoch,
                first_seq=first,
                last_seq=last,
            )
        )
    return TopicOutcome(findings, missing)


def check_placement(state: TopicState, shards: Sequence[int]) -> list[Finding]:
    """A topic lives where its name hashes to. During a move two shard counts are in force."""
    wanted = [shard_for(state.name, count) for count in shards]
    if state.shard in wanted:
        return []
    reason = f"kept by shard {state.shard}; with {shards[0]} shards it belongs to shard {wanted[0]}"
    return [
        Finding(kind="wrong_shard", reason=reason, shard=state.shard, topic=state.name, epoch=state.epoch)
    ]


def check_deletes(
    earlier: TopicState, earlier_next_segment: int, runs: Sequence[TopicRun], paths: dict[int, str]
) -> list[Finding]:
    """What was dead in the log when the older snapshot was taken must not be in a segment sealed after it.

    Records that were sealed by then may be: a segment is never changed, and a compaction may have been planned before.
    """
    findings = []
    for run in runs:
        if run.segment < earlier_next_segment:
            continue
        unsealed = BitMap64(run.present)
        unsealed.remove_range(0, earlier.sealed_end + 1)
        for first, last in _named(earlier.is_dead(unsealed)):
            reason = "deleted or evicted before this segment was made"
            findings.append(_at(earlier, run, paths, "delete_not_honoured", reason, first, last))
    return findings


def _at(
    state: TopicState, run: TopicRun, paths: dict[int, str], kind: str, reason: str, first: int, last: int
) -> Finding:
    return Finding(
        kind=kind,
        reason=reason,
        path=paths.get(run.segment),
        shard=state.shard,
        segment=run.segment,
        topic=state.name,
        epoch=state.epoch,
        first_seq=first,
        last_seq=last,
    )


def _named(seqs: BitMap64) -> Iterator[tuple[int, int]]:
    """The ranges of a set; when there are very many the last one named stands for the rest."""
    yield from _first_ones(ranges_of(seqs), seqs)


def _first_ones(ranges: Iterable[tuple[int, int]], seqs: BitMap64) -> Iterator[tuple[int, int]]:
    for place, (first, last) in enumerate(ranges, start=1):
        if place == MAX_RANGES_NAMED:
            yield first, int(seqs.max())
            return
        yield first, last


def spans_of(seqs: BitMap64, live: BitMap64) -> Iterator[tuple[int, int]]:
    """Ranges of `seqs`, joined where nothing lives between them: one loss is one range, whatever was deleted in it."""
    start = end = None
    for first, last in ranges_of(seqs):
        if start is not None and end is not None:
            if not live.range_cardinality(end + 1, first):
                end = last
                continue
            yield start, end
        start, end = first, last
    if start is not None and end is not None:
        yield start, end


def count_text(seqs: BitMap64, first: int, last: int) -> str:
    number = seqs.range_cardinality(first, last + 1)
    return "1 record is missing" if number == 1 else f"{number} records are missing"


def ranges_of(seqs: BitMap64) -> Iterator[tuple[int, int]]:
    """Maximal runs of consecutive seqs, without looking at each of a long run."""
    at = seqs.min() if seqs else None
    while at is not None:
        first, step = at, 1
        while step:
            if seqs.contains_range(at, at + step + 1):
                at += step
                step *= 2
            else:
                step //= 2
        yield first, at
        at = next(iter(seqs.iter_equal_or_larger(at + 1)), None)
