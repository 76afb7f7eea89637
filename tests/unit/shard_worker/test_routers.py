"""Routers over shards without processes: definitions under fences, changes, lists, mirrors, chains."""

from __future__ import annotations

import json
from typing import Any

import pytest

from shared.wire import Op, decode_edges, decode_numbers
from tests.support.recorded_exchange import RecordedExchange
from tests.support.router_shards import RouterShards

PLACES = {"a": 0, "b": 1, "c": 2, "d": 0, "e": 1}


@pytest.fixture
def shards() -> RouterShards:
    found = RouterShards(PLACES)
    found.put("a")
    return found


# --- changes at once --------------------------------------------------------------------------------------


def ask(shards: RouterShards, shard: int, op: int, topic: str, body: bytes, **options: object) -> Any:
    replies: list[Any] = []
    shards.gateway._ask(shard, op, topic, body, options, replies.append)
    return replies[0]


def test_a_definition_under_an_older_fence_is_refused(shards: RouterShards) -> None:
    """A gateway looks, is killed, and its definition arrives late: somebody else has looked since."""
    shards.put("b")
    body = json.dumps({"source": "a", "dest": "b"}).encode()
    assert decode_edges(ask(shards, 0, Op.ROUTERS_FENCE, "", b"", fence=10).body) == []
    epoch = shards.on("b").topic("b").epoch
    # The other one looks, and draws the arrow back.
    shards.put_router("back", source="b", dest="a")
    late = ask(shards, 0, Op.ROUTER_PUT, "a", body, router="r", fence=10, dest_epoch=epoch)
    assert late.status == 503
    assert [router["router"] for router in shards.ok("GET", "/v0/routers")["routers"]] == ["back"]


def test_a_fence_never_goes_down_also_not_over_a_restart(shards: RouterShards) -> None:
    shards.put_router("r", source="a", dest="b")
    shards.restart_all()
    refused = ask(shards, 0, Op.ROUTERS_FENCE, "", b"", fence=5)
    assert refused.status == 409
    assert decode_numbers(refused.body, 1)[0] > 5
    assert ask(shards, 0, Op.ROUTERS_FENCE, "", b"", fence=1 << 62).status == 200
    shards.api.router_changes.next_fence()  # whose clock is far behind that
    assert not shards.put_router("r", source="a", dest="b", filter="x")["created"]


def test_a_definition_that_waits_for_its_sync_is_seen_by_the_next_one(shards: RouterShards) -> None:
    shards.put("b")
    driver = shards.drivers[0]
    ask(shards, 0, Op.ROUTERS_FENCE, "", b"", fence=1 << 62)
    epoch = shards.on("b").topic("b").epoch
    body = {"source": "a", "dest": "b"}
    call = driver.submit(Op.ROUTER_PUT, "a", body, {"router": "r", "fence": 1 << 62, "dest_epoch": epoch})
    driver.commit()
    assert call.answer is None, "it waits for its sync"
    reply = ask(shards, 0, Op.ROUTERS_FENCE, "", b"", fence=(1 << 62) + 1)
    assert [edge.router for edge in decode_edges(reply.body)] == ["r"]


def test_while_a_shard_is_down_nothing_is_defined_and_nothing_hangs(shards: RouterShards) -> None:
    shards.gateway.links[2].up = False
    status, document = shards.call("PUT", "/v0/routers/r", {"source": "a", "dest": "b"})
    assert (status, document["error"]["code"]) == (503, "shard_unavailable")
    shards.gateway.links[2].up = True
    assert shards.put_router("r", source="a", dest="b")["created"]
    shards.gateway.links[2].up = False
    assert shards.router("r")["dest"] == "b", "it is known where it is"
    assert shards.call("GET", "/v0/routers/other")[0] == 503, "perhaps it is there"
    assert shards.call("GET", "/v0/routers")[0] == 503
    assert shards.ok("DELETE", "/v0/routers/r")["deleted"]


def test_a_hundred_definitions_at_once_are_taken_one_by_one(shards: RouterShards) -> None:
    names = [f"x{number}" for number in range(100)]
    shards.places |= {name: number % 3 for number, name in enumerate(names)}
    exchanges = []
    for name in names:
        body = json.dumps({"source": "a", "dest": name}).encode()
        exchange = RecordedExchange(
            "PUT", f"/v0/routers/to-{name}", "", {"content-type": "application/json"}, body
        )
        shards.api.handle(exchange)
        exchanges.append(exchange)
    assert {exchange.response.status for exchange in exchanges if exchange.response} == {201}
    assert len(shards.ok("GET", "/v0/routers?page_size=1000")["routers"]) == 100


# --- changing one -----------------------------------------------------------------------------------------


