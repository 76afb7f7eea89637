"""Dead letters and their way back: on one shard, and across a network that refuses, loses, repeats and holds back."""

from __future__ import annotations

import errno

import pytest

from shard_worker.core.job_json import records_of
from shared.limits import MOVE_RETRY_MS, REDRIVE_DEFAULT_LIMIT
from shared.wire import Op
from tests.support.queue_driver import FakeNetwork, QueueDriver, seqs_of, two_shards


def wear_out(driver: QueueDriver, name: str = "q", count: int = 1, deliveries: int = 1) -> None:
    """Deliver jobs as often as they may be, and let the leases run out."""
    for _ in range(deliveries):
        assert len(driver.claim(name, "worn", max=count, lease_ms=100)) == count
        driver.clock.advance(100)


def bury(driver: QueueDriver, name: str = "q") -> None:
    """Somebody claims; whoever is over the limit goes."""
    driver.claim(name, "next", max=10, lease_ms=100)
    driver.run_moves()


@pytest.fixture
def driver() -> QueueDriver:
    driver = QueueDriver(wal_file_bytes=1 << 16)
    driver.make("q", max_deliveries=1, dead_letter="dl")
    return driver


# --- dead letters on the same shard -----------------------------------------------------------------------


def test_a_job_due_for_one_delivery_too_many_moves() -> None:
    driver = QueueDriver()
    driver.make("q", max_deliveries=3, dead_letter="dl")
    driver.write("q", {"data": {"n": 1}, "tag": "t", "key": "k", "node": "writer", "meta": {"m": [1]}})
    for delivery in (1, 2, 3):
        [job] = driver.claim("q", lease_ms=100)
        assert job["deliveries"] == delivery
        driver.clock.advance(100)
    assert driver.claim("q") == []
    driver.run_moves()
    assert driver.data("q") == []
    [record] = driver.read_all("dl", include_tags=True, include_keys=True)
    assert record == {
        "$seq": 1,
        "$ts": driver.clock.now_ms,
        "$tag": "t",
        "$key": "k",
        "$node": "writer",
        "data": {"n": 1},
        "meta": {
            "m": [1],
            "$dead_letter_from": "q",
            "$dead_letter_deliveries": 3,
            "$dead_letter_src_seq": 1,
        },
    }
    assert driver.state("q").json["queue"]["dead_lettered"] == 1


def test_without_a_dead_letter_topic_a_job_is_delivered_for_ever() -> None:
    driver = QueueDriver()
    driver.make("q", max_deliveries=1)
    driver.write("q", 1)
    wear_out(driver, deliveries=5)
    assert driver.claim_seqs("q") == [1]


def test_a_nack_counts_like_any_other_delivery(driver: QueueDriver) -> None:
    driver.write("q", 1, 2)
    driver.nack("q", "n", driver.claim("q"))
    assert driver.claim_seqs("q") == [2], "the first one goes to the dead letters, the next to the claimer"
    driver.run_moves()
    assert driver.data("dl") == [1]


def test_a_destination_that_is_absent_is_made_as_durable_as_the_queue() -> None:
    driver = QueueDriver()
    driver.make("q", durability="fsync", max_deliveries=1, dead_letter="dl")
    driver.write("q", 1)
    wear_out(driver)
    bury(driver)
    assert driver.topic("dl").config.durability == "fsync"


def test_nobody_can_claim_or_ack_a_job_on_its_way(driver: QueueDriver) -> None:
    driver.write("q", 1)
    jobs = driver.claim("q", lease_ms=100)
    driver.clock.advance(100)
    driver.start_claim("q", "other")
    assert driver.claim("q") == []
    assert driver.ack("q", "n", jobs)["skipped"] == 1
    assert driver.counts("q") == (1, 0, 0)
    driver.run_moves()
    assert driver.counts("q") == (0, 0, 0)


