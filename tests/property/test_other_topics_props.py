"""A head that differs from the last one in its topic only means what it would mean by itself, whatever came before."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from gateway.core.router import Router
from gateway.exchange import Recall
from gateway.fast_lane.answer_slot import AnswerSlot
from gateway.fast_lane.bounds import HEAD_MEMO_MAX_BYTES, MAX_HEAD_BYTES, MAX_TARGET_BYTES
from gateway.fast_lane.head import HeadParser
from gateway.fast_lane.refusals import Refusal
from gateway.fast_lane.request_reader import RequestReader, Signal
from gateway.handlers import all_routes
from gateway.service import Handler
from shared.errors import TopicsError
from tests.unit.gateway.test_request_reader import NoConnection, budget

ROUTER: Router[Handler] = Router(all_routes())
JSON = b"Host: x\r\nContent-Type: application/json"
LENGTH = b"\r\nContent-Length: 4"
UPGRADE = b"\r\nConnection: upgrade\r\nUpgrade: websocket"
methods = st.sampled_from([b"POST", b"GET", b"HEAD", b"PUT", b"BREW", b"get", b"P"])
paths = st.sampled_from(
    [b"/v0/topics/"] * 6 + [b"/v0/routers/", b"/v0/topics", b"//v0/topics/", b"http://h/v0/topics/"]
)
names = st.sampled_from(
    [
        b"a",
        b"b",
        b"t1",
        b"t2",
        b"T.x:y_-9",
        b"x" * 255,
        b"y" * 256,
        b"z" * 3000,
        b"",
        b".",
        b"-a",
        b":name",
        b"a%2Fb",
        b"a%62",
        b"a%",
        b"\xc3\xa9",
        b"a b",
        b"a\x00",
        b"a#",
        b"a>b",
        b"a\r\n",
        b"a\r\n\r\n",
    ]
)
tails = st.sampled_from(
    [
        b"",
        b"",
        b"/records",
        b"/records?limit=1",
        b"/records?limit=2",
        b"?x",
        b"/",
        b"/diff",
        b"/%64iff",
        b"/no",
        b"//",
    ]
)
versions = st.sampled_from([b"HTTP/1.1"] * 4 + [b"HTTP/1.0", b"HTTP/2.0", b"HTTP/1.1 "])
sections = st.sampled_from(
    [
        JSON,
        JSON + LENGTH,
        JSON + LENGTH,
        JSON + LENGTH + b"0",
        JSON + UPGRADE,
        JSON + b"\r\nX: " + b"y" * 1800,
        b"A: b",
        JSON + b"\r\nConnection: close",
        JSON + b"\r\nX: " + b"y" * HEAD_MEMO_MAX_BYTES,
    ]
)
heads = st.builds(
    lambda method, path, name, tail, version, section: (
        method + b" " + path + name + tail + b" " + version + b"\r\n" + section + b"\r\n\r\n"
    ),
    methods, paths, names, tails, versions, sections,
)  # fmt: skip


def meaning(reader: RequestReader, head: bytes) -> object:
    """What comes of a head and four bytes of body."""
    reader.feed(head + b"body", 1.0)
    try:
        item = reader.next_item()
    except Refusal as refusal:
        return refusal.status, refusal.response().body
    if item is None or isinstance(item, Signal):
        return item
    return (
        (item.method, item.path, item.query, dict(item.headers), item.body),
        (item.plain, item.close, item.head_only, item.http10),
        asked_for(item, item.recall),
        reader.unread(),
    )


def asked_for(slot: AnswerSlot, recall: Recall) -> object:
    """As the API finds out, and keeps with the head."""
    if recall.route is None:
        try:
            target = ROUTER.resolve(slot.method, slot.path)
        except TopicsError as err:
            return err.code
        recall.route, recall.name, recall.refused = target.route, target.name, target.refused
    return recall.route, recall.name, recall.refused


def new_reader(parser: HeadParser) -> RequestReader:
    return RequestReader(NoConnection(), parser, budget())


POST = b"POST /v0/topics/%b HTTP/1.1\r\n" + JSON + LENGTH + b"\r\n\r\n"


@given(st.lists(heads, min_size=2, max_size=8))
@example(
    [
        POST % name
        for name in (b"a", b"b", b"b", b"b", b"a", b"x" * 255, b"y" * 256, b"a", b"-", b"a%62", b"a")
    ]
)
@example([POST % b"a", (POST % b"b")[:-4], POST % b"b"])
def test_the_same_as_on_a_connection_of_its_own(sent: list[bytes]) -> None:
    parser = HeadParser()
    reader = new_reader(parser)
    for head in sent:
        alone = meaning(new_reader(HeadParser()), head)
        assert meaning(reader, head) == alone
        if not isinstance(alone, tuple) or len(alone) != 4 or alone[3]:
            reader = new_reader(parser)  # that connection has ended, or waits for the rest


def test_what_may_be_compared_is_never_refused_for_its_length() -> None:
    assert HEAD_MEMO_MAX_BYTES <= MAX_TARGET_BYTES <= MAX_HEAD_BYTES


def test_another_topic_needs_no_look_at_the_rest() -> None:
    """The rule above would hold if nothing were ever compared."""
    reader = new_reader(HeadParser())
    meaning(reader, POST % b"a")
    for name in (b"b", b"x" * 255, b"a"):
        reader.feed(POST % name + b"body", 1.0)
        item = reader.next_item()
        assert isinstance(item, AnswerSlot)
        assert item.recall.route is not None and item.recall.name == name.decode()
