"""Writing and reading records over HTTP on both lanes."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from shared.limits import READ_DEFAULT_BYTES, READ_DEFAULT_LIMIT, SENDFILE_MIN_BYTES, STITCHED_FILE_BYTES
from tests.support.api_client import LANES, ApiClient, Lane, fresh, long_polls
from tests.support.live_server import LiveServer
from tests.support.server_process import wait_for

# --- writes -------------------------------------------------------------------------------------


def test_a_write_creates_its_topic_and_tells_its_seqs(client: ApiClient) -> None:
    topic = fresh()
    answer = client.ok(
        "POST", f"/v0/topics/{topic}", {"records": [{"data": 1}, {"data": 2}, {"data": 3}]}, status=201
    )
    performance = answer.pop("performance")
    assert performance["fsync_ms"] > 0, "creating a topic waits for a sync"
    assert answer == {
        "topic": topic,
        "first_seq": 1,
        "last_seq": 3,
        "seqs": [1, 2, 3],
        "head_seq": 3,
        "count": 3,
        "created": True,
        "deduped": False,
    }
    again = client.ok("POST", f"/v0/topics/{topic}", {"records": [{"data": 4}]})
    assert (again["first_seq"], again["last_seq"], again["seqs"], again["head_seq"]) == (4, 4, [4], 4)
    assert (again["count"], again["created"]) == (1, False)


def test_seqs_can_be_left_out_of_the_answer(client: ApiClient) -> None:
    topic = fresh()
    for query, shown in (("?return_seqs=false", False), ("?return_seqs=true", True), ("", True)):
        answer = client.send("POST", f"/v0/topics/{topic}{query}", {"records": [{"data": 1}] * 2}).json()
        assert ("seqs" in answer) is shown
        assert answer["last_seq"] == answer["first_seq"] + 1
    client.fails(
        400, "invalid_request", "POST", f"/v0/topics/{topic}?return_seqs=2", {"records": [{"data": 1}]}
    )


def test_every_field_of_a_record_comes_back_when_asked_for(client: ApiClient) -> None:
    topic = fresh()
    full = {
        "data": {"sku": "AEROPRESS"},
        "tag": "order-7731",
        "node": "eu-1",
        "key": "7731",
        "meta": {"a": [1]},
    }
    client.write(topic, full, {"data": 2}, {"data": 3, "tag": None, "node": None, "key": None, "meta": None})
    records = client.diff(topic, include_tags=True, include_keys=True)["records"]
    for record in records:
        assert record.pop("$ts") > 1_600_000_000_000
    assert records == [
        {
            "$seq": 1,
            "$tag": "order-7731",
            "$key": "7731",
            "$node": "eu-1",
            "data": {"sku": "AEROPRESS"},
            "meta": {"a": [1]},
        },
        {"$seq": 2, "data": 2},
        {"$seq": 3, "data": 3},
    ]


def test_the_node_of_the_batch_is_the_default_of_its_records(client: ApiClient) -> None:
    topic = fresh()
    client.write(topic, {"data": 1}, {"data": 2, "node": "own"}, node="batch")
    assert [record["$node"] for record in client.diff(topic)["records"]] == ["batch", "own"]


VERBATIM = [
    b"null",
    b"true",
    b'""',
    b"0",
    b"-0",
    b"-0.0",
    b"1E400",
    b"1e-400",
    b"0.1000000000000000055511151231257827",
    b"123456789012345678901234567890",
    b"1.0",
    b"1e2",
    b"[]",
    b"{}",
    b'{"a":1,"a":2,"a":1}',
    b'{"b":1,"a":2}',
    b'"\\u00e4\\ud83d\\ude00\\/\\n"',
    '"ä\u2028😀\x7f"'.encode(),
    b'"\\u0000"',
    b'{ "spaced" :\t[ 1 ,\n2 ] }',
    b'"},{\\"$seq\\":99"',
    b"[" * 200 + b"]" * 200,
    b'{"k":' * 100 + b"1" + b"}" * 100,
    b'{"$seq":7,"tag":"in","meta":{"node":null}}',
]


@pytest.mark.parametrize(("tag", "query"), [(b"", ""), (b'"tag":"t",', "?include_tags=true")])
def test_data_comes_back_byte_for_byte(client: ApiClient, tag: bytes, query: str) -> None:
    """Records with nothing but data take a path of their own, so both kinds are written."""
    topic = fresh()
    records = b",".join(b'{%b"data":%b}' % (tag, value) for value in VERBATIM)
    client.ok("POST", f"/v0/topics/{topic}", raw=b'{"records":[%b]}' % records, status=201)
    document = client.send("GET", f"/v0/topics/{topic}/records{query}").content
    expected = [
        rb'\{"\$seq":%d,"\$ts":\d+,(?:"\$tag":"t",)?"data":%b\}' % (seq, re.escape(value))
        for seq, value in enumerate(VERBATIM, start=1)
    ]
    assert re.search(rb'"records":\[' + b",".join(expected) + rb"\],", document)


def test_meta_comes_back_byte_for_byte_and_is_left_out_on_request(client: ApiClient) -> None:
    topic = fresh()
    meta = b'{ "b":1.50, "a":"\\u0041", "b":2 }'
    client.ok("POST", f"/v0/topics/{topic}", raw=b'{"records":[{"data":1,"meta":%b}]}' % meta, status=201)
    shown = client.send("POST", f"/v0/topics/{topic}/diff", {}).content
    assert b'"data":1,"meta":' + meta + b"}" in shown
    assert "meta" not in client.diff(topic, include_meta=False)["records"][0]


def test_times_never_go_back_and_a_batch_has_one(client: ApiClient) -> None:
    topic = fresh()
    for _ in range(5):
        client.append(topic, 1, 2)
    times = [record["$ts"] for record in client.diff(topic)["records"]]
    assert times == sorted(times)
    assert times[0::2] == times[1::2]


def test_create_false_writes_only_to_topics_that_exist(client: ApiClient) -> None:
    topic = fresh()
    path, body = f"/v0/topics/{topic}", {"records": [{"data": 1}], "create": False}
    client.fails(404, "topic_not_found", "POST", path, body)
    client.put(topic)
    assert client.ok("POST", path, body)["created"] is False


def test_auto_create_off_in_the_config_of_a_write_needs_an_explicit_create(client: ApiClient) -> None:
    topic = fresh()
    body = {"records": [{"data": 1}], "config": {"auto_create": False}}
    client.fails(404, "topic_not_found", "POST", f"/v0/topics/{topic}", body)
    client.ok("POST", f"/v0/topics/{topic}", {**body, "create": True}, status=201)
    assert client.state(topic)["config"]["auto_create"] is False
    # It exists now, so writing to it creates nothing.
    client.append(topic, 2)


def test_the_config_of_a_write_counts_only_when_it_creates(client: ApiClient) -> None:
    topic = fresh()
    client.append(topic, 1, config={"cap_records": 5, "durable": True})
    assert client.state(topic)["config"]["cap_records"] == 5
    client.append(topic, 2, config={"cap_records": 9})
    assert client.state(topic)["config"]["cap_records"] == 5
    client.fails(
        400,
        "invalid_request",
        "POST",
        f"/v0/topics/{fresh()}",
        {"records": [{"data": 1}], "config": {"bogus": 1}},
    )


def test_unknown_fields_outside_the_config_are_ignored(client: ApiClient) -> None:
    topic = fresh()
    client.write(topic, {"data": 1, "colour": "red"}, tomorrow=True, disable_backpressure=True)
    assert client.ok("POST", f"/v0/topics/{topic}/diff", {"later": 1})["records"][0]["data"] == 1


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{}",
        b"[]",
        b'{"records":[]}',
        b'{"records":{}}',
        b'{"records":[1]}',
        b'{"records":[{}]}',
        b'{"records":[{"tag":"no data"}]}',
        b'{"records":[{"data":1,"tag":1}]}',
        b'{"records":[{"data":1,"node":[]}]}',
        b'{"records":[{"data":1,"key":true}]}',
        b'{"records":[{"data":1,"meta":[]}]}',
        b'{"records":[{"data":1,"meta":"x"}]}',
        b'{"records":[{"data":01}]}',
        b'{"records":[{"data":NaN}]}',
        b'{"records":[{"data":1}],"create":"yes"}',
        b'{"records":[{"data":1}],"idempotency_key":5}',
        b'{"records":[{"data":1}]} {}',
        b'{"records":[{"data":1}]',
        b"\xef\xbb\xbf" + b'{"records":[{"data":1}]}',
    ],
)
def test_a_malformed_write_is_refused_and_appends_nothing(client: ApiClient, raw: bytes) -> None:
    topic = fresh()
    client.append(topic, "first")
    client.fails(400, "invalid_request", "POST", f"/v0/topics/{topic}", raw=raw)
    assert client.state(topic)["head_seq"] == 1


def test_one_bad_record_refuses_the_whole_batch(client: ApiClient) -> None:
    topic = fresh()
    client.append(topic, 1)
    body = {"records": [{"data": 1}] * 5 + [{"data": 1, "tag": "x" * 257}]}
    error = client.fails(400, "invalid_request", "POST", f"/v0/topics/{topic}", body)
    assert error["detail"]["record"] == 5
    assert client.state(topic)["count"] == 1


# --- idempotency --------------------------------------------------------------------------------


def test_a_repeated_key_returns_the_first_seqs_and_appends_nothing(client: ApiClient) -> None:
    topic = fresh()
    first = client.append(topic, "a", "b", idempotency_key="k1")
    client.append(topic, "c")
    second = client.append(topic, "a", "b", idempotency_key="k1")
    assert first["deduped"] is False and second["deduped"] is True
    assert second["seqs"] == first["seqs"] == [1, 2]
    assert (second["first_seq"], second["last_seq"], second["count"], second["created"]) == (1, 2, 2, False)
    assert second["head_seq"] == 3
    assert client.values(topic) == ["a", "b", "c"]


def test_the_key_may_come_as_a_header_and_the_body_wins(client: ApiClient) -> None:
    topic = fresh()
    path = f"/v0/topics/{topic}"
    header = {"Idempotency-Key": "h"}
    client.ok("POST", path, {"records": [{"data": 1}]}, headers=header, status=201)
    assert client.ok("POST", path, {"records": [{"data": 1}]}, headers=header)["deduped"] is True
    body = {"records": [{"data": 2}], "idempotency_key": "b"}
    assert client.ok("POST", path, body, headers=header)["deduped"] is False
    assert client.ok("POST", path, body)["deduped"] is True
    assert client.values(topic) == [1, 2]


def test_keys_belong_to_their_topic(client: ApiClient) -> None:
    one, other = fresh(), fresh()
    client.append(one, 1, idempotency_key="k")
    assert client.append(other, 1, idempotency_key="k")["deduped"] is False


def test_a_key_has_at_most_256_characters(client: ApiClient) -> None:
    topic = fresh()
    assert client.append(topic, 1, idempotency_key="ä" * 256)["deduped"] is False
    body = {"records": [{"data": 1}]}
    client.fails(
        400, "invalid_request", "POST", f"/v0/topics/{topic}", {**body, "idempotency_key": "x" * 257}
    )
    client.fails(
        400,
        "invalid_request",
        "POST",
        f"/v0/topics/{topic}",
        body,
        headers={"Idempotency-Key": "x" * 257},
    )


def test_a_window_of_zero_ends_with_its_millisecond(client: ApiClient) -> None:
    topic = fresh()
    client.put(topic, idempotency_window_ms=0)
    client.append(topic, 1, idempotency_key="k")
    wait_for(lambda: client.append(topic, 1, idempotency_key="k")["deduped"] is False)


def test_d07_repeats_at_the_same_time_make_one_set_of_seqs(client: ApiClient, server: LiveServer) -> None:
    topic = fresh()
    client.put(topic, durable=True)
    answers: list[dict[str, Any]] = []

    def repeat() -> None:
        with server.client(client.lane) as mine:
            for key in range(10):
                answers.append(mine.append(topic, key, idempotency_key=str(key)))

    run_together([repeat] * 6)
    assert sorted(client.values(topic)) == list(range(10))  # type: ignore[type-var]
    by_seq = {answer["first_seq"] for answer in answers}
    assert by_seq == set(range(1, 11))
    assert sum(not answer["deduped"] for answer in answers) == 10


def run_together(jobs: list[Callable[[], None]]) -> None:
    failures: list[BaseException] = []

    def guard(job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as err:
            failures.append(err)

    threads = [threading.Thread(target=guard, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    if failures:
        raise failures[0]


# --- reads --------------------------------------------------------------------------------------


def test_a_read_tells_where_the_reader_stands(client: ApiClient) -> None:
    topic = fresh()
    client.append(topic, *range(1, 6))
    page = client.diff(topic, limit=2)
    performance = page.pop("performance")
    records = page.pop("records")
    assert [(record["$seq"], record["data"]) for record in records] == [(1, 1), (2, 2)]
    assert all(record.keys() == {"$seq", "$ts", "data"} for record in records)
    assert page == {
        "topic": topic,
        "next_from_seq": 2,
        "head_seq": 5,
        "earliest_seq": 1,
        "caught_up": False,
        "tombstone": None,
        "lag": 3,
    }
    assert performance["records_scanned"] == 2
    last = client.diff(topic, from_seq=2)
    assert [record["$seq"] for record in last["records"]] == [3, 4, 5]
    assert (last["next_from_seq"], last["caught_up"], last["lag"]) == (5, True, 0)
    beyond = client.diff(topic, from_seq=5)
    assert (beyond["records"], beyond["caught_up"], beyond["tombstone"]) == ([], True, None)


def test_the_body_of_a_diff_may_be_left_out(client: ApiClient) -> None:
    topic = fresh()
    client.append(topic, 1)
    assert client.ok("POST", f"/v0/topics/{topic}/diff")["records"][0]["data"] == 1


def test_the_limit_defaults_to_256_and_is_clamped_to_1000(client: ApiClient) -> None:
    topic = fresh()
    client.append(topic, *range(1100))
    for limit, given in ((None, READ_DEFAULT_LIMIT), (0, READ_DEFAULT_LIMIT), (7, 7), (5000, 1000)):
        request = {} if limit is None else {"limit": limit}
        assert len(client.diff(topic, **request)["records"]) == given


def test_max_bytes_bounds_a_page_but_never_below_one_record(client: ApiClient) -> None:
    topic = fresh()
    client.append(topic, *("x" * 1000 for _ in range(20)))
    assert len(client.diff(topic, max_bytes=5000)["records"]) == 4
    assert len(client.diff(topic, max_bytes=1)["records"]) == 1
    assert len(client.diff(topic, max_bytes=0)["records"]) == 1
    assert len(client.diff(topic, max_bytes=10**12)["records"]) == 20
    page = client.diff(topic, max_bytes=5000, include_tags=True)
    assert (len(page["records"]), page["next_from_seq"]) == (4, 4)


def test_a_page_has_one_mebibyte_by_default_and_eight_at_most(client: ApiClient) -> None:
    topic = fresh()
    value = "x" * (900 * 1024)
    for _ in range(10):
        client.append(topic, value)
    assert len(client.diff(topic)["records"]) == READ_DEFAULT_BYTES // len(value)
    assert len(client.diff(topic, max_bytes=10**9)["records"]) == 9


def test_own_records_are_filtered_by_node(client: ApiClient) -> None:
    topic = fresh()
    client.write(topic, *({"data": n, "node": node} for n, node in enumerate("abcab")), {"data": "none"})
    assert client.values(topic, node="a") == [1, 2, 4, "none"]
    assert client.values(topic, node=["a", "b"]) == [2, "none"]
    assert client.values(topic, node=[]) == [0, 1, 2, 3, 4, "none"]
    only = client.diff(topic, from_seq=3, node=["a", "b"], limit=1)
    assert ([r["data"] for r in only["records"]], only["next_from_seq"]) == (["none"], 6)
    client.put(topic, dedupe_node=False)
    assert client.values(topic, node="a") == [0, 1, 2, 3, 4, "none"]


def test_a_filter_that_leaves_nothing_moves_the_cursor_on(client: ApiClient) -> None:
    topic = fresh()
    client.write(topic, *({"data": n, "node": "me"} for n in range(4)))
    page = client.diff(topic, node="me")
    assert (page["records"], page["next_from_seq"], page["caught_up"], page["lag"]) == ([], 4, True, 0)


@pytest.mark.parametrize(
    ("match", "expected"),
    [
        ("b", [1]),
        (["tag", "Eq", "a1"], [0]),
        (["tag", "Glob", "a*"], [0, 2]),
        (["tag", "Glob", "*"], [0, 1, 2]),
        (["key", "Eq", "k"], [1, 3]),
        (["node", "Glob", "n*"], [2, 3]),
        (["tag", "Eq", "absent"], []),
    ],
)
def test_a_read_can_be_narrowed_by_a_predicate(
    client: ApiClient, match: object, expected: list[object]
) -> None:
    topic = fresh()
    client.write(
        topic,
        {"data": 0, "tag": "a1"},
        {"data": 1, "tag": "b", "key": "k"},
        {"data": 2, "tag": "a2", "node": "n1"},
        {"data": 3, "key": "k", "node": "n2"},
    )
    page = client.diff(topic, match=match)
    assert [record["data"] for record in page["records"]] == expected
    assert (page["next_from_seq"], page["caught_up"]) == (4, True)


@pytest.mark.parametrize(
    "request_body",
    [
        {"from_seq": -1},
        {"from_seq": "1"},
        {"from_seq": 1.5},
        {"from_seq": 2**64},
        {"limit": -1},
        {"limit": "all"},
        {"node": 1},
        {"node": [1]},
        {"include_tags": 1},
        {"wait_ms": -1},
        {"max_bytes": -1},
        {"match": []},
        {"match": ["tag"]},
        {"match": ["data", "Eq", "x"]},
        {"match": ["tag", "Like", "x"]},
        {"match": ["tag", "Glob", "x"]},
        {"match": ["tag", "Glob", "*x*"]},
        {"match": ["tag", "Eq", 5]},
        {"match": {"tag": "x"}},
        {"match": "x" * 5000},
    ],
)
def test_a_malformed_read_is_refused(client: ApiClient, request_body: dict[str, object]) -> None:
    topic = fresh()
    client.append(topic, 1)
    client.fails(400, "invalid_request", "POST", f"/v0/topics/{topic}/diff", request_body)


GET_QUERIES: list[tuple[str, dict[str, object]]] = [
    ("", {}),
    ("?from_seq=2&limit=3", {"from_seq": 2, "limit": 3}),
    ("?limit=0", {"limit": 0}),
    ("?include_tags=true&include_keys=1", {"include_tags": True, "include_keys": True}),
    ("?include_meta=false", {"include_meta": False}),
    ("?node=a", {"node": "a"}),
    ("?node=a&node=b", {"node": ["a", "b"]}),
    ("?match=t1", {"match": "t1"}),
    ("?match=%5B%22tag%22%2C%22Glob%22%2C%22t*%22%5D", {"match": ["tag", "Glob", "t*"]}),
    ("?max_bytes=100", {"max_bytes": 100}),
    ("?wait_ms=0&from_seq=5", {"from_seq": 5}),
    ("?from_seq=99", {"from_seq": 99}),
]


@pytest.mark.parametrize(("query", "body"), GET_QUERIES)
def test_get_records_is_the_same_read(client: ApiClient, query: str, body: dict[str, object]) -> None:
    topic = fresh()
    client.write(
        topic,
        {"data": 1, "tag": "t1", "node": "a", "meta": {"m": 1}},
        {"data": 2, "tag": "t2", "node": "b", "key": "k"},
        {"data": 3, "node": "a"},
        {"data": 4, "tag": "other"},
        {"data": 5},
    )
    got = client.ok("GET", f"/v0/topics/{topic}/records{query}")
    posted = client.diff(topic, **body)
    for document in (got, posted):
        del document["performance"]
    assert got == posted


@pytest.mark.parametrize(
    "query",
    [
        "from_seq=x",
        "from_seq=-1",
        "limit=1.5",
        "include_tags=7",
        "match=[",
        "match=[1]",
        "wait_ms=long",
        "a=%",
    ],
)
def test_a_malformed_query_is_refused(client: ApiClient, query: str) -> None:
    topic = fresh()
    client.append(topic, 1)
    client.fails(400, "invalid_request", "GET", f"/v0/topics/{topic}/records?{query}")


def test_an_acked_write_is_visible_at_once_in_every_class(client: ApiClient) -> None:
    for durability in ("ephemeral", "memory", "disk", "fsync"):
        topic = fresh(durability)
        client.put(topic, durability=durability)
        for n in range(1, 6):
            answer = client.append(topic, n)
            waited = answer["performance"].get("fsync_ms", 0) > 0
            assert waited is (durability == "fsync"), (durability, answer)
            assert client.diff(topic, from_seq=n - 1)["records"][0]["data"] == n


def test_large_reads_from_the_file_equal_inline_reads_byte_for_byte(
    server: LiveServer, plain_client: ApiClient
) -> None:
    """The fast lane sends large plain reads from the log file; gzip and HTTP/2 get the same bytes inline."""
    topic = fresh("large")
    for batch in range(12):
        plain_client.append(topic, *(f"{batch}-{n}-" + "ä€😀" * (n % 40) for n in range(100)))
    with server.client("http2") as inline:
        for limit in (100, 150, 600, 999):
            for from_seq in (0, 57, 100):
                path = f"/v0/topics/{topic}/records?from_seq={from_seq}&limit={limit}"
                sent = plain_client.send("GET", path).content
                assert len(sent) >= SENDFILE_MIN_BYTES / 2
                zipped = plain_client.send("GET", path, headers={"Accept-Encoding": "gzip"})
                assert zipped.headers["content-encoding"] == "gzip"
                texts = {
                    before_performance(b) for b in (sent, zipped.content, inline.send("GET", path).content)
                }
                assert len(texts) == 1
                page = json.loads(sent)
                assert [r["$seq"] for r in page["records"]] == list(
                    range(from_seq + 1, page["next_from_seq"] + 1)
                )


def test_what_is_read_again_and_again_is_the_same_until_it_changes(
    server: LiveServer, plain_client: ApiClient
) -> None:
    """From the second read on a range comes from a copy in one piece; deletes count for it like for the log."""
    topic = fresh("again")
    for batch in range(10):
        plain_client.write(
            topic, *({"data": f"{batch}-{n}-" + "x" * 300} for n in range(20)), node=f"n{batch}"
        )
    path = f"/v0/topics/{topic}/records?from_seq=0&limit=1000"
    with server.client("http2") as inline:
        for change in (None, ("node", "Eq", "n4"), ("node", "Eq", "n0")):
            if change is not None:
                assert plain_client.delete_records(topic, match=change)["deleted"] == 20
            told = before_performance(inline.send("GET", path).content)
            assert len(told) >= SENDFILE_MIN_BYTES
            for _ in range(4):
                assert before_performance(plain_client.send("GET", path).content) == told
        # More ranges than are kept, each of them read twice.
        for page in range(2 * STITCHED_FILE_BYTES // (60 * 300) + 40):
            start = 21 + page % 97
            path = f"/v0/topics/{topic}/records?from_seq={start}&limit={60 + page // 97}"
            first, second = (plain_client.send("GET", path).content for _ in range(2))
            assert before_performance(first) == before_performance(second)
            if page % 50 == 0:
                assert before_performance(first) == before_performance(inline.send("GET", path).content)


def before_performance(document: bytes) -> bytes:
    return document[: document.rindex(b',"performance"')]


def test_reads_stay_whole_while_records_are_sealed_and_their_log_files_go(tmp_path: Path) -> None:
    """The gateway sends from descriptors that the worker gave it; they must outlive the files' names."""
    topic, batch = "sealed", 50
    env = {"TOPICS_SEGMENT_MAX_EVENTS": "200", "TOPICS_SEGMENT_MAX_BYTES": "65536"}
    with LiveServer(tmp_path / "data", shards=1, env=env) as server, server.wait_serving().client() as writer:
        writer.put(topic)
        done = threading.Event()

        def read_over_and_over(lane: Lane) -> None:
            with server.client(lane) as reader:
                while not done.is_set():
                    for seq, record in enumerate(reader.everything(topic), start=1):
                        assert (record["$seq"], record["data"]) == (seq, f"{seq}-" + "y" * 200)

        def write() -> None:
            for first in range(1, 4000, batch):
                writer.append(topic, *(f"{seq}-" + "y" * 200 for seq in range(first, first + batch)))
            wait_for(
                lambda: 'topics_seals_total{shard="0"} 0.0' not in writer.send("GET", "/v0/metrics").text
            )

        def write_and_tell() -> None:
            try:
                write()
            finally:
                done.set()

        run_together([write_and_tell, *(partial(read_over_and_over, lane) for lane in LANES)])
        assert len(writer.everything(topic)) == 4000
        assert server.failures() == []


