"""One HTTP/1.1 connection: a socket, the reader of its requests, the line of its answers.

No task belongs to a connection. The lane calls `on_event` when the socket is ready, `send_ready` at the
end of a turn in which an answer was given, and `check_deadline` now and then.

Reading stops (the socket leaves the read set) while the line is full, the output is stuck, a stream is
open, or nothing after the current request will be served; so what a client can make us hold is bounded.
"""

from __future__ import annotations

import select
import socket
import time
from typing import TYPE_CHECKING, Final

from gateway.exchange import Recall, Response, StreamHead
from gateway.fast_lane.answer_slot import AnswerSlot
from gateway.fast_lane.bounds import (
    JOIN_BYTES,
    LINGER_BYTES,
    MAX_PIPELINED,
    MAX_UNSENT_BYTES,
    RECV_BODY_BYTES,
    RECV_BYTES,
    STREAM_STALL_FACTOR,
)
from gateway.fast_lane.http_stream import HttpStream
from gateway.fast_lane.output import Output, add_answer
from gateway.fast_lane.refusals import Refusal, bad_request
from gateway.fast_lane.request_reader import FULL_LANE, RequestReader
from gateway.fast_lane.response_head import BODYLESS, CONTINUE

if TYPE_CHECKING:
    from gateway.fast_lane.lane import FastLane

# Final, one by one: compiled code looks any other name of a module up in a dictionary, for every event.
_IN: Final = select.EPOLLIN
_OUT: Final = select.EPOLLOUT
_RDHUP: Final = select.EPOLLRDHUP
_BROKEN: Final = select.EPOLLERR | select.EPOLLHUP
_INTERIM: Final = Response(100)
_NO_HEADERS: dict[str, str] = {}