def test_a_full_destination_is_tried_again_later(driver: QueueDriver) -> None:
    driver.put("dl", cap_records=1, discard="reject")
    driver.append("dl", [{"data": "full"}])
    driver.write("q", 1)
    wear_out(driver)
    bury(driver)
    assert (driver.data("q"), driver.data("dl")) == ([1], ["full"])
    assert driver.counts("q") == (0, 0, 1)
    bury(driver)
    assert driver.data("dl") == ["full"], "not before its time"
    driver.clock.advance(MOVE_RETRY_MS)
    bury(driver)
    assert driver.data("q") == [1]
    driver.delete_records("dl", before_seq=99)
    driver.clock.advance(MOVE_RETRY_MS)
    bury(driver)
    assert (driver.data("q"), driver.data("dl")) == ([], [1])


def test_somebody_who_waits_makes_the_retry_happen(driver: QueueDriver) -> None:
    driver.put("dl", cap_records=1, discard="reject")
    driver.append("dl", [{"data": "full"}])
    driver.write("q", 1)
    wear_out(driver)
    driver.start_claim("q", "n", wait_ms=10_000)
    driver.run_moves()
    driver.put("dl", cap_records=0)
    driver.clock.advance(MOVE_RETRY_MS)
    assert driver.engine.next_deadline_ms() <= driver.clock.now_ms
    driver.tick()
    driver.run_moves()
    assert driver.data("dl") == ["full", 1]


def test_a_removal_that_could_not_be_written_is_tried_again_without_a_copy(driver: QueueDriver) -> None:
    driver.put("dl")
    driver.write("q", 1)
    wear_out(driver)
    driver.claim("q")
    driver.disk.fail_on("write", 1, errno.EIO, "/wal/")
    driver.sync()  # the copy is at its destination, the removal behind it is refused
    driver.check_queue("q")
    assert driver.data("q") == driver.data("dl") == [1]
    driver.clock.advance(MOVE_RETRY_MS)
    bury(driver)
    assert (driver.data("q"), driver.data("dl")) == ([], [1])
    assert driver.state("q").json["queue"]["dead_lettered"] == 1


def test_a_copy_that_could_not_be_written_leaves_the_job(driver: QueueDriver) -> None:
    driver.put("dl")
    driver.write("q", 1)
    wear_out(driver)
    driver.disk.fail_on("write", 1, errno.EIO, "/wal/")
    driver.claim("q")
    driver.run_moves()
    assert (driver.data("q"), driver.data("dl")) == ([1], [])
    driver.clock.advance(MOVE_RETRY_MS)
    bury(driver)
    assert (driver.data("q"), driver.data("dl")) == ([], [1])


def test_a_dead_letter_queue_of_a_dead_letter_queue_names_the_last_one(driver: QueueDriver) -> None:
    driver.make("dl", max_deliveries=1, dead_letter="dl2")
    driver.write("q", {"data": 1, "meta": {"a": 1}})
    wear_out(driver)
    bury(driver)
    driver.clock.advance(1000)
    wear_out(driver, "dl")
    bury(driver, "dl")
    text = driver.read_answer("dl2").text
    assert text.count(b"$dead_letter_from") == 1
    assert driver.read("dl2")["records"][0]["meta"] == {
        "a": 1,
        "$dead_letter_from": "dl",
        "$dead_letter_deliveries": 1,
        "$dead_letter_src_seq": 1,
    }


def test_the_group_goes_on_when_its_head_is_dead(driver: QueueDriver) -> None:
    driver.write("q", {"data": 1, "group": "g"}, {"data": 2, "group": "g"})
    wear_out(driver)
    assert driver.claim("q") == [], "the head is on its way"
    driver.run_moves()
    assert driver.claim_seqs("q") == [2]


def test_many_dead_jobs_go_in_one_write(driver: QueueDriver) -> None:
    driver.put("dl")
    driver.write("q", *range(50))
    wear_out(driver, count=50)
    groups = driver.engine.wal.counters.groups
    assert driver.claim("q", max=50) == []
    driver.run_moves()
    assert driver.data("dl") == list(range(50))
    assert driver.engine.wal.counters.groups - groups <= 3