# --- long polls ---------------------------------------------------------------------------------


def in_background(job: Callable[[], Any]) -> Callable[[], Any]:
    """Starts it; the result has to be asked for."""
    result: list[Any] = []
    thread = threading.Thread(target=lambda: result.append(job()))
    thread.start()

    def join() -> Any:
        thread.join(30)
        return result[0]

    return join


def wait_for_polls(server: LiveServer, count: int) -> None:
    with server.client() as asking:
        wait_for(lambda: long_polls(asking) == count)


@pytest.mark.parametrize("durability", ["disk", "fsync", "ephemeral"])
def test_a_long_poll_wakes_with_the_write(client: ApiClient, server: LiveServer, durability: str) -> None:
    topic = fresh()
    client.put(topic, durability=durability)
    with server.client(client.lane) as waiting:
        poll = in_background(lambda: waiting.diff(topic, wait_ms=30_000))
        wait_for_polls(server, 1)
        client.append(topic, "hello")
        answer = poll()
    assert [record["data"] for record in answer["records"]] == ["hello"]
    assert answer["performance"]["server_total_ms"] < 29_000


def test_a_long_poll_sleeps_on_over_records_it_filters_out(client: ApiClient, server: LiveServer) -> None:
    topic = fresh()
    client.put(topic)
    with server.client(client.lane) as waiting:
        poll = in_background(lambda: waiting.diff(topic, wait_ms=30_000, node="me"))
        wait_for_polls(server, 1)
        client.write(topic, {"data": "mine", "node": "me"})
        client.write(topic, {"data": "theirs", "node": "you"})
        answer = poll()
    assert [record["data"] for record in answer["records"]] == ["theirs"]
    assert answer["next_from_seq"] == 2


