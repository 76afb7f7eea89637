"""The `topics` command against a server: topics, records, and what goes wrong."""

from __future__ import annotations

import http.server
import json
import signal
import socket
import threading
from collections.abc import Iterator

import pytest

from tests.support.api_client import ApiClient, fresh
from tests.support.live_server import LiveServer
from tests.support.server_process import wait_for
from tests.support.topics_cli import Following, TopicsCli


@pytest.fixture(scope="module")
def cli(server: LiveServer) -> TopicsCli:
    return TopicsCli(server.port)


# --- topics ---


def test_a_topic_from_its_making_to_its_end(cli: TopicsCli, plain_client: ApiClient) -> None:
    name = fresh("cli")
    assert cli.ok("create", name, "ttl_ms=7d", "--durable").out == f"created {name}\n"
    assert plain_client.state(name)["config"]["ttl_ms"] == 604_800_000
    assert "topics set" in cli.fails(1, "create", name, "cap_records=1")
    assert plain_client.state(name)["config"]["cap_records"] == 0
    assert cli.ok("create", name, "--if-missing").out == ""

    assert cli.ok("set", name, "cap_records=100").out == "cap_records: 0 -> 100\n"
    assert "did you mean cap_bytes?" in cli.fails(1, "set", name, "cap_byte=1")
    assert "ttl_ms       7.0 d" in cli.ok("get", name).out
    assert json.loads(cli.ok("get", name, "--json").out)["config"]["durability"] == "fsync"

    (listed,) = cli.ok("ls", name, "--json").rows
    assert (listed["topic"], listed["type"], listed["durable"]) == (name, "log", True)
    head, row = cli.ok("ls", name).out.splitlines()
    assert head.split()[:3] == ["TOPIC", "TYPE", "RECORDS"] and row.split()[:3] == [name, "log", "0"]

    assert cli.ok("rm", name).out == f"deleted {name}\n"
    assert "no topic" in cli.fails(1, "rm", name)
    assert f"topics create {name}" in cli.fails(1, "get", name)


# --- records ---


def test_records_come_back_as_they_were_piped_in(cli: TopicsCli) -> None:
    source, copy = fresh("cli"), fresh("cli")
    first = '{"data":{"b":1.0, "a":12345678901234567890.10},"tag":"t1","key":"k"}'
    lines = first + '\n\n{"data":null,"node":"n","meta":{"m": 1}}'
    assert cli.ok("append", source, stdin=lines).out == f"2 records written to {source}, seq 1…2\n"
    read = cli.ok("read", source)
    assert '"data":{"b":1.0, "a":12345678901234567890.10}' in read.out
    # What was read can be written elsewhere, labels included.
    cli.ok("append", copy, "-q", stdin=read.out)
    assert [{**row, "$ts": 0} for row in cli.ok("read", copy).rows] == [
        {**row, "$ts": 0} for row in read.rows
    ]


def test_plain_text_and_values_and_back(cli: TopicsCli) -> None:
    topic = fresh("cli")
    cli.ok("append", topic, "--raw", stdin='say "hi"\n\nlast line')
    cli.ok("append", topic, '{"a": 1}', "2")
    assert cli.ok("read", topic, "--raw").out == 'say "hi"\n\nlast line\n{"a": 1}\n2\n'
    assert cli.ok("read", topic, "--data", "--from-seq", 3).out == '{"a": 1}\n2\n'


def test_a_long_topic_is_written_in_batches_and_read_in_pages(cli: TopicsCli) -> None:
    topic = fresh("cli")
    written = cli.ok(
        "append", topic, "--data", "--batch", 600, "--json", stdin="\n".join(map(str, range(2500)))
    )
    assert [row["count"] for row in written.rows] == [600, 600, 600, 600, 100]
    assert cli.ok("read", topic, "--data").out.split() == [str(number) for number in range(2500)]
    assert cli.ok("read", topic, "--from-seq", 1100, "-n", 1100).datas == list(range(1100, 2200))


def test_what_has_come_is_written_when_stdin_pauses(cli: TopicsCli, plain_client: ApiClient) -> None:
    topic = fresh("cli")
    plain_client.put(topic)
    with Following(cli, "append", topic, "--raw") as writer:
        writer.write("one\ntw")
        wait_for(lambda: plain_client.values(topic) == ["one"])
        writer.write("o\n")
        wait_for(lambda: plain_client.values(topic) == ["one", "two"])
        assert writer.process.poll() is None


def test_a_bad_line_is_named_and_all_lines_before_it_are_written(
    cli: TopicsCli, plain_client: ApiClient
) -> None:
    topic = fresh("cli")
    complaint = cli.fails(4, "append", topic, stdin='{"data":1}\n{"data":2}\n\nnot json\n{"data":4}\n')
    assert "line 4" in complaint and "2 records before it are written (up to seq 2)" in complaint
    assert plain_client.values(topic) == [1, 2]
    error = json.loads(cli.fails(4, "append", fresh("cli"), "--json", stdin="nope"))["error"]
    assert error["code"] == "bad_input" and "nothing was written" in error["message"]


def test_a_refused_batch_is_named_with_what_was_written_before(
    cli: TopicsCli, plain_client: ApiClient
) -> None:
    topic = fresh("cli")
    plain_client.put(topic, cap_records=3, discard="reject")
    complaint = cli.fails(1, "append", topic, "--raw", "--batch", 2, stdin="1\n2\n3\n4\n5\n")
    assert "topic_full" in complaint and "2 records before it are written" in complaint
    assert "nothing from line 3 on" in complaint
    assert plain_client.values(topic) == ["1", "2"]
    assert "topics create" in cli.fails(1, "append", fresh("cli"), "1", "--no-create")


