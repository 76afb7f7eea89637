"""Writes that would rather wait than be refused (`disable_backpressure`), for room on a link that is full.

Only what a link refuses comes here, so that nobody else pays for looking into a body. What waits is bounded in number,
bytes and time; the answer tells how long it has waited, here and in the worker together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from shared.api_types import decode_write
from shared.errors import TopicsError
from shared.limits import THROTTLE_WAIT_MAX_MS, THROTTLED_MAX_BYTES, THROTTLED_MAX_REQUESTS
from shared.wire import Answer, Options

_L = TypeVar("_L")  # files that an answer has leased; none has, of a write
_OnReply = Callable[[Answer | TopicsError, _L | None], None]


class PatientWrite(Generic[_L]):
    def __init__(
        self, topic: str, body: bytes, options: Options | None, on_reply: _OnReply[_L], since_s: float
    ) -> None:
        self.topic = topic
        self.body = body
        self.options = options
        self.on_reply = on_reply
        self.since_s = since_s
        self.waited_ms = 0.0

    def reply(self, reply: Answer | TopicsError, leased: _L | None) -> None:
        if isinstance(reply, Answer):
            timings = {**(reply.timings or {})}
            timings["throttle_wait_ms"] = timings.get("throttle_wait_ms", 0.0) + self.waited_ms
            reply = Answer(reply.id, reply.status, reply.body, timings, reply.extents, reply.tail)
        self.on_reply(reply, leased)


class PatientWrites(Generic[_L]):
    def __init__(self) -> None:
        self._waiting: deque[PatientWrite[_L]] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __bool__(self) -> bool:
        # Asked with every write, and compiled code calls this directly.
        return len(self._waiting) > 0

    def offer(
        self, topic: str, body: bytes, options: Options | None, on_reply: _OnReply[_L], now_s: float
    ) -> bool:
        """Let a write wait; False if it does not want to, or too much waits already."""
        if len(self._waiting) >= THROTTLED_MAX_REQUESTS or self._bytes + len(body) > THROTTLED_MAX_BYTES:
            return False
        if not _wants_to_wait(body):
            return False
        self._waiting.append(PatientWrite(topic, body, options, on_reply, now_s))
        self._bytes += len(body)
        return True

    @property
    def next_bytes(self) -> int:
        """Size of the one that `take` would give."""
        return len(self._waiting[0].body)

    def take(self, now_s: float) -> PatientWrite[_L]:
        """The one that has waited longest."""
        write = self._waiting.popleft()
        self._bytes -= len(write.body)
        write.waited_ms = (now_s - write.since_s) * 1000
        return write

    def take_expired(self, now_s: float) -> list[PatientWrite[_L]]:
        expired = []
        while self._waiting and (now_s - self._waiting[0].since_s) * 1000 >= THROTTLE_WAIT_MAX_MS:
            expired.append(self.take(now_s))
        return expired

    def take_all(self, now_s: float) -> list[PatientWrite[_L]]:
        return [self.take(now_s) for _ in range(len(self._waiting))]


def _wants_to_wait(body: bytes) -> bool:
    if b"disable_backpressure" not in body:
        return False
    try:
        return decode_write(body).disable_backpressure
    except TopicsError:
        return False  # refused like any other; the worker says what is wrong with it when there is room
