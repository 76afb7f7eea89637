"""Routers through the whole server, on both lanes, and with a worker killed while it forwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.support.api_client import ApiClient, Json, fresh, fresh_on
from tests.support.live_server import LiveServer
from tests.support.server_process import wait_for


def define(
    client: ApiClient, name: str, source: str, dest: str, *, status: int = 201, **rules: object
) -> Json:
    return client.ok(
        "PUT", f"/v0/routers/{quote(name)}", {"source": source, "dest": dest, **rules}, status=status
    )


def caught_up(client: ApiClient, name: str) -> bool:
    shown = client.ok("GET", f"/v0/routers/{quote(name)}")
    return (shown["lag"], shown["state"]) == (0, "caught_up")


def data(client: ApiClient, topic: str) -> list[object]:
    return [record["data"] for record in client.everything(topic)]


def test_copies_keep_what_was_written_and_get_their_own_place(client: ApiClient) -> None:
    source, dest = fresh("source"), fresh("dest")
    client.append(source, "before the router")
    name = f"{source}>{dest}"
    answer = define(client, name, source, dest)
    del answer["performance"]
    assert answer == {
        "router": name, "created": True, "source": source, "dest": dest, "preserve_node": True,
        "preserve_tag": True, "create_dest": True, "filter": None, "allow_cycle": False,
        "guarantee": "at_least_once",
    }  # fmt: skip
    record = {"data": {"n": 1.50}, "node": "n", "tag": "t", "key": "k", "meta": {"a": [1]}}
    client.write(source, record, {"data": None})
    wait_for(lambda: caught_up(client, name))
    first, second = client.everything(dest)
    assert (first["$seq"], second["$seq"]) == (1, 2)
    assert {field: first[field] for field in ("$node", "$tag", "$key", "data", "meta")} == {
        "$node": "n", "$tag": "t", "$key": "k", "data": {"n": 1.5}, "meta": {"a": [1]},
    }  # fmt: skip
    assert second["data"] is None
    shown = client.ok("GET", f"/v0/routers/{quote(name)}")
    assert (shown["forwarded_total"], shown["cursor"], shown["last_error"]) == (2, 3, None)
    assert define(client, name, source, dest, status=200)["created"] is False


def test_labels_can_be_left_behind_and_records_filtered(client: ApiClient) -> None:
    source, dest = fresh("source"), fresh("dest")
    client.put(source)
    name = fresh("r")
    define(
        client, name, source, dest,
        filter=["tag", "Glob", "eu-*"], preserve_node=False, preserve_tag=False, guarantee="exactly_once",
    )  # fmt: skip
    client.write(
        source,
        {"data": 1, "tag": "eu-1", "node": "n"},
        {"data": 2, "tag": "us-1"},
        {"data": 3},
        {"data": 4, "tag": "eu-2"},
    )
    wait_for(lambda: caught_up(client, name))
    copies = client.everything(dest)
    epoch = client.state(source)["epoch"]
    assert [copy["data"] for copy in copies] == [1, 4]
    assert not any(copy.keys() & {"$tag", "$node"} for copy in copies)
    assert copies[1]["meta"] == {
        "_topics_router": {"router": name, "source": source, "epoch": epoch, "seq": 4}
    }


def test_copies_wake_readers_and_become_jobs(client: ApiClient) -> None:
    source, dest, queue = fresh("source"), fresh("dest"), fresh("queue")
    client.put(source)
    client.put(queue, type="queue")
    define(client, fresh("r"), source, dest)
    define(client, fresh("r"), dest, queue)
    client.append(source, "wake up")
    assert client.diff(dest, wait_ms=20_000)["records"][0]["data"] == "wake up"
    claimed = client.ok("POST", f"/v0/topics/{queue}/claim", {"node": "n", "wait_ms": 20_000})["claimed"]
    assert [job["data"] for job in claimed] == ["wake up"]


def test_cycles_and_second_sources_are_refused(client: ApiClient) -> None:
    a, b, c, other = fresh("a"), fresh("b"), fresh("c"), fresh("o")
    client.put(a)
    client.put(other)
    define(client, fresh("r"), a, b)
    define(client, fresh("r"), b, c)
    error = client.fails(409, "router_cycle", "PUT", f"/v0/routers/{fresh('r')}", {"source": c, "dest": a})
    assert error["detail"]["cycle"] == [c, a, b, c]
    wanted = {"source": other, "dest": b}
    error = client.fails(409, "topic_exists_incompatible", "PUT", f"/v0/routers/{fresh('r')}", wanted)
    assert error["detail"]["reason"] == "router_dest_fan_in"
    back = fresh("r")
    define(client, back, c, a, allow_cycle=True)
    client.append(a, "round")
    wait_for(lambda: client.state(a)["head_seq"] == 9 and caught_up(client, back))
    assert [record["meta"]["_topics_hops"] for record in client.everything(a)[1:]] == list(range(1, 9))
    client.ok("DELETE", f"/v0/routers/{back}")


@pytest.mark.parametrize(
    "body",
    [{}, {"source": "a"}, {"source": "a", "dest": "a"}, {"source": "a", "dest": "b c"},
     {"source": "a", "dest": "b", "filter": ["size", "Eq", "1"]}, {"source": "a", "dest": "b", "extra": 1},
     {"source": "a", "dest": "b", "guarantee": "maybe"}],
)  # fmt: skip
def test_what_is_no_router_is_refused(client: ApiClient, body: Json) -> None:
    client.fails(400, "invalid_request", "PUT", f"/v0/routers/{fresh('r')}", body)


def test_what_is_not_there_is_404(client: ApiClient) -> None:
    source = fresh("source")
    client.put(source)
    nowhere = {"source": source, "dest": fresh("absent"), "create_dest": False}
    client.fails(404, "topic_not_found", "PUT", f"/v0/routers/{fresh('r')}", nowhere)
    client.fails(
        404, "topic_not_found", "PUT", f"/v0/routers/{fresh('r')}", {"source": fresh("no"), "dest": source}
    )
    client.fails(404, "router_not_found", "GET", "/v0/routers/absent")
    client.fails(400, "invalid_request", "GET", "/v0/routers/%3Ex")
    assert client.ok("DELETE", "/v0/routers/absent")["deleted"] is False


def test_a_hundred_destinations_on_all_shards(client: ApiClient, server: LiveServer) -> None:
    source, prefix = fresh("fan"), fresh("many")
    client.put(source)
    dests = [f"{prefix}-{number:03d}" for number in range(100)]
    for dest in dests:
        define(client, f"to-{dest}", source, dest)
    assert {client.state(dest)["shard"] for dest in dests} == set(range(server.shards))
    for start in range(0, 50, 10):
        client.append(source, *range(start, start + 10))
    wait_for(lambda: all(router["lag"] == 0 for router in pages(client, prefix=f"to-{prefix}")))
    assert all(data(client, dest) == list(range(50)) for dest in dests[::7])
    assert all(client.state(dest)["count"] == 50 for dest in dests)
    assert len(pages(client, source=source)) == 100
    assert [router["router"] for router in pages(client, dest=dests[3])] == [f"to-{dests[3]}"]
    removed = client.ok("DELETE", f"/v0/topics/{source}")["routers_removed"]
    assert removed == [f"to-{dest}" for dest in dests]
    assert pages(client, prefix=f"to-{prefix}") == []


def pages(client: ApiClient, **filters: str) -> list[Json]:
    found: list[Json] = []
    cursor = ""
    while True:
        query = "&".join(f"{name}={quote(value)}" for name, value in filters.items())
        page = client.ok("GET", f"/v0/routers?page_size=40&{query}&cursor={cursor}")
        found += page["routers"]
        if "next_cursor" not in page:
            return found
        cursor = page["next_cursor"]


def test_metrics_count_routers_and_copies(plain_client: ApiClient) -> None:
    source = fresh("source")
    plain_client.put(source)
    name = fresh("r")
    define(plain_client, name, source, fresh("dest"))
    plain_client.append(source, 1)
    wait_for(lambda: caught_up(plain_client, name))
    text = plain_client.send("GET", "/v0/metrics").text
    for metric in ("topics_routers", "topics_router_lag", "topics_router_forwarded_total"):
        assert f"{metric}{{" in text, metric
    numbers = plain_client.ok("GET", "/v0/metrics", headers={"Accept": "application/json"})
    assert sum(shard["gauges"]["routers"] for shard in numbers["shards"]) >= 1
    assert sum(shard["counters"]["router_forwarded_total"] for shard in numbers["shards"]) >= 1


# --- keys and caps ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    env = {"TOPICS_API_KEYS": "all,mine::a-", "TOPICS_MAX_ROUTERS": "2"}
    with LiveServer(tmp_path_factory.mktemp("guarded") / "data", shards=2, env=env) as running:
        running.wait_ready()
        with running.client(token="all") as client:
            wait_for(lambda: client.send("GET", "/v0/ready").status_code == 200)
        yield running


def test_prefixes_and_the_cap_hold_for_routers(guarded: LiveServer) -> None:
    with guarded.client(token="all") as everything, guarded.client(token="mine") as mine:
        for topic in ("a-1", "b-1"):
            everything.put(topic)
        define(mine, "a-r", "a-1", "a-2")
        define(everything, "a-sly", "b-1", "a-3")
        for source, dest in (("b-1", "a-4"), ("a-1", "b-4")):
            mine.fails(403, "forbidden", "PUT", "/v0/routers/a-x", {"source": source, "dest": dest})
        mine.fails(403, "forbidden", "PUT", "/v0/routers/b-x", {"source": "a-1", "dest": "a-4"})
        mine.fails(403, "forbidden", "PUT", "/v0/routers/a-sly", {"source": "a-1", "dest": "a-3"})
        mine.fails(403, "forbidden", "GET", "/v0/routers/a-sly")
        mine.fails(403, "forbidden", "DELETE", "/v0/routers/a-sly")
        assert [router["router"] for router in mine.ok("GET", "/v0/routers")["routers"]] == ["a-r"]
        assert len(everything.ok("GET", "/v0/routers")["routers"]) == 2
        error = mine.fails(429, "throttled", "PUT", "/v0/routers/a-3", {"source": "a-1", "dest": "a-5"})
        assert error["detail"] == {"limit": "max_routers", "max": 2}
        define(mine, "a-r", "a-1", "a-2", status=200, filter="x")
        assert mine.ok("DELETE", "/v0/routers/a-r")["deleted"] is True


# --- a worker dies ----------------------------------------------------------------------------------------

SHARDS = 2


@pytest.fixture
def own(tmp_path: Path) -> Iterator[LiveServer]:
    with LiveServer(tmp_path / "data", shards=SHARDS) as running:
        yield running.wait_serving()


@pytest.mark.parametrize("victim", [0, 1], ids=["source", "destination"])
def test_q04_a_worker_killed_while_it_forwards_loses_and_doubles_nothing(
    own: LiveServer, victim: int
) -> None:
    source, dest, chained = fresh_on(0, SHARDS), fresh_on(1, SHARDS), fresh_on(0, SHARDS)
    with own.client() as client:
        client.put(source)
        define(client, "r1", source, dest, guarantee="exactly_once")
        define(client, "r2", dest, chained, guarantee="exactly_once")
        written = 0
        for round_ in range(1, 3):
            for _ in range(5):
                client.append(source, *range(written, written + 200))
                written += 200
            own.kill_child(f"shard-{victim}")
            own.wait_child_ready(f"shard-{victim}", count=round_ + 1)
            wait_for(lambda: client.send("GET", "/v0/ready").status_code == 200)
        wait_for(lambda: client.state(chained)["count"] >= written and caught_up(client, "r2"))
        assert data(client, source) == data(client, dest) == data(client, chained) == list(range(written))


def test_definitions_need_all_shards_and_copies_only_their_own(own: LiveServer) -> None:
    source, dest = fresh_on(0, SHARDS), fresh_on(0, SHARDS)
    with own.client() as client:
        client.put(source)
        define(client, "r", source, dest)
        own.kill_child("shard-1")
        answer = client.send("PUT", "/v0/routers/r2", {"source": source, "dest": fresh_on(0, SHARDS)})
        # The worker may have been started again already.
        assert answer.status_code == 201 or answer.json()["error"]["code"] == "shard_unavailable"
        client.append(source, 1)
        wait_for(lambda: data(client, dest) == [1])


def test_routers_move_with_their_topics_when_the_number_of_shards_changes(tmp_path: Path) -> None:
    names = [fresh("moving") for _ in range(8)]
    with LiveServer(tmp_path / "data", shards=2) as server:
        server.wait_serving()
        with server.client() as client:
            client.put(names[0])
            for place, dest in enumerate(names[1:]):
                define(client, f"r{place}", names[place], dest, guarantee="exactly_once")
            client.append(names[0], 1, 2, 3)
            wait_for(lambda: client.state(names[-1])["count"] == 3)
        assert server.stop() == 0
    with LiveServer(tmp_path / "data", shards=3) as server:
        server.wait_serving()
        with server.client() as client:
            client.append(names[0], 4)
            wait_for(lambda: client.state(names[-1])["count"] == 4)
            assert all(data(client, name) == [1, 2, 3, 4] for name in names)