def test_a_long_poll_ends_empty_when_its_time_is_over(client: ApiClient) -> None:
    topic = fresh()
    client.append(topic, 1)
    began = time.monotonic()
    answer = client.ok("GET", f"/v0/topics/{topic}/records?from_seq=1&wait_ms=150")
    assert 0.14 <= time.monotonic() - began < 5
    assert (answer["records"], answer["caught_up"], answer["next_from_seq"]) == ([], True, 1)


def test_a_long_poll_with_something_to_say_does_not_wait(client: ApiClient) -> None:
    topic = fresh()
    client.append(topic, 1)
    began = time.monotonic()
    assert client.values(topic, wait_ms=30_000) == [1]
    assert client.diff(topic, from_seq=9, wait_ms=30_000)["tombstone"]["reason"] == "recreated"
    assert time.monotonic() - began < 10


def test_a_long_poll_is_told_when_its_topic_is_deleted(client: ApiClient, server: LiveServer) -> None:
    topic = fresh()
    client.put(topic)
    with server.client(client.lane) as waiting:
        poll = in_background(lambda: waiting.send("POST", f"/v0/topics/{topic}/diff", {"wait_ms": 30_000}))
        wait_for_polls(server, 1)
        client.ok("DELETE", f"/v0/topics/{topic}")
        assert poll().json()["error"]["code"] == "topic_not_found"


