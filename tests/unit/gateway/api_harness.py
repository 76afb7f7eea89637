"""The API without sockets: shards that answer from a script, and one call per line."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.exchange import Response
from gateway.io.shard_link import LeasedFiles, LinkListener, OnReply, Reply
from gateway.service import Api
from shared.routing import shard_for
from shared.settings import Settings, load_settings
from shared.wire import (
    Answer,
    Op,
    Options,
    Request,
    encode_edges,
    encode_list_body,
    encode_names,
    encode_numbers,
)
from tests.support.recorded_exchange import RecordedExchange

ROUTER_ENTRY = json.dumps(
    {
        "router": "a-1",
        "source": "a-1",
        "dest": "a-1-copy",
        "preserve_node": True,
        "preserve_tag": True,
        "create_dest": True,
        "filter": None,
        "allow_cycle": False,
        "guarantee": "at_least_once",
        "forwarded_total": 3,
        "lag": 0,
        "cursor": 3,
        "state": "caught_up",
        "last_error": None,
    }
).encode()[:-1]


@dataclass
class ScriptedLink:
    shard: int = 0
    topics: int = 0
    bytes: int = 0
    reason: str = ""
    up: bool = True
    in_flight: int = 0
    queued: int = 0
    throttled: int = 0


def plain(request: Request) -> Reply | None:
    if request.op in (Op.LIST, Op.ROUTER_LIST):
        return Answer(1, 200, encode_list_body([], False))
    if request.op == Op.DELETE_TOPIC:
        body = b'{"topic":"%b","deleted":true,"routers_removed":[]' % request.topic.encode()
        return Answer(1, 200, body)
    if request.op == Op.ROUTERS_FENCE:
        return Answer(1, 200, encode_edges([]))
    if request.op == Op.ROUTER_DEST:
        return Answer(1, 200, encode_numbers(1))
    if request.op == Op.ROUTER_DELETE:
        return Answer(1, 200, encode_names([]))
    if request.op == Op.ROUTER_GET:
        return Answer(1, 200, ROUTER_ENTRY)
    if request.op == Op.CLAIM and b"wait_ms" in request.body:
        return None
    return Answer(1, 200, b'{"topic":"%b"' % request.topic.encode())


@dataclass
class ScriptedShards:
    """Answers at once, or leaves a request open if the script returns None."""

    answer: Callable[[Request], Reply | None] = plain
    links: list[ScriptedLink] = field(default_factory=lambda: [ScriptedLink()])
    asked: list[Request] = field(default_factory=list)
    waiting: dict[int, OnReply] = field(default_factory=dict)
    cancelled: list[int] = field(default_factory=list)
    leased: LeasedFiles | None = None
    listener: LinkListener | None = None
    flushes: int = 0

    def request(self, op: int, topic: str, body: bytes, options: Options | None, on_reply: OnReply) -> int:
        request = Request(len(self.asked) + 1, op, topic, body, options)
        self.asked.append(request)
        reply = self.answer(request)
        if reply is None:
            self.waiting[request.id] = on_reply
        else:
            on_reply(reply, self.leased)
        return request.id

    def cancel(self, topic: str, id_: int) -> None:
        self.cancelled.append(id_)

    def request_all(
        self, op: int, options: Options | None, on_replies: Callable[[list[Reply]], None]
    ) -> None:
        requests = [Request(link.shard, op, "", b"", options) for link in self.links]
        self.asked += requests
        replies = [self.answer(request) for request in requests]
        on_replies([reply for reply in replies if reply is not None])

    def listen(self, listener: LinkListener) -> None:
        self.listener = listener

    def shard_of(self, topic: str) -> int:
        return shard_for(topic, len(self.links))

    def request_shard(
        self, shard: int, op: int, topic: str, options: Options | None, on_reply: OnReply
    ) -> int:
        return self.request(op, topic, b"", options, on_reply)

    def flush(self) -> None:
        self.flushes += 1

    def totals(self) -> tuple[int, int]:
        return sum(link.topics for link in self.links), sum(link.bytes for link in self.links)


def settings(**given: str) -> Settings:
    return load_settings({}, {f"TOPICS_{name.upper()}": value for name, value in given.items()}, None, cpus=1)


class ApiHarness:
    def __init__(self, shards: ScriptedShards | None = None, **given: str) -> None:
        self.shards = shards or ScriptedShards()
        self.api = Api(settings(**given), self.shards, version="1.2.3")

    def start(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        *,
        extents_allowed: bool = False,
    ) -> RecordedExchange:
        path, _, query = path.partition("?")
        all_headers = {"content-type": "application/json"} if body else {}
        exchange = RecordedExchange(
            method, path, query, all_headers | dict(headers or {}), body, extents_allowed=extents_allowed
        )
        self.api.handle(exchange)
        return exchange

    def call(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        *,
        extents_allowed: bool = False,
    ) -> Response:
        exchange = self.start(method, path, body, headers, extents_allowed=extents_allowed)
        if exchange.stream is not None:
            return Response(exchange.stream.head.status)
        assert exchange.response is not None, "not answered yet"
        return exchange.response


def document(response: Response) -> dict[str, Any]:
    """The body as JSON, with the error contract checked on the way."""
    parsed: dict[str, Any] = json.loads(response.body)
    if response.status >= 400:
        assert set(parsed) == {"error"} and {"code", "message"} <= set(parsed["error"])
    else:
        assert "error" not in parsed and parsed["performance"]["server_total_ms"] >= 0
    return parsed


def error_code(response: Response) -> str:
    code: str = document(response)["error"]["code"]
    return code


def header(response: Response, name: str) -> str | None:
    return dict(response.headers).get(name)
