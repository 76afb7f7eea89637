"""Routers in the fault catalogue, Q4 to Q6: either side dies at any point, destinations fill up and go, routers go.

The stories run over shards on fake disks of their own, joined by a wire that loses what a dying shard had on its way
(tests/support/router_shards.py). docs/fault-coverage-queues.md has the table; tests/model/test_router_model.py tells
stories that nobody thought of.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from shared.limits import FORWARD_RETRY_MAX_MS
from shared.wire import Op
from tests.support.fake_disk import Keep, PowerCut
from tests.support.router_shards import RouterShards

PLACES = {"s": 0, "d": 1, "e": 0, "f": 1}
GUARANTEES = ["exactly_once", "at_least_once"]
DURABILITIES = ["fsync", "disk"]


def joined(
    guarantee: str = "exactly_once", durability: str = "disk", dest: str = "d", **rules: object
) -> RouterShards:
    """A source on shard 0, a router to `dest`, three records that have arrived."""
    shards = RouterShards(PLACES)
    shards.put("s", durability=durability)
    shards.put(dest, durability=durability)
    shards.put_router("r", source="s", dest=dest, guarantee=guarantee, **rules)
    shards.write("s", 1, 2, 3)
    shards.settle()
    assert shards.data(dest) == [1, 2, 3]
    for driver in shards.drivers.values():
        driver.sync()
    return shards


def come_to_rest(shards: RouterShards) -> None:
    for _ in range(3):
        shards.settle()
        shards.wait(FORWARD_RETRY_MAX_MS)
    shards.settle()


# --- Q4: either side dies ---------------------------------------------------------------------------------


def cut_everywhere(prepare: Callable[[], RouterShards], shard: int) -> Iterator[RouterShards]:
    """Two records on their way, cut at the first change of that shard's disk, at the second, …"""
    step = 0
    while True:
        step += 1
        shards = prepare()
        disk = shards.drivers[shard].disk
        disk.crash_after(step, half=step % 2 == 0, seed=step)
        try:
            shards.write("s", 4)
            shards.write("s", 5)
            shards.settle()
            for driver in shards.drivers.values():
                driver.tick()
                driver.sync()
        except PowerCut:
            yield shards
            continue
        assert step > 1, "nothing was written at all"
        disk.clear_faults()
        return


@pytest.mark.parametrize("guarantee", GUARANTEES)
@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("shard", [0, 1], ids=["source", "destination"])
def test_q04_either_shard_killed_at_any_point_copies_each_record_once(
    shard: int, durability: str, guarantee: str
) -> None:
    cuts = 0
    for shards in cut_everywhere(lambda: joined(guarantee, durability), shard):
        cuts += 1
        shards.drivers[shard].disk.clear_faults()
        shards.wire.cut(shard)
        shards.drivers[shard].kill()
        come_to_rest(shards)
        assert shards.data("d") == shards.data("s"), f"cut {cuts}"
    assert cuts >= 2


@pytest.mark.parametrize("guarantee", GUARANTEES)
@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("shard", [0, 1], ids=["source", "destination"])
@pytest.mark.parametrize("keep", ["none", "random", "all"])
def test_q04_power_cut_at_any_point_copies_each_surviving_record_once(
    shard: int, durability: str, guarantee: str, keep: Keep
) -> None:
    for seed, shards in enumerate(cut_everywhere(lambda: joined(guarantee, durability), shard)):
        shards.drivers[shard].disk.clear_faults()
        shards.lose_power(10 * seed, keep)
        come_to_rest(shards)
        held, copies = shards.data("s"), shards.data("d")
        assert held[:3] == [1, 2, 3]
        assert [value for value in copies if value in held] == held, f"seed {seed}"
        # A record that only the copy survived of was written once, and is there once.
        assert sorted(set(copies)) == sorted(copies) and set(copies) <= {1, 2, 3, 4, 5}


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_q04_a_step_whose_answer_is_lost_is_not_repeated(guarantee: str) -> None:
    shards = joined(guarantee)
    shards.write("s", 4, 5)
    shards.forward()
    shards.wire.faults = ["lose"]
    come_to_rest(shards)
    assert shards.data("d") == [1, 2, 3, 4, 5]


def test_q04_a_step_that_arrives_twice_is_taken_once() -> None:
    shards = joined()
    shards.write("s", 4, 5)
    shards.forward()
    shards.wire.faults = ["repeat"]
    come_to_rest(shards)
    assert shards.data("d") == [1, 2, 3, 4, 5]


