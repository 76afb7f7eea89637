"""More than a server can take: it stays within its memory, stays right, and everything it acked is there afterwards."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import trio

from shared.limits import GiB, KiB, MiB
from tests.support.api_client import LANES, ApiClient
from tests.support.live_server import LiveServer
from tests.support.overload import Connection, Reader, Watcher, Writer
from tests.support.slow_disk_worker import SLOW_DISK

SYNC_MS = 150
INTAKE_BYTES = MiB
PAD = 64 * 1024
# 64 connections bring four times as much at once as may wait for a sync.
WRITERS = 64
RSS_GROWTH_MAX = 40 * MiB
"""Of gateway and worker together. All connections hold 4 MiB of bodies, each of which exists a few times on its way.
That the load goes on for longer changes nothing."""


class Gauge:
    """What the worker says about itself while it is pressed."""

    def __init__(self, server: LiveServer) -> None:
        self._server = server
        self.highest = 0
        self.now: dict[str, Any] = {}
        self.rss = 0

    async def run(self) -> None:
        connection = Connection(self._server.port)
        while True:
            status, _, body = await connection.ask("GET", "/v0/metrics")
            assert status == 200
            (shard,) = json.loads(body)["shards"]
            self.now = shard["gauges"] | shard["counters"] | shard["histograms"]
            self.highest = max(self.highest, self.now["pressure_level"])
            self.rss = max(self.rss, resident(self._server))
            await trio.sleep(0.05)


def resident(server: LiveServer) -> int:
    return sum(server.resident_bytes(child) for child in ("gateway", "shard-0"))


async def until(true: Callable[[], bool], seconds: float = 40) -> None:
    with trio.fail_after(seconds):
        while not true():  # noqa: ASYNC110 - others change what it looks at
            await trio.sleep(0.02)


def slow_server(path: Path, sync_ms: int = SYNC_MS) -> LiveServer:
    env = {
        "TOPICS_TEST_SYNC_MS": str(sync_ms),
        "TOPICS_MAX_UNSYNCED_BYTES": str(INTAKE_BYTES),
        # Sealing takes memory of its own, whatever the load: not what is looked at here.
        "TOPICS_SEGMENT_MAX_BYTES": str(GiB),
    }
    return LiveServer(path / "data", shards=1, env=env, worker_module=SLOW_DISK)


@pytest.mark.parametrize("seconds", [3, pytest.param(30, marks=pytest.mark.exhaustive)])
def test_three_times_what_it_can_take(tmp_path: Path, seconds: float) -> None:
    writers = [Writer("load", f"w{n}", PAD, pause_s=0.02) for n in range(WRITERS)]
    patient = [Writer("load", f"p{n}", PAD, patient=True) for n in range(4)]
    quiet = [Writer(name, f"{name}-writer", pause_s=0.02) for name in ("low", "normal")]
    watcher, reader = Watcher(["low", "normal"]), Reader("load")
    with slow_server(tmp_path) as server:
        server.wait_serving()
        with server.client() as client:
            client.put("load", durable=True)
            client.put("low", priority=-1000, auto_priority=False)
            client.put("normal", auto_priority=False)
        gauge = Gauge(server)
        before = resident(server)
        everyone = [*writers, *patient]

        def offered() -> int:
            return sum(each.sent for each in everyone)

        def taken() -> int:
            return sum(len(each.acked) for each in everyone)

        async def load() -> None:
            stop = trio.Event()
            async with trio.open_nursery() as around:
                around.start_soon(watcher.run, server.port)
                around.start_soon(gauge.run)
                async with trio.open_nursery() as nursery:
                    for each in (*writers, *patient, *quiet):
                        nursery.start_soon(each.run, server.port, stop)
                    nursery.start_soon(reader.run, server.port, stop)
                    await trio.sleep(seconds)
                    # A slow machine gets the time it takes for the load to show.
                    await until(lambda: _pressed(gauge) and offered() >= 3 * taken())
                    await until(lambda: all(len(each.acked) > 30 for each in quiet))
                    stop.set()
                for each in quiet:
                    await until(lambda each=each: len(watcher.seen.get(each.topic, ())) == len(each.acked))
                await until(lambda: gauge.now["pressure_level"] == 0)
                around.cancel_scope.cancel()

        trio.run(load)
        assert offered() >= 3 * taken()
        assert not any(each.refused for each in patient) and any(each.waited_ms for each in patient)
        assert gauge.highest == 4 and gauge.now["throttled_waiting"] == 0
        assert gauge.rss - before < RSS_GROWTH_MAX
        assert reader.reads and not server.failures()
        for each in quiet:
            seen = watcher.seen[each.topic]
            assert {record["data"]["n"]: record["$seq"] for record in seen} == each.acked
        server.kill_child("shard-0")
        server.wait_log("child.ready", child="shard-0", count=2)
        server.wait_serving()
        with server.client() as client:
            _check_log(client, "load", everyone)
            for each in quiet:
                _check_log(client, each.topic, [each])
            for record in client.everything("load"):
                seq, where = record["$seq"], (record["data"]["w"], record["data"]["n"])
                assert reader.known.get(seq, where) == where


def _pressed(gauge: Gauge) -> bool:
    names = ("pushes_coalesced", "pushes_paused", "commits_widened", "throttled_requests")
    return all(gauge.now.get(f"{name}_total") for name in names)


def _check_log(client: ApiClient, topic: str, writers: Iterable[Writer]) -> None:
    """Every acked record at its seq, and nothing that was refused."""
    found = {(r["data"]["w"], r["data"]["n"]): r["$seq"] for r in client.everything(topic)}
    assert found == {(each.name, n): seq for each in writers for n, seq in each.acked.items()}


def test_both_lanes_refuse_and_wait_alike(tmp_path: Path) -> None:
    with slow_server(tmp_path, sync_ms=1000) as server, ExitStack() as stack:
        server.wait_serving()
        clients = [stack.enter_context(server.client(lane)) for lane in LANES]
        clients[0].put("t", durable=True)
        clients[1].state("t")
        fillers = [stack.enter_context(server.client()) for _ in range(2)]
        with ThreadPoolExecutor() as threads:
            filling = [threads.submit(each.append, "t", "x" * (1000 * KiB)) for each in fillers]
            while _gauges(clients[0])["unsynced_wait_bytes"] <= INTAKE_BYTES:
                assert not all(each.done() for each in filling), "a sync was faster than this test"
            for client in clients:
                refused = client.send("POST", "/v0/topics/t", {"records": [{"data": "no"}]})
                assert refused.status_code == 429, client.lane
                advice = refused.json()["error"]["detail"]["retry_after_ms"]
                assert int(refused.headers["retry-after"]) == max(1, -(-advice // 1000))
            patient = {
                client.lane: threads.submit(client.append, "t", client.lane, disable_backpressure=True)
                for client in clients
            }
            for lane, answer in patient.items():
                performance = answer.result()["performance"]
                assert 0 < performance["throttle_wait_ms"] <= performance["server_total_ms"], lane
        kept = [record["data"] for record in clients[0].everything("t")]
        assert sorted(kept)[:2] == ["http1", "http2"] and len(kept) == 4


def _gauges(client: ApiClient) -> dict[str, Any]:
    numbers = client.ok("GET", "/v0/metrics", headers={"Accept": "application/json"})
    gauges: dict[str, Any] = numbers["shards"][0]["gauges"]
    return gauges
