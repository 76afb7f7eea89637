"""What clients do with a queue, over a shard on a fake disk."""

from __future__ import annotations

import errno

import pytest

from shared.limits import QUEUE_SEQS_MAX, WAIT_MAX_MS
from shared.wire import Op
from tests.support.queue_driver import QueueDriver, decision, seqs_of


@pytest.fixture
def driver() -> QueueDriver:
    driver = QueueDriver(wal_file_bytes=1 << 16)
    driver.make("q")
    return driver


# --- claims -----------------------------------------------------------------------------------------------


def test_a_claim_shows_jobs_with_their_leases(driver: QueueDriver) -> None:
    driver.write("q", {"data": {"n": 1}, "tag": "red", "meta": {"m": 1}}, "second")
    answer = driver.claim_answer("q", "w", lease_ms=5000).json
    assert (answer["topic"], answer["count"], answer["ready"]) == ("q", 1, 1)
    [job] = answer["claimed"]
    assert job == {
        "$seq": 1,
        "$ts": driver.clock.now_ms,
        "$tag": "red",
        "deliveries": 1,
        "lease_id": job["lease_id"],
        "deadline": driver.clock.now_ms + 5000,
        "data": {"n": 1},
        "meta": {"m": 1},
    }
    assert job["lease_id"].startswith("lease_")


def test_an_empty_queue_answers_at_once(driver: QueueDriver) -> None:
    answer = driver.claim_answer("q")
    assert answer.json == {"topic": "q", "claimed": [], "count": 0, "ready": 0}


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"max": 1}, "invalid_request"),
        ({"node": ""}, "invalid_request"),
        ({"node": "n", "max": -1}, "invalid_request"),
        ({"node": 5}, "invalid_request"),
    ],
)
def test_a_claim_of_the_wrong_shape_is_refused(driver: QueueDriver, body: object, error: str) -> None:
    assert driver.call(Op.CLAIM, "q", body).error == error


@pytest.mark.parametrize("op", [Op.CLAIM, Op.ACK, Op.NACK, Op.EXTEND, Op.LEASES])
def test_only_queues_have_jobs(driver: QueueDriver, op: int) -> None:
    driver.put("log")
    body = {"node": "n", "seqs": [], "lease_ms": 100}
    answer = driver.call(op, "log", body)
    assert (answer.status, answer.error) == (409, "not_a_queue")
    answer = driver.call(op, "absent", body)
    assert (answer.status, answer.error) == (404, "topic_not_found")


def test_max_and_lease_are_clamped() -> None:
    driver = QueueDriver(max_claim=3)
    driver.make("q", lease_ms=7000)
    driver.write("q", *range(6))
    assert driver.claim_seqs("q", max=100) == [1, 2, 3]
    [job] = driver.claim("q", max=0)
    assert job["deadline"] == driver.clock.now_ms + 7000, "the topic's lease_ms, and one job at least"
    [short] = driver.claim("q", lease_ms=1)
    assert short["deadline"] == driver.clock.now_ms + 100
    [long] = driver.claim("q", lease_ms=10**12)
    assert long["deadline"] == driver.clock.now_ms + 86_400_000


def test_every_lease_has_a_token_of_its_own_also_after_a_restart(driver: QueueDriver) -> None:
    driver.write("q", 1, 2)
    first = driver.claim("q", max=2)
    driver.sync()
    driver.kill()
    second = driver.claim("q", max=2)
    assert len({job["lease_id"] for job in first + second}) == 4


def test_a_claim_is_answered_in_order_of_seqs_whatever_the_order_of_handing_out(driver: QueueDriver) -> None:
    driver.write("q", 1, {"data": 2, "priority": 5}, 3)
    assert driver.claim_seqs("q", max=2) == [1, 2]
    assert driver.claim_seqs("q") == [3]


def test_claimed_jobs_stay_readable(driver: QueueDriver) -> None:
    driver.write("q", 1, 2)
    driver.claim("q")
    assert driver.data("q") == [1, 2]


# --- ack, nack, extend ------------------------------------------------------------------------------------