def test_q04_copies_that_were_confirmed_and_lost_in_a_power_cut_are_made_again() -> None:
    shards = joined()
    shards.write("s", 4, 5)
    shards.drivers[0].sync()
    shards.settle()
    assert shards.data("d") == [1, 2, 3, 4, 5]
    shards.wait(1)  # the cursor is written down …
    shards.drivers[0].sync()  # … and on disk, and the copies are not
    shards.lose_power(0, "none")
    assert shards.data("d") == [1, 2, 3], "the copies were lost"
    assert shards.drivers[0].topic("s").routers["r"].sent == 5, "and the source does not know"  # type: ignore[index]
    come_to_rest(shards)
    assert shards.data("d") == [1, 2, 3, 4, 5]


def chained(guarantee: str) -> RouterShards:
    """s ──▶ m ──▶ d, each on a shard of its own; only m can lose anything in a power cut."""
    shards = RouterShards({"s": 0, "m": 1, "d": 2})
    for topic, durability in (("s", "fsync"), ("m", "disk"), ("d", "fsync")):
        shards.put(topic, durability=durability)
    shards.put_router("sm", source="s", dest="m", guarantee="at_least_once")
    shards.put_router("md", source="m", dest="d", guarantee=guarantee)
    shards.settle()
    return shards


def test_q04_copies_that_the_middle_of_a_chain_lost_do_not_come_twice_to_its_end() -> None:
    shards = chained("exactly_once")
    for value in range(4):
        shards.write("s", value)
        for _ in range(4):
            shards.turn()
        shards.lose_power(value, "none")
        shards.settle()
        assert shards.data("m") == shards.data("d") == list(range(value + 1))


def test_q04_at_the_end_of_an_exact_chain_is_nothing_that_its_middle_could_still_lose() -> None:
    shards = chained("exactly_once")
    shards.write("s", 1)
    shards.forward()
    shards.wire.deliver()
    shards.drivers[1].commit()
    shards.wire.hear()
    assert shards.data("m") == [1], "visible, and not synced"
    shards.forward()
    shards.wire.deliver()
    assert shards.data("d") == []
    assert shards.drivers[1].engine.commits.waiting, "nobody waits for the background sync"
    shards.settle()
    assert shards.data("d") == [1]


def test_q04_at_least_once_does_not_wait_for_a_sync_in_the_middle_of_a_chain() -> None:
    shards = chained("at_least_once")
    shards.write("s", 1)
    for _ in range(4):
        shards.turn()
    assert shards.data("d") == [1]
    shards.lose_power(0, "none")
    assert shards.data("m") == []
    come_to_rest(shards)
    assert (shards.data("m"), shards.data("d")) == ([1], [1, 1])


@pytest.mark.parametrize("before_seq", [3, 4], ids=["and-copies-one", "and-has-nothing-to-copy-yet"])
def test_q04_a_delete_that_a_power_cut_took_back_leaves_no_record_uncopied(before_seq: int) -> None:
    """The router has passed over what was deleted."""
    shards = RouterShards({"s": 0, "d": 1})
    shards.put("s")
    shards.put("d", durability="fsync")
    shards.put_router("r", source="s", dest="d", guarantee="at_least_once")
    come_to_rest(shards)
    shards.write("s", 1, 2, 3)
    shards.on("s").sync()
    shards.ok("POST", "/v0/topics/s/delete", {"before_seq": before_seq})
    shards.forward()
    shards.write("s", 4)
    for _ in range(4):
        shards.turn()
    assert shards.data("d") == ([3, 4] if before_seq == 3 else [4])
    shards.lose_power(0, "none")
    come_to_rest(shards)
    assert set(shards.data("s")) <= set(shards.data("d"))


def test_q04_an_eviction_that_a_power_cut_took_back_leaves_no_record_uncopied() -> None:
    """The router has told of it as a loss."""
    shards = RouterShards({"s": 0, "d": 1})
    shards.put("s", cap_records=3)
    shards.put("d", durability="fsync")
    shards.put_router("r", source="s", dest="d", guarantee="exactly_once")
    shards.settle()
    shards.write("s", 1, 2, 3)
    shards.on("s").sync()
    shards.write("s", 4, 5)
    for _ in range(4):
        shards.turn()
    assert (shards.data("d"), shards.trims("d")) == ([3, 4, 5], [(1, 2)])
    shards.lose_power(0, "none")
    come_to_rest(shards)
    assert set(shards.data("s")) <= set(shards.data("d"))


