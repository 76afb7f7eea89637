"""The live part of watching: sessions, their streams, caps and timers.

Everything happens in callbacks: a shard's notice, a stream that takes more, a timer. There is no task per stream; one
task (`run`) sleeps until the next timer of all of them.
"""

from __future__ import annotations

import os
import time
from base64 import urlsafe_b64encode
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

import msgspec
import trio

from gateway.core import sse
from gateway.core.timer_wheel import TimerWheel
from gateway.core.watch_session import LastEventId, Start, WatchPlan, WatchTopic
from gateway.exchange import Stream
from gateway.sse_session import SseSession
from gateway.subscriptions import SubscribedShards, Subscriptions, Survey
from gateway.watcher import Watcher
from shared.api_keys import ApiKey, KeyRing
from shared.errors import InvalidRequest, Throttled, TopicNotFound, TopicsError
from shared.limits import WATCH_LINGER_MS, WATCH_PREFIX_TOPICS_MAX, WATCH_SESSION_TTL_MS, WATCH_STALL_MS
from shared.settings import Settings
from shared.wire import TopicNotice

_SLOT_MS = 250  # timers go off this much late at the most

Created = tuple[SseSession, dict[str, WatchTopic]]


class HubOptions(msgspec.Struct, frozen=True, kw_only=True):
    session_ttl_ms: int = WATCH_SESSION_TTL_MS
    stall_ms: int = WATCH_STALL_MS
    linger_ms: int = WATCH_LINGER_MS


class StreamShards(SubscribedShards, Protocol):
    def flush(self) -> None: ...


class StreamCaps:
    """Open streams, all of them and per key. 0 = unlimited."""

    def __init__(self, maximum: int, per_key: int) -> None:
        self._maximum = maximum
        self._per_key_maximum = per_key
        self._per_key: Counter[bytes] = Counter()
        self.count = 0

    def check(self, key: ApiKey | None) -> None:
        if self._maximum and self.count >= self._maximum:
            raise Throttled(limit="max_sse_connections", max=self._maximum)
        if key is not None and self._per_key_maximum and self._per_key[key.digest] >= self._per_key_maximum:
            raise Throttled(limit="max_sse_connections_per_key", max=self._per_key_maximum)

    def enter(self, key: ApiKey | None) -> None:
        self.count += 1
        if key is not None:
            self._per_key[key.digest] += 1

    def leave(self, key: ApiKey | None) -> None:
        self.count -= 1
        if key is not None:
            self._per_key[key.digest] -= 1
            if not self._per_key[key.digest]:
                del self._per_key[key.digest]


