"""The rules of one queue, without a clock, disk or socket."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from shard_worker.core.job import Job, JobState
from shard_worker.core.lease_queue import AGING_MS, JobSpec, LeaseQueue, written_at
from shard_worker.core.piece import PieceSource
from shard_worker.core.stretches import seqs_of
from shard_worker.core.topic import Topic
from shared.api_types import TopicConfig
from shared.control_frames import Hole, LeaseRow
from shared.errors import CorruptSegment

NOW = 1_700_000_000_000
NO_FILES = cast(PieceSource, None)  # every batch here is a single record: nobody looks into one


@dataclass
class Bench:
    """A queue and its topic, with the little of a shell that they need."""

    now: int = NOW
    topic: Topic = field(
        default_factory=lambda: Topic(id=1, name="q", epoch=1, config=TopicConfig(type="queue"))
    )
    queue: LeaseQueue = field(default_factory=LeaseQueue)
    leases: int = 0

    def write(self, count: int = 1, **spec: Any) -> list[int]:
        seqs = []
        for _ in range(count):
            seq = self.topic.head + 1
            self.topic.apply_append(seq, 1, self.now, 1000 + seq, 10, 0, NO_FILES)
            if spec:
                self.queue.add(seq, self.now, JobSpec(**spec))
            seqs.append(seq)
        return seqs

    def settle(self) -> None:
        self.queue.settle(self.topic, self.now)

    def pass_time(self, ms: int) -> None:
        self.now += ms
        self.settle()

    def grant(self, seq: int, node: str, token: str, deadline_ms: int) -> LeaseRow:
        return LeaseRow(seq, token, deadline_ms, self.queue.jobs[seq].deliveries + 1, node)

    def take(self, wanted: int = 1000) -> list[int]:
        self.settle()
        return seqs_of(self.queue.take(self.topic, wanted, NO_FILES))

    def claim(self, wanted: int = 1, node: str = "a", lease_ms: int = 1000) -> dict[int, str]:
        """seq → token, in the order in which they were taken"""
        granted = {}
        for seq in self.take(wanted):
            self.leases += 1
            row = self.grant(seq, node, f"t{self.leases}", self.now + lease_ms)
            self.queue.apply_leases([row], self.now, lambda seq: 0)
            granted[seq] = row.token
        return granted

    def remove(self, *seqs: int) -> None:
        """Done, or deleted by somebody else: `forget` follows in the first case only."""
        self.topic.apply_remove(list(seqs), NO_FILES)

    def ack(self, *seqs: int) -> None:
        for seq in seqs:
            self.queue.leave(seq, seq)
        self.remove(*seqs)
        for seq in seqs:
            self.queue.forget(seq)

    def counts(self) -> tuple[int, int, int]:
        """(ready, in flight, delayed)"""
        self.settle()
        found = (self.queue.ready(self.topic), self.queue.in_flight, self.queue.delayed)
        assert sum(found) == self.topic.count, "L4"
        return found

    def state(self, seq: int) -> JobState:
        return self.queue.jobs[seq].state


@pytest.fixture
def bench() -> Bench:
    return Bench()


# --- L1 and L4: where jobs are ----------------------------------------------------------------------------


def test_a_backlog_of_plain_jobs_has_no_entries(bench: Bench) -> None:
    bench.write(500)
    assert bench.queue.jobs == {}
    assert bench.counts() == (500, 0, 0)


def test_every_job_is_in_one_state_at_a_time(bench: Bench) -> None:
    bench.write(5)
    bench.write(1, deliver_at_ms=NOW + 50)
    held = list(bench.claim(3))
    assert bench.counts() == (2, 3, 1)
    bench.queue.release(held[0], bench.now, bench.now + 70)
    assert bench.counts() == (2, 2, 2)
    bench.ack(held[1])
    assert bench.counts() == (2, 1, 2)
    bench.pass_time(70)
    assert bench.counts() == (4, 1, 0)
    bench.pass_time(1000)
    assert bench.counts() == (5, 0, 0)


def test_a_job_on_its_way_out_is_not_handed_out(bench: Bench) -> None:
    [seq] = bench.write()
    bench.claim()
    bench.queue.leave(seq, seq)
    bench.pass_time(5000)
    assert bench.take() == []
    assert bench.counts() == (1, 0, 0)


def test_a_job_that_was_not_moved_after_all_is_ready_again(bench: Bench) -> None:
    [seq] = bench.write()
    assert bench.take() == [seq]
    bench.queue.stay(seq)
    assert bench.take() == [seq]


@pytest.mark.parametrize("holder", ["taken", "leased", "delayed", "ready"])
def test_what_others_remove_is_in_no_state_any_more(bench: Bench, holder: str) -> None:
    first, second = bench.write(2)
    if holder == "taken":
        bench.take(1)
    else:
        bench.claim()
    if holder in ("delayed", "ready"):
        bench.queue.release(first, bench.now, bench.now + 100 if holder == "delayed" else 0)
    bench.remove(first)
    assert bench.counts() == (1, 0, 0)
    assert first not in bench.queue.jobs
    bench.pass_time(10_000)
    assert bench.take() == [second]


def test_a_floor_takes_jobs_from_under_their_leases(bench: Bench) -> None:
    bench.write(4)
    bench.claim(3)
    bench.topic.apply_floor(3, "cap", NO_FILES)
    assert bench.counts() == (1, 1, 0)


def test_seqs_that_were_lost_in_a_power_cut_are_never_jobs(bench: Bench) -> None:
    bench.write(2)
    bench.topic.apply_hole(Hole(3, 1024, "mixed"))
    bench.write(1)
    assert bench.counts() == (3, 0, 0)
    assert bench.take() == [1, 2, 1025]


def test_a_hole_in_front_of_everything_is_stepped_over(bench: Bench) -> None:
    bench.topic.apply_hole(Hole(1, 7, "mixed"))
    assert bench.take() == []
    assert bench.write(2) == [8, 9]
    assert bench.take() == [8, 9]


# --- order ------------------------------------------------------------------------------------------------


def test_jobs_go_out_in_the_order_of_writing(bench: Bench) -> None:
    bench.write(3)
    bench.pass_time(10)
    bench.write(2)
    assert bench.take(4) == [1, 2, 3, 4]
    assert bench.take() == [5]
    assert bench.take() == []


def test_jobs_that_come_back_go_before_fresh_ones(bench: Bench) -> None:
    bench.write(5)
    bench.claim(3)
    bench.queue.release(2, bench.now, 0)
    bench.pass_time(5)
    bench.write(1)
    assert bench.take(2) == [2, 4]


def test_a_higher_priority_goes_first(bench: Bench) -> None:
    bench.write(1)
    bench.write(1, priority=-1)
    bench.write(1, priority=5)
    bench.write(1, priority=5)
    bench.write(1)
    assert bench.take() == [3, 4, 1, 5, 2]


def test_waiting_outweighs_priority(bench: Bench) -> None:
    bench.write(1)
    bench.pass_time(3 * AGING_MS - 1)
    assert bench.write(1, priority=3) == [2]
    bench.pass_time(1)
    assert bench.write(1, priority=3) == [3]
    assert bench.take() == [2, 1, 3], "of equal keys the older seq goes first"


def test_nothing_starves_behind_urgent_jobs(bench: Bench) -> None:
    [patient] = bench.write(1, priority=-2)
    for turn in range(20):
        bench.write(1, priority=4)
        if bench.take(1) == [patient]:
            assert turn == 6, "after as many seconds as there are points between them"
            return
        bench.pass_time(AGING_MS)
    raise AssertionError("it never came")


def test_a_returned_job_keeps_its_priority(bench: Bench) -> None:
    bench.write(1, priority=9)
    bench.write(1)
    bench.claim()
    bench.pass_time(1000)
    bench.write(1, priority=5)
    assert bench.take() == [1, 3, 2]


# --- L3: groups -------------------------------------------------------------------------------------------


def test_of_a_group_only_the_head_goes_out(bench: Bench) -> None:
    bench.write(3, group="g")
    bench.write(2, group="h")
    bench.write(1)
    assert sorted(bench.claim(10)) == [1, 4, 6]
    assert bench.take() == []
    assert bench.counts() == (3, 3, 0), "blocked ones count as ready"


def test_the_next_of_a_group_goes_when_the_head_is_acked(bench: Bench) -> None:
    bench.write(3, group="g")
    for seq in (1, 2, 3):
        assert list(bench.claim(5)) == [seq]
        bench.ack(seq)
    assert bench.queue._groups == {}


def test_the_next_of_a_group_waits_while_the_head_is_leased_delayed_or_back(bench: Bench) -> None:
    bench.write(2, group="g")
    assert list(bench.claim(5, lease_ms=100)) == [1]
    bench.pass_time(99)
    assert bench.take() == []
    bench.queue.release(1, bench.now, bench.now + 500)
    bench.pass_time(499)
    assert bench.take() == []
    bench.pass_time(1)
    assert list(bench.claim(5, lease_ms=100)) == [1]
    bench.pass_time(100)
    assert list(bench.claim(5)) == [1], "an expired head goes again before anyone behind it"


def test_a_dead_head_lets_the_next_go(bench: Bench) -> None:
    bench.write(2, group="g")
    assert bench.take() == [1], "taken to be buried"
    assert bench.take() == []
    bench.remove(1)
    bench.queue.forget(1)
    assert bench.take() == [2]


def test_a_deleted_head_lets_the_next_go(bench: Bench) -> None:
    bench.write(3, group="g")
    bench.remove(1, 2)
    assert bench.take() == [3]


def test_a_job_deleted_behind_the_head_changes_nothing(bench: Bench) -> None:
    bench.write(3, group="g")
    bench.claim()
    bench.remove(2)
    assert bench.take() == []
    bench.ack(1)
    assert bench.take() == [3]


def test_a_delayed_head_blocks_its_group_and_a_delayed_second_does_not_overtake(bench: Bench) -> None:
    bench.write(1, group="g", deliver_at_ms=NOW + 100)
    bench.write(1, group="g", deliver_at_ms=NOW + 50)
    bench.write(1, group="g")
    assert bench.take() == []
    bench.pass_time(60)
    assert bench.state(2) is JobState.BLOCKED
    assert bench.take() == []
    bench.pass_time(40)
    assert list(bench.claim(5)) == [1]
    bench.ack(1)
    assert list(bench.claim(5)) == [2]


def test_a_priority_never_breaks_the_order_of_a_group(bench: Bench) -> None:
    bench.write(1, group="g")
    bench.write(1, group="g", priority=900)
    assert bench.take() == [1]


def test_the_second_of_a_group_that_is_still_delayed_waits_for_its_own_time(bench: Bench) -> None:
    bench.write(1, group="g")
    bench.write(1, group="g", deliver_at_ms=NOW + 100)
    bench.claim()
    bench.ack(1)
    assert bench.take() == []
    bench.pass_time(100)
    assert bench.take() == [2]


# --- delays and lazy expiry -------------------------------------------------------------------------------


def test_a_delay_is_over_exactly_when_it_is_due(bench: Bench) -> None:
    bench.write(1, deliver_at_ms=NOW + 100)
    bench.pass_time(99)
    assert bench.take() == []
    assert bench.counts() == (0, 0, 1)
    bench.pass_time(1)
    assert bench.counts() == (1, 0, 0)
    assert bench.take() == [1]


def test_a_delivery_time_that_has_passed_is_no_delay(bench: Bench) -> None:
    bench.write(1, deliver_at_ms=NOW)
    assert bench.counts() == (1, 0, 0)


def test_a_lease_runs_out_exactly_at_its_deadline(bench: Bench) -> None:
    bench.write()
    bench.claim(lease_ms=100)
    bench.pass_time(99)
    assert bench.counts() == (0, 1, 0)
    bench.pass_time(1)
    assert bench.counts() == (1, 0, 0)


def test_expiry_needs_no_look_at_jobs_that_have_time(bench: Bench) -> None:
    bench.write(300)
    bench.claim(299, lease_ms=10_000)
    bench.claim(1, lease_ms=10)
    bench.pass_time(10)
    assert len(bench.queue._leases) == 299
    assert bench.take() == [300]


def test_the_next_change_is_the_soonest_deadline_or_due_time(bench: Bench) -> None:
    assert bench.queue.next_change_ms() is None
    bench.write(2)
    bench.claim(lease_ms=500)
    assert bench.queue.next_change_ms() == NOW + 500
    bench.write(1, deliver_at_ms=NOW + 200)
    assert bench.queue.next_change_ms() == NOW + 200
    bench.pass_time(200)
    assert bench.queue.next_change_ms() == NOW + 500


def test_a_deadline_that_moved_leaves_nothing_behind(bench: Bench) -> None:
    [seq] = bench.write()
    token = bench.claim(lease_ms=100)[seq]
    bench.queue.set_deadline(seq, token, NOW + 300)
    bench.pass_time(299)
    assert bench.counts() == (0, 1, 0)
    bench.pass_time(1)
    assert bench.counts() == (1, 0, 0)


def test_a_deadline_can_be_moved_nearer(bench: Bench) -> None:
    [seq] = bench.write()
    token = bench.claim(lease_ms=1000)[seq]
    bench.queue.set_deadline(seq, token, NOW + 100)
    bench.pass_time(100)
    assert bench.take() == [seq]
    bench.claim()
    bench.pass_time(900)
    assert bench.counts()[1] == 0, "the old, later deadline ends nobody else's lease and keeps none alive"


# --- L2: fencing ------------------------------------------------------------------------------------------


def test_only_the_newest_lease_decides(bench: Bench) -> None:
    [seq] = bench.write()
    old = bench.claim(lease_ms=100)[seq]
    assert bench.queue.held_by(seq, "a", old)
    bench.pass_time(100)
    assert not bench.queue.held_by(seq, "a", old), "nobody holds it"
    new = bench.claim()[seq]
    assert not bench.queue.held_by(seq, "a", old)
    assert bench.queue.held_by(seq, "a", new)
    assert bench.queue.held_by(seq, "a", None), "the node is enough if it shows no token"
    assert not bench.queue.held_by(seq, "b", new)
    assert not bench.queue.held_by(seq, "b", None)
    assert not bench.queue.held_by(99, "a", None)


def test_a_claim_counts_a_delivery_when_it_comes_true_and_not_before(bench: Bench) -> None:
    [seq] = bench.write()
    bench.take()
    row = bench.grant(seq, "a", "t1", NOW + 100)
    assert row == LeaseRow(seq, "t1", NOW + 100, 1, "a")
    assert bench.queue.jobs[seq].deliveries == 0
    bench.queue.release(seq, NOW, 0)  # could not be written down
    bench.take()
    bench.queue.apply_leases([bench.grant(seq, "a", "t2", NOW + 100)], NOW, lambda seq: 0)
    assert bench.queue.jobs[seq].deliveries == 1


def test_the_same_lease_again_changes_nothing(bench: Bench) -> None:
    bench.write()
    row = LeaseRow(1, "t", NOW + 100, 3, "a")
    for _ in range(2):
        bench.queue.apply_leases([row], NOW, lambda seq: NOW)
        assert bench.counts() == (0, 1, 0)
        assert bench.queue.jobs[1].deliveries == 3


def test_a_later_deadline_does_not_bring_an_ended_lease_back(bench: Bench) -> None:
    [seq] = bench.write()
    token = bench.claim(lease_ms=100)[seq]
    extended = LeaseRow(seq, token, NOW + 900, 1, "a")
    bench.queue.leave(seq, seq)
    bench.queue.apply_leases([extended], NOW, lambda seq: 0)
    assert bench.state(seq) is JobState.LEAVING
    bench.queue.release(seq, NOW, 0)
    bench.queue.apply_leases([extended], NOW, lambda seq: 0)
    assert bench.counts() == (1, 0, 0)


def test_a_decision_that_could_not_be_written_leaves_the_lease_as_it_was(bench: Bench) -> None:
    [seq] = bench.write()
    token = bench.claim(lease_ms=100)[seq]
    bench.queue.leave(seq, seq)
    bench.queue.keep(seq, seq)
    assert bench.queue.held_by(seq, "a", token)
    assert bench.counts() == (0, 1, 0)
    bench.pass_time(100)
    assert bench.counts() == (1, 0, 0)


def test_keeping_a_lease_of_a_job_that_is_gone_does_nothing(bench: Bench) -> None:
    [seq] = bench.write()
    bench.claim()
    bench.queue.leave(seq, seq)
    bench.remove(seq)
    bench.settle()
    bench.queue.keep(seq, seq)
    assert bench.counts() == (0, 0, 0)


# --- replay and snapshots ---------------------------------------------------------------------------------


def test_a_release_whose_lease_was_never_written_still_delays(bench: Bench) -> None:
    bench.write()
    bench.queue.apply_release(1, NOW, NOW + 100, NOW)
    assert bench.counts() == (0, 0, 1)
    bench.pass_time(100)
    assert bench.take() == [1]


def restored(bench: Bench) -> Bench:
    """The queue as a snapshot brings it back, over a topic that counts its removals anew."""
    stored = bench.queue.to_snapshot()
    rows = []
    for seq, key, state, deliveries, due_ms, node, token, deadline_ms, leased_ms, group in cast(
        "list[list[Any]]", stored["jobs"]
    ):
        job = Job(key, JobState(state), deliveries, due_ms, node, token, deadline_ms, leased_ms, group)
        rows.append((seq, job))
    bench.topic.removals = 0
    twin = Bench(bench.now, bench.topic, LeaseQueue.from_snapshot(cast(int, stored["dead"]), rows))
    twin.leases = bench.leases
    return twin


def test_a_queue_comes_back_from_a_snapshot_as_it_was(bench: Bench) -> None:
    bench.write(4)
    bench.write(2, group="g")
    bench.write(1, priority=7)
    bench.write(1, deliver_at_ms=NOW + 500)
    held = bench.claim(3, lease_ms=200)
    bench.queue.release(min(held), bench.now, bench.now + 300)
    bench.queue.dead_lettered = 4
    twin = restored(bench)
    assert twin.queue.to_snapshot() == bench.queue.to_snapshot()
    assert twin.queue.dead_lettered == 4
    assert twin.counts() == bench.counts()
    assert twin.queue.next_change_ms() == bench.queue.next_change_ms()
    for seq, token in held.items():
        assert twin.queue.held_by(seq, "a", token) == bench.queue.held_by(seq, "a", token)
    twin.pass_time(1000)
    assert sorted(twin.take()) == [1, 2, 3, 4, 5, 7, 8], "all but the blocked one"


def test_a_snapshot_taken_before_the_queue_heard_of_a_removal_is_put_right(bench: Bench) -> None:
    bench.write(3)
    bench.claim(2)
    bench.remove(1)
    twin = restored(bench)
    assert twin.counts() == (1, 1, 0)
    twin.pass_time(5000)
    assert twin.take() == [2, 3]


def test_a_job_that_was_on_its_way_when_the_snapshot_was_taken_is_ready(bench: Bench) -> None:
    bench.write(2, group="g")
    bench.take()
    twin = restored(bench)
    assert twin.take() == [1]


def test_leases_that_are_not_durable_end_with_the_process(bench: Bench) -> None:
    bench.write(2)
    token = bench.claim(2, lease_ms=10_000)[1]
    bench.queue.release(2, bench.now, bench.now + 100)
    twin = restored(bench)
    twin.queue.drop_leases()
    assert twin.counts() == (1, 0, 1), "a delay is not a lease"
    assert not twin.queue.held_by(1, "a", token)
    assert twin.queue.jobs[1].deliveries == 1, "what is known of deliveries stays"


# --- where times come from --------------------------------------------------------------------------------


class _BrokenSegment:
    def sealed_pieces(self, segment: int, topic_id: int, first: int, last: int) -> Any:
        raise CorruptSegment(path="x.seg", reason="flipped")


def test_a_damaged_block_does_not_stop_the_jobs_behind_it(bench: Bench) -> None:
    bench.write(2)
    bench.topic.apply_sealed(1, 1, NOW + 5, cast(PieceSource, _Runs()))
    source = cast(PieceSource, _BrokenSegment())
    assert written_at(bench.topic, 1, source) == NOW + 5, "the newest time of the run is near enough"
    assert written_at(bench.topic, 2, source) == NOW
    bench.settle()
    assert sorted(seqs_of(bench.queue.take(bench.topic, 5, source))) == [1, 2]


class _Runs:
    def run_added(self, segment: int) -> None:
        return None


def test_a_withheld_job_is_nobodys_until_it_is_given_back(bench: Bench) -> None:
    bench.write(1)
    bench.write(1, deliver_at_ms=NOW + 100)
    for seq in (1, 2):
        bench.queue.withhold(seq, NOW)
    assert bench.counts() == (2, 0, 0)
    bench.pass_time(200)
    assert bench.take() == []
    for seq in (1, 2):
        bench.queue.release(seq, bench.now, 0)
    assert bench.take() == [1, 2]
