"""All streams that hand out jobs, and their time. Every ack, nack and extend comes through this gateway: they are
told here which leases are over, and claim again.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import msgspec
import trio

from gateway.core import sse
from gateway.core.claims import deadlines_of, decision_of, release_bodies
from gateway.core.timer_wheel import TimerWheel
from gateway.exchange import Stream
from gateway.io.shard_link import LeasedFiles, Reply
from gateway.work_stream import PASSING_STATUSES, Shards, WorkStream, status_of
from shared.api_keys import ApiKey, KeyRing
from shared.limits import WATCH_RETRY_MS
from shared.wire import Op

log = logging.getLogger(__name__)

_SLOT_MS = 20  # a lease that ran out is noticed at most this much late


def _monotonic_ms() -> float:
    return time.monotonic() * 1000


def _wall_ms() -> float:
    return time.time() * 1000


class _Open(msgspec.Struct, frozen=True):
    key: ApiKey | None
    on_end: Callable[[], None]


class WorkStreams:
    """Implements `Hub`. Deadlines are kept by a clock that nobody can set."""

    def __init__(
        self,
        shards: Shards,
        *,
        clock_ms: Callable[[], float] = _monotonic_ms,
        wall_ms: Callable[[], float] = _wall_ms,
    ) -> None:
        self.shards = shards
        self.clock_ms = clock_ms
        self._wall_ms = wall_ms
        self._streams: dict[str, dict[str, list[WorkStream]]] = {}  # by topic and node
        self._open: dict[WorkStream, _Open] = {}
        self._timers = TimerWheel(_SLOT_MS)
        self._sooner = trio.Event()

    def __len__(self) -> int:
        return len(self._open)

    # --- what handlers use ------------------------------------------------------------------------------

    def open(
        self,
        stream: Stream,
        *,
        key: ApiKey | None,
        topic: str,
        node: str,
        most: int,
        lease_ms: int | None,
        on_end: Callable[[], None],
    ) -> None:
        """Hand out jobs on this stream until either side ends it; `on_end` is called then."""
        work = WorkStream(self, stream, topic=topic, node=node, most=most, lease_ms=lease_ms)
        self._streams.setdefault(topic, {}).setdefault(node, []).append(work)
        self._open[work] = _Open(key, on_end)
        work.start()

    def follows(self, topic: str) -> bool:
        """Does it matter here what is decided about the jobs of this topic?"""
        return topic in self._streams

    def decided(self, topic: str, body: bytes) -> None:
        """An ack or nack was carried out."""
        decision = decision_of(body)
        for work in self._of(topic, decision.node):
            work.decided(decision.leases())

    def extended(self, topic: str, body: bytes, open_answer: bytes) -> None:
        decision, deadlines = decision_of(body), deadlines_of(open_answer)
        for work in self._of(topic, decision.node):
            work.extended(decision.leases(), deadlines)

    def _of(self, topic: str, node: str) -> list[WorkStream]:
        return list(self._streams.get(topic, {}).get(node, ()))

    def drain(self) -> None:
        """The server stops: every stream is told, and its jobs go back."""
        for work in list(self._open):
            work.end(sse.shutting_down().sse)

    def keys_replaced(self, ring: KeyRing) -> None:
        """Streams of keys that are no longer valid, or no longer the same, end."""
        goodbye = sse.ended("key_revoked", "the key that opened this stream is no longer valid")
        for work, opened in list(self._open.items()):
            if opened.key is not None and not ring.has(opened.key):
                work.end(goodbye.sse)

    # --- what streams use -------------------------------------------------------------------------------

    def release(self, topic: str, node: str, leases: Sequence[tuple[int, str]], until_ms: float) -> None:
        """Give leases back; `until_ms`: when the last of them will have run out by itself."""
        for body in release_bodies(node, leases):
            self._send_release(topic, body, until_ms)

    def _send_release(self, topic: str, body: bytes, until_ms: float) -> None:
        def again() -> None:
            self._send_release(topic, body, until_ms)

        def answered(reply: Reply, leased: LeasedFiles | None) -> None:
            # A shard that restarts may still know its leases: `leases_durable`.
            if status_of(reply) in PASSING_STATUSES and self.clock_ms() < until_ms:
                self.at(self.clock_ms() + WATCH_RETRY_MS, again)

        self.shards.request(Op.NACK, topic, body, None, answered)

    def ended(self, work: WorkStream) -> None:
        nodes = self._streams[work.topic]
        nodes[work.node].remove(work)
        if not nodes[work.node]:
            del nodes[work.node]
        if not nodes:
            del self._streams[work.topic]
        self._open.pop(work).on_end()

    # --- time -------------------------------------------------------------------------------------------

    def wall_ms(self) -> int:
        return int(self._wall_ms())

    def until_ms(self, deadline_ms: float) -> float:
        """A worker's deadline by our clock."""
        return self.clock_ms() + max(0.0, deadline_ms - self._wall_ms())

    def at(self, due_ms: float, callback: Callable[[], None]) -> None:
        first = self._timers.next_due_ms()
        self._timers.add(math.ceil(due_ms), callback)
        if first is None or due_ms < first:
            self._sooner.set()

    def tick(self) -> None:
        for callback in self._timers.take_due(int(self.clock_ms())):
            try:
                callback()
            except Exception:
                # A bug met by one stream must not stop the clock of the others.
                log.exception("work.timer_failed")

    async def run(self, turn: Callable[[], AbstractContextManager[None]]) -> None:
        """Keep time until cancelled; what is due happens inside a turn."""
        while True:
            self._sooner = trio.Event()
            due_ms = self._timers.next_due_ms()
            wait_s = math.inf if due_ms is None else max(0.0, due_ms - self.clock_ms()) / 1000
            with trio.move_on_after(wait_s):
                await self._sooner.wait()
            with turn():
                self.tick()