def test_an_ack_removes_jobs_for_good(driver: QueueDriver) -> None:
    driver.write("q", 1, 2, 3)
    jobs = driver.claim("q", max=2)
    assert driver.ack("q", "n", jobs) == {"acked": 2, "skipped": 0, "ready": 1, "in_flight": 0}
    assert driver.data("q") == [3]
    assert driver.ack("q", "n", jobs) == {"acked": 0, "skipped": 2, "ready": 1, "in_flight": 0}


def test_a_nack_gives_a_job_back_at_once(driver: QueueDriver) -> None:
    driver.write("q", 1)
    jobs = driver.claim("q")
    assert driver.nack("q", "n", jobs) == {"nacked": 1, "skipped": 0, "ready": 1, "in_flight": 0}
    [again] = driver.claim("q", "other")
    assert (again["deliveries"], again["data"]) == (2, 1)


def test_a_delayed_job_is_neither_ready_nor_in_flight_until_due(driver: QueueDriver) -> None:
    driver.write("q", 1)
    answer = driver.nack("q", "n", driver.claim("q"), delay_ms=500)
    assert answer == {"nacked": 1, "skipped": 0, "ready": 0, "in_flight": 0}
    assert driver.counts("q") == (0, 0, 1)
    driver.clock.advance(499)
    assert driver.claim("q") == []
    driver.clock.advance(1)
    assert driver.claim_seqs("q") == [1]


def test_an_extend_counts_from_now(driver: QueueDriver) -> None:
    driver.write("q", 1)
    jobs = driver.claim("q", lease_ms=1000)
    driver.clock.advance(800)
    answer = driver.extend("q", "n", jobs, 2000)
    assert answer == {"extended": 1, "skipped": 0, "deadlines": {"1": driver.clock.now_ms + 2000}}
    driver.clock.advance(1999)
    assert driver.claim("q") == []
    driver.clock.advance(1)
    assert driver.claim_seqs("q") == [1]


@pytest.mark.parametrize("op", [Op.ACK, Op.NACK, Op.EXTEND])
def test_who_does_not_hold_a_job_is_skipped_and_never_refused(driver: QueueDriver, op: int) -> None:
    driver.write("q", 1, 2, 3)
    old = driver.claim("q", "a", lease_ms=100)
    driver.clock.advance(100)
    new = driver.claim("q", "a")
    assert seqs_of(old) == seqs_of(new)
    for body in (
        decision("a", old),  # a stale token
        decision("b", new),  # another's token
        decision("b", [1]),  # another's job
        decision("a", [2]),  # nobody's
        decision("a", [77]),
    ):
        answer = driver.call(op, "q", {**body, "lease_ms": 500})
        assert answer.ok
        assert answer.json["skipped"] == 1, body
        assert 1 not in [answer.json.get(name) for name in ("acked", "nacked", "extended")]
    assert driver.counts("q") == (2, 1, 0)
    assert driver.ack("q", "a", new)["acked"] == 1


def test_an_ack_after_the_deadline_is_skipped_even_if_nobody_took_the_job(driver: QueueDriver) -> None:
    driver.write("q", 1)
    jobs = driver.claim("q", lease_ms=100)
    driver.clock.advance(100)
    assert driver.ack("q", "n", jobs)["skipped"] == 1
    assert driver.counts("q") == (1, 0, 0)


def test_without_tokens_the_node_decides(driver: QueueDriver) -> None:
    driver.write("q", 1, 2)
    driver.claim("q", max=2)
    assert driver.ack("q", "n", [1, 1, 2, 9])["acked"] == 2


@pytest.mark.parametrize("op", [Op.ACK, Op.NACK, Op.EXTEND])
def test_too_many_seqs_and_lists_of_different_length_are_refused(driver: QueueDriver, op: int) -> None:
    body = {"node": "n", "lease_ms": 100}
    answer = driver.call(op, "q", {**body, "seqs": list(range(QUEUE_SEQS_MAX + 1))})
    assert (answer.status, answer.error) == (400, "batch_too_large")
    assert driver.call(op, "q", {**body, "seqs": list(range(QUEUE_SEQS_MAX))}).ok
    answer = driver.call(op, "q", {**body, "seqs": [1, 2], "lease_ids": ["x"]})
    assert (answer.status, answer.error) == (400, "invalid_request")


