"""What a shard should hold, as plain dicts: the yardstick of the model and crash tests.

A shard is the outcome of its operations in the order of its log. After a crash it must be the outcome of *some
prefix* of them that contains every synced one: that single sentence is oracles 1 to 4 of the fault catalogue.
Operations are small objects with `apply(shard)`; `ShardModel` folds them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

DEFAULTS: dict[str, Any] = {
    "ttl_ms": 0,
    "cap_records": 0,
    "cap_bytes": 0,
    "discard": "old",
    "durability": "disk",
    "idempotency_window_ms": 120_000,
    "dedupe_node": True,
    "auto_create": True,
}

Match = tuple[str, str, str]  # field, Eq or Glob, value (a Glob's without its star)


@dataclass(frozen=True, slots=True)
class Rec:
    """One record. `data` and `meta` are the texts that the writer sent."""

    seq: int
    ts: int
    data: str
    node: str | None = None
    tag: str | None = None
    key: str | None = None
    meta: str | None = None

    def text(
        self, *, include_tags: bool = False, include_keys: bool = False, include_meta: bool = True
    ) -> str:
        parts = [f'"$seq":{self.seq}', f'"$ts":{self.ts}']
        if include_tags and self.tag is not None:
            parts.append(f'"$tag":{_quoted(self.tag)}')
        if include_keys and self.key is not None:
            parts.append(f'"$key":{_quoted(self.key)}')
        if self.node is not None:
            parts.append(f'"$node":{_quoted(self.node)}')
        parts.append(f'"data":{self.data}')
        if include_meta and self.meta is not None:
            parts.append(f'"meta":{self.meta}')
        return "{" + ",".join(parts) + "}"

    @property
    def size(self) -> int:
        """Bytes as stored, with the comma behind it."""
        return len(self.text().encode()) + 1

    def matches(self, match: Match | None) -> bool:
        if match is None:
            return True
        held, (_, op, value) = getattr(self, match[0]), match
        return held is not None and (held == value if op == "Eq" else held.startswith(value))


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


@dataclass(slots=True)
class TopicModel:
    name: str
    config: dict[str, Any] = field(default_factory=lambda: dict(DEFAULTS))
    head: int = 0
    last_ts: int = 0
    live: dict[int, Rec] = field(default_factory=dict)  # ascending by seq
    floor: int = 1
    reason: str | None = None
    holes: list[tuple[int, int]] = field(default_factory=list)
    deleted: set[int] = field(default_factory=set)  # on purpose, ever
    capped: set[int] = field(default_factory=set)  # records that caps took, ever
    dedupe: dict[str, tuple[int, int, int]] = field(default_factory=dict)

    def copy(self) -> TopicModel:
        return replace(
            self,
            config=dict(self.config),
            live=dict(self.live),
            holes=list(self.holes),
            deleted=set(self.deleted),
            capped=set(self.capped),
            dedupe=dict(self.dedupe),
        )

    @property
    def count(self) -> int:
        return len(self.live)

    @property
    def bytes(self) -> int:
        return sum(rec.size for rec in self.live.values())

    @property
    def earliest(self) -> int:
        return next(iter(self.live), self.head + 1)

    def append(self, recs: list[Rec], idem: str | None) -> None:
        assert recs[0].seq == self.head + 1, (recs[0].seq, self.head)
        self.head, self.last_ts = recs[-1].seq, recs[-1].ts
        self.live.update({rec.seq: rec for rec in recs})
        if idem is not None:
            window_ms = self.config["idempotency_window_ms"]
            self.dedupe = {
                key: held for key, held in self.dedupe.items() if self.last_ts - held[2] <= window_ms
            }
            self.dedupe.pop(idem, None)
            self.dedupe[idem] = (recs[0].seq, len(recs), self.last_ts)
        self.hold_caps()

    def hold_caps(self) -> None:
        if self.config["discard"] != "old":
            return
        cap_records, cap_bytes = self.config["cap_records"], self.config["cap_bytes"]
        count, size, floor = self.count, self.bytes, self.floor
        for rec in self.live.values():
            if not (0 < cap_records < count or 0 < cap_bytes < size):
                break
            count, size, floor = count - 1, size - rec.size, rec.seq + 1
        self.evict(floor, "cap")

    def evict(self, floor: int, reason: str) -> None:
        if floor <= self.floor:
            return
        self.reason = reason if self.reason in (None, reason) else "mixed"
        self.floor = floor
        if reason == "cap":
            self.capped.update(seq for seq in self.live if seq < floor)
        self.live = {seq: rec for seq, rec in self.live.items() if seq >= floor}
        self.holes = [hole for hole in self.holes if hole[1] >= floor]

    def expired_floor(self, now_ms: int) -> int:
        """Behind the last live record that is older than the TTL."""
        ttl_ms = self.config["ttl_ms"]
        expired = [seq for seq, rec in self.live.items() if ttl_ms and rec.ts < now_ms - ttl_ms]
        return max(self.floor, expired[-1] + 1) if expired else self.floor

    def delete(self, upto: int, before: int | None, match: Match | None) -> int:
        bound = upto if before is None else min(upto, before - 1)
        gone = [seq for seq, rec in self.live.items() if seq <= bound and rec.matches(match)]
        for seq in gone:
            del self.live[seq]
        self.deleted.update(gone)
        return len(gone)

    def lose(self, last: int) -> None:
        """The seqs behind the head, up to `last`, may have been given out and are gone."""
        if last > self.head:
            self.holes.append((self.head + 1, last))
            self.head = last

    def lose_everything(self) -> None:
        self.live, self.holes, self.dedupe = {}, [], {}
        if self.floor <= self.head:
            self.floor, self.reason = self.head + 1, "mixed"

    def lost_behind(self, cursor: int) -> set[int]:
        """The seqs that a reader at `cursor` must be told about."""
        lost = set(range(cursor + 1, self.floor))
        for first, last in self.holes:
            lost.update(range(max(first, cursor + 1, self.floor), last + 1))
        return lost


class ShardModel:
    def __init__(self) -> None:
        self.topics: dict[int, TopicModel] = {}  # by incarnation
        self.names: dict[str, int] = {}

    def copy(self) -> ShardModel:
        twin = ShardModel()
        twin.topics = {number: topic.copy() for number, topic in self.topics.items()}
        twin.names = dict(self.names)
        return twin

    def by_name(self, name: str) -> TopicModel | None:
        return self.topics.get(self.names.get(name, -1))


class Operation(Protocol):
    incarnation: int

    def apply(self, shard: ShardModel) -> int:
        """Returns the number of records removed on purpose."""


@dataclass(slots=True)
class Create:
    incarnation: int
    name: str
    config: dict[str, Any]

    def apply(self, shard: ShardModel) -> int:
        shard.topics[self.incarnation] = TopicModel(self.name, dict(self.config))
        shard.names[self.name] = self.incarnation
        return 0


@dataclass(slots=True)
class Configure:
    incarnation: int
    config: dict[str, Any]

    def apply(self, shard: ShardModel) -> int:
        topic = shard.topics.get(self.incarnation)
        if topic is not None:
            topic.config = dict(self.config)
            topic.hold_caps()
        return 0


@dataclass(slots=True)
class Drop:
    incarnation: int

    def apply(self, shard: ShardModel) -> int:
        topic = shard.topics.pop(self.incarnation, None)
        if topic is not None and shard.names.get(topic.name) == self.incarnation:
            del shard.names[topic.name]
        return 0


@dataclass(slots=True)
class Append:
    incarnation: int
    recs: list[Rec]
    idem: str | None = None

    def vanish(self, shard: ShardModel) -> None:
        """As replay sees records that were in memory only: seqs that were given out, and are gone."""
        topic = shard.topics.get(self.incarnation)
        if topic is not None:
            topic.lose(self.recs[-1].seq)

    def apply(self, shard: ShardModel) -> int:
        topic = shard.topics.get(self.incarnation)
        if topic is not None:
            topic.append(self.recs, self.idem)
        return 0


@dataclass(slots=True)
class Delete:
    incarnation: int
    upto: int
    before: int | None
    match: Match | None

    def apply(self, shard: ShardModel) -> int:
        topic = shard.topics.get(self.incarnation)
        return topic.delete(self.upto, self.before, self.match) if topic is not None else 0


@dataclass(slots=True)
class Expire:
    incarnation: int
    floor: int

    def apply(self, shard: ShardModel) -> int:
        topic = shard.topics.get(self.incarnation)
        if topic is not None:
            topic.evict(self.floor, "ttl")
        return 0


@dataclass(slots=True)
class Lose:
    """A power cut: seqs up to `last` are never used again."""

    incarnation: int
    last: int
    everything: bool = False

    def apply(self, shard: ShardModel) -> int:
        topic = shard.topics.get(self.incarnation)
        if topic is not None:
            topic.lose(self.last)
            if self.everything:
                topic.lose_everything()
        return 0


@dataclass(slots=True)
class Repeat:
    """A write whose idempotency key was seen before: changes nothing."""

    incarnation: int

    def apply(self, shard: ShardModel) -> int:
        return 0
