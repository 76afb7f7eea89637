"""Shards in memory, as far as watchers can tell: topics, subscriptions, pushes and reads, one message at a time.

Requests wait until `serve`, answers and notices until `arrive`, in the order of a link. So a test decides what
crosses what: a read that was answered in front of a push, a deletion behind it, a link that dies in between.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from gateway.io.shard_link import LinkListener, OnReply, Reply
from shared.api_types import decode_diff
from shared.errors import ShardUnavailable
from shared.routing import shard_for
from shared.wire import (
    Answer,
    Entry,
    Op,
    Options,
    Request,
    TopicAdvanced,
    TopicAppeared,
    TopicGone,
    TopicNotice,
    TopicSynced,
    encode_entries,
    encode_entry,
)


@dataclass
class Log:
    """One topic: record `seq` has this node, and `seq` as its data."""

    epoch: int
    nodes: list[str | None] = field(default_factory=list)
    floor: int = 1
    pushed: int = 0
    synced: int = 0
    deleted: set[int] = field(default_factory=set)

    @property
    def head(self) -> int:
        return len(self.nodes)

    @property
    def earliest(self) -> int:
        live = [seq for seq in range(self.floor, self.head + 1) if seq not in self.deleted]
        return live[0] if live else self.head + 1

    def record(self, seq: int) -> bytes:
        node = self.nodes[seq - 1]
        shown = "" if node is None else f',"$node":{json.dumps(node)}'
        return f'{{"$seq":{seq},"$ts":{self.epoch}{shown},"data":{seq}}}'.encode()


@dataclass
class LogLink:
    shard: int
    up: bool = True
    requests: deque[Request] = field(default_factory=deque)
    messages: deque[Callable[[], None]] = field(default_factory=deque)
    unanswered: dict[int, OnReply] = field(default_factory=dict)
    subscribed: set[str] = field(default_factory=set)
    strong: set[str] = field(default_factory=set)
    prefixes: set[str] = field(default_factory=set)
    topics: int = 0
    bytes: int = 0
    reason: str = ""
    in_flight: int = 0
    queued: int = 0
    throttled: int = 0


class LogShards:
    def __init__(self, shards: int = 1) -> None:
        self.links = [LogLink(shard) for shard in range(shards)]
        self.logs: dict[str, Log] = {}
        self.asked: list[Request] = []
        self.push_bytes = 1 << 16  # larger pushes are only announced
        self.listener: LinkListener | None = None
        self._epoch = 0
        self._next_id = 0

    # --- the pool's side --------------------------------------------------------------------------------

    def listen(self, listener: LinkListener) -> None:
        self.listener = listener

    def shard_of(self, topic: str) -> int:
        return shard_for(topic, len(self.links))

    def request(self, op: int, topic: str, body: bytes, options: Options | None, on_reply: OnReply) -> int:
        return self._request(self.shard_of(topic), op, topic, body, options, on_reply)

    def request_shard(
        self, shard: int, op: int, topic: str, options: Options | None, on_reply: OnReply
    ) -> int:
        return self._request(shard, op, topic, b"", options, on_reply)

    def _request(
        self, shard: int, op: int, topic: str, body: bytes, options: Options | None, on_reply: OnReply
    ) -> int:
        link = self.links[shard]
        self._next_id += 1
        request = Request(self._next_id, op, topic, body, options)
        self.asked.append(request)
        if not link.up:
            on_reply(ShardUnavailable(shard=shard, reason="test"), None)
            return 0
        link.unanswered[request.id] = on_reply
        link.requests.append(request)
        return request.id

    def cancel(self, topic: str, id_: int) -> None:
        raise AssertionError("watchers cancel nothing")

    def flush(self) -> None:
        return None

    def totals(self) -> tuple[int, int]:
        return len(self.logs), 0

    # --- topics -----------------------------------------------------------------------------------------

    def _link(self, name: str) -> LogLink:
        return self.links[self.shard_of(name)]

    def _followed(self, name: str) -> bool:
        link = self._link(name)
        return name in link.subscribed or any(name.startswith(prefix) for prefix in link.prefixes)

    def _notify(self, name: str, notice: TopicNotice) -> None:
        link = self._link(name)
        if link.up:
            link.messages.append(lambda: self.listener.notice(notice) if self.listener else None)

    def create(self, name: str) -> None:
        self._epoch += 1
        log = self.logs[name] = Log(self._epoch)
        if self._followed(name):
            self._notify(name, TopicAppeared(name, log.epoch, 0, 1))

    def write(self, name: str, count: int = 1, node: str | None = None, *, push: bool = True) -> None:
        if name not in self.logs:
            self.create(name)
        self.logs[name].nodes += [node] * count
        if push:
            self.push(name)

    def push(self, name: str) -> None:
        """End of the worker's turn."""
        log = self.logs[name]
        if log.pushed == log.head:
            return
        if self._followed(name):
            live = [
                log.record(seq)
                for seq in range(max(log.pushed + 1, log.floor), log.head + 1)
                if seq not in log.deleted
            ]
            records: bytes | None = b",".join(live)
            if log.floor > log.pushed + 1 or (records and len(records) > self.push_bytes):
                records = None
            self._notify(
                name,
                TopicAdvanced(name, log.epoch, log.pushed, log.head, log.head, len(live), records),
            )
        log.pushed = log.head

    def sync(self, name: str) -> None:
        log = self.logs[name]
        log.synced = log.pushed
        if name in self._link(name).strong:
            self._notify(name, TopicSynced(name, log.synced))

    def evict(self, name: str, floor: int) -> None:
        log = self.logs[name]
        log.floor = max(log.floor, min(floor, log.head + 1))

    def delete(self, name: str) -> None:
        log = self.logs.pop(name)
        if self._followed(name):
            self._notify(name, TopicGone(name, log.epoch, log.head))

    # --- the worker -------------------------------------------------------------------------------------

    def serve(self, shard: int = 0, count: int = 1 << 30) -> None:
        """Handle waiting requests; their answers are then on the way."""
        link = self.links[shard]
        while link.requests and count:
            count -= 1
            request = link.requests.popleft()
            self._answer(link, request, self._handle(link, request))
            if request.op == Op.SUBSCRIBE and request.topic in link.strong and request.topic in self.logs:
                self._notify(request.topic, TopicSynced(request.topic, self.logs[request.topic].synced))

    def _answer(self, link: LogLink, request: Request, answer: tuple[int, bytes]) -> None:
        reply = Answer(request.id, *answer)

        def arrive() -> None:
            link.unanswered.pop(request.id)(reply, None)

        link.messages.append(arrive)

    def _handle(self, link: LogLink, request: Request) -> tuple[int, bytes]:
        name = request.topic
        match request.op:
            case Op.SUBSCRIBE:
                link.subscribed.add(name)
                if request.options and request.options.get("strong"):
                    link.strong.add(name)
                return 200, encode_entry(self._entry(name) if name in self.logs else None)
            case Op.UNSUBSCRIBE:
                link.subscribed.discard(name)
                link.strong.discard(name)
            case Op.SUBSCRIBE_PREFIX:
                link.prefixes.add(name)
                held = [
                    each
                    for each in sorted(self.logs)
                    if each.startswith(name) and self.shard_of(each) == link.shard
                ]
                return 200, encode_entries([self._entry(each) for each in held])
            case Op.UNSUBSCRIBE_PREFIX:
                link.prefixes.discard(name)
            case Op.READ:
                return self._read(request)
        return 200, b""

    def _entry(self, name: str) -> Entry:
        log = self.logs[name]
        return name, log.epoch, log.head, log.earliest

    def _read(self, request: Request) -> tuple[int, bytes]:
        log = self.logs.get(request.topic)
        if log is None:
            return 404, b'{"error":{"code":"topic_not_found","message":"gone"}}'
        wanted = decode_diff(request.body)
        options = request.options or {}
        assert options["inline"] is True and options["touch"] is False
        hidden = {wanted.node} if isinstance(wanted.node, str) else set(wanted.node or ())
        stop = log.head
        if isinstance(upto := options.get("upto"), int):
            stop = min(stop, max(upto, wanted.from_seq))
        tombstone = None
        start = max(wanted.from_seq + 1, log.floor)
        if wanted.from_seq + 1 < log.floor:
            tombstone = {"gap_from": wanted.from_seq + 1, "gap_to": log.floor - 1, "reason": "cap"}
        if wanted.from_seq > log.head:
            tombstone = {"gap_from": 1, "gap_to": log.head, "reason": "recreated"}
            start = log.earliest
        next_from, shown = stop, []
        for seq in range(start, stop + 1):
            if seq in log.deleted or log.nodes[seq - 1] in hidden:
                continue
            if len(shown) == wanted.limit:
                next_from = seq - 1
                break
            shown.append(log.record(seq))
        body = (
            b'{"topic":"%b","records":[%b],"next_from_seq":%d,"head_seq":%d,"earliest_seq":%d,"tombstone":%b'
            % (
                request.topic.encode(),
                b",".join(shown),
                next_from,
                log.head,
                log.earliest,
                json.dumps(tombstone).encode(),
            )
        )
        return 200, body

    # --- the link ---------------------------------------------------------------------------------------

    def arrive(self, shard: int = 0, count: int = 1 << 30) -> None:
        link = self.links[shard]
        while link.messages and count:
            count -= 1
            link.messages.popleft()()

    def settle(self) -> None:
        """Until nothing is under way any more."""
        while any(link.requests or link.messages for link in self.links):
            for link in self.links:
                self.serve(link.shard)
                self.arrive(link.shard)

    def link_down(self, shard: int = 0) -> None:
        link = self.links[shard]
        link.up = False
        link.requests.clear()
        link.messages.clear()
        for kind in (link.subscribed, link.strong, link.prefixes):
            kind.clear()
        waiting, link.unanswered = link.unanswered, {}
        reply: Reply = ShardUnavailable(shard=shard, reason="test")
        for on_reply in waiting.values():
            on_reply(reply, None)
        assert self.listener is not None
        self.listener.link_down(shard, "test")

    def link_up(self, shard: int = 0) -> None:
        self.links[shard].up = True
        assert self.listener is not None
        self.listener.link_up(shard)
