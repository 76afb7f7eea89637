"""Bytes in, requests out: framing, refusals, and independence from how the bytes are cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.exchange import StreamHead
from gateway.fast_lane.answer_slot import AnswerSlot
from gateway.fast_lane.body_budget import BodyBudget
from gateway.fast_lane.bounds import MAX_HEAD_BYTES, MAX_HEADER_FIELDS, MAX_TARGET_BYTES
from gateway.fast_lane.head import HeadParser, check_target
from gateway.fast_lane.http_stream import HttpStream
from gateway.fast_lane.refusals import Refusal
from gateway.fast_lane.request_reader import FULL_LANE, SEND_CONTINUE, RequestReader, Signal
from tests.unit.gateway.edge_harness import get, post

MAX_BODY = 1000
CHUNKED = b"POST /v0/t HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
TRAFFIC = (
    get("/v0/topics?prefix=a")
    + post("/v0/topics/t", b'{"records":[]}', "Content-Type: application/json")
    + CHUNKED
    + b"5;ext=1\r\nhello\r\n6\r\n world\r\n0\r\nTrailer: x\r\n\r\n"
    + b"\r\n"
    + get("/healthz")
)


class NoConnection:
    peer = "test"

    def answered(self, slot: AnswerSlot) -> None:
        raise AssertionError

    def open_stream(self, slot: AnswerSlot, head: StreamHead) -> HttpStream:
        raise AssertionError


def new_reader() -> RequestReader:
    return RequestReader(NoConnection(), HeadParser(), budget())


def budget(max_body_bytes: int = MAX_BODY, total_bytes: int = 1 << 20) -> BodyBudget:
    return BodyBudget(max_body_bytes=max_body_bytes, total_bytes=total_bytes)


def read(*pieces: bytes) -> list[AnswerSlot | Signal]:
    reader = new_reader()
    items: list[AnswerSlot | Signal] = []
    for piece in pieces:
        reader.feed(piece, 1.0)
        while (item := reader.next_item()) is not None:
            items.append(item)
            if item is FULL_LANE:
                return items
    return items


def one(raw: bytes) -> AnswerSlot:
    (item,) = read(raw)
    assert isinstance(item, AnswerSlot)
    return item


def refused(*pieces: bytes) -> int:
    with pytest.raises(Refusal) as caught:
        read(*pieces)
    return caught.value.status


def summary(items: list[AnswerSlot | Signal]) -> list[tuple[str, str, str, bytes]]:
    return [(i.method, i.path, i.query, i.body) for i in items if isinstance(i, AnswerSlot)]


EXPECTED = [
    ("GET", "/v0/topics", "prefix=a", b""),
    ("POST", "/v0/topics/t", "", b'{"records":[]}'),
    ("POST", "/v0/t", "", b"hello world"),
    ("GET", "/healthz", "", b""),
]


def test_pipelined_requests_come_out_in_order() -> None:
    assert summary(read(TRAFFIC)) == EXPECTED


def test_h01_split_at_every_byte_gives_the_same_requests() -> None:
    assert summary(read(*(TRAFFIC[i : i + 1] for i in range(len(TRAFFIC))))) == EXPECTED
    for cut in range(1, len(TRAFFIC)):
        assert summary(read(TRAFFIC[:cut], TRAFFIC[cut:])) == EXPECTED


@given(st.lists(st.integers(0, len(TRAFFIC)), max_size=12))
def test_h01_any_cutting_gives_the_same_requests(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(TRAFFIC)]
    pieces = [TRAFFIC[a:b] for a, b in pairwise(edges) if b > a]
    assert summary(read(*pieces)) == EXPECTED


@given(st.binary(max_size=200), st.integers(0, len(TRAFFIC)))
def test_h01_garbage_raises_nothing_but_refusal(garbage: bytes, at: int) -> None:
    try:
        read(TRAFFIC[:at] + garbage + TRAFFIC[at:])
    except Refusal as refusal:
        assert 400 <= refusal.status < 500


@pytest.mark.parametrize(
    "head",
    [
        b"Content-Length: 5\r\nTransfer-Encoding: chunked",
        b"Transfer-Encoding: chunked\r\nContent-Length: 5",
        b"Content-Length: 5\r\nContent-Length: 6",
        b"Content-Length: 5, 6",
        b"Content-Length: +5",
        b"Content-Length: 0x5",
        b"Content-Length: 99999999999999999999999",
        b"Transfer-Encoding: gzip, chunked",
        b"Transfer-Encoding: identity",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        b"A: b\r\n folded",
        b"A: b\x00c",
        b"A: b\x01c",
        b"A: b\rc",
        b"A: b\nc: d",
        b"A : b",
        b" A: b",
        b"no-colon",
        b"Host: y",
    ],
)
def test_h01_smuggling_shapes_are_refused(head: bytes) -> None:
    assert refused(b"POST /v0/t HTTP/1.1\r\nHost: x\r\n" + head + b"\r\n\r\nhello") == 400


@pytest.mark.parametrize(
    "raw",
    [
        b"\x00\x01\x02",
        b"hello\r\n",
        b"GET\r\n",
        b"get /v0 HTTP/1.1\r\n",
        b"GET /v0\r\n\r\n",
        b"GET /v0 HTTP/1.1\n",
        b"GET /v0 HTTP/1.1\r\nA\x00",
        b"GET /v0 HTTP/1.1\r\nA: b\rc",
        b"GET  /v0 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /v0 HTTP/2.0\r\nHost: x\r\n\r\n",
        b"GET /v0 HTTP/1.1\r\n\r\n",
        b"GET /v0#top HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /v0/\xff HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET v0 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)
def test_h01_what_can_never_be_a_request_is_refused_at_once(raw: bytes) -> None:
    assert refused(raw) == 400


def test_tls_is_refused_with_a_hint() -> None:
    with pytest.raises(Refusal, match="not TLS"):
        read(b"\x16\x03\x01\x02\x00\x01\x00")


def test_h01_a_target_is_visible_ascii_without_a_fragment() -> None:
    for code in range(0x300):
        wanted = 0x21 <= code <= 0x7E and code != ord("#")
        for target in (chr(code), f"/v0/{chr(code)}x"):
            try:
                check_target(target)
            except Refusal:
                assert not wanted, target
            else:
                assert wanted, target
    with pytest.raises(Refusal):
        check_target("")


def test_h01_oversized_url_and_headers() -> None:
    long_url = b"GET /v0/" + b"a" * MAX_TARGET_BYTES
    assert refused(long_url + b"a" * 100) == 414
    assert refused(long_url + b" HTTP/1.1\r\nHost: x\r\n\r\n") == 414
    start = b"GET /v0 HTTP/1.1\r\nHost: x\r\nA: "
    assert refused(start + b"a" * MAX_HEAD_BYTES) == 431
    assert refused(start + b"a" * MAX_HEAD_BYTES + b"\r\n\r\n") == 431
    assert refused(b"GET /v0 HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * MAX_HEADER_FIELDS + b"\r\n") == 431


def test_h01_body_limit_holds_for_declared_and_for_streamed_bodies() -> None:
    assert one(post("/v0/t", b"x" * MAX_BODY)).body == b"x" * MAX_BODY
    assert refused(b"POST /v0/t HTTP/1.1\r\nHost: x\r\nContent-Length: 1001\r\n\r\n") == 413
    assert refused(CHUNKED + b"3e8\r\n" + b"x" * 1000 + b"\r\n", b"1\r\n") == 413


@pytest.mark.parametrize(
    "body",
    [b"5\r\nhelloX", b"-5\r\n", b"0x5\r\n", b"\r\n", b"5 \r\n", b"5\r\nhello\r\n0\r\nbad trailer\r\n\r\n"],
)
def test_h01_bad_chunking_is_refused(body: bytes) -> None:
    assert refused(CHUNKED + body + b"\r\n") == 400


def test_h01_absurdly_small_chunks_are_refused() -> None:
    reader = RequestReader(NoConnection(), HeadParser(), budget(1 << 20))
    reader.feed(CHUNKED + b"1\r\nx\r\n" * 5000, 1.0)
    with pytest.raises(Refusal, match="too small"):
        reader.next_item()


def test_expect_asks_for_the_body_only_if_it_will_be_read() -> None:
    head = b"POST /v0/t HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: "
    items = read(head + b"2\r\n\r\n", b"ok")
    assert items[0] is SEND_CONTINUE
    assert summary(items) == [("POST", "/v0/t", "", b"ok")]
    assert len(read(head + b"2\r\n\r\nok")) == 1
    assert refused(head + b"5000\r\n\r\n") == 413
    assert refused(b"POST /v0/t HTTP/1.1\r\nHost: x\r\nExpect: tea\r\n\r\n") == 417


def test_connection_persistence_follows_the_version_and_the_header() -> None:
    assert not one(get("/v0")).close
    assert one(get("/v0", "Connection: close")).close
    assert one(b"GET /v0 HTTP/1.0\r\n\r\n").close
    assert not one(b"GET /v0 HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n").close


def test_absolute_form_replaces_the_host() -> None:
    slot = one(b"GET http://other:4000/v0/topics?a=b HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (slot.path, slot.query, slot.headers["host"]) == ("/v0/topics", "a=b", "other:4000")


def test_headers_are_lower_case_joined_and_read_only() -> None:
    slot = one(get("/v0", "X-One: a", "x-one:  b  "))
    assert slot.headers["x-one"] == "a, b"
    with pytest.raises(TypeError):
        slot.headers["x-one"] = "c"  # type: ignore[index]


def test_a_remembered_header_section_does_not_leak_between_requests() -> None:
    parser = HeadParser()
    first, second = (RequestReader(NoConnection(), parser, budget()) for _ in range(2))
    first.feed(b"HEAD http://a/v0/one HTTP/1.1\r\nHost: x\r\n\r\n", 1.0)
    second.feed(b"GET /v0/two HTTP/1.1\r\nHost: x\r\n\r\n", 1.0)
    a, b = first.next_item(), second.next_item()
    assert isinstance(a, AnswerSlot) and isinstance(b, AnswerSlot)
    assert (a.method, a.head_only, a.path, a.headers["host"]) == ("GET", True, "/v0/one", "a")
    assert (b.method, b.head_only, b.path, b.headers["host"]) == ("GET", False, "/v0/two", "x")


def test_a_head_that_repeats_and_then_changes() -> None:
    one_more = [post("/v0/topics/t", b"%04d" % n, "Content-Type: application/json") for n in range(4)]
    longer = post("/v0/topics/t", b"x" * 10, "Content-Type: application/json")
    other = get("/v0/topics/t", "Content-Type: application/json")
    traffic = [*one_more, longer, one_more[0], other, other, other, one_more[1], one_more[2], one_more[3]]
    bodies = [raw.partition(b"\r\n\r\n")[2] for raw in traffic]
    assert [item[3] for item in summary(read(b"".join(traffic)))] == bodies
    for cut in range(1, len(one_more[3])):  # in the middle of one that repeats
        pieces = [b"".join(one_more[:3]), one_more[3][:cut], one_more[3][cut:] + other]
        assert [item[3] for item in summary(read(*pieces))] == [b"0000", b"0001", b"0002", b"0003", b""]


def test_requests_with_the_same_head_share_what_is_known_about_it() -> None:
    parser = HeadParser()
    reader = RequestReader(NoConnection(), parser, budget())
    recalls = []
    for _ in range(5):
        reader.feed(get("/v0/topics/a"), 1.0)
        item = reader.next_item()
        assert isinstance(item, AnswerSlot)
        recalls.append(item.recall)
    assert recalls[1] is recalls[2] is recalls[3] is recalls[4]
    reader.feed(get("/v0/topics/b"), 1.0)
    item = reader.next_item()
    assert isinstance(item, AnswerSlot)
    assert item.recall is not recalls[-1]


def test_a_head_is_remembered_from_its_second_time_on() -> None:
    parser = HeadParser()
    head = b"GET /v0 HTTP/1.1\r\nHost: x"
    for known in (False, False, True, True):
        assert (parser.known(head) is not None) == known
        if not known:
            parser.parse(head, "GET", b"/v0", b"HTTP/1.1\r\nHost: x")


def test_an_unknown_method_reaches_the_api() -> None:
    assert one(b"BREW /v0 HTTP/1.1\r\nHost: x\r\n\r\n").method == "BREW"


@pytest.mark.parametrize(
    "raw",
    [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        get("/docs"),
        get("/v00"),
        get("/v0/ws", "Connection: keep-alive, Upgrade", "Upgrade: websocket"),
    ],
)
def test_the_full_lane_gets_its_request_from_the_first_byte(raw: bytes) -> None:
    reader = new_reader()
    reader.feed(raw, 1.0)
    assert reader.next_item() is FULL_LANE
    assert reader.unread() == raw


def test_an_http2_preface_after_a_request_is_garbage() -> None:
    assert refused(get("/v0") + b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") == 400


def test_the_clock_of_a_request_starts_with_its_first_byte() -> None:
    reader = new_reader()
    reader.feed(b"GET /v0 HT", 5.0)
    assert reader.next_item() is None
    reader.feed(b"TP/1.1\r\nHost: x\r\n\r\nGE", 7.0)
    first = reader.next_item()
    assert isinstance(first, AnswerSlot) and first.started == 5.0
    assert reader.reading_since == 7.0


@pytest.mark.parametrize("framing", ["Content-Length: 900", "Transfer-Encoding: chunked"])
def test_bodies_that_arrive_together_share_a_budget_and_give_it_back(framing: str) -> None:
    shared = budget(total_bytes=1000)
    head = f"POST /v0/t HTTP/1.1\r\nHost: x\r\n{framing}\r\n\r\n".encode()
    piece = b"384\r\n" if "chunked" in framing else b""
    readers = [RequestReader(NoConnection(), HeadParser(), shared) for _ in range(3)]
    for reader in readers:
        reader.feed(head, 1.0)
        assert reader.next_item() is None
    assert shared.held == 0  # declaring a body reserves nothing
    for reader in readers[:2]:
        reader.feed(piece + b"x" * 400, 1.0)
        assert reader.next_item() is None
    readers[2].feed(piece + b"x" * 400, 1.0)
    with pytest.raises(Refusal) as caught:
        readers[2].next_item()
    assert caught.value.status == 429
    readers[0].abandon()
    end = b"\r\n0\r\n\r\n" if "chunked" in framing else b""
    readers[1].feed(b"x" * 500 + end, 1.0)
    slot = readers[1].next_item()
    assert isinstance(slot, AnswerSlot) and len(slot.body) == 900
    assert shared.held == 0
