"""What people see of `topics`: tables, numbers, `top`."""

from __future__ import annotations

from typing import Any

import pytest

from shared.api_types import QueueState, TopicConfig, TopicState
from topicsd.client.commands.bench import summary
from topicsd.client.commands.get import describe
from topicsd.client.load import LoadResult, percentile
from topicsd.client.output import duration, size, table_lines
from topicsd.client.reading import Gap, gap_text
from topicsd.client.readings import Reading, compare, sorted_topics
from topicsd.client.top_screen import render

Json = dict[str, Any]


def test_tables_align_words_left_and_numbers_right() -> None:
    assert table_lines(("NAME", ">N"), [("a", "1"), ("long-name", "1,000")]) == [
        "NAME           N",
        "a              1",
        "long-name  1,000",
    ]
    assert table_lines(("A", ">B"), []) == ["A  B"]
    assert "\x1b" not in table_lines(("A",), [("\x1b[31mred",)])[1]


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 KiB"), (64 * 2**20, "64.0 MiB"), (2**50, "1,024.0 TiB")],
)
def test_sizes(number: float, text: str) -> None:
    assert size(number) == text


def test_durations() -> None:
    found = [duration(ms) for ms in (5, 1500, 90_000, 5_400_000, 172_800_000)]
    assert found == ["5 ms", "1.5 s", "1.5 min", "1.5 h", "2.0 d"]


def test_a_gap_is_told_in_one_line() -> None:
    told = gap_text("t", Gap(gap_from=2, gap_to=9, reason="ttl", earliest_seq=10, head_seq=20))
    assert told == "t: seq 2…9 are lost (they were too old); going on at seq 10"
    assert "made anew" in gap_text("t", Gap(1, 9, "recreated", 1, 9))
    assert "moon" in gap_text("t", Gap(3, 3, "moon", 4, 9))


def test_percentiles_are_values_that_were_measured() -> None:
    values = [float(number) for number in range(1, 101)]
    assert [percentile(values, p) for p in (0, 50, 90, 99, 99.9, 100)] == [1, 50, 90, 99, 100, 100]
    assert percentile([7.0], 99.9) == 7.0


def test_a_bench_counts_only_what_was_answered() -> None:
    result = LoadResult(took_s=2.0, client_cpu=0.5)
    for _ in range(4):
        result.took(200, b"", 0.001)
    result.took(429, b"no", 9.0)
    report = summary(result, what="append", connections=1, batch=10, record_bytes=100, durability="disk")
    assert (report["requests"], report["refused"]) == (4, 1)
    assert (report["requests_per_s"], report["records_per_s"], report["bytes_per_s"]) == (2.0, 20.0, 2000)
    assert report["latency_ms"] == {"p50": 1.0, "p90": 1.0, "p99": 1.0, "p99.9": 1.0, "max": 1.0}
    nothing = summary(
        LoadResult(took_s=1.0), what="read", connections=1, batch=1, record_bytes=1, durability="disk"
    )
    assert nothing["latency_ms"] == {}


def test_a_topic_is_described_by_what_was_chosen_for_it() -> None:
    state = TopicState(
        topic="jobs",
        type="queue",
        head_seq=9,
        earliest_seq=3,
        next_seq=10,
        count=4,
        bytes=400,
        config=TopicConfig(type="queue", lease_ms=5000, cap_bytes=2**20, discard="reject"),
        effective_priority=0,
        last_write_ts=None,
        last_read_ts=0,
        epoch=1,
        shard=2,
        performance=None,  # type: ignore[arg-type]
        queue=QueueState(ready=1, in_flight=2, delayed=1, dead_lettered=0),
    )
    rows = dict(describe(state))
    assert rows["jobs"].startswith("1 ready, 2 in flight, 1 delayed")
    assert (rows["lease_ms"], rows["cap_bytes"], rows["discard"]) == ("5.0 s", "1.0 MiB", "reject")
    assert rows["written"] == "never" and rows["seqs"] == "3…9"
    assert "ttl_ms" not in rows


# --- top ---


def shard(appended: int, syncs: int = 0, sync_ms: float = 0.0, **topics: Json) -> Json:
    return {
        "gauges": {"topics": len(topics), "records_live": 5, "bytes_live": 50, "queue_ready": 3},
        "counters": {"records_appended_total": appended, "wal_fsyncs_total": syncs},
        "histograms": {"wal_fsync_ms": {"sum": sync_ms, "count": syncs}},
        "per_topic": topics,
    }


def topic(head: int, **more: int) -> Json:
    return {"records": head, "bytes": 10 * head, "head_seq": head, **more}


def reading(at_s: float, *shards: Json, ready: Json | None = None, routers: tuple[Json, ...] = ()) -> Reading:
    return Reading(
        at_s=at_s, metrics={"uptime_ms": 1000, "shards": list(shards)}, ready=ready or {}, routers=routers
    )


