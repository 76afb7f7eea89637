"""The link protocol: round trips, any chunking, and one error type for anything that is not the protocol."""

from __future__ import annotations

import tracemalloc

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared import session, wire
from shared.limits import LINK_MAX_FRAME_BYTES
from shared.session import ClientSession, FrameSplitter, LinkState, ServerSession
from shared.wire import Answer, Draining, FileExtent, FileOpened, FileRetired, LinkError, Request, Stats

u64 = st.integers(0, 2**64 - 1)
ids = st.integers(1, 2**64 - 1)
names = st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9._:-]{0,40}\Z")
option_maps = st.none() | st.dictionaries(st.text(max_size=8), st.booleans() | u64 | st.text(max_size=8))
requests = st.lists(
    st.builds(Request, ids, st.integers(0, 255), names | st.just(""), st.binary(max_size=300), option_maps)
)
timings = st.none() | st.dictionaries(st.text(max_size=8), st.floats(allow_nan=False) | u64, max_size=3)
statuses = st.integers(200, 599)
plain_answers = st.tuples(ids, statuses, st.binary(max_size=300), timings).map(lambda t: Answer(*t))
extents = st.lists(st.builds(FileExtent, u64, u64, u64), max_size=4)
extent_answers = st.tuples(
    ids, statuses, st.binary(max_size=50), timings, extents, st.binary(max_size=50)
).map(lambda t: Answer(*t))
notices = (
    st.builds(FileOpened, u64)
    | st.builds(FileRetired, u64)
    | st.builds(Stats, u64, u64)
    | st.just(Draining())
)
messages = st.lists(plain_answers | extent_answers | notices)


def payloads_in(splitter: FrameSplitter, data: bytes) -> list[bytes]:
    """Those that `data` completes."""
    buffer, places = splitter.find(data)
    return [buffer[start:end] for start, end in places]


def payload_of(frame: bytes) -> bytes:
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    return frame[4:]


@given(requests)
def test_requests_come_back_as_they_were_sent(sent: list[Request]) -> None:
    assert wire.decode_requests(payload_of(wire.encode_requests(sent))) == sent


@pytest.mark.parametrize("size", [4095, 4096, 100_000])
def test_answers_with_large_bodies_come_back_too(size: int) -> None:
    sent: list[wire.ServerMessage] = [
        Answer(1, 200, b"a", {"x": 1.0}),
        Answer(2, 200, b"b" * size),
        Stats(3, 4),
        Answer(5, 200, b"c" * size, None, [(6, 7, 8)], b"tail"),
    ]
    assert wire.decode_answers(payload_of(wire.encode_answers(sent))) == sent


@given(messages)
def test_answers_and_notices_come_back_in_order(sent: list[wire.ServerMessage]) -> None:
    assert wire.decode_answers(payload_of(wire.encode_answers(sent))) == sent


@given(requests)
def test_the_hand_made_frame_is_plain_cbor(sent: list[Request]) -> None:
    arrays = [[r.id, r.op, r.topic, r.body, r.options] for r in sent]
    assert cbor2.loads(payload_of(wire.encode_requests(sent))) == arrays


@given(plain_answers)
def test_trailing_nulls_may_be_left_off(answer: Answer) -> None:
    short = Answer(answer.id, answer.status, answer.body)
    assert wire.decode_answers(cbor2.dumps([[short.id, short.status, short.body]])) == [short]


def test_notices_of_a_later_version_are_skipped() -> None:
    assert wire.decode_answers(cbor2.dumps([[0, 4, "more"]])) == [Draining()]
    assert wire.decode_answers(cbor2.dumps([[0, 99, "what", {}], [1, 200, b""]])) == [Answer(1, 200, b"")]


@given(st.lists(st.binary(max_size=200), max_size=8), st.data())
def test_every_chunking_gives_the_same_payloads(payloads: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(wire.frame(payload) for payload in payloads)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=20)))
    splitter = FrameSplitter()
    found: list[bytes] = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += payloads_in(splitter, stream[start:end])
    assert found == payloads


