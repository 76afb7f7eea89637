"""Claims: of jobs that are ready, of jobs that this very turn brings, and waiting for jobs to come.

Rules of jobs are in core/lease_queue.py; here they meet requests, the log and time. Leases of a queue without
`leases_durable` are never written down: after a restart its jobs are ready again. What their holders decide about
jobs is in lease_ops.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Final

import msgspec

from shard_worker.core.handout import Handout, shared_out
from shard_worker.core.lease_queue import LeaseQueue
from shard_worker.core.stretches import Stretch
from shard_worker.core.topic import Topic
from shard_worker.lease_ops import LEASE_MS_MAX, LEASE_MS_MIN, LeaseOps
from shard_worker.pending import PendingControl
from shard_worker.request import Request
from shard_worker.waiting_claims import Waiters, WaitingClaim
from shared.api_types import ClaimRequest, claim_decoder, decode_claim
from shared.control_frames import JobsLeased
from shared.errors import DiskFault, InvalidRequest, NotAQueue, TopicNotFound, TopicsError
from shared.limits import CLAIMS_BEHIND_MAX_BYTES, MOVE_RETRY_MS, WAIT_MAX_MS
from shared.wire import Op

if TYPE_CHECKING:
    from shard_worker.engine import Engine
    from shard_worker.moves import Moves

_LEASE_BYTES: Final = 100  # about what a claim adds to a record

_decode_claim: Final = claim_decoder.decode


def _read_claim(body: bytes) -> ClaimRequest:
    """`decode_claim`, with the common case in here, where it is compiled."""
    if body.isascii():
        try:
            return _decode_claim(body)
        except (msgspec.DecodeError, RecursionError):
            pass  # what is wrong with it is told there
    return decode_claim(body)


class QueueOps:
    def __init__(self, engine: Engine, moves: Moves, token_prefix: Callable[[], str]) -> None:
        self._engine = engine
        self._moves = moves
        self._token_prefix = token_prefix()
        self._tokens = 0
        self._waiting: dict[Topic, Waiters] = {}
        # Claims of this turn for which jobs are on their way to the log: served when they are there, so that a turn
        # with many writes and claims is still one write.
        self._behind: dict[Topic, list[WaitingClaim]] = {}
        self._behind_bytes = 0  # about what their answers will have

    def handlers(self) -> dict[int, Callable[[Request], None]]:
        return {Op.CLAIM: self._claim, **LeaseOps(self._engine, self).handlers()}

    # --- claiming ---------------------------------------------------------------------------------------

    def _claim(self, request: Request) -> None:
        wanted = _read_claim(request.body)
        engine, now_ms = self._engine, self._engine.now_ms()
        topic = engine.state.catalog.visible.get(request.topic)
        if topic is None:
            raise TopicNotFound(topic=request.topic)
        if topic.queue is None:
            raise NotAQueue(topic=topic.name)
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
        if topic.pending_records and not topic.gated:
            if self._stand_behind(claim):
                return
            engine.visible(request)
            self._serve_behind(topic, now_ms)
        self._enter(claim, now_ms)

    def _stand_behind(self, claim: WaitingClaim) -> bool:
        """Have this claim served at the end of the turn, unless there would be too much to answer then."""
        topic = claim.topic
        records, size = topic.count + topic.pending_records, topic.bytes + topic.pending_bytes
        total = self._behind_bytes + claim.wanted * (size // records + _LEASE_BYTES)
        if total > CLAIMS_BEHIND_MAX_BYTES:
            return False
        self._behind_bytes = total
        self._behind.setdefault(topic, []).append(claim)
        self._engine.commits.changed.add(
            topic
        )  # even if the write fails, the end of the turn comes back to it
        return True

    def catch_up(self, request: Request, topic: Topic, now_ms: int, node: str | None) -> None:
        """Serve the claims that came before this request, as far as `node` knows of them; None: all of them."""
        behind = self._behind.get(topic)
        if node is None or (behind is not None and any(claim.node == node for claim in behind)):
            self._engine.visible(request)
            self._serve_behind(topic, now_ms)

    def _serve_behind(self, topic: Topic, now_ms: int) -> None:
        claims = self._behind.pop(topic, None)
        if claims is None:
            return
        if not self._behind:
            self._behind_bytes = 0
        for claim in claims:
            try:
                if topic.id not in self._engine.state.catalog.by_id:
                    raise TopicNotFound(topic=topic.name)
                self._enter(claim, now_ms)
            except DiskFault:
                raise  # not this caller's failure, as in Engine.submit
            except TopicsError as err:
                claim.request.fail(err)

    def _enter(self, claim: WaitingClaim, now_ms: int) -> None:
        topic, queue = claim.topic, claim.topic.queue
        assert queue is not None
        self._engine.sweep(topic, now_ms)
        queue.settle(topic, now_ms)
        waiters = self._waiting.get(topic)
        jitter_ms = topic.config.claim_jitter_ms
        if waiters is None and not jitter_ms:
            taken = self._take(topic, queue, claim.wanted, now_ms)
            if taken or claim.deadline_ms <= now_ms:
                self._grant(claim, taken, now_ms)
                return
        if waiters is None:
            waiters = self._waiting.setdefault(topic, Waiters())
        if jitter_ms:
            waiters.gather(claim, now_ms, jitter_ms)
        else:
            waiters.add(claim)
            if claim.deadline_ms <= now_ms or queue.has_ready(topic):
                self._serve_waiting(topic, now_ms)

    def _serve(
        self, topic: Topic, queue: LeaseQueue, claims: list[WaitingClaim], now_ms: int
    ) -> list[WaitingClaim]:
        """Divide what is ready evenly over the claims. Returns those that got something."""
        taken = self._take(topic, queue, sum(claim.wanted for claim in claims), now_ms)
        shares = shared_out(taken, [claim.wanted for claim in claims])
        served = []
        for claim, share in zip(claims, shares, strict=True):
            if share:
                self._grant(claim, share, now_ms)
                served.append(claim)
        return served

    def _take(self, topic: Topic, queue: LeaseQueue, wanted: int, now_ms: int) -> list[Stretch]:
        """Jobs to hand out. Those that were delivered too often go to the dead letters."""
        config, source = topic.config, self._engine.state.source
        limit = config.max_deliveries if config.dead_letter is not None else 0
        if not limit:
            return queue.take(topic, wanted, source)
        taken: list[Stretch] = []
        while wanted > 0:
            stretches = queue.take(topic, wanted, source)
            if not stretches:
                break
            dead: list[int] = []
            for first, last in stretches:
                if queue.jobs[first].deliveries < limit:
                    taken.append((first, last))
                    wanted -= last - first + 1
                else:
                    dead += range(first, last + 1)
            if dead:
                self._moves.bury(topic, dead, now_ms)
        return taken

    def _grant(self, claim: WaitingClaim, taken: list[Stretch], now_ms: int) -> None:
        topic, queue = claim.topic, claim.topic.queue
        assert queue is not None
        source, deadline_ms = self._engine.state.source, now_ms + claim.lease_ms
        handout = Handout(topic, queue, self._token_prefix, self._tokens, deadline_ms)
        damaged = handout.add(taken if len(taken) == 1 else sorted(taken), source)
        for seq in damaged:
            # Others go first for a while: one bad block must not stop the queue.
            queue.release(seq, now_ms, now_ms + MOVE_RETRY_MS)
        if damaged and not handout.leases:
            claim.request.fail(next(iter(damaged.values())))
            return
        self._tokens = handout.number
        counters = self._engine.counters
        counters.jobs_claimed += handout.count
        for written_ms, jobs in handout.first_deliveries:
            counters.job_waits.add(now_ms - written_ms, jobs)
        if handout.leases and topic.config.leases_durable:
            self._lease_durably(claim, handout, now_ms)
            return
        for first, last, number in handout.leases:
            queue.lease(first, last, claim.node, self._token_prefix, number, deadline_ms, now_ms)
        claim.request.sink.answer(claim.request.id, 200, handout.answer())

    def _lease_durably(self, claim: WaitingClaim, handout: Handout, now_ms: int) -> None:
        topic, queue = claim.topic, claim.topic.queue
        assert queue is not None
        rows = handout.rows(claim.node)

        def answer(_: int) -> tuple[int, bytes]:
            queue.settle(topic, self._engine.now_ms())
            return 200, handout.answer()

        def undo() -> None:
            for row in rows:
                queue.release(row.seq, now_ms, 0)

        pending = PendingControl(JobsLeased(tuple(rows)), topic, now_ms, claim.request, answer, undo)
        self._engine.commits.stage_control(pending, gated=topic.config.durability == "fsync")

    # --- waiting ----------------------------------------------------------------------------------------

    def topic_changed(self, topic: Topic) -> None:
        """Jobs may have come: serve who waits for them."""
        if topic in self._waiting:
            self._serve_waiting(topic, self._engine.now_ms())
        if topic in self._behind:
            self._serve_behind(topic, self._engine.now_ms())

    def _serve_waiting(self, topic: Topic, now_ms: int) -> None:
        # Out of sight meanwhile: burying jobs may commit, and that comes here again.
        waiters = self._waiting.pop(topic, None)
        if waiters is None:
            return
        queue = topic.queue
        if topic.id not in self._engine.state.catalog.by_id or queue is None:
            for claim in waiters:
                claim.request.fail(TopicNotFound(topic=topic.name))
            return
        queue.settle(topic, now_ms)
        # All whose window is over share what there is; who got nothing waits on, in front of those that come later.
        waiters.close_window(now_ms)
        if waiters.in_line and queue.has_ready(topic):
            # More claims than jobs could not all get one.
            waiters.remove(self._serve(topic, queue, waiters.first(queue.ready(topic)), now_ms))
        for claim in waiters.take_expired(now_ms):
            self._grant(claim, [], now_ms)
        if len(waiters):
            self._waiting[topic] = waiters

    def tick(self, now_ms: int) -> None:
        for topic, waiters in list(self._waiting.items()):
            if self._due_ms(topic, waiters, now_ms) <= now_ms:
                self._engine.sweep(topic, now_ms)
                self._serve_waiting(topic, now_ms)

    def next_deadline_ms(self) -> int | None:
        if not self._waiting:
            return None
        now_ms = self._engine.now_ms()
        return min(self._due_ms(topic, waiters, now_ms) for topic, waiters in self._waiting.items())

    def _due_ms(self, topic: Topic, waiters: Waiters, now_ms: int) -> int:
        """When to look at the claims that wait for this topic."""
        due_ms = waiters.next_ms()
        queue = topic.queue
        if queue is None or not waiters.in_line:
            return due_ms  # nobody gets a job before a window is over
        if queue.has_ready(topic):
            # Somebody else has settled the queue: looking at its state is enough, and changes nothing else.
            return now_ms
        change_ms = queue.next_change_ms()
        return due_ms if change_ms is None else min(due_ms, change_ms)

    @property
    def waiting_claims(self) -> int:
        return sum(map(len, self._waiting.values())) + sum(map(len, self._behind.values()))

    def cancel(self, sink: object, request_id: object) -> Request | None:
        for claim in self._all_waiting():
            if claim.request.sink is sink and claim.request.id == request_id:
                self._drop([claim])
                return claim.request
        return None

    def forget_sink(self, sink: object) -> None:
        self._drop([claim for claim in self._all_waiting() if claim.request.sink is sink])

    def expire_all(self) -> None:
        """Answer every waiting claim as it stands, at shutdown."""
        claims = list(self._all_waiting())
        self._drop(claims)
        for claim in claims:
            self._grant(claim, [], self._engine.now_ms())

    def _all_waiting(self) -> Iterator[WaitingClaim]:
        yield from chain.from_iterable(self._waiting.values())
        yield from chain.from_iterable(self._behind.values())

    def _drop(self, claims: list[WaitingClaim]) -> None:
        for claim in claims:
            waiters, behind = self._waiting.get(claim.topic), self._behind.get(claim.topic)
            if waiters is not None:
                waiters.remove([claim])
                if not len(waiters):
                    del self._waiting[claim.topic]
            if behind is not None and claim in behind:
                behind.remove(claim)