def test_rates_are_what_happened_between_two_readings() -> None:
    before = reading(10.0, shard(100, 10, 20.0, a=topic(50), b=topic(9)))
    now = reading(12.0, shard(300, 20, 40.0, a=topic(250), b=topic(4), c=topic(8)))
    picture = compare(before, now)
    assert picture.totals["appended_per_s"] == 100
    assert picture.shards[0].sync_ms == 2.0
    # b was made anew, c is new: all they have was written since.
    assert {row.name: row.appended_per_s for row in picture.topics} == {"a": 100, "b": 2, "c": 4}


def test_there_are_no_rates_without_a_reading_before_nor_after_a_restart() -> None:
    first = compare(None, reading(1.0, shard(1000, a=topic(500))))
    assert first.totals["appended_per_s"] == 0 and first.topics[0].appended_per_s == 0
    restarted = compare(reading(1.0, shard(1000)), reading(2.0, shard(5)))
    assert restarted.totals["appended_per_s"] == 0


def test_pressure_names_the_shard_and_the_trouble() -> None:
    away = {"shards": [{"shard": 0, "ready": True}, {"shard": 1, "ready": False, "reason": "replaying"}]}
    busy = shard(0)
    busy["gauges"] |= {"wal_queue_depth": 7, "read_only": 1}
    gone: Json = {"gauges": {}, "counters": {}, "histograms": {}, "per_topic": {}}
    picture = compare(None, reading(1.0, busy, gone, ready=away))
    assert picture.pressure == [
        "shard 1: replaying",
        "shard 0: 7 requests wait for the log",
        "shard 0: read-only: its disk is full or failing",
    ]
    assert [row.state for row in picture.shards] == ["read-only", "replaying"]
    assert compare(None, reading(1.0, shard(0))).pressure == []


def test_pressure_shows_the_level_its_signs_and_what_was_refused() -> None:
    calm, busy = shard(0), shard(0)
    calm["gauges"] |= {"pressure_level": 0, "loop_lag_ms": 0.4, "unsynced_wait_bytes": 100}
    calm["counters"] |= {"throttled_requests_total": 5, "pushes_paused_total": 1}
    busy["gauges"] |= {"pressure_level": 3, "loop_lag_ms": 61.7, "unsynced_wait_bytes": 3 << 20}
    busy["gauges"] |= {"throttled_waiting": 12}
    busy["counters"] |= {"throttled_requests_total": 1205, "pushes_paused_total": 1}
    assert compare(reading(1.0, calm), reading(2.0, calm)).pressure == []
    assert compare(reading(1.0, calm), reading(2.0, busy)).pressure == [
        "shard 0: level 3, low priorities pause; requests wait 62 ms for their turn; 3.0 MiB wait for the disk",
        "shard 0: 12 writes wait for room",
        "shard 0: 1,200 writes refused since the last picture",
    ]
    # What was refused before the first look, or before a restart, is no news.
    assert len(compare(None, reading(2.0, busy)).pressure) == 2
    assert compare(reading(1.0, busy), reading(2.0, calm)).pressure == []
    links = [
        Reading(at_s=at, metrics={"shards": [calm], "links": [{"ipc_throttled_total": at}]}, ready={})
        for at in (1, 5)
    ]
    assert compare(*links).pressure == ["shard 0: 4 requests refused before they reached it"]


def test_topics_sort_by_each_key() -> None:
    before = reading(0.0, shard(0, a=topic(0), b=topic(90), c=topic(10, queue_ready=1)))
    now = reading(1.0, shard(0, a=topic(50), b=topic(100), c=topic(10, queue_ready=9)))
    topics = compare(before, now).topics
    for by, order in {"rate": "abc", "records": "bac", "size": "bac", "jobs": "cab", "name": "abc"}.items():
        assert "".join(row.name for row in sorted_topics(topics, by)) == order


def test_the_screen_keeps_to_the_window() -> None:
    many = {f"topic-{number:03}": topic(number) for number in range(100)}
    routers = tuple({"router": f"r{n}", "source": "a", "dest": "b", "lag": n} for n in range(9))
    picture = compare(None, reading(1.0, shard(0, **many), routers=routers))
    for width, height in ((120, 40), (60, 24), (20, 12), (5, 3)):
        lines = render(picture, server="s", sort="name", clock="", width=width, height=height, keys=True)
        assert len(lines) <= height and all(len(line) <= width for line in lines)
    tall = render(picture, server="s", sort="name", clock="", width=120, height=40, keys=True)
    assert "q quit" in tall[-1] and "more" in tall[-2]
    assert any(line.startswith("r8 ") for line in tall)  # the one that lags most
    everything = render(picture, server="s", sort="name", clock="")
    assert sum(line.startswith("topic-") for line in everything) == 100
    assert "more" not in everything[-1]