def test_counts_are_right_when_a_delete_of_the_same_turn_takes_a_leased_job(driver: QueueDriver) -> None:
    driver.write("q", 1, 2)
    jobs = driver.claim("q", max=2)
    deleted = driver.submit(Op.DELETE_RECORDS, "q", {"before_seq": 2})
    acked = driver.start_ack("q", "n", jobs[1:])
    driver.commit()
    assert deleted.answer is not None and acked.answer is not None
    assert acked.answer.json == {"acked": 1, "skipped": 0, "ready": 0, "in_flight": 0}


# --- time to live, caps, deletes --------------------------------------------------------------------------


def test_an_expired_record_is_no_job_leased_or_not(driver: QueueDriver) -> None:
    driver.put("q", ttl_ms=1000)
    driver.write("q", 1, 2)
    jobs = driver.claim("q", lease_ms=5000)
    driver.clock.advance(1001)
    assert driver.claim("q") == []
    assert driver.counts("q") == (0, 0, 0)
    assert driver.ack("q", "n", jobs)["skipped"] == 1


def test_a_waiting_claim_does_not_get_an_expired_record(driver: QueueDriver) -> None:
    driver.put("q", ttl_ms=1000)
    driver.write("q", 1)
    driver.claim("q", "a", lease_ms=2000)
    waiting = driver.start_claim("q", "b", wait_ms=5000)
    driver.clock.advance(2001)
    driver.tick()
    driver.commit()
    assert waiting.answer is None
    driver.write("q", 2)
    assert waiting.answer is not None and seqs_of(waiting.answer.json["claimed"]) == [2]


def test_a_cap_evicts_leased_jobs_too(driver: QueueDriver) -> None:
    driver.put("q", cap_records=2)
    driver.write("q", 1, 2)
    jobs = driver.claim("q", max=2)
    driver.write("q", 3)
    assert driver.counts("q") == (1, 1, 0)
    assert driver.ack("q", "n", jobs) == {"acked": 1, "skipped": 1, "ready": 1, "in_flight": 0}


def test_a_delete_takes_jobs_out_of_every_state(driver: QueueDriver) -> None:
    driver.write("q", *({"data": n, "tag": f"t{n}"} for n in range(4)), {"data": 4, "delay_ms": 900})
    jobs = driver.claim("q", max=2)
    driver.nack("q", "n", jobs[:1], delay_ms=100)
    assert driver.counts("q") == (2, 1, 2)
    driver.delete_records("q", match="t0")
    driver.delete_records("q", match="t1")
    driver.delete_records("q", match="t2")
    assert driver.counts("q") == (1, 0, 1)
    driver.delete_records("q", before_seq=99)
    assert driver.counts("q") == (0, 0, 0)
    driver.check_queue("q")


# --- delays, priorities and groups as they are written ----------------------------------------------------


def test_a_delay_on_write_puts_off_the_first_delivery(driver: QueueDriver) -> None:
    at_ms = driver.clock.now_ms + 700
    driver.write("q", {"data": 1, "delay_ms": 500}, {"data": 2, "deliver_at": at_ms}, 3)
    assert driver.counts("q") == (1, 0, 2)
    assert driver.claim_seqs("q", max=5) == [3]
    driver.clock.advance(500)
    assert driver.claim_seqs("q", max=5) == [1]
    driver.clock.advance(200)
    assert driver.claim_seqs("q", max=5) == [2]


def test_groups_run_in_parallel_and_in_order_inside(driver: QueueDriver) -> None:
    driver.write("q", *({"data": n, "group": "ab"[n % 2]} for n in range(6)))
    for expected in ([1, 2], [3, 4], [5, 6]):
        jobs = driver.claim("q", max=10)
        assert seqs_of(jobs) == expected
        assert driver.claim("q", max=10) == []
        driver.check_queue("q")
        driver.ack("q", "n", jobs)


