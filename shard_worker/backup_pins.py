"""What a backup of this shard consists of, and keeping it there until it is copied.

A backup takes the newest snapshot, the log from the first file that the snapshot needs to one position, and all
segments. `ShardPlan` names them; the one who makes the backup reads the files itself. While a plan is pinned,
maintenance goes on and only leaves these files where they are.
"""

from __future__ import annotations

from collections.abc import Hashable

import msgspec

from shard_worker.shard import Shard
from shared.cbor_body import Fields, as_bool, as_list, as_text, as_uint, dump_map, list_of, load_map
from shared.wal_format import split_lsn


class PlannedSegment(msgspec.Struct, frozen=True):
    number: int
    tier: str
    size: int
    digest: str
    live: bool
    """False: nothing is served from it any more, and its file may be gone."""

    def to_list(self) -> list[object]:
        return [self.number, self.tier, self.size, self.digest, self.live]


class ShardPlan(msgspec.Struct, frozen=True, kw_only=True):
    shard: int
    end: int
    first_file: int
    snapshot: int | None
    snapshot_end: int
    last_segment: int
    now_ms: int
    segments: tuple[PlannedSegment, ...]

    @property
    def log_files(self) -> range:
        """The numbers of the log files; the last one counts up to `end` only."""
        return range(self.first_file, split_lsn(self.end)[0] + 1)

    def encode(self) -> bytes:
        fields: dict[str, object] = {
            "shard": self.shard,
            "end": self.end,
            "first_file": self.first_file,
            "snapshot_end": self.snapshot_end,
            "last_segment": self.last_segment,
            "now": self.now_ms,
            "segments": [segment.to_list() for segment in self.segments],
        }
        if self.snapshot is not None:
            fields["snapshot"] = self.snapshot
        return dump_map(fields)

    @classmethod
    def decode(cls, body: bytes) -> ShardPlan:
        fields: Fields = load_map(memoryview(body))
        return cls(
            shard=fields.need("shard", as_uint),
            end=fields.need("end", as_uint),
            first_file=fields.need("first_file", as_uint),
            snapshot=fields.maybe("snapshot", as_uint),
            snapshot_end=fields.need("snapshot_end", as_uint),
            last_segment=fields.need("last_segment", as_uint),
            now_ms=fields.need("now", as_uint),
            segments=fields.need("segments", lambda value: list_of(value, _as_segment)),
        )


def _as_segment(value: object) -> PlannedSegment:
    number, tier, size, digest, live = as_list(value, 5)
    return PlannedSegment(as_uint(number), as_text(tier), as_uint(size), as_text(digest), as_bool(live))


def plan_backup(shard: Shard) -> ShardPlan:
    """Everything that is written down by now. It may be copied once the log is synced up to `end`."""
    engine = shard.engine
    engine.commit()
    snapshot = shard.maintenance.snapshot
    return ShardPlan(
        shard=engine.shard,
        end=engine.wal.end,
        first_file=snapshot.first_file if snapshot is not None else min(engine.wal.files),
        snapshot=snapshot.number if snapshot is not None else None,
        snapshot_end=snapshot.end if snapshot is not None else 0,
        last_segment=engine.state.last_segment,
        now_ms=engine.now_ms(),
        segments=tuple(
            PlannedSegment(entry.number, entry.tier, entry.size, entry.digest, entry.runs > 0)
            for _, entry in sorted(engine.state.segments.items())
        ),
    )


class Pins(msgspec.Struct):
    """A keeper of maintenance: what any plan under way still needs."""

    _plans: dict[Hashable, ShardPlan] = msgspec.field(default_factory=dict)
    _segments: frozenset[int] = frozenset()

    def add(self, owner: Hashable, plan: ShardPlan) -> None:
        self._plans[owner] = plan
        self._count()

    def drop(self, owner: Hashable) -> None:
        self._plans.pop(owner, None)
        self._count()

    def _count(self) -> None:
        self._segments = frozenset(
            segment.number for plan in self._plans.values() for segment in plan.segments
        )

    def __len__(self) -> int:
        return len(self._plans)

    def first_file(self) -> int | None:
        return min((plan.first_file for plan in self._plans.values()), default=None)

    def keeps_segment(self, number: int) -> bool:
        return number in self._segments

    def keeps_snapshot(self, number: int) -> bool:
        return any(plan.snapshot == number for plan in self._plans.values())