def test_moves_go_on_while_the_destination_is_busy_with_other_writes() -> None:
    driver = QueueDriver(wal_file_bytes=1 << 16)
    driver.make("q", max_deliveries=1, dead_letter="dl")
    driver.put("dl", durability="fsync")
    driver.write("q", 1, 2)
    wear_out(driver, count=2)
    driver.start_append("dl", [{"data": "other"}])
    driver.commit()  # dl waits for a sync from here on
    driver.claim("q", max=1)
    driver.claim("q", max=1)
    driver.run_moves()
    assert driver.data("dl") == ["other", 1, 2]
    assert driver.data("q") == []


# --- arriving ---------------------------------------------------------------------------------------------


def arrive(driver: QueueDriver, identities: list[str], *data: object) -> int:
    body = {"records": [{"data": each} for each in data]}
    options = {"moved": identities, "durability": "disk"}
    return driver.call(Op.APPEND_MOVED, "dl", body, options).status


def test_an_identity_arrives_once(driver: QueueDriver) -> None:
    assert arrive(driver, ["q:1:1", "q:1:2"], "a", "b") == 200
    assert arrive(driver, ["q:1:2", "q:1:3"], "b", "c") == 200
    assert arrive(driver, ["q:1:1"], "a") == 200
    assert driver.data("dl") == ["a", "b", "c"]


@pytest.mark.parametrize("restart", ["kill", "snapshot"])
def test_identities_survive_a_restart(driver: QueueDriver, restart: str) -> None:
    arrive(driver, ["q:1:1"], "a")
    if restart == "snapshot":
        for _ in range(3):
            driver.snapshot()
    driver.kill()
    assert arrive(driver, ["q:1:1", "q:1:2"], "a", "b") == 200
    assert driver.data("dl") == ["a", "b"]


def test_two_tries_at_once_leave_one_copy(driver: QueueDriver) -> None:
    body = {"records": [{"data": "a"}]}
    options = {"moved": ["q:1:1"], "durability": "disk"}
    calls = [driver.submit(Op.APPEND_MOVED, "dl", body, options) for _ in range(2)]
    driver.settle()
    assert [call.answer.status for call in calls if call.answer] == [200, 503]
    assert driver.data("dl") == ["a"]
    assert arrive(driver, ["q:1:1"], "a") == 200
    assert driver.data("dl") == ["a"]


def test_a_try_that_failed_does_not_stand_in_the_way_of_the_next(driver: QueueDriver) -> None:
    driver.put("dl")
    driver.disk.fail_on("write", 1, errno.EIO, "/wal/")
    assert arrive(driver, ["q:1:1"], "a") == 503
    assert arrive(driver, ["q:1:1"], "a") == 200
    assert driver.data("dl") == ["a"]


@pytest.mark.parametrize("identities", [None, "q:1:1", [], ["q:1:1", "q:1:2"]])
def test_records_without_identities_are_refused(driver: QueueDriver, identities: object) -> None:
    options = {"moved": identities, "durability": "disk"}
    answer = driver.call(Op.APPEND_MOVED, "dl", {"records": [{"data": 1}]}, options)
    assert answer.status == 400


# --- redrive ----------------------------------------------------------------------------------------------


def with_dead_letters(count: int = 4, **config: object) -> QueueDriver:
    driver = QueueDriver(wal_file_bytes=1 << 16)
    driver.make("q", max_deliveries=1, dead_letter="dl")
    driver.put("dl", **config)
    driver.write(
        "q", *({"data": n, "tag": f"t{n % 2}", "meta": {"m": n} if n % 2 else None} for n in range(count))
    )
    wear_out(driver, count=count)
    driver.claim("q", "next", max=count, lease_ms=100)
    driver.run_moves()
    assert driver.data("dl") == list(range(count)) and driver.data("q") == []
    return driver


