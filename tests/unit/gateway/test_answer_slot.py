"""Slots and streams without a socket: one answer, in line, and who is told when the client is gone."""

from __future__ import annotations

import pytest

from gateway.exchange import Frame, Recall, Response, StreamHead
from gateway.fast_lane.answer_slot import AnswerSlot
from gateway.fast_lane.http_stream import HttpStream


class FakeConnection:
    """Takes `room` bytes and holds the rest."""

    peer = "test"

    def __init__(self) -> None:
        self.room = 1 << 20
        self.sent = b""
        self.ended = False
        self.answers: list[AnswerSlot] = []

    def answered(self, slot: AnswerSlot) -> None:
        self.answers.append(slot)

    def open_stream(self, slot: AnswerSlot, head: StreamHead) -> HttpStream:
        return HttpStream(self, b"HEAD;", chunked=True, head_only=slot.head_only)

    def stream_send(self, data: bytes) -> bool:
        self.sent += data
        self.room -= len(data)
        return self.room >= 0

    def stream_ended(self) -> None:
        self.ended = True


def new_slot(connection: FakeConnection) -> AnswerSlot:
    return AnswerSlot(connection, "GET", "/v0", "", {}, b"", 0.0, Recall())


def test_an_exchange_is_answered_once() -> None:
    connection = FakeConnection()
    slot = new_slot(connection)
    slot.respond(Response(200))
    assert connection.answers == [slot]
    with pytest.raises(AssertionError):
        slot.respond(Response(200))


def test_h05_a_vanished_client_is_reported_once_and_the_late_answer_released() -> None:
    slot = new_slot(FakeConnection())
    events: list[str] = []
    slot.on_gone(lambda: events.append("gone"))
    slot.lose()
    slot.lose()
    slot.respond(Response(200, release=lambda: events.append("released")))
    assert events == ["gone", "released"]


def test_h05_nobody_is_told_after_the_answer_was_given_but_its_files_are_released() -> None:
    slot = new_slot(FakeConnection())
    events: list[str] = []
    slot.on_gone(lambda: events.append("gone"))
    slot.respond(Response(200, release=lambda: events.append("released")))
    slot.lose()
    assert events == ["released"]


def test_a_stream_takes_nothing_before_its_turn_and_says_when_it_does() -> None:
    connection = FakeConnection()
    stream = new_slot(connection).respond_stream(StreamHead())
    assert isinstance(stream, HttpStream)
    writable: list[int] = []
    stream.on_writable(lambda: writable.append(1))
    assert not stream.push(Frame(b"early"))
    stream.start()
    assert writable == [1]
    assert stream.push(Frame(b"hello"))
    assert connection.sent == b"HEAD;5\r\nhello\r\n"


def test_a_full_socket_holds_one_frame_and_refuses_the_next() -> None:
    connection = FakeConnection()
    stream = HttpStream(connection, b"HEAD;", chunked=True, head_only=False)
    stream.start()
    writable: list[int] = []
    stream.on_writable(lambda: writable.append(1))
    connection.room = 3
    assert stream.push(Frame(b"taken"))
    assert not stream.push(Frame(b"refused"))
    assert writable == []
    connection.room = 1 << 20
    stream.drained()
    assert writable == [1]
    assert stream.push(Frame(b"again"))
    assert b"refused" not in connection.sent


def test_ending_before_its_turn_is_remembered() -> None:
    connection = FakeConnection()
    stream = HttpStream(connection, b"HEAD;", chunked=True, head_only=False)
    stream.end(Frame(b"bye"))
    assert connection.sent == b""
    stream.start()
    assert connection.sent == b"HEAD;3\r\nbye\r\n0\r\n\r\n"
    assert connection.ended


def test_a_stream_for_http10_is_not_chunked() -> None:
    connection = FakeConnection()
    stream = HttpStream(connection, b"HEAD;", chunked=False, head_only=False)
    stream.start()
    stream.push(Frame(b"a"))
    stream.end()
    assert connection.sent == b"HEAD;a"


def test_h05_a_lost_stream_tells_its_producer_once_and_takes_nothing_more() -> None:
    stream = HttpStream(FakeConnection(), b"", chunked=True, head_only=False)
    gone: list[int] = []
    stream.on_gone(lambda: gone.append(1))
    stream.lose()
    stream.lose()
    assert gone == [1] and stream.gone
    assert not stream.push(Frame(b"x"))
    stream.on_gone(lambda: gone.append(2))
    assert gone == [1, 2]


def test_a_stream_for_head_is_over_after_its_head() -> None:
    connection = FakeConnection()
    slot = new_slot(connection)
    slot.head_only = True
    stream = slot.respond_stream(StreamHead())
    assert isinstance(stream, HttpStream) and stream.gone
    stream.start()
    assert connection.sent == b"HEAD;" and connection.ended


def test_a_frame_is_encoded_once() -> None:
    frame = Frame(b"x" * 20)
    assert frame.chunk == b"14\r\n" + b"x" * 20 + b"\r\n"
    assert frame.chunk is frame.chunk
