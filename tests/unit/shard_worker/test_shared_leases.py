"""Jobs that are handed out together share an entry; nobody can tell, whatever happens to one of them."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shard_worker.core.handout import shared_out
from shard_worker.core.job import JobState
from shard_worker.core.lease_tokens import token_list, token_of, token_parts, tokens_are
from shard_worker.core.stretches import count_of, seqs_of, stretches_of
from shared.wire import Op
from tests.support.queue_driver import QueueDriver, decision


@pytest.fixture
def driver() -> QueueDriver:
    driver = QueueDriver(wal_file_bytes=1 << 16)
    driver.make("q")
    driver.write("q", *range(10))
    driver.sync()
    return driver


def entries(driver: QueueDriver) -> int:
    return len(set(map(id, driver.queue("q").jobs.values())))


# --- one of many ------------------------------------------------------------------------------------------


def test_a_claim_of_a_batch_has_one_entry_and_one_end(driver: QueueDriver) -> None:
    jobs = driver.claim("q", max=10)
    assert len(jobs) == len({job["lease_id"] for job in jobs}) == 10
    assert entries(driver) == len(driver.queue("q")._leases) == 1
    driver.check_queue("q")


def test_batches_of_the_same_time_are_leased_together(driver: QueueDriver) -> None:
    driver.write("q", *range(10, 15))
    driver.write("q", 15)
    jobs = driver.claim("q", max=16)
    assert [job["data"] for job in jobs] == list(range(16))
    assert entries(driver) == 1
    assert driver.ack("q", "n", jobs)["acked"] == 16


def test_a_part_of_a_batch_is_shown_and_leased_like_a_whole_one(driver: QueueDriver) -> None:
    for size in (3, 3, 3, 1):
        before = driver.data("q")
        jobs = driver.claim("q", max=size)
        assert [job["data"] for job in jobs] == before[:size]
        assert driver.ack("q", "n", jobs)["acked"] == size
    assert driver.counts("q") == (0, 0, 0)


@pytest.mark.parametrize("fenced", [True, False])
@pytest.mark.parametrize(
    "chosen", [[0], [9], [4], [0, 1, 2], [3, 4, 5], [7, 8, 9], [0, 9], [9, 0, 5], [5, 4]]
)
def test_any_of_them_can_be_acked_alone(driver: QueueDriver, chosen: list[int], fenced: bool) -> None:
    jobs = driver.claim("q", max=10)
    told = driver.ack("q", "n", [jobs[at] for at in chosen], fenced=fenced)
    assert (told["acked"], told["skipped"], told["in_flight"]) == (len(chosen), 0, 10 - len(chosen))
    driver.check_queue("q")
    rest = [job for at, job in enumerate(jobs) if at not in chosen]
    assert driver.data("q") == [job["data"] for job in rest]
    assert driver.ack("q", "n", jobs, fenced=fenced) == {
        "acked": len(rest),
        "skipped": len(chosen),
        "ready": 0,
        "in_flight": 0,
    }


def test_the_same_seq_twice_counts_once_and_its_last_token_is_the_one(driver: QueueDriver) -> None:
    first, second, *_ = driver.claim("q", max=10)
    stale = {**first, "lease_id": "lease_0"}
    told = driver.ack("q", "n", [first, second, stale])
    assert (told["acked"], told["skipped"]) == (1, 2)
    told = driver.ack("q", "n", [stale, first, first])
    assert (told["acked"], told["skipped"]) == (1, 2)


def test_one_stale_token_among_many_skips_one_job(driver: QueueDriver) -> None:
    jobs = driver.claim("q", max=10)
    shown = [*jobs[:4], {**jobs[4], "lease_id": jobs[5]["lease_id"]}, *jobs[5:]]
    assert driver.ack("q", "n", shown)["acked"] == 9
    assert driver.data("q") == [4]
    assert driver.ack("q", "other", jobs)["acked"] == 0
    assert driver.ack("q", "n", jobs)["acked"] == 1


def test_one_that_is_extended_outlives_the_others(driver: QueueDriver) -> None:
    jobs = driver.claim("q", max=10, lease_ms=1000)
    assert driver.extend("q", "n", [jobs[3]], 5000)["extended"] == 1
    driver.clock.now_ms += 1000
    assert driver.counts("q") == (9, 1, 0)
    again = driver.claim("q", "m", max=10)
    assert [job["deliveries"] for job in again] == [2] * 9
    assert driver.ack("q", "n", jobs) == {"acked": 1, "skipped": 9, "ready": 0, "in_flight": 9}
    driver.check_queue("q")


def test_one_that_is_given_back_goes_to_another(driver: QueueDriver) -> None:
    jobs = driver.claim("q", max=10)
    driver.nack("q", "n", [jobs[6]])
    driver.nack("q", "n", [jobs[7]], delay_ms=50)
    assert driver.counts("q") == (1, 8, 1)
    [again] = driver.claim("q", "m", max=10)
    assert (again["$seq"], again["deliveries"]) == (7, 2)
    assert driver.ack("q", "n", jobs)["acked"] == 8
    driver.check_queue("q")


def test_a_delete_takes_some_of_them(driver: QueueDriver) -> None:
    jobs = driver.claim("q", max=10)
    driver.call(Op.DELETE_RECORDS, "q", {"before_seq": 4})
    assert driver.counts("q") == (0, 7, 0)
    assert driver.ack("q", "n", jobs)["acked"] == 7
    driver.check_queue("q")


def test_tokens_and_holders_are_listed_one_by_one(driver: QueueDriver) -> None:
    jobs = driver.claim("q", max=10)
    driver.ack("q", "n", jobs[2:4])
    shown = driver.leases("q")["leases"]
    assert [(row["seq"], row["lease_id"]) for row in shown] == [
        (job["$seq"], job["lease_id"]) for job in jobs if job not in jobs[2:4]
    ]


def test_a_snapshot_has_every_job_with_its_own_token(driver: QueueDriver) -> None:
    jobs = driver.claim("q", max=10)
    stored: Any = driver.queue("q").to_snapshot()["jobs"]
    assert [row[0] for row in stored] == list(range(1, 11))
    assert [row[6] for row in stored] == [job["lease_id"] for job in jobs]


def test_jobs_with_an_entry_of_their_own_interrupt_a_stretch(driver: QueueDriver) -> None:
    driver.write("q", 10, {"data": 11, "delay_ms": 100}, 12, {"data": 13, "priority": -1}, 14)
    jobs = driver.claim("q", max=20)
    assert [job["data"] for job in jobs] == [*range(11), 12, 13, 14]
    driver.check_queue("q")
    assert driver.ack("q", "n", jobs)["acked"] == 14
    assert driver.counts("q") == (0, 0, 1)


def test_ends_of_leases_that_are_over_do_not_pile_up(driver: QueueDriver) -> None:
    for round_ in range(3000):
        driver.write("q", round_)
        driver.ack("q", "n", driver.claim("q"))
        if not round_ % 100:
            driver.sync()
    assert len(driver.queue("q")._leases) < 1000


def test_tagged_jobs_share_an_entry_too(driver: QueueDriver) -> None:
    driver.claim("q", max=10)
    driver.write("q", {"data": 10, "tag": "a"}, {"data": 11}, {"data": 12, "tag": "b"})
    jobs = driver.claim("q", max=3)
    assert [job.get("$tag") for job in jobs] == ["a", None, "b"]
    assert entries(driver) == 2
    assert driver.ack("q", "n", jobs)["acked"] == 3


@pytest.mark.parametrize("later_ms", [0, 5])
def test_data_that_looks_like_the_beginning_of_a_record_is_shown_as_it_is(
    driver: QueueDriver, later_ms: int
) -> None:
    driver.claim("q", max=10)
    ts = driver.clock.now_ms + later_ms
    tricky = [{"a": 1, "$ts": ts, "b": [{"$seq": 11, "$ts": ts, "data": 1}]}, "x"]
    body = json.dumps({"records": [{"data": data} for data in tricky]}, separators=(",", ":")).encode()
    assert b',"$ts":%d,' % ts in body
    assert driver.call(Op.APPEND, "q", body).ok
    jobs = driver.claim("q", max=10)
    assert [job["data"] for job in jobs] == tricky
    assert driver.ack("q", "n", jobs)["acked"] == 2


def test_an_ack_of_a_part_that_could_not_be_written_leaves_all_leases(driver: QueueDriver) -> None:
    jobs = driver.claim("q", max=10)
    driver.sync()
    driver.disk.fail_on("write", 1, 5, "/wal/")
    call = driver.start_ack("q", "n", jobs[2:5])
    assert driver.queue("q").jobs[3].state is JobState.LEAVING
    driver.commit()
    assert call.answer is not None and call.answer.status == 503
    assert driver.counts("q") == (0, 10, 0)
    driver.check_queue("q")
    assert driver.ack("q", "n", jobs)["acked"] == 10


# --- writes, claims and acks of one turn ------------------------------------------------------------------


def writes(driver: QueueDriver) -> list[int]:
    """Counts the writes to the log from now on."""
    found: list[int] = []
    inner = driver.engine.wal.write

    def write(now_ms: int) -> None:
        found.append(now_ms)
        inner(now_ms)

    driver.engine.wal.write = write  # type: ignore[method-assign]
    return found


def test_writes_claims_and_acks_of_one_turn_are_one_write(driver: QueueDriver) -> None:
    held = driver.claim("q", "old", max=10)
    driver.sync()
    found = writes(driver)
    claims, acks = [], []
    for number in range(4):
        driver.submit(Op.APPEND, "q", {"records": [{"data": f"new-{number}"}]})
        claims.append(driver.start_claim("q", f"n{number}"))
        acks.append(driver.start_ack("q", "old", [held[number]]))
    driver.commit()
    assert len(found) == 1
    assert [call.answer.json["claimed"][0]["data"] for call in claims if call.answer] == [
        f"new-{number}" for number in range(4)
    ]
    assert [call.answer.json["acked"] for call in acks if call.answer] == [1] * 4
    driver.check_queue("q")


def test_an_ack_behind_the_same_nodes_claim_finds_what_it_got(driver: QueueDriver) -> None:
    driver.claim("q", "old", max=10)
    driver.sync()
    driver.submit(Op.APPEND, "q", {"records": [{"data": 1}]})
    claim = driver.start_claim("q", "n")
    ack = driver.submit(Op.ACK, "q", decision("n", [11]))
    driver.commit()
    assert claim.answer is not None and claim.answer.json["count"] == 1
    assert ack.answer is not None and ack.answer.json["acked"] == 1


def test_a_claim_behind_a_write_that_fails_is_answered_all_the_same(driver: QueueDriver) -> None:
    driver.claim("q", "old", max=10)
    driver.sync()
    driver.disk.fail_on("write", 1, 5, "/wal/")
    driver.submit(Op.APPEND, "q", {"records": [{"data": 1}]})
    claim = driver.start_claim("q", "n")
    waiting = driver.start_claim("q", "m", wait_ms=1000)
    driver.commit()
    assert claim.answer is not None and claim.answer.json["claimed"] == []
    assert waiting.answer is None
    driver.write("q", 2)
    assert waiting.answer is not None and waiting.answer.json["count"] == 1


def test_a_claim_behind_a_write_can_be_cancelled(driver: QueueDriver) -> None:
    driver.claim("q", "old", max=10)
    driver.sync()
    driver.submit(Op.APPEND, "q", {"records": [{"data": 1}]})
    claim = driver.start_claim("q", "n")
    assert driver.engine.queues.waiting_claims == 1
    driver.submit(Op.CANCEL, "", None, {"id": driver._last_id})
    driver.commit()
    assert claim.answer is not None and claim.answer.status == 499
    assert driver.counts("q") == (1, 10, 0)


def test_claims_for_very_much_do_not_gather_behind_a_write(driver: QueueDriver) -> None:
    driver.claim("q", "old", max=10)
    driver.sync()
    driver.submit(Op.APPEND, "q", {"records": [{"data": "x" * 10_000}] * 10})
    calls = [driver.start_claim("q", "n", max=1000) for _ in range(3)]
    assert calls[0].answer is not None, "ten megabytes: written and served at once"
    driver.commit()
    assert sum(call.answer.json["count"] for call in calls if call.answer) == 10


# --- those who wait ---------------------------------------------------------------------------------------


def test_a_job_goes_to_the_first_in_line_and_the_others_keep_their_places(driver: QueueDriver) -> None:
    driver.claim("q", "old", max=10)
    calls = [driver.start_claim("q", f"n{number}", wait_ms=1000 + number, max=5) for number in range(6)]
    for number in range(3):
        driver.write("q", f"job-{number}")
        answered = [call.answer.json["count"] for call in calls if call.answer]
        assert answered == [1] * (number + 1)
    driver.write("q", *range(4))
    assert [call.answer.json["count"] for call in calls if call.answer] == [1, 1, 1, 2, 1, 1]
    assert driver.engine.queues.waiting_claims == 0 and driver.engine.next_deadline_ms() is None


def test_those_who_waited_long_enough_are_answered_wherever_they_stand(driver: QueueDriver) -> None:
    driver.claim("q", "old", max=10)
    calls = [driver.start_claim("q", "n", wait_ms=wait_ms) for wait_ms in (300, 100, 200)]
    now_ms = driver.clock.now_ms
    for passed_ms, expected in ((100, [1]), (200, [1, 2]), (300, [0, 1, 2])):
        assert driver.engine.next_deadline_ms() == now_ms + passed_ms
        driver.clock.now_ms = now_ms + passed_ms
        driver.tick()
        assert [at for at, call in enumerate(calls) if call.answer] == expected
    assert driver.engine.next_deadline_ms() is None


def test_claims_that_come_and_are_served_leave_nothing_behind(driver: QueueDriver) -> None:
    driver.claim("q", "old", max=10)
    driver.start_claim("q", "last", wait_ms=20_000, max=1)
    topic = driver.topic("q")
    for round_ in range(500):
        driver.start_claim("q", f"n{round_}", wait_ms=20_000)
        driver.write("q", round_)
    assert driver.engine.queues.waiting_claims == 1
    assert len(driver.engine.queues._waiting[topic]._deadlines) < 100


# --- small parts ------------------------------------------------------------------------------------------


@given(st.integers(0, 20_000), st.integers(1, 1100))
def test_tokens_in_one_go_are_the_tokens_one_by_one(number: int, count: int) -> None:
    each = [f"p_{number + at:x}" for at in range(count)]
    assert [token_of("p_", number + at) for at in range(count)] == each
    assert token_list("p_", number, count) == each
    head, rest = token_parts("p_", number, count)
    assert [(head + part).decode() for part in rest] == each
    assert tokens_are(each, "p_", number)
    assert not tokens_are([*each[:-1], each[-1] + "0"], "p_", number)
    assert not tokens_are([*each[:-1], "p_"], "p_", number)


def test_leading_digits_of_one_worker_are_not_those_of_another() -> None:
    for prefix, number in (("a_", 5000), ("b_", 5000), ("b_", 9000), ("a_", 5000)):
        assert token_of(prefix, number) == f"{prefix}{number:x}"


def test_tokens_that_only_look_alike_when_joined_are_not_the_same() -> None:
    one, two, three = token_list("p_", 5000, 3)
    assert tokens_are([one, two, three], "p_", 5000)
    assert not tokens_are([f"{one},{two}", three], "p_", 5000)
    assert not tokens_are([f"{one},{two}", three, ""], "p_", 5000)
    assert not tokens_are([two, one, three], "p_", 5000)


@given(st.lists(st.integers(1, 60)))
def test_stretches_are_the_same_seqs(seqs: list[int]) -> None:
    found = stretches_of(seqs)
    assert seqs_of(found) == sorted(set(seqs))
    assert count_of(found) == len(set(seqs))
    assert all(before[1] + 1 < after[0] for before, after in pairwise(found))


@given(
    st.lists(st.integers(1, 9), max_size=4),
    st.lists(st.integers(1, 9), min_size=1, max_size=6),
)
def test_shares_are_dealt_round_by_round(sizes: list[int], wanted: list[int]) -> None:
    taken, at = [], 1
    for size in sizes:
        if at - 1 + size > sum(wanted):
            break  # nobody takes more than is wanted
        taken.append((at, at + size - 1))
        at += size
    shares = shared_out(taken, wanted)
    assert sorted(seqs_of(stretch for share in shares for stretch in share)) == seqs_of(taken)
    expected, left = [0] * len(wanted), at - 1
    while left:
        for place, most in enumerate(wanted):
            if left and expected[place] < most:
                expected[place] += 1
                left -= 1
    assert list(map(count_of, shares)) == expected
    bounds = dict(taken)
    for share in shares:
        for first, last in share:
            start = max(begin for begin in bounds if begin <= first)
            assert last <= bounds[start], "within one of those that were taken"