def test_records_are_filtered_and_deleted(cli: TopicsCli) -> None:
    topic = fresh("cli")
    lines = [{"data": n, "tag": f"order-{n}", "node": "eu" if n % 2 else "us"} for n in range(1, 5)]
    cli.ok("append", topic, stdin="\n".join(map(json.dumps, lines)))
    assert cli.ok("read", topic, "--match", "order-3").datas == [3]
    assert cli.ok("read", topic, "--match", "node=e*").datas == [1, 3]
    assert cli.ok("read", topic, "--without-node", "eu").datas == [2, 4]
    assert (
        cli.ok("rm", topic, "--match", "tag=order-2").out
        == f"deleted 1 record of {topic}; 3 records left, seq 1…4\n"
    )
    cli.ok("rm", topic, "--before-seq", 3)
    assert cli.ok("read", topic).datas == [3, 4]
    assert "topic_not_empty" in cli.fails(1, "rm", topic, "--if-empty")


def test_a_loss_is_never_silent(cli: TopicsCli) -> None:
    topic = fresh("cli")
    cli.ok("create", topic, "cap_records=2")
    cli.ok("append", topic, "--data", "--batch", 1, stdin="1\n2\n3\n4\n5")
    told = cli.run("read", topic)
    assert (told.code, told.datas) == (0, [4, 5])
    assert told.err == f"topics: {topic}: seq 1…3 are lost (its cap was reached); going on at seq 4\n"
    shown = cli.ok("read", topic, "--tombstones", "--from-seq", 1)
    assert shown.err == ""
    assert shown.rows[0] | {"missed_estimate": 0} == {
        "$event": "tombstone",
        "topic": topic,
        "gap_from": 2,
        "gap_to": 3,
        "reason": "cap",
        "missed_estimate": 0,
        "earliest_seq": 4,
        "head_seq": 5,
    }


def test_the_last_records_are_found_behind_holes(cli: TopicsCli, plain_client: ApiClient) -> None:
    topic = fresh("cli")
    plain_client.write(topic, *({"data": n, "tag": "hole" if 40 < n < 199 else "x"} for n in range(1, 201)))
    plain_client.delete_records(topic, match="hole")
    assert cli.ok("tail", topic, "-n", 4).datas == [39, 40, 199, 200]
    assert cli.ok("tail", topic, "-n", 1000).datas == [*range(1, 41), 199, 200]
    assert cli.ok("tail", topic, "-n", 0).out == ""


def test_tail_follows_until_it_is_interrupted(cli: TopicsCli, plain_client: ApiClient) -> None:
    topic = fresh("cli")
    plain_client.append(topic, 1, 2)
    with Following(cli, "tail", "-f", topic, "-n", 1) as tail:
        assert tail.rows(1)[0]["data"] == 2
        plain_client.append(topic, 3)
        plain_client.append(topic, 4)
        assert [row["data"] for row in tail.rows(3)] == [2, 3, 4]
        assert tail.end(signal.SIGINT) == 130


# --- what goes wrong ---


def test_a_reader_that_leaves_ends_it_quietly(cli: TopicsCli, plain_client: ApiClient) -> None:
    topic = fresh("cli")
    plain_client.append(topic, *("x" * 1000 for _ in range(1000)))
    process = cli.start("read", topic)
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline().startswith(b'{"$seq":1,')
    process.stdout.close()
    assert process.wait(30) == 141
    assert process.stderr.read() == b""
    process.stderr.close()


def test_a_server_that_is_down_is_said_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        free = taken.getsockname()[1]
    cli = TopicsCli(free)
    for command in (
        ("ls",),
        ("append", "t", "1"),
        ("read", "t"),
        ("tail", "-f", "t"),
        ("watch", "t"),
        ("top", "--once"),
    ):
        assert "nobody listens" in cli.fails(3, *command)
    assert json.loads(cli.fails(3, "get", "t", "--json"))["error"]["code"] == "unreachable"


class _NotTopics(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(404)
        self.send_header("Content-Length", "12")
        self.end_headers()
        self.wfile.write(b"<h1>No!</h1>")

    def log_message(self, format: str, *args: object) -> None:
        return


@pytest.fixture
def another_server() -> Iterator[int]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _NotTopics) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running.server_address[1]
        running.shutdown()
        thread.join()


def test_a_server_of_another_kind_is_recognised(another_server: int) -> None:
    assert "does not look like topicsd" in TopicsCli(another_server).fails(3, "ls")


def test_wrong_usage_says_where_to_look(cli: TopicsCli) -> None:
    assert "topics read --help" in cli.fails(2, "read")
    assert "topics --help" in cli.fails(2, "raed", "t")
    assert "FIELD=VALUE" in cli.fails(2, "set", "t", "durable")
    assert "TOPICS_URL" in cli.fails(2, "ls", "--url", "ftp://x")
    assert cli.run().code == 2
    for command in ("ls", "top"):
        assert cli.ok(command, "--help").out.startswith(f"Usage: topics {command}")


# --- measuring ---


def test_bench_measures_and_cleans_up(cli: TopicsCli, plain_client: ApiClient) -> None:
    (report,) = cli.ok("bench", "append", "-s", 0.3, "-c", 2, "--batch", 5, "--json").rows
    assert report["requests"] > 0 and report["refused"] == 0
    assert 0 < report["latency_ms"]["p50"] <= report["latency_ms"]["p99.9"] <= report["latency_ms"]["max"]
    assert report["records_per_s"] == pytest.approx(5 * report["requests_per_s"], rel=0.01)
    text = cli.ok("bench", "read", "-s", 0.3, "-c", 2, "--records", 1200, "--batch", 10).out
    assert "closed loop" in text and "p99 " in text
    assert plain_client.ok("GET", "/v0/topics?prefix=bench-")["topics"] == []