def test_q04_a_step_that_waits_for_a_sync_which_cannot_be_written_is_made_anew() -> None:
    shards = chained("exactly_once")
    shards.write("s", 1)
    shards.forward()
    shards.wire.deliver()
    shards.drivers[1].commit()
    shards.wire.hear()
    engine, disk = shards.drivers[1].engine, shards.drivers[1].disk
    engine.forwarder._step(engine.forwarder.next_route())  # it waits; nothing is committed
    assert engine.commits.staged
    shards.drivers[1].submit(Op.APPEND, "m", {"records": [{"data": "refused"}]})
    disk.fail_on("write", 1, errno.EIO, "/wal/")
    shards.drivers[1].commit()
    assert not engine.commits.waiting
    disk.clear_faults()
    come_to_rest(shards)
    assert shards.data("m") == shards.data("d") == [1]


@pytest.mark.parametrize("shard", [0, 1])
def test_q04_progress_survives_snapshots_and_trimmed_logs(shard: int) -> None:
    shards = joined()
    for _ in range(3):
        shards.drivers[shard].snapshot()
    shards.kill(shard)
    shards.write("s", 4)
    come_to_rest(shards)
    assert shards.data("d") == [1, 2, 3, 4]
    assert shards.router("r")["forwarded_total"] >= 1


def test_q04_a_router_reads_on_from_sealed_records() -> None:
    shards = joined()
    shards.gateway.links[1].up = True
    shards.put("d", cap_records=3, discard="reject")
    shards.write("s", *range(4, 12))
    shards.settle()
    shards.drivers[0].seal()
    shards.put("d", cap_records=0, discard="old")
    shards.kill(0)
    come_to_rest(shards)
    assert shards.data("d") == list(range(1, 12))


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("dest", ["d", "e"], ids=["another shard", "same shard"])
def test_q04_copies_that_could_not_be_written_are_tried_again(dest: str, durability: str, error: int) -> None:
    shards = joined(durability=durability, dest=dest)
    shards.write("s", 4, 5)
    driver = shards.on(dest)
    driver.disk.fail_on("write", 1, error, "/wal/")
    shards.turn()
    shards.turn()
    assert shards.data(dest) == [1, 2, 3]
    driver.disk.clear_faults()
    come_to_rest(shards)
    assert shards.data(dest) == [1, 2, 3, 4, 5]
    shards.lose_power(0, "all")
    come_to_rest(shards)
    assert shards.data(dest) == [1, 2, 3, 4, 5]


def test_q04_a_loss_that_could_not_be_written_down_is_told_later_and_once() -> None:
    shards = joined(durability="fsync")
    shards.put("d", cap_records=3, discard="reject")
    shards.write("s", *range(4, 10))
    shards.settle()
    shards.put("s", cap_records=2)
    shards.put("d", cap_records=0, discard="old")
    shards.wait()
    shards.drivers[1].disk.fail_on("write", 1, errno.EIO, "/wal/")
    come_to_rest(shards)
    assert (shards.data("d"), shards.trims("d")) == ([1, 2, 3, 8, 9], [(4, 7)])


def test_q04_everything_stops_and_starts_cleanly() -> None:
    shards = joined()
    shards.write("s", 4)
    shards.restart_all()
    come_to_rest(shards)
    assert shards.data("d") == [1, 2, 3, 4]


# --- Q5: destinations that are full, deleted, made anew ---------------------------------------------------


@pytest.mark.parametrize("dest", ["d", "e"], ids=["another shard", "same shard"])
def test_q05_a_full_destination_holds_the_router_back_and_loses_nothing(dest: str) -> None:
    shards = joined(dest=dest)
    shards.put(dest, cap_records=5, discard="reject")
    shards.write("s", *range(4, 12))
    come_to_rest(shards)
    assert shards.data(dest) == [1, 2, 3, 4, 5], "as many as there was room for"
    shown = shards.router("r")
    assert (shown["state"], shown["last_error"], shown["lag"]) == ("retrying", "topic_full", 6)
    shards.ok("POST", f"/v0/topics/{dest}/delete", {"before_seq": 4})
    come_to_rest(shards)
    assert shards.data(dest) == [4, 5, 6, 7, 8]
    shards.ok("POST", f"/v0/topics/{dest}/delete", {"before_seq": 1 << 60})
    come_to_rest(shards)
    assert shards.data(dest) == [9, 10, 11]
    assert shards.router("r")["state"] == "caught_up"


