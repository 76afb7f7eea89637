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

from shard_worker.core.job import Job
from shard_worker.core.lease_queue import LeaseQueue
from shard_worker.core.shard_state import ShardState
from shard_worker.core.topic import Topic
from shard_worker.lease_ops import LeaseOps
from shard_worker.moves import Moves
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

    @rule(node=NODES, shapes=BATCHES, lease_ms=LEASES_MS)
    def write_and_claim(self, node: str, shapes: list[dict[str, Any]], lease_ms: int) -> None:
        self.queue.write(shapes)
        self.queue.claim(node, 5, lease_ms)

    @rule(node=NODES, wanted=st.integers(1, 3), lease_ms=LEASES_MS)
    def wait_for_jobs(self, node: str, wanted: int, lease_ms: int) -> None:
        self.queue.claim(node, wanted, lease_ms, wait_ms=4000)

    @precondition(lambda self: self.queue.waiters)
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

    @rule()
    def wear_out_and_bury(self) -> None:
        self._do("bury")

    @precondition(lambda self: self.queue.dead)
    @rule(limit=st.sampled_from([0, 1, 2]))
    def redrive(self, limit: int) -> None:
        self.queue.redrive(limit)

    # --- what happens to jobs besides -------------------------------------------------------------------

    @rule(tag=st.sampled_from([None, None, "x", "y"]), more=st.integers(0, 2))
    def delete(self, tag: str | None, more: int) -> None:
        if tag is None:
            self.queue.delete(before=self.queue.driver.topic("q").live_from + more)
        else:
            self.queue.delete(tag=tag)

    @rule(
        changes=st.fixed_dictionaries(
            {},
            optional={
                "ttl_ms": st.sampled_from([0, 0, 3000]),
                "cap_records": st.sampled_from([0, 0, 6]),
                "max_deliveries": st.sampled_from([0, 1, 2, 3]),
                "leases_durable": st.booleans(),
            },
        )
    )
    def configure(self, changes: dict[str, Any]) -> None:
        if changes.get("leases_durable") is not None and self.queue.serial % 3:
            del changes["leases_durable"]  # seldom: what comes back of leases is not predicted from then on
        self.queue.configure(**changes)

    # --- turns and time ---------------------------------------------------------------------------------

    @rule(step=st.sampled_from(["commit", "sync", "begin", "begin and run", "finish", "tick"]))
    def turn(self, step: str) -> None:
        queue, driver = self.queue, self.queue.driver
        match step:
            case "commit":
                queue.guard(driver.commit)
            case "sync":
                queue.guard(driver.sync)
            case "begin" | "begin and run":
                queue.guard(lambda: driver.begin_sync(run=step != "begin"))
            case "finish":
                queue.guard(driver.finish_sync)
            case "tick":
                queue.tick()

    @rule(ms=st.sampled_from([1, 100, 500, 1000, 5000]))
    def pass_time(self, ms: int) -> None:
        self.queue.driver.clock.advance(ms)

    @rule(short_by=st.sampled_from([0, 0, 1]))
    def wait_for_the_next_change(self, short_by: int) -> None:
        """To the very moment at which a lease runs out or a delay is over, or right in front of it."""
        change_ms = self.queue.driver.queue("q").next_change_ms()
        if change_ms is not None:
            self.queue.driver.clock.advance(max(0, change_ms - self.queue.now_ms - short_by))

    # --- maintenance ------------------------------------------------------------------------------------

    @rule(seal=st.booleans())
    def maintain(self, seal: bool) -> None:
        self._do("seal" if seal else "snapshot")

    def _seal(self) -> None:
        self.queue.driver.commit()
        self.queue.driver.seal()

    # --- crashes and faults -----------------------------------------------------------------------------

    @rule(seed=SEEDS, keep=st.sampled_from(["killed", "random", "random", "none", "all"]))
    def crash(self, seed: int, keep: Any) -> None:
        if keep == "killed":
            self.queue.kill()
        else:
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
                if not queue.config.max_deliveries:
                    queue.configure(max_deliveries=1)
                for node in "ab":
                    queue.claim(node, 5, 100)
                    queue.driver.clock.advance(100)
                queue.claim("c", 5, 100)
                queue.settle()
            case "redrive":
                queue.redrive(2)
            case "seal":
                queue.guard(self._seal)
            case "snapshot":
                try:
                    queue.guard(queue.driver.snapshot)
                except OSError:
                    assert queue.faulty
                    queue.take_answers()

    @rule(
        fault=st.sampled_from(["write", "write", "short", "allocate", "create", "sync", "heal"]),
        error=st.sampled_from([errno.EIO, errno.ENOSPC]),
        nth=st.integers(1, 2),
        written=st.integers(0, 200),
    )
    def disk_fails(self, fault: Any, error: int, nth: int, written: int) -> None:
        """The next time, or the one after; nothing may happen until then."""
        queue = self.queue
        if fault == "heal":
            queue.disk.clear_faults()
            queue.tick()
            return
        if fault == "short":
            queue.disk.short_write(nth, written, path_contains="/wal/")
        else:
            queue.disk.fail_on(fault, nth, errno.EIO if fault == "sync" else error, "/wal/")
        queue.faulty = True


