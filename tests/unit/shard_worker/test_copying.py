"""Records become copies: spliced byte for byte, marked, counted, filtered; and become records again."""

from __future__ import annotations

import json
from array import array
from typing import Any

import pytest

from shard_worker.core.copying import as_batch, gather, sizes_at
from shard_worker.core.router import Router
from shared.columns import Columns
from shared.copies import Copies, decode_copies, encode_copies
from shared.limits import FORWARD_MAX_RECORDS, ROUTER_MAX_HOPS
from shared.match import parse_match
from shared.router_types import RouterRules
from shared.wire import LinkError
from tests.support.shard_driver import ShardDriver

RECORDS: list[dict[str, Any]] = [
    {"data": 1},
    {"data": {"$seq": 9, "data": ",\"meta\":"}, "node": "a\"b", "tag": "t", "key": "k", "meta": {"m": "},"}},
    {"data": None, "key": "gone"},
    {"data": "}", "node": "n"},
    {"data": [], "meta": {}},
]  # fmt: skip


def source(records: list[dict[str, Any]], *, sealed: bool = False) -> ShardDriver:
    driver = ShardDriver(wal_file_bytes=1 << 20)
    for start in range(0, len(records), 4):
        driver.append("s", records[start : start + 4])
    if sealed:
        driver.seal()
    return driver


def router(cursor: int = 0, **rules: Any) -> Router:
    return Router("r", 7, "d", 1, 0, RouterRules(**rules), cursor, 0)


def copies_of(driver: ShardDriver, made: Router) -> Copies:
    topic = driver.engine.state.catalog.visible["s"]
    step = gather(topic, made, topic.floor, driver.engine.state.source)
    assert step.copies is not None and step.lost is None
    return step.copies


def shown(copies: Copies, first: int = 998) -> list[dict[str, Any]]:
    """The records that a destination makes of them, with labels as its columns have them."""
    batch = as_batch(copies, first, 1_700_000_000_123)
    assert sizes_at(copies, first, 1_700_000_000_123) == record_sizes(batch.columns, batch)
    columns = Columns(batch.column_flags, batch.count, len(batch.json), memoryview(batch.columns))
    columns.verify()
    found = json.loads(b"[" + batch.json[:-1] + b"]")
    assert [record["$seq"] for record in found] == list(range(first, first + batch.count))
    assert {record["$ts"] for record in found} == {1_700_000_000_123}
    for place, record in enumerate(found):
        node, tag, key = columns.node(place), columns.tag(place), columns.key(place)
        assert record.get("$node") == (None if node is None else node.decode())
        record |= {} if tag is None else {"tag": tag.decode()}
        record |= {} if key is None else {"key": key.decode()}
        del record["$seq"], record["$ts"]
    return found


def record_sizes(columns: bytes, batch: Any) -> list[int]:
    ends = Columns(batch.column_flags, batch.count, len(batch.json), memoryview(columns)).ends
    return [end - begin for begin, end in zip([0, *ends], ends, strict=False)]


def as_shown(record: dict[str, Any], **without: object) -> dict[str, Any]:
    found = {"$node" if name == "node" else name: value for name, value in record.items()}
    return {name: value for name, value in found.items() if name not in without}


@pytest.mark.parametrize("sealed", [False, True], ids=["hot", "sealed"])
def test_a_copy_is_the_record_with_another_seq_and_time(sealed: bool) -> None:
    copies = copies_of(source(RECORDS, sealed=sealed), router())
    assert list(copies.seqs) == [1, 2, 3, 4, 5]
    assert shown(copies) == [as_shown(record) for record in RECORDS]
    assert shown(decode_copies(encode_copies(copies))) == shown(copies)


def test_labels_are_left_behind_if_the_router_says_so() -> None:
    copies = copies_of(source(RECORDS), router(preserve_node=False, preserve_tag=False))
    assert shown(copies) == [as_shown(record, **{"$node": 1, "tag": 1}) for record in RECORDS]


