"""Jobs as claims show them, and as they travel to another topic; over batches, single records and segments."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest

from shard_worker.core.job_json import (
    JobTexts,
    moved_record,
    readable_records,
    record_text,
    records_of,
    without_origin,
)
from shared.control_frames import LeaseRow
from shared.errors import DataDamage
from shared.wire import Op
from tests.support.fake_disk import FakeFile
from tests.support.fault_kit import appends, flip_in_frame, flip_in_segment, segment_parts, segment_path
from tests.support.queue_driver import QueueDriver

RICH: list[dict[str, Any]] = [
    {"data": {"n": 1}},
    {"data": "ü", "tag": 'a"b', "node": '"data":', "key": "k", "meta": {"x": [1, 2], "data": {"$ts": 1}}},
    {"data": None, "tag": "", "meta": {}},
    {"data": [1, 2], "node": "n"},
]
PLACES = ["batch", "singles", "sealed", "sealed singles", "both", "ephemeral"]


def filled(where: str) -> QueueDriver:
    driver = QueueDriver(wal_file_bytes=1 << 16)
    driver.make("q", durability="ephemeral" if where == "ephemeral" else "disk")
    batches = [[record] for record in RICH] if "singles" in where else [RICH[:2], RICH[2:]]
    for place, batch in enumerate(batches):
        driver.write("q", *batch)
        if where == "both" and place == 0:
            driver.seal()
    if "sealed" in where:
        assert driver.seal()
    return driver


def shown(driver: QueueDriver, seqs: list[int]) -> list[dict[str, Any]]:
    topic, source = driver.topic("q"), driver.engine.state.source
    texts = JobTexts()
    grants = {seq: LeaseRow(seq, f"lease_{seq}", 99, seq + 1, "w") for seq in seqs}
    return [
        json.loads(texts.of(grants[seq], piece, place))
        for seq, piece, place in records_of(topic, seqs, source)
    ]


@pytest.mark.parametrize("where", PLACES)
def test_a_job_shows_its_record_and_its_lease(where: str) -> None:
    jobs = shown(filled(where), [4, 2, 1, 3])
    assert [job.pop("$ts") for job in jobs] == [1_700_000_000_000] * 4
    common = [{"deliveries": seq + 1, "lease_id": f"lease_{seq}", "deadline": 99} for seq in range(1, 5)]
    assert jobs == [
        {"$seq": 1, "data": {"n": 1}, **common[0]},
        {
            "$seq": 2,
            "$node": '"data":',
            "$tag": 'a"b',
            "data": "ü",
            "meta": {"x": [1, 2], "data": {"$ts": 1}},
            **common[1],
        },
        {"$seq": 3, "$tag": "", "data": None, "meta": {}, **common[2]},
        {"$seq": 4, "$node": "n", "data": [1, 2], **common[3]},
    ]


def test_fields_come_in_the_order_of_the_contract() -> None:
    [job] = shown(filled("batch"), [2])
    assert list(job) == [
        "$seq",
        "$ts",
        "$tag",
        "deliveries",
        "lease_id",
        "deadline",
        "$node",
        "data",
        "meta",
    ]


@pytest.mark.parametrize("where", PLACES)
def test_a_moved_record_is_what_its_writer_sent(where: str) -> None:
    driver = filled(where)
    topic, source = driver.topic("q"), driver.engine.state.source
    placed = records_of(topic, [1, 2, 3, 4], source)
    moved = [json.loads(moved_record(topic, piece, place, seq, None)) for seq, piece, place in placed]
    # Nothing but what the record has: an absent field stays absent.
    assert moved == RICH
    assert [record_text(piece, place)[:9] for _, piece, place in placed] == [
        b'{"$seq":%d' % seq for seq in range(1, 5)
    ]


def test_data_and_meta_travel_byte_for_byte() -> None:
    driver = QueueDriver()
    driver.make("q")
    body = b'{"records":[{"data":{"a" : 1.0e2,"b":"\\u00fc"},"meta":{ "m" :1}}]}'
    driver.call(Op.APPEND, "q", body)
    topic = driver.topic("q")
    [(seq, piece, place)] = records_of(topic, [1], driver.engine.state.source)
    plain = moved_record(topic, piece, place, seq, None)
    assert plain == b'{"data":{"a" : 1.0e2,"b":"\\u00fc"},"meta":{ "m" :1}}'
    dead = moved_record(topic, piece, place, seq, 3)
    origin = b'"$dead_letter_from":"q","$dead_letter_deliveries":3,"$dead_letter_src_seq":1'
    assert dead == b'{"data":{"a" : 1.0e2,"b":"\\u00fc"},"meta":{"m" :1,' + origin + b"}}"


@pytest.mark.parametrize(
    ("meta", "kept"),
    [
        (b'{"a":1}', b'{"a":1}'),
        (b"{}", b"{}"),
        (b'{"$dead_letter_from":"x","$dead_letter_deliveries":2,"$dead_letter_src_seq":9}', b"{}"),
        (
            b'{"b":[1 ,2],"$dead_letter_src_seq":9,"c":"$dead_letter_from"}',
            b'{"b":[1 ,2],"c":"$dead_letter_from"}',
        ),
    ],
)
def test_the_origin_is_taken_out_of_meta_and_nothing_else(meta: bytes, kept: bytes) -> None:
    assert without_origin(meta) == kept


def test_a_second_death_replaces_the_first_origin() -> None:
    driver = QueueDriver()
    driver.make("q")
    driver.write("q", {"data": 1, "meta": {"a": 1, "$dead_letter_from": "old", "$dead_letter_src_seq": 5}})
    topic = driver.topic("q")
    [(seq, piece, place)] = records_of(topic, [1], driver.engine.state.source)
    dead = moved_record(topic, piece, place, seq, 2)
    assert dead.count(b"$dead_letter_from") == dead.count(b"$dead_letter_src_seq") == 1
    assert json.loads(dead)["meta"]["$dead_letter_from"] == "q"


# --- cost -------------------------------------------------------------------------------------------------


@contextmanager
def counted_reads() -> Iterator[list[int]]:
    reads = [0]
    pread = FakeFile.pread

    def counting(self: FakeFile, length: int, offset: int) -> bytes:
        reads[0] += 1
        return pread(self, length, offset)

    with patch.object(FakeFile, "pread", counting):
        yield reads


@pytest.mark.parametrize("batch", [1, 10, 100])
@pytest.mark.parametrize("sealed", [False, True])
def test_a_claim_of_a_hundred_costs_far_fewer_reads_than_a_hundred_claims(batch: int, sealed: bool) -> None:
    driver = QueueDriver(wal_file_bytes=1 << 20)
    driver.make("q")
    for start in range(0, 400, batch):
        driver.write("q", *range(start, start + batch))
    if sealed:
        assert driver.seal()
    with counted_reads() as reads:
        for _ in range(100):
            driver.claim("q")
    singly = reads[0]
    with counted_reads() as reads:
        assert len(driver.claim("q", max=100)) == 100
    together = reads[0]
    assert together <= 100 / batch * 2 if batch > 1 else together <= 3
    if not sealed:
        assert together * 5 <= singly


def test_single_records_are_read_in_one_go_also_with_holes_between_them() -> None:
    driver = QueueDriver(wal_file_bytes=1 << 20)
    driver.make("q")
    for number in range(60):
        driver.write("q", number)
    driver.write("q", {"data": "rich", "tag": "t"})
    topic, source = driver.topic("q"), driver.engine.state.source
    wanted = [1, 2, 3, 10, 11, 40, 60, 61]
    with counted_reads() as reads:
        found = records_of(topic, wanted, source)
        texts = [json.loads(record_text(piece, place)) for _, piece, place in found]
    assert [(text["$seq"], text["data"]) for text in texts] == [
        *((seq, seq - 1) for seq in wanted[:-1]),
        (61, "rich"),
    ]
    assert reads[0] <= 6


# --- damage -----------------------------------------------------------------------------------------------


def test_a_damaged_batch_does_not_hide_its_neighbours() -> None:
    driver = QueueDriver(wal_file_bytes=1 << 16)
    driver.make("q")
    for number in range(3):
        driver.write("q", number, number)
    driver.snapshot()
    driver.close()
    # Older than the snapshot, so replay does not look at it: it is verified when it is first read.
    flip_in_frame(driver.disk, appends(driver.disk)[1], 70)
    driver.reopen()
    topic, source = driver.topic("q"), driver.engine.state.source
    found, damaged = readable_records(topic, [1, 2, 3, 4, 5, 6], source)
    assert [seq for seq, _, _ in found] == [1, 2, 5, 6]
    assert sorted(damaged) == [3, 4]
    with pytest.raises(DataDamage):
        records_of(topic, [1, 3], source)
    jobs = driver.claim("q", max=10)
    assert [job["$seq"] for job in jobs] == [1, 2, 5, 6]


def test_a_claim_that_finds_only_damage_says_so_and_others_go_on() -> None:
    driver = QueueDriver(wal_file_bytes=1 << 16)
    driver.make("q")
    driver.write("q", "x" * 50)
    assert driver.seal()
    driver.write("q", "fine")
    path = segment_path(1)
    block = segment_parts(driver.disk, path).blocks[0]
    flip_in_segment(driver.disk, path, block.offset + block.length - 20)
    refused = driver.claim_answer("q")
    assert (refused.status, refused.error) == (500, "internal")
    assert driver.claim_seqs("q") == [2], "the damaged one stands back for a moment"
    driver.check_queue("q")
    driver.clock.advance(5000)
    assert driver.claim_answer("q").status == 500