class WatchHub:
    def __init__(
        self,
        settings: Settings,
        shards: StreamShards,
        *,
        options: HubOptions | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.options = options or HubOptions()
        self.wall_ms = wall_ms
        self.sessions: dict[str, SseSession] = {}
        self.others: dict[Watcher, Callable[[sse.Event], None]] = {}  # open WebSockets, and how to end each
        self._settings = settings
        self._shards = shards
        self._clock = clock
        self._wheel = TimerWheel(_SLOT_MS)
        self._wake = trio.Event()
        self._creating = 0
        self.subscriptions = Subscriptions(shards, self.later, linger_ms=self.options.linger_ms)
        self.streams = StreamCaps(settings.max_sse_connections, settings.max_sse_connections_per_key)

    def __repr__(self) -> str:
        return f"<WatchHub {len(self.sessions)} sessions, {self.streams.count} streams>"

    # --- sessions ---------------------------------------------------------------------------------------

    def create(
        self,
        plan: WatchPlan,
        key: ApiKey | None,
        *,
        lenient: bool,
        done: Callable[[Created | TopicsError], None],
    ) -> None:
        maximum = self._settings.max_watch_sessions
        if maximum and len(self.sessions) + self._creating >= maximum:
            raise Throttled(limit="max_watch_sessions", max=maximum)
        self._creating += 1

        def surveyed(survey: Survey) -> None:
            self._creating -= 1
            try:
                done(self._make_session(plan, key, survey, lenient=lenient))
            except TopicsError as err:
                done(err)

        self.subscriptions.survey(plan.topics, plan.prefixes, strong=plan.view.strong, done=surveyed)

    def _make_session(self, plan: WatchPlan, key: ApiKey | None, survey: Survey, *, lenient: bool) -> Created:
        session = SseSession(
            self, f"wid_{urlsafe_b64encode(os.urandom(18)).decode()}", key, plan.heartbeat_ms
        )
        topics = begin(session, plan, survey, lenient=lenient)
        self.sessions[session.wid] = session
        session.closed_at_ms = self.now_ms()
        session.arm(self.options.session_ttl_ms)
        return session, topics

    def drop(self, session: SseSession) -> None:
        self.sessions.pop(session.wid, None)

    def open(self, session: SseSession, stream: Stream, last: LastEventId | None) -> None:
        """`stream` takes over the session; the caller has checked the caps."""
        if stream.gone:
            return  # a HEAD request, or a client that has left already
        if session.stream is not None:
            session.end(sse.ended("replaced", "another connection has opened this session's stream"))
        if last is not None:
            session.rewind(last)
        session.open(stream)

    def flush(self) -> None:
        """Requests made outside of a turn leave at once."""
        self._shards.flush()

    # --- what the links say -----------------------------------------------------------------------------

    def link_up(self, shard: int) -> None:
        self.subscriptions.link_up(shard)

    def link_down(self, shard: int, reason: str) -> None:
        feeds = self.subscriptions.link_down(shard)
        watchers = {reader.watcher: None for feed in feeds for reader in feed.readers if not reader.gone}
        for watcher in watchers:
            watcher.shard_down(shard, reason)

    def notice(self, notice: TopicNotice) -> None:
        self.subscriptions.notice(notice)

    # --- timers -----------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        return int(self._clock() * 1000)

    def later(self, wait_ms: int, callback: Callable[[], None]) -> None:
        due_ms = self.now_ms() + wait_ms
        next_ms = self._wheel.next_due_ms()
        self._wheel.add(due_ms, callback)
        if next_ms is None or due_ms < next_ms:
            self._wake.set()

    def tick(self) -> None:
        for callback in self._wheel.take_due(self.now_ms()):
            callback()

    async def run(self, turn: Callable[[], AbstractContextManager[None]]) -> None:
        """Serve the timers until cancelled; `turn` gathers what they send."""
        while True:
            due_ms = self._wheel.next_due_ms()
            self._wake = trio.Event()
            wait_s = float("inf") if due_ms is None else max(0, due_ms - self.now_ms()) / 1000
            with trio.move_on_after(wait_s):
                await self._wake.wait()
            with turn():
                self.tick()

    # --- the end ----------------------------------------------------------------------------------------

    def shut_down(self) -> None:
        """Say goodbye to everyone; clients come back to whoever serves next."""
        self._end_all(sse.shutting_down(), lambda key: True)
        self.sessions.clear()

    def keys_replaced(self, ring: KeyRing) -> None:
        """Streams and sessions of keys that are no longer valid, or no longer the same, end."""
        goodbye = sse.ended("key_revoked", "the key that opened this stream is no longer valid")
        self._end_all(goodbye, lambda key: key is not None and not ring.has(key))
        for session in list(self.sessions.values()):
            if session.key is not None and not ring.has(session.key):
                self.drop(session)

    def _end_all(self, goodbye: sse.Event, whose: Callable[[ApiKey | None], bool]) -> None:
        for session in list(self.sessions.values()):
            if session.stream is not None and whose(session.key):
                session.end(goodbye)
        for watcher, end in list(self.others.items()):
            if whose(watcher.key):
                end(goodbye)


def begin(watcher: Watcher, plan: WatchPlan, survey: Survey, *, lenient: bool) -> dict[str, WatchTopic]:
    """Put the watcher where it asked to begin, by what the shards have found; nothing if anything is refused."""
    if survey.error is not None:
        raise survey.error
    if not lenient:
        for name, entry in survey.named.items():
            if entry is None:
                raise TopicNotFound(topic=name)
    found = [(plan.topics[name], entry) for name, entry in survey.named.items() if entry is not None]
    if not found and not plan.prefixes:
        raise InvalidRequest("none of these topics exists")
    by_prefix: list[tuple[Start, tuple[str, int, int, int]]] = []
    taken = {entry[0] for _, entry in found} | watcher.readers.keys()
    for prefix, entries in survey.by_prefix.items():
        for entry in entries:
            if entry[0] not in taken:
                taken.add(entry[0])
                by_prefix.append((plan.prefixes[prefix], entry))
    if len(by_prefix) + len(watcher.readers) > WATCH_PREFIX_TOPICS_MAX:
        raise Throttled(limit="watch_prefix_topics", max=WATCH_PREFIX_TOPICS_MAX)
    topics: dict[str, WatchTopic] = {}
    for named, starts in ((True, found), (False, by_prefix)):
        for start, entry in starts:
            watcher.remove(entry[0])
            reader = watcher.add(entry, start, plan.view, named=named)
            topics[reader.name] = WatchTopic(reader.seq, entry[2], entry[3])
    for prefix in plan.prefixes:
        watcher.prefixes[prefix] = plan.view
    return topics