# --- caps, TTL and tombstones -------------------------------------------------------------------


def test_a_cap_of_records_evicts_the_oldest_and_readers_are_told(client: ApiClient) -> None:
    topic = fresh()
    client.put(topic, cap_records=3)
    for n in range(1, 6):
        client.append(topic, n)
    state = client.state(topic)
    assert (state["count"], state["earliest_seq"], state["head_seq"]) == (3, 3, 5)
    page = client.diff(topic)
    assert page["tombstone"] == {
        "gap_from": 1,
        "gap_to": 2,
        "reason": "cap",
        "missed_estimate": 2,
        "earliest_seq": 3,
        "head_seq": 5,
    }
    assert [record["data"] for record in page["records"]] == [3, 4, 5]
    assert client.diff(topic, from_seq=1)["tombstone"]["gap_from"] == 2
    assert client.diff(topic, from_seq=2)["tombstone"] is None


def test_a_cap_of_bytes_evicts_the_oldest(client: ApiClient) -> None:
    topic = fresh()
    client.put(topic, cap_bytes=3000)
    for n in range(10):
        client.append(topic, f"{n}" + "x" * 500)
    state = client.state(topic)
    assert 0 < state["bytes"] <= 3000
    assert state["count"] == len(client.diff(topic)["records"]) < 10
    assert client.diff(topic)["tombstone"]["reason"] == "cap"


