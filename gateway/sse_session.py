"""A watch session: cursors that outlive their streams, and the one SSE stream that may be open at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gateway.core import sse
from gateway.core.sse import Event
from gateway.exchange import Frame, Stream
from gateway.watch_feed import Reader
from gateway.watcher import Step, Watcher
from shared.api_keys import ApiKey

if TYPE_CHECKING:
    from gateway.watch_hub import WatchHub

_LOOK_MS = 15_000  # how often a stream that is open is looked at, at the least: a stall must not go unnoticed


class SseSession(Watcher):
    def __init__(self, hub: WatchHub, wid: str, key: ApiKey | None, heartbeat_ms: int) -> None:
        super().__init__(hub.subscriptions, hub.later, key)
        self.wid = wid
        self.stream: Stream | None = None
        self.closed_at_ms = 0
        self._hub = hub
        self._heartbeat_ms = heartbeat_ms
        self._sent_at_ms = 0
        self._look_at_ms = 0

    def __repr__(self) -> str:
        state = "open" if self.is_open else "closed"
        return f"<SseSession {state} topics={len(self.readers)} due={len(self._due)} blocked={self.blocked}>"

    # --- its stream -------------------------------------------------------------------------------------

    def open(self, stream: Stream) -> None:
        self.stream = stream
        self._hub.streams.enter(self.key)
        self._sent_at_ms = self._hub.now_ms()
        for reader in self.readers.values():
            reader.begin()
        self._notes[""] = Step(sse.RETRY_FIRST)
        stream.on_gone(lambda: self._lost(stream))
        stream.on_writable(lambda: self._on_writable(stream))
        self.attach()
        self.pump()
        self.arm(min(self._heartbeat_ms, _LOOK_MS))

    def end(self, last: Event) -> None:
        """Close the stream with a last word; the session stays."""
        stream = self.stream
        if stream is not None:
            frame = Frame(b"".join(self._compose([*self._notes.values(), Step(last)])))
            self._closed()
            stream.end(frame)

    def _lost(self, stream: Stream) -> None:
        if self.stream is stream:
            self._closed()

    def _closed(self) -> None:
        self.stream = None
        self.detach()
        self._hub.streams.leave(self.key)
        self.closed_at_ms = self._hub.now_ms()
        self.arm(self._hub.options.session_ttl_ms)

    def _on_writable(self, stream: Stream) -> None:
        if self.stream is stream:
            self.writable()
            # A stream may become writable at the very end of a turn, when requests have already left.
            self._hub.flush()

    def _exhausted(self) -> None:
        stream = self.stream
        if stream is not None:
            frame = Frame(b"".join(self._compose([*self._notes.values()])))
            self._closed()
            stream.end(frame)
        self._hub.drop(self)

    # --- sending ----------------------------------------------------------------------------------------

    def _compose(self, steps: Sequence[Step]) -> list[bytes]:
        ids = self._ids
        parts: list[bytes] = []
        for event, reader, seq in steps:
            if reader is not None:
                if seq is None:
                    ids.tell(reader)
                else:
                    ids.move(reader, seq)
                parts.append(ids.line())
            parts.append(event.sse)
        return parts

    def _push(self, steps: Sequence[Step]) -> bool:
        stream = self.stream
        if stream is None:
            return False
        told = self._ids.told
        before = [(step.reader, self._ids.seq_of(step.reader.name)) for step in steps if step.reader]
        if self._taken(stream, Frame(b"".join(self._compose(steps)))):
            return True
        self._ids.told = told
        for reader, seq in reversed(before):
            if seq is None:
                self._ids.drop(reader.name)
            else:
                self._ids.move(reader, seq)
        return False

    def push_live(self, reader: Reader, event: Event, seq: int) -> bool:
        if self._notes or self.blocked or self.stream is None or not self._ids.only_one:
            return super().push_live(reader, event, seq)
        # By far the most common case: the very same bytes go to everyone who watches just this topic.
        if not self._taken(self.stream, event.frame_alone(reader.name, seq)):
            self._refused()
            return False
        self._ids.move(reader, seq)
        reader.seq = seq
        return True

    def _taken(self, stream: Stream, frame: Frame) -> bool:
        # A client that is found to be gone while we send has not got it.
        if not stream.push(frame) or stream.gone:
            return False
        self._sent_at_ms = self._hub.now_ms()
        return True

    # --- time -------------------------------------------------------------------------------------------

    def arm(self, wait_ms: int) -> None:
        self._look_at_ms = self._hub.now_ms() + wait_ms
        self._hub.later(wait_ms, self._look)

    def _look(self) -> None:
        now_ms = self._hub.now_ms()
        if now_ms < self._look_at_ms or self.wid not in self._hub.sessions:
            return  # a timer that a later one has replaced
        if self.stream is None:
            self._hub.drop(self)
        elif self.stream.stalled_ms() >= self._hub.options.stall_ms:
            self.end(sse.ended("too_slow", "the stream has taken nothing for too long; reconnect to go on"))
        else:
            self._beat(self.stream, now_ms)

    def _beat(self, stream: Stream, now_ms: int) -> None:
        idle_ms = now_ms - self._sent_at_ms
        if idle_ms >= self._heartbeat_ms and not self.blocked:
            if not self._taken(stream, Frame(sse.heartbeat(self._hub.wall_ms()))):
                self._refused()
            idle_ms = 0
        if self.stream is not None:
            self.arm(min(max(1, self._heartbeat_ms - idle_ms), _LOOK_MS))
