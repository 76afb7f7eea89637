"""Following many topics over server-sent events, through broken connections, restarts and expired sessions.

The client knows what has arrived; the server only what it has sent. So every reconnection shows the last id that was
handed on (`Last-Event-ID`), and when the session itself is gone a new one is made from the positions kept here.
"""

from __future__ import annotations

import time
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec
from msgspec import Raw

from topicsd.client.api import Server
from topicsd.client.errors import Refused, Unreachable
from topicsd.client.output import note
from topicsd.client.patience import FIRST_DELAY_S, LAST_DELAY_S
from topicsd.client.sse import SseEvent, SseParser

HEARTBEAT_MS = 10_000
SILENCE_S = 3 * HEARTBEAT_MS / 1000
"""Without even a heartbeat for this long, nobody is at the other end."""


class Place(msgspec.Struct):
    from_seq: int
    head_seq: int
    earliest_seq: int


class Created(msgspec.Struct):
    stream_url: str
    topics: dict[str, Place]


class RecordFrame(msgspec.Struct):
    topic: str
    records: list[Raw]
    to_seq: int


class TopicFrame(msgspec.Struct):
    """The part of the other frames that positions depend on."""

    topic: str
    gap_to: int | None = None
    head_seq: int | None = None


class ErrorFrame(msgspec.Struct):
    code: int | str
    message: str = ""


class WatchEvent(NamedTuple):
    name: str
    data: bytes


class Watch:
    """`topics` and `prefixes` map names to where they begin: a seq, or None for what comes next."""

    def __init__(
        self,
        server: Server,
        topics: Mapping[str, int | None],
        prefixes: Mapping[str, int | None],
        options: Mapping[str, object],
        *,
        retry_for_s: float,
    ) -> None:
        self._server = server
        self._topics = dict(topics)
        self._prefixes = dict(prefixes)
        self._options = options
        self._retry_for_s = retry_for_s
        self._stream_url: str | None = None
        self._last_id: str | None = None
        self._made_before = False
        self._gone: set[str] = set()  # named topics that were deleted; they may come back
        self.positions: dict[str, int] = {}

    @property
    def _over(self) -> bool:
        return not self._prefixes and self._gone >= set(self._topics)

    def events(self) -> Iterator[WatchEvent]:
        """Until every topic is gone, or the server has been away for too long."""
        delay_s = FIRST_DELAY_S
        away_since: float | None = None
        while not self._over:
            try:
                if self._stream_url is None:
                    self._make_session()
                    continue
                for event in self._stream():
                    delay_s, away_since = FIRST_DELAY_S, None
                    yield event
                problem: Refused | Unreachable = Unreachable("the stream has ended")
            except Refused as err:
                if err.status == 404 and self._stream_url is not None:
                    # The session has expired, or the server was restarted.
                    self._stream_url = None
                    continue
                if not err.passes or not self._made_before:
                    raise
                problem = err
            except Unreachable as err:
                if not self._made_before:
                    raise
                problem = err
            if self._over:
                return
            now = time.monotonic()
            if away_since is None:
                away_since = now
                note(f"{problem}; reconnecting")
            if now - away_since >= self._retry_for_s:
                raise problem
            time.sleep(delay_s)
            delay_s = min(2 * delay_s, LAST_DELAY_S)

    # --- sessions ---------------------------------------------------------------------------------------

    def _make_session(self) -> None:
        """The first one as asked for; later ones from where we stand."""
        again = self._made_before
        body = {
            **self._options,
            "heartbeat_ms": HEARTBEAT_MS,
            "topics": {name: _start(self.positions.get(name, at)) for name, at in self._topics.items()},
            # Prefixes begin at the ends of their topics, and are taken back to where we stood by an id.
            "prefixes": {prefix: _start(None if again else at) for prefix, at in self._prefixes.items()},
        }
        # A topic that was deleted while we were away must not keep us from the others.
        query = {"lenient": "true"} if again else None
        try:
            created = self._server.ask(Created, "POST", "/v0/watch", body, query=query, again=True)
        except Refused as err:
            if not (again and err.status == 400):
                raise
            created = Created(
                "", {}
            )  # what we have asked for before was fine: none of the topics exists any more
        self._stream_url = created.stream_url
        self._made_before = True
        if again:
            self._last_id = self._caught_up_with(created.topics)
        else:
            self.positions = {name: place.from_seq for name, place in created.topics.items()}

    def _caught_up_with(self, topics: Mapping[str, Place]) -> str | None:
        """What happened while we were away; returns the id that stands for our positions in the new session."""
        for name in sorted(set(self.positions) - set(topics)):
            note(f"{name} was deleted while the connection was down")
            self._forget(name)
        behind: dict[str, int] = {}
        for name, place in topics.items():
            if name not in self._topics and self.positions.get(name, 0) > place.head_seq:
                note(f"{name} was deleted and made anew while the connection was down; it starts over")
                self.positions[name] = 0
            # A topic we have not met before was created while we were away, and is read from its first record.
            position = self.positions.setdefault(name, 0)
            if position < place.from_seq:
                behind[name] = position
        return encode_id(behind) if behind else None

    def _stream(self) -> Iterator[WatchEvent]:
        assert self._stream_url is not None
        headers = {"Last-Event-ID": self._last_id} if self._last_id else {}
        parser = SseParser()
        for piece in self._server.stream(self._stream_url, headers=headers, silence_s=SILENCE_S):
            for event in parser.feed(piece):
                # Handed on before its id counts: an interruption in between repeats it and does not lose it.
                yield WatchEvent(event.name, event.data)
                self._took(event)

    def _took(self, event: SseEvent) -> None:
        if event.id is not None:
            self._last_id = event.id
        if event.name == "record":
            frame = self._server.decode(RecordFrame, event.data)
            self.positions[frame.topic] = frame.to_seq
            self._gone.discard(frame.topic)
        elif event.name == "tombstone":
            gap = self._server.decode(TopicFrame, event.data)
            if gap.gap_to is not None:
                self.positions[gap.topic] = gap.gap_to
        elif event.name == "topic-deleted":
            self._forget(self._server.decode(TopicFrame, event.data).topic)
        elif event.name == "error":
            error = self._server.decode(ErrorFrame, event.data)
            note(f"the server says: {error.message or error.code}")

    def _forget(self, name: str) -> None:
        self.positions.pop(name, None)
        if name in self._topics:
            self._gone.add(name)
            self._topics[name] = 0  # if it comes back, then from its first record


def _start(at: int | None) -> dict[str, object]:
    return {"tail": True} if at is None else {"from_seq": at}


def encode_id(positions: Mapping[str, int]) -> str:
    """As the server writes them (docs/watch.md, "Resuming")."""
    return urlsafe_b64encode(msgspec.json.encode(positions)).decode().rstrip("=")
