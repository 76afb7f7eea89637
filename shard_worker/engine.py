"""The storage engine of one shard behind its requests: plan, stage, commit, read, wait.

    engine.begin_turn()         where many requests come together: they share one look at the clock
    engine.submit(request)      as often as a turn brings requests
    engine.commit()             once per turn: one write, then the answers
    engine.end_turn()
    engine.sync_due() / begin_sync() / job.run() in a thread / finish_sync(job)
    engine.tick()               now and then: long polls, TTL, idle reservations

Synchronous and single-threaded; only `SyncJob.run` and the maintenance jobs run elsewhere. The shell
(shard_worker/serve) brings requests in turns, the tests call the same methods over a fake disk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from shard_worker.arrivals import Arrivals
from shard_worker.commit import Clock, Committer
from shard_worker.core.batch import Batch, check_write, encode_batch, job_marks, read_write
from shard_worker.core.describe import (
    deleted_records_json,
    deleted_topic_json,
    list_item_json,
    put_json,
    state_json,
)
from shard_worker.core.kept_reads import KeptRead, KeptReads
from shard_worker.core.reading import ReadResult, View, read, view_of
from shard_worker.core.shard_state import ShardState
from shard_worker.core.topic import REASON_MIXED, REASON_TTL, Topic
from shard_worker.counters import EngineCounters
from shard_worker.disk.wal import SyncJob, Wal
from shard_worker.forwarding import Forwarder
from shard_worker.held_writes import HeldWrites
from shard_worker.long_polls import LongPolls, Waiting
from shard_worker.moves import Moves
from shard_worker.pending import PendingAppend, PendingControl, answer_write
from shard_worker.queue_ops import QueueOps
from shard_worker.request import Request, Timings
from shard_worker.router_ops import RouterOps
from shared.api_types import (
    TopicConfig,
    TopicConfigIn,
    config_to_dict,
    decode_config,
    decode_delete,
    decode_diff,
    resolve_config,
)
from shared.control_frames import (
    Hole,
    RecordsDeleted,
    TopicConfigured,
    TopicCreated,
    TopicDeleted,
    Watermark,
)
from shared.errors import (
    DiskFault,
    InvalidRequest,
    RecordTooLarge,
    Throttled,
    TopicFull,
    TopicNotEmpty,
    TopicNotFound,
    TopicsError,
)
from shared.limits import DEDUPE_MAX_KEYS_PER_SHARD, EPHEMERAL_MAX_BYTES, PAGE_SIZE_MAX, WAIT_MAX_MS
from shared.match import parse_match
from shared.names import valid_topic_name
from shared.settings import Settings
from shared.wal_format import NO_EXTRA, AppendExtra, JobMark
from shared.wire import Op, encode_list_body

_NO_EXTRA: Final = NO_EXTRA  # what is final is at hand in compiled code, other names are looked up


class Engine:
    def __init__(
        self,
        *,
        wal: Wal,
        state: ShardState,
        settings: Settings,
        shard: int,
        wall_ms: Callable[[], int],
        clock: Clock,
        token_prefix: Callable[[], str],
    ) -> None:
        self.wal = wal
        self.state = state
        self.settings = settings
        self.shard = shard
        self._wall_ms = wall_ms
        self.clock = clock
        self._anchor_ms, self._anchor_at = 0, clock()
        self._turn_ms = 0  # in a turn: when it began
        self.commits = Committer(wal, state, settings, shard, clock)
        self.held = HeldWrites()
        self.waited_ms: Callable[[Topic, int], int] = lambda topic, now_ms: 0  # of the topic's deliveries
        self._polls = LongPolls()
        self._kept_reads = KeptReads()
        self._rewake: set[Topic] = set()  # topics whose readers could not all be answered in the last turn
        self.counters = EngineCounters()
        self.on_changed: list[Callable[[Topic], None]] = []  # told of each topic that changed in a turn
        self._handlers: dict[int, Callable[[Request], None]] = {
            Op.READ: self._read,
            Op.STATE: self._state,
            Op.LIST: self._list,
            Op.PUT_TOPIC: self._put_topic,
            Op.DELETE_TOPIC: self._delete_topic,
            Op.DELETE_RECORDS: self._delete_records,
            Op.CANCEL: self._cancel,
            Op.PING: lambda request: request.sink.answer(request.id, 200, b""),
        }
        self.moves = Moves(self)
        self.queues = QueueOps(self, self.moves, token_prefix)
        self.arrivals = Arrivals(self)
        self.routers = RouterOps(self)
        self.forwarder = Forwarder(self, self.arrivals)
        for part in (self.queues, self.moves, self.arrivals, self.routers):
            self._handlers |= part.handlers()

    def now_ms(self) -> int:
        """The time, never earlier than any time this shard has written down, and never standing still.

        When the wall clock is set back, time goes on from where it was at the pace of the steady clock: leases run
        out and syncs come due all the same. Within a turn it is that of its beginning.
        """
        return max(self._turn_ms, self.state.clock_ms) if self._turn_ms else self._read_clocks()

    def _read_clocks(self) -> int:
        steady = self.clock()
        now_ms = max(self._wall_ms(), self._anchor_ms + int((steady - self._anchor_at) * 1000))
        now_ms = max(now_ms, self.state.clock_ms)
        if now_ms > self._anchor_ms:
            self._anchor_ms, self._anchor_at = now_ms, steady
        return now_ms

    # --- turns ------------------------------------------------------------------------------------------

    def begin_turn(self) -> None:
        """From here to `end_turn` it is one and the same time, for all requests that came together."""
        self._turn_ms = self._read_clocks()

    def end_turn(self) -> None:
        self._turn_ms = 0

    def submit(self, request: Request) -> None:
        op = request.op
        try:
            if op == Op.APPEND:
                self._append(request)
                return
            handler = self._handlers.get(op)
            if handler is None:
                raise InvalidRequest(f"unknown operation {op}")
            handler(request)
        except DiskFault:
            raise  # not this caller's failure: nobody knows what the log holds now
        except TopicsError as err:
            request.fail(err)

    def commit(self) -> None:
        now_ms = self.now_ms()
        self.commits.commit(now_ms)
        self._wake_readers(now_ms)
        while self.commits.staged:
            # Whoever was woken may have written something down: leases, floors, dead letters.
            self.commits.commit(now_ms)
            self._wake_readers(now_ms)

    def sync_due(self) -> bool:
        return self.commits.sync_due(self.now_ms())

    def next_sync_in_ms(self) -> int:
        """How long what nobody waits for may go on gathering."""
        return self.commits.next_sync_in_ms(self.now_ms())

    def commit_control(self, pending: PendingControl) -> None:
        """Write one frame of the shard's own."""
        self.commits.stage_control(pending)
        self.commit()

    def begin_sync(self) -> SyncJob:
        now_ms = self.now_ms()
        # Readers that were woken by the last commit may have found records expired, and written that down.
        self.commits.commit(now_ms)
        return self.commits.begin_sync(now_ms)

    def finish_sync(self, job: SyncJob) -> None:
        self.counters.syncs.add(job.run_ms)
        self.commits.finish_sync(job)
        now_ms = self.now_ms()
        if self.held:
            self._release_held(now_ms)
        self._wake_readers(now_ms)

    def sync_now(self) -> None:
        """Commit and sync in one go, for start, shutdown and tests."""
        self.commit()
        job = self.begin_sync()
        job.run()
        self.finish_sync(job)

    def tick(self) -> None:
        now_ms = self.now_ms()
        self._answer_polls(self._polls.take_expired(now_ms), now_ms)
        self.commits.changed |= self._rewake
        self._wake_readers(now_ms)
        self.queues.tick(now_ms)
        self._release_held(now_ms)
        for request in self.held.take_expired(now_ms):
            self.commits.throttled += 1
            request.fail(self.commits.refusal())
        self.forwarder.tick(now_ms)
        self.commits.release_idle_reservations(now_ms)

    def _release_held(self, now_ms: int) -> None:
        """There may be room again: the writes that waited for it are tried as if they had just come."""
        while self.held and not self.commits.full:
            request, waited_ms = self.held.take(now_ms)
            self.counters.throttle_waits.add(waited_ms)
            self.submit(request)

    def _answer_polls(self, polls: list[Waiting], now_ms: int) -> None:
        for waiting in polls:
            # Read anew from where the reader stands: what expired meanwhile is told.
            result = self.read(waiting.topic, waiting.cursor, waiting.view, now_ms, extents=False)
            self._answer_read(waiting.request, waiting.topic, result)

    def next_deadline_ms(self) -> int | None:
        soonest = _sooner(self._polls.next_deadline_ms(), self.queues.next_deadline_ms())
        return _sooner(soonest, _sooner(self.held.next_deadline_ms(), self.forwarder.next_deadline_ms()))

    # --- writes -----------------------------------------------------------------------------------------

    def _append(self, request: Request) -> None:
        write = read_write(request.body)
        check_write(write, self.settings)
        name = request.topic
        topic = self.state.catalog.planned.get(name)
        limited = topic is None or topic.limited or topic.staged_config is not None
        if topic is not None:
            config = topic.planned_config
        else:
            config = resolve_config(None, write.config or TopicConfigIn(), topic=name)
            self._check_may_create(
                request, name, allowed=write.create is not False, config=config, asked=write.create
            )
        now_ms = self.now_ms()
        if limited and topic is not None and config.discard == "reject":
            # Before seqs are planned: it writes, and a write that fails takes back what was staged before.
            self.sweep(topic, now_ms)
        commits = self.commits
        gated = commits.full and commits.gates(topic, config, len(write.records))
        if gated and write.disable_backpressure and self.held.hold(request, now_ms):
            return
        commits.check_writable(gated=gated)
        idem = write.idempotency_key
        if idem is None and request.options is not None:
            header = request.option("idem")
            idem = header if isinstance(header, str) else None
        if idem is not None and topic is not None and self._answer_repeat(request, topic, idem, now_ms):
            return
        ts = max(now_ms, topic.staged_ts) if topic is not None else now_ms
        first = topic.staged_head + 1 if topic is not None else 1
        batch = encode_batch(write, len(request.body), first, ts, self.settings)
        marks: tuple[JobMark, ...] = ()
        if limited:
            self.check_caps(config, topic, batch, name)
            if config.type == "queue":
                marks = job_marks(write, ts)
        if idem is not None:
            self._check_room_for_key(topic, now_ms)
        created = topic is None
        if topic is None:
            topic = self.stage_create(name, config, now_ms)
        extra = AppendExtra(idem, None, marks) if idem is not None or marks else _NO_EXTRA
        pending = PendingAppend(request, topic, batch, first, ts, 0, extra, created)
        commits.stage_append(pending)
        counters = self.counters
        counters.appends += 1
        counters.records_appended += batch.count

    def _check_may_create(
        self, request: Request, name: str, *, allowed: bool, config: TopicConfig, asked: bool | None
    ) -> None:
        if not valid_topic_name(name):
            raise InvalidRequest("not a valid topic name")
        if not allowed or (asked is None and not config.auto_create):
            raise TopicNotFound(topic=name)
        self.check_topic_cap(request)

    def check_topic_cap(self, request: Request) -> None:
        cap = request.option("nocreate")
        if isinstance(cap, list) and len(cap) == 2:
            raise Throttled(limit=str(cap[0]), max=int(cap[1]))

    def _answer_repeat(self, request: Request, topic: Topic, idem: str, now_ms: int) -> bool:
        staged = self.commits.find_staged(topic, idem)
        if staged is not None:
            staged.followers = [*(staged.followers or ()), request]
            return True
        found = None
        if topic.dedupe is not None:
            found = topic.dedupe.find(idem, now_ms, topic.config.idempotency_window_ms)
        if found is None:
            return False
        answer_write(request, topic, found.first, found.records, False, True, {})
        return True

    def _check_room_for_key(self, topic: Topic | None, now_ms: int) -> None:
        """A key that could not be remembered for its whole window is refused: forgetting another would double it."""
        if topic is not None:
            self.state.expire_keys(topic, now_ms)
        if self.state.dedupe_keys >= DEDUPE_MAX_KEYS_PER_SHARD:
            raise Throttled(limit="idempotency_keys", max=DEDUPE_MAX_KEYS_PER_SHARD)

    def check_caps(self, config: TopicConfig, topic: Topic | None, batch: Batch, name: str) -> None:
        """`topic` must be swept: what has expired does not count."""
        size = len(batch.json)
        if 0 < config.cap_records < batch.count or 0 < config.cap_bytes < size:
            raise RecordTooLarge(
                "the write alone is larger than the topic's cap",
                detail={"cap_records": config.cap_records, "cap_bytes": config.cap_bytes},
            )
        if config.discard == "reject" and topic is not None:
            records = topic.count + topic.pending_records + batch.count
            total = topic.bytes + topic.pending_bytes + size
            if 0 < config.cap_records < records or 0 < config.cap_bytes < total:
                raise TopicFull(topic=name)
        if config.durability == "ephemeral" and self.state.resident_bytes + size > EPHEMERAL_MAX_BYTES:
            raise Throttled(limit="ephemeral_bytes", max=EPHEMERAL_MAX_BYTES)

    def stage_create(self, name: str, config: TopicConfig, now_ms: int) -> Topic:
        catalog = self.state.catalog
        topic = catalog.plan(name, config, now_ms)
        self.commits.reserve_on_create(topic)
        fact = TopicCreated(name, topic.epoch, config_to_dict(config), topic.reserved)
        pending = PendingControl(fact, topic, now_ms, undo=lambda: catalog.give_up(topic))
        self.commits.stage_control(pending, gated=True)
        return topic

    # --- topics -----------------------------------------------------------------------------------------

    def _put_topic(self, request: Request) -> None:
        patch = decode_config(request.body)
        name = request.topic
        topic = self.state.catalog.planned.get(name)
        now_ms = self.now_ms()
        if topic is None:
            config = resolve_config(None, patch, topic=name)
            if not valid_topic_name(name):
                raise InvalidRequest("not a valid topic name")
            self.check_topic_cap(request)
            self.commits.check_writable()
            made = self.stage_create(name, config, now_ms)
            self.answer_when_synced(request, made, lambda _: (201, put_json(made, True)))
            return
        base = topic.planned_config
        config = resolve_config(base, patch, topic=name)
        same = topic
        if config == base:
            self.answer_when_synced(request, topic, lambda _: (200, put_json(same, False)))
            return
        self.commits.check_writable()
        # What has expired is lost to the TTL that was in force: it neither comes back with a longer one, nor is it for
        # a new cap to evict. Before anything is staged, see `_append`.
        self.sweep(topic, now_ms)
        previous = topic.staged_config
        if base.durability == "ephemeral" and config.durability != "ephemeral" and topic.staged_head:
            self._write_down_residents(topic, now_ms)
        topic.staged_config = config

        def forget() -> None:
            same.staged_config = previous

        def done(_: int) -> tuple[int, bytes]:
            if same.staged_config is config:
                same.staged_config = None
            return 200, put_json(same, False)

        fact = TopicConfigured(config_to_dict(config))
        self.commits.stage_control(PendingControl(fact, topic, now_ms, request, done, forget), gated=True)

    def _write_down_residents(self, topic: Topic, now_ms: int) -> None:
        """A topic stops being ephemeral: the log hears of seqs that it never saw, and that are lost with us."""
        hole = Hole(1, topic.staged_head, REASON_MIXED)
        fact = Watermark(floor=topic.floor, reason=topic.reason or REASON_MIXED, hole=hole)
        self.commits.stage_control(PendingControl(fact, topic, now_ms))

    def answer_when_synced(
        self, request: Request, topic: Topic, build: Callable[[int], tuple[int, bytes]]
    ) -> None:
        """Answer behind whatever of this topic is still on its way; at once if nothing is."""
        if topic.gated:
            self.commits.add_barrier(request, topic, build)
        else:
            status, body = build(0)
            request.sink.answer(request.id, status, body)

    def _delete_topic(self, request: Request) -> None:
        catalog = self.state.catalog
        topic = catalog.planned.get(request.topic)
        if topic is None:
            request.sink.answer(request.id, 200, deleted_topic_json(request.topic, False))
            return
        gone = topic
        if request.option("if_empty") is True and (held := topic.count + topic.pending_records):
            raise TopicNotEmpty(topic=topic.name, count=held)
        self.commits.check_writable()
        del catalog.planned[topic.name]

        def restore() -> None:
            catalog.planned[gone.name] = gone

        def done(_: int) -> tuple[int, bytes]:
            return 200, deleted_topic_json(gone.name, True, self.routers.topic_leaves(gone))

        pending = PendingControl(TopicDeleted(), topic, self.now_ms(), request, done, restore)
        self.commits.stage_control(pending, gated=True)

    def _delete_records(self, request: Request) -> None:
        wanted = decode_delete(request.body)
        if wanted.before_seq is None and wanted.match is None:
            raise InvalidRequest("give before_seq, match or both")
        match = parse_match(wanted.match) if wanted.match is not None else None
        topic = self.visible(request)
        self.commits.check_writable()
        topic.check_delete(topic.head, match, self.state.source)
        fact = RecordsDeleted(
            topic.head, wanted.before_seq, [*match.to_wire()] if match is not None else None
        )
        pending = PendingControl(
            fact, topic, self.now_ms(), request, lambda removed: self._deleted(topic, removed)
        )
        self.commits.stage_control(pending, gated=topic.config.durability == "fsync")

    def _deleted(self, topic: Topic, removed: int) -> tuple[int, bytes]:
        self.counters.records_deleted += removed
        return 200, deleted_records_json(topic, removed)

    # --- reads ------------------------------------------------------------------------------------------

    def visible(self, request: Request) -> Topic:
        topic = self.state.catalog.visible.get(request.topic)
        if topic is None:
            raise TopicNotFound(topic=request.topic)
        if topic.pending_records and not topic.gated:
            # A write of this very turn, perhaps of the same client: its answer goes out first, so show it.
            self.commits.commit(self.now_ms())
        return topic

    def _read(self, request: Request) -> None:
        plainly = request.options is None
        if plainly and self._read_again(request):
            return
        wanted = decode_diff(request.body)
        view = view_of(wanted, self.settings)
        if request.option("data") is False:
            view = view._replace(include_data=False)
        topic = self.visible(request)
        now_ms = self.now_ms()
        if request.option("touch") is not False:
            topic.last_read_ts = now_ms
        upto = request.option("upto")
        result = self.read(
            topic,
            wanted.from_seq,
            view,
            now_ms,
            extents=request.option("inline") is not True,
            upto=upto if isinstance(upto, int) else None,
        )
        wait_ms = min(wanted.wait_ms, WAIT_MAX_MS)
        if wait_ms and not result.delivered and not result.tombstone and result.next_from == topic.head:
            self._polls.add(Waiting(request, topic, view, result, now_ms + wait_ms))
            return
        if plainly and result.extents:
            kept = KeptRead(topic, result, _timings_of(result))
            self._kept_reads.keep(topic, request.body, kept)
            self._answer_kept(request, kept)
        else:
            self._answer_read(request, topic, result)

    def _read_again(self, request: Request) -> bool:
        """Answer as the last one was who asked the same, if that still holds."""
        kept = self._kept_reads.find(request.topic, request.body)
        if kept is None:
            return False
        topic = self.visible(request)
        if not kept.holds(topic):
            return False
        topic.last_read_ts = self.now_ms()
        self._answer_kept(request, kept)
        return True

    def _answer_kept(self, request: Request, kept: KeptRead) -> None:
        self.counters.reads += 1
        self.counters.records_read += kept.delivered
        request.sink.answer(request.id, 200, kept.opening, kept.timings, kept.extents, kept.tail)

    def read(
        self, topic: Topic, from_seq: int, view: View, now_ms: int, *, extents: bool, upto: int | None = None
    ) -> ReadResult:
        floor = self.floor_now(topic, now_ms)
        if view.nodes and not topic.config.dedupe_node:
            view = view._replace(nodes=frozenset())
        return read(topic, from_seq, view, floor, self.state.source, extents=extents, upto=upto)

    def floor_now(self, topic: Topic, now_ms: int) -> int:
        """The topic's floor, or higher where records have expired that nobody has swept yet."""
        floor = topic.floor
        if topic.config.ttl_ms:
            floor = topic.expired_floor(now_ms, self.state.source)
            if floor > topic.floor:
                self._stage_expiry(topic, floor, now_ms)
        return floor

    def _stage_expiry(self, topic: Topic, floor: int, now_ms: int) -> None:
        """Write the new floor down: what has expired must not come back when a clock is set back."""
        if self.commits.read_only is not None:
            return
        fact = Watermark(floor=floor, reason=REASON_TTL)
        if topic.resident:
            # The log knows neither the seqs in memory nor why others went before: replay would cut the floor short
            # at the last seq that it has seen, and give TTL as the reason for all of it.
            reason = REASON_TTL if topic.reason in (None, REASON_TTL) else REASON_MIXED
            fact = Watermark(floor=floor, reason=reason, hole=Hole(1, floor - 1, REASON_MIXED))
        self.commits.stage_control(PendingControl(fact, topic, now_ms))

    def sweep(self, topic: Topic, now_ms: int) -> None:
        """Let go of what has expired, so that counts are those of live records."""
        self.state.expire_keys(topic, now_ms)
        if topic.config.ttl_ms:
            floor = topic.expired_floor(now_ms, self.state.source)
            if floor > topic.floor:
                self._stage_expiry(topic, floor, now_ms)
                self.commits.commit(now_ms)

    def _answer_read(self, request: Request, topic: Topic, result: ReadResult) -> None:
        self.counters.reads += 1
        self.counters.records_read += result.delivered
        timings = _timings_of(result)
        head, tail = result.head_json(topic), result.tail_json(topic)
        if result.extents:
            request.sink.answer(request.id, 200, head, timings, result.extents, tail)
        else:
            request.sink.answer(request.id, 200, head + result.records_json() + tail, timings)

    def _wake_readers(self, now_ms: int) -> None:
        # Taken over first: who is woken may change topics, and those are for the next round.
        changed, self.commits.changed = self.commits.changed, set()
        if not changed:
            return
        if self._rewake:
            changed |= self._rewake
            self._rewake.clear()
        for topic in changed:
            self.forwarder.note(topic)
            for told in self.on_changed:
                told(topic)
            if topic.queue is not None:
                self.queues.topic_changed(topic)
            if topic.waiters:
                for waiting in self._polls.take(topic):
                    self._retry_poll(waiting, now_ms)

    def _retry_poll(self, waiting: Waiting, now_ms: int) -> None:
        topic, request = waiting.topic, waiting.request
        if topic.id not in self.state.catalog.by_id:
            request.fail(TopicNotFound(topic=topic.name))
            return
        if request.sink.full:
            # Enough answers for one turn: this reader is woken again with the next.
            self._polls.add(waiting.moved_to(waiting.result))
            self._rewake.add(topic)
            return
        result = self.read(
            topic, waiting.cursor, waiting.view, now_ms, extents=request.option("inline") is not True
        )
        if result.delivered or result.tombstone or result.next_from != topic.head:
            self._answer_read(request, topic, result)
        else:
            # Everything new was filtered out for this reader: wait on, from further ahead.
            self._polls.add(waiting.moved_to(result))

    def _cancel(self, request: Request) -> None:
        if request.option("all") is True:
            self.expire_all_polls()
            return
        named = request.option("id")
        cancelled = self._polls.cancel(request.sink, named) or self.queues.cancel(request.sink, named)
        if cancelled is not None:
            cancelled.sink.answer(cancelled.id, 499, b"")

    @property
    def waiting_polls(self) -> int:
        return len(self._polls)

    def expire_all_polls(self) -> None:
        """Answer everyone who waits as it stands, at shutdown: of the gateway, or of this worker."""
        self._answer_polls(self._polls.take_all(), self.now_ms())
        self.queues.expire_all()

    def forget_sink(self, sink: object) -> None:
        """A link is gone: nobody waits for the answers of its polls."""
        self._polls.forget(sink)
        self.held.forget(sink)
        self.queues.forget_sink(sink)

    def _state(self, request: Request) -> None:
        topic = self.visible(request)
        now_ms = self.now_ms()
        self.sweep(topic, now_ms)
        if request.option("touch") is not False:
            topic.last_read_ts = now_ms
        waited_ms = self.waited_ms(topic, now_ms)
        request.sink.answer(request.id, 200, state_json(topic, self.shard, now_ms, waited_ms))

    def _list(self, request: Request) -> None:
        prefix, after = request.option("prefix") or "", request.option("after") or ""
        limit, allowed = request.option("limit"), request.option("prefixes")
        if not isinstance(prefix, str) or not isinstance(after, str) or not isinstance(limit, int):
            raise InvalidRequest("malformed list request")
        prefixes = tuple(allowed) if isinstance(allowed, list) else None
        now_ms = self.now_ms()
        items: list[tuple[str, bytes]] = []
        more = False
        for name in self.state.catalog.names(prefix, after):
            if prefixes is not None and not name.startswith(prefixes):
                continue
            if len(items) == min(limit, PAGE_SIZE_MAX):
                more = True
                break
            topic = self.state.catalog.visible[name]
            self.sweep(topic, now_ms)
            items.append((name, list_item_json(topic, now_ms, self.waited_ms(topic, now_ms))))
        request.sink.answer(request.id, 200, encode_list_body(items, more))


def _timings_of(result: ReadResult) -> Timings:
    return {"records_scanned": float(result.scanned)}


def _sooner(one: int | None, other: int | None) -> int | None:
    if one is None:
        return other
    return one if other is None or one <= other else other
