"""Held output over a socket pair: order, would-block, files, releases."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator

import pytest

from gateway.exchange import JSON, Extent
from gateway.fast_lane.output import Output
from gateway.fast_lane.refusals import FileTooShort
from gateway.fast_lane.response_head import HeadCache


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    yield ours, theirs
    ours.close()
    theirs.close()


def drain(theirs: socket.socket) -> bytes:
    data = b""
    try:
        while part := theirs.recv(1 << 20):
            data += part
    except BlockingIOError:
        pass
    return data


def test_parts_leave_in_order_and_releases_after_their_files(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    events: list[str] = []
    with tempfile.TemporaryFile() as file:
        file.write(b"0123456789")
        file.flush()
        out = Output()
        out.add(b"head ")
        out.add_extent(Extent(file.fileno(), 2, 3))
        out.add(b" tail")
        out.add_release(lambda: events.append("released"))
        assert out.unsent == 13
        out.pump(ours)
    assert drain(theirs) == b"head 234 tail"
    assert out.unsent == 0 and events == ["released"]


def test_a_full_socket_keeps_the_rest(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    payload = os.urandom(3 << 20)
    out = Output()
    for start in range(0, len(payload), 100_000):
        out.add(payload[start : start + 100_000])
    got = b""
    out.pump(ours)
    assert 0 < out.unsent < len(payload)
    while out.unsent:
        got += drain(theirs)
        out.pump(ours)
    assert got + drain(theirs) == payload


def test_a_file_that_ends_early_is_an_error_not_a_short_answer(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    with tempfile.TemporaryFile() as file:
        file.write(b"abc")
        file.flush()
        out = Output()
        out.add_extent(Extent(file.fileno(), 0, 5))
        with pytest.raises(FileTooShort):
            out.pump(pair[0])


def test_dropping_releases_what_was_lent() -> None:
    events: list[str] = []
    out = Output()
    out.add(b"never sent")
    out.add_release(lambda: events.append("released"))
    out.drop()
    out.drop()
    assert events == ["released"] and out.unsent == 0


def test_a_head_has_the_date_of_its_second_and_no_line_breaks_from_values() -> None:
    heads = HeadCache()
    heads.set_second(0)
    first = heads.prefix(200, JSON, 12)
    assert first.startswith(b"HTTP/1.1 200 OK\r\n") and b"Date: Thu, 01 Jan 1970 00:00:00 GMT\r\n" in first
    assert first.endswith(b"\r\nContent-Length: 12\r\n\r\n")
    assert heads.prefix(200, JSON, 12) is first
    assert heads.prefix(200, JSON, 5000).endswith(b"\r\nContent-Length: 5000\r\n\r\n")
    assert heads.prefix(404, JSON, 12).startswith(
        b"HTTP/1.1 404 Not Found\r\nContent-Type: application/json\r\n"
    )
    assert b"\r\nContent-Type: text/plain\r\n" in heads.prefix(200, "text/plain", 12)
    heads.set_second(1)
    assert b"00:00:01 GMT" in heads.prefix(200, JSON, 12)
    with pytest.raises(AssertionError):
        heads.full(200, "text/plain", [("A", "b\r\nC: d")], length=0, connection=None)