def test_redriven_letters_are_jobs_again_without_their_origin() -> None:
    driver = with_dead_letters()
    answer = driver.redrive("dl", "q")
    assert answer.json == {"moved": 4}
    assert driver.data("dl") == []
    jobs = driver.claim("q", max=10)
    assert [(job["$seq"], job["data"], job["deliveries"], job["$tag"]) for job in jobs] == [
        (5 + n, n, 1, f"t{n % 2}") for n in range(4)
    ]
    assert [job.get("meta") for job in jobs] == [None, {"m": 1}, None, {"m": 3}]


def test_a_redrive_takes_at_most_what_it_is_told() -> None:
    driver = with_dead_letters()
    assert driver.redrive("dl", "q", limit=3).json == {"moved": 3}
    assert (driver.data("dl"), driver.data("q")) == ([3], [0, 1, 2])


def test_a_redrive_that_names_no_limit_has_one() -> None:
    driver = QueueDriver(wal_file_bytes=1 << 20)
    driver.make("q")
    driver.append("dl", [{"data": n} for n in range(REDRIVE_DEFAULT_LIMIT + 5)])
    assert driver.redrive("dl", "q").json == {"moved": REDRIVE_DEFAULT_LIMIT}
    assert len(driver.data("dl")) == 5


def test_a_redrive_takes_only_what_matches() -> None:
    driver = with_dead_letters()
    assert driver.redrive("dl", "q", match=["tag", "Eq", "t1"], limit=1).json == {"moved": 1}
    assert driver.redrive("dl", "q", match="t1").json == {"moved": 1}
    assert driver.redrive("dl", "q", match="t1").json == {"moved": 0}
    assert (driver.data("dl"), driver.data("q")) == ([0, 2], [1, 3])


@pytest.mark.parametrize("sealed", [False, True])
def test_letters_come_back_from_segments_too(sealed: bool) -> None:
    driver = with_dead_letters()
    driver.delete_records("dl", match="t1")
    if sealed:
        assert driver.seal()
    assert driver.redrive("dl", "q").json == {"moved": 2}
    assert driver.data("q") == [0, 2]


def test_a_redriven_job_that_dies_again_moves_again() -> None:
    driver = with_dead_letters(1)
    driver.redrive("dl", "q")
    wear_out(driver)
    bury(driver)
    [record] = driver.read_all("dl")
    assert record["meta"]["$dead_letter_src_seq"] == 2
    assert driver.data("q") == []


def test_a_redrive_is_answered_when_it_lasts() -> None:
    driver = with_dead_letters(durability="fsync")
    driver.put("q", durability="fsync")
    call = driver.start_redrive("dl", "q")
    driver.sync()
    assert call.answer is None, "copied, but not removed yet"
    driver.finish(call)
    driver.lose_power(keep="none")
    assert (driver.data("dl"), driver.data("q")) == ([], [0, 1, 2, 3])


def test_a_redrive_that_could_not_remove_the_letters_says_so_and_can_be_repeated() -> None:
    driver = with_dead_letters()
    call = driver.start_redrive("dl", "q")
    driver.commit()
    driver.disk.fail_on("write", 1, errno.EIO, "/wal/")
    driver.sync()
    assert call.answer is not None and call.answer.status == 503
    assert driver.data("dl") == driver.data("q") == [0, 1, 2, 3]
    assert driver.redrive("dl", "q").json == {"moved": 4}
    assert (driver.data("dl"), driver.data("q")) == ([], [0, 1, 2, 3])


def test_leased_dead_letters_stay_and_those_on_their_way_cannot_be_claimed() -> None:
    driver = QueueDriver(wal_file_bytes=1 << 16)
    driver.make("q")
    driver.make("dl")
    driver.write("dl", 0, 1, {"data": 2, "delay_ms": 60_000})
    held = driver.claim("dl")
    call = driver.start_redrive("dl", "q")
    assert driver.claim("dl", max=5) == []
    driver.finish(call)
    assert call.answer is not None and call.answer.json == {"moved": 2}
    assert (driver.data("dl"), driver.data("q")) == ([0], [1, 2])
    driver.check_queue("dl")
    assert driver.ack("dl", "n", held)["acked"] == 1


