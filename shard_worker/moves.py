"""Records that move to another topic, on this shard or on another: dead letters, and dead letters on their way back.

Append at the destination under an identity, synced; then remove at the source. A crash in between leaves the record in
both places; the repeat finds its identity at the destination and appends nothing. It is never in neither place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

import msgspec

from shard_worker.core.batch import encode_batch
from shard_worker.core.job import JobState
from shard_worker.core.job_json import moved_record, readable_records, records_of, without_origin
from shard_worker.core.lease_queue import written_at
from shard_worker.core.reading import PLAIN_VIEW, wanted_in
from shard_worker.core.topic import Topic
from shard_worker.pending import PendingAppend, PendingControl
from shard_worker.request import Extents, Request, Sink, Timings
from shared.api_types import (
    PlainRecordIn,
    RecordIn,
    WriteRequest,
    decode_config,
    decode_redrive,
    decode_write,
    resolve_config,
)
from shared.control_frames import JobsDone
from shared.errors import InvalidRequest, RecordTooLarge, ShardUnavailable, TopicFull
from shared.limits import (
    MOVE_MAX_BYTES,
    MOVE_RETRY_MS,
    REDRIVE_DEFAULT_LIMIT,
    REDRIVE_MAX_LIMIT,
    RETRY_AFTER_DEFAULT_MS,
)
from shared.match import parse_match
from shared.wal_format import AppendExtra, MoveMark
from shared.wire import Op

if TYPE_CHECKING:
    from shard_worker.engine import Engine

# How many of them, the first ones, the destination has taken for good, and its last answer.
OnMoved = Callable[[int, int], None]

# What a destination answers that has no room for so many: fewer of them may do.
_TOO_MANY = frozenset({RecordTooLarge.status_hint, TopicFull.status_hint})


class Peers(Protocol):
    """Where a topic lives, and how to ask the worker that has it."""

    def shard_of(self, topic: str) -> int: ...
    def request(
        self,
        shard: int,
        op: int,
        topic: str,
        body: bytes,
        options: Mapping[str, object],
        on_answer: Callable[[int], None],
    ) -> None:
        """`on_answer` gets the status; 503 if that worker cannot be reached."""

    def ask(
        self,
        shard: int,
        op: int,
        topic: str,
        body: bytes,
        options: Mapping[str, object],
        on_reply: Callable[[int, bytes], None],
    ) -> None:
        """The same for callers who want the body of the answer, too."""


class Alone:
    """For a shard that has no peers: every topic is its own."""

    def __init__(self, shard: int) -> None:
        self._shard = shard

    def shard_of(self, topic: str) -> int:
        return self._shard

    def request(
        self,
        shard: int,
        op: int,
        topic: str,
        body: bytes,
        options: Mapping[str, object],
        on_answer: Callable[[int], None],
    ) -> None:
        on_answer(503)

    def ask(
        self,
        shard: int,
        op: int,
        topic: str,
        body: bytes,
        options: Mapping[str, object],
        on_reply: Callable[[int, bytes], None],
    ) -> None:
        on_reply(503, b"")


class _Told(msgspec.Struct):
    """A sink for requests that the shard makes to itself, or hears of first."""

    on_answer: Callable[[int], None]
    then: Sink | None = None
    full: bool = False

    def answer(
        self,
        id: int,
        status: int,
        body: bytes,
        timings: Timings | None = None,
        extents: Extents | None = None,
        tail: bytes | None = None,
    ) -> None:
        self.on_answer(status)
        if self.then is not None:
            self.then.answer(id, status, body, timings, extents, tail)


class Moves:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._arriving: set[tuple[str, str]] = set()  # (topic, identity) of records on their way to the disk
        self.peers: Peers = Alone(engine.shard)

    def handlers(self) -> dict[int, Callable[[Request], None]]:
        return {Op.APPEND_MOVED: self._append_moved, Op.REDRIVE: self._redrive}

    # --- leaving ----------------------------------------------------------------------------------------

    def bury(self, topic: Topic, seqs: list[int], now_ms: int) -> None:
        """Jobs that were delivered too often go to the dead letters; nobody can claim them meanwhile."""
        queue, target = topic.queue, topic.config.dead_letter
        assert queue is not None and target is not None
        readable, damaged = readable_records(topic, seqs, self._engine.state.source)
        records = _within_bytes(
            moved_record(topic, piece, place, seq, queue.jobs[seq].deliveries)
            for seq, piece, place in readable
        )
        going = [seq for seq, _, _ in readable[: len(records)]]
        staying = [seq for seq, _, _ in readable[len(records) :]] + list(damaged)

        def stay(seqs: list[int]) -> None:
            # They are tried again when somebody next claims.
            retry_ms = self._engine.now_ms() + MOVE_RETRY_MS
            for seq in seqs:
                queue.release(seq, self._engine.now_ms(), retry_ms)

        def done(moved: int, status: int) -> None:
            gone = going[:moved]
            if gone:
                self._remove(topic, gone, dead=True, undo=lambda: stay(gone))
            stay(going[moved:])  # the destination is full or out of reach

        stay(staying)
        if going:
            self._send(topic, target, going, records, done)

    def _send(
        self,
        topic: Topic,
        target: str,
        seqs: list[int],
        records: list[bytes],
        done: OnMoved,
        origins: Mapping[int, str] | None = None,
    ) -> None:
        """As many as the destination has room for, or half as many. `origins`: those that came from there, and under
        which identity."""
        body = b'{"records":[' + b",".join(records) + b"]}"
        options: dict[str, object] = {
            "moved": [_identity(topic, seq) for seq in seqs],
            "durability": topic.config.durability,
        }
        if origins:
            options["origins"] = [origins[seq] for seq in seqs if seq in origins]

        def told(status: int) -> None:
            if status in _TOO_MANY and len(seqs) > 1:
                half = len(seqs) // 2
                self._send(topic, target, seqs[:half], records[:half], done, origins)
            else:
                done(len(seqs) if status < 300 else 0, status)

        shard = self.peers.shard_of(target)
        if shard == self._engine.shard:
            self._engine.submit(Request(_Told(told), 0, Op.APPEND_MOVED, target, body, options))
        else:
            self.peers.request(shard, Op.APPEND_MOVED, target, body, options, told)

    def _remove(
        self,
        topic: Topic,
        seqs: list[int],
        *,
        dead: bool,
        undo: Callable[[], None],
        request: Request | None = None,
    ) -> None:
        """They are at the destination. `request` is answered when they are gone here, as durably as the topic is."""

        def answer(_: int) -> tuple[int, bytes]:
            return 200, b'{"moved":%d' % len(seqs)

        if topic.id not in self._engine.state.catalog.by_id:
            if request is not None:
                request.sink.answer(request.id, *answer(0))
            return
        fact = JobsDone(tuple(seqs), dead)
        pending = PendingControl(fact, topic, self._engine.now_ms(), request, answer, undo)
        self._engine.commits.stage_control(pending, gated=topic.config.durability == "fsync")

    # --- arriving ---------------------------------------------------------------------------------------

    def _append_moved(self, request: Request) -> None:
        engine = self._engine
        identities, durability = request.option("moved"), request.option("durability")
        write = decode_write(request.body)
        if not isinstance(identities, list) or len(identities) != len(write.records):
            raise InvalidRequest("every moved record needs its identity")
        now_ms = engine.now_ms()
        topic = engine.state.catalog.planned.get(request.topic)
        if topic is not None and topic.config.discard == "reject":
            engine.sweep(topic, now_ms)
        engine.commits.check_writable()
        keys = {(request.topic, str(identity)) for identity in identities}
        if keys & self._arriving:
            # An earlier try is on its way to the disk, and may fail yet: come again.
            raise ShardUnavailable(
                shard=engine.shard, reason="the records are arriving", retry_after_ms=RETRY_AFTER_DEFAULT_MS
            )
        if topic is None:
            patch = decode_config(msgspec.json.encode({"durability": durability}))
            topic = engine.stage_create(
                request.topic, resolve_config(None, patch, topic=request.topic), now_ms
            )
        # Also one that is gone again: it was here, and whoever dealt with it must not get it twice.
        fresh = [place for place, identity in enumerate(identities) if identity not in topic.moved]
        survivors = _survivors(topic, request.option("origins"))
        if any(_is_leaving(topic, seq) for seq in survivors):
            raise ShardUnavailable(
                shard=engine.shard, reason="their jobs are leaving", retry_after_ms=RETRY_AFTER_DEFAULT_MS
            )
        if not fresh:
            if survivors:
                self._let_go(topic, survivors, request)
            else:
                request.sink.answer(request.id, 200, b'{"moved":0')
            return
        chosen = WriteRequest(records=[_as_rich(write.records[place]) for place in fresh])
        first, ts = topic.staged_head + 1, max(now_ms, topic.staged_ts)
        batch = encode_batch(chosen, len(request.body), first, ts, engine.settings, trusted=True)
        engine.check_caps(topic.config, topic, batch, topic.name)
        marks = tuple(MoveMark(at, str(identities[place])) for at, place in enumerate(fresh))
        self._arriving |= keys
        told = _Told(lambda _: self._arriving.difference_update(keys), request.sink)
        arrival = Request(told, request.id, request.op, request.topic, b"", None)
        pending = PendingAppend(arrival, topic, batch, first, ts, 0, AppendExtra(moved=marks), False)
        engine.commits.stage_append(pending, gated=True)
        if survivors:
            self._let_go(topic, survivors)

    def _let_go(self, topic: Topic, survivors: list[int], request: Request | None = None) -> None:
        """A crash came between the burial of these jobs and their removal, and now their letters come back: the same
        jobs must not be there twice."""
        queue, now_ms = topic.queue, self._engine.now_ms()
        assert queue is not None
        leased = [seq for seq in survivors if _is_held(topic, seq)]
        others = [seq for seq in survivors if seq not in leased]
        for seq in leased:
            queue.leave(seq, seq)
        for seq in others:
            queue.withhold(seq, written_at(topic, seq, self._engine.state.source))

        def undo() -> None:
            for seq in leased:
                queue.keep(seq, seq)
            for seq in others:
                queue.release(seq, now_ms, 0)

        self._remove(topic, survivors, dead=True, undo=undo, request=request)

    # --- coming back ------------------------------------------------------------------------------------

    def _redrive(self, request: Request) -> None:
        """Runs where the dead letters are; the queue may be anywhere."""
        wanted = decode_redrive(request.body)
        target = request.option("to")
        topic = self._engine.visible(request)
        if not isinstance(target, str) or target == topic.name:
            raise InvalidRequest("from must be another topic than the queue")
        now_ms = self._engine.now_ms()
        self._engine.sweep(topic, now_ms)
        queue = topic.queue
        if queue is not None:
            queue.settle(topic, now_ms)
        self._engine.commits.check_writable()
        view = PLAIN_VIEW._replace(match=parse_match(wanted.match) if wanted.match is not None else None)
        limit = min(wanted.limit or REDRIVE_DEFAULT_LIMIT, REDRIVE_MAX_LIMIT)
        source = self._engine.state.source
        seqs: list[int] = []
        for piece in topic.pieces(topic.live_from, source):
            low = piece.index_of(topic.live_from)
            for place, chosen in enumerate(wanted_in(topic, piece, low, piece.count, view), low):
                if chosen and len(seqs) < limit and not _is_held(topic, piece.seq_at(place)):
                    seqs.append(piece.seq_at(place))
            if len(seqs) >= limit:
                break

        records = _within_bytes(
            _without_origin(moved_record(topic, piece, place, seq, None))
            for seq, piece, place in records_of(topic, seqs, source)
        )
        seqs = seqs[: len(records)]

        def give_back(staying: list[int]) -> None:
            if queue is not None:
                for seq in staying:
                    queue.release(seq, now_ms, 0)

        def done(moved: int, status: int) -> None:
            give_back(seqs[moved:])
            gone = seqs[:moved]
            if gone:
                self._remove(topic, gone, dead=False, undo=lambda: give_back(gone), request=request)
                return
            full = status in _TOO_MANY
            error = ShardUnavailable(
                shard=self._engine.shard,
                reason=f"{target} is full: make room there, or raise its cap"
                if full
                else f"{target} did not take the records",
                retry_after_ms=RETRY_AFTER_DEFAULT_MS,
            )
            request.fail(error)

        if not seqs:
            request.sink.answer(request.id, 200, b'{"moved":0')
            return
        if queue is not None:
            for seq in seqs:
                queue.withhold(seq, written_at(topic, seq, source))
        self._send(topic, target, seqs, records, done, _origins(topic, target, seqs))


def _is_held(topic: Topic, seq: int) -> bool:
    job = topic.queue.jobs.get(seq) if topic.queue is not None else None
    return job is not None and job.state in (JobState.LEASED, JobState.LEAVING)


def _is_leaving(topic: Topic, seq: int) -> bool:
    job = topic.queue.jobs.get(seq) if topic.queue is not None else None
    return job is not None and job.state is JobState.LEAVING


def _identity(topic: Topic, seq: int) -> str:
    return f"{topic.name}:{topic.epoch}:{seq}"


def _origins(topic: Topic, target: str, seqs: list[int]) -> dict[int, str]:
    """Those that came from `target`, and the identity under which each came."""
    chosen, start = set(seqs), f"{target}:"
    return {
        seq: identity for identity, seq in topic.moved.items() if seq in chosen and identity.startswith(start)
    }


def _survivors(topic: Topic, origins: object) -> list[int]:
    """The jobs of these identities that are still here."""
    if topic.queue is None or not isinstance(origins, list):
        return []
    known, start = map(str, origins), f"{topic.name}:{topic.epoch}:"
    seqs = [int(identity[len(start) :]) for identity in known if identity.startswith(start)]
    return sorted(seq for seq in seqs if topic.is_live(seq))


def _within_bytes(records: Iterable[bytes]) -> list[bytes]:
    """As many as may travel together: at least one, and what a link's frame holds."""
    taken: list[bytes] = []
    room = MOVE_MAX_BYTES
    for record in records:
        room -= len(record)
        if taken and room < 0:
            break
        taken.append(record)
    return taken


_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


def _without_origin(record: bytes) -> bytes:
    """A dead letter as it was before: what was put into its meta is taken out again, the rest stays byte for byte."""
    fields = _fields.decode(record)
    if "meta" not in fields:
        return record
    meta = without_origin(bytes(fields["meta"]))
    if meta != b"{}":
        fields["meta"] = msgspec.Raw(meta)
    else:
        del fields["meta"]
    return msgspec.json.encode(fields)


def _as_rich(record: RecordIn | PlainRecordIn) -> RecordIn:
    return record if isinstance(record, RecordIn) else RecordIn(data=record.data)