@pytest.mark.parametrize("restart", ["kill", "snapshot", "sealed"])
def test_what_a_writer_asked_for_survives_a_restart(driver: QueueDriver, restart: str) -> None:
    driver.write(
        "q",
        {"data": 1, "group": "g"},
        {"data": 2, "group": "g"},
        {"data": 3, "delay_ms": 1000},
        4,
        {"data": 5, "priority": 9},
    )
    driver.sync()
    if restart == "sealed":
        assert driver.seal()
    if restart != "kill":
        for _ in range(3):
            driver.snapshot()
    driver.kill()
    assert driver.counts("q") == (4, 0, 1)
    assert driver.claim_seqs("q") == [5]
    jobs = driver.claim("q", max=9)
    assert seqs_of(jobs) == [1, 4]
    driver.ack("q", "n", jobs)
    driver.clock.advance(1000)
    assert driver.claim_seqs("q", max=9) == [2, 3]


# --- jitter -----------------------------------------------------------------------------------------------


def test_claims_within_the_window_share_evenly(driver: QueueDriver) -> None:
    driver.put("q", claim_jitter_ms=50)
    driver.write("q", *range(7))
    calls = [driver.start_claim("q", f"w{n}", max=100) for n in range(3)]
    driver.commit()
    assert [call.answer for call in calls] == [None] * 3
    driver.clock.advance(49)
    late = driver.start_claim("q", "late", max=1)
    driver.tick()
    assert late.answer is None
    driver.clock.advance(1)
    driver.tick()
    shares = [seqs_of(call.answer.json["claimed"]) for call in (*calls, late) if call.answer]
    assert sorted(seq for share in shares for seq in share) == list(range(1, 8))
    assert [len(share) for share in shares] == [2, 2, 2, 1]


def test_a_window_is_not_prolonged_by_those_who_join(driver: QueueDriver) -> None:
    driver.put("q", claim_jitter_ms=50)
    driver.write("q", 1, 2, 3)
    first = driver.start_claim("q", "a")
    driver.clock.advance(30)
    second = driver.start_claim("q", "b")
    assert driver.engine.next_deadline_ms() == driver.clock.now_ms + 20
    driver.clock.advance(20)
    third = driver.start_claim("q", "c")
    driver.tick()
    assert first.answer is not None and second.answer is not None
    assert third.answer is None, "its window has only begun"
    driver.clock.advance(50)
    driver.tick()
    assert third.answer is not None and seqs_of(third.answer.json["claimed"]) == [3]


def test_those_who_wait_longer_than_the_window_do_not_split_the_next_one(driver: QueueDriver) -> None:
    driver.put("q", claim_jitter_ms=50)
    patient = driver.start_claim("q", "patient", wait_ms=10_000)
    driver.clock.advance(60)
    driver.tick()
    assert patient.answer is None
    assert driver.engine.next_deadline_ms() == driver.clock.now_ms + 9940, "nothing to look at before"
    calls = [driver.start_claim("q", node, wait_ms=1000, max=5) for node in "ab"]
    driver.clock.advance(50)
    driver.tick()
    driver.write("q", *range(6))
    shares = [len(call.answer.json["claimed"]) for call in (patient, *calls) if call.answer]
    assert shares == [1, 3, 2]


def test_without_jobs_a_window_ends_with_an_empty_answer(driver: QueueDriver) -> None:
    driver.put("q", claim_jitter_ms=50)
    call = driver.start_claim("q", "a")
    driver.clock.advance(50)
    driver.tick()
    assert call.answer is not None and call.answer.json["claimed"] == []


def test_waiting_claims_share_evenly_without_a_window_too(driver: QueueDriver) -> None:
    calls = [driver.start_claim("q", node, max=10, wait_ms=1000) for node in "abc"]
    driver.write("q", *range(5))
    assert [call.answer.json["count"] for call in calls if call.answer] == [2, 2, 1]


# --- waiting ----------------------------------------------------------------------------------------------


def test_an_append_wakes_a_waiting_claim(driver: QueueDriver) -> None:
    call = driver.start_claim("q", "n", wait_ms=1000)
    driver.commit()
    assert call.answer is None
    driver.write("q", "job")
    assert call.answer is not None and call.answer.json["claimed"][0]["data"] == "job"


def test_a_nack_wakes_a_waiting_claim(driver: QueueDriver) -> None:
    driver.write("q", 1)
    jobs = driver.claim("q", "a")
    call = driver.start_claim("q", "b", wait_ms=1000)
    driver.commit()
    assert call.answer is None
    driver.nack("q", "a", jobs)
    assert call.answer is not None and call.answer.json["claimed"][0]["deliveries"] == 2


