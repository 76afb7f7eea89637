"""All shards as one: finds the link of a topic, sends a turn's requests, and adds up the totals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

from gateway.io.link_options import LinkOptions
from gateway.io.poller import Poller
from gateway.io.shard_link import LeasedFiles, LinkListener, OnReply, Reply, ShardLink
from shared.io.child_channel import socket_path
from shared.routing import shard_for
from shared.wire import Options

ROUTES_REMEMBERED: Final = 2048  # topics whose shard is not hashed again


class ShardPool:
    def __init__(
        self,
        *,
        shards: int,
        socket_dir: str,
        version: str,
        options: LinkOptions | None = None,
    ) -> None:
        self.links = tuple(
            ShardLink(
                shard=shard,
                shards=shards,
                path=socket_path(socket_dir, shard),
                version=version,
                options=options,
            )
            for shard in range(shards)
        )
        self._to_flush: set[ShardLink] = set()
        self._totals: tuple[int, int] | None = None
        self._recent: dict[str, ShardLink] = {}  # by topic

    def __repr__(self) -> str:
        return f"ShardPool({', '.join(map(repr, self.links))})"

    def listen(self, listener: LinkListener) -> None:
        """Tell somebody about the links' lives, and what the shards push."""
        for link in self.links:
            link.listener = listener

    def shard_of(self, topic: str) -> int:
        return self._link_of(topic).shard

    def _link_of(self, topic: str) -> ShardLink:
        link = self._recent.get(topic)
        if link is None:
            link = self.links[shard_for(topic, len(self.links))]
            if len(self._recent) >= ROUTES_REMEMBERED:
                self._recent.clear()
            self._recent[topic] = link
        return link

    async def run(self, poller: Poller) -> None:
        """Keep all links up until cancelled; their sockets are served by `poller`."""
        async with trio.open_nursery() as nursery:
            for link in self.links:
                nursery.start_soon(link.run, poller)

    def connect_now(self, shard: int) -> None:
        self.links[shard].connect_now()

    def request(self, op: int, topic: str, body: bytes, options: Options | None, on_reply: OnReply) -> int:
        """Ask the shard of `topic`, with the next flush. Returns an id for `cancel`."""
        link = self._link_of(topic)
        self._to_flush.add(link)
        return link.request(op, topic, body, options, on_reply)

    def request_shard(
        self, shard: int, op: int, topic: str, options: Options | None, on_reply: OnReply
    ) -> int:
        """Ask one shard, about a name that is not (only) one of its topics."""
        link = self.links[shard]
        self._to_flush.add(link)
        return link.request(op, topic, b"", options, on_reply)

    def cancel(self, topic: str, id_: int) -> None:
        link = self._link_of(topic)
        self._to_flush.add(link)
        link.cancel(id_)

    def request_all(
        self, op: int, options: Options | None, on_replies: Callable[[list[Reply]], None]
    ) -> None:
        """Ask every shard; `on_replies` gets all replies in the order of the shards."""
        replies: list[Reply | None] = [None] * len(self.links)
        missing = len(self.links)

        def collect(shard: int) -> OnReply:
            def on_reply(reply: Reply, leased: LeasedFiles | None) -> None:
                nonlocal missing
                if leased is not None:
                    leased.release()
                replies[shard] = reply
                missing -= 1
                if missing == 0:
                    on_replies([reply for reply in replies if reply is not None])

            return on_reply

        for link in self.links:
            self._to_flush.add(link)
            link.request(op, "", b"", options, collect(link.shard))

    def end_waits(self) -> None:
        for link in self.links:
            link.end_waits()

    def flush(self) -> None:
        """End of a turn: one frame to each shard that was asked something."""
        self._totals = None
        while self._to_flush:
            self._to_flush.pop().flush()

    def totals(self) -> tuple[int, int]:
        """Topics and bytes of all shards as last reported; added up once per turn."""
        if self._totals is None:
            self._totals = (sum(link.topics for link in self.links), sum(link.bytes for link in self.links))
        return self._totals