def test_q05_a_router_whose_waiting_copies_are_filtered_out_waits_no_longer() -> None:
    shards = joined("at_least_once")
    shards.put("d", cap_records=3, discard="reject")
    shards.write("s", 4)
    shards.settle()
    assert shards.router("r")["last_error"] == "topic_full"
    shards.put_router("r", source="s", dest="d", guarantee="at_least_once", filter=["tag", "Eq", "x"])
    come_to_rest(shards)
    shown = shards.router("r")
    assert (shown["lag"], shown["state"], shown["last_error"]) == (0, "caught_up", None)


def test_q05_room_on_the_same_shard_is_noticed_without_waiting() -> None:
    shards = joined(dest="e")
    shards.put("e", cap_records=3, discard="reject")
    shards.write("s", 4)
    shards.settle()
    assert shards.router("r")["last_error"] == "topic_full"
    shards.put("e", cap_records=4)
    shards.settle()
    assert shards.data("e") == [1, 2, 3, 4]


def test_q05_a_full_destination_does_not_hold_up_the_others() -> None:
    shards = joined()
    shards.put_router("r2", source="s", dest="f")
    shards.put("d", cap_records=3, discard="reject")
    shards.write("s", 4, 5)
    shards.settle()
    assert (shards.data("d"), shards.data("f")) == ([1, 2, 3], [4, 5])


def test_q05_what_the_source_lost_meanwhile_is_told_at_the_destination() -> None:
    shards = joined(durability="fsync")
    shards.put("d", cap_records=3, discard="reject")
    shards.write("s", *range(4, 10))
    shards.settle()
    shards.put("s", cap_records=2)
    shards.put("d", cap_records=0, discard="old")
    come_to_rest(shards)
    assert shards.data("d") == [1, 2, 3, 8, 9]
    lost = shards.on("d").read("d", from_seq=3)
    assert lost["tombstone"] == {
        "gap_from": 4,
        "gap_to": 7,
        "reason": "source_trim",
        "missed_estimate": 4,
        "earliest_seq": 1,
        "head_seq": 9,
    }
    shards.lose_power(1, "none")
    come_to_rest(shards)
    assert shards.trims("d") == [(4, 7)], "told once, and for good"
    assert shards.data("d") == [1, 2, 3, 8, 9]


def test_q05_records_that_expired_at_the_source_are_told_too() -> None:
    shards = joined()
    shards.put("s", ttl_ms=1000)
    shards.put("d", cap_records=3, discard="reject")
    shards.write("s", 4, 5)
    shards.settle()
    shards.clock.advance(2000)
    shards.put("d", cap_records=0, discard="old")
    come_to_rest(shards)
    assert shards.data("d") == [1, 2, 3]
    assert shards.trims("d") == [(4, 5)]


def test_q05_records_deleted_on_purpose_are_passed_over_silently() -> None:
    shards = joined()
    shards.put("d", cap_records=3, discard="reject")
    shards.write("s", 4, 5, 6)
    shards.settle()
    shards.ok("POST", "/v0/topics/s/delete", {"before_seq": 6})
    shards.put("d", cap_records=0, discard="old")
    come_to_rest(shards)
    assert (shards.data("d"), shards.trims("d")) == ([1, 2, 3, 6], [])


def test_q05_a_copy_that_can_never_fit_is_told_and_the_router_goes_on() -> None:
    shards = joined("at_least_once")
    shards.put("d", cap_bytes=350, discard="reject")
    shards.write("s", 4, "x" * 400, 5)
    come_to_rest(shards)
    assert shards.data("d") == [1, 2, 3, 4, 5]
    assert shards.trims("d") == [(5, 5)]


def test_q05_a_batch_larger_than_the_whole_cap_arrives_in_parts() -> None:
    shards = joined()
    shards.put("d", cap_records=2)
    shards.write("s", *range(4, 14))
    come_to_rest(shards)
    assert shards.data("d") == [12, 13], "and the cap took the others, as it would of any writer"
    assert shards.router("r")["forwarded_total"] == 13


