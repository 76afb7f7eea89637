"""What people type and pipe into `topics`, and what it becomes."""

from __future__ import annotations

import json
import os
import re
from typing import Any

import pytest

from topicsd.client.api import Address, Server, next_step
from topicsd.client.commands.ls import all_topics
from topicsd.client.commands.watch import parse_names
from topicsd.client.errors import Exit, Refused, Unreachable, Usage
from topicsd.client.jobs import Held, named_jobs
from topicsd.client.lines import Lines
from topicsd.client.options import parse_duration_ms, parse_predicate, parse_size_bytes
from topicsd.client.patience import patiently
from topicsd.client.record_lines import RECORD_OF, BadLine, Form, shown
from topicsd.client.sse import SseParser
from topicsd.client.topic_config import explain, parse_fields


@pytest.mark.parametrize(
    ("form", "line", "record"),
    [
        ("record", b'{"data":{"b":1.0, "a":[ ]},"tag":"t"}', b'{"data":{"b":1.0, "a":[ ]},"tag":"t"}'),
        ("data", b"12345678901234567890.10", b'{"data":12345678901234567890.10}'),
        ("raw", 'say "hi" ü'.encode(), '{"data":"say \\"hi\\" ü"}'.encode()),
        ("raw", b"", b'{"data":""}'),
    ],
)
def test_a_line_becomes_a_record_and_its_data_keeps_its_bytes(form: Form, line: bytes, record: bytes) -> None:
    assert RECORD_OF[form](line) == record


def test_a_record_that_was_read_becomes_one_that_can_be_written() -> None:
    line = b'{"$seq":7,"$ts":1,"$tag":"t","$node":"n","$key":"k","data":{"x":  1.0},"meta":{"m":  1}}'
    written = RECORD_OF["record"](line)
    assert b'"data":{"x":  1.0}' in written and b'"meta":{"m":  1}' in written
    fields = json.loads(written)
    assert (fields.pop("tag"), fields.pop("node"), fields.pop("key")) == ("t", "n", "k")
    assert fields.keys() == {"data", "meta"}


@pytest.mark.parametrize(
    ("form", "line", "says"),
    [
        ("record", b"hello", "--raw"),
        ("record", b'{"dta":1}', "dta"),
        ("record", b'{"tag":"x"}', "data"),
        ("record", b"3", "--data"),
        ("record", b'{"data":1}{"data":2}', "not JSON"),
        ("record", b'{"data":"\xff"}', "UTF-8"),
        ("record", b'{"$event":"tombstone","gap_from":1}', "$event"),
        ("data", b"{'a':1}", "--raw"),
        ("raw", b"caf\xe9", "UTF-8"),
    ],
)
def test_a_bad_line_says_what_is_wrong(form: Form, line: bytes, says: str) -> None:
    with pytest.raises(BadLine, match=re.escape(says)):
        RECORD_OF[form](line)


def test_records_are_shown_in_the_form_that_append_reads() -> None:
    record = b'{"$seq":1,"$ts":2,"data":"a\\nb"}'
    assert shown(record, "record") == record
    assert shown(record, "data") == b'"a\\nb"'
    assert shown(record, "raw") == b"a\nb"
    assert shown(b'{"data":{"a":1}}', "raw") == b'{"a":1}'


def test_lines_come_whole_and_a_pause_gives_none() -> None:
    read, write = os.pipe()
    lines = Lines(read)
    os.write(write, b"one\ntwo\r\nthr")
    assert lines.take(None) == [b"one", b"two"]
    assert lines.take(0.0) == [] and not lines.ended
    os.write(write, b"ee\n\nlast")
    assert lines.take(None) == [b"three", b""]
    os.close(write)
    assert lines.take(None) == [b"last"]
    assert lines.ended and lines.take(None) == []
    os.close(read)


@pytest.mark.parametrize(
    ("text", "predicate"),
    [
        ("order-7731", "order-7731"),
        ("order-*", ["tag", "Glob", "order-*"]),
        ("key=hall", ["key", "Eq", "hall"]),
        ("node=eu-*", ["node", "Glob", "eu-*"]),
        ("a=b", "a=b"),
        ('["tag","Eq","x*"]', ["tag", "Eq", "x*"]),
    ],
)
def test_predicates(text: str, predicate: object) -> None:
    assert parse_predicate(text) == predicate


def test_units() -> None:
    assert [parse_duration_ms(text) for text in ("250ms", "1.5s", "2m", "1h", "7d", "7")] == [
        *(250, 1500, 120_000, 3_600_000, 604_800_000),
        None,
    ]
    assert [parse_size_bytes(text) for text in ("10k", "64MiB", "1GB", "5b", "x")] == [
        *(10_240, 67_108_864, 1_000_000_000, 5),
        None,
    ]