def test_byte_by_byte_is_a_chunking_too() -> None:
    payloads = [b"", b"a", b"x" * 300]
    stream = b"".join(wire.frame(payload) for payload in payloads)
    splitter = FrameSplitter()
    assert [p for i in range(len(stream)) for p in payloads_in(splitter, stream[i : i + 1])] == payloads


@given(st.binary(max_size=400))
def test_garbage_is_a_link_error_or_valid(garbage: bytes) -> None:
    decoders = (
        wire.decode_requests,
        wire.decode_answers,
        wire.decode_metrics,
        wire.decode_list_body,
        session.decode_client_hello,
        session.decode_server_hello,
    )
    for decode in decoders:
        try:
            decode(garbage)
        except LinkError:
            continue


json_like = st.recursive(
    st.none()
    | st.booleans()
    | u64
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=20,
)


@given(st.lists(json_like, max_size=3))
def test_cbor_of_the_wrong_shape_is_a_link_error_or_valid(value: object) -> None:
    payload = cbor2.dumps(value)
    for decode in (wire.decode_requests, wire.decode_answers):
        try:
            decode(payload)
        except LinkError:
            continue


@given(requests.filter(bool), st.data())
def test_a_flipped_bit_never_raises_anything_else(sent: list[Request], data: st.DataObject) -> None:
    frame = bytearray(wire.encode_requests(sent))
    bit = data.draw(st.integers(0, len(frame) * 8 - 1))
    frame[bit // 8] ^= 1 << (bit % 8)
    try:
        for payload in payloads_in(FrameSplitter(), bytes(frame)):
            wire.decode_requests(payload)
    except LinkError:
        pass


@given(st.lists(st.tuples(names, st.binary(max_size=20)), max_size=5), st.booleans())
def test_list_bodies_come_back(items: list[tuple[str, bytes]], more: bool) -> None:
    assert wire.decode_list_body(wire.encode_list_body(items, more)) == (items, more)


def test_an_oversize_frame_is_refused_at_its_head_without_allocating() -> None:
    head = (LINK_MAX_FRAME_BYTES + 1).to_bytes(4, "big")
    tracemalloc.start()
    try:
        with pytest.raises(LinkError):
            payloads_in(FrameSplitter(), head)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_a_hello_may_not_be_large() -> None:
    client = ClientSession[int](role="gateway", version="1", max_queued=1)
    with pytest.raises(LinkError):
        client.receive((session.HELLO_MAX_BYTES + 1).to_bytes(4, "big"))


def test_a_turn_too_large_for_one_frame_becomes_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "LINK_MAX_FRAME_BYTES", 1000)
    sent = [Request(n, wire.Op.APPEND, "t", b"x" * 300, None) for n in range(1, 9)]
    payloads = payloads_in(FrameSplitter(), wire.encode_requests(sent))
    assert len(payloads) > 1
    assert all(len(payload) <= 1000 for payload in payloads)
    assert [request for payload in payloads for request in wire.decode_requests(payload)] == sent
    answers: list[wire.ServerMessage] = [Answer(n, 200, b"y" * 300) for n in range(1, 9)]
    payloads = payloads_in(FrameSplitter(), wire.encode_answers(answers))
    assert [answer for payload in payloads for answer in wire.decode_answers(payload)] == answers
    with pytest.raises(LinkError):
        wire.encode_requests([Request(1, wire.Op.APPEND, "t", b"x" * 2000, None)])


# --- the two sessions, back to back -----------------------------------------------------------------------


def connected(credits: int, max_queued: int = 100) -> tuple[ClientSession[int], ServerSession]:
    client = ClientSession[int](role="gateway", version="1", max_queued=max_queued)
    server = ServerSession(shard=1, shards=2, credits=credits)
    assert server.receive(client.hello()) == []
    assert client.receive(server.accept(topics=3, bytes=4)) == []
    assert client.state is LinkState.OPEN and client.peer is not None
    assert client.peer.shard == 1 and client.peer.topics == 3
    return client, server