def test_a_lease_that_ran_out_does_not_hold_a_dead_letter_back() -> None:
    driver = QueueDriver()
    driver.make("q")
    driver.make("dl")
    driver.write("dl", 0)
    driver.claim("dl", lease_ms=100)
    driver.clock.advance(100)
    assert driver.redrive("dl", "q").json == {"moved": 1}


def test_a_dead_letter_that_has_expired_does_not_come_back() -> None:
    driver = QueueDriver()
    driver.make("q")
    driver.put("dl", ttl_ms=1000)
    driver.append("dl", [{"data": "old"}])
    driver.clock.advance(1001)
    driver.append("dl", [{"data": "new"}])
    assert driver.redrive("dl", "q").json == {"moved": 1}
    assert driver.data("q") == ["new"]


def test_letters_that_could_not_move_can_be_claimed_again() -> None:
    driver = QueueDriver()
    driver.make("q", cap_records=1, discard="reject")
    driver.write("q", "full")
    driver.make("dl")
    driver.write("dl", 0)
    assert driver.redrive("dl", "q").status == 503
    assert driver.claim_seqs("dl") == [1]


@pytest.mark.parametrize("discard", ["old", "reject"])
def test_more_letters_than_the_queue_may_hold_come_back_in_parts(discard: str) -> None:
    driver = QueueDriver(wal_file_bytes=1 << 16)
    driver.make("q", cap_records=3, discard=discard)
    driver.make("dl")
    driver.write("dl", *range(8))
    came: list[object] = []
    while (answer := driver.redrive("dl", "q")).json != {"moved": 0}:
        assert answer.json == {"moved": len(driver.data("q"))}, "the first ones, and as many as it says"
        driver.check_queue("dl")
        jobs = driver.claim("q", max=9)
        came += [job["data"] for job in jobs]
        driver.ack("q", "n", jobs)
    assert came == [*range(8)]


def test_a_redrive_into_a_full_queue_says_what_to_do() -> None:
    driver = QueueDriver()
    driver.make("q", cap_records=1, discard="reject")
    driver.write("q", "full")
    driver.make("dl")
    driver.write("dl", 0, 1, 2)
    answer = driver.redrive("dl", "q")
    assert answer.status == 503
    assert "q is full: make room there, or raise its cap" in answer.json["error"]["message"]
    assert driver.claim_seqs("dl", max=5) == [1, 2, 3]


def test_more_worn_out_jobs_than_the_dead_letters_may_hold_go_in_parts(driver: QueueDriver) -> None:
    driver.put("dl", cap_records=2, discard="reject")
    driver.write("q", *range(5))
    wear_out(driver, count=5)
    seen: list[object] = []
    for _ in range(5):
        bury(driver)
        driver.check_queue("q")
        seen += driver.data("dl")
        driver.delete_records("dl", before_seq=99)
        driver.clock.advance(MOVE_RETRY_MS)
    assert (driver.data("q"), seen) == ([], [*range(5)])


def test_a_redrive_from_nowhere_or_into_itself_is_refused() -> None:
    driver = with_dead_letters()
    assert driver.redrive("absent", "q").error == "topic_not_found"
    assert driver.redrive("q", "q").error == "invalid_request"


def test_a_redrive_of_nothing_moves_nothing() -> None:
    driver = QueueDriver()
    driver.put("dl")
    driver.make("q")
    assert driver.redrive("dl", "q").json == {"moved": 0}


# --- between shards ---------------------------------------------------------------------------------------


@pytest.fixture
def pair() -> tuple[QueueDriver, QueueDriver, FakeNetwork]:
    source, target = two_shards({"q": 0, "dl": 1})
    assert source.network is not None
    source.make("q", max_deliveries=1, dead_letter="dl")
    source.write("q", 1, 2)
    source.sync()
    wear_out(source, count=2)
    return source, target, source.network


Pair = tuple[QueueDriver, QueueDriver, FakeNetwork]


