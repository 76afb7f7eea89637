"""Output of one socket that could not be sent at once: bytes, file extents, and what to release after them.

Everything here is non-blocking. `pump` sends until the socket is full, its share of the turn is used
up, or nothing is left.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Callable
from typing import Final

from gateway.exchange import Extent, Response
from gateway.fast_lane.answer_slot import AnswerSlot
from gateway.fast_lane.bounds import PUMP_BYTES
from gateway.fast_lane.refusals import FileTooShort
from gateway.fast_lane.response_head import BODYLESS, HeadCache

_MAX_PARTS = 32  # of one sendmsg call
# A plain number: members of socket's enums are slow to work with. What is sent with it leaves in the same packet as
# what comes next.
_MORE: Final = int(socket.MSG_MORE)


class _FilePart:
    __slots__ = ("fd", "left", "offset")

    def __init__(self, fd: int, offset: int, left: int) -> None:
        self.fd = fd
        self.offset = offset
        self.left = left


class _Release:
    __slots__ = ("call",)

    def __init__(self, call: Callable[[], None]) -> None:
        self.call = call


class Output:
    __slots__ = ("_parts", "unsent")

    def __init__(self) -> None:
        self._parts: deque[memoryview | _FilePart | _Release] = deque()
        self.unsent = 0  # bytes

    def add(self, data: bytes | memoryview) -> None:
        if data:
            self._parts.append(memoryview(data))
            self.unsent += len(data)

    def add_extent(self, extent: Extent) -> None:
        if extent.length:
            self._parts.append(_FilePart(extent.fd, extent.offset, extent.length))
            self.unsent += extent.length

    def add_release(self, release: Callable[[], None]) -> None:
        self._parts.append(_Release(release))

    def send(self, sock: socket.socket, data: bytes) -> bool:
        """Send at once if nothing is held before it, and hold what is left. True if nothing is."""
        sent = 0
        if not self.unsent:
            try:
                sent = sock.send(data)
            except (BlockingIOError, InterruptedError):
                pass
            else:
                if sent == len(data):
                    return True
        self.add(memoryview(data)[sent:])
        return False

    def send_extent(self, sock: socket.socket, head: bytes, extent: Extent, tail: bytes) -> bool:
        """`send` for an answer around a part of a file: three calls and no objects, if the socket takes all of it."""
        if self.unsent or not 0 < extent.length <= PUMP_BYTES:
            self._hold(head, extent, tail)
            return False
        begun = sent = 0  # bytes of the head, bytes of the file
        try:
            begun = sock.send(head, _MORE)
            if begun == len(head):
                sent = os.sendfile(sock.fileno(), extent.fd, extent.offset, extent.length)
                if sent == 0:
                    raise FileTooShort(f"a file ended {extent.length} bytes before its extent")
                if sent == extent.length:
                    return self.send(sock, tail)
        except (BlockingIOError, InterruptedError):
            pass
        self._hold(head[begun:], Extent(extent.fd, extent.offset + sent, extent.length - sent), tail)
        return False

    def _hold(self, head: bytes, extent: Extent, tail: bytes) -> None:
        self.add(head)
        self.add_extent(extent)
        self.add(tail)

    def pump(self, sock: socket.socket) -> None:
        """Raises OSError if the connection is broken. `unsent` tells how far it came."""
        parts = self._parts
        budget = PUMP_BYTES
        while parts and budget > 0:
            part = parts[0]
            if isinstance(part, _Release):
                parts.popleft()
                part.call()
                continue
            try:
                sent = self._send_bytes(sock) if isinstance(part, memoryview) else self._send_file(sock, part)
            except (BlockingIOError, InterruptedError):
                return
            self.unsent -= sent
            budget -= sent

    def drop(self) -> None:
        """The connection is over: nothing more is sent, and what was lent is given back."""
        parts, self._parts = self._parts, deque()
        self.unsent = 0
        for part in parts:
            if isinstance(part, _Release):
                part.call()

    def _send_bytes(self, sock: socket.socket) -> int:
        parts = self._parts
        if len(parts) == 1 and isinstance(parts[0], memoryview):
            sent = sock.send(parts[0])
            if sent < len(parts[0]):
                parts[0] = parts[0][sent:]
            else:
                parts.popleft()
            return sent
        batch: list[memoryview] = []
        for part in parts:
            if not isinstance(part, memoryview) or len(batch) == _MAX_PARTS:
                break
            batch.append(part)
        # A header leaves in the same packet as the file behind it.
        flags = _MORE if len(parts) > len(batch) and isinstance(parts[len(batch)], _FilePart) else 0
        sent = left = sock.sendmsg(batch, (), flags)
        for part in batch:
            if left < len(part):
                parts[0] = part[left:]
                break
            left -= len(part)
            parts.popleft()
        return sent

    def _send_file(self, sock: socket.socket, part: _FilePart) -> int:
        sent = os.sendfile(sock.fileno(), part.fd, part.offset, min(part.left, PUMP_BYTES))
        if sent == 0:
            raise FileTooShort(f"a file ended {part.left} bytes before its extent")
        part.offset += sent
        part.left -= sent
        if part.left == 0:
            self._parts.popleft()
        return sent


def add_answer(out: Output, heads: HeadCache, slot: AnswerSlot, response: Response, *, close: bool) -> None:
    """Any answer, whatever its parts; the plain ones take a shorter way."""
    out.add(
        heads.full(
            response.status,
            response.content_type,
            response.headers,
            length=response.content_length(),
            connection="close" if close else "keep-alive" if slot.http10 else None,
        )
    )
    if not slot.head_only and response.status not in BODYLESS:
        out.add(response.body)
        for extent in response.extents:
            out.add_extent(extent)
        out.add(response.tail)
    if response.release is not None:
        out.add_release(response.release)
