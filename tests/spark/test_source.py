"""`spark.read.format("topics")` shows what the shard shows, whatever the blocks look like."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cold_stores import StorePaths, fill, rows, store_in
from tests.support.shard_driver import ShardDriver

# A JVM on a busy machine may take minutes to start.
pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(600)]
TOPICS = ["alpha", "beta", "gamma"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, Any], StorePaths]]:
    """Three topics in four segments, two of them cold; some records deleted, some evicted, one topic created twice."""
    with store_in(tmp_path_factory.mktemp("store"), hot_retain_segments=2) as (driver, paths):
        driver.put("capped", cap_records=50)
        driver.append("twice", rows(1, 10))
        fill(driver, [*TOPICS, "capped", "twice"], segments=4)
        driver.delete_records("alpha", match=["tag", "Eq", "tag-3"])
        driver.delete_records("beta", before_seq=31)
        driver.delete_topic("twice")
        driver.append("twice", rows(1, 5), node='n-"1","data":')
        driver.seal()
        driver.relocate()
        shown = {name: _shown(driver, name) for name in (*TOPICS, "capped", "twice")}
        driver.snapshot()
    yield shown, paths


def _shown(driver: ShardDriver, topic: str) -> list[Any]:
    return driver.read_all(topic, inline=True, include_tags=True, include_keys=True)


def as_read(row: Any) -> dict[str, Any]:
    """A row in the shape of the HTTP API's records."""
    found: dict[str, Any] = {"$seq": row.seq, "$ts": row.ts, "data": json.loads(row.data)}
    for name, value in (("$node", row.node), ("$tag", row.tag), ("$key", row.key)):
        if value is not None:
            found[name] = value
    if row.meta is not None:
        found["meta"] = json.loads(row.meta)
    return found


def load(spark: Any, paths: StorePaths, **options: object) -> Any:
    reader = spark.read.format("topics").option("path", paths.data).option("cold", paths.cold)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load()


def test_a_data_directory_shows_every_live_sealed_record_as_the_server_does(spark: Any, store: Any) -> None:
    shown, paths = store
    found: dict[str, list[Any]] = {name: [] for name in shown}
    # Small bins, so that files are cut between blocks and several share a task.
    for row in sorted(load(spark, paths, bin_bytes=5000).collect(), key=lambda row: (row.topic, row.seq)):
        found[row.topic].append(as_read(row))
    assert found == shown
    assert {name: len(records) for name, records in shown.items()} == {
        "alpha": 144, "beta": 130, "gamma": 160, "capped": 50, "twice": 5,
    }  # fmt: skip


def test_a_cold_directory_shows_what_its_manifest_names_deleted_or_not(spark: Any, store: Any) -> None:
    _, paths = store
    read = spark.read.format("topics").option("path", paths.cold).load()
    assert read.filter("topic = 'alpha'").count() == 3 * 40
    assert {row.segment for row in read.select("segment").distinct().collect()} == {1, 2, 3}


def test_topics_columns_seqs_and_times_are_chosen_by_options(spark: Any, store: Any) -> None:
    shown, paths = store
    read = load(spark, paths, topics="beta,gamma", columns="seq,key", from_seq=60, to_seq=70)
    assert read.columns == ["seq", "key"]
    assert sorted(row.seq for row in read.collect()) == sorted([*range(60, 71)] * 2)
    times = sorted({record["$ts"] for record in shown["gamma"]})
    read = load(spark, paths, topics="gamma", from_ts=times[0], to_ts=times[0], columns="ts")
    assert {row.ts for row in read.collect()} == {times[0]}


def test_keys_are_counted_where_the_columns_are(spark: Any, store: Any) -> None:
    shown, paths = store
    rows = (
        load(spark, paths, mode="keys", bin_bytes=5000)
        .groupBy("topic", "key")
        .agg({"last_seq": "max", "records": "sum"})
    )
    found = {(row.topic, row.key): (row["max(last_seq)"], row["sum(records)"]) for row in rows.collect()}
    expected: dict[Any, tuple[int, int]] = {}
    for topic, records in shown.items():
        for record in records:
            place = (topic, record.get("$key"))
            expected[place] = (record["$seq"], expected.get(place, (0, 0))[1] + 1)
    assert found == expected


def test_blocks_are_listed_with_their_places_and_the_damaged_one_is_named(
    spark: Any, store: Any, tmp_path: Path
) -> None:
    _, paths = store
    whole = Path(f"{paths.cold_shard}/data/0000000001.seg").read_bytes()
    copy = tmp_path / "0000000001.seg"
    copy.write_bytes(whole)
    blocks = spark.read.format("topics").option("path", str(copy)).option("mode", "blocks").load()
    listed = sorted(blocks.collect(), key=lambda row: row.offset)
    assert [row.problem for row in listed] == [None] * len(listed)
    assert sum(row["count"] for row in listed) == 5 * 40 + 10
    victim = listed[2]
    damaged = bytearray(whole)
    damaged[victim.offset + victim.length - 20] ^= 1
    copy.write_bytes(damaged)
    problems = {row.block: row.problem for row in blocks.collect() if row.problem is not None}
    assert problems == {victim.block: "block JSON checksum"}
    records = spark.read.format("topics").option("path", str(copy)).load()
    with pytest.raises(Exception, match="corrupt_segment") as error:
        records.collect()
    assert str(copy) in str(error.value)
    assert f"topic {victim.topic}, seqs {victim.first_seq}..{victim.last_seq}" in str(error.value)
    others = records.sparkSession.read.format("topics").option("path", str(copy)).option("columns", "seq,tag")
    assert others.load().count() == 5 * 40 + 10, "what does not need the JSON does not read it"