def crash(pair: Pair) -> None:
    source, target, _ = pair
    source.disk.kill_process()
    source.reopen()
    target.reopen()


def test_dead_letters_cross_shards(pair: Pair) -> None:
    source, target, _ = pair
    bury(source)
    assert (source.data("q"), target.data("dl")) == ([], [1, 2])
    assert target.topic("dl").moved == {f"q:{source.topic('q').epoch}:{seq}": seq for seq in (1, 2)}


def test_jobs_stay_when_the_other_shard_cannot_be_reached(pair: Pair) -> None:
    source, target, network = pair
    network.down.add(1)
    bury(source)
    assert (source.data("q"), target.data("dl")) == ([1, 2], [])
    assert source.counts("q") == (0, 0, 2)
    network.down.clear()
    source.clock.advance(MOVE_RETRY_MS)
    bury(source)
    assert (source.data("q"), target.data("dl")) == ([], [1, 2])


@pytest.mark.parametrize("fault", ["refuse", "lose", "repeat", "hold"])
def test_every_job_is_in_one_place_in_the_end_whatever_the_network_does(pair: Pair, fault: str) -> None:
    source, target, network = pair
    network.faults = [fault] * 3
    for _ in range(6):
        bury(source)
        assert sorted({*source.data("q"), *target.data("dl")}) == [1, 2], "never in neither place"
        assert len(target.data("dl")) == len(set(target.data("dl")))
        source.check_queue("q")
        network.let_go()
        source.run_moves()
        source.clock.advance(MOVE_RETRY_MS)
    assert (source.data("q"), target.data("dl")) == ([], [1, 2])


def test_while_an_answer_is_held_back_nobody_gets_the_job(pair: Pair) -> None:
    source, target, network = pair
    network.faults = ["hold"]
    bury(source)
    source.clock.advance(100 * MOVE_RETRY_MS)
    assert source.claim("q", max=5) == []
    assert network.messages == 1, "and nobody sends it again"
    network.let_go()
    source.run_moves()
    assert (source.data("q"), target.data("dl")) == ([], [1, 2])


def test_an_answer_that_comes_after_the_queue_was_deleted_changes_nothing(pair: Pair) -> None:
    source, target, network = pair
    network.faults = ["hold"]
    bury(source)
    source.delete_topic("q")
    source.make("q")
    source.write("q", "new")
    network.let_go()
    source.run_moves()
    assert (source.data("q"), target.data("dl")) == (["new"], [1, 2])


def test_the_destination_restarts_between_copy_and_removal(pair: Pair) -> None:
    source, target, network = pair
    network.faults = ["lose"]
    bury(source)
    target.disk = target.disk.clone().kill_process()
    target.reopen()
    source.clock.advance(MOVE_RETRY_MS)
    bury(source)
    assert (source.data("q"), target.data("dl")) == ([], [1, 2])


def test_letters_come_back_across_shards(pair: Pair) -> None:
    source, target, network = pair
    bury(source)
    network.faults = ["lose", "refuse"]
    assert target.redrive("dl", "q").status == 503
    assert target.redrive("dl", "q").status == 503
    assert target.redrive("dl", "q").json == {"moved": 2}
    assert (source.data("q"), target.data("dl")) == ([1, 2], [])
    assert seqs_of(source.claim("q", max=5)) == [3, 4]


@pytest.mark.parametrize("state", ["ready", "leased"])
def test_a_letter_whose_job_survived_a_crash_comes_back_once(pair: Pair, state: str) -> None:
    source, target, network = pair
    network.faults = ["lose"]
    bury(source)
    crash(pair)
    assert (source.data("q"), target.data("dl")) == ([1, 2], [1, 2]), "copied, and not removed"
    held = source.claim("q", max=1) if state == "leased" else []
    assert target.redrive("dl", "q").json == {"moved": 2}
    source.sync()
    source.check_queue("q")
    assert (source.data("q"), target.data("dl")) == ([1, 2], [])
    assert seqs_of(source.claim("q", "m", max=9)) == [3, 4]
    if held:
        assert source.ack("q", "n", held) == {"acked": 0, "skipped": 1, "ready": 0, "in_flight": 2}