@pytest.mark.parametrize("cause", ["lease", "nack", "write"])
def test_time_wakes_a_waiting_claim(driver: QueueDriver, cause: str) -> None:
    if cause == "write":
        driver.write("q", {"data": 1, "delay_ms": 300})
    else:
        driver.write("q", 1)
        jobs = driver.claim("q", "a", lease_ms=300)
        if cause == "nack":
            driver.nack("q", "a", jobs, delay_ms=300)
    call = driver.start_claim("q", "b", wait_ms=1000)
    driver.commit()
    assert driver.engine.next_deadline_ms() == driver.clock.now_ms + 300
    driver.clock.advance(299)
    driver.tick()
    assert call.answer is None
    driver.clock.advance(1)
    driver.tick()
    driver.commit()
    assert call.answer is not None and call.answer.json["count"] == 1


def test_the_next_of_a_group_wakes_a_waiting_claim(driver: QueueDriver) -> None:
    driver.write("q", {"data": 1, "group": "g"}, {"data": 2, "group": "g"})
    jobs = driver.claim("q", "a")
    call = driver.start_claim("q", "b", wait_ms=1000)
    driver.commit()
    assert call.answer is None
    driver.ack("q", "a", jobs)
    assert call.answer is not None and seqs_of(call.answer.json["claimed"]) == [2]


def test_a_wait_ends_with_an_empty_answer(driver: QueueDriver) -> None:
    call = driver.start_claim("q", "n", wait_ms=1000)
    driver.clock.advance(999)
    driver.tick()
    assert call.answer is None
    driver.clock.advance(1)
    driver.tick()
    assert call.answer is not None and call.answer.json == {
        "topic": "q",
        "claimed": [],
        "count": 0,
        "ready": 0,
    }


def test_a_wait_is_no_longer_than_the_limit(driver: QueueDriver) -> None:
    driver.start_claim("q", "n", wait_ms=10**9)
    assert driver.engine.next_deadline_ms() == driver.clock.now_ms + WAIT_MAX_MS


def test_a_cancelled_claim_takes_no_job(driver: QueueDriver) -> None:
    call = driver.start_claim("q", "n", wait_ms=1000)
    other = driver.start_claim("q", "m", wait_ms=1000)
    [id_, _] = driver._sink.calls
    driver.submit(Op.CANCEL, "", None, {"id": id_})
    assert call.answer is not None and call.answer.status == 499
    driver.write("q", 1)
    assert other.answer is not None and other.answer.json["count"] == 1


def test_a_link_that_is_gone_takes_no_job(driver: QueueDriver) -> None:
    call = driver.start_claim("q", "n", wait_ms=1000)
    driver.engine.forget_sink(driver._sink)
    driver.write("q", 1)
    assert call.answer is None
    assert driver.counts("q") == (1, 0, 0)


def test_a_deleted_queue_answers_those_who_wait(driver: QueueDriver) -> None:
    call = driver.start_claim("q", "n", wait_ms=1000)
    driver.delete_topic("q")
    assert call.answer is not None and call.answer.error == "topic_not_found"


def test_shutdown_answers_those_who_wait(driver: QueueDriver) -> None:
    call = driver.start_claim("q", "n", wait_ms=1000)
    driver.engine.expire_all_polls()
    assert call.answer is not None and call.answer.json["claimed"] == []
    assert driver.engine.next_deadline_ms() is None


def test_a_durable_claim_that_waited_is_answered_when_its_lease_is_written(driver: QueueDriver) -> None:
    driver.make("d", durability="fsync", leases_durable=True)
    call = driver.start_claim("d", "n", wait_ms=1000)
    driver.start_append("d", [{"data": 1}])
    driver.sync()
    assert call.answer is None, "the lease is not on the disk yet"
    driver.sync()
    assert call.answer is not None
    driver.lose_power(keep="none")
    assert driver.counts("d") == (0, 1, 0)
    assert driver.ack("d", "n", call.answer.json["claimed"])["acked"] == 1


# --- durable leases ---------------------------------------------------------------------------------------


