"""A running worker under pressure: it climbs the ladder, comes down by itself, and everyone gets what is theirs."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
import trio

from shard_worker.disk.wal import SyncJob
from shard_worker.pressure import COALESCE, FULL, PAUSE, WIDEN
from shared.limits import MiB
from shared.wire import Op, TopicAdvanced, decode_metrics
from tests.support.fake_shard import eventually
from tests.support.running_worker import Client, running
from tests.support.shard_driver import ManualClock, ShardDriver


class RealClock(ManualClock):
    def __call__(self) -> int:
        return time.time_ns() // 1_000_000


def write(data: object, **fields: object) -> bytes:
    return json.dumps({"records": [{"data": data}], **fields}).encode()


@contextmanager
def stalled_syncs() -> Iterator[threading.Event]:
    """Syncs reach the disk when the event is set."""
    go, run = threading.Event(), SyncJob.run

    def wait_and_run(job: SyncJob) -> None:
        assert go.wait(10)
        run(job)

    with patch.object(SyncJob, "run", wait_and_run):
        try:
            yield go
        finally:
            go.set()


async def metrics(client: Client) -> dict[str, Any]:
    told = decode_metrics((await client.call(Op.METRICS)).body)
    return {**told["gauges"], **told["counters"], **told["histograms"]}  # type: ignore[dict-item]


@pytest.mark.trio
async def test_a_stalled_disk_fills_the_intake_and_all_is_well_when_it_comes_back() -> None:
    driver = ShardDriver(
        clock=RealClock(), wal_file_bytes=64 * MiB, cold_dir=None, max_unsynced_bytes=MiB, min_free_bytes=0
    )
    driver.put("t", durable=True)
    async with running(driver) as worker:
        client, other = await worker.connect(), await worker.connect()
        with stalled_syncs() as go:
            await client.ask(Op.APPEND, "t", write("x" * 300_000), count=4)
            pressure = worker.driver.shard.pressure
            await eventually(lambda: driver.engine.commits.full)
            refused = await other.call(Op.APPEND, "t", write("no"))
            assert refused.status == 429 and refused.timings is not None
            assert json.loads(refused.body)["error"]["detail"]["retry_after_ms"] > 0
            (patient,) = await other.ask(Op.APPEND, "t", write("patient", disable_backpressure=True))
            await eventually(lambda: pressure.level == FULL)
            told = await metrics(client_of_metrics := await worker.connect())
            assert (told["pressure_level"], told["throttled_waiting"]) == (FULL, 1)
            assert told["unsynced_wait_bytes"] > MiB and told["throttled_requests_total"] == 1
            assert (await other.call(Op.READ, "t", b"{}")).status == 200, "reads go on"
            go.set()
            answers = await client.answers(4)
            assert {answer.status for answer in answers} == {200}
            (answer,) = await other.answers(1, {patient})
            assert answer.status == 200 and answer.timings is not None
            assert answer.timings["throttle_wait_ms"] > 0
        # Nothing is asked of it any more: it finds out by itself that the pressure is gone.
        await eventually(lambda: pressure.level == 0)
        told = await metrics(client_of_metrics)
        assert (told["pressure_level"], told["throttled_waiting"], told["unsynced_wait_bytes"]) == (0, 0, 0)
        assert told["throttle_wait_ms"]["count"] == 1
    records = driver.read_all("t")
    assert [record["data"][:7] for record in records] == ["x" * 7] * 4 + ["patient"]


@pytest.mark.trio
async def test_under_pressure_a_sync_waits_for_company_and_is_still_a_sync() -> None:
    driver = ShardDriver(wal_file_bytes=64 * MiB, cold_dir=None)
    driver.put("t", durable=True)
    async with running(driver) as worker:
        client = await worker.connect()
        pressure = driver.shard.pressure
        pressure.level = WIDEN  # the clock of this shard stands still, and so does the level
        for n in range(6):
            answer = await client.call(Op.APPEND, "t", write(n))
            assert answer.status == 200 and answer.timings is not None and "fsync_ms" in answer.timings
        told = await metrics(client)
        assert told["commits_widened_total"] >= 6 and told["commit_window_ms"] == 10
    driver.lose_power(keep="none")
    assert [record["data"] for record in driver.read_all("t")] == [0, 1, 2, 3, 4, 5]


@pytest.mark.trio
async def test_a_large_group_waits_for_no_company() -> None:
    driver = ShardDriver(wal_file_bytes=64 * MiB, cold_dir=None)
    driver.put("t", durable=True)
    with patch("shard_worker.serve.turns.COMMIT_WINDOW_MAX_BYTES", 100):
        async with running(driver) as worker:
            client = await worker.connect()
            driver.shard.pressure.level = WIDEN
            await client.call(Op.APPEND, "t", write("x" * 200))
            assert driver.shard.pressure.counters.commits_widened == 0


@pytest.mark.trio
async def test_paused_pushes_leave_by_themselves_when_the_pressure_is_gone() -> None:
    driver = ShardDriver(wal_file_bytes=64 * MiB, cold_dir=None)
    driver.put("low", priority=-500)
    async with running(driver) as worker:
        client, writer = await worker.connect(), await worker.connect()
        await client.call(Op.SUBSCRIBE, "low")
        driver.shard.pressure.level = PAUSE
        for n in range(3):
            assert (await writer.call(Op.APPEND, "low", write(n))).status == 200
        assert driver.shard.pressure.counters.pushes_paused == 1
        state = json.loads((await writer.call(Op.STATE, "low")).body + b"}")
        assert state["effective_priority"] == 0, "-500 by hand, 500 because it is being looked at"
        with trio.move_on_after(0.1) as waited:
            await client.until(TopicAdvanced)
        assert waited.cancelled_caught, "it stands still"
        driver.shard.pressure.level = 0
        push = await client.until(TopicAdvanced)
        assert isinstance(push, TopicAdvanced) and (push.from_seq, push.to_seq) == (0, 3)


@pytest.mark.trio
async def test_a_peer_that_does_not_read_is_a_sign_of_pressure() -> None:
    """Seen by the loop itself: one link is stuck, another one is served as ever."""
    driver = ShardDriver(clock=RealClock(), wal_file_bytes=64 * MiB, cold_dir=None, min_free_bytes=0)
    driver.append("t", [{"data": "x" * 500_000}])
    driver.sync()
    driver.seal()
    async with running(driver) as worker:
        stuck, other = await worker.connect("cli"), await worker.connect()
        await stuck.ask(Op.READ, "t", b"{}", count=20)
        pressure = driver.shard.pressure
        await eventually(lambda: pressure.level >= COALESCE)
        while (told := await metrics(other))["ipc_backlog_bytes"] < 4 * MiB:
            pass  # on a busy machine the loop's own lag is a sign, too, and may be the first
        assert told["ipc_backlog_bytes"] <= 10 * MiB
        assert len(await stuck.answers(20)) == 20, "late, and all of them"
        await eventually(lambda: pressure.level == 0)
