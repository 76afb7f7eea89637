"""Changes of routers, one at a time: look at all routers of all shards, judge, then define.

A change raises the *fence* of every shard and gets their routers in the same answers; the definition is sent under
that fence. A shard takes it only if nobody has raised its fence since, so also changes that this process knows
nothing about (of a gateway that was killed, say) cannot slip in between. While any shard is down nothing can be said
about cycles, and the answer is 503.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from gateway.core.auth import check_names
from gateway.core.router_graph import check_edge
from shared.errors import Internal, ShardUnavailable, Throttled, TopicsError
from shared.limits import FENCE_TRIES, RETRY_AFTER_DEFAULT_MS, ROUTER_CHANGES_WAITING_MAX
from shared.router_types import RouterIn
from shared.wire import Answer, Edge, LinkError, Op, decode_edges, decode_names, decode_numbers

if TYPE_CHECKING:
    from gateway.io.shard_link import LeasedFiles, Reply
    from gateway.service import Call, Shards

_FENCED = 409
_NS_PER_FENCE = (
    1000  # fences are microseconds since the epoch: they fit where epochs do, and rise over restarts
)

Done = Callable[[], None]
Change = Callable[[Done], None]


class RouterChanges:
    def __init__(self, shards: Shards, *, max_routers: int) -> None:
        self.shards = shards
        self.max_routers = max_routers
        self._waiting: deque[Change] = deque()
        self._busy = False
        self._fence = 0

    def submit(self, change: Change) -> None:
        """Run it when those before it are done; it calls what it is given exactly once."""
        if len(self._waiting) >= ROUTER_CHANGES_WAITING_MAX:
            raise Throttled(retry_after_ms=RETRY_AFTER_DEFAULT_MS)
        self._waiting.append(change)
        if not self._busy:
            self._next()

    def _next(self) -> None:
        # In a loop: changes that are answered at once must not pile up on the stack.
        while self._waiting and not self._busy:
            self._busy = True
            self._waiting.popleft()(self._done)

    def _done(self) -> None:
        self._busy = False
        if self._waiting:
            self._next()

    def next_fence(self, above: int = 0) -> int:
        self._fence = max(time.time_ns() // _NS_PER_FENCE, self._fence + 1, above + 1)
        return self._fence


class PutRouter:
    """One `PUT /v0/routers/:r`."""

    def __init__(self, call: Call, changes: RouterChanges, body: bytes, wanted: RouterIn) -> None:
        self._call = call
        self._changes = changes
        self._shards = changes.shards
        self._body = body
        self._wanted = wanted
        self._fence = 0
        self._tries = 0
        self._done: Done = lambda: None

    def run(self, done: Done) -> None:
        self._done = done
        self._raise_fences(0)

    def _guarded(self, action: Callable[[], None]) -> None:
        """Whatever goes wrong is this change's answer, and the next change comes."""
        try:
            action()
        except TopicsError as err:
            failure = err
            self._finish(lambda: self._call.fail(failure))
        except Exception:
            self._finish(self._call.crash)

    def _finish(self, answer: Callable[[], None]) -> None:
        try:
            answer()
        finally:
            self._done()

    # --- step by step -----------------------------------------------------------------------------------

    def _raise_fences(self, above: int) -> None:
        self._tries += 1
        if self._tries > FENCE_TRIES:
            raise ShardUnavailable(shard=0, reason="routers are being changed by somebody else")
        self._fence = self._changes.next_fence(above)
        self._shards.request_all(
            Op.ROUTERS_FENCE,
            {"fence": self._fence},
            lambda replies: self._guarded(lambda: self._judge(replies)),
        )
        self._shards.flush()

    def _judge(self, replies: list[Reply]) -> None:
        edges: list[Edge] = []
        higher = 0
        for reply in replies:
            answer = _answer_of(reply)
            if answer.status == _FENCED:
                higher = max(higher, decode_numbers(answer.body, 1)[0])
            else:
                edges += decode_edges(answer.body)
        if higher:
            self._raise_fences(higher)
            return
        name, wanted = self._call.name, self._wanted
        old = next((edge for edge in edges if edge.router == name), None)
        if old is not None:
            # Changing an arrow is deleting one, too: of topics that this key may touch.
            check_names(self._call.key, (old.source, old.dest))
        elif 0 < self._changes.max_routers <= len(edges):
            raise Throttled(limit="max_routers", max=self._changes.max_routers)
        check_edge(Edge(name, wanted.source, wanted.dest, wanted.allow_cycle), edges)
        moves = old is not None and old.source != wanted.source
        self._ask(Op.STATE, wanted.source, {"touch": False}, self._remove_old if moves else self._find_dest)

    def _remove_old(self, _: Answer) -> None:
        """It gets another source, and lives on another topic from now on."""

        def removed(replies: list[Reply]) -> None:
            for reply in replies:
                decode_names(_answer_of(reply).body)
            self._find_dest(_)

        self._shards.request_all(
            Op.ROUTER_DELETE,
            {"router": self._call.name},
            lambda replies: self._guarded(lambda: removed(replies)),
        )
        self._shards.flush()

    def _find_dest(self, _: Answer) -> None:
        options = {
            "create": self._wanted.create_dest,
            **(self._call.api.caps.nocreate(self._shards.totals()[0]) or {}),
        }
        self._ask(Op.ROUTER_DEST, self._wanted.dest, options, self._define)

    def _define(self, answer: Answer) -> None:
        (dest_epoch,) = decode_numbers(answer.body, 1)
        options = {"router": self._call.name, "fence": self._fence, "dest_epoch": dest_epoch}

        def defined(reply: Reply, leased: LeasedFiles | None) -> None:
            self._finish(lambda: self._call.reply(reply, leased))

        self._shards.request(Op.ROUTER_PUT, self._wanted.source, self._body, options, defined)
        self._shards.flush()

    def _ask(self, op: int, topic: str, options: dict[str, object], go_on: Callable[[Answer], None]) -> None:
        """Go on with a good answer; any other one is the client's."""

        def answered(reply: Reply, leased: LeasedFiles | None) -> None:
            if isinstance(reply, Answer) and reply.status < 300:
                self._guarded(lambda: go_on(reply))
            else:
                self._finish(lambda: self._call.reply(reply, leased))

        self._shards.request(op, topic, b"", options, answered)
        self._shards.flush()


def _answer_of(reply: Reply) -> Answer:
    """What a shard says, unless it is down: one missing shard may hold the arrow that closes a cycle."""
    if not isinstance(reply, Answer):
        raise reply
    if reply.status not in (200, _FENCED):
        raise Internal(f"a shard answered a change of routers with {reply.status}")
    return reply


def removed_names(replies: list[Reply]) -> tuple[list[str], TopicsError | None]:
    """Routers that are gone by the word of these shards, and why others said nothing."""
    names: list[str] = []
    error: TopicsError | None = None
    for reply in replies:
        if isinstance(reply, Answer) and reply.status == 200:
            try:
                names += decode_names(reply.body)
            except LinkError as err:
                error = err
        elif isinstance(reply, Answer):
            error = ShardUnavailable(shard=0, reason=f"it answered {reply.status}")
        else:
            error = reply
    return names, error