def test_a_durable_lease_survives_the_process(driver: QueueDriver) -> None:
    driver.put("q", leases_durable=True)
    driver.write("q", 1, 2)
    jobs = driver.claim("q", "a", lease_ms=5000)
    driver.kill()
    assert driver.counts("q") == (1, 1, 0)
    [lease] = driver.leases("q")["leases"]
    assert (lease["seq"], lease["node"], lease["deliveries"]) == (1, "a", 1)
    assert lease["lease_id"] == jobs[0]["lease_id"]
    assert driver.ack("q", "a", jobs)["acked"] == 1


def test_other_leases_end_with_the_process(driver: QueueDriver) -> None:
    driver.write("q", 1)
    jobs = driver.claim("q", "a", lease_ms=5000)
    driver.sync()
    driver.kill()
    assert driver.counts("q") == (1, 0, 0)
    assert driver.ack("q", "a", jobs)["skipped"] == 1
    assert driver.claim_seqs("q", "b") == [1]


def test_a_delayed_nack_survives_the_process_in_either_case(driver: QueueDriver) -> None:
    driver.write("q", 1)
    driver.nack("q", "n", driver.claim("q"), delay_ms=500)
    driver.kill()
    assert driver.counts("q") == (0, 0, 1)
    driver.clock.advance(500)
    assert driver.claim_seqs("q") == [1]


def test_leases_stop_surviving_when_the_queue_is_told_so(driver: QueueDriver) -> None:
    driver.put("q", leases_durable=True)
    driver.write("q", 1)
    driver.claim("q", "a")
    driver.put("q", leases_durable=False)
    driver.kill()
    assert driver.counts("q") == (1, 0, 0)


@pytest.mark.parametrize("durable", [False, True])
def test_two_claims_of_one_turn_never_get_the_same_job(durable: bool) -> None:
    driver = QueueDriver()
    driver.make("q", durability="fsync", leases_durable=durable)
    driver.write("q", 1, 2, 3)
    calls = [driver.start_claim("q", node, max=2) for node in "ab"]
    driver.settle()
    found = [seqs_of(call.answer.json["claimed"]) for call in calls if call.answer]
    assert found == [[1, 2], [3]]


def test_a_nack_on_its_way_to_the_disk_is_not_done_to_the_next_holder() -> None:
    driver = QueueDriver()
    driver.make("q", durability="fsync")
    driver.write("q", 1)
    jobs = driver.claim("q", "a")
    driver.start_append("q", [{"data": 2}])
    driver.commit()  # so the topic waits for a sync, and its frames queue behind
    nack = driver.start_nack("q", "a", jobs, delay_ms=1)
    driver.clock.advance(5)
    early = driver.start_claim("q", "b")
    assert early.answer is not None and early.answer.json["claimed"] == []
    driver.settle()
    assert nack.answer is not None and nack.answer.json["nacked"] == 1
    again = driver.claim("q", "b")
    assert driver.ack("q", "b", again)["acked"] == 1


def test_an_extend_that_waits_for_the_disk_keeps_the_lease_alive_meanwhile() -> None:
    driver = QueueDriver()
    driver.make("q", durability="fsync", leases_durable=True)
    driver.write("q", 1)
    jobs = driver.claim("q", "a", lease_ms=100)
    driver.start_append("q", [{"data": 2}])
    driver.commit()
    extend = driver.start_extend("q", "a", jobs, 1000)
    driver.clock.advance(150)
    assert driver.start_claim("q", "b", max=5).answer is not None, "nothing to claim, so nothing to write"
    driver.settle()
    assert extend.answer is not None and extend.answer.json["extended"] == 1
    assert driver.ack("q", "a", jobs)["acked"] == 1


# --- when the log cannot be written -----------------------------------------------------------------------


@pytest.fixture(params=[False, True], ids=["plain", "durable"])
def failing(request: pytest.FixtureRequest) -> QueueDriver:
    """One job claimed by `a`, nothing unsynced."""
    driver = QueueDriver(wal_file_bytes=1 << 16)
    driver.make("q", leases_durable=request.param)
    driver.write("q", 1, 2)
    driver.sync()
    return driver


