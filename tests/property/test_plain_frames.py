"""The short way to read frames comes to the same as the general decoder, whatever the bytes, wherever they stand."""

from __future__ import annotations

from collections.abc import Callable

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared import plain_frames, wire
from shared.wire import Answer, Draining, FileExtent, LinkError, Request, Stats
from tests.property.test_wire_props import messages, payload_of, requests

SHARED = {"wal_append_ms": 0.25, "fsync_ms": 0.0}
PLAIN_REQUESTS = [
    Request(1, wire.Op.APPEND, "orders", b'{"records":[]}'),
    Request(2**63 - 1, 255, "", b""),
    Request(3, wire.Op.READ, "orders", b"x" * 5000),
]
PLAIN_MESSAGES: list[wire.ServerMessage] = [
    Answer(1, 200, b'{"seqs":[1]', SHARED),
    Answer(2, 404, b"", SHARED),
    Stats(3, 2**63 - 1),
    Answer(3, 200, b"[", None, [FileExtent(1, 2, 3), FileExtent(2**63 - 1, 0, 0)], b"]"),
    Answer(4, 200, b"[", {"records_scanned": 5.0}, [], b""),
]
KEYED = Request(9, wire.Op.APPEND, "orders", b"{}", {"idem": "k"})
BEFORE, BEHIND = b"\x9a\x00", b"\xf6\x84\x00\x03"


def outcome(decode: Callable[[bytes], object], payload: bytes) -> object:
    try:
        return decode(payload)
    except LinkError:
        return "refused"  # the words may differ: cbor2 says at which byte


def plain_requests(payload: bytes) -> list[Request]:
    """In the middle of a buffer, where a wrong step finds bytes to read."""
    return plain_frames.decode_requests(BEFORE + payload + BEHIND, len(BEFORE), len(BEFORE) + len(payload))


def plain_answers(payload: bytes) -> list[wire.ServerMessage]:
    return plain_frames.decode_answers(BEFORE + payload + BEHIND, len(BEFORE), len(BEFORE) + len(payload))


@given(requests)
def test_requests(sent: list[Request]) -> None:
    assert plain_requests(payload_of(wire.encode_requests(sent))) == sent


@given(messages)
def test_answers_and_notices(sent: list[wire.ServerMessage]) -> None:
    assert plain_answers(payload_of(wire.encode_answers(sent))) == sent


def seen_by_the_general_decoder(decode: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> int:
    """How many messages."""
    seen = []
    loads = cbor2.loads
    monkeypatch.setattr(
        cbor2, "loads", lambda payload, **how: seen.append(loads(payload)) or loads(payload, **how)
    )
    decode()
    return sum(map(len, seen))


def test_only_what_is_different_is_left_to_the_general_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    requests, messages = wire.encode_requests, wire.encode_answers
    cases: list[tuple[Callable[[], object], int]] = [
        (lambda: plain_requests(requests(PLAIN_REQUESTS)[4:]), 0),
        (lambda: plain_answers(messages(PLAIN_MESSAGES)[4:]), 0),
        (lambda: plain_requests(requests([*PLAIN_REQUESTS, KEYED])[4:]), 1),
        (lambda: plain_requests(requests([*PLAIN_REQUESTS, KEYED, *PLAIN_REQUESTS])[4:]), 4),
        (lambda: plain_answers(messages([*PLAIN_MESSAGES, Draining(), PLAIN_MESSAGES[0]])[4:]), 2),
    ]
    for decode, left in cases:
        assert seen_by_the_general_decoder(decode, monkeypatch) == left


def test_timings_are_shared_across_the_two_ways_of_reading() -> None:
    sent: list[wire.ServerMessage] = [PLAIN_MESSAGES[0], Draining(), PLAIN_MESSAGES[1]]
    first, _, last = plain_answers(wire.encode_answers(sent)[4:])
    assert isinstance(first, Answer) and isinstance(last, Answer)
    assert first.timings is last.timings is not None


def test_answers_that_share_timings_share_the_object() -> None:
    first, second, *_ = plain_answers(payload_of(wire.encode_answers(PLAIN_MESSAGES)))
    assert isinstance(first, Answer) and isinstance(second, Answer)
    assert first.timings is second.timings is not None


@pytest.mark.parametrize(
    ("decode", "general", "payload"),
    [
        (plain_requests, wire.decode_requests, wire.encode_requests(PLAIN_REQUESTS[:2])[4:]),
        (plain_answers, wire.decode_answers, wire.encode_answers(PLAIN_MESSAGES)[4:]),
    ],
)
def test_a_byte_that_is_lost_added_or_changed(
    decode: Callable[[bytes], object], general: Callable[[bytes], object], payload: bytes
) -> None:
    for place in range(len(payload)):
        others = [payload[:place], payload[:place] + payload[place + 1 :], payload + payload[:place]]
        others += [
            payload[:place] + bytes([payload[place] ^ change]) + payload[place + 1 :]
            for change in (1, 2, 4, 8, 16, 32, 64, 128, 255)
        ]
        for other in others:
            assert outcome(decode, other) == outcome(general, other), other


@given(st.binary(max_size=200), st.booleans())
def test_garbage(garbage: bytes, framed: bool) -> None:
    payload = b"\x9a\x00\x00\x00\x02" + garbage if framed else garbage
    assert outcome(plain_requests, payload) == outcome(wire.decode_requests, payload)
    assert outcome(plain_answers, payload) == outcome(wire.decode_answers, payload)
