"""The jobs of one queue: who may have which, until when, and in what order. No clock, disk or socket.

A job is a live record of the topic. Most jobs have no entry here: a *fresh* job is any live record at or behind
`_fresh_from` without one, so a backlog of millions costs nothing. An entry exists while a job is leased, delayed,
or has been delivered before, and from the start for jobs written with a delay, a priority or a group. Plain jobs
that were written at the same time and are handed out together share one entry, until something happens to one of
them alone: a claim or an ack of a hundred jobs is then about as much work as one of a single job. Such neighbours
are spoken of as a *stretch*, their first and last seq.

L1 a live job is in exactly one of: ready, delayed, leased. Acked and dead ones are not live.
L2 only the newest lease of a job may ack, nack or extend it.
L3 of a group only the oldest job that is not done can be handed out.
L4 ready + leased + delayed = count of the topic.
(tests/model/test_queue_model.py)

Order: by `key`, the time of writing less AGING_MS per point of priority, then by seq. A job gains on higher
priorities as it waits, so nothing starves; jobs that come back are older than fresh ones and so go first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush

import msgspec

from shard_worker.core.job import Job, JobState
from shard_worker.core.lease_tokens import token_of, tokens_are
from shard_worker.core.piece import PieceSource
from shard_worker.core.stretches import Stretch, stretches_of
from shard_worker.core.topic import Topic
from shared.control_frames import LeaseRow
from shared.errors import DataDamage

AGING_MS = 1000  # of waiting that outweigh one point of priority
_CLEAN_AT = 256  # ends of leases to look at again, before that is worth a pass over all


class JobSpec(msgspec.Struct, frozen=True):
    """What a writer asked for a job: None or 0 where it did not."""

    deliver_at_ms: int = 0
    priority: int = 0
    group: str | None = None


class LeaseQueue:
    __slots__ = (
        "_delayed",
        "_fresh_from",
        "_groups",
        "_leased",
        "_leases",
        "_over",
        "_ready",
        "_seen_removals",
        "_waiting",
        "dead_lettered",
        "jobs",
    )

    def __init__(self) -> None:
        self.jobs: dict[int, Job] = {}
        self._fresh_from = 1
        self._ready: list[tuple[int, int]] = []  # heap of (key, seq); entries may be stale
        self._delayed: list[tuple[int, int]] = []  # heap of (due, seq); entries may be stale
        self._leases: list[tuple[int, int, int]] = []  # heap of (deadline, stretch); entries may be stale
        self._over = 0  # leases that ended since the stale entries of `_leases` were last thrown out
        self._groups: dict[str, deque[int]] = {}  # jobs of a group that are not done, oldest first
        self._leased = 0
        self._waiting = 0  # number of delayed jobs
        self._seen_removals = 0
        self.dead_lettered = 0

    # --- counting ---------------------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        return self._leased

    @property
    def delayed(self) -> int:
        return self._waiting

    def ready(self, topic: Topic) -> int:
        return topic.count - self._leased - self._waiting

    # --- time and removals ------------------------------------------------------------------------------

    def settle(self, topic: Topic, now_ms: int) -> None:
        """Take in what happened since: records removed by others, leases that ran out, delays that are over."""
        if topic.removals != self._seen_removals:
            self._seen_removals = topic.removals
            for seq in [seq for seq in self.jobs if not topic.is_live(seq)]:
                self.forget(seq)
        while self._leases and self._leases[0][0] <= now_ms:
            _, first, last = heappop(self._leases)
            for seq in range(first, last + 1):
                job = self.jobs.get(seq)
                if job is not None and job.state is JobState.LEASED and job.deadline_ms <= now_ms:
                    self._leased -= 1
                    self._make_ready(seq, self._own(seq, job))
        while self._delayed and self._delayed[0][0] <= now_ms:
            due, seq = heappop(self._delayed)
            job = self.jobs.get(seq)
            if job is not None and job.state is JobState.DELAYED and job.due_ms == due:
                self._waiting -= 1
                self._make_ready(seq, job)

    def in_step(self, topic: Topic) -> bool:
        """Has every removal from the topic been taken in?"""
        return self._seen_removals == topic.removals

    def keep_step(self, topic: Topic) -> None:
        """The last removals were this queue's own: no need to look through all jobs for them."""
        self._seen_removals = topic.removals

    def next_change_ms(self) -> int | None:
        """When a job may become ready by itself."""
        times = [heap[0][0] for heap in (self._leases, self._delayed) if heap]
        return min(times, default=None)

    # --- jobs come --------------------------------------------------------------------------------------

    def add(self, seq: int, ts: int, spec: JobSpec) -> None:
        """A job was written that is not plain."""
        if seq in self.jobs:
            return
        job = Job(ts - spec.priority * AGING_MS, group=spec.group)
        self.jobs[seq] = job
        if spec.group is not None:
            self._groups.setdefault(spec.group, deque()).append(seq)
        if spec.deliver_at_ms > ts:
            self._delay(seq, job, spec.deliver_at_ms)
        else:
            self._make_ready(seq, job)

    def _make_ready(self, seq: int, job: Job) -> None:
        if job.group is not None and self._groups[job.group][0] != seq:
            job.state = JobState.BLOCKED
            return
        job.state = JobState.READY
        heappush(self._ready, (job.key, seq))

    def _delay(self, seq: int, job: Job, due_ms: int) -> None:
        job.state, job.due_ms = JobState.DELAYED, due_ms
        self._waiting += 1
        heappush(self._delayed, (due_ms, seq))

    # --- entries that jobs share ------------------------------------------------------------------------

    def _part(self, first: int, last: int) -> Job:
        """The entry of these neighbours, who share one, and of nobody else from here on."""
        job = self.jobs[first]
        if not job.shared or (job.first == first and job.last == last):
            return job
        if first == last:
            return self._own(first, job)
        part = job.for_stretch(first, last)
        job.sharers -= last - first + 1
        self._enter(first, last, part)
        return part

    def _enter(self, first: int, last: int, job: Job) -> None:
        jobs = self.jobs
        for seq in range(first, last + 1):
            jobs[seq] = job

    def _own(self, seq: int, job: Job) -> Job:
        """The entry of this job alone."""
        if not job.shared:
            return job
        own = self.jobs[seq] = job.for_stretch(seq, seq)
        job.sharers -= 1
        return own

    def _share(self, job: Job, first: int, last: int) -> bool:
        """Is this the entry of all of them?"""
        if not (job.first <= first and last <= job.last):
            return False
        if job.sharers == job.last - job.first + 1:
            return True  # nothing has happened to any one of them
        jobs = self.jobs
        return all(jobs.get(seq) is job for seq in range(first, last + 1))

    # --- handing out ------------------------------------------------------------------------------------

    def take(self, topic: Topic, wanted: int, source: PieceSource) -> list[Stretch]:
        """Up to `wanted` ready jobs in order of their keys; call `settle` first. They must be leased next.

        The jobs of a stretch share an entry.
        """
        taken: list[Stretch] = []
        hot = topic.hot
        fresh = self._next_fresh(topic)
        while wanted > 0:
            while self._ready and not self._is_ready(self._ready[0]):
                heappop(self._ready)
            written_ms, index = 0, -1
            if fresh is not None:
                index = hot.find(fresh)
                written_ms = hot.ts[index] if index >= 0 else written_at(topic, fresh, source)
            if self._ready and (fresh is None or self._ready[0] < (written_ms, fresh)):
                seq = heappop(self._ready)[1]
                self.jobs[seq].state = JobState.LEAVING
                taken.append((seq, seq))
                wanted -= 1
            elif fresh is not None:
                last = fresh
                if index >= 0 and wanted > 1:
                    last = self._run_end(topic, index, fresh, wanted, written_ms)
                self._take_run(fresh, last, written_ms)
                taken.append((fresh, last))
                wanted -= last - fresh + 1
                if wanted > 0:
                    fresh = self._next_fresh(topic)
            else:
                break
        return taken

    def _run_end(self, topic: Topic, index: int, first: int, wanted: int, written_ms: int) -> int:
        """The last of up to `wanted` seqs from `first`, in the hot batch `index`, that were written together, are all
        live and have no entry."""
        hot = topic.hot
        most = first + wanted - 1
        last = min(most, hot.last_of(index))
        while last < most and index + 1 < len(hot.first):
            index += 1
            if hot.first[index] != last + 1 or hot.ts[index] != written_ms:
                break
            last = min(most, hot.last_of(index))
        if self._ready and self._ready[0][0] == written_ms:
            last = min(last, self._ready[0][1] - 1)  # written with them, and its turn comes between them
        while topic.live_between(first, last) != last - first + 1:
            last = (first + last) // 2
        jobs = self.jobs
        for seq in range(first + 1, last + 1):
            if seq in jobs:
                return seq - 1
        return last

    def _take_run(self, first: int, last: int, written_ms: int) -> None:
        if first == last:
            self.jobs[first] = Job(written_ms, JobState.LEAVING)
        else:
            self._enter(first, last, Job(written_ms, JobState.LEAVING, first=first, last=last))
        self._fresh_from = last + 1

    def _is_ready(self, entry: tuple[int, int]) -> bool:
        job = self.jobs.get(entry[1])
        return job is not None and job.state is JobState.READY and job.key == entry[0]

    def _next_fresh(self, topic: Topic) -> int | None:
        seq = topic.next_live(self._fresh_from)
        while seq in self.jobs:
            seq = topic.next_live(seq + 1)
        self._fresh_from = seq
        return seq if seq <= topic.head else None

    def has_ready(self, topic: Topic) -> bool:
        while self._ready and not self._is_ready(self._ready[0]):
            heappop(self._ready)
        return bool(self._ready) or self._next_fresh(topic) is not None

    def lease(
        self, first: int, last: int, node: str, prefix: str, number: int, deadline_ms: int, ts: int
    ) -> None:
        """A stretch that was taken is leased, one more delivery for each; tokens are `prefix` and a number."""
        job = self._part(first, last)
        job.state = JobState.LEASED
        job.deliveries += 1
        job.node, job.deadline_ms, job.leased_ms = node, deadline_ms, ts
        if first == last:
            job.token = token_of(prefix, number)
        else:
            job.token, job.number = prefix, number
        self._leased += last - first + 1
        heappush(self._leases, (deadline_ms, first, last))

    def apply_leases(self, grants: Iterable[LeaseRow], ts: int, written_at: Callable[[int], int]) -> None:
        """New leases, or other deadlines of those that are held. The same again changes nothing.

        `written_at` is asked for jobs that are not known yet.
        """
        jobs = self.jobs
        began: dict[int, list[int]] = {}  # by deadline: one for all that were claimed together
        for seq, token, deadline_ms, deliveries, node in grants:
            job = jobs.get(seq)
            job = Job(written_at(seq)) if job is None else self._own(seq, job)
            jobs[seq] = job
            if job.token == token:
                # Given back or on its way out by now: then a later deadline does not bring the lease back.
                self.set_deadline(seq, token, deadline_ms)
                continue
            if job.state is JobState.DELAYED:
                self._waiting -= 1
            if job.state is not JobState.LEASED:
                self._leased += 1
            job.state, job.deliveries = JobState.LEASED, deliveries
            job.node, job.token, job.deadline_ms, job.leased_ms = node, token, deadline_ms, ts
            began.setdefault(deadline_ms, []).append(seq)
        for deadline_ms, seqs in began.items():
            for first, last in stretches_of(seqs):
                heappush(self._leases, (deadline_ms, first, last))

    def set_deadline(self, seq: int, token: str, deadline_ms: int) -> None:
        """Of a lease that has not ended yet; otherwise nothing happens."""
        job = self.jobs.get(seq)
        if job is None or job.deadline_ms == deadline_ms or job.token_of(seq) != token:
            return
        job = self._own(seq, job)
        if job.state in (JobState.LEASED, JobState.LEAVING):
            job.deadline_ms = deadline_ms
        if job.state is JobState.LEASED:
            self._note_over()
            heappush(self._leases, (deadline_ms, seq, seq))

    # --- the holder's word ------------------------------------------------------------------------------

    def held_by(self, seq: int, node: str, token: str | None) -> bool:
        """May `node` (showing `token`, if it has one) still decide about this job?"""
        job = self.jobs.get(seq)
        return (
            job is not None
            and job.state is JobState.LEASED
            and job.node == node
            and (token is None or token == job.token_of(seq))
        )

    def held(self, seqs: list[int], node: str, tokens: list[str] | None) -> list[Stretch]:
        """Those of `seqs`, all different, about which `node` may decide. The jobs of a stretch share an entry."""
        found: list[Stretch] = []
        at, count = 0, len(seqs)
        while at < count:
            first = last = seqs[at]
            job = self.jobs.get(first)
            if job is not None and job.shared:
                last = self._held_together(job, seqs, at, node, tokens)
            if last > first or self.held_by(first, node, None if tokens is None else tokens[at]):
                found.append((first, last))
            at += last - first + 1
        return found

    def _held_together(self, job: Job, seqs: list[int], at: int, node: str, tokens: list[str] | None) -> int:
        """Up to which seq those from `seqs[at]` on are neighbours who share the entry, and held; at least that one."""
        first = seqs[at]
        last = min(job.last, first + len(seqs) - at - 1)
        upto = at + last - first + 1
        if job.state is not JobState.LEASED or job.node != node or seqs[upto - 1] != last:
            return first
        for place in range(at + 1, upto - 1):
            if seqs[place] - first != place - at:
                return first
        if not self._share(job, first, last):
            return first
        if tokens is not None:
            shown = tokens if upto - at == len(tokens) else tokens[at:upto]
            if not tokens_are(shown, job.token, job.number + first - job.first):
                return first
        return last

    def leave(self, first: int, last: int) -> None:
        """The ack or move of these, who share an entry, is on its way: nobody else gets them meanwhile."""
        job = self._part(first, last)
        if job.state is JobState.LEASED:
            self._leased -= last - first + 1
            self._note_over()
        job.state = JobState.LEAVING

    def _note_over(self) -> None:
        """Of leases that ended before their time entries stay behind; there must not be ever more of them."""
        self._over += 1
        if self._over >= _CLEAN_AT and self._over * 2 >= len(self._leases):
            self._over = 0
            self._leases = [
                (deadline_ms, first, last)
                for deadline_ms, first, last in self._leases
                if self._holds(deadline_ms, first, last)
            ]
            heapify(self._leases)

    def _holds(self, deadline_ms: int, first: int, last: int) -> bool:
        """May leases of this stretch end then?"""
        jobs = self.jobs
        for seq in range(first, last + 1):
            job = jobs.get(seq)
            if job is not None and job.state is JobState.LEASED and job.deadline_ms == deadline_ms:
                return True
        return False

    def stay(self, seq: int) -> None:
        """What `leave` announced did not happen."""
        self._make_ready(seq, self._own(seq, self.jobs[seq]))

    def keep(self, first: int, last: int) -> None:
        """What the holder of a stretch decided could not be written down: the lease is what it was."""
        for seq in range(first, last + 1):
            job = self.jobs.get(seq)
            if job is not None and job.state is JobState.LEAVING:
                self._own(seq, job).state = JobState.LEASED
                self._leased += 1
                heappush(self._leases, (job.deadline_ms, seq, seq))

    def withhold(self, seq: int, written_ms: int) -> None:
        """The record is being moved elsewhere: nobody can claim it meanwhile."""
        job = self.jobs.get(seq)
        if job is None:
            job = self.jobs[seq] = Job(written_ms)
        job = self._own(seq, job)
        if job.state is JobState.DELAYED:
            self._waiting -= 1
        job.state = JobState.LEAVING

    def release(self, seq: int, now_ms: int, due_ms: int) -> None:
        """Back to ready, or to delayed if `due_ms` lies ahead."""
        job = self.jobs.get(seq)
        if job is None:
            return
        job = self._own(seq, job)
        if job.state is JobState.LEASED:
            self._leased -= 1
            self._note_over()
        elif job.state is JobState.DELAYED:
            self._waiting -= 1
        if due_ms > now_ms:
            self._delay(seq, job, due_ms)
        else:
            self._make_ready(seq, job)

    def apply_release(self, seq: int, ts: int, due_ms: int, written_ms: int) -> None:
        """A release that the log holds, whether its lease is known here or not."""
        if seq not in self.jobs:
            self.jobs[seq] = Job(written_ms)
        self.release(seq, ts, due_ms)

    def forget(self, seq: int) -> None:
        """The job is done, dead or deleted; the next of its group may go."""
        job = self.jobs.pop(seq, None)
        if job is None:
            return
        job.sharers -= 1
        if job.state is JobState.LEASED:
            self._leased -= 1
        elif job.state is JobState.DELAYED:
            self._waiting -= 1
        if job.group is None:
            return
        members = self._groups[job.group]
        was_first = members[0] == seq
        members.remove(seq)
        if not members:
            del self._groups[job.group]
        elif was_first and self.jobs[members[0]].state is JobState.BLOCKED:
            self._make_ready(members[0], self.jobs[members[0]])

    def forget_all(self, first: int, last: int) -> None:
        """The same for neighbours."""
        job = self.jobs.get(first)
        if job is None or not job.shared or not self._share(job, first, last):
            for seq in range(first, last + 1):
                self.forget(seq)
            return
        jobs = self.jobs
        for seq in range(first, last + 1):
            del jobs[seq]
        job.sharers -= last - first + 1
        if job.state is JobState.LEASED:
            self._leased -= last - first + 1
            self._note_over()

    # --- restarts ---------------------------------------------------------------------------------------

    def to_snapshot(self) -> dict[str, object]:
        return {
            "dead": self.dead_lettered,
            "jobs": [
                [
                    seq,
                    job.key,
                    int(job.state),
                    job.deliveries,
                    job.due_ms,
                    job.node,
                    job.token_of(seq),
                    job.deadline_ms,
                    job.leased_ms,
                    job.group,
                ]
                for seq, job in sorted(self.jobs.items())
            ],
        }

    @classmethod
    def from_snapshot(cls, dead: int, rows: Iterable[tuple[int, Job]]) -> LeaseQueue:
        queue = cls()
        queue.dead_lettered = dead
        queue._seen_removals = -1  # records may have gone right before the snapshot: look at all jobs once
        rows = list(rows)
        for seq, job in rows:
            queue.jobs[seq] = job
            if job.group is not None:
                queue._groups.setdefault(job.group, deque()).append(seq)
        for seq, job in rows:
            if job.state is JobState.LEASED:
                queue._leased += 1
                heappush(queue._leases, (job.deadline_ms, seq, seq))
            elif job.state is JobState.DELAYED:
                queue._waiting += 1
                heappush(queue._delayed, (job.due_ms, seq))
            else:
                queue._make_ready(seq, job)
        return queue

    def drop_leases(self) -> None:
        """After a restart without durable leases: whoever held a job does not hold it any more."""
        for seq, job in list(self.jobs.items()):
            if job.state is JobState.LEASED:
                self._leased -= 1
                self._make_ready(seq, self._own(seq, job))


def written_at(topic: Topic, seq: int, source: PieceSource) -> int:
    """When the record was written."""
    hot = topic.hot
    index = hot.find(seq)
    if index >= 0:
        return hot.ts[index]
    for run in topic.runs:
        if run.first <= seq <= run.last:
            try:
                for piece in source.sealed_pieces(run.segment, topic.id, seq, seq):
                    times = piece.times
                    return times if isinstance(times, int) else times[piece.index_of(seq)]
            except DataDamage:
                return run.max_ts  # near enough to keep its place; who reads the record hears of the damage
    return topic.last_ts