@settings(max_examples=60)
@given(st.lists(st.sampled_from(["submit", "flush", "answer", "ping", "cancel"]), max_size=60), st.data())
def test_credits_hold_and_everyone_is_settled_once(steps: list[str], data: st.DataObject) -> None:
    client, server = connected(credits=3)
    at_server: list[int] = []
    waiting: dict[int, int] = {}
    settled: list[int] = []
    for number, step in enumerate(steps):
        if step in ("submit", "ping"):
            op = wire.Op.READ if step == "submit" or number > session.MAX_PINGS else wire.Op.PING
            waiting[client.submit(op, "t", b"", None, number)] = number
        elif step == "cancel" and waiting:
            withdrawn = client.cancel(data.draw(st.sampled_from(sorted(waiting))))
            if withdrawn is not None:
                settled.append(withdrawn)
                waiting = {id_: n for id_, n in waiting.items() if n != withdrawn}
        elif step == "flush":
            # The server raises if the client ever exceeds its credits.
            at_server += [r.id for r in server.receive(client.take_outgoing()) if r.op != wire.Op.CANCEL]
        elif step == "answer" and at_server:
            id_ = at_server.pop(data.draw(st.integers(0, len(at_server) - 1)))
            for message in client.receive(server.encode([Answer(id_, 200, b"")])):
                assert isinstance(message, Answer)
                assert client.settle(message.id) == waiting.pop(message.id)
                settled.append(number)
    assert sorted(client.close()) == sorted(waiting.values())
    assert client.outstanding == 0


def test_more_requests_than_credits_end_the_link_at_the_server() -> None:
    _, server = connected(credits=2)
    server.receive(wire.encode_requests([Request(n, wire.Op.READ, "t", b"", None) for n in (1, 2)]))
    with pytest.raises(LinkError):
        server.receive(wire.encode_requests([Request(3, wire.Op.READ, "t", b"", None)]))


def test_an_id_in_flight_may_not_be_used_again() -> None:
    _, server = connected(credits=9)
    with pytest.raises(LinkError):
        server.receive(wire.encode_requests([Request(1, wire.Op.READ, "t", b"", None)] * 2))


def test_an_answer_to_nothing_is_a_link_error() -> None:
    client, _ = connected(credits=1)
    first = client.submit(wire.Op.READ, "t", b"", None, 10)
    queued = client.submit(wire.Op.READ, "t", b"", None, 11)
    client.take_outgoing()
    with pytest.raises(LinkError):
        client.settle(queued)  # never sent
    assert client.settle(first) == 10
    with pytest.raises(LinkError):
        client.settle(first)


def test_no_common_protocol_version_is_refused_with_a_reason() -> None:
    server = ServerSession(shard=0, shards=1, credits=1)
    server.receive(session.encode_client_hello(session.ClientHello(7, 9, "cli", "9.0")))
    refusal = server.accept(topics=0, bytes=0)
    assert server.state is LinkState.CLOSED
    client = ClientSession[int](role="cli", version="9.0", max_queued=1)
    with pytest.raises(LinkError, match="we speak protocol 1 to 1, you 7 to 9"):
        client.receive(refusal)


def test_a_request_before_the_servers_hello_is_a_link_error() -> None:
    server = ServerSession(shard=0, shards=1, credits=1)
    hello = session.encode_client_hello(session.ClientHello(1, 1, "cli", "1"))
    with pytest.raises(LinkError):
        server.receive(hello + wire.encode_requests([Request(1, wire.Op.PING, "", b"", None)]))


def test_draining_returns_what_was_not_sent_and_keeps_what_was() -> None:
    client, _ = connected(credits=2)
    sent = client.submit(wire.Op.READ, "t", b"", None, 1)
    client.take_outgoing()
    client.submit(wire.Op.READ, "t", b"", None, 2)
    client.submit(wire.Op.READ, "t", b"", None, 3)
    assert client.drain() == [2, 3]
    assert client.outstanding == 1
    assert client.settle(sent) == 1
