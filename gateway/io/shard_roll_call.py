"""Asks every shard a question now and then, the way every request goes, and tells the supervisor who has answered.

A worker's own heartbeat shows that its loop turns. This shows that what is asked here is answered there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from gateway.io.shard_link import LeasedFiles, OnReply, Reply
from shared.wire import Answer, Op, Options


class _Link(Protocol):
    shard: int

    @property
    def up(self) -> bool: ...


class _Shards(Protocol):
    @property
    def links(self) -> Sequence[_Link]: ...
    def request_shard(
        self, shard: int, op: int, topic: str, options: Options | None, on_reply: OnReply
    ) -> int: ...


class ShardRollCall:
    def __init__(self, shards: _Shards, turn: Callable[[], AbstractContextManager[None]]) -> None:
        self._shards = shards
        self._turn = turn
        self._asked: set[int] = set()
        self._answered: set[int] = set()

    def facts(self) -> dict[str, object]:
        """For the heartbeat: who has answered since the last one. Asks anew."""
        answered, self._answered = sorted(self._answered), set()
        with self._turn():
            for link in self._shards.links:
                # One question at a time: to a shard that hangs they must not pile up.
                if link.up and link.shard not in self._asked:
                    self._asked.add(link.shard)
                    self._shards.request_shard(link.shard, Op.PING, "", None, self._on_reply(link.shard))
        return {"answering": answered}

    def _on_reply(self, shard: int) -> OnReply:
        def taken(reply: Reply, leased: LeasedFiles | None) -> None:
            self._asked.discard(shard)
            if isinstance(reply, Answer):
                self._answered.add(shard)

        return taken