@pytest.mark.parametrize("topic", ["s", "d"])
def test_q05_a_deleted_topic_takes_its_routers_along(topic: str) -> None:
    shards = joined()
    assert shards.ok("DELETE", f"/v0/topics/{topic}")["routers_removed"] == ["r"]
    shards.put(topic)
    shards.write("s", 9)
    come_to_rest(shards)
    assert shards.call("GET", "/v0/routers/r")[0] == 404
    assert 9 not in shards.data("d")


@pytest.mark.parametrize("anew", [False, True], ids=["deleted", "made anew"])
def test_q05_a_destination_that_went_while_the_source_was_away_ends_the_router(anew: bool) -> None:
    shards = joined()
    shards.gateway.links[0].up = False  # nobody can tell the source's shard
    answer = shards.ok("DELETE", "/v0/topics/d")
    assert answer["routers_removed"] == []
    shards.clock.advance(1)
    if anew:
        shards.put("d")
    shards.gateway.links[0].up = True
    assert shards.router("r")["dest"] == "d"
    shards.write("s", 4)
    come_to_rest(shards)
    assert shards.call("GET", "/v0/routers/r")[0] == 404, "it found out by itself"
    assert shards.data("d") == []
    shards.kill(0)
    assert shards.call("GET", "/v0/routers/r")[0] == 404


def test_q05_a_router_made_anew_begins_anew() -> None:
    shards = joined()
    shards.ok("DELETE", "/v0/topics/d")
    shards.write("s", 4)
    shards.clock.advance(1)
    shards.put_router("r", source="s", dest="d")
    shards.write("s", 5)
    come_to_rest(shards)
    assert shards.data("d") == [5]


# --- Q6: routers deleted while they forward ---------------------------------------------------------------

MOMENTS: dict[str, Callable[[RouterShards], Any]] = {
    "before anything left": lambda shards: None,
    "while a step is on its way": lambda shards: shards.forward(),
    "while it is being written": lambda shards: (shards.forward(), shards.wire.deliver()),
    "before the answer is heard": lambda shards: (
        shards.forward(),
        shards.wire.deliver(),
        shards.drivers[1].settle(),
    ),
}


@pytest.mark.parametrize("crash", [False, True], ids=["", "killed"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_q06_a_router_deleted_while_forwarding_copies_a_prefix_and_no_more(moment: str, crash: bool) -> None:
    shards = joined()
    shards.write("s", 4, 5)
    MOMENTS[moment](shards)
    assert shards.ok("DELETE", "/v0/routers/r")["deleted"]
    shards.write("s", 6)
    if crash:
        shards.kill(0)
    come_to_rest(shards)
    assert shards.data("d") in ([1, 2, 3], [1, 2, 3, 4, 5])
    assert shards.call("GET", "/v0/routers/r")[0] == 404
    assert not shards.ok("DELETE", "/v0/routers/r")["deleted"]


@pytest.mark.parametrize("moment", MOMENTS)
def test_q06_a_router_deleted_and_made_anew_while_forwarding_doubles_nothing(moment: str) -> None:
    shards = joined()
    shards.write("s", 4, 5)
    MOMENTS[moment](shards)
    shards.ok("DELETE", "/v0/routers/r")
    shards.put_router("r", source="s", dest="d", guarantee="exactly_once")
    shards.write("s", 6, 7)
    come_to_rest(shards)
    copies = shards.data("d")
    assert copies in ([1, 2, 3, 6, 7], [1, 2, 3, 4, 5, 6, 7]), copies


@pytest.mark.parametrize("keep", ["none", "all"])
def test_q06_a_deleted_router_stays_deleted(keep: Keep) -> None:
    shards = joined()
    shards.write("s", 4)
    shards.forward()
    shards.ok("DELETE", "/v0/routers/r")
    shards.lose_power(3, keep)
    shards.write("s", 5)
    come_to_rest(shards)
    assert shards.call("GET", "/v0/routers/r")[0] == 404
    assert 5 not in shards.data("d")


def test_q06_a_deleted_router_is_forgotten_at_its_destination() -> None:
    shards = joined()
    assert shards.drivers[1].topic("d").routed is not None
    shards.ok("DELETE", "/v0/routers/r")
    shards.settle()
    assert shards.drivers[1].topic("d").routed is None
