"""Records that move to another topic, on this shard or on another: dead letters, and dead letters on their way back.

Append at the destination under an identity, synced; then remove at the source. A crash in between leaves the record in
both places; the repeat finds its identity at the destination and appends nothing. It is never in neither place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import msgspec

from shard_worker.core.batch import encode_batch
from shard_worker.core.job_json import moved_record, records_of
from shard_worker.core.lease_queue import JobState
from shard_worker.core.reading import PLAIN_VIEW, wanted_in
from shard_worker.core.topic import Topic
from shard_worker.pending import PendingAppend, PendingControl
from shard_worker.request import Extents, Request
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
from shared.errors import InvalidRequest, ShardUnavailable
from shared.limits import MOVE_RETRY_MS, REDRIVE_DEFAULT_LIMIT, REDRIVE_MAX_LIMIT, RETRY_AFTER_DEFAULT_MS
from shared.match import parse_match
from shared.wal_format import AppendExtra, MoveMark
from shared.wire import Op

if TYPE_CHECKING:
    from shard_worker.engine import Engine

OnMoved = Callable[[bool], None]  # did the destination take them, for good?


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


@dataclass(slots=True)
class _Told:
    """A sink for requests that the shard makes to itself."""

    on_answer: Callable[[int], None]

    def answer(
        self,
        id: int,
        status: int,
        body: bytes,
        timings: Mapping[str, float] | None = None,
        extents: Extents | None = None,
        tail: bytes | None = None,
    ) -> None:
        self.on_answer(status)


class Moves:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.peers: Peers = Alone(engine.shard)

    def handlers(self) -> dict[int, Callable[[Request], None]]:
        return {Op.APPEND_MOVED: self._append_moved, Op.REDRIVE: self._redrive}

    # --- leaving ----------------------------------------------------------------------------------------

    def bury(self, topic: Topic, seqs: list[int], now_ms: int) -> None:
        """Jobs that were delivered too often go to the dead letters; nobody can claim them meanwhile."""
        queue, target = topic.queue, topic.config.dead_letter
        assert queue is not None and target is not None
        records = [
            moved_record(topic, piece, place, seq, queue.jobs[seq].deliveries)
            for seq, piece, place in records_of(topic, seqs, self._engine.state.source)
        ]

        def done(taken: bool) -> None:
            if taken:
                self._remove(topic, sorted(seqs), dead=True)
            else:
                # Full or out of reach: they stay, and are tried again when somebody next claims.
                retry_ms = self._engine.now_ms() + MOVE_RETRY_MS
                for seq in seqs:
                    queue.release(seq, self._engine.now_ms(), retry_ms)

        self._send(topic, target, sorted(seqs), records, done)

    def _send(self, topic: Topic, target: str, seqs: list[int], records: list[bytes], done: OnMoved) -> None:
        body = b'{"records":[' + b",".join(records) + b"]}"
        options = {
            "moved": [f"{topic.name}:{topic.epoch}:{seq}" for seq in seqs],
            "durability": topic.config.durability,
        }

        def told(status: int) -> None:
            done(status < 300)

        shard = self.peers.shard_of(target)
        if shard == self._engine.shard:
            self._engine.submit(Request(_Told(told), 0, Op.APPEND_MOVED, target, body, options))
        else:
            self.peers.request(shard, Op.APPEND_MOVED, target, body, options, told)

    def _remove(self, topic: Topic, seqs: list[int], *, dead: bool) -> None:
        if topic.id not in self._engine.state.catalog.by_id:
            return
        fact = JobsDone(tuple(seqs), dead)
        gated = topic.config.durability == "fsync"
        self._engine.commits.stage_control(PendingControl(fact, topic, self._engine.now_ms()), gated=gated)

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
        if topic is not None and topic.gated:
            # Whether an earlier try is among what waits for its sync is not known yet: come again.
            raise ShardUnavailable(
                shard=engine.shard, reason="the topic is busy", retry_after_ms=RETRY_AFTER_DEFAULT_MS
            )
        if topic is None:
            patch = decode_config(msgspec.json.encode({"durability": durability}))
            topic = engine.stage_create(
                request.topic, resolve_config(None, patch, topic=request.topic), now_ms
            )
        held = {identity for identity, seq in topic.moved.items() if topic.is_live(seq)}
        fresh = [place for place, identity in enumerate(identities) if identity not in held]
        if not fresh:
            request.sink.answer(request.id, 200, b'{"moved":0')
            return
        chosen = WriteRequest(records=[_as_rich(write.records[place]) for place in fresh])
        first, ts = topic.staged_head + 1, max(now_ms, topic.staged_ts)
        batch = encode_batch(chosen, len(request.body), first, ts, engine.settings, trusted=True)
        engine.check_caps(topic.config, topic, batch, topic.name)
        marks = tuple(MoveMark(at, str(identities[place])) for at, place in enumerate(fresh))
        pending = PendingAppend(request, topic, batch, first, ts, 0, AppendExtra(moved=marks), False)
        engine.commits.stage_append(pending, gated=True)

    # --- coming back ------------------------------------------------------------------------------------

    def _redrive(self, request: Request) -> None:
        """Runs where the dead letters are; the queue may be anywhere."""
        wanted = decode_redrive(request.body)
        target = request.option("to")
        topic = self._engine.visible(request)
        if not isinstance(target, str) or target == topic.name:
            raise InvalidRequest("from must be another topic than the queue")
        self._engine.commits.check_writable()
        view = PLAIN_VIEW._replace(match=parse_match(wanted.match) if wanted.match is not None else None)
        limit = min(wanted.limit or REDRIVE_DEFAULT_LIMIT, REDRIVE_MAX_LIMIT)
        source = self._engine.state.source
        seqs: list[int] = []
        for piece in topic.pieces(topic.live_from, source):
            low = piece.index_of(topic.live_from)
            for place, chosen in enumerate(wanted_in(topic, piece, low, piece.count, view), low):
                if chosen and len(seqs) < limit and not self._is_held(topic, piece.seq_at(place)):
                    seqs.append(piece.seq_at(place))
            if len(seqs) >= limit:
                break

        def done(taken: bool) -> None:
            if taken:
                self._remove(topic, seqs, dead=False)
                request.sink.answer(request.id, 200, b'{"moved":%d' % len(seqs))
            else:
                error = ShardUnavailable(
                    shard=self._engine.shard,
                    reason=f"{target} did not take the records",
                    retry_after_ms=RETRY_AFTER_DEFAULT_MS,
                )
                request.fail(error)

        if not seqs:
            request.sink.answer(request.id, 200, b'{"moved":0')
            return
        records = [
            _without_origin(moved_record(topic, piece, place, seq, None))
            for seq, piece, place in records_of(topic, seqs, source)
        ]
        self._send(topic, target, seqs, records, done)

    def _is_held(self, topic: Topic, seq: int) -> bool:
        job = topic.queue.jobs.get(seq) if topic.queue is not None else None
        return job is not None and job.state in (JobState.LEASED, JobState.LEAVING)


_ORIGIN = ("$dead_letter_from", "$dead_letter_deliveries", "$dead_letter_src_seq")
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


def _without_origin(record: bytes) -> bytes:
    """A dead letter as it was before: what was put into its meta is taken out again, the rest stays byte for byte."""
    fields = _fields.decode(record)
    if "meta" not in fields:
        return record
    meta = _fields.decode(bytes(fields["meta"]))
    kept = {name: value for name, value in meta.items() if name not in _ORIGIN}
    if kept:
        fields["meta"] = msgspec.Raw(msgspec.json.encode(kept))
    else:
        del fields["meta"]
    return msgspec.json.encode(fields)


def _as_rich(record: RecordIn | PlainRecordIn) -> RecordIn:
    return record if isinstance(record, RecordIn) else RecordIn(data=record.data)
