"""Questions about a shard: pages that add up, answers that stay small, and a worker that survives being asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from unittest.mock import patch

import pytest

import shard_worker.inspection as inspection
import shard_worker.inspection_log as inspection_log
import shard_worker.serve.turns as turns
from shard_worker.core.router import RouteMark
from shard_worker.inspection import answer, view_of_shard
from shared.cbor_body import load_map
from shared.errors import InvalidRequest, TopicNotFound
from shared.router_frames import CursorRow, RouterDefined
from shared.router_types import RouterRules
from shared.wire import Op
from tests.support.fault_kit import ROOMY, all_frames, flip_in_frame
from tests.support.running_worker import Client, running
from tests.support.shard_driver import ShardDriver
from topicsd.inspection.pictures import topic_picture


def asked(driver: ShardDriver, question: str, **options: object) -> Any:
    return answer(view_of_shard(driver.shard), question, options)


def all_rows(driver: ShardDriver, question: str, rows: str, after: str, **options: object) -> list[Any]:
    found: list[Any] = []
    while True:
        page = asked(driver, question, **options)
        found += page[rows]
        if "next" not in page:
            return found
        options[after] = page["next"]


@pytest.fixture
def driver() -> ShardDriver:
    made = ShardDriver(wal_file_bytes=4096)
    for n in range(12):
        made.append(f"t{n:02}", [{"data": "z" * 300, "tag": f"g{i}"} for i in range(3)])
    made.seal(["t00", "t01"])
    made.append("t00", [{"data": "hot"}])
    made.sync()
    return made


@pytest.mark.parametrize("limit", [1, 3, 100])
def test_pages_add_up(driver: ShardDriver, limit: int) -> None:
    names = [row["topic"] for row in all_rows(driver, "topics", "topics", "after", limit=limit)]
    assert names == [f"t{n:02}" for n in range(12)]
    frames = all_rows(driver, "log", "frames", "from", limit=limit)
    assert [row["bytes"] for row in frames] == [len(frame.raw) for frame in all_frames(driver.disk)]
    records = all_rows(driver, "records", "records", "after", topic="t00", limit=limit)
    assert [row["seq"] for row in records] == [1, 2, 3, 4]
    assert [row["tag"] for row in records] == [b"g0", b"g1", b"g2", None]


def test_answers_stay_small(driver: ShardDriver) -> None:
    with (
        patch.object(inspection, "INSPECT_MAX_BYTES", 500),
        patch.object(inspection_log, "INSPECT_MAX_BYTES", 2000),
    ):
        page = asked(driver, "records", topic="t05")
        assert (len(page["records"]), page["next"]) == (1, 1)
        page = asked(driver, "log")
        assert sum(row["bytes"] for row in page["frames"]) < 4000 and "next" in page
        assert len(all_rows(driver, "log", "frames", "from")) == len(all_frames(driver.disk))
    assert len(asked(driver, "topics", limit=10**9)["topics"]) == 12


def test_only_the_newest_records(driver: ShardDriver) -> None:
    driver.delete_records("t00", match=["tag", "Eq", "g2"])
    page = asked(driver, "records", topic="t00", limit=2, last=True)
    assert [row["seq"] for row in page["records"]] == [2, 4]


def test_an_unreadable_stretch_is_a_row_and_the_rest_follows() -> None:
    driver = ShardDriver(wal_file_bytes=ROOMY)
    for n in range(4):
        driver.append("t", [{"data": n}], config={"durable": True})
    frames = all_frames(driver.disk)
    flip_in_frame(driver.disk, frames[-3], 70)
    rows = asked(driver, "log")["frames"]
    assert [row["kind"] == "?" for row in rows] == [frame == frames[-3] for frame in frames]
    assert rows[-3]["damage"] == "frame checksum"


def test_asking_changes_nothing(driver: ShardDriver) -> None:
    before = {path: driver.disk.read_file(path) for path in driver.disk.files()}
    written = driver.engine.wal.end
    for question in ("show", "topics", "segments", "log"):
        asked(driver, question)
    asked(driver, "topic", topic="t00")
    asked(driver, "where", topic="t00", seq=2)
    assert driver.engine.wal.end == written
    assert {path: driver.disk.read_file(path) for path in driver.disk.files()} == before


def test_routers_are_shown_on_both_sides(driver: ShardDriver) -> None:
    state = driver.engine.state
    source, dest = state.catalog.visible["t00"], state.catalog.visible["t01"]
    fact = RouterDefined("r", 7, "t01", dest.epoch, 0, RouterRules(guarantee="exactly_once"))
    state.apply(source.lsn + 1, source.id, 1, fact)
    source.routers["r"].stand_at(CursorRow("r", 7, 3, 2, 3))
    dest.routed = {"r": RouteMark(7, 2)}
    [router] = asked(driver, "topic", topic="t00")["routers"]
    assert (router["dest"], router["cursor"], router["confirmed"], router["lag"]) == ("t01", 3, 2, 1)
    assert asked(driver, "topic", topic="t01")["routed"] == [{"router": "r", "epoch": 7, "source_seq": 2}]
    picture = "\n".join(topic_picture({**asked(driver, "topic", topic="t00"), "source": "live"}))
    assert "exactly_once" in picture and "confirmed" in picture


@pytest.mark.parametrize(
    ("question", "options", "error"),
    [
        ("nothing", {}, InvalidRequest),
        ("topic", {"topic": "absent"}, TopicNotFound),
        ("topic", {"topic": 7}, InvalidRequest),
        ("topics", {"limit": "all"}, InvalidRequest),
        ("log", {"from": "3:x"}, InvalidRequest),
    ],
)
def test_wrong_questions_are_refused(
    driver: ShardDriver, question: str, options: Mapping[str, object], error: type[Exception]
) -> None:
    with pytest.raises(error):
        answer(view_of_shard(driver.shard), question, options)


async def inspect(client: Client, **options: object) -> Any:
    id_ = client.session.submit(Op.INSPECT, "", b"", options, None)
    await client.stream.send_all(client.session.take_outgoing())
    return (await client.answers(1, {id_}))[0]


@pytest.mark.trio
async def test_a_worker_answers_and_an_error_of_ours_costs_it_nothing(driver: ShardDriver) -> None:
    async with running(driver) as worker:
        client = await worker.connect("cli")
        found = await inspect(client, question="topics", limit=2)
        assert [row["topic"] for row in load_map(found.body).rest()["topics"]] == ["t00", "t01"]
        assert (await inspect(client, question="topic", topic="absent")).status == 404
        with patch.object(turns, "answer", side_effect=ZeroDivisionError("ours")):
            assert (await inspect(client, question="show")).status == 500
        assert (await inspect(client, question="show")).status == 200
