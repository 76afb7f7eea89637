"""Short histories of a queue that the model once judged wrongly, step by step; each ends as every run of it does.

They pin down what is promised where two things meet: a cap and a burial, an expiry and a move, a power cut and a
redrive.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Any

import pytest

from shared.wire import Op
from tests.support.checked_queue import DEAD, QUEUE, CheckedQueue
from tests.support.shard_driver import small_limits


@pytest.fixture(autouse=True)
def _small() -> Iterator[None]:
    with small_limits():
        yield


def queue_of(*shapes: dict[str, Any], durability: str = "fsync", **config: Any) -> CheckedQueue:
    queue = CheckedQueue(durability=durability, **{"leases_durable": False, "max_deliveries": 0, **config})
    queue.write(shapes or [{}])
    return queue


def bury(queue: CheckedQueue, *, synced: bool = True) -> None:
    """Whatever is ready is delivered once and not acked, and then no more."""
    queue.configure(max_deliveries=1)
    for node in "abc":
        queue.claim(node, 5, 100)
        queue.driver.clock.advance(100)
    queue.settle()
    if synced:
        queue.guard(queue.driver.sync)
    queue.check_everything()


def end(queue: CheckedQueue) -> None:
    queue.check_everything()
    queue.check_all_can_be_claimed()


@pytest.mark.parametrize("durability", ["disk", "memory", "fsync"])
def test_a_job_that_was_moved_back_is_not_doubled_if_a_power_cut_brings_its_letter_back(
    durability: str,
) -> None:
    queue = queue_of({}, durability=durability)
    bury(queue)
    queue.redrive(0)
    queue.lose_power(0, "none")
    assert list(queue.driver.peek(QUEUE).values()) == [1]
    # As durable as the topic: only where nothing is synced for the answer may the old letter be there again.
    letters = len(queue.driver.peek(DEAD))
    assert letters == (0 if durability == "fsync" else 1)
    bury(queue)  # a second move, a letter of its own
    assert len(queue.driver.peek(DEAD)) == letters + 1
    queue.redrive(0)
    queue.check_everything()
    assert not queue.driver.peek(DEAD)
    assert list(queue.driver.peek(QUEUE).values()) == [1]
    end(queue)


def test_jobs_that_are_gone_do_not_fill_a_cap() -> None:
    queue = queue_of({"delay_ms": 2000}, {}, durability="disk")
    queue.write([{}] * 5)
    bury(queue, synced=False)  # they could still come back: a power cut may lose their removal
    queue.configure(cap_records=6)
    assert list(queue.driver.peek(QUEUE).values()) == [1]
    end(queue)


def test_jobs_on_their_way_to_the_dead_letters_fill_a_cap_until_they_are_gone() -> None:
    queue = queue_of({"delay_ms": 2000}, durability="disk", max_deliveries=1)
    queue.write([{}] * 6)
    queue.claim("a", 5, 100)
    queue.driver.clock.advance(100)
    queue.claim("a", 1, 100)  # buries five
    queue.configure(cap_records=6)
    end(queue)


def test_what_expired_before_a_change_of_the_ttl_stays_gone() -> None:
    queue = queue_of({}, leases_durable=True)
    queue.configure(ttl_ms=3000)
    queue.claim("a", 1, 100)
    queue.decide(Op.NACK, queue.history, fenced=True, wait="staged")
    queue.driver.clock.advance(5000)
    queue.tick()  # sweeps it, and the change of the configuration is staged behind that
    queue.configure(ttl_ms=0)
    assert not queue.driver.peek(QUEUE)
    end(queue)


def test_an_expiry_that_the_disk_refused_is_tried_again() -> None:
    queue = queue_of({})
    queue.configure(ttl_ms=3000)
    queue.disk.short_write(1, 0, path_contains="/wal/")
    queue.faulty = True
    queue.driver.clock.advance(5000)
    queue.check_everything()
    assert not queue.driver.peek(QUEUE)
    end(queue)


def test_a_redrive_of_more_than_the_queue_may_hold_moves_what_it_may() -> None:
    queue = queue_of({}, {}, {}, {})
    queue.write([{}] * 3)
    bury(queue)
    bury(queue)
    assert len(queue.driver.peek(DEAD)) == 7
    queue.configure(cap_records=6)
    queue.redrive(0)
    assert len(queue.driver.peek(DEAD)) == 4, "half of them"
    queue.redrive(3)
    assert len(queue.driver.peek(DEAD)) == 1
    end(queue)


def test_extensions_that_failed_together_leave_the_lease_as_it_was_before_all_of_them() -> None:
    queue = queue_of({}, durability="disk", leases_durable=True)
    queue.claim("a", 1, 1000)
    queue.disk.fail_on("write", 1, errno.EIO, "/wal/")
    queue.faulty = True
    for lease_ms, wait in ((5000, "staged"), (100, "answered")):
        queue.decide(Op.EXTEND, queue.history, fenced=True, wait=wait, lease_ms=lease_ms)
    end(queue)


def test_an_ack_and_a_delete_that_failed_together_leave_the_lease() -> None:
    queue = queue_of({})
    queue.claim("a", 1, 1000)
    queue.disk.fail_on("write", 1, errno.EIO, "/wal/")
    queue.faulty = True
    queue.decide(Op.ACK, queue.history, fenced=True, wait="staged")
    queue.delete(before=2)
    end(queue)


def test_a_durable_claim_that_the_disk_refused_leaves_the_job_ready() -> None:
    queue = queue_of({}, leases_durable=True)
    queue.claim("a", 1, 100)
    queue.driver.clock.advance(100)
    queue.disk.fail_on("write", 1, errno.ENOSPC, "/wal/")
    queue.faulty = True
    queue.claim("a", 1, 100, wait="staged")
    queue.take_answers()
    queue.guard(queue.driver.commit)
    end(queue)


def test_a_job_that_expires_on_its_way_arrives_as_a_letter_and_may_come_back() -> None:
    queue = queue_of({"delay_ms": 2000}, max_deliveries=1)
    queue.configure(ttl_ms=3000)
    queue.driver.clock.advance(2000)
    queue.claim("a", 1, 100)
    queue.driver.clock.advance(100)
    queue.claim("a", 1, 100, wait_ms=4000)  # buries it, and waits
    queue.driver.clock.advance(1000)
    queue.check_everything()
    queue.kill()
    queue.redrive(0)
    end(queue)


def test_a_job_that_is_deleted_twice_on_its_way_arrives_as_a_letter_and_may_come_back() -> None:
    queue = queue_of({}, max_deliveries=1, durability="disk")
    queue.claim("a", 5, 100)
    queue.driver.clock.advance(100)
    queue.claim("a", 5, 100)  # buries it
    queue.delete(before=2)
    queue.delete(before=2)
    queue.guard(lambda: queue.driver.begin_sync(run=True))
    queue.check_everything()
    queue.redrive(0)
    assert list(queue.driver.peek(QUEUE).values()) == [1]
    end(queue)


def test_who_goes_away_while_its_leases_are_written_down_was_still_served_first() -> None:
    queue = queue_of({}, leases_durable=True)
    for _ in range(2):
        queue.claim("a", 1, 100, wait_ms=4000)
    queue.cancel_one()
    queue.driver.clock.advance(100)
    queue.guard(queue.driver.begin_sync)
    end(queue)