def test_a_cap_that_is_lowered_evicts_at_once(client: ApiClient) -> None:
    topic = fresh()
    client.append(topic, *range(10))
    client.put(topic, cap_records=2)
    assert client.values(topic) == [8, 9]
    client.put(topic, cap_records=0)
    assert client.values(topic) == [8, 9]


@pytest.mark.parametrize("cap", [{"cap_records": 2}, {"cap_bytes": 200}])
def test_a_full_topic_that_rejects_appends_nothing(client: ApiClient, cap: dict[str, int]) -> None:
    topic = fresh()
    client.put(topic, discard="reject", **cap)
    path = f"/v0/topics/{topic}"
    accepted = 0
    while client.send("POST", path, {"records": [{"data": "x" * 40}]}).status_code == 200:
        accepted += 1
    error = client.fails(422, "topic_full", "POST", path, {"records": [{"data": "x" * 40}]})
    assert error["detail"] == {"topic": topic}
    assert accepted == client.state(topic)["count"] >= 1
    assert client.diff(topic)["tombstone"] is None
    client.delete_records(topic, before_seq=2)
    client.append(topic, "y")


@pytest.mark.parametrize("discard", ["old", "reject"])
def test_a_write_larger_than_the_whole_cap_can_never_succeed(client: ApiClient, discard: str) -> None:
    topic = fresh()
    client.put(topic, cap_records=2, cap_bytes=1000, discard=discard)
    path = f"/v0/topics/{topic}"
    client.fails(400, "record_too_large", "POST", path, {"records": [{"data": 1}] * 3})
    client.fails(400, "record_too_large", "POST", path, {"records": [{"data": "x" * 1000}]})
    assert client.state(topic)["count"] == 0


