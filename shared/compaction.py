"""Deciding a compaction: which records survive, which segments are rewritten, and into what. Pure.

A plan stands on two things that a worker wrote: a snapshot (configs, floors, deleted seqs, where each topic's records
are) and the manifest of the cold tier. Both may be a little old. That is safe, because what is dead stays dead, and
the worker checks everything again before it adopts anything (shard_worker/adoption.py).

K1 A record goes only if it is dead in the snapshot, or superseded by a younger record with its key.
K2 A keyed `null` goes only with every older value of its key, so none of them can come back.
K3 The segments that become one stand next to each other in the order of every topic's seqs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import takewhile
from typing import NamedTuple, cast

import msgspec
from pyroaring import BitMap64

from shared.columns import DATA_NULL, HAS_KEY
from shared.manifest import Manifest, ManifestSegment
from shared.snapshot_items import SnapTopic

COMPACTED_FROM = 5_000_000_000
"""Segments that a compaction made are numbered from here: sealing counts from 1 and never comes this far."""
OUTPUTS_PER_GENERATION = 4096
_LAST_NUMBER = 9_999_999_999


class KeyColumns(NamedTuple):
    """What keys need to know of some live records of one topic, ascending by seq."""

    keys: Sequence[bytes | None]
    seqs: Sequence[int]
    times: Sequence[int] | int
    """One ts per record, or the ts of all."""
    flags: bytes


class KeyRules(msgspec.Struct, frozen=True):
    """How a `cleanup: "compact"` topic treats its keys."""

    lag_ms: int
    retention_ms: int


class TopicView(msgspec.Struct, frozen=True):
    """What a plan needs to know of a topic."""

    id: int
    name: str
    epoch: int
    live_from: int
    deleted: BitMap64
    """And seqs that never were."""
    runs: tuple[tuple[int, int, int], ...]
    """Segment, first and last seq, in the order of seqs."""
    keys: KeyRules | None
    """None: keys mean nothing here."""

    def dead_within(self, first: int, last: int) -> BitMap64:
        """The seqs of first…last that no reader may see any more."""
        dead = BitMap64()
        if first < self.live_from:
            dead.add_range(first, min(last + 1, self.live_from))
        inside = BitMap64()
        inside.add_range(max(first, self.live_from), last + 1)
        return dead | (inside & self.deleted)


class Basis(msgspec.Struct):
    """Snapshot and manifest together: what a plan stands on."""

    shard: int
    manifest: Manifest
    manifest_checksum: int
    snapshot: int
    cold: set[int] = msgspec.field(default_factory=set)
    """Segments that the snapshot knows to be in the cold tier."""
    topics: dict[int, TopicView] = msgspec.field(default_factory=dict)
    """By id. A topic that is not here was deleted, and all its records are dead."""

    def candidates(self) -> list[ManifestSegment]:
        """Segments that snapshot and manifest agree on. A snapshot is taken in slices, so a segment may be in it
        while a topic of its still stands before the sealing: left for the next time."""
        named = {(topic.name, topic.epoch): topic for topic in self.topics.values()}
        found = []
        for segment in self.manifest.segments:
            if segment.number not in self.cold:
                continue
            parts = [(part, named.get((part.name, part.epoch))) for part in segment.topics]
            if all(
                topic is None
                or any(run[0] == segment.number for run in topic.runs)
                or len(topic.dead_within(part.first, part.last)) == part.last - part.first + 1
                for part, topic in parts
            ):
                found.append(segment)
        return found

    def keyed_segments(self) -> list[tuple[TopicView, list[int]]]:
        """Topics whose keys mean something, each with the segments at its start that are all in the manifest, in the
        order of seqs: K2 holds only for an unbroken start."""
        known = {segment.number for segment in self.candidates()}
        found = []
        for topic in self.topics.values():
            if topic.keys is not None:
                numbers = list(takewhile(known.__contains__, (number for number, _, _ in topic.runs)))
                if numbers:
                    found.append((topic, numbers))
        return found


def view_topic(stored: SnapTopic) -> TopicView:
    config = stored.config
    keyed = "compact" in str(config.get("cleanup", "delete")) and config.get("type", "log") != "queue"
    deleted = BitMap64.deserialize(stored.deleted) if stored.deleted is not None else BitMap64()
    for hole in stored.holes:
        deleted.add_range(hole.first, hole.last + 1)
    rules = KeyRules(_number(config, "min_compaction_lag_ms"), _number(config, "delete_retention_ms"))
    return TopicView(
        stored.id,
        stored.name,
        stored.epoch,
        stored.first,
        deleted,
        tuple((run.segment, run.first, run.last) for run in stored.sealed),
        rules if keyed else None,
    )


def _number(config: Mapping[str, object], name: str) -> int:
    value = config.get(name, 0)
    return value if isinstance(value, int) else 0


# --- last value per key -----------------------------------------------------------------------------------


class LastValues:
    """The newest record of every key of one topic, from columns that come in the order of seqs."""

    def __init__(self, rules: KeyRules, now_ms: int) -> None:
        self._too_young = now_ms - rules.lag_ms
        self._long_seen = now_ms - rules.retention_ms
        self.newest: dict[bytes, int] = {}
        self.candidates = BitMap64()
        """Every record with a key that was looked at."""
        self.expired = BitMap64()
        """Those of them that are a null which was seen long enough."""

    def add(self, block: KeyColumns) -> bool:
        """False: all that follows is too young, also to supersede."""
        keys, seqs, times, flags = block
        upto = self._old_enough(times, len(flags))
        if upto < len(flags):
            keys, seqs, flags = keys[:upto], seqs[:upto], flags[:upto]
        if flags and flags[0] & (HAS_KEY | DATA_NULL) == HAS_KEY and flags.count(flags[0]) == len(flags):
            self.newest.update(zip(cast("Sequence[bytes]", keys), seqs, strict=True))
            self.candidates |= BitMap64(seqs)
        else:
            self._add_mixed(keys, seqs, times, flags)
        return upto == len(block.flags)

    def _old_enough(self, times: Sequence[int] | int, count: int) -> int:
        """How many come before the first one that is too young; times never decrease."""
        if isinstance(times, int):
            return count if times <= self._too_young else 0
        if times[-1] <= self._too_young:
            return count
        return next(at for at, ts in enumerate(times) if ts > self._too_young)

    def _add_mixed(
        self, keys: Sequence[bytes | None], seqs: Sequence[int], times: Sequence[int] | int, flags: bytes
    ) -> None:
        for at, (key, seq, flag) in enumerate(zip(keys, seqs, flags, strict=True)):
            if not flag & HAS_KEY or key is None:
                continue
            self.newest[key] = seq
            self.candidates.add(seq)
            if flag & DATA_NULL and (times if isinstance(times, int) else times[at]) < self._long_seen:
                self.expired.add(seq)


def superseded(blocks: Iterable[KeyColumns], rules: KeyRules, now_ms: int) -> BitMap64:
    """The seqs that last-value-per-key lets go. `blocks`: the live records of one topic, ascending by seq."""
    last = LastValues(rules, now_ms)
    for block in blocks:
        if not last.add(block):
            break
    return last.candidates - (BitMap64(last.newest.values()) - last.expired)


# --- which segments ---------------------------------------------------------------------------------------


class PlanOptions(msgspec.Struct, frozen=True):
    target_bytes: int = 256 << 20
    """Segments are merged until they have this size."""
    min_dead: float = 0.0
    """A segment with a smaller share of dead records stays as it is (unless keys let some go)."""
    merge: bool = True


class Bin(msgspec.Struct, frozen=True):
    """Segments that become one (or none, if nothing in them lives), in the order of seqs."""

    number: int
    old: tuple[ManifestSegment, ...]


class Plan(msgspec.Struct, frozen=True):
    bins: tuple[Bin, ...]
    dropped: Mapping[int, BitMap64]
    """By topic id: live records that keys let go."""

    @property
    def empty(self) -> bool:
        return not self.bins


class NumbersUsedUp(ValueError):
    pass


def make_plan(basis: Basis, dropped: Mapping[int, BitMap64], options: PlanOptions) -> Plan:
    by_number = {segment.number: segment for segment in basis.candidates()}
    chosen = _worth_rewriting(basis, by_number.values(), dropped, options)
    small = {
        number
        for number, segment in by_number.items()
        if options.merge and segment.size < options.target_bytes // 2
    }
    wanted = chosen | small
    bins: list[list[ManifestSegment]] = []
    held: list[ManifestSegment] = []
    size = 0
    for number in seq_order(basis):
        segment = by_number.get(number)
        if segment is None or number not in wanted:
            bins.append(held)
            held, size = [], 0
            continue
        if held and (not options.merge or size + segment.size > options.target_bytes):
            bins.append(held)
            held, size = [], 0
        held.append(segment)
        size += segment.size
    bins.append(held)
    useful = [group for group in bins if len(group) > 1 or any(each.number in chosen for each in group)]
    base = COMPACTED_FROM + basis.manifest.generation * OUTPUTS_PER_GENERATION
    if len(useful) > OUTPUTS_PER_GENERATION or base + len(useful) > _LAST_NUMBER:
        raise NumbersUsedUp(f"a plan of {len(useful)} segments: compact fewer at once, with larger ones")
    return Plan(tuple(Bin(base + at, tuple(group)) for at, group in enumerate(useful)), dropped)


def _worth_rewriting(
    basis: Basis, segments: Iterable[ManifestSegment], dropped: Mapping[int, BitMap64], options: PlanOptions
) -> set[int]:
    named = {(topic.name, topic.epoch): topic for topic in basis.topics.values()}
    chosen = set()
    for segment in segments:
        dead = keyed = 0
        for part in segment.topics:
            topic = named.get((part.name, part.epoch))
            if topic is None:
                dead += part.count
                continue
            span = part.last - part.first + 1
            # What is live is in the file for certain, so the rest of the file is dead.
            dead += part.count - (span - len(topic.dead_within(part.first, part.last)))
            if topic.id in dropped:
                keyed += dropped[topic.id].range_cardinality(part.first, part.last + 1)
        if keyed or (dead and dead + keyed >= options.min_dead * segment.records):
            chosen.add(segment.number)
    return chosen


def seq_order(basis: Basis) -> Iterator[int]:
    """All segments, hot ones too, so that every topic's runs ascend. Numbers alone do not say: a compacted segment
    is young and holds what is old."""
    after: dict[int, set[int]] = {}
    waits: dict[int, int] = {segment.number: 0 for segment in basis.manifest.segments}
    for topic in basis.topics.values():
        for (one, _, _), (other, _, _) in zip(topic.runs, topic.runs[1:], strict=False):
            waits.setdefault(one, 0)
            waits.setdefault(other, 0)
            if other not in after.setdefault(one, set()):
                after[one].add(other)
                waits[other] += 1
        for number, _, _ in topic.runs:
            waits.setdefault(number, 0)
    ready = [number for number, count in waits.items() if not count]
    heapify(ready)
    while ready:
        number = heappop(ready)
        yield number
        for other in after.get(number, ()):
            waits[other] -= 1
            if not waits[other]:
                heappush(ready, other)


# --- what a rewritten topic looks like ----------------------------------------------------------------------


def ranges_of(seqs: BitMap64) -> list[tuple[int, int]]:
    """The set as first…last pairs."""
    if not seqs:
        return []
    low, last = int(seqs.min()), int(seqs.max())
    holes = BitMap64()
    holes.add_range(low, last + 1)
    holes -= seqs
    found: list[tuple[int, int]] = []
    if len(holes) < len(seqs):  # a compaction removes most: what it has left is quicker to go through
        for hole in holes:
            if hole > low:
                found.append((low, hole - 1))
            low = hole + 1
        found.append((low, last))
        return found
    for seq in seqs:
        if found and found[-1][1] == seq - 1:
            found[-1] = (found[-1][0], seq)
        else:
            found.append((seq, seq))
    return found


def seqs_in(ranges: Iterable[Sequence[int]]) -> BitMap64:
    found = BitMap64()
    for first, last in ranges:
        found.add_range(first, last + 1)
    return found