class Connection:
    __slots__ = (
        "_attention",
        "_closing",
        "_eof",
        "_half_closed",
        "_hand_over",
        "_lane",
        "_linger",
        "_linger_left",
        "_linger_until",
        "_mask",
        "_out",
        "_paused",
        "_progress_at",
        "_reader",
        "_slots",
        "_stream",
        "_touched",
        "_virgin",
        "closed",
        "dirty",
        "fd",
        "peer",
        "sock",
    )

    def __init__(self, lane: FastLane, sock: socket.socket, peer: str, now: float) -> None:
        self._lane = lane
        self.sock = sock
        self.fd = sock.fileno()
        self.peer = peer
        self.closed = False
        self.dirty = False  # listed for send_ready at the end of the turn
        self._reader = RequestReader(self, lane.head_parser, lane.body_budget)
        self._slots: list[AnswerSlot] = []  # so few that to take the first one is no work
        self._stream: HttpStream | None = None  # the open stream, if its turn has come
        self._out = Output()
        self._mask = _IN
        self._attention = False  # something below is set: after an answer there is more to look at
        self._closing = False  # nothing after the last slot will be served
        self._paused = False  # a bound was reached: parse on when there is room
        self._hand_over = False  # the next request belongs to the full lane
        self._eof = False
        self._half_closed = False
        self._linger = False  # unread input is possible: see to it that the last answer is not reset
        self._linger_left = 0
        self._linger_until = 0.0
        self._virgin = True
        self._touched = now
        self._progress_at = now

    def __repr__(self) -> str:
        return (
            f"<Connection {self.peer} waiting={len(self._slots)} unsent={self._out.unsent} "
            f"paused={self._paused} closing={self._closing} streaming={self._stream is not None} "
            f"closed={self.closed}>"
        )

    # --- input ----------------------------------------------------------------------------------

    def on_event(self, events: int) -> None:
        if self.closed:
            return
        if events & _IN and self._mask & _IN:
            self._receive()
        elif events & _BROKEN:
            self.lose()
            return
        elif events & _RDHUP:
            self._on_hang_up()
        if events & _OUT and not self.closed:
            self._pump()

    def _receive(self) -> None:
        reader = self._reader
        size = RECV_BYTES if reader.body_bytes_wanted <= RECV_BYTES else RECV_BODY_BYTES
        try:
            data = self.sock.recv(size)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.lose()
            return
        if self._linger_until:
            self._linger_left -= len(data)
            if not data or self._linger_left < 0:
                self._close()
        elif data:
            self._touched = now = self._lane.now
            self._virgin = False
            reader.feed(data, now)
            self.process()
        else:
            self._on_eof()

    def process(self) -> None:
        """Serve what has been received, as far as the bounds allow."""
        reader, slots, lane = self._reader, self._slots, self._lane
        try:
            while True:
                if len(slots) >= MAX_PIPELINED or self._out.unsent > MAX_UNSENT_BYTES:
                    self._paused = True
                    break
                item = reader.next_item()
                if item is None:
                    return
                if isinstance(item, AnswerSlot):
                    slots.append(item)
                    item.half_closed = self._half_closed
                    if item.close:
                        self._closing = True
                    lane.handle(item)
                    if self._closing or self.closed or self._ends_in_stream():
                        break
                    if not reader.has_unread:
                        return
                elif item is FULL_LANE:
                    self._hand_over = True
                    break
                else:
                    self._enqueue(_INTERIM, close=False)
        except Refusal as refusal:
            self.reject(refusal.response())
            return
        self._stop_reading()

    def resume(self) -> None:
        """Parse on after a pause or a stream, if there is room again by now."""
        if self.closed or self._closing or self._hand_over or self._ends_in_stream():
            return
        self._paused = False
        self._reader.restart_clock(self._lane.now)
        if self._reader.has_unread:
            self.process()
        self._rearm()

    def reject(self, response: Response) -> None:
        """Answer with this after everything before it, then close."""
        self._linger = True
        self._closing = True
        self._enqueue(response, close=True)
        self._stop_reading()

    def _enqueue(self, response: Response, *, close: bool) -> None:
        slot = AnswerSlot(self, "", "", "", _NO_HEADERS, b"", self._lane.now, Recall())
        slot.close = close
        slot.plain = False
        self._slots.append(slot)
        slot.respond(response)

    def _ends_in_stream(self) -> bool:
        return bool(self._slots) and self._slots[-1].stream is not None

    def _stop_reading(self) -> None:
        self._attention = True
        if not self.closed:
            self._rearm()
            self._lane.mark(self)  # perhaps there is nothing left to wait for

    def _on_eof(self) -> None:
        # What was asked for is still answered: shutting down one's sending side is not hanging up.
        self._eof = self._closing = True
        self._on_hang_up()
        self._stop_reading()

    def _on_hang_up(self) -> None:
        self._half_closed = True
        if self._stream is not None:
            self.lose()  # but nobody keeps a stream open half way
            return
        for slot in self._slots:
            self._lane.guard(slot.half_close)
        self._rearm()

    # --- output ---------------------------------------------------------------------------------

    def answered(self, slot: AnswerSlot) -> None:
        slots = self._slots  # empty if the connection is being lost, and somebody answers because of that
        if slots and slots[0] is slot and not self.dirty:
            self._lane.mark(self)

    def send_ready(self) -> None:
        """Send every answer whose turn in line has come."""
        if self.closed:
            return
        slots = self._slots
        heads = self._lane.heads
        ready: list[bytes] = []
        while slots:
            slot = slots[0]
            response = slot.response
            if response is None:
                break
            if self._out.unsent > MAX_UNSENT_BYTES:
                break
            slots.pop(0)
            body = response.body
            if (
                not (slot.plain and response.only_body)
                or len(body) > JOIN_BYTES
                or (response.status != 200 and response.status in BODYLESS)
                or self._lane.draining
            ):
                self._transmit(ready)
                ready = []
                self._send_special(slot, response)
                if self.closed:
                    return
            else:
                ready.append(heads.prefix(response.status, response.content_type, len(body)) + body)
        self._transmit(ready)
        if self._attention or slots:
            self._look_further()

    def _send_special(self, slot: AnswerSlot, response: Response) -> None:
        if slot.plain and response.only_extent and not self._lane.draining:
            self._send_extent(response)
            return
        last = self._lane.draining and not self._slots and not self._reader.reading_since
        if slot.close or last:
            self._closing = self._attention = True
        if response is _INTERIM:
            self._out.add(CONTINUE)
        else:
            add_answer(self._out, self._lane.heads, slot, response, close=slot.close or last)
        self._pump()

    def _send_extent(self, response: Response) -> None:
        """An answer around a part of a file, as most reads of many records are."""
        extent, tail, out = response.extents[0], response.tail, self._out
        length = len(response.body) + extent.length + len(tail)
        head = self._lane.heads.prefix(response.status, response.content_type, length)
        self._touched = now = self._lane.turns.now
        if not out.unsent:
            self._progress_at = now
        try:
            done = out.send_extent(self.sock, head + response.body, extent, tail)
        except OSError:
            _give_back(response)
            self.lose()
            return
        if done:
            _give_back(response)
            return
        if response.release is not None:
            out.add_release(response.release)
        self._pump()

    def _transmit(self, ready: list[bytes]) -> None:
        if not ready or self.closed:
            return
        self._touched = now = self._lane.turns.now
        if not self._out.unsent:
            self._progress_at = now
        try:
            if not self._out.send(self.sock, ready[0] if len(ready) == 1 else b"".join(ready)):
                self._blocked()
        except OSError:
            self.lose()

    def _pump(self) -> None:
        out = self._out
        before = out.unsent
        try:
            out.pump(self.sock)
        except OSError:
            self.lose()
            return
        if out.unsent < before:
            self._progress_at = self._touched = self._lane.now
        if out.unsent:
            self._blocked()
            return
        if self._mask & _OUT:
            self._rearm()
            if self._stream is not None:
                self._stream.drained()
            self._lane.mark(self)

    def _blocked(self) -> None:
        self._attention = True
        self._rearm()

    def _look_further(self) -> None:
        """After output has moved: is there something that waited for that?"""
        slots = self._slots
        if self.closed:
            return
        if slots and slots[0].stream is not None:
            if self._half_closed and not slots[0].stream.gone:
                self.lose()
            elif self._stream is None:
                self._stream = slots[0].stream
                self._rearm()
                self._stream.start()
            return
        room = self._out.unsent <= MAX_UNSENT_BYTES
        if self._paused and room and len(slots) <= MAX_PIPELINED // 2:
            self._lane.resume_later(self)
        if slots or self._out.unsent:
            return
        if self._closing or (self._lane.draining and not self._reader.reading_since):
            self._end()
        elif self._hand_over:
            self._lane.hand_over(self, self._reader.unread())
        elif not self._paused:
            self._attention = False

    # --- streams --------------------------------------------------------------------------------

    def open_stream(self, slot: AnswerSlot, head: StreamHead) -> HttpStream:
        close = slot.close or slot.http10
        raw = self._lane.heads.full(
            head.status, head.content_type, head.headers, length=None, connection="close" if close else None
        )
        self._closing = self._closing or close
        self._attention = True
        stream = HttpStream(self, raw, chunked=not slot.http10, head_only=slot.head_only)
        if self.closed:
            stream.lose()
        elif self._slots[0] is slot:
            self._lane.mark(self)
        return stream

    def stream_send(self, data: bytes) -> bool:
        self._transmit([data])
        return not self.closed and not self._out.unsent

    def stream_stalled_ms(self) -> float:
        return (time.perf_counter() - self._progress_at) * 1000 if self._out.unsent else 0.0

    def stream_ended(self) -> None:
        self._stream = None
        if self.closed:
            return
        self._slots.pop(0)
        if self._half_closed:
            self._closing = True
        self._touched = self._lane.now
        self._paused = True  # read on where the stream made us stop
        self._rearm()
        self._lane.mark(self)

    # --- the end --------------------------------------------------------------------------------

    def _end(self) -> None:
        """Everything was said. Close, but let a client whose input we did not read see the answer first."""
        if self._eof or not (self._linger or self._reader.has_unread):
            self._close()
            return
        if self._linger_until:
            return
        try:
            self.sock.shutdown(socket.SHUT_WR)
        except OSError:
            self._close()
            return
        self._linger_left = LINGER_BYTES
        self._linger_until = self._lane.now + self._lane.options.linger_ms / 1000
        self._rearm()

    def lose(self) -> None:
        """The client is gone, or must go: drop everything at once."""
        self._close()
        slots, self._slots = self._slots, []
        for slot in slots:
            self._lane.guard(slot.lose)

    def drain(self) -> None:
        """Serve what has begun, then close."""
        self._attention = True
        self._lane.mark(self)

    def check_deadline(self, now: float) -> None:
        options = self._lane.options
        if self._linger_until:
            if now >= self._linger_until:
                self._close()
        elif self._out.unsent:
            allowed_ms = options.write_timeout_ms * (1 if self._stream is None else STREAM_STALL_FACTOR)
            if now - self._progress_at > allowed_ms / 1000:
                self.lose()
        elif self._closing or self._paused or self._hand_over or self._stream is not None:
            pass  # it is not the client we wait for
        elif self._reader.reading_since:
            if now - self._reader.reading_since > options.request_timeout_ms / 1000:
                self.reject(bad_request("the request did not arrive in time", status=408).response())
        elif not self._slots:
            quiet_ms = options.keepalive_timeout_ms
            if self._virgin:
                quiet_ms = min(quiet_ms, options.request_timeout_ms)
            if now - self._touched > quiet_ms / 1000:
                self._close()

    def _close(self) -> None:
        if not self.closed:
            self.closed = True
            self._out.drop()
            self._reader.abandon()
            self._lane.forget(self, close=True)

    def _rearm(self) -> None:
        if self.closed:
            return
        deaf = self._paused or self._closing or self._hand_over or self._ends_in_stream()
        mask = 0
        if self._linger_until or not deaf:
            mask = _IN
        elif not (self._eof or self._half_closed):
            mask = _RDHUP
        if self._out.unsent:
            mask |= _OUT
        if mask != self._mask:
            self._mask = mask
            self._lane.turns.modify(self.fd, mask)


def _give_back(response: Response) -> None:
    if response.release is not None:
        response.release()
