"""What clients do with routers: define, look at, list and delete them. All of it on the shard of the source.

Whether a router may be (cycles, one source per destination, names) can only be said by someone who knows all shards.
The gateway asks every shard for its routers under a *fence*, a number that rises with every change, and then sends
the definition under the same fence. A shard that has promised its list to a later fence refuses what comes under an
earlier one, so of two changes at once the one that did not see the other fails and begins anew.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from shard_worker.core.router import Router
from shard_worker.core.topic import Topic
from shard_worker.pending import PendingControl
from shard_worker.request import Request
from shared.errors import InvalidRequest, RouterNotFound, ShardUnavailable, TopicNotFound
from shared.limits import PAGE_SIZE_MAX, RETRY_AFTER_DEFAULT_MS
from shared.router_frames import RouterDefined, RouterDropped
from shared.router_types import decode_router, rules_of
from shared.wire import Edge, Op, encode_edges, encode_list_body, encode_names, encode_numbers

if TYPE_CHECKING:
    from shard_worker.engine import Engine

STATUS_FENCED = 409

_json = msgspec.json.encode


class RouterOps:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._fence = 0
        self._planned: dict[str, tuple[Topic, RouterDefined]] = {}  # definitions that wait for their sync

    def handlers(self) -> dict[int, Callable[[Request], None]]:
        return {
            Op.ROUTERS_FENCE: self._raise_fence,
            Op.ROUTER_PUT: self._put,
            Op.ROUTER_GET: self._get,
            Op.ROUTER_LIST: self._list,
            Op.ROUTER_DELETE: self._delete,
        }

    def _routers(self) -> list[tuple[Topic, Router]]:
        """All of this shard, in name order."""
        found = []
        for name, topic in sorted(self._engine.state.routers.items()):
            if topic.routers is not None and name in topic.routers:
                found.append((topic, topic.routers[name]))
        return found

    def find(self, name: str) -> tuple[Topic, Router] | None:
        topic = self._engine.state.routers.get(name)
        router = topic.routers.get(name) if topic is not None and topic.routers is not None else None
        return None if topic is None or router is None else (topic, router)

    # --- changing ---------------------------------------------------------------------------------------

    def _raise_fence(self, request: Request) -> None:
        fence = request.option("fence")
        if not isinstance(fence, int):
            raise InvalidRequest("malformed ROUTERS_FENCE")
        # Routers from before the last start: their epochs were fences, and must not be given out again.
        known = max((router.epoch for _, router in self._routers()), default=0) if not self._fence else 0
        self._fence = max(self._fence, known)
        if fence <= self._fence:
            request.sink.answer(request.id, STATUS_FENCED, encode_numbers(self._fence))
            return
        self._fence = fence
        edges = {
            router.name: Edge(router.name, topic.name, router.dest, router.rules.allow_cycle)
            for topic, router in self._routers()
        }
        for name, (topic, fact) in self._planned.items():
            edges[name] = Edge(name, topic.name, fact.dest, fact.rules.allow_cycle)
        request.sink.answer(request.id, 200, encode_edges(list(edges.values())))

    def _put(self, request: Request) -> None:
        name, fence, dest_epoch = (
            request.option("router"),
            request.option("fence"),
            request.option("dest_epoch"),
        )
        if not isinstance(name, str) or not isinstance(fence, int) or not isinstance(dest_epoch, int):
            raise InvalidRequest("malformed ROUTER_PUT")
        engine = self._engine
        wanted = decode_router(request.body)
        topic = engine.state.catalog.planned.get(request.topic)
        if topic is None:
            raise TopicNotFound(topic=request.topic)
        held = self.find(name)
        if fence != self._fence or name in self._planned or (held is not None and held[0] is not topic):
            raise ShardUnavailable(
                shard=engine.shard,
                reason="routers are being changed by somebody else",
                retry_after_ms=RETRY_AFTER_DEFAULT_MS,
            )
        engine.commits.check_writable()
        old = None if held is None else held[1]
        rules = rules_of(wanted)
        fact = RouterDefined(name, fence, wanted.dest, dest_epoch, topic.staged_head, rules)
        if old is not None and (old.dest, old.dest_epoch) == (wanted.dest, dest_epoch):
            # The same arrow: it stays where it stands.
            fact = RouterDefined(name, old.epoch, old.dest, old.dest_epoch, old.start, rules)
            if old.rules == rules:
                engine.answer_when_synced(
                    request, topic, lambda _: (200, put_json(topic, fact, created=False))
                )
                return
        self._planned[name] = (topic, fact)

        def done(_: int) -> tuple[int, bytes]:
            self._planned.pop(name, None)
            if old is not None and old.epoch != fact.epoch:
                self._forget_at_dest(old)
            return (201 if old is None else 200), put_json(topic, fact, created=old is None)

        def undo() -> None:
            self._planned.pop(name, None)

        pending = PendingControl(fact, topic, engine.now_ms(), request, done, undo)
        engine.commits.stage_control(pending, gated=True)

    def _delete(self, request: Request) -> None:
        """By name, or all that lead to one topic. Answers with the names of those that are gone."""
        engine = self._engine
        name, dest = request.option("router"), request.option("dest")
        leaving = [
            (topic, router)
            for topic, router in self._routers()
            if router.name == name or (dest is not None and router.dest == dest)
        ]
        if not leaving:
            request.sink.answer(request.id, 200, encode_names([]))
            return
        engine.commits.check_writable()
        names = [router.name for _, router in leaving]

        def done(_: int) -> tuple[int, bytes]:
            if dest is None:
                for left in leaving:
                    self._forget_at_dest(left[1])
            return 200, encode_names(names)

        last = len(leaving) - 1
        for place, (topic, router) in enumerate(leaving):
            fact = RouterDropped(router.name, router.epoch)
            # They leave in one group, so the answer of the last speaks for all.
            answered = (request, done) if place == last else (None, None)
            pending = PendingControl(fact, topic, engine.now_ms(), *answered)
            engine.commits.stage_control(pending, gated=True)

    def _forget_at_dest(self, router: Router) -> None:
        """Tidiness only: if it does not get there, a few bytes are remembered for nothing."""
        engine = self._engine
        peers = engine.moves.peers
        shard = peers.shard_of(router.dest)
        if shard == engine.shard:
            topic = engine.state.catalog.visible.get(router.dest)
            engine.arrivals.forget(topic, router.name, router.epoch)
        else:
            options = {"router": router.name, "epoch": router.epoch}
            peers.request(shard, Op.ROUTE_FORGET, router.dest, b"", options, lambda status: None)

    def topic_leaves(self, topic: Topic) -> list[str]:
        """Names of the routers that go with their source."""
        for router in (topic.routers or {}).values():
            self._forget_at_dest(router)
        return sorted(topic.routers or ())

    # --- looking ----------------------------------------------------------------------------------------

    def _get(self, request: Request) -> None:
        name = request.option("router")
        if not isinstance(name, str):
            raise InvalidRequest("malformed ROUTER_GET")
        found = self.find(name)
        if found is None:
            raise RouterNotFound(router=name)
        request.sink.answer(request.id, 200, self._entry_json(*found)[:-1])

    def _list(self, request: Request) -> None:
        prefix, after = request.option("prefix") or "", request.option("after") or ""
        source, dest, limit = request.option("source"), request.option("dest"), request.option("limit")
        allowed = request.option("prefixes")
        if not isinstance(prefix, str) or not isinstance(after, str) or not isinstance(limit, int):
            raise InvalidRequest("malformed ROUTER_LIST")
        prefixes = tuple(allowed) if isinstance(allowed, list) else None
        items: list[tuple[str, bytes]] = []
        more = False
        for topic, router in self._routers():
            names = (router.name, topic.name, router.dest)
            if router.name <= after or not router.name.startswith(prefix):
                continue
            if (source and topic.name != source) or (dest and router.dest != dest):
                continue
            if prefixes is not None and not all(name.startswith(prefixes) for name in names):
                continue
            if len(items) == min(limit, PAGE_SIZE_MAX):
                more = True
                break
            items.append((router.name, self._entry_json(topic, router)))
        request.sink.answer(request.id, 200, encode_list_body(items, more))

    def _entry_json(self, topic: Topic, router: Router) -> bytes:
        view = self._engine.forwarder.view(topic, router)
        return _json(
            {"router": router.name, "source": topic.name, "dest": router.dest}
            | router.rules.to_public()
            | {
                "forwarded_total": view.forwarded_total,
                "lag": view.lag,
                "cursor": view.cursor,
                "state": view.state,
                "last_error": view.last_error,
            }
        )


def put_json(topic: Topic, fact: RouterDefined, *, created: bool) -> bytes:
    fields = {"router": fact.name, "created": created, "source": topic.name, "dest": fact.dest}
    return _json(fields | fact.rules.to_public())[:-1]