def test_expired_records_are_never_delivered_and_readers_are_told(client: ApiClient) -> None:
    topic = fresh()
    client.append(topic, "old", "old")
    client.put(topic, ttl_ms=1)
    page = wait_for(lambda: None if (page := client.diff(topic))["records"] else page)
    assert page["tombstone"]["reason"] == "ttl"
    assert (page["tombstone"]["gap_from"], page["tombstone"]["gap_to"]) == (1, 2)
    assert (page["next_from_seq"], page["caught_up"]) == (2, True)
    state = client.state(topic)
    assert (state["count"], state["bytes"], state["earliest_seq"], state["head_seq"]) == (0, 0, 3, 2)
    # Without the TTL, what is gone stays gone.
    client.put(topic, ttl_ms=0)
    client.append(topic, "new")
    assert client.values(topic) == ["new"]


def test_both_reasons_together_are_mixed(client: ApiClient) -> None:
    topic = fresh()
    client.put(topic, cap_records=2)
    client.append(topic, 1)
    client.append(topic, 2)
    client.append(topic, 3)
    assert client.diff(topic)["tombstone"]["reason"] == "cap"
    client.put(topic, ttl_ms=1)
    page = wait_for(lambda: None if (page := client.diff(topic))["records"] else page)
    assert page["tombstone"]["reason"] == "mixed"
    assert (page["tombstone"]["gap_from"], page["tombstone"]["gap_to"]) == (1, 3)


def test_a_reject_topic_makes_room_when_records_expire(client: ApiClient) -> None:
    topic = fresh()
    client.put(topic, cap_records=1, discard="reject", ttl_ms=1)
    client.append(topic, 1)
    wait_for(
        lambda: client.send("POST", f"/v0/topics/{topic}", {"records": [{"data": 2}]}).status_code == 200
    )