def test_config_fields_and_the_hint_for_a_mistyped_one() -> None:
    words = ["ttl_ms=7d", "cap-bytes=1MiB", "durability=fsync", "dead_letter=null", "auto_create=false"]
    assert parse_fields(words) == {
        "ttl_ms": 604_800_000,
        "cap_bytes": 1_048_576,
        "durability": "fsync",
        "dead_letter": None,
        "auto_create": False,
    }
    refused = Refused(400, "invalid_request", "unknown field")
    assert "cap_records" in str(explain(refused, {"cap_record": 1}))
    assert explain(refused, {"cap_records": "x"}) is refused
    with pytest.raises(Usage, match="FIELD=VALUE"):
        parse_fields(["durable"])


def test_addresses() -> None:
    assert str(Address.parse("localhost:5000")) == "http://localhost:5000"
    assert Address.parse("https://example.org/events/") == ("example.org", 443, True, "/events")
    assert str(Address.parse("http://[::1]:4000")) == "http://[::1]:4000"
    for wrong in ("ftp://x", "http://", "http://x:port", "http://x/?a=1"):
        with pytest.raises(Usage):
            Address.parse(wrong)


def test_names_to_watch() -> None:
    topics, prefixes = parse_names(("orders", "news@12", "chat:*", "log.*@0"), None)
    assert topics == {"orders": None, "news": 12}
    assert prefixes == {"chat:": None, "log.": 0}
    with pytest.raises(Usage):
        parse_names(("orders@x",), None)


def test_jobs_on_the_command_line() -> None:
    assert named_jobs(["3", "4:lease_x"]) == [Held(3, None), Held(4, "lease_x")]
    with pytest.raises(Usage):
        named_jobs(["three"])


STREAM = (
    b'retry: 2000\n\nid: a1\nevent: record\ndata: {"a":\ndata: 1}\n\n: hb 1\n\nid: a2\r\nevent: caught-up\r\n'
    b"data: {}\r\n\r\nevent: empty\n\ndata: last\rdata\r\r"
)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_event_streams_in_any_pieces(size: int) -> None:
    parser = SseParser()
    events = [event for at in range(0, len(STREAM), size) for event in parser.feed(STREAM[at : at + size])]
    assert events == [
        ("record", b'{"a":\n1}', "a1"),
        ("caught-up", b"{}", "a2"),
        ("message", b"last\n", "a2"),
    ]


# --- lists ---


class PagedServer(Server):
    """Three topics, two to a page."""

    def call(self, method: str, path: str, body: object = None, **more: Any) -> bytes:
        first = int(more["query"]["cursor"] or 0)
        names = ["a", "b", "c"][first : first + 2]
        page: dict[str, object] = {"topics": [summary_of(name) for name in names]}
        if first == 0:
            page["next_cursor"] = "2"
        return json.dumps(page).encode()


def summary_of(name: str) -> dict[str, object]:
    numbers = dict.fromkeys(("head_seq", "earliest_seq", "count", "bytes", "effective_priority"), 0)
    return {"topic": name, "type": "log", "durable": False, "new_field": 1, **numbers}


def test_lists_are_read_to_the_last_page() -> None:
    found = list(all_topics(PagedServer(), ""))
    assert [topic.topic for _, topic in found] == ["a", "b", "c"]
    assert json.loads(found[2][0]) == summary_of("c")  # as the server gave it, whatever it has


# --- errors ---


def test_every_refusal_says_what_to_do_next() -> None:
    def step(code: str, has_token: bool = False, **detail: object) -> str | None:
        return next_step(Refused(400, code, "no", detail=detail), has_token=has_token)

    assert step("topic_not_found", topic="t") == "create it: topics create t"
    assert "TOPICS_TOKEN" in (step("unauthorized") or "")
    assert step("unauthorized", True) != step("unauthorized")
    assert "max_topics" in (step("throttled", limit="max_topics") or "")
    assert step("throttled", retry_after_ms=5) == "try again in a moment"
    assert step("invalid_request") is None


def test_only_what_may_pass_is_tried_again() -> None:
    slept: list[float] = []
    answers: list[Exception | str] = [
        Refused(429, "throttled", "busy", retry_after_s=0.4),
        Unreachable("gone"),
        Refused(503, "shard_unavailable", "restarting"),
        "done",
    ]

    def attempt() -> str:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert patiently(attempt, for_s=60, sleep=slept.append) == "done"
    assert slept == [0.4, 0.2, 0.4]
    answers = [Refused(429, "throttled", "full", detail={"limit": "max_topics"}), "never"]
    with pytest.raises(Refused):
        patiently(attempt, for_s=60, sleep=slept.append)
    answers = [Unreachable("gone"), "never"]
    with pytest.raises(Unreachable):
        patiently(attempt, for_s=60, unreachable_too=False, sleep=slept.append)
    answers = [Unreachable("gone"), "never"]
    with pytest.raises(Unreachable):
        patiently(attempt, for_s=0, sleep=slept.append)
    assert len(slept) == 3


def test_exit_codes_are_those_that_scripts_rely_on() -> None:
    assert {code.name: code.value for code in Exit} == {
        "OK": 0,
        "REFUSED": 1,
        "USAGE": 2,
        "UNREACHABLE": 3,
        "BAD_INPUT": 4,
        "JOBS_FAILED": 5,
        "INTERRUPTED": 130,
        "OUTPUT_CLOSED": 141,
    }
