"""A hub over shards in memory, a clock that tests set, and a client that keeps what it has received."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from gateway.exchange import Frame as StreamFrame
from gateway.exchange import Stream, StreamHead
from gateway.service import Api
from gateway.watch_hub import HubOptions, WatchHub
from tests.support.log_shards import LogShards
from tests.support.recorded_exchange import RecordedExchange, RecordedStream
from tests.support.sse_client import Comment, Frame, SseParser
from tests.unit.gateway.api_harness import settings

Json = dict[str, Any]


@dataclass(slots=True)
class HarnessStream(RecordedStream):
    """May find its client gone while it sends, as a socket does: the push is taken, and everything is over."""

    breaks: bool = False

    def push(self, frame: StreamFrame) -> bool:
        if self.breaks and not (self.gone or self.blocked):
            self.lose()
            return True
        # Not super(): a slotted dataclass is made twice, and the name would mean the first one.
        return RecordedStream.push(self, frame)

    def lose(self) -> None:
        if not self.gone:
            self.gone = True
            callbacks, self.gone_callbacks = self.gone_callbacks, []
            for callback in callbacks:
                callback()


@dataclass(slots=True)
class HarnessExchange(RecordedExchange):
    def respond_stream(self, head: StreamHead) -> Stream:
        assert self.response is None and self.stream is None, "an exchange is answered once"
        self.stream = HarnessStream(head)
        return self.stream


class WatchHarness:
    def __init__(self, shards: int = 1, **given: str) -> None:
        self.shards = LogShards(shards)
        self.now_s = 1000.0
        self.api = Api(settings(**given), self.shards, version="test")
        self.hub = self.api.hub = WatchHub(
            self.api.settings,
            self.shards,
            options=HubOptions(linger_ms=5000),
            clock=lambda: self.now_s,
            wall_ms=lambda: int(self.now_s * 1000),
        )
        self.shards.listen(self.hub)

    def pass_time(self, seconds: float) -> None:
        """In small steps, so that timers that set timers go off when they would."""
        end = self.now_s + seconds
        while self.now_s < end:
            self.now_s = min(end, self.now_s + 0.25)
            self.hub.tick()

    def call(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
    ) -> RecordedExchange:
        path, _, query = path.partition("?")
        raw = b"" if body is None else json.dumps(body).encode()
        sent = ({"content-type": "application/json"} if raw else {}) | (headers or {})
        exchange = HarnessExchange(method, path, query, sent, raw)
        self.api.handle(exchange)
        return exchange

    def watch(self, headers: dict[str, str] | None = None, **body: object) -> Json:
        exchange = self.call("POST", "/v0/watch", body, headers)
        self.shards.settle()
        assert exchange.response is not None
        answer: Json = json.loads(exchange.response.body)
        assert exchange.response.status == 200, answer
        return answer

    def refused(self, status: int, path: str, body: object = None, **headers: str) -> Json:
        exchange = self.call("GET" if body is None else "POST", path, body, headers)
        self.shards.settle()
        assert exchange.response is not None and exchange.response.status == status, exchange
        error: Json = json.loads(exchange.response.body)["error"]
        return error

    def open(self, wid: str, last_id: str | None = None, **headers: str) -> Client:
        if last_id is not None:
            headers["last-event-id"] = last_id
        exchange = self.call("GET", f"/v0/watch/{wid}", headers=headers)
        return Client(stream_of(exchange))

    def client(self, **body: object) -> Client:
        """A session with its stream, caught up."""
        opened = self.open(self.watch(**body)["wid"])
        self.shards.settle()
        return opened


class Client:
    def __init__(self, stream: HarnessStream) -> None:
        self.stream = stream
        self.parser = SseParser()
        self.comments: list[str] = []

    def take(self) -> list[Frame]:
        """What has come since the last time."""
        sent, self.stream.frames = self.stream.frames, []
        found = list(self.parser.feed(b"".join(sent)))
        self.comments += [item.text for item in found if isinstance(item, Comment)]
        return [item for item in found if isinstance(item, Frame)]

    def events(self) -> list[tuple[str, str]]:
        """What came, briefly: `[("record", "a:1-3"), ("caught-up", "a:3")]`."""
        return [(frame.event, brief(frame)) for frame in self.take()]

    @property
    def last_id(self) -> str:
        return self.parser.last_id

    def block(self) -> None:
        self.stream.blocked = True

    def unblock(self) -> None:
        self.stream.blocked = False
        if self.stream.writable_callback is not None and not self.stream.gone:
            self.stream.writable_callback()

    def vanish(self) -> None:
        self.stream.lose()


def stream_of(exchange: RecordedExchange) -> HarnessStream:
    assert isinstance(exchange.stream, HarnessStream), exchange.response
    return exchange.stream


def brief(frame: Frame) -> str:
    data = frame.data
    match frame.event:
        case "record":
            return f"{data['topic']}:{','.join(str(record['$seq']) for record in data['records'])}"
        case "tombstone":
            return f"{data['topic']}:{data['gap_from']}-{data['gap_to']} {data['reason']}"
        case "caught-up":
            return f"{data['topic']}:{data['head_seq']}"
        case "topic-deleted":
            return f"{data['topic']}:{data['head_seq']} {data['reason']}"
    return str(data["code"])