def test_a_change_of_rules_leaves_the_router_where_it_stands(shards: RouterShards) -> None:
    shards.put_router("r", source="a", dest="b")
    shards.append("a", {"data": 1, "tag": "x"}, {"data": 2, "tag": "y"})
    shards.settle()
    shards.put_router("r", source="a", dest="b", filter="x")
    shards.append("a", {"data": 3, "tag": "y"}, {"data": 4, "tag": "x"})
    shards.settle()
    assert shards.data("b") == [1, 2, 4]
    assert shards.router("r")["forwarded_total"] == 3
    shards.kill(0)
    assert shards.router("r")["filter"] == ["tag", "Eq", "x"]


def test_another_destination_or_source_makes_it_begin_anew(shards: RouterShards) -> None:
    shards.put("d")
    shards.put_router("r", source="a", dest="b")
    shards.write("a", 1)
    shards.settle()
    shards.put_router("r", source="a", dest="c")
    shards.write("a", 2)
    shards.settle()
    assert (shards.data("b"), shards.data("c")) == ([1], [2])
    assert shards.put_router("r", source="d", dest="c")["source"] == "d"
    shards.write("a", 3)
    shards.write("d", 4)
    shards.settle()
    assert (shards.data("b"), shards.data("c")) == ([1], [2, 4])
    assert len(shards.ok("GET", "/v0/routers")["routers"]) == 1


# --- round trips ------------------------------------------------------------------------------------------


def test_two_topics_that_mirror_each_other_never_echo(shards: RouterShards) -> None:
    shards.put("b")
    shards.put_router("ab", source="a", dest="b", filter=["node", "Eq", "A"], allow_cycle=True)
    shards.put_router("ba", source="b", dest="a", filter=["node", "Eq", "B"], allow_cycle=True)
    for number in range(5):
        shards.append("a", {"data": f"a{number}", "node": "A"})
        shards.append("b", {"data": f"b{number}", "node": "B"})
        shards.turn()
        if number == 2:
            shards.kill(1)
    shards.wait()
    shards.settle()
    everything = sorted(f"{topic}{number}" for topic in "ab" for number in range(5))
    assert sorted(shards.data("a")) == sorted(shards.data("b")) == everything
    for topic in "ab":
        assert [value for value in shards.data("a") if value[0] == topic] == [f"{topic}{n}" for n in range(5)]


def test_a_cycle_without_filters_ends_after_its_hops(shards: RouterShards) -> None:
    shards.put("b")
    shards.put_router("ab", source="a", dest="b")
    shards.put_router("ba", source="b", dest="a", allow_cycle=True)
    shards.write("a", "round")
    shards.settle()
    assert (len(shards.data("a")), len(shards.data("b"))) == (9, 9)


def test_a_chain_over_all_shards_and_a_fan_at_its_end(shards: RouterShards) -> None:
    for source, dest in ("ab", "bc", "cd", "ce"):
        shards.put_router(f"{source}>{dest}".replace(">", "-"), source=source, dest=dest)
    shards.write("a", *range(20))
    shards.settle()
    assert all(shards.data(topic) == list(range(20)) for topic in "bcde")


def test_routers_go_on_with_ephemeral_destinations_after_a_restart(shards: RouterShards) -> None:
    shards.put("b", durability="ephemeral")
    shards.put_router("r", source="a", dest="b")
    shards.write("a", 1, 2)
    shards.settle()
    assert shards.data("b") == [1, 2]
    shards.kill(1)
    shards.write("a", 3)
    shards.wait()
    shards.settle()
    assert shards.data("b") == [3], "what it lost stays lost, as with every ephemeral topic"


def test_a_router_writes_nothing_down_while_nothing_happens(shards: RouterShards) -> None:
    shards.put_router("r", source="a", dest="b")
    shards.write("a", 1)
    shards.settle()
    shards.wait(1000)
    shards.settle()
    frames = [driver.engine.wal.counters.frames for driver in shards.drivers.values()]
    for _ in range(5):
        shards.wait(1000)
        assert shards.idle
        assert all(driver.engine.forwarder.next_deadline_ms() is None for driver in shards.drivers.values())
    assert frames == [driver.engine.wal.counters.frames for driver in shards.drivers.values()]


def test_what_operators_see(shards: RouterShards) -> None:
    shards.put_router("r", source="a", dest="b")
    shards.put("b", cap_records=1, discard="reject")
    shards.write("a", 1, 2)
    shards.settle()
    [view] = shards.drivers[0].engine.forwarder.views()
    assert view._asdict() == {
        "name": "r", "source": "a", "dest": "b", "cursor": 1, "lag": 1, "forwarded_total": 1,
        "state": "retrying", "last_error": "topic_full",
    }  # fmt: skip
