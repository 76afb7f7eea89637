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


def test_an_answer_around_a_part_of_a_file_leaves_at_once(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    with tempfile.TemporaryFile() as file:
        file.write(b"0123456789")
        file.flush()
        out = Output()
        assert out.send_extent(ours, b"head ", Extent(file.fileno(), 2, 3), b" tail")
        assert out.send_extent(ours, b"head ", Extent(file.fileno(), 0, 1), b"")
    assert out.unsent == 0 and drain(theirs) == b"head 234 tailhead 0"


@pytest.mark.parametrize("size", [100, 1 << 20, 3 << 20, 5 << 20])
@pytest.mark.parametrize("before", [0, 1000, 3 << 20])
def test_what_a_full_socket_does_not_take_of_it_follows_in_order(
    pair: tuple[socket.socket, socket.socket], size: int, before: int
) -> None:
    ours, theirs = pair
    first, payload = os.urandom(before), os.urandom(size)
    with tempfile.TemporaryFile() as file:
        file.write(b"not this" + payload + b"nor this")
        file.flush()
        out = Output()
        if first:
            out.send(ours, first)
        done = out.send_extent(ours, b"head", Extent(file.fileno(), 8, size), b"tail")
        assert done == (out.unsent == 0)
        got = b""
        while out.unsent:
            got += drain(theirs)
            out.pump(ours)
    assert got + drain(theirs) == first + b"head" + payload + b"tail"


@pytest.mark.parametrize("free", [0, 2, 4, 5, 6])
def test_a_socket_may_be_full_anywhere(free: int) -> None:
    """In the head, between the head and the file, in the file, behind it."""

    class Narrow:
        """Takes so many bytes and then no more."""

        def __init__(self, sock: socket.socket, left: int) -> None:
            self._sock, self.left = sock, left

        def send(self, data: bytes, flags: int = 0) -> int:
            if not self.left:
                raise BlockingIOError
            taken = self._sock.send(bytes(data[: self.left]))
            self.left -= taken
            return taken

        def fileno(self) -> int:
            return self._sock.fileno()

    ours, theirs = socket.socketpair()
    with ours, theirs, tempfile.TemporaryFile() as file:
        file.write(b"file")
        file.flush()
        theirs.setblocking(False)
        out = Output()
        narrow = Narrow(ours, free)
        done = out.send_extent(narrow, b"head", Extent(file.fileno(), 0, 4), b"tail")  # type: ignore[arg-type]
        assert not done
        out.pump(ours)
        assert drain(theirs) == b"headfiletail"


def test_a_file_that_ends_early_breaks_off_that_answer_too(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    with tempfile.TemporaryFile() as file:
        out = Output()
        with pytest.raises(FileTooShort):
            out.send_extent(pair[0], b"head", Extent(file.fileno(), 0, 5), b"tail")


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
