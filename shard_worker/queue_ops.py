"""What clients do with a queue: claim, ack, nack, extend, look at leases; and waiting for jobs to come.

Rules of jobs are in core/lease_queue.py; here they meet requests, the log and time. Leases of a queue without
`leases_durable` are never written down: after a restart its jobs are ready again. Acks always are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from shard_worker.core.job_json import JobTexts, readable_records
from shard_worker.core.lease_queue import JobState, LeaseQueue
from shard_worker.core.topic import Topic
from shard_worker.pending import PendingControl
from shard_worker.request import Request
from shared.api_types import CLAMPED, decode_ack, decode_claim, decode_extend, decode_nack
from shared.control_frames import JobsDone, JobsLeased, JobsReleased, LeaseRow
from shared.errors import BatchTooLarge, InvalidRequest, NotAQueue, TopicNotFound
from shared.limits import (
    CLAIM_MAX_BYTES,
    MOVE_RETRY_MS,
    PAGE_SIZE_DEFAULT,
    PAGE_SIZE_MAX,
    QUEUE_SEQS_MAX,
    WAIT_MAX_MS,
)
from shared.wire import Op

if TYPE_CHECKING:
    from shard_worker.engine import Engine
    from shard_worker.moves import Moves

LEASE_MS_MIN, LEASE_MS_MAX = CLAMPED["lease_ms"]

_json = msgspec.json.encode


@dataclass(slots=True, eq=False)
class WaitingClaim:
    request: Request
    topic: Topic
    node: str
    wanted: int
    lease_ms: int
    deadline_ms: int  # when it is answered, whatever there is
    due_ms: int = 0  # not before: the end of the window in which claims are gathered; 0 once it is over

    @property
    def next_ms(self) -> int:
        """When something is due for it, whether a job comes or not."""
        return self.due_ms or self.deadline_ms


class QueueOps:
    def __init__(self, engine: Engine, moves: Moves, token_prefix: Callable[[], str]) -> None:
        self._engine = engine
        self._moves = moves
        self._token_prefix = token_prefix()
        self._tokens = 0
        self._waiting: dict[Topic, list[WaitingClaim]] = {}

    def handlers(self) -> dict[int, Callable[[Request], None]]:
        return {
            Op.CLAIM: self._claim,
            Op.ACK: self._ack,
            Op.NACK: self._nack,
            Op.EXTEND: self._extend,
            Op.LEASES: self._leases,
        }

    def _queue(self, request: Request, now_ms: int) -> tuple[Topic, LeaseQueue]:
        topic = self._engine.visible(request)
        if topic.queue is None:
            raise NotAQueue(topic=topic.name)
        self._engine.sweep(topic, now_ms)
        topic.queue.settle(topic, now_ms)
        return topic, topic.queue

    # --- claiming ---------------------------------------------------------------------------------------

    def _claim(self, request: Request) -> None:
        wanted = decode_claim(request.body)
        engine, now_ms = self._engine, self._engine.now_ms()
        topic, queue = self._queue(request, now_ms)
        if not wanted.node:
            raise InvalidRequest("node must not be empty")
        config = topic.config
        lease_ms = config.lease_ms if wanted.lease_ms is None else wanted.lease_ms
        claim = WaitingClaim(
            request,
            topic,
            wanted.node,
            max(1, min(wanted.max, engine.settings.max_claim)),
            max(LEASE_MS_MIN, min(lease_ms, LEASE_MS_MAX)),
            now_ms + min(wanted.wait_ms, WAIT_MAX_MS),
        )
        if config.leases_durable:
            engine.commits.check_writable()
        waiting = self._waiting.setdefault(topic, [])
        waiting.append(claim)
        if config.claim_jitter_ms:
            # Join the window that is open, or open one.
            open_until = max((other.due_ms for other in waiting), default=0)
            claim.due_ms = open_until if open_until > now_ms else now_ms + config.claim_jitter_ms
            claim.deadline_ms = max(claim.deadline_ms, claim.due_ms)
        elif claim.deadline_ms <= now_ms or queue.has_ready(topic):
            self._serve_waiting(topic, now_ms)

    def _serve(self, claims: list[WaitingClaim], now_ms: int) -> list[WaitingClaim]:
        """Divide what is ready evenly over the claims. Returns those that got nothing and can wait on."""
        topic = claims[0].topic
        queue = topic.queue
        assert queue is not None
        takes = self._take(topic, queue, sum(claim.wanted for claim in claims), now_ms)
        shares: list[list[int]] = [[] for _ in claims]
        if len(claims) == 1:
            shares, takes = [takes], []
        while takes:
            # Round by round, so that nobody has two while another has none.
            for claim, share in zip(claims, shares, strict=True):
                if takes and len(share) < claim.wanted:
                    share.append(takes.pop())
        left = []
        for claim, share in zip(claims, shares, strict=True):
            if share or claim.deadline_ms <= now_ms:
                self._grant(claim, share, now_ms)
            else:
                left.append(claim)
        return left

    def _take(self, topic: Topic, queue: LeaseQueue, wanted: int, now_ms: int) -> list[int]:
        """Jobs to hand out, the first one last. Those that were delivered too often go to the dead letters."""
        config = topic.config
        limit = config.max_deliveries if config.dead_letter is not None else 0
        taken: list[int] = []
        while len(taken) < wanted:
            seqs = queue.take(topic, wanted - len(taken), self._engine.state.source)
            if not seqs:
                break
            if not limit:
                taken += seqs
                continue
            dead = [seq for seq in seqs if queue.jobs[seq].deliveries >= limit]
            taken += [seq for seq in seqs if queue.jobs[seq].deliveries < limit]
            if dead:
                self._moves.bury(topic, dead, now_ms)
        taken.reverse()
        return taken

    def _grant(self, claim: WaitingClaim, seqs: list[int], now_ms: int) -> None:
        topic, queue = claim.topic, claim.topic.queue
        assert queue is not None
        deadline_ms = now_ms + claim.lease_ms
        grants: list[LeaseRow] = []
        jobs: list[bytes] = []
        waited: dict[int, int] = {}  # how many were delivered for the first time, by when they were written
        room = CLAIM_MAX_BYTES
        records, damaged = readable_records(topic, seqs, self._engine.state.source)
        for seq in damaged:
            # Others go first for a while: one bad block must not stop the queue.
            queue.release(seq, now_ms, now_ms + MOVE_RETRY_MS)
        if damaged and not records:
            claim.request.fail(next(iter(damaged.values())))
            return
        texts, node, prefix, number = JobTexts(), claim.node, self._token_prefix, self._tokens
        for seq, piece, place in records:
            if room <= 0:
                queue.stay(seq)
                continue
            number += 1
            job = queue.jobs[seq]
            grant = LeaseRow(seq, f"{prefix}{number:x}", deadline_ms, job.deliveries + 1, node)
            grants.append(grant)
            text = texts.of(grant, piece, place)
            jobs.append(text)
            room -= len(text)
            if not job.deliveries:
                times = piece.times
                written_ms = times if isinstance(times, int) else times[place]
                waited[written_ms] = waited.get(written_ms, 0) + 1
        self._tokens = number
        counters = self._engine.counters
        counters.jobs_claimed += len(jobs)
        for written_ms, count in waited.items():
            counters.job_waits.add(now_ms - written_ms, count)

        def answer(_: int) -> tuple[int, bytes]:
            queue.settle(topic, self._engine.now_ms())
            return 200, b'{"topic":"%b","claimed":[%b],"count":%d,"ready":%d' % (
                topic.name.encode(),
                b",".join(jobs),
                len(jobs),
                queue.ready(topic),
            )

        if grants and topic.config.leases_durable:
            fact = JobsLeased(tuple(grants))

            def undo() -> None:
                for grant in grants:
                    queue.release(grant.seq, now_ms, 0)

            self._stage(claim.request, topic, fact, answer, undo, durable=True)
        else:
            queue.apply_leases(grants, now_ms, lambda seq: now_ms)
            status, body = answer(0)
            claim.request.sink.answer(claim.request.id, status, body)

    # --- waiting ----------------------------------------------------------------------------------------

    def topic_changed(self, topic: Topic) -> None:
        """Jobs may have come: serve who waits for them."""
        if topic in self._waiting:
            self._serve_waiting(topic, self._engine.now_ms())

    def _serve_waiting(self, topic: Topic, now_ms: int) -> None:
        claims = self._waiting.pop(topic, [])
        if not claims:
            return
        if topic.id not in self._engine.state.catalog.by_id or topic.queue is None:
            for claim in claims:
                claim.request.fail(TopicNotFound(topic=topic.name))
            return
        topic.queue.settle(topic, now_ms)
        # All whose window is over share what there is; who got nothing waits on, in front of those that come later.
        cohort = [claim for claim in claims if claim.due_ms <= now_ms]
        left = self._serve(cohort, now_ms) if cohort else []
        for claim in left:
            claim.due_ms = 0
        left += [claim for claim in claims if claim.due_ms > now_ms]
        if left:
            self._waiting[topic] = left

    def tick(self, now_ms: int) -> None:
        for topic, claims in list(self._waiting.items()):
            if self._due_ms(topic, claims, now_ms) <= now_ms:
                self._engine.sweep(topic, now_ms)
                self._serve_waiting(topic, now_ms)

    def next_deadline_ms(self) -> int | None:
        now_ms = self._engine.now_ms()
        return min(
            (self._due_ms(topic, claims, now_ms) for topic, claims in self._waiting.items()), default=None
        )

    def _due_ms(self, topic: Topic, claims: list[WaitingClaim], now_ms: int) -> int:
        """When to look at the claims that wait for this topic."""
        due_ms = min(claim.next_ms for claim in claims)
        queue = topic.queue
        if queue is None or all(claim.due_ms for claim in claims):
            return due_ms  # nobody gets a job before a window is over
        if queue.has_ready(topic):
            # Somebody else has settled the queue: looking at its state is enough, and changes nothing else.
            return now_ms
        change_ms = queue.next_change_ms()
        return due_ms if change_ms is None else min(due_ms, change_ms)

    @property
    def waiting_claims(self) -> int:
        return sum(map(len, self._waiting.values()))

    def cancel(self, sink: object, request_id: object) -> Request | None:
        for topic, claims in list(self._waiting.items()):
            for claim in claims:
                if claim.request.sink is sink and claim.request.id == request_id:
                    self._drop(topic, [claim])
                    return claim.request
        return None

    def forget_sink(self, sink: object) -> None:
        for topic, claims in list(self._waiting.items()):
            self._drop(topic, [claim for claim in claims if claim.request.sink is sink])

    def expire_all(self) -> None:
        """Answer every waiting claim as it stands, at shutdown."""
        for topic, claims in list(self._waiting.items()):
            self._drop(topic, claims)
            for claim in claims:
                self._grant(claim, [], self._engine.now_ms())

    def _drop(self, topic: Topic, claims: list[WaitingClaim]) -> None:
        kept = [claim for claim in self._waiting[topic] if claim not in claims]
        if kept:
            self._waiting[topic] = kept
        else:
            del self._waiting[topic]

    # --- the holder's word ------------------------------------------------------------------------------

    def _held(self, queue: LeaseQueue, node: str, seqs: list[int], lease_ids: list[str] | None) -> list[int]:
        """Those of `seqs` about which this caller may decide; the others are skipped, never an error."""
        if len(seqs) > QUEUE_SEQS_MAX:
            raise BatchTooLarge(what="seqs", count=len(seqs), max=QUEUE_SEQS_MAX)
        if lease_ids is not None and len(lease_ids) != len(seqs):
            raise InvalidRequest("lease_ids must have one entry per seq")
        tokens: list[str | None] = [*lease_ids] if lease_ids is not None else [None] * len(seqs)
        pairs = dict(zip(seqs, tokens, strict=True))
        return [seq for seq, token in pairs.items() if queue.held_by(seq, node, token)]

    def _ack(self, request: Request) -> None:
        wanted = decode_ack(request.body)
        topic, queue = self._queue(request, self._engine.now_ms())
        held = self._held(queue, wanted.node, wanted.seqs, wanted.lease_ids)
        skipped = len(wanted.seqs) - len(held)

        def answer(_: int) -> tuple[int, bytes]:
            return 200, self._counts(queue, topic, acked=len(held), skipped=skipped)

        if not held:
            self._answer_now(request, answer)
            return
        self._engine.commits.check_writable()
        for seq in held:
            queue.leave(seq)
        self._engine.counters.jobs_acked += len(held)

        def undo() -> None:
            for seq in held:
                queue.keep(seq)

        fsync = topic.config.durability == "fsync"
        self._stage(request, topic, JobsDone(tuple(held)), answer, undo, durable=fsync)

    def _nack(self, request: Request) -> None:
        wanted = decode_nack(request.body)
        now_ms = self._engine.now_ms()
        topic, queue = self._queue(request, now_ms)
        held = self._held(queue, wanted.node, wanted.seqs, wanted.lease_ids)
        skipped = len(wanted.seqs) - len(held)
        due_ms = now_ms + wanted.delay_ms if wanted.delay_ms else 0

        def answer(_: int) -> tuple[int, bytes]:
            return 200, self._counts(queue, topic, nacked=len(held), skipped=skipped)

        if not held:
            self._answer_now(request, answer)
            return
        if wanted.delay_ms or topic.config.leases_durable:
            self._engine.commits.check_writable()
            # Nobody gets them before the frame is applied: what it says would be done to the next holder.
            for seq in held:
                queue.leave(seq)

            def undo() -> None:
                for seq in held:
                    queue.keep(seq)

            fact = JobsReleased(tuple((seq, due_ms) for seq in held))
            self._stage(request, topic, fact, answer, undo, durable=False)
        else:
            for seq in held:
                queue.release(seq, now_ms, 0)
            self._answer_now(request, answer)
            self._engine.commits.changed.add(topic)

    def _extend(self, request: Request) -> None:
        wanted = decode_extend(request.body)
        now_ms = self._engine.now_ms()
        topic, queue = self._queue(request, now_ms)
        held = self._held(queue, wanted.node, wanted.seqs, wanted.lease_ids)
        skipped = len(wanted.seqs) - len(held)
        deadline_ms = now_ms + max(LEASE_MS_MIN, min(wanted.lease_ms, LEASE_MS_MAX))
        durable = topic.config.leases_durable and bool(held)
        if durable:
            self._engine.commits.check_writable()
        rows, before = [], []
        for seq in held:
            job = queue.jobs[seq]
            rows.append(LeaseRow(seq, job.token, deadline_ms, job.deliveries, job.node))
            before.append((seq, job.token, job.deadline_ms))
            # At once, or it could run out while the frame waits for a sync.
            queue.set_deadline(seq, job.token, deadline_ms)

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
            self._stage(request, topic, JobsLeased(tuple(rows)), answer, undo, durable=False)
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
                    "lease_id": job.token,
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

    def _stage(
        self,
        request: Request,
        topic: Topic,
        fact: JobsLeased | JobsDone | JobsReleased,
        answer: Callable[[int], tuple[int, bytes]],
        undo: Callable[[], None] | None,
        *,
        durable: bool,
    ) -> None:
        pending = PendingControl(fact, topic, self._engine.now_ms(), request, answer, undo)
        gated = durable and topic.config.durability == "fsync"
        self._engine.commits.stage_control(pending, gated=gated)

    def _answer_now(self, request: Request, answer: Callable[[int], tuple[int, bytes]]) -> None:
        status, body = answer(0)
        request.sink.answer(request.id, status, body)

    def _counts(self, queue: LeaseQueue, topic: Topic, **first: int) -> bytes:
        # A delete of the same turn may have taken jobs from under their leases.
        queue.settle(topic, self._engine.now_ms())
        return _json({**first, "ready": queue.ready(topic), "in_flight": queue.in_flight})[:-1]
