"""Group commit: frames staged in a turn are written once, applied, synced together where needed, and answered.

    stage ──▶ write ──▶ apply, answer                       (memory, disk, ephemeral)
                  └───▶ wait for sync ──▶ apply, answer     (fsync, and whatever must be durable first)

A frame is *gated* if it waits for the sync: records of fsync topics, creating, configuring and deleting topics,
the first records beyond a topic's reserved seqs, and everything of a topic that has gated frames already, so that
a topic's frames are applied in log order. Nothing gated is visible before its sync.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final

from shard_worker.core.shard_state import ShardState
from shard_worker.core.topic import Topic
from shard_worker.disk.wal import SyncJob, Wal
from shard_worker.pending import (
    AnswerBuilder,
    Barrier,
    Pending,
    PendingAppend,
    PendingControl,
    PendingImport,
    PendingReplacement,
    Settling,
)
from shard_worker.request import Request, Timings
from shared.api_types import TopicConfig
from shared.control_frames import Synced, Watermark, encode_control
from shared.errors import DiskFault, ReadOnlyShard, ShardUnavailable, Throttled, TopicsError
from shared.frame import Kind
from shared.limits import (
    RELEASES_PER_TICK,
    RESERVE_IDLE_MS,
    RETRY_AFTER_DEFAULT_MS,
    SEQ_RESERVE_MAX,
    SEQ_RESERVE_MIN,
    THROTTLE_RETRY_MAX_MS,
    THROTTLE_RETRY_MIN_MS,
)
from shared.settings import Settings
from shared.snapshot_items import encode_topic
from shared.wal_format import FLAG_EXTRA, JSON_OFFSET, NO_EXTRA, encode_extra

Clock = Callable[[], float]  # seconds, only differences count

_NO_EXTRA: Final = NO_EXTRA  # what is final is at hand in compiled code, other names are looked up
_JSON_OFFSET: Final = JSON_OFFSET
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_STEP_LASTS_SYNCS: Final = 5  # background syncs within the life of a reservation, at the least


class Committer:
    def __init__(self, wal: Wal, state: ShardState, settings: Settings, shard: int, clock: Clock) -> None:
        self._wal = wal
        self._state = state
        self._settings = settings
        self._shard = shard
        self._clock = clock
        self._group: list[Pending] = []
        self._waiting: list[Pending] = []  # written, gated by the next sync
        self._syncing: list[Pending] = []  # gated by the sync that is running
        self._max_waiting_bytes = settings.max_unsynced_bytes
        self._step_lasts_ms = _STEP_LASTS_SYNCS * settings.sync_interval_ms
        self.waiting_bytes = 0  # of gated frames, staged or written
        self._awaited = False  # is a frame of the group gated?
        self.throttled = 0  # requests that were refused because of them
        self._sync_started = 0.0
        self._sync_ms_per_byte = 0.0  # of late
        self._raised: list[tuple[Topic, int]] = []  # reservations that the next sync makes durable
        self._raised_syncing: list[tuple[Topic, int]] = []
        self._raised_from: list[tuple[Topic, int]] = []  # what the raises of this group replaced
        self._reserving: dict[Topic, None] = {}  # topics that hold a reservation, oldest write first
        self._keyed: dict[
            tuple[int, str], PendingAppend
        ] = {}  # writes with an idempotency key, until applied
        self._owed: list[PendingControl] = []  # must be in the log before anything else
        self._marked = 0  # up to where a SYNCED frame vouches
        self.sync_running = False
        self.last_sync_ms = 0
        self.changed: set[Topic] = set()  # topics whose readers should look again
        self.read_only: TopicsError | None = None

    # --- planning ---------------------------------------------------------------------------------------

    def check_writable(self, *, gated: bool = True) -> None:
        """Refuse early what could not be committed. What waits for no sync needs no room among those that do."""
        if self.read_only is not None:
            raise self.read_only
        if gated and self.full:
            self.throttled += 1
            raise self.refusal()

    @property
    def full(self) -> bool:
        """Do so many bytes wait for a sync that no more may be staged?"""
        return self.waiting_bytes > self._max_waiting_bytes

    def gates(self, topic: Topic | None, config: TopicConfig, count: int) -> bool:
        """Would so many more records of this topic wait for a sync?"""
        if topic is None or topic.gated or config.durability == "fsync":
            return True
        return topic.staged_head + count > topic.reserved_synced

    def refusal(self) -> Throttled:
        """With a guess when there will be room: at the pace of the last syncs; later if the present one stalls."""
        if not self._sync_ms_per_byte:
            return Throttled(retry_after_ms=RETRY_AFTER_DEFAULT_MS)
        wait_ms = self.waiting_bytes * self._sync_ms_per_byte
        if self.sync_running:
            wait_ms = max(wait_ms, (self._clock() - self._sync_started) * 1000)
        return Throttled(retry_after_ms=int(min(THROTTLE_RETRY_MAX_MS, max(THROTTLE_RETRY_MIN_MS, wait_ms))))

    def stage_append(self, pending: PendingAppend, *, gated: bool = False) -> None:
        topic, batch = pending.topic, pending.batch
        assert topic is not None
        last = pending.first + batch.count - 1
        durability = topic.planned_config.durability
        reserve = 0
        if durability != "fsync":
            self._reserve(topic, last, batch.count, pending.ts)
            reserve = max(0, topic.reserved - last)
            pending.reserved = topic.reserved
        if durability != "ephemeral":
            extra = encode_extra(pending.extra) if pending.extra is not _NO_EXTRA else b""
            self._stage_what_comes_first(pending.ts)
            pending.lsn = self._wal.stage_append(
                batch.column_flags | FLAG_EXTRA if extra else batch.column_flags,
                topic.id,
                pending.ts,
                pending.first,
                batch.count,
                reserve,
                batch.json,
                batch.columns,
                extra,
            )
            pending.json_lsn = pending.lsn + _JSON_OFFSET
        gated = gated or durability == "fsync" or topic.gated > 0 or last > topic.reserved_synced
        topic.staged_head = last
        topic.staged_ts = pending.ts
        topic.pending_records += batch.count
        topic.pending_bytes += pending.size
        if pending.extra is not _NO_EXTRA and pending.extra.idem is not None:
            self._keyed[topic.id, pending.extra.idem] = pending
        self._add(pending, topic, gated)

    def _reserve(self, topic: Topic, last: int, count: int, ts: int) -> None:
        """Keep seqs reserved ahead of what is handed out without a sync (docs/decisions/0003-sync-policy.md).

        The steps follow the topic's speed: half of one should last until a sync that nobody hurries has made the next
        one durable. Otherwise every write soon waits for a sync.
        """
        room = max(max(SEQ_RESERVE_MIN, 2 * count), topic.reserve_step)  # two by two: compiled without a call
        if last + room // 2 <= topic.reserved:
            return
        lasted_ms = ts - topic.raised_ts
        if topic.reserved > topic.reserved_synced or lasted_ms < self._step_lasts_ms:
            room = max(2 * count, min(SEQ_RESERVE_MAX, 4 * room))
        elif lasted_ms > 8 * self._step_lasts_ms:
            room = max(SEQ_RESERVE_MIN, 2 * count, room // 4)
        topic.reserve_step, topic.raised_ts = room, ts
        self._raise(topic, last + room)
        if topic.planned_config.durability == "ephemeral":
            self.stage_control(PendingControl(Watermark(reserve=topic.reserved), topic, ts))

    def stage_control(self, pending: PendingControl, *, gated: bool = False) -> None:
        pending.lsn = self._stage_frame(
            pending.fact.kind, 0, pending.topic_id, pending.ts, encode_control(pending.fact)
        )
        self._add(pending, pending.topic, gated)

    def stage_replacement(self, pending: PendingReplacement) -> None:
        pending.lsn = self._stage_frame(pending.fact.kind, 0, 0, pending.ts, encode_control(pending.fact))
        for topic in pending.losing:
            topic.gated += 1
        self._group.append(pending)

    def stage_owed(self, pending: PendingControl) -> None:
        """Stage a frame that says under what circumstances all later ones are written.

        If the log refuses it (a full disk at start), it is staged again in front of whatever comes next: replay must
        not meet a frame of this session without it.
        """
        pending.owed = True
        if self._owed:
            self._owed.append(pending)  # it would be refused like those before it
        else:
            self.stage_control(pending)

    def stage_import(self, pending: PendingImport) -> None:
        body = encode_topic(pending.stored)
        pending.lsn = self._stage_frame(Kind.TOPIC_IMPORT, 0, pending.stored.id, pending.ts, body)
        self._add(pending, None, False)

    def reserve_on_create(self, topic: Topic) -> None:
        """The create frame carries the first reservation; it is synced before anyone hears of the topic."""
        if topic.config.durability != "fsync":
            self._raise(topic, SEQ_RESERVE_MIN)

    def _raise(self, topic: Topic, reserved: int) -> None:
        self._raised_from.append((topic, topic.reserved))
        topic.reserved = reserved
        self._raised.append((topic, reserved))
        self._reserving.pop(topic, None)
        self._reserving[topic] = None

    def _stage_frame(
        self, kind: int, flags: int, topic_id: int, ts: int, body: bytes | Sequence[bytes]
    ) -> int:
        self._stage_what_comes_first(ts)
        return self._wal.stage(kind, flags, topic_id, ts, body)

    def _stage_what_comes_first(self, ts: int) -> None:
        if self._owed:
            owed, self._owed = self._owed, []
            for pending in owed:
                self.stage_control(pending)
        wal = self._wal
        if wal.synced > self._marked:
            wal.stage(Kind.SYNCED, 0, 0, ts, encode_control(Synced(wal.synced)))
            self._marked = wal.synced

    def _add(self, pending: Pending, topic: Topic | None, gated: bool) -> None:
        if topic is not None and (gated or topic.gated):
            topic.gated += 1
            gated = True
        if gated:
            self.waiting_bytes += pending.size
            self._awaited = True
        pending.gated = gated
        self._group.append(pending)

    def find_staged(self, topic: Topic, idem: str) -> PendingAppend | None:
        """A write with this key that is on its way but not applied yet."""
        return self._keyed.get((topic.id, idem))

    def add_barrier(self, request: Request, topic: Topic, build: AnswerBuilder) -> None:
        """Answer once everything of this topic that is staged now has been applied; writes nothing."""
        self._add(Barrier(request, topic, build), topic, True)

    def when_synced(self, done: Callable[[bool], None]) -> None:
        """Call `done` with the next sync of everything that is staged now; somebody waits for that one."""
        self._add(Settling(done), None, True)

    # --- writing ----------------------------------------------------------------------------------------

    def commit(self, now_ms: int) -> None:
        """Write the group, make visible what may be, answer what is answered."""
        group, self._group = self._group, []
        if not group:
            return
        started = self._clock()
        if self._wal.staged:
            try:
                self._wal.write(now_ms)
            except OSError as err:
                self._fail(group, err)
                return
            if self._awaited:
                self._wal.note_awaited(now_ms)
        self._awaited = False
        self._raised_from.clear()
        timings: Timings = {"wal_append_ms": (self._clock() - started) * 1000, "fsync_ms": 0}
        done = []
        for pending in group:
            if pending.gated:
                self._waiting.append(pending)
            else:
                self._apply(pending)
                done.append(pending)
        if self._group:
            self.commit(now_ms)  # floors that the group has moved, see `_apply`
        for pending in done:
            pending.answer(timings)

    def _apply(self, pending: Pending) -> None:
        topic = pending.topic
        floor = topic.floor if topic is not None and topic.evicts_for_residents else None
        residents = topic is not None and bool(topic.resident)
        try:
            pending.apply(self._state)
        except TopicsError as err:
            # The log has the frame and we could not follow it. Exit; replay brings both together again.
            raise DiskFault(path=self._wal.directory, operation="apply a frame", reason=str(err)) from err
        self._settled(pending)
        if topic is not None:
            self.changed.add(topic)
            # Without any a replay evicts the same by itself.
            if floor is not None and topic.floor > floor and (residents or topic.resident):
                fact = Watermark(floor=topic.floor, reason=topic.reason)
                self.stage_control(PendingControl(fact, topic, topic.last_ts))

    def _settled(self, pending: Pending) -> None:
        if (
            isinstance(pending, PendingAppend)
            and pending.extra is not _NO_EXTRA
            and pending.extra.idem is not None
            and pending.topic is not None
        ):
            del self._keyed[pending.topic.id, pending.extra.idem]

    def _fail(self, group: list[Pending], err: OSError) -> None:
        error: TopicsError
        if err.errno in _NO_SPACE:
            error = self.read_only = ReadOnlyShard(
                shard=self._shard, free_bytes=None, min_free_bytes=self._settings.min_free_bytes
            )
        else:
            error = ShardUnavailable(
                shard=self._shard,
                reason="the log could not be written",
                retry_after_ms=RETRY_AFTER_DEFAULT_MS,
            )
        self._awaited = False
        # A SYNCED frame or a reservation that was staged with the group is not in the log: stage them anew.
        self._marked = 0
        del self._raised[len(self._raised) - len(self._raised_from) :]
        for topic, before in reversed(self._raised_from):
            topic.reserved = before
        self._raised_from.clear()
        self._owed = [each for each in group if isinstance(each, PendingControl) and each.owed]
        for pending in reversed(group):
            if pending.gated:
                self.waiting_bytes -= pending.size
                if pending.topic is not None:
                    pending.topic.gated -= 1
            pending.undo(self._state)
            self._settled(pending)
        for pending in group:
            for request in pending.requests():
                request.fail(error)

    # --- syncing ----------------------------------------------------------------------------------------

    @property
    def needs_sync(self) -> bool:
        """Is there anything a sync would settle? A barrier has no bytes of its own, and waits all the same."""
        return self._wal.unsynced or bool(self._waiting)

    def sync_due(self, now_ms: int) -> bool:
        if self.sync_running:
            return False
        if self._waiting:
            return True
        return self._wal.unsynced and now_ms - self.last_sync_ms >= self._settings.sync_interval_ms

    def next_sync_in_ms(self, now_ms: int) -> int:
        """Until a sync of what nobody waits for is due; a whole interval from one that is just under way."""
        interval_ms = self._settings.sync_interval_ms
        return max(1, min(interval_ms, self.last_sync_ms + interval_ms - now_ms))

    @property
    def staged(self) -> bool:
        """Is there a group to commit?"""
        return bool(self._group)

    @property
    def waiting(self) -> int:
        """Frames that wait for a sync."""
        return len(self._waiting) + len(self._syncing)

    @property
    def idle(self) -> bool:
        return not (self._group or self._waiting or self._syncing)

    def oldest_unapplied(self) -> int:
        """Where a replay must begin so that it meets every frame that is not applied yet."""
        waiting = [pending.lsn for pending in (*self._syncing, *self._waiting, *self._group) if pending.lsn]
        return min(waiting, default=self._wal.end)

    def begin_sync(self, now_ms: int) -> SyncJob:
        assert not self.sync_running and not self._group
        self.sync_running = True
        self._sync_started = self._clock()
        self.last_sync_ms = now_ms
        self._syncing, self._waiting = self._waiting, []
        self._raised_syncing, self._raised = self._raised, []
        return self._wal.begin_sync()

    def finish_sync(self, job: SyncJob) -> None:
        self._wal.finish_sync(job)
        self.sync_running = False
        done, self._syncing = self._syncing, []
        for topic, reserved in self._raised_syncing:
            topic.reserved_synced = max(topic.reserved_synced, reserved)
        self._raised_syncing = []
        before = self.waiting_bytes
        for pending in done:
            self.waiting_bytes -= pending.size
            if pending.topic is not None:
                pending.topic.gated -= 1
            self._apply(pending)
        if before > self.waiting_bytes:
            pace = job.run_ms / (before - self.waiting_bytes)
            known = self._sync_ms_per_byte
            self._sync_ms_per_byte = known + (pace - known) / 4 if known else pace
        timings: Timings = {"fsync_ms": job.run_ms}
        for pending in done:
            pending.answer(timings)

    def release_idle_reservations(self, now_ms: int) -> None:
        """Topics at rest give their reserved seqs back, so that a power cut costs them no gap."""
        if self.read_only is not None:
            return
        # A raise that waits for its sync would count as durable afterwards, although the log took it back.
        raised = {topic for topic, _ in (*self._raised, *self._raised_syncing)} if self._reserving else set()
        for topic in list(islice(self._reserving, RELEASES_PER_TICK)):
            del self._reserving[topic]
            if topic.id not in self._state.catalog.by_id:
                continue
            busy = now_ms - topic.staged_ts < RESERVE_IDLE_MS
            if busy or topic.gated or topic.staged_head != topic.head or topic in raised:
                self._reserving[topic] = None  # at the end: everyone is looked at in turn
                continue
            topic.reserved_synced = topic.head
            topic.reserve_step = 0
            self.stage_control(PendingControl(Watermark(reserve=topic.head), topic, now_ms))
        self.commit(now_ms)