TestQueue = QueueMachine.TestCase


# --- can it fail? -----------------------------------------------------------------------------------------

Patch = Callable[[pytest.MonkeyPatch], None]


def acks_do_not_wait_for_the_sync(patch: pytest.MonkeyPatch) -> None:
    stage = LeaseOps._stage

    def hasty(self: LeaseOps, *args: Any, durable: bool) -> None:
        stage(self, *args, durable=False)

    patch.setattr(LeaseOps, "_stage", hasty)


def groups_are_ignored(patch: pytest.MonkeyPatch) -> None:
    def make_ready(self: LeaseQueue, seq: int, job: Job) -> None:
        group, job.group = job.group, None
        ready(self, seq, job)
        job.group = group

    ready = LeaseQueue._make_ready
    patch.setattr(LeaseQueue, "_make_ready", make_ready)


def dead_letters_are_removed_before_they_arrive(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        Moves, "_send", lambda self, topic, target, seqs, records, done, origins=None: done(len(seqs), 200)
    )


def letters_stay_when_they_are_moved_back(patch: pytest.MonkeyPatch) -> None:
    remove = Moves._remove

    def leave(self: Moves, topic: Topic, seqs: list[int], *, request: Any = None, **how: Any) -> None:
        if request is None:
            remove(self, topic, seqs, **how)
        else:
            request.sink.answer(request.id, 200, b'{"moved":%d' % len(seqs))

    patch.setattr(Moves, "_remove", leave)


def identities_of_moved_records_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    apply_extra = ShardState._apply_extra

    def forget(self: ShardState, topic: Topic, *args: Any) -> None:
        apply_extra(self, topic, *args)
        topic.moved.clear()

    patch.setattr(ShardState, "_apply_extra", forget)


def seqs_in_holes_are_taken_for_jobs(patch: pytest.MonkeyPatch) -> None:
    def next_fresh(self: LeaseQueue, topic: Topic) -> int | None:
        seq = max(self._fresh_from, topic.live_from)
        gone = topic.deleted or ()
        while seq <= topic.head and (seq in self.jobs or seq in gone):
            seq += 1
        self._fresh_from = seq
        return seq if seq <= topic.head else None

    patch.setattr(LeaseQueue, "_next_fresh", next_fresh)


SABOTAGES: list[Patch] = [
    acks_do_not_wait_for_the_sync,
    groups_are_ignored,
    dead_letters_are_removed_before_they_arrive,
    letters_stay_when_they_are_moved_back,
    identities_of_moved_records_are_forgotten,
    seqs_in_holes_are_taken_for_jobs,
]


@pytest.mark.parametrize("sabotage", SABOTAGES, ids=lambda sabotage: sabotage.__name__)
def test_the_machine_notices_when(sabotage: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these breaks one promise. If the machine stays green, it proves nothing."""
    sabotage(monkeypatch)
    quick = settings(phases=(Phase.generate,), report_multiple_bugs=False, database=None, max_examples=200)
    with pytest.raises((Violation, AssertionError, StopIteration)):
        run_state_machine_as_test(QueueMachine, settings=quick)
