"""`spark.readStream.format("topics")` over a live server: exactly the seqs that are missing, loss never silent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from ops.coldstore.stream import STREAM_FIELDS, SeqRange, TopicsStreamReader
from ops.coldstore.stream_api import StreamError
from tests.support.api_client import ApiClient, fresh
from tests.support.live_server import LiveServer

# A JVM on a busy machine may take minutes to start.
pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("server") / "data", shards=1) as running:
        yield running.wait_serving()


@pytest.fixture(scope="module")
def client(server: LiveServer) -> Iterator[ApiClient]:
    with server.client() as connected:
        yield connected


def write(client: ApiClient, topic: str, numbers: range, **fields: object) -> None:
    records = [{"data": {"n": n}, "tag": f"t{n}", "key": "k", "meta": {"m": n}} for n in numbers]
    answer = client.send("POST", f"/v0/topics/{topic}", {"records": records, **fields})
    assert answer.status_code in (200, 201), answer.text


def reader_of(client: ApiClient, topic: str, **options: str) -> TopicsStreamReader:
    return TopicsStreamReader({"url": f"http://127.0.0.1:{client.port}", "topic": topic, **options})


def batch(reader: TopicsStreamReader, start: dict[str, int], end: dict[str, int]) -> list[dict[str, Any]]:
    found = []
    for partition in reader.partitions(start, end):
        found += [dict(zip(STREAM_FIELDS, row, strict=True)) for row in reader.read(partition)]
    return found


def test_rows_carry_what_was_written_in_its_own_bytes(client: ApiClient) -> None:
    topic = fresh("stream")
    raw = b'{"records":[{"data":{"b":1.0, "a":12345678901234567890.10},"node":"n1"}]}'
    client.send("POST", f"/v0/topics/{topic}", raw=raw, headers={"Content-Type": "application/json"})
    write(client, topic, range(2, 6))
    reader = reader_of(client, topic, range_seqs="2")
    start, end = reader.initialOffset(), reader.latestOffset()
    assert [partition.upto for partition in reader.partitions(start, end)] == [2, 4, 5]  # type: ignore[attr-defined]
    rows = batch(reader, start, end)
    assert [row["seq"] for row in rows] == [1, 2, 3, 4, 5]
    assert (rows[0]["data"], rows[0]["node"], rows[0]["meta"]) == (
        '{"b":1.0, "a":12345678901234567890.10}',
        "n1",
        None,
    )
    assert (rows[1]["tag"], rows[1]["key"], rows[1]["meta"]) == ("t2", "k", '{"m": 2}')
    assert batch(reader, start, end) == rows, "a range read again gives the same rows"


def test_what_a_cap_took_is_a_row_that_names_the_seqs(client: ApiClient) -> None:
    topic = fresh("stream")
    write(client, topic, range(1, 3), config={"cap_records": 4})
    for n in range(3, 11):
        write(client, topic, range(n, n + 1))
    reader = reader_of(client, topic, range_seqs="5")
    rows = batch(reader, reader.initialOffset(), reader.latestOffset())
    gaps = [(row["gap_from"], row["gap_to"], row["gap_reason"]) for row in rows if row["gap_from"]]
    assert gaps == [(1, 5, "cap"), (6, 6, "cap")], "each range tells its own part"
    assert [row["seq"] for row in rows if row["seq"]] == [7, 8, 9, 10]


def test_a_topic_that_was_created_again_is_told_and_read_from_its_start(client: ApiClient) -> None:
    topic = fresh("stream")
    write(client, topic, range(1, 6))
    reader = reader_of(client, topic)
    old = reader.latestOffset()
    client.send("DELETE", f"/v0/topics/{topic}")
    assert reader.latestOffset(old) == old, "deleted: nothing new"
    planned = SeqRange(old["epoch"], 2, 5)
    assert [row[9:] for row in reader.read(planned)] == [(3, 5, "deleted")]
    write(client, topic, range(1, 4))
    new = reader.latestOffset(old)
    assert new["epoch"] > old["epoch"]
    rows = batch(reader, old, new)
    assert [(row["epoch"], row["gap_from"], row["gap_reason"]) for row in rows[:1]] == [
        (old["epoch"], 6, "recreated")
    ]
    assert [(row["epoch"], row["seq"]) for row in rows[1:]] == [(new["epoch"], seq) for seq in (1, 2, 3)]
    # Planned before the topic went, read after it came again: not a row of the new one under the old name.
    assert [row[9:] for row in reader.read(planned)] == [(3, 5, "recreated")]


def test_a_wrong_address_is_said_and_not_waited_for() -> None:
    with pytest.raises(StreamError, match=r'needs \.option\("topic"'):
        TopicsStreamReader({"url": "http://127.0.0.1:4000"})
    with pytest.raises(StreamError, match="url is that of a topicsd"):
        TopicsStreamReader({"url": "file:///etc", "topic": "t"})


def test_a_query_goes_on_from_its_checkpoint_exactly_where_it_stopped(
    spark: Any, client: ApiClient, tmp_path: Path
) -> None:
    topic = fresh("stream")

    def run() -> list[int]:
        """Everything there is now; then the query is stopped."""
        source = spark.readStream.format("topics").option("url", f"http://127.0.0.1:{client.port}")
        query = (
            source.option("topic", topic)
            .load()
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
        )
        try:
            query.processAllAvailable()
        except StreamingQueryException as err:
            # Spark waits ten seconds for its Python process, whatever else the machine does. The checkpoint stands.
            if "connect back" not in str(err):
                raise
            return run()
        finally:
            query.stop()
        rows = spark.read.parquet(str(tmp_path / "out")).collect()
        return sorted(row.seq for row in rows)

    write(client, topic, range(1, 1501))
    assert run() == list(range(1, 1501))
    write(client, topic, range(1501, 1701))
    assert run() == list(range(1, 1701)), "none twice, none left out"
