"""What holders of leases say about their jobs: ack, nack, extend; and who holds what.

Acks are always written down, the others where the queue or a delay asks for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from shard_worker.core.job import JobState
from shard_worker.core.lease_queue import LeaseQueue
from shard_worker.core.stretches import Stretch, count_of, seqs_of
from shard_worker.core.topic import Topic
from shard_worker.pending import PendingControl
from shard_worker.request import Request, Timings
from shared.api_types import CLAMPED, AckRequest, ack_decoder, decode_ack, decode_extend, decode_nack
from shared.control_frames import JobsDone, JobsLeased, JobsReleased, LeaseRow
from shared.errors import BatchTooLarge, InvalidRequest, NotAQueue, TopicNotFound
from shared.limits import PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX, QUEUE_SEQS_MAX
from shared.wire import Op

if TYPE_CHECKING:
    from shard_worker.core.shard_state import ShardState
    from shard_worker.engine import Engine

LEASE_MS_MIN, LEASE_MS_MAX = CLAMPED["lease_ms"]

_json = msgspec.json.encode
_decode_ack: Final = ack_decoder.decode


class ClaimsBefore(Protocol):
    """Claims of the same turn, which decisions must not overtake."""

    def catch_up(self, request: Request, topic: Topic, now_ms: int, node: str | None) -> None: ...


class PendingAck(PendingControl):
    """Jobs that are done, on their way to the log. A class where others pass functions: there is one for every ack, and
    functions that know each other are left to the collector of cycles."""

    __slots__ = ("_engine", "_held", "_queue", "_skipped")

    def __init__(
        self,
        engine: Engine,
        topic: Topic,
        queue: LeaseQueue,
        held: list[Stretch],
        seqs: tuple[int, ...],
        skipped: int,
        now_ms: int,
        request: Request,
    ) -> None:
        """`seqs` are those of `held`."""
        super().__init__(JobsDone(seqs), topic, now_ms, request)
        self._engine = engine
        self._queue = queue
        self._held = held
        self._skipped = skipped

    def answer(self, timings: Timings) -> None:
        request, topic = self.request, self.topic
        assert request is not None and topic is not None
        now_ms = self._engine.now_ms() if self.gated else self.ts  # a sync takes its time
        body = counts_json(topic, self._queue, now_ms, b"acked", count_of(self._held), self._skipped)
        request.sink.answer(request.id, 200, body, timings)

    def undo(self, state: ShardState) -> None:
        for first, last in self._held:
            self._queue.keep(first, last)


def counts_json(
    topic: Topic, queue: LeaseQueue, now_ms: int, decided: bytes, count: int, skipped: int
) -> bytes:
    # A delete of the same turn may have taken jobs from under their leases.
    queue.settle(topic, now_ms)
    return b'{"%b":%d,"skipped":%d,"ready":%d,"in_flight":%d' % (
        decided,
        count,
        skipped,
        queue.ready(topic),
        queue.in_flight,
    )


def _read_ack(body: bytes) -> AckRequest:
    """`decode_ack`, with the common case in here, where it is compiled."""
    if body.isascii():
        try:
            return _decode_ack(body)
        except (msgspec.DecodeError, RecursionError):
            pass  # what is wrong with it is told there
    return decode_ack(body)


class LeaseOps:
    def __init__(self, engine: Engine, claims: ClaimsBefore) -> None:
        self._engine = engine
        self._claims = claims

    def handlers(self) -> dict[int, Callable[[Request], None]]:
        return {
            Op.ACK: self._ack,
            Op.NACK: self._nack,
            Op.EXTEND: self._extend,
            Op.LEASES: self._leases,
        }

    def _queue(self, request: Request, now_ms: int, node: str | None = None) -> tuple[Topic, LeaseQueue]:
        """The queue as those before this request have left it; `node`: as far as that one knows."""
        topic = self._engine.state.catalog.visible.get(request.topic)
        if topic is None:
            raise TopicNotFound(topic=request.topic)
        queue = topic.queue
        if queue is None:
            raise NotAQueue(topic=topic.name)
        self._claims.catch_up(request, topic, now_ms, node)
        self._engine.sweep(topic, now_ms)
        queue.settle(topic, now_ms)
        return topic, queue

    def _held(
        self, queue: LeaseQueue, node: str, seqs: list[int], lease_ids: list[str] | None
    ) -> list[Stretch]:
        """Those of `seqs` about which this caller may decide; the others are skipped, never an error."""
        count = len(seqs)
        if count > QUEUE_SEQS_MAX:
            raise BatchTooLarge(what="seqs", count=count, max=QUEUE_SEQS_MAX)
        if lease_ids is not None and len(lease_ids) != count:
            raise InvalidRequest("lease_ids must have one entry per seq")
        held = queue.held(seqs, node, lease_ids)
        if len(held) == 1 and held[0][1] - held[0][0] == count - 1:
            return held  # all of them, and all different
        if len(set(seqs)) < count:
            if lease_ids is not None:
                pairs = dict(zip(seqs, lease_ids, strict=True))
                seqs, lease_ids = list(pairs), list(pairs.values())
            else:
                seqs = list(dict.fromkeys(seqs))
            held = queue.held(seqs, node, lease_ids)
        return held

    def _ack(self, request: Request) -> None:
        wanted = _read_ack(request.body)
        now_ms = self._engine.now_ms()
        topic, queue = self._queue(request, now_ms, wanted.node)
        held = self._held(queue, wanted.node, wanted.seqs, wanted.lease_ids)
        acked = count_of(held)
        skipped = len(wanted.seqs) - acked
        if not held:
            request.sink.answer(request.id, 200, counts_json(topic, queue, now_ms, b"acked", 0, skipped))
            return
        self._engine.commits.check_writable()
        for first, last in held:
            queue.leave(first, last)
        self._engine.counters.jobs_acked += acked
        # One stretch of as many jobs as were named is just what was named.
        seqs = tuple(wanted.seqs if len(held) == 1 and not skipped else seqs_of(held))
        self._stage(
            PendingAck(self._engine, topic, queue, held, seqs, skipped, now_ms, request), durable=True
        )

    def _nack(self, request: Request) -> None:
        wanted = decode_nack(request.body)
        now_ms = self._engine.now_ms()
        topic, queue = self._queue(request, now_ms)
        held = self._held(queue, wanted.node, wanted.seqs, wanted.lease_ids)
        nacked = count_of(held)
        skipped = len(wanted.seqs) - nacked
        due_ms = now_ms + wanted.delay_ms if wanted.delay_ms else 0

        def answer(_: int) -> tuple[int, bytes]:
            return 200, counts_json(topic, queue, self._engine.now_ms(), b"nacked", nacked, skipped)

        if not held:
            self._answer_now(request, answer)
            return
        if wanted.delay_ms or topic.config.leases_durable:
            self._engine.commits.check_writable()
            # Nobody gets them before the frame is applied: what it says would be done to the next holder.
            for first, last in held:
                queue.leave(first, last)

            def undo() -> None:
                for first, last in held:
                    queue.keep(first, last)

            fact = JobsReleased(tuple((seq, due_ms) for seq in seqs_of(held)))
            self._stage(PendingControl(fact, topic, now_ms, request, answer, undo), durable=False)
        else:
            for seq in seqs_of(held):
                queue.release(seq, now_ms, 0)
            self._answer_now(request, answer)
            self._engine.commits.changed.add(topic)

    def _extend(self, request: Request) -> None:
        wanted = decode_extend(request.body)
        now_ms = self._engine.now_ms()
        topic, queue = self._queue(request, now_ms)
        held = seqs_of(self._held(queue, wanted.node, wanted.seqs, wanted.lease_ids))
        skipped = len(wanted.seqs) - len(held)
        deadline_ms = now_ms + max(LEASE_MS_MIN, min(wanted.lease_ms, LEASE_MS_MAX))
        durable = topic.config.leases_durable and bool(held)
        if durable:
            self._engine.commits.check_writable()
        rows, before = [], []
        for seq in held:
            job = queue.jobs[seq]
            token = job.token_of(seq)
            rows.append(LeaseRow(seq, token, deadline_ms, job.deliveries, job.node))
            before.append((seq, token, job.deadline_ms))
            # At once, or it could run out while the frame waits for a sync.
            queue.set_deadline(seq, token, deadline_ms)

        def undo() -> None:
            for seq, token, old_ms in before:
                queue.set_deadline(seq, token, old_ms)

        def answer(_: int) -> tuple[int, bytes]:
            fields = {
                "extended": len(held),
                "skipped": skipped,
                "deadlines": {str(seq): deadline_ms for seq in held},
            }
            return 200, _json(fields)[:-1]

        if durable:
            fact = JobsLeased(tuple(rows))
            self._stage(PendingControl(fact, topic, now_ms, request, answer, undo), durable=False)
        else:
            self._answer_now(request, answer)

    def _leases(self, request: Request) -> None:
        """Who holds what: holder, age, deadline, deliveries; ascending by seq, a page at a time."""
        now_ms = self._engine.now_ms()
        topic, queue = self._queue(request, now_ms)
        after, limit = request.option("after"), request.option("limit")
        start = after if isinstance(after, int) else 0
        size = min(limit if isinstance(limit, int) and limit > 0 else PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX)
        held = sorted(seq for seq, job in queue.jobs.items() if job.state is JobState.LEASED and seq > start)
        shown = []
        for seq in held[:size]:
            job = queue.jobs[seq]
            shown.append(
                {
                    "seq": seq,
                    "node": job.node,
                    "lease_id": job.token_of(seq),
                    "deliveries": job.deliveries,
                    "age_ms": now_ms - job.leased_ms,
                    "deadline": job.deadline_ms,
                }
            )
        fields: dict[str, object] = {"topic": topic.name, "leases": shown, "in_flight": queue.in_flight}
        if len(held) > size:
            fields["next_cursor"] = str(held[size - 1])
        request.sink.answer(request.id, 200, _json(fields)[:-1])

    # --- pieces -----------------------------------------------------------------------------------------

    def _stage(self, pending: PendingControl, *, durable: bool) -> None:
        topic = pending.topic
        gated = durable and topic is not None and topic.config.durability == "fsync"
        self._engine.commits.stage_control(pending, gated=gated)

    def _answer_now(self, request: Request, answer: Callable[[int], tuple[int, bytes]]) -> None:
        status, body = answer(0)
        request.sink.answer(request.id, status, body)