def test_a_repeated_redrive_lets_go_of_a_survivor_too(pair: Pair) -> None:
    source, target, network = pair
    network.faults = ["lose", "lose"]
    bury(source)
    crash(pair)
    assert target.redrive("dl", "q").status == 503, "its answer was lost"
    assert target.redrive("dl", "q").json == {"moved": 2}
    source.sync()
    assert (source.data("q"), target.data("dl")) == ([1, 2], [])


def test_letters_stay_while_the_burial_of_their_jobs_goes_on(pair: Pair) -> None:
    source, target, network = pair
    network.faults = ["hold"]
    bury(source)
    assert target.redrive("dl", "q").status == 503
    network.let_go()
    source.run_moves()
    assert (source.data("q"), target.data("dl")) == ([], [1, 2])
    assert target.redrive("dl", "q").json == {"moved": 2}
    assert (source.data("q"), target.data("dl")) == ([1, 2], [])


def test_a_letter_does_not_take_a_job_of_a_later_queue_of_the_same_name(pair: Pair) -> None:
    source, target, _ = pair
    bury(source)
    source.delete_topic("q")
    source.make("q")
    source.write("q", "new", "newer")
    source.sync()
    assert target.redrive("dl", "q").json == {"moved": 2}
    assert source.data("q") == ["new", "newer", 1, 2]


def test_survivors_stay_if_the_letters_cannot_be_written(pair: Pair) -> None:
    source, target, network = pair
    network.faults = ["lose"]
    bury(source)
    crash(pair)
    held = source.claim("q", max=1)
    source.disk.fail_on("write", 1, errno.EIO, "/wal/")
    assert target.redrive("dl", "q").status == 503
    source.check_queue("q")
    assert (source.data("q"), target.data("dl")) == ([1, 2], [1, 2])
    assert source.ack("q", "n", held)["acked"] == 1
    assert seqs_of(source.claim("q", "m", max=9)) == [2]


def test_a_letter_that_somebody_dealt_with_is_not_put_there_again(pair: Pair) -> None:
    source, target, network = pair
    target.make("dl")
    network.faults = ["lose"]
    bury(source)
    target.ack("dl", "n", target.claim("dl"))
    source.clock.advance(MOVE_RETRY_MS)
    bury(source)
    assert (source.data("q"), target.data("dl")) == ([], [2])


@pytest.mark.parametrize("restart", [False, True])
def test_a_redriven_job_that_is_done_does_not_return_with_the_repeat(pair: Pair, restart: bool) -> None:
    source, target, network = pair
    source.put("q", durability="fsync")
    bury(source)
    network.faults = ["lose"]
    assert target.redrive("dl", "q").status == 503
    source.ack("q", "n", source.claim("q"))
    if restart:
        source.disk.kill_process()
        source.reopen()
        target.reopen()
    assert (source.data("q"), target.data("dl")) == ([2], [1, 2])
    assert target.redrive("dl", "q").json == {"moved": 2}
    assert (source.data("q"), target.data("dl")) == ([2], [])


def test_the_way_there_and_back_leaves_the_record_as_it_was(pair: Pair) -> None:
    source, target, _ = pair
    source.write("q", {"data": {"a": 1.5}, "tag": "t", "key": "k", "node": "n", "meta": {"x": "y"}})
    topic, files = source.topic("q"), source.engine.state.source
    wear_out(source)
    bury(source)
    target.redrive("dl", "q")
    [(_, before, place)] = records_of(topic, [topic.head], files)
    assert before.columns.tag(place) == b"t" and before.columns.key(place) == b"k"
    record = source.read_all("q", include_tags=True, include_keys=True)[-1]
    assert (record["data"], record["meta"], record["$node"]) == ({"a": 1.5}, {"x": "y"}, "n")
