"""A queue and its model side by side: every call goes to both, every answer is compared, every crash is judged.

The promises: each job is in exactly one of ready, delayed, leased, done, dead (while it moves it may be in both topics,
never in neither); what was acked and synced never returns; what was not acked always does; only the newest lease
decides; a group goes in order; ready + in_flight + delayed = count.

A job is known by its payload, a number. Without faults every claim is predicted job by job. What a crash may leave of
a job is the outcome of some prefix of what was written about it, not shorter than what was synced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from shard_worker.core.job import JobState
from shard_worker.core.lease_queue import AGING_MS
from shared.errors import DiskFault
from shared.wire import Op
from tests.support.fake_disk import FakeDisk, Keep
from tests.support.queue_driver import Job, QueueDriver, decision
from tests.support.shard_driver import Answer, Call

QUEUE, DEAD = "q", "dl"


class Violation(AssertionError):
    """The queue broke a promise."""


def check(condition: object, message: str, *facts: object) -> None:
    if not condition:
        raise Violation(f"{message}: {', '.join(map(repr, facts))}" if facts else message)


@dataclass(slots=True, eq=False)
class Entry:
    """One frame on its way to the log, or there."""

    call: Call | None = None
    synced: bool = False

    @property
    def written(self) -> bool:
        return self.synced or (self.call is not None and self.call.answer is not None and self.call.answer.ok)


@dataclass(frozen=True, slots=True)
class Lease:
    node: str
    token: str | None  # None: on its way, its token is not known yet
    deadline_ms: int


@dataclass(frozen=True, slots=True)
class Stored:
    """A job as the log has it."""

    due_ms: int = 0
    lease: Lease | None = None
    deliveries: int = 0


Step = Callable[[Stored | None], Stored | None]


def _gone(_: Stored | None) -> None:
    return None


@dataclass(slots=True, eq=False)
class ModelJob:
    number: int
    ts: int
    priority: int
    group: str | None
    tag: str
    due_ms: int
    seq: int | None = None  # None: not heard of
    lease: Lease | None = None
    deliveries: int = 0
    leaving: str = ""  # why nobody can have it at the moment
    dying: bool = False  # was removed while it was on its way to the dead letters
    retried: bool = False  # put back for a while by a move that failed; nobody wrote that down
    base: Stored | None = None
    steps: list[tuple[Entry, Step]] = field(default_factory=list)

    @property
    def order(self) -> tuple[int, int]:
        assert self.seq is not None
        return self.ts - self.priority * AGING_MS, self.seq

    def state(self, now_ms: int) -> str:
        if self.leaving:
            return "leaving"
        if self.lease is not None and self.lease.deadline_ms > now_ms:
            return "leased"
        return "delayed" if self.due_ms > now_ms else "ready"

    def holds(self, node: str, token: str | None, now_ms: int) -> bool:
        lease = self.lease
        return (
            self.state(now_ms) == "leased"
            and lease is not None
            and lease.node == node
            and token in (None, lease.token)
        )

    def forget(self, entry: Entry) -> None:
        self.steps = [step for step in self.steps if step[0] is not entry]

    def outcomes(self, *, power_lost: bool) -> list[Stored | None]:
        """What a crash may leave."""
        sure = 0
        for place, (entry, _) in enumerate(self.steps, 1):
            if entry.synced or (entry.written and not power_lost):
                sure = place
        stored, found = self.base, []
        for place in range(len(self.steps) + 1):
            if place:
                stored = self.steps[place - 1][1](stored)
            if place >= sure:
                found.append(stored)
        return found


@dataclass(frozen=True, slots=True)
class Held:
    """A lease as a client remembers it, for ever."""

    number: int
    seq: int
    node: str
    token: str


@dataclass(slots=True, eq=False)
class _Open:
    call: Call
    on_answer: Callable[[Answer], None]
    waiting_claim: bool = False
    claimer: str | None = None  # of a durable claim that is not predicted: it may have got any job


class CheckedQueue:
    def __init__(self, disk: FakeDisk | None = None, **config: object) -> None:
        self.driver = QueueDriver(disk)
        self.driver.make(QUEUE, dead_letter=DEAD, **config)
        self.driver.put(DEAD, durability=config.get("durability", "disk"))
        self.driver.before_sync = self._note_written
        self.driver.after_sync = self._mark_synced
        self.jobs: dict[int, ModelJob] = {}  # those that are, or may be, in the queue
        self.dead: set[int] = set()
        self.done: set[int] = set()
        self.dying: set[int] = (
            set()
        )  # those of them that expired or were deleted while they moved: a letter may come
        self.moving_back: dict[
            int, int
        ] = {}  # redriven by a call that was not answered: number -> seq of the letter
        self.sent_back: dict[
            int, Entry
        ] = {}  # by seq, letters whose jobs are back in the queue: their removal
        self.stale: set[int] = (
            set()
        )  # those of them that are there again, because a crash has lost the removal
        self.tags: dict[int, str] = {}
        self.history: list[Held] = []
        self.entries: list[Entry] = []
        self.open: list[_Open] = []
        self.serial = 0
        self.faulty = False  # a write fault is armed, or the shard may be read-only
        self.toggled = False  # leases were durable only at times: what comes back of them is not predicted
        self._being_synced: list[Entry] = []
        self._unheard = False  # a write or a new cap was not answered and may yet be there
        self._capped: set[int] = set()  # and has pushed these out
        self._claimers: set[str] = set()  # who may hold leases that nobody heard of

    # --- small things -----------------------------------------------------------------------------------

    @property
    def disk(self) -> FakeDisk:
        return self.driver.disk

    @property
    def now_ms(self) -> int:
        return int(self.driver.engine.now_ms())

    @property
    def config(self) -> Any:
        return self.driver.topic(QUEUE).config

    def _note_written(self) -> None:
        self._being_synced = list(self.entries)

    def _mark_synced(self) -> None:
        for entry in self._being_synced:
            entry.synced = True
        self.entries = [entry for entry in self.entries if not entry.synced]

    def _entry(self, call: Call | None = None) -> Entry:
        entry = Entry(call)
        self.entries.append(entry)
        return entry

    @property
    def waiters(self) -> bool:
        """Is there a claim that may get any job, at any time?"""
        return any(each.waiting_claim or each.claimer is not None for each in self.open)

    @property
    def predictable(self) -> bool:
        return not self.faulty and not self.waiters and not self.expiring

    @property
    def expiring(self) -> bool:
        """What has expired may still be there: the frame that says so waits for a sync."""
        return bool(self.config.ttl_ms) and self.driver.topic(QUEUE).gated > 0

    @property
    def half_submitted(self) -> bool:
        return bool(self.driver.engine.commits._group)

    def by_seq(self, seq: int) -> ModelJob | None:
        return next((job for job in self.jobs.values() if job.seq == seq), None)

    # --- turns ------------------------------------------------------------------------------------------

    def guard(self, act: Callable[[], object]) -> None:
        """Do it, then take in the answers. A disk that failed beyond repair ends the process: restart it."""
        try:
            act()
        except DiskFault:
            check(self.faulty, "a DiskFault although the disk did not fail")
            self.disk.clear_faults()
            self.kill()
            return
        self.take_answers()
        if self.faulty and not self._may_fail():
            self.faulty = False

    def _may_fail(self) -> bool:
        """Is a fault armed, is the shard read-only, or is something on its way that was begun before?"""
        armed = any(
            fault.times is None or fault.seen < fault.nth + fault.times - 1 for fault in self.disk._faults
        )
        commits = self.driver.engine.commits
        return armed or commits.read_only is not None or not commits.idle

    def submit(self, op: int, topic: str, body: object, options: Any = None) -> Call | None:
        try:
            return self.driver.submit(op, topic, body, options)
        except DiskFault:
            check(self.faulty, "a DiskFault although the disk did not fail")
            self.disk.clear_faults()
            self.kill()
            return None

    def follow(
        self, call: Call, wait: str, on_answer: Callable[[Answer], None], claimer: str | None = None
    ) -> None:
        """`staged`: not even committed; `committed`: not synced; `answered`: until the answer is there."""
        self.open.append(_Open(call, on_answer, claimer=claimer))
        if wait == "staged":
            self.take_answers()
            return
        self.guard(self.driver.commit)
        for _ in range(4):
            if wait == "answered" and call.answer is None and any(each.call is call for each in self.open):
                self.guard(self.driver.sync)

    def take_answers(self) -> None:
        """What is known of jobs that others decide about, first; then whom waiting claims gave them to."""
        self._undo_failed()
        for waiting_claims in (False, True):
            for each in list(self.open):
                if each.waiting_claim is waiting_claims and each.call.answer is not None:
                    self.open.remove(each)
                    each.on_answer(each.call.answer)
            self._take_in_moves()
        self._let_go()

    def _undo_failed(self) -> None:
        """What failed together is undone from the last to the first, as the shard does it: each remembers how it found
        things, and that may be the work of one that failed with it."""
        for each in reversed(self.open.copy()):
            answer = each.call.answer
            if answer is not None and not answer.ok:
                self.open.remove(each)
                each.on_answer(answer)

    def _failed(self, answer: Answer) -> bool:
        if answer.ok:
            return False
        check(answer.status == 503, "refused", answer)
        check(self.faulty, "failed although the disk is well", answer)
        return True

    def tick(self) -> None:
        self.guard(self.driver.tick)
        self.guard(self.driver.commit)

    def settle(self) -> None:
        """Nothing is on its way any more, also not between the topics."""
        for _ in range(4):
            self.guard(self.driver.settle)

    # --- writers ----------------------------------------------------------------------------------------

    def write(self, shapes: Sequence[dict[str, Any]]) -> None:
        records, jobs = [], []
        now_ms = self.now_ms
        for shape in shapes:
            self.serial += 1
            records.append({"data": self.serial, **{key: value for key, value in shape.items() if value}})
            delay_ms = shape.get("delay_ms") or 0
            job = ModelJob(
                self.serial,
                now_ms,
                shape.get("priority") or 0,
                shape.get("group"),
                shape.get("tag") or "",
                now_ms + delay_ms if delay_ms else 0,
            )
            jobs.append(job)
            self.tags[job.number] = job.tag
        call = self.submit(Op.APPEND, QUEUE, {"records": records})
        if call is None:
            return
        entry = self._entry(call)
        for job in jobs:
            self.jobs[job.number] = job
            job.steps.append((entry, lambda _, due_ms=job.due_ms: Stored(due_ms)))  # type: ignore[misc]

        def answered(answer: Answer) -> None:
            if self._failed(answer):
                for job in jobs:
                    del self.jobs[job.number]
                return
            for job, seq in zip(jobs, answer.json["seqs"], strict=True):
                job.seq = seq
            self._hold_cap(entry)

        self.follow(call, "answered", answered)

    def _hold_cap(self, entry: Entry) -> None:
        cap = self.config.cap_records
        if not cap:
            return
        # Who went before does not fill a place: what was removed is still known here only because a crash might bring
        # it back. What has expired is older than everything else: whether it is swept already makes no difference to
        # who stays. Of burials that ended in the same turn nobody says whether that was before or after: the queue
        # shows it, for those jobs that would have had to make room for them.
        filling = self._filling()
        self._take_in_moves()
        topic, left = self.driver.topic(QUEUE), self._filling()
        for job in left:
            if job in left[:-cap] or (job in filling[:-cap] and topic.next_live(job.seq or 0) != job.seq):
                self._remove(job, entry)

    def _filling(self) -> list[ModelJob]:
        """Jobs that count for the cap, oldest first."""
        found = (job for job in self.jobs.values() if job.seq is not None and job.leaving != "removed")
        return sorted(found, key=lambda job: job.seq or 0)

    def _remove(self, job: ModelJob, entry: Entry) -> None:
        """Deleted or evicted: may be back only if the frame that says so is lost."""
        job.steps.append((entry, _gone))
        job.dying = job.dying or job.leaving == "bury"
        job.leaving = "removed"

    def delete(self, *, before: int | None = None, tag: str | None = None) -> None:
        body = {"before_seq": before} if tag is None else {"match": tag}
        call = self.submit(Op.DELETE_RECORDS, QUEUE, body)
        if call is None:
            return
        self._undo_failed()  # the delete lets what was staged before go first, and that may have failed
        entry = self._entry(call)
        chosen = [
            job
            for job in self.jobs.values()
            if job.seq is not None and (job.tag == tag if before is None else job.seq < before)
        ]
        kept = {job.number: (job.leaving, job.dying) for job in chosen}
        for job in chosen:
            self._remove(job, entry)

        def answered(answer: Answer) -> None:
            if self._failed(answer):
                for job in chosen:
                    job.forget(entry)
                    job.leaving, job.dying = kept[job.number]

        self.follow(call, "answered", answered)

    def configure(self, **changes: Any) -> None:
        durable = self.config.leases_durable
        call = self.submit(Op.PUT_TOPIC, QUEUE, changes)
        if call is None:
            return
        entry = self._entry(call)
        if changes.get("leases_durable", durable) != durable:
            self.toggled = True
        # Who was swept in front of the change is gone, and under the new configuration nobody could tell why. (Whom
        # nobody had looked for is not swept, and lives on if the new TTL lets it.)
        expired = [job for job in self.jobs.values() if job.seq is not None and self._has_expired(job)]

        def answered(answer: Answer) -> None:
            if self._failed(answer):
                return
            topic = self.driver.topic(QUEUE)
            for job in expired:
                if job.number in self.jobs and topic.next_live(job.seq or 0) != job.seq:
                    self._remove(job, entry)
            self._hold_cap(entry)

        self.follow(call, "answered", answered)

    # --- workers ----------------------------------------------------------------------------------------

    def predict(self, wanted: int) -> tuple[list[ModelJob], list[ModelJob]]:
        """Who is handed out next, and who goes to the dead letters on the way."""
        now_ms, config = self.now_ms, self.config
        limit = config.max_deliveries
        heads: dict[str, int] = {}
        known = [job for job in self.jobs.values() if job.seq is not None and not self._is_gone(job)]
        for job in known:
            if job.group is not None:
                heads[job.group] = min(heads.get(job.group, job.seq or 0), job.seq or 0)
        given: list[ModelJob] = []
        buried: list[ModelJob] = []
        for job in sorted(known, key=lambda job: job.order):
            if len(given) == wanted:
                break
            if job.state(now_ms) == "ready" and (job.group is None or heads[job.group] == job.seq):
                (buried if limit and job.deliveries >= limit else given).append(job)
        return given, buried

    def _is_gone(self, job: ModelJob) -> bool:
        return job.leaving == "removed" or self._has_expired(job)

    def _take_in_expiry(self) -> None:
        """What has expired and is gone never returns: the clock does not go back, and the floor is written down
        before the configuration can change."""
        topic = self.driver.topic(QUEUE)
        for job in list(self.jobs.values()):
            if job.seq is not None and self._has_expired(job) and topic.next_live(job.seq) != job.seq:
                self._end(job)

    def _end(self, job: ModelJob) -> None:
        """It never returns; unless a crash has left a copy with the dead letters, and somebody brings that back."""
        del self.jobs[job.number]
        (self.dead if job.number in self._dead_letters() else self.done).add(job.number)
        if job.number in self.done and (job.dying or job.leaving == "bury"):
            self.dying.add(job.number)

    def _has_expired(self, job: ModelJob) -> bool:
        ttl_ms = self.config.ttl_ms
        return bool(ttl_ms) and job.ts < self.now_ms - ttl_ms

    def claim(
        self, node: str, wanted: int, lease_ms: int, wait: str = "answered", wait_ms: int = 0
    ) -> Call | None:
        exact = self.predictable and not wait_ms
        given, buried = self.predict(wanted) if exact else ([], [])
        now_ms, durable = self.now_ms, self.config.leases_durable
        body = {"node": node, "max": wanted, "lease_ms": lease_ms, "wait_ms": wait_ms}
        call = self.submit(Op.CLAIM, QUEUE, body)
        if call is None:
            return None
        if call.answer is not None and call.answer.status == 503:
            check(self.faulty, "refused although the disk is well", call.answer)
            self.take_answers()
            return call
        # Who waits is not written down before there is a job.
        entry = self._entry(call) if durable and not wait_ms else None
        on_its_way = Lease(node, None, now_ms + lease_ms)
        for job in given if durable else ():
            job.leaving = "claim"
            self._note_lease(job, entry, on_its_way, job.deliveries + 1)
        for job in buried:
            self._note_burial(job)

        def answered(answer: Answer) -> None:
            for job in given:
                if job.leaving == "claim":
                    job.leaving = ""
                if entry is not None:
                    job.forget(entry)
            if self._failed(answer):
                return
            claimed = answer.json["claimed"]
            if exact:
                found = sorted(job["data"] for job in claimed)
                check(found == sorted(job.number for job in given), "claimed", found, given, self.jobs)
            frame = self._entry(call) if durable and wait_ms else entry
            for shown in claimed:
                self._take_lease(shown, node, lease_ms, None if wait_ms else now_ms, frame)

        if wait_ms:
            self.open.append(_Open(call, answered, waiting_claim=True, claimer=node))
            self.guard(self.driver.commit)
        else:
            self.follow(call, wait, answered, claimer=None if exact else node)
        return call

    def _take_lease(
        self, shown: Job, node: str, lease_ms: int, now_ms: int | None, entry: Entry | None
    ) -> None:
        job = self.jobs.get(shown["data"])
        check(shown["data"] not in self.done, "an acked job was handed out again", shown)
        check(job is not None, "a job out of nowhere", shown)
        assert job is not None
        check(job.seq == shown["$seq"], "seq", shown, job)
        check(job.leaving in ("", "removed", "bury"), "handed out although it was leaving", shown, job)
        check(job.state(self.now_ms) != "leased", "handed out while somebody holds it", shown, job)
        check(job.state(self.now_ms) != "delayed", "handed out before it was due", shown, job)
        check(shown["deliveries"] == job.deliveries + 1, "deliveries", shown, job)
        check(all(shown["lease_id"] != held.token for held in self.history), "a token twice", shown)
        if now_ms is not None:
            check(shown["deadline"] == now_ms + lease_ms, "deadline", shown)
        for other in self.jobs.values():
            if other.group is not None and other.group == job.group and other.seq is not None:
                check(
                    other.seq >= job.seq or self._is_gone(other),
                    "not in the order of its group",
                    shown,
                    other,
                )
        lease = Lease(node, shown["lease_id"], shown["deadline"])
        job.lease, job.due_ms, job.deliveries = lease, 0, shown["deliveries"]
        job.retried = False
        job.leaving = "" if job.leaving == "bury" else job.leaving
        if entry is not None:
            self._note_lease(job, entry, lease, job.deliveries)
        self.history.append(Held(job.number, shown["$seq"], node, shown["lease_id"]))

    def _note_lease(self, job: ModelJob, entry: Entry | None, lease: Lease, deliveries: int) -> None:
        assert entry is not None
        job.steps.append(
            (entry, lambda stored: stored and replace(stored, due_ms=0, lease=lease, deliveries=deliveries))
        )

    def _note_burial(self, job: ModelJob) -> None:
        job.leaving = "bury"

    def decide(
        self, op: int, held: Sequence[Held], *, fenced: bool, wait: str, delay_ms: int = 0, lease_ms: int = 0
    ) -> None:
        """Ack, nack or extend leases that this client remembers, whether it still has them or not."""
        node = held[0].node
        held = list({each.seq: each for each in held if each.node == node}.values())
        now_ms = self.now_ms
        exact = not self.faulty
        shown = [{"$seq": each.seq, "lease_id": each.token} for each in held]
        fields = (
            {"delay_ms": delay_ms} if op == Op.NACK else {"lease_ms": lease_ms} if op == Op.EXTEND else {}
        )
        call = self.submit(op, QUEUE, decision(node, shown, fenced=fenced, **fields))
        if call is None:
            return
        if call.answer is not None and call.answer.status == 503:
            check(self.faulty, "refused although the disk is well", call.answer)
            self.take_answers()
            return
        self._undo_failed()  # it may have let go first what was staged before, and that may have failed
        topic = self.driver.topic(QUEUE)
        allowed = []
        for each in held:
            job = self.by_seq(each.seq)
            token = each.token if fenced else None
            if job is None or job.leaving == "removed" or not job.holds(node, token, now_ms):
                continue
            # Expired, and still there while the frame that says so waits for its sync, or if the log refused it:
            # until it is gone, its holder decides about it.
            if not self._has_expired(job) or topic.next_live(each.seq) == each.seq:
                allowed.append(job)
        logged = op == Op.ACK or self.config.leases_durable or (op == Op.NACK and delay_ms)
        entry = self._entry(call) if logged and allowed else None
        due_ms = now_ms + delay_ms if delay_ms else 0
        leases = {job.number: job.lease for job in allowed}
        for job in allowed:
            self._begin(op, job, entry, due_ms, now_ms + lease_ms)

        def answered(answer: Answer) -> None:
            failed = self._failed(answer)
            for job in allowed:
                if failed:
                    assert entry is not None
                    job.forget(entry)
                    if (
                        op == Op.EXTEND
                        and job.lease is not None
                        and job.lease.token == leases[job.number].token
                    ):  # type: ignore[union-attr]
                        job.lease = leases[job.number]
                    elif job.leaving in ("ack", "nack"):
                        job.leaving = ""
                elif op == Op.ACK:
                    self._finish(job)
                elif op == Op.NACK and job.leaving in ("", "nack"):
                    job.lease, job.due_ms, job.leaving = None, due_ms, ""
            if failed:
                return
            name = {Op.ACK: "acked", Op.NACK: "nacked", Op.EXTEND: "extended"}[op]
            found = answer.json
            check(found[name] + found["skipped"] == len(held), "counts of a decision", found, held)
            if exact:
                check(found[name] == len(allowed), "only the newest lease decides", found, held, self.jobs)
            else:
                check(found[name] <= len(allowed), "only the newest lease decides", found, held, self.jobs)
            if op == Op.EXTEND:
                check(set(found["deadlines"].values()) <= {now_ms + lease_ms}, "deadlines", found)

        self.follow(call, wait, answered)

    def _begin(self, op: int, job: ModelJob, entry: Entry | None, due_ms: int, deadline_ms: int) -> None:
        """What the decision means from now on, and what the log will say."""
        assert job.lease is not None
        if op == Op.ACK:
            job.leaving = "ack"
            job.steps.append((entry, _gone))  # type: ignore[arg-type]
        elif op == Op.NACK:
            if entry is None:
                job.lease, job.due_ms = None, 0
                return
            job.leaving = "nack"
            job.steps.append((entry, lambda stored: stored and replace(stored, lease=None, due_ms=due_ms)))
        else:
            job.lease = replace(job.lease, deadline_ms=deadline_ms)
            if entry is not None:
                self._note_lease(job, entry, job.lease, job.deliveries)

    def _finish(self, job: ModelJob) -> None:
        """Acked: if its frame can still be lost it may return, otherwise it is done."""
        entry = job.steps[-1][0]
        if self.config.durability == "fsync":
            check(entry.synced, "an ack was answered before its sync", job)
        job.leaving = "removed"

    def cancel_one(self) -> None:
        """A client that waits for jobs goes away."""
        for place, each in enumerate(list(self.open)):
            if each.waiting_claim and each.call.answer is None:
                ids = [id_ for id_, call in self.driver._sink.calls.items() if call is each.call]
                self.open.remove(each)
                self.driver.submit(Op.CANCEL, "", None, {"id": ids[0]})
                if each.call.answer is None:
                    # It has its jobs already, and they are being written down: before those of whoever came later.
                    self.open.insert(place, each)
                return

    # --- dead letters -----------------------------------------------------------------------------------

    def _dead_letters(self) -> list[int]:
        """Those that nobody has moved back. A letter may be there again after it was, if a crash loses its removal: as
        with an ack, in a queue that does not sync, or before anybody was answered. Its job has a life of its own by
        then, and may even die again, which makes a letter of its own: one per move. The old one only goes away."""
        return [number for seq, number in self.driver.peek(DEAD).items() if seq not in self.sent_back]

    def _take_in_moves(self) -> None:
        """Burials that came to an end, one way or the other. Looks at the queue's own state."""
        if self.dying:
            self._take_in_late_letters()
        if not any(job.leaving == "bury" or job.deliveries for job in self.jobs.values()):
            return
        topic, queue = self.driver.topic(QUEUE), self.driver.queue(QUEUE)
        for job in list(self.jobs.values()):
            if job.seq is None or job.leaving not in ("", "bury"):
                continue
            if topic.next_live(job.seq) != job.seq:
                limit_was_met = job.leaving == "bury" or (job.deliveries and not self.predictable)
                if limit_was_met and not self._has_expired(job) and job.number in self._dead_letters():
                    self.dead.add(job.number)
                    entry = self._entry()
                    # The removal of an fsync queue is not applied before it is synced.
                    entry.synced = self.config.durability == "fsync"
                    self._remove(job, entry)
                continue
            kept = queue.jobs.get(job.seq)
            if kept is not None and kept.state is JobState.LEAVING and job.deliveries:
                job.leaving = "bury"  # somebody who waited has set that off, or gets it; the end will show it
            if self.faulty and kept is not None and kept.state in (JobState.READY, JobState.BLOCKED):
                # It was no burial but a claim of durable leases, and the log refused those.
                job.leaving = ""
            if kept is None or kept.state is not JobState.DELAYED or kept.due_ms <= self.now_ms:
                continue
            if job.leaving == "bury" or (not self.predictable and job.state(self.now_ms) == "ready"):
                job.leaving, job.due_ms, job.lease, job.retried = "", kept.due_ms, None, True

    def _take_in_late_letters(self) -> None:
        """A job that expired or was deleted on its way is gone from the queue, and arrives all the same."""
        arrived = self.dying & set(self._dead_letters())
        self.dying -= arrived
        self.done -= arrived
        self.dead |= arrived

    def _let_go(self) -> None:
        """Jobs whose removal can no longer be lost."""
        for job in list(self.jobs.values()):
            if job.leaving == "removed" and job.steps and job.steps[-1][0].synced:
                self._end(job)

    def redrive(self, limit: int) -> None:
        self.settle()
        if not self.predictable or any(number in self.jobs for number in self._dead_letters()):
            return  # a letter that is in both places is first seen through by its burial
        chosen = list(self.driver.peek(DEAD).items())[: limit or None]
        fresh = {number: seq for seq, number in chosen if seq not in self.sent_back}
        now_ms = self.now_ms
        call = self.submit(Op.REDRIVE, DEAD, {"from": DEAD, "limit": limit}, {"to": QUEUE})
        if call is None:
            return
        entry = self._entry()
        self.moving_back = fresh
        for number in fresh:
            # Its tag goes with it; what its writer asked of the queue does not.
            job = ModelJob(number, now_ms, 0, None, self.tags[number], 0)
            job.steps.append((entry, lambda _: Stored()))
            self.jobs[number] = job

        def answered(answer: Answer) -> None:
            self.moving_back = {}
            moved, came = chosen, fresh
            while 0 < self.config.cap_records < len(came):
                # More at once than the queue may hold: half of them are tried, and the others stay where they are.
                moved = moved[: len(moved) // 2]
                came = {number: seq for seq, number in moved if number in fresh}
            for number in fresh.keys() - came.keys():
                del self.jobs[number]
            check(answer.ok and answer.json["moved"] == len(moved), "redriven", answer, chosen, moved)
            self.dead -= came.keys()
            self._note_sent_back([seq for seq, _ in moved], call)
            seqs = {number: seq for seq, number in self.driver.peek(QUEUE).items()}
            for number in came:
                job = self.jobs[number]
                check(number in seqs, "redriven to nowhere", number)
                job.seq = seqs[number]
                entry.call = call
            self._hold_cap(entry)

        self.follow(call, "answered", answered)

    def _note_sent_back(self, seqs: Iterable[int], call: Call) -> None:
        entry = self._entry(call)
        entry.synced = self.config.durability == "fsync"
        for seq in seqs:
            self.sent_back[seq] = entry
            self.stale.discard(seq)

    def _judge_sent_back(self, *, power_lost: bool) -> None:
        there = self.driver.peek(DEAD)
        for seq, entry in self.sent_back.items():
            sure = entry.synced or (entry.written and not power_lost)
            if seq in there:
                check(seq in self.stale or not sure, "a letter that was moved back is there again", seq)
                self.stale.add(seq)
            else:
                self.stale.discard(seq)
                entry.synced = True

    # --- looking at everything --------------------------------------------------------------------------

    def check_everything(self) -> None:
        was_faulty = self.faulty
        if self.driver.engine.commits.read_only is None:
            self.guard(lambda: self.driver.counts(QUEUE))
        if was_faulty and not self.faulty:
            # What failed may have been the frame of this very sweep: it is tried again by whoever looks next.
            self.guard(lambda: self.driver.counts(QUEUE))
        self.take_answers()
        self._take_in_expiry()
        self.driver.check_queue(QUEUE)
        now_ms = self.now_ms
        topic, queue = self.driver.topic(QUEUE), self.driver.queue(QUEUE)
        records = {number: seq for seq, number in self.driver.peek(QUEUE).items()}
        check(len(records) == topic.count, "a job is there twice", records, topic)
        check(not self.done & records.keys(), "an acked job is there", self.done & records.keys())
        letters = self._dead_letters()
        check(len(letters) == len(set(letters)), "a letter twice", letters)
        back = self.driver.peek(DEAD).keys() & self.sent_back.keys()
        check(back == self.stale, "a letter that was moved back is there again", back, self.stale)
        check(self.dead <= set(letters), "a dead job is nowhere", self.dead, letters)
        for job in list(self.jobs.values()):
            if self._is_gone(job):
                present = job.number in records and not self.faulty
                check(not present or self.expiring, "a removed job is there", job)
                continue
            if job.seq is None:
                continue
            check(
                records.get(job.number) == job.seq or job.number in letters, "a job is nowhere", job, records
            )
            entry = queue.jobs.get(job.seq)
            actual = JobState.READY if entry is None else entry.state
            state = job.state(now_ms)
            allowed: tuple[JobState, ...] = {
                "ready": (JobState.READY, JobState.BLOCKED),
                "delayed": (JobState.DELAYED,),
                "leased": (JobState.LEASED,),
                "leaving": (JobState.LEAVING,),
            }[state]
            if not self.predictable:
                allowed += (JobState.LEAVING, JobState.DELAYED)
            check(actual in allowed or job.number in letters, "state", job, state, entry)
            if state == "leased" and entry is not None and job.lease is not None:
                check(
                    (entry.token_of(job.seq), entry.deadline_ms) == (job.lease.token, job.lease.deadline_ms),
                    "lease",
                    job,
                    entry,
                )
            if entry is not None and not job.leaving:
                check(entry.deliveries == job.deliveries, "deliveries", job, entry)
        strangers = records.keys() - self.jobs.keys()
        check(not strangers, "a job that nobody wrote", strangers)

    # --- crashes ----------------------------------------------------------------------------------------

    def kill(self) -> None:
        self.disk.kill_process()
        self.recover(power_lost=False)

    def lose_power(self, seed: int, keep: Keep) -> None:
        self.disk.lose_power(seed, keep)
        self.recover(power_lost=True)

    def recover(self, *, power_lost: bool) -> None:
        self.take_answers_of_the_dead()
        self.disk.clear_faults()
        self.driver.reopen()
        check(not self.driver.shard.report.damage, "damage", self.driver.shard.report.damage)
        self.driver.counts(QUEUE)
        self.driver.check_queue(QUEUE)
        found = self.driver.peek(QUEUE)
        records = {number: seq for seq, number in found.items()}
        self._judge_sent_back(power_lost=power_lost)
        self._take_in_late_letters()
        self.dying = set()  # what has not arrived now never does
        letters = self._dead_letters()
        check(len(records) == len(found), "a job is there twice", found)
        check(len(letters) == len(set(letters)), "a letter twice", letters)
        check(records.keys() <= self.jobs.keys(), "acked, deleted or never written", records, self.done)
        check(
            self.dead - self.moving_back.keys() <= set(letters), "a dead job is nowhere", self.dead, letters
        )
        for number in self.moving_back:
            check(number in letters or number in records, "a letter was lost on its way back", number)
        self._capped = set()
        if self._unheard and 0 < self.config.cap_records == len(records):
            first = min(records.values())
            self._capped = {
                job.number for job in self.jobs.values() if job.seq is not None and job.seq < first
            }
        for job in list(self.jobs.values()):
            self._judge(job, records, letters, power_lost=power_lost)
        self.dead = {number for number in letters if number not in self.jobs}
        self.faulty = False
        if self.moving_back.keys() & set(letters) & records.keys():
            self._repeat_redrive()
        else:
            for number, seq in self.moving_back.items():
                if number not in letters:
                    self.sent_back[seq] = Entry(synced=True)
        self.moving_back = {}
        self.check_everything()

    def _repeat_redrive(self) -> None:
        """Who was not answered asks again: the letters go, and their jobs are not doubled."""
        before = self.driver.peek(QUEUE)
        chosen = [seq for seq in self.driver.peek(DEAD) if seq <= max(self.moving_back.values())]
        call = self.driver.start_redrive(DEAD, QUEUE, limit=len(chosen))
        self.driver.finish(call)
        answer = call.answer
        assert answer is not None
        check(
            answer.ok and answer.json["moved"] == len(chosen), "a redrive that was repeated", answer, chosen
        )
        check(self.driver.peek(QUEUE) == before, "a redrive that was repeated doubled jobs", before)
        check(not self.driver.peek(DEAD).keys() & set(chosen), "letters that were moved are still there")
        self._note_sent_back(chosen, call)

    def take_answers_of_the_dead(self) -> None:
        """Answers that were given in the last moment count; nobody looks at the process any more."""
        for each in sorted(self.open, key=lambda each: each.waiting_claim):
            answer = each.call.answer
            if answer is not None and answer.ok and each.call.op != Op.REDRIVE:
                each.on_answer(answer)
        growing = (Op.APPEND, Op.PUT_TOPIC, Op.REDRIVE)
        self._unheard = any(each.call.op in growing and each.call.answer is None for each in self.open)
        self._claimers = {each.claimer for each in self.open if each.claimer and each.call.answer is None}
        self.open = []
        self.entries = []
        self._being_synced = []

    def _judge(
        self, job: ModelJob, records: dict[int, int], letters: Iterable[int], *, power_lost: bool
    ) -> None:
        outcomes = job.outcomes(power_lost=power_lost)
        buried = job.number in letters
        if job.number not in records:
            allowed = None in outcomes or self._has_expired(job) or buried or job.number in self._capped
            check(allowed, "a job is lost", job, outcomes)
            if not buried and all(outcome is None for outcome in outcomes) and job.seq is not None:
                self.done.add(job.number)  # or deleted: it never returns
            del self.jobs[job.number]
            return
        check(
            any(outcome is not None for outcome in outcomes),
            "a job returned that was acked, deleted or refused",
            job,
        )
        seq = records[job.number]
        check(job.seq in (None, seq), "another seq", job, seq)
        entry = self.driver.queue(QUEUE).jobs.get(seq)
        state = JobState.READY if entry is None else entry.state
        leased = None if entry is None or state is not JobState.LEASED else entry
        if not self.toggled:
            fits = [
                outcome
                for outcome in outcomes
                if outcome is not None and self._fits(job, outcome, entry, state)
            ]
            check(fits, "what was written says otherwise", job, outcomes, entry)
        job.seq, job.leaving = seq, ""
        job.lease = None if leased is None else Lease(leased.node, leased.token_of(seq), leased.deadline_ms)
        job.due_ms = entry.due_ms if entry is not None and state is JobState.DELAYED else 0
        job.deliveries = 0 if entry is None else entry.deliveries
        job.base = Stored(job.due_ms, job.lease, job.deliveries)
        job.steps = []
        if leased is not None:
            self._remember(job, leased.node, leased.token_of(seq))

    def _fits(self, job: ModelJob, outcome: Stored, entry: Any, state: JobState) -> bool:
        now_ms = self.now_ms
        deliveries = 0 if entry is None else entry.deliveries
        if self.config.leases_durable and entry is not None and entry.node in self._claimers:
            known = any(held.token == entry.token for held in self.history)
            if not known and deliveries == outcome.deliveries + 1:
                return True
        lease = outcome.lease if self.config.leases_durable else None
        if self.config.leases_durable:
            if deliveries != outcome.deliveries:
                return False
        elif deliveries > job.deliveries:
            return False
        if lease is not None and lease.deadline_ms > now_ms:
            return (
                state is JobState.LEASED
                and (entry.node, entry.deadline_ms) == (lease.node, lease.deadline_ms)
                and lease.token in (None, entry.token)
            )
        if job.retried and state is JobState.DELAYED:
            return True  # a snapshot took that with it
        if outcome.due_ms > now_ms:
            return state is JobState.DELAYED and entry.due_ms == outcome.due_ms
        return state in (JobState.READY, JobState.BLOCKED)

    def _remember(self, job: ModelJob, node: str, token: str) -> None:
        """A lease whose answer the crash swallowed: its client may turn up all the same."""
        if all(held.token != token for held in self.history):
            assert job.seq is not None
            self.history.append(Held(job.number, job.seq, node, token))

    # --- the end ----------------------------------------------------------------------------------------

    def check_all_can_be_claimed(self) -> None:
        """Every job that was not acked, dead or deleted is handed out in the end."""
        self.disk.clear_faults()
        self.tick()
        self.configure(ttl_ms=0, max_deliveries=0)
        for each in list(self.open):
            if each.waiting_claim:
                self.cancel_one()
        self.settle()
        self.driver.clock.advance(20 * 86_400_000)
        self.tick()
        self.settle()
        self.check_everything()
        wanted = {job.number for job in self.jobs.values() if not self._is_gone(job)}
        found: set[int] = set()
        while True:
            before = len(self.history)
            self.claim("last", 1000, 60_000)
            new = self.history[before:]
            if not new:
                break
            found |= {held.number for held in new}
            self.decide(Op.ACK, new, fenced=True, wait="answered")
        self.settle()
        letters = set(self._dead_letters())
        check(wanted <= found | letters, "a job never returned", wanted - found)
        check(found <= wanted, "a job too many", found - wanted)
        check(self.driver.topic(QUEUE).count == 0, "left over", self.driver.topic(QUEUE))
