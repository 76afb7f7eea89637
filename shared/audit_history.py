"""Tonight against the last report: nothing that was seen before may have changed without a recorded reason. Pure.

Checksums can be recomputed and a manifest rewritten; the report of an earlier night, whose digest stands in every
report since, cannot. Segments never change, floors and heads never move back, and what was deleted stays deleted.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from pyroaring import BitMap64

from shared.audit_blocks import TopicRun
from shared.audit_continuity import TopicState, count_text, ranges_of, spans_of
from shared.audit_findings import Finding
from shared.audit_report import Report, SegmentRow, ShardRow, TopicRow

REWRITE_GRACE_MS: Final = 3_600_000
"""A compaction may have been planned this long before it wrote: deletes in between it could not know."""

TopicKey = tuple[str, int]
SegmentKey = tuple[int, int]


@dataclass(frozen=True, slots=True)
class TopicNow:
    """A topic of tonight: what the snapshot says, and what its segments hold."""

    state: TopicState
    runs: Sequence[TopicRun]
    missing: BitMap64


def topic_sha(runs: Sequence[TopicRun]) -> str:
    """Over the blocks of these shares of segments, in the order of seqs."""
    return sha256(b"".join(run.sha for run in runs)).hexdigest()


def check_history(
    before: Report,
    segments: Mapping[SegmentKey, SegmentRow],
    shards: Sequence[ShardRow],
    shard_count: int,
    topics: Mapping[TopicKey, TopicNow],
) -> list[Finding]:
    found = _check_manifests(before, shards, shard_count)
    for row in before.segments:
        now = segments.get((row.shard, row.number))
        if now is None:
            found += _check_dropped(row, topics)
        elif now.sha256 != row.sha256 and now.digest is not None:
            reason = f"SHA-256 was {row.sha256[:16]}… and is {now.sha256[:16]}…, with valid checksums"
            found.append(
                Finding(
                    kind="history_rewritten",
                    reason=reason,
                    path=now.path,
                    offset=0,
                    shard=row.shard,
                    segment=row.number,
                )
            )
    new = {
        key: row for key, row in segments.items() if key not in {(r.shard, r.number) for r in before.segments}
    }
    sound = {key: row.digest is not None for key, row in segments.items()}
    for topic in before.topics:
        if (held := topics.get((topic.name, topic.epoch))) is not None:
            found += _check_topic(topic, held, sound)
            found += _check_deletes(topic, held, new, before.finished_ms)
    return found


def _check_manifests(before: Report, shards: Sequence[ShardRow], shard_count: int) -> list[Finding]:
    found = []
    now = {row.shard: row for row in shards}
    for row in before.shards:
        current = now.get(row.shard)
        if current is None:
            # With another number of shards its topics have moved; what became of them is asked topic by topic.
            if row.generation and shard_count == before.shard_count:
                reason = f"the shard is gone, and generation {row.generation} of its manifest with it"
                found.append(Finding(kind="manifest_went_back", reason=reason, shard=row.shard))
            continue
        if current.generation < row.generation:
            reason = f"generation {current.generation} is in force, and {row.generation} was before"
            found.append(Finding(kind="manifest_went_back", reason=reason, shard=row.shard))
        elif current.generation == row.generation and current.manifest_checksum != row.manifest_checksum:
            reason = f"generation {row.generation} is another file than before"
            found.append(Finding(kind="manifest_went_back", reason=reason, shard=row.shard))
    return found


def _check_dropped(row: SegmentRow, topics: Mapping[TopicKey, TopicNow]) -> list[Finding]:
    """A segment may go when nothing in it lives, or when others hold what does."""
    found = []
    moved = 0
    for name, epoch, first, last, _ in row.topics:
        held = topics.get((name, epoch))
        if held is None:
            continue
        lost, live = _between(held.missing, first, last), held.state.live()
        moved += len(_between(live, first, last)) - len(lost)
        for low, high in spans_of(lost, live):
            found.append(
                Finding(
                    kind="history_dropped",
                    reason=f"{count_text(lost, low, high)} that segment {row.number} held",
                    path=row.path,
                    shard=row.shard,
                    segment=row.number,
                    topic=name,
                    epoch=epoch,
                    first_seq=low,
                    last_seq=high,
                )
            )
    if moved and not found:
        reason = f"{moved} of its records are in other segments now"
        found.append(
            Finding(kind="rewritten", reason=reason, path=row.path, shard=row.shard, segment=row.number)
        )
    return found


def _check_topic(before: TopicRow, now: TopicNow, sound: Mapping[SegmentKey, bool]) -> list[Finding]:
    state = now.state
    found = []

    def note(kind: str, reason: str, first: int | None = None, last: int | None = None) -> None:
        found.append(
            Finding(
                kind=kind,
                reason=reason,
                shard=state.shard,
                topic=state.name,
                epoch=state.epoch,
                first_seq=first,
                last_seq=last,
            )
        )

    for what, then, current in (
        ("head", before.head, state.head),
        ("evict floor", before.floor, state.floor),
        ("first live seq", before.first, state.first),
    ):
        if current < then:
            note("history_undone", f"the {what} was {then} and is {current}", current, then)
    if before.deleted is not None:
        back = BitMap64.deserialize(b64decode(before.deleted)) & state.live()
        if back:
            note(
                "history_undone", f"deleted before, and live again: {len(back)} seqs", back.min(), back.max()
            )
    old = [run for run in now.runs if run.segment in set(before.segments)]
    whole = state.shard == before.shard and len(old) == len(before.segments)
    if (
        whole
        and all(sound.get((state.shard, run.segment)) for run in old)
        and topic_sha(old) != before.sha256
    ):
        note("history_rewritten", "the topic's blocks in segments seen before are not the same")
    return found


def _check_deletes(
    before: TopicRow, now: TopicNow, new: Mapping[SegmentKey, SegmentRow], seen_ms: int
) -> list[Finding]:
    """What was known to be dead a night ago is in no segment made since."""
    dead = BitMap64()
    dead.add_range(0, before.first)
    if before.deleted is not None:
        dead |= BitMap64.deserialize(b64decode(before.deleted))
    found = []
    for run in now.runs:
        row = new.get((now.state.shard, run.segment))
        if row is None or row.created_ms < seen_ms + REWRITE_GRACE_MS:
            continue
        for first, last in ranges_of(run.present & dead):
            found.append(
                Finding(
                    kind="delete_not_honoured",
                    reason="deleted or evicted before the last audit, and in a segment made since",
                    path=row.path,
                    shard=row.shard,
                    segment=row.number,
                    topic=run.name,
                    epoch=run.epoch,
                    first_seq=first,
                    last_seq=last,
                )
            )
    return found


def _between(seqs: BitMap64, first: int, last: int) -> BitMap64:
    bounds = BitMap64()
    bounds.add_range(first, last + 1)
    return seqs & bounds
