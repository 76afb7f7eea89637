"""One topic: its seqs, floors, holes and the index of its records. No clock, disk or socket.

State changes only through the `apply_*` methods, which live traffic and replay both call, in log order.
`source` lets them look into records (sizes, tags) wherever those are kept.

T1 every seq in 1…head is live, or below `live_from`, or in `deleted`, or in a hole (lost in a power cut, or
   trimmed at a router's source).
T2 `count` and `bytes` are those of the live ones.
T3 floor ≤ live_from; neither ever moves back.
T4 `ts` never decreases with seq.
(tests/model/test_topic_model.py)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from shard_worker.core.dedupe import DedupeWindow
from shard_worker.core.hot_index import IN_MEMORY, HotEntry, HotIndex
from shard_worker.core.hot_terms import HotTerms
from shard_worker.core.piece import Piece, PieceSource
from shard_worker.core.seq_set import SeqSet
from shard_worker.core.stretches import Stretch, stretches_of
from shared.api_types import TopicConfig
from shared.columns import Columns
from shared.control_frames import Hole
from shared.errors import DataDamage
from shared.match import Match

if TYPE_CHECKING:
    from shard_worker.core.lease_queue import LeaseQueue
    from shard_worker.core.router import RouteMark, Router

REASON_CAP, REASON_TTL, REASON_MIXED, REASON_SOURCE_TRIM = "cap", "ttl", "mixed", "source_trim"
REASON_RECREATED = "recreated"


@dataclass(slots=True)
class Run:
    """The sealed records first…last of a topic, in one segment."""

    segment: int
    first: int
    last: int
    live: int  # bytes of its live records; 0 means that none is left
    max_ts: int


def _limits(config: TopicConfig) -> bool:
    """Has an append more to look at than its own records: caps, jobs, memory?"""
    return (
        config.cap_records > 0
        or config.cap_bytes > 0
        or config.discard != "old"
        or config.type != "log"
        or config.durability == "ephemeral"
    )


class Resident(NamedTuple):
    """A batch that is kept in memory only."""

    json: bytes
    columns: bytes


# Shared by all topics that have none, which are most: never changed in place, see `apply_hole` and `apply_sealed`.
NO_HOLES: Final[list[Hole]] = []
NO_RUNS: Final[list[Run]] = []


class Topic:
    __slots__ = (
        "bytes",
        "config",
        "count",
        "dedupe",
        "deleted",
        "epoch",
        "floor",
        "gated",
        "head",
        "holes",
        "hot",
        "hot_bytes",
        "id",
        "last_file",
        "last_read_ts",
        "last_ts",
        "limited",
        "live_from",
        "lsn",
        "moved",
        "name",
        "newest_count",
        "newest_first",
        "newest_lsn",
        "newest_size",
        "pending_bytes",
        "pending_records",
        "queue",
        "raised_ts",
        "reason",
        "removals",
        "reserve_step",
        "reserved",
        "reserved_synced",
        "resident",
        "resident_bytes",
        "routed",
        "routers",
        "runs",
        "staged_config",
        "staged_head",
        "staged_ts",
        "terms",
        "waiters",
    )

    def __init__(self, *, id: int, name: str, epoch: int, config: TopicConfig) -> None:
        # In the order of use, as compiled code lays them out: among many topics one is in no cache, and each line of it
        # is fetched. First what reads look at, then what writes look at besides, then what most requests never see.
        self.name = name
        self.config = config
        self.pending_records = 0  # handed out but not applied yet, like what is staged
        self.gated = 0  # frames of this topic that wait for a sync; later ones must queue behind them
        self.last_read_ts = 0
        self.head = 0
        self.floor = 1  # evict_floor: everything below was lost involuntarily (or deleted before that)
        self.live_from = 1
        self.count = 0
        self.holes: list[Hole] = NO_HOLES
        self.deleted: SeqSet | None = None
        # The newest entry of `hot` once more, for readers that keep up: six objects that they need not fetch. 0: it is
        # not in the log, or there is none.
        self.newest_first = 0
        self.newest_count = 0
        self.newest_size = 0
        self.newest_lsn = 0
        self.runs: list[Run] = NO_RUNS
        self.hot = HotIndex()
        self.id = id
        self.limited = _limits(config)
        # Handed out but not applied yet: frames that wait for their group.
        self.staged_config: TopicConfig | None = None
        self.staged_head = 0
        self.staged_ts = 0
        self.pending_bytes = 0
        # Seqs up to `reserved` may be handed out without a sync; see docs/decisions/0003-sync-policy.md.
        self.reserved = 0
        self.reserved_synced = 0
        self.reserve_step = 0  # seqs of the last raise, and when that was
        self.bytes = 0
        self.hot_bytes = 0  # JSON bytes in the hot part, dead ones included: when it is due for sealing
        self.last_ts = 0
        self.lsn = 0  # the last frame applied to this topic; replay skips up to here
        self.last_file = 0  # newest log file that holds a record of this topic
        self.resident: dict[int, Resident] | None = None
        self.resident_bytes = 0
        self.terms: HotTerms | None = None
        self.routers: dict[str, Router] | None = None  # those that copy from here, by name
        self.queue: LeaseQueue | None = None  # of topics that are queues
        self.waiters: dict[object, None] | None = None
        self.raised_ts = 0
        self.epoch = epoch
        self.reason: str | None = None
        self.dedupe: DedupeWindow | None = None
        self.moved: dict[str, int] = {}  # records that came from another topic: identity there, seq here
        self.routed: dict[str, RouteMark] | None = None  # those that copied to here: how far they have come
        self.removals = 0  # counts up whenever records go, so that the queue knows when to look

    def __repr__(self) -> str:
        return (
            f"<Topic {self.name} id={self.id} {self.config.durability} head={self.head} floor={self.floor} "
            f"live_from={self.live_from} count={self.count} hot={len(self.hot)} runs={len(self.runs)}>"
        )

    @property
    def planned_config(self) -> TopicConfig:
        """What is in force for whatever is written next."""
        return self.config if self.staged_config is None else self.staged_config

    @property
    def evicts_for_residents(self) -> bool:
        """Are its oldest records stored, and others in memory only, or will be? Replay would not evict what we do."""
        hot = self.hot
        in_memory = bool(self.resident) or self.config.durability == "ephemeral"
        return in_memory and (bool(self.runs) or (len(hot) > 0 and hot.oldest_lsn() != IN_MEMORY))

    @property
    def earliest(self) -> int:
        return self.live_from if self.count else self.head + 1

    # --- looking into records ---------------------------------------------------------------------------

    def hot_piece(self, index: int, source: PieceSource) -> Piece:
        entry = self.hot.entry(index)
        if entry.lsn == IN_MEMORY:
            return self._resident_piece(entry)
        return source.hot_piece(self.id, *entry)

    def _resident_piece(self, entry: HotEntry) -> Piece:
        assert self.resident is not None
        json, columns = self.resident[entry.first]
        return Piece(
            first=entry.first,
            last=entry.last,
            count=entry.records,
            ts=entry.ts,
            load_columns=lambda: (
                Columns(entry.flags, entry.records, entry.size, memoryview(columns)),
                None,
                None,
            ),
            load_json=lambda: memoryview(json),
        )

    def pieces(self, seq: int, source: PieceSource) -> Iterator[Piece]:
        """All pieces that hold `seq` or anything behind it, in order."""
        for run in self.runs:
            if run.last >= seq:
                yield from source.sealed_pieces(run.segment, self.id, max(seq, run.first), run.last)
        hot = self.hot
        for index in range(hot.index_of(seq), len(hot.first)):
            yield self.hot_piece(index, source)

    def next_live(self, seq: int) -> int:
        """The first live seq at or behind `seq`; head + 1 if there is none."""
        seq = max(seq, self.live_from)
        while seq <= self.head:
            at = self.deleted.first_absent(seq) if self.deleted is not None else seq
            for hole in self.holes:
                if hole.first <= at <= hole.last:
                    at = hole.last + 1
            if at == seq:
                return seq
            seq = at
        return self.head + 1

    def is_live(self, seq: int) -> bool:
        if not self.live_from <= seq <= self.head or (self.deleted is not None and seq in self.deleted):
            return False
        # A record whose frame was lost may still be in a segment: it counts as lost all the same.
        return not self.holes or not any(hole.first <= seq <= hole.last for hole in self.holes)

    def live_between(self, first: int, last: int) -> int:
        """How many live records there are in first…last."""
        first = max(first, self.live_from)
        if last < first:
            return 0
        live = last - first + 1
        if self.deleted is not None:
            live -= self.deleted.count(first, last)
        for hole in self.holes:
            live -= max(0, min(last, hole.last) - max(first, hole.first) + 1)
        return live

    # --- what changes a topic ---------------------------------------------------------------------------

    def apply_append(
        self, first: int, count: int, ts: int, lsn: int, size: int, flags: int, source: PieceSource
    ) -> None:
        """Records first…first + count - 1 are in the log (or resident); make them visible, then hold the caps."""
        if first > self.head + 1:
            self.apply_hole(Hole(self.head + 1, first - 1, REASON_MIXED))
        if not self.count:
            self.live_from = first
        self.hot.append(first, count, ts, lsn, size, flags)
        self.newest_first = 0 if lsn == IN_MEMORY else first
        self.newest_count, self.newest_size, self.newest_lsn = count, size, lsn
        self.head = first + count - 1
        if self.staged_head < self.head:
            self.staged_head = self.head
        self.last_ts = ts
        self.count += count
        self.bytes += size
        self.hot_bytes += size
        if self.terms is not None:
            self.terms.add(self.hot_piece(len(self.hot.first) - 1, source))
        if not self.limited:
            return
        config = self.config
        if config.discard == "old" and (
            0 < config.cap_records < self.count or 0 < config.cap_bytes < self.bytes
        ):
            self._hold_caps(source)

    def apply_hole(self, hole: Hole) -> None:
        """Seqs that will never be seen: the head moves over them."""
        if hole.last <= self.head:
            return
        first = max(hole.first, self.head + 1)
        last = self.holes[-1] if self.holes else None
        if last is not None and last.last == first - 1 and last.reason == hole.reason == REASON_SOURCE_TRIM:
            # A source that keeps trimming must not make the list of holes ever longer.
            self.holes[-1] = last._replace(last=hole.last)
        else:
            self._add_hole(Hole(first, hole.last, hole.reason))
        self.head = hole.last
        self.staged_head = max(self.staged_head, self.head)
        if not self.count:
            self.live_from = self.head + 1

    def _add_hole(self, hole: Hole) -> None:
        if self.holes:
            self.holes.append(hole)
        else:
            self.holes = [hole]

    def apply_floor(self, floor: int, reason: str, source: PieceSource) -> None:
        """Everything below `floor` is lost to cap or TTL. A floor that arrives late changes nothing."""
        floor = min(floor, self.head + 1)
        if floor <= self.floor:
            return
        self.reason = reason if self.reason in (None, reason) else REASON_MIXED
        self.floor = floor
        self._drop_below(floor, source)
        while self.holes and self.holes[0].last < floor:
            del self.holes[0]
        if self.holes and self.holes[0].first < floor:
            # Readers are told of the floor, then of holes that begin behind it.
            self.holes[0] = self.holes[0]._replace(first=floor)

    def apply_loss(self, source: PieceSource) -> None:
        """All records are gone, as an ephemeral topic's are after a restart. Its seqs go on."""
        for run in self.runs:
            source.run_dropped(run.segment)
        self.runs = NO_RUNS
        self.replace_hot(HotIndex())
        self.hot_bytes = self.count = self.bytes = 0
        self.holes, self.deleted, self.terms = NO_HOLES, None, None
        self.live_from = self.head + 1
        self.removals += 1
        if self.floor <= self.head:
            self.floor = self.head + 1
            self.reason = REASON_MIXED

    def apply_config(self, config: TopicConfig, source: PieceSource) -> None:
        self.config = config
        self.limited = _limits(config)
        if config.discard == "old":
            self._hold_caps(source)

    def apply_delete(self, upto: int, before: int | None, match: Match | None, source: PieceSource) -> int:
        """Remove live records on purpose: no floor moves, nobody is told. Returns how many."""
        bound = upto if before is None else min(upto, before - 1)
        held = self.count
        if match is None:
            self._drop_below(bound + 1, source)
        else:
            self._delete_matching(bound, match, source)
        return held - self.count

    def check_delete(self, upto: int, match: Match | None, source: PieceSource) -> None:
        """Raise if the search of `apply_delete` would meet damage: such a delete must not come to the log."""
        if match is None:
            return
        value, prefix = match.value.encode(), match.op == "Glob"
        for run in self.runs:
            if run.first <= upto:
                for piece in source.sealed_matches(run.segment, self.id, match.field, value, prefix):
                    piece.columns.values(match.field)
        self._hot_terms(source)

    def apply_remove(self, seqs: list[int], source: PieceSource) -> int:
        """Remove single records by seq. Returns how many were live."""
        return self.remove_stretches(stretches_of(seqs), source)

    def remove_stretches(self, stretches: list[Stretch], source: PieceSource) -> int:
        held = self.count
        hot = self.hot
        for first, last in stretches:
            while first <= last:
                index = hot.index_of(first)
                end = first
                if index < len(hot.first) and hot.first[index] <= first:
                    end = min(last, hot.last_of(index))
                    # Also not in a hole: seqs that were lost, and removed before anyone knew.
                    if self.live_between(first, end) == end - first + 1:
                        self._remove_together(index, first, end, source)
                        first = end + 1
                        continue
                for seq in range(first, end + 1):
                    if seq <= self.head and self.live_between(seq, seq):
                        self._mark(seq, source)
                first = end + 1
        self._advance(source)
        return held - self.count

    def _remove_together(self, index: int, first: int, last: int, source: PieceSource) -> None:
        """Live neighbours of one hot batch, for the price of one."""
        hot = self.hot
        count = last - first + 1
        if count == hot.count[index]:
            size = hot.live[index]
        else:
            start = first - hot.first[index]
            try:
                ends = self.hot_piece(index, source).columns.ends
                size = ends[start + count - 1] - (ends[start - 1] if start else 0)
            except DataDamage:
                size = count * self._average(hot.live[index], first - start, hot.last_of(index))
        hot.take_off(index, size)
        if first == self.live_from:
            self.live_from = last + 1  # the oldest go first, as a rule
        else:
            if self.deleted is None:
                self.deleted = SeqSet()
            self.deleted.add_range(first, last)
        self.removals += 1
        self.count -= count
        self.bytes -= size

    def apply_sealed(self, segment: int, last: int, max_ts: int, source: PieceSource) -> None:
        """The hot records up to `last` (the end of a batch) are now in a segment."""
        hot = self.hot
        end = hot.index_of(last + 1)
        if end > hot.start:
            first = hot.first[hot.start]
            live = sum(hot.live[hot.start : end])
            self._forget_hot(end)
            if live:
                run = Run(segment, first, last, live, max_ts)
                if self.runs:
                    self.runs.append(run)
                else:
                    self.runs = [run]
                source.run_added(segment)

    def expired_floor(self, now_ms: int, source: PieceSource) -> int:
        """Where the floor would be if everything older than the TTL were gone at `now_ms`.

        Right behind the last live record that has expired: what was deleted on purpose behind it is not its loss.
        """
        ttl_ms = self.config.ttl_ms
        if not ttl_ms or not self.count:
            return self.floor
        expired = self.live_between(self.live_from, self._first_not_older(now_ms - ttl_ms, source) - 1)
        return max(self.floor, self._seq_after_live(expired)) if expired else self.floor

    def _first_not_older(self, ts: int, source: PieceSource) -> int:
        """The seq of the first stored record, dead or alive, whose time is at least `ts`; head + 1 if none is."""
        for run in self.runs:
            if run.max_ts >= ts:
                try:
                    for piece in source.sealed_pieces(run.segment, self.id, self.live_from, run.last):
                        index = piece.first_not_older(ts)
                        if index < piece.count:
                            return piece.seq_at(index)
                except DataDamage:
                    return run.first  # nothing of it is known to have expired
        hot = self.hot
        index = hot.first_not_older(ts)
        return hot.first[index] if index < len(hot.first) else self.head + 1

    # --- removal ----------------------------------------------------------------------------------------

    def _hold_caps(self, source: PieceSource) -> None:
        """Evict the oldest until both caps hold."""
        config = self.config
        floor = self.live_from
        if 0 < config.cap_records < self.count:
            floor = self._seq_after_live(self.count - config.cap_records)
        excess = self.bytes - config.cap_bytes if config.cap_bytes else 0
        if excess > 0:
            floor = max(floor, self._seq_after_bytes(excess, source))
        if floor > self.live_from:
            self.apply_floor(floor, REASON_CAP, source)

    def _seq_after_live(self, wanted: int) -> int:
        """The seq behind the first `wanted` live records."""
        low = high = self.live_from + wanted - 1
        while self.live_between(self.live_from, high) < wanted:
            low, high = high + 1, min(self.head, high + (high - self.live_from) + wanted)
        while low < high:
            middle = (low + high) // 2
            if self.live_between(self.live_from, middle) >= wanted:
                high = middle
            else:
                low = middle + 1
        return high + 1

    def _seq_after_bytes(self, excess: int, source: PieceSource) -> int:
        """The seq behind the oldest live records that together have at least `excess` bytes."""
        for run in self.runs:
            if run.live < excess:
                excess -= run.live
                continue
            wanted = excess
            try:
                for piece in source.sealed_pieces(run.segment, self.id, self.live_from, run.last):
                    excess, seq = self._consume(piece, excess)
                    if excess <= 0:
                        return seq
            except DataDamage:
                return self._guess_seq(run.first, run.last, run.live, wanted)
        hot = self.hot
        for index in range(hot.start, len(hot.first)):
            if hot.live[index] < excess:
                excess -= hot.live[index]
                continue
            if hot.count[index] == 1:
                return hot.first[index] + 1
            try:
                excess, seq = self._consume(self.hot_piece(index, source), excess)
            except DataDamage:
                entry = hot.entry(index)
                return self._guess_seq(entry.first, entry.last, hot.live[index], excess)
            if excess <= 0:
                return seq
        return self.head + 1

    def _guess_seq(self, first: int, last: int, live: int, excess: int) -> int:
        """Where the oldest `excess` bytes of an unreadable stretch end, if its live records were of equal size."""
        records = -(-excess * self.live_between(first, last) // live)
        return self._seq_after_live(self.live_between(self.live_from, first - 1) + max(records, 1))

    def _consume(self, piece: Piece, excess: int) -> tuple[int, int]:
        for index in range(piece.index_of(self.live_from), piece.count):
            if self.is_live(piece.seq_at(index)):
                excess -= piece.size_at(index)
                if excess <= 0:
                    return excess, piece.seq_at(index) + 1
        return excess, piece.last + 1

    def _drop_below(self, seq: int, source: PieceSource) -> None:
        """Everything below `seq` is gone, for whatever reason."""
        seq = min(seq, self.head + 1)
        if seq <= self.live_from:
            return
        self.removals += 1
        self.count -= self.live_between(self.live_from, seq - 1)
        while self.runs and self.runs[0].last < seq:
            run = self.runs.pop(0)
            self.bytes -= run.live
            source.run_dropped(run.segment)
        if self.runs and self.runs[0].first < seq:
            run = self.runs[0]
            pieces = source.sealed_pieces(run.segment, self.id, self.live_from, seq - 1)
            gone = self._bytes_below(seq, run.first, run.last, run.live, pieces)
            run.live -= gone
            self.bytes -= gone
        hot = self.hot
        index = hot.index_of(seq)
        self.bytes -= sum(hot.live[hot.start : index])
        self._forget_hot(index)
        index = hot.start
        if index < len(hot.first) and hot.first[index] < seq:
            entry = hot.entry(index)
            piece = (self.hot_piece(at, source) for at in (index,))
            gone = self._bytes_below(seq, entry.first, entry.last, hot.live[index], piece)
            hot.take_off(index, gone)
            self.bytes -= gone
        self.live_from = seq
        self._advance(source)

    def _bytes_below(self, seq: int, first: int, last: int, live: int, pieces: Iterable[Piece]) -> int:
        """How many of the `live` bytes of first…last lie below `seq`. Damage makes it a guess, never a failure:
        evicting must go on whatever the disk has done to what is evicted."""
        try:
            gone = sum(self._live_bytes(piece, seq) for piece in pieces)
        except DataDamage:
            below, records = self.live_between(first, seq - 1), self.live_between(first, last)
            gone = live * below // max(records, 1)
        return self._at_most(gone, live, seq, last)

    def _at_most(self, gone: int, live: int, first: int, last: int) -> int:
        """After a guess the rest may look used up. Zero means that nothing lives there, so something must stay."""
        if gone < live:
            return gone
        return live - 1 if self.live_between(first, last) else live

    def _live_bytes(self, piece: Piece, below: int) -> int:
        """The bytes of the piece's live records below `below`."""
        low, high = piece.index_of(self.live_from), piece.index_of(below)
        if low >= high:
            return 0
        ends = piece.columns.ends
        total = ends[high - 1] - (ends[low - 1] if low else 0)
        if self.deleted is not None:
            for seq in self.deleted.within(piece.seq_at(low), piece.seq_at(high - 1)):
                index = piece.index_of(seq)
                if index < piece.count and piece.seq_at(index) == seq:
                    total -= piece.size_at(index)
        return total

    def _delete_matching(self, bound: int, match: Match, source: PieceSource) -> None:
        value, prefix = match.value.encode(), match.op == "Glob"
        damage: DataDamage | None = None
        for run in list(self.runs):
            if run.first > bound:
                break
            try:
                for piece in source.sealed_matches(run.segment, self.id, match.field, value, prefix):
                    for index, held in enumerate(piece.columns.values(match.field)):
                        if held is not None and (held.startswith(value) if prefix else held == value):
                            seq = piece.seq_at(index)
                            if run.first <= seq <= min(bound, run.last) and self.is_live(seq):
                                self._mark_in(seq, piece.size_at(index), run)
            except DataDamage as err:
                damage = err  # only in a replay; what can be found must not come back all the same
        try:
            found = list(self._hot_terms(source).find(match.field, value, prefix))
        except DataDamage as err:
            found, damage = [], err
        for seq in found:
            if seq <= bound and self.is_live(seq):
                self._mark(seq, source)
        self._advance(source)
        if damage is not None:
            raise damage

    def _hot_terms(self, source: PieceSource) -> HotTerms:
        if self.terms is None:
            terms = HotTerms()
            for index in range(self.hot.start, len(self.hot.first)):
                terms.add(self.hot_piece(index, source))
            self.terms = terms
        return self.terms

    def _mark(self, seq: int, source: PieceSource) -> None:
        """One live record is removed."""
        hot = self.hot
        if hot.start < len(hot.first) and seq >= hot.first[hot.start]:
            index = hot.index_of(seq)
            entry = hot.entry(index)
            if entry.records == 1:
                size = entry.size
            else:
                try:
                    size = self.hot_piece(index, source).size_at(seq - entry.first)
                except DataDamage:
                    size = self._average(hot.live[index], entry.first, entry.last)
            self._mark_in(seq, size, None)
            hot.take_off(index, self._at_most(size, hot.live[index], entry.first, entry.last))
            return
        for run in self.runs:
            if run.first <= seq <= run.last:
                size = self._average(run.live, run.first, run.last)
                with suppress(DataDamage):
                    for piece in source.sealed_pieces(run.segment, self.id, seq, seq):
                        size = piece.size_at(piece.index_of(seq))
                self._mark_in(seq, size, run)
                return

    def _average(self, live: int, first: int, last: int) -> int:
        return live // max(self.live_between(first, last), 1)

    def _mark_in(self, seq: int, size: int, run: Run | None) -> None:
        if self.deleted is None:
            self.deleted = SeqSet()
        self.deleted.add(seq)
        self.removals += 1
        self.count -= 1
        self.bytes -= size
        if run is not None:
            run.live -= self._at_most(size, run.live, run.first, run.last)

    def live_bytes_of(self, piece: Piece) -> int:
        return self._live_bytes(piece, piece.last + 1)

    def settle(self, source: PieceSource) -> None:
        """After records were marked as gone: let go of what lies before the first live one or is all dead."""
        self._advance(source)

    def _advance(self, source: PieceSource) -> None:
        """Move `live_from` to the first live record, and let go of what lies before it or is all dead."""
        if not self.count:
            self.live_from = self.head + 1
        else:
            self.live_from = self.next_live(self.live_from)
        if self.deleted is not None:
            self.deleted.forget_below(self.live_from)
            if not len(self.deleted):
                self.deleted = None
        if any(not run.live for run in self.runs):
            for run in self.runs:
                if not run.live:
                    source.run_dropped(run.segment)
            self.runs = [run for run in self.runs if run.live]
        hot = self.hot
        index = hot.index_of(self.live_from)
        # Also dead batches in front of the first live one: nothing would ever seal them, and the log keeps their files.
        while index < len(hot.first) and not hot.live[index]:
            index += 1
        self._forget_hot(index)

    def replace_hot(self, hot: HotIndex) -> None:
        self.hot = hot
        self.newest_first = 0
        if len(hot) and hot.lsn[-1] != IN_MEMORY:
            self.newest_first, self.newest_count = hot.first[-1], hot.count[-1]
            self.newest_size, self.newest_lsn = hot.size[-1], hot.lsn[-1]

    def _forget_hot(self, index: int) -> None:
        if index == self.hot.start:
            return
        self.hot_bytes -= sum(self.hot.size[self.hot.start : index])
        entries = self.hot.drop_before(index, residents=bool(self.resident))
        if not len(self.hot):
            self.newest_first = 0
        for entry in entries:
            if self.resident is not None and entry.first in self.resident:
                batch = self.resident.pop(entry.first)
                self.resident_bytes -= len(batch.json) + len(batch.columns)
        if self.terms is not None and self.terms.stale(sum(self.hot.count[self.hot.start :])):
            self.terms = None  # built anew from the hot part when the next delete asks