def test_bytes_are_the_writers_own() -> None:
    driver = ShardDriver()
    driver.call(1, "s", b'{"records":[{"data": 1.50 ,"meta":{ "a" : 1e2 }}]}')
    for rules in ({}, {"allow_cycle": True}):
        copies = copies_of(driver, router(**rules))
        assert b'"data":1.50' in copies.tails and b'"a" : 1e2' in copies.tails


@pytest.mark.parametrize(("low", "high"), [(0, 5), (0, 2), (1, 4), (4, 5), (2, 3)])
def test_a_part_of_copies_is_what_it_would_be_alone(low: int, high: int) -> None:
    copies = copies_of(source(RECORDS), router())
    part = copies.part(low, high)
    assert list(part.seqs) == list(range(low + 1, high + 1))
    assert shown(part) == [as_shown(record) for record in RECORDS[low:high]]
    assert len(copies.behind(low)) == 5 - low
    assert not copies.behind(5)


def test_only_what_matches_and_lives_is_copied() -> None:
    records = [{"data": n, "tag": f"t{n % 3}"} for n in range(9)]
    driver = source(records)
    driver.delete_records("s", match=["key", "Eq", "none"])
    driver.delete_records("s", before_seq=3)
    copies = copies_of(driver, router(match=parse_match(["tag", "Glob", "t1*"])))
    assert [record["data"] for record in shown(copies)] == [4, 7]
    assert list(copies.seqs) == [5, 8]


def test_a_mark_says_where_the_copy_comes_from_and_replaces_an_older_one() -> None:
    old = {"_topics_router": {"router": "before"}, "kept": 1}
    driver = source([{"data": 1}, {"data": 2, "meta": old}])
    epoch = driver.engine.state.catalog.visible["s"].epoch
    for place, record in enumerate(shown(copies_of(driver, router(guarantee="exactly_once"))), 1):
        mark = record["meta"].pop("_topics_router")
        assert mark == {"router": "r", "source": "s", "epoch": epoch, "seq": place}
        assert record["meta"] == ({"kept": 1} if place == 2 else {})


def test_hops_are_counted_and_end() -> None:
    metas: list[dict[str, Any]] = [{}, {"_topics_hops": 3, "a": 1}, {"_topics_hops": ROUTER_MAX_HOPS}]
    metas += [{"_topics_hops": "many"}, {"_topics_hops": -5}]
    driver = source([{"data": n, "meta": meta} for n, meta in enumerate(metas)])
    found = shown(copies_of(driver, router(allow_cycle=True)))
    assert [record["meta"] for record in found] == [{"_topics_hops": 1}, {"_topics_hops": 4, "a": 1}]


def test_a_step_is_bounded_and_says_where_it_ended() -> None:
    driver = ShardDriver(wal_file_bytes=1 << 20)
    driver.append("s", [{"data": n} for n in range(FORWARD_MAX_RECORDS + 5)])
    topic = driver.engine.state.catalog.visible["s"]
    step = gather(topic, router(), topic.floor, driver.engine.state.source)
    assert step.copies is not None
    assert (len(step.copies), step.upto) == (FORWARD_MAX_RECORDS, FORWARD_MAX_RECORDS)
    step = gather(topic, router(cursor=step.upto), topic.floor, driver.engine.state.source)
    assert step.copies is not None
    assert (list(step.copies.seqs), step.upto) == ([1001, 1002, 1003, 1004, 1005], 1005)


def test_nothing_to_copy_is_a_step_as_well() -> None:
    driver = source(RECORDS)
    topic = driver.engine.state.catalog.visible["s"]
    step = gather(topic, router(match=parse_match("absent")), topic.floor, driver.engine.state.source)
    assert (step.copies, step.lost, step.upto) == (None, None, 5)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x80",
        encode_copies(Copies(array("Q"), b"", 0, b"")),
        encode_copies(Copies(array("Q", [1, 2]), b"},},", 0, b"")),
    ],
)
def test_what_is_not_copies_is_refused(body: bytes) -> None:
    with pytest.raises(LinkError):
        decode_copies(body)