def fail_write(driver: QueueDriver) -> None:
    driver.sync()
    driver.disk.fail_on("write", 1, errno.EIO, "/wal/")


def test_an_ack_that_could_not_be_written_leaves_the_job_with_its_holder(failing: QueueDriver) -> None:
    jobs = failing.claim("q", "a")
    fail_write(failing)
    call = failing.start_ack("q", "a", jobs)
    failing.commit()
    assert call.answer is not None and call.answer.status == 503
    assert failing.counts("q") == (1, 1, 0)
    assert failing.claim_seqs("q", "b", max=5) == [2], "not taken from its holder"
    assert failing.ack("q", "a", jobs)["acked"] == 1
    failing.check_queue("q")


def test_a_delayed_nack_that_could_not_be_written_leaves_the_lease(failing: QueueDriver) -> None:
    jobs = failing.claim("q", "a")
    fail_write(failing)
    call = failing.start_nack("q", "a", jobs, delay_ms=50)
    failing.commit()
    assert call.answer is not None and call.answer.status == 503
    assert failing.counts("q") == (1, 1, 0)
    assert failing.nack("q", "a", jobs, delay_ms=50)["nacked"] == 1


def test_a_durable_claim_that_could_not_be_written_is_no_delivery() -> None:
    driver = QueueDriver(wal_file_bytes=1 << 16)
    driver.make("q", leases_durable=True, max_deliveries=1, dead_letter="dl")
    driver.write("q", 1)
    fail_write(driver)
    assert driver.claim_answer("q").status == 503
    assert driver.counts("q") == (1, 0, 0)
    [job] = driver.claim("q")
    assert job["deliveries"] == 1
    assert "dl" not in driver.engine.state.catalog.visible


def test_an_extend_that_could_not_be_written_leaves_the_deadline() -> None:
    driver = QueueDriver(wal_file_bytes=1 << 16)
    driver.make("q", leases_durable=True)
    driver.write("q", 1)
    jobs = driver.claim("q", "a", lease_ms=1000)
    fail_write(driver)
    call = driver.start_extend("q", "a", jobs, 9000)
    driver.commit()
    assert call.answer is not None and call.answer.status == 503
    assert driver.leases("q")["leases"][0]["deadline"] == jobs[0]["deadline"]
    driver.clock.advance(1000)
    assert driver.claim_seqs("q") == [1]


def test_a_read_only_shard_refuses_what_must_be_written_and_serves_the_rest(failing: QueueDriver) -> None:
    jobs = failing.claim("q", "a")
    failing.disk.fail_on("write", 1, errno.ENOSPC, "/wal/")
    failing.append("q", [{"data": 3}])
    assert failing.engine.commits.read_only is not None
    assert failing.call(Op.ACK, "q", decision("a", jobs)).status == 503
    assert failing.call(Op.NACK, "q", decision("a", jobs, delay_ms=10)).status == 503
    durable = failing.topic("q").config.leases_durable
    assert failing.claim_answer("q", "b").status == (503 if durable else 200)
    assert failing.counts("q")[1] >= 1, "the holder still has its job"
    failing.check_queue("q")


# --- looking at leases ------------------------------------------------------------------------------------


def test_leases_are_listed_page_by_page(driver: QueueDriver) -> None:
    driver.write("q", *range(5))
    driver.claim("q", "a", max=3, lease_ms=1000)
    driver.clock.advance(40)
    driver.claim("q", "b", lease_ms=500)
    page = driver.leases("q", limit=3)
    assert [lease["seq"] for lease in page["leases"]] == [1, 2, 3]
    assert page["in_flight"] == 4
    assert page["leases"][0] == {
        "seq": 1,
        "node": "a",
        "lease_id": page["leases"][0]["lease_id"],
        "deliveries": 1,
        "age_ms": 40,
        "deadline": driver.clock.now_ms - 40 + 1000,
    }
    rest = driver.leases("q", limit=3, after=int(page["next_cursor"]))
    assert [(lease["seq"], lease["node"]) for lease in rest["leases"]] == [(4, "b")]
    assert "next_cursor" not in rest
    driver.clock.advance(500)
    assert [lease["seq"] for lease in driver.leases("q")["leases"]] == [1, 2, 3], "expired ones are gone"
