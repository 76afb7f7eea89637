"""A queue on a fake disk against a model of dicts: clients of every kind, all maintenance, crashes as rules.

The promises are checked by `CheckedQueue` (tests/support/checked_queue.py), after every step that leaves nothing
half submitted; here stand only the steps, and proof that the promises can be seen to be broken.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import Phase, event, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from shard_worker.core.lease_queue import Job, JobState, LeaseQueue
from shard_worker.core.topic import Topic
from shard_worker.moves import Moves
from shard_worker.queue_ops import QueueOps
from shared.wire import Op
from tests.support.checked_queue import CheckedQueue, Held, Violation
from tests.support.fake_disk import PowerCut
from tests.support.shard_driver import small_limits

NODES = st.sampled_from(["a", "b"])
WAITS = st.sampled_from(["answered", "answered", "committed", "staged"])
LEASES_MS = st.sampled_from([100, 1000, 5000])
SEEDS = st.integers(0, 1 << 16)
SHAPES = st.fixed_dictionaries(
    {},
    optional={
        "group": st.sampled_from(["g", "h"]),
        "priority": st.sampled_from([3, -2]),
        "delay_ms": st.sampled_from([300, 2000]),
        "tag": st.sampled_from(["x", "y"]),
    },
)
BATCHES = st.lists(SHAPES, min_size=1, max_size=5)
PICKS = st.lists(st.integers(0, 30), min_size=1, max_size=4)


class QueueMachine(RuleBasedStateMachine):
    @initialize(
        durability=st.sampled_from(["fsync", "fsync", "disk", "memory"]),
        leases_durable=st.booleans(),
        max_deliveries=st.sampled_from([0, 1, 2]),
        shapes=BATCHES,
    )
    def boot(
        self, durability: str, leases_durable: bool, max_deliveries: int, shapes: list[dict[str, Any]]
    ) -> None:
        self.limits = small_limits()
        self.limits.__enter__()
        self.queue = CheckedQueue(
            durability=durability, leases_durable=leases_durable, max_deliveries=max_deliveries
        )
        self.queue.write(shapes)

    def teardown(self) -> None:
        try:
            # Only if no step failed: its own error is the one to show.
            if hasattr(self, "queue") and sys.exc_info()[0] is None:
                self.queue.check_all_can_be_claimed()
        finally:
            self.limits.__exit__(None, None, None)

    @invariant()
    def everything_agrees(self) -> None:
        if hasattr(self, "queue") and not self.queue.half_submitted:
            self.queue.check_everything()

    # --- clients ----------------------------------------------------------------------------------------

    @rule(shapes=BATCHES)
    def write(self, shapes: list[dict[str, Any]]) -> None:
        self.queue.write(shapes)

    @rule(node=NODES, wanted=st.integers(1, 5), lease_ms=LEASES_MS, wait=WAITS)
    def claim(self, node: str, wanted: int, lease_ms: int, wait: str) -> None:
        self.queue.claim(node, wanted, lease_ms, wait)

    @rule(node=NODES, wanted=st.integers(1, 3), lease_ms=LEASES_MS)
    def wait_for_jobs(self, node: str, wanted: int, lease_ms: int) -> None:
        self.queue.claim(node, wanted, lease_ms, wait_ms=4000)

    @rule()
    def stop_waiting(self) -> None:
        self.queue.cancel_one()

    def picked(self, picks: list[int], recent: bool) -> list[Held]:
        history = self.queue.history
        # Counted from the end, so that most are still held, or were not long ago.
        found = [history[-1 - pick % min(len(history), 6 if recent else 31)] for pick in picks]
        return list(dict.fromkeys(found))

    @precondition(lambda self: self.queue.history)
    @rule(picks=PICKS, recent=st.booleans(), fenced=st.booleans(), wait=WAITS)
    def ack(self, picks: list[int], recent: bool, fenced: bool, wait: str) -> None:
        self.queue.decide(Op.ACK, self.picked(picks, recent), fenced=fenced, wait=wait)

    @precondition(lambda self: self.queue.history)
    @rule(picks=PICKS, delay_ms=st.sampled_from([0, 1, 300, 2000]), fenced=st.booleans(), wait=WAITS)
    def nack(self, picks: list[int], delay_ms: int, fenced: bool, wait: str) -> None:
        held = self.picked(picks, True)
        self.queue.decide(Op.NACK, held, fenced=fenced, wait=wait, delay_ms=delay_ms)

    @precondition(lambda self: self.queue.history)
    @rule(picks=PICKS, lease_ms=LEASES_MS, fenced=st.booleans(), wait=WAITS)
    def extend(self, picks: list[int], lease_ms: int, fenced: bool, wait: str) -> None:
        held = self.picked(picks, True)
        self.queue.decide(Op.EXTEND, held, fenced=fenced, wait=wait, lease_ms=lease_ms)

    @rule(limit=st.sampled_from([0, 1, 2]))
    def redrive(self, limit: int) -> None:
        self.queue.redrive(limit)

    # --- what happens to jobs besides -------------------------------------------------------------------

    @rule(before=st.integers(1, 20))
    def delete_before(self, before: int) -> None:
        self.queue.delete(before=before)

    @rule(tag=st.sampled_from(["x", "y"]))
    def delete_tagged(self, tag: str) -> None:
        self.queue.delete(tag=tag)

    @rule(
        changes=st.fixed_dictionaries(
            {},
            optional={
                "ttl_ms": st.sampled_from([0, 0, 3000]),
                "cap_records": st.sampled_from([0, 0, 6]),
                "max_deliveries": st.sampled_from([0, 1, 2, 3]),
            },
        )
    )
    def configure(self, changes: dict[str, Any]) -> None:
        self.queue.configure(**changes)

    @rule(durable=st.booleans())
    def configure_leases(self, durable: bool) -> None:
        self.queue.configure(leases_durable=durable)

    # --- turns and time ---------------------------------------------------------------------------------

    @rule()
    def commit(self) -> None:
        self.queue.guard(self.queue.driver.commit)

    @rule()
    def sync(self) -> None:
        self.queue.guard(self.queue.driver.sync)

    @rule(run=st.booleans())
    def begin_sync(self, run: bool) -> None:
        self.queue.guard(lambda: self.queue.driver.begin_sync(run=run))

    @rule()
    def finish_sync(self) -> None:
        self.queue.guard(self.queue.driver.finish_sync)

    @rule(ms=st.sampled_from([1, 100, 100, 500, 1000, 1000, 5000]))
    def pass_time(self, ms: int) -> None:
        self.queue.driver.clock.advance(ms)

    @rule()
    def tick(self) -> None:
        self.queue.tick()

    # --- maintenance ------------------------------------------------------------------------------------

    @rule()
    def seal(self) -> None:
        self.queue.guard(self._seal)

    def _seal(self) -> None:
        self.queue.driver.commit()
        self.queue.driver.seal()

    @rule()
    def snapshot(self) -> None:
        try:
            self.queue.guard(self.queue.driver.snapshot)
        except OSError:
            assert self.queue.faulty
            self.queue.take_answers()

    # --- crashes and faults -----------------------------------------------------------------------------

    @rule()
    def kill(self) -> None:
        self.queue.kill()

    @rule(seed=SEEDS, keep=st.sampled_from(["random", "random", "none", "all"]))
    def lose_power(self, seed: int, keep: Any) -> None:
        self.queue.lose_power(seed, keep)

    @rule(
        act=st.sampled_from(["write", "claim", "ack", "nack", "bury", "redrive", "seal", "snapshot"]),
        after=st.integers(1, 8),
        half=st.booleans(),
        seed=SEEDS,
        power=st.booleans(),
    )
    def crash_during(self, act: str, after: int, half: bool, seed: int, power: bool) -> None:
        """The n-th change of the disk from now never happens."""
        queue = self.queue
        queue.disk.clear_faults()
        queue.disk.crash_after(after, half=half, seed=seed)
        try:
            self._do(act)
            event(f"{act} went through")
        except PowerCut:
            event(f"crashed during {act}")
        if power:
            queue.lose_power(seed, "random")
        else:
            queue.kill()

    def _do(self, act: str) -> None:
        queue = self.queue
        match act:
            case "write":
                queue.write([{"group": "g"}, {}, {"delay_ms": 300}])
            case "claim":
                queue.claim("a", 3, 1000)
            case "ack" | "nack":
                queue.claim("a", 3, 1000)
                if queue.history:
                    op = Op.ACK if act == "ack" else Op.NACK
                    queue.decide(op, queue.history[-3:], fenced=True, wait="answered", delay_ms=300)
                    queue.guard(queue.driver.sync)
            case "bury":
                queue.configure(max_deliveries=1)
                queue.claim("a", 5, 100)
                queue.driver.clock.advance(100)
                queue.claim("b", 5, 100)
                queue.settle()
            case "redrive":
                queue.redrive(2)
            case "seal":
                queue.guard(self._seal)
            case "snapshot":
                self.snapshot()

    @rule(
        op=st.sampled_from(["write", "write", "allocate", "create"]),
        error=st.sampled_from([errno.EIO, errno.ENOSPC]),
        nth=st.integers(1, 2),
    )
    def fail_next(self, op: Any, error: int, nth: int) -> None:
        self.queue.disk.fail_on(op, nth, error, "/wal/")
        self.queue.faulty = True

    @rule(written=st.integers(0, 200))
    def write_short(self, written: int) -> None:
        self.queue.disk.short_write(1, written, path_contains="/wal/")
        self.queue.faulty = True

    @rule()
    def fail_sync(self) -> None:
        self.queue.disk.fail_on("sync", 1, errno.EIO, "/wal/")
        self.queue.faulty = True

    @rule()
    def heal(self) -> None:
        self.queue.disk.clear_faults()
        self.queue.tick()


TestQueue = QueueMachine.TestCase


# --- can it fail? -----------------------------------------------------------------------------------------

Patch = Callable[[pytest.MonkeyPatch], None]


def tokens_are_ignored(patch: pytest.MonkeyPatch) -> None:
    held_by = LeaseQueue.held_by
    patch.setattr(LeaseQueue, "held_by", lambda self, seq, node, token: held_by(self, seq, node, None))


def acks_do_not_wait_for_the_sync(patch: pytest.MonkeyPatch) -> None:
    stage = QueueOps._stage

    def hasty(self: QueueOps, *args: Any, durable: bool) -> None:
        stage(self, *args, durable=False)

    patch.setattr(QueueOps, "_stage", hasty)


def groups_are_ignored(patch: pytest.MonkeyPatch) -> None:
    def make_ready(self: LeaseQueue, seq: int, job: Job) -> None:
        group, job.group = job.group, None
        ready(self, seq, job)
        job.group = group

    ready = LeaseQueue._make_ready
    patch.setattr(LeaseQueue, "_make_ready", make_ready)


def dead_letters_are_removed_before_they_arrive(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Moves, "_send", lambda self, topic, target, seqs, records, done: done(True))


def moved_records_are_not_recognised(patch: pytest.MonkeyPatch) -> None:
    send = Moves._send

    def nameless(self: Moves, topic: Topic, *args: Any) -> None:
        topic.epoch += 1
        send(self, topic, *args)

    patch.setattr(Moves, "_send", nameless)


def seqs_in_holes_are_taken_for_jobs(patch: pytest.MonkeyPatch) -> None:
    def next_fresh(self: LeaseQueue, topic: Topic) -> int | None:
        seq = max(self._fresh_from, topic.live_from)
        while seq <= topic.head and (seq in self.jobs or not topic.is_live(seq)):
            seq += 1
        self._fresh_from = seq
        return seq if seq <= topic.head else None

    patch.setattr(LeaseQueue, "_next_fresh", next_fresh)


def leases_that_ran_out_are_kept(patch: pytest.MonkeyPatch) -> None:
    settle = LeaseQueue.settle

    def lazy(self: LeaseQueue, topic: Topic, now_ms: int) -> None:
        held = [job for job in self.jobs.values() if job.state is JobState.LEASED]
        for job in held:
            job.deadline_ms += 1
        settle(self, topic, now_ms)
        for job in held:
            job.deadline_ms -= 1

    patch.setattr(LeaseQueue, "settle", lazy)


SABOTAGES: list[Patch] = [
    tokens_are_ignored,
    acks_do_not_wait_for_the_sync,
    groups_are_ignored,
    dead_letters_are_removed_before_they_arrive,
    moved_records_are_not_recognised,
    seqs_in_holes_are_taken_for_jobs,
    leases_that_ran_out_are_kept,
]


@pytest.mark.parametrize("sabotage", SABOTAGES, ids=lambda sabotage: sabotage.__name__)
def test_the_machine_notices_when(sabotage: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these breaks one promise. If the machine stays green, it proves nothing."""
    sabotage(monkeypatch)
    quick = settings(phases=(Phase.generate,), report_multiple_bugs=False, database=None, max_examples=200)
    with pytest.raises((Violation, AssertionError)):
        run_state_machine_as_test(QueueMachine, settings=quick)
