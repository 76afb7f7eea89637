"""The source's side of routers: copies what is new, one step per router at a time, off the path of any ack.

    note(topic)   a topic has changed: its routers may have something to do
    run(seconds)  do some of it; the turn loop calls this when it has time (serve/turns.py)

Steps to topics of this shard are staged like any write and leave with the next commit; steps to other shards cross a
link (serve/peers.py). A destination that refuses or cannot be reached is tried again later, and everything behind
waits: backpressure, not loss. With nothing to do, nothing here is called and no timer runs.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from shard_worker.arrivals import Arrivals, Delivery, delivery_options
from shard_worker.core.bands import Bands
from shard_worker.core.copying import Step, gather
from shard_worker.core.priority import effective_priority
from shard_worker.core.router import Router
from shard_worker.core.topic import Topic
from shard_worker.pending import PendingControl
from shared.copies import Copies, encode_copies
from shared.errors import DataDamage
from shared.limits import (
    CURSOR_TOPICS_PER_TICK,
    FORWARD_CACHE_BYTES,
    FORWARD_RETRY_MAX_MS,
    FORWARD_RETRY_MIN_MS,
    FORWARDS_IN_FLIGHT_MAX,
)
from shared.router_frames import RouterCursors, RouterDropped
from shared.router_types import RouterProgress
from shared.wire import LinkError, Op, decode_numbers

if TYPE_CHECKING:
    from shard_worker.engine import Engine

_GONE, _TOO_LARGE = "topic_not_found", "record_too_large"
_DAMAGED = "source_damaged"


class Route:
    """A router at work."""

    __slots__ = (
        "backoff_ms",
        "busy",
        "error",
        "held",
        "moved",
        "passed_over",
        "queued",
        "retry_ms",
        "router",
        "skip",
        "sure",
        "topic",
    )

    def __init__(self, topic: Topic, router: Router) -> None:
        self.topic = topic
        self.router = router
        self.queued = False  # in the line of those that have something to do
        self.busy = False  # a step is under way
        self.sure = False  # has the destination said how far it is, since it or we were last started?
        self.moved = False  # since the cursor was last written down
        self.retry_ms = 0  # not before; 0: nothing stands in the way
        self.backoff_ms = 0
        self.error: str | None = None
        self.skip = 0  # the seq of a record that the destination can never take
        # Everything that took away records it has passed over is in the log below here.
        self.passed_over = 0
        self.held: tuple[Delivery, Step] | None = None  # a step that waited for a sync, and may go now

    @property
    def has_work(self) -> bool:
        return not self.sure or self.router.cursor < self.topic.head

    @property
    def state(self) -> RouterProgress:
        if self.error is not None:
            return "retrying"
        return "forwarding" if self.busy or self.has_work else "caught_up"


class RouterView(NamedTuple):
    """A router as operators see it."""

    name: str
    source: str
    dest: str
    cursor: int
    lag: int
    forwarded_total: int
    state: RouterProgress
    last_error: str | None


class Forwarder:
    def __init__(self, engine: Engine, arrivals: Arrivals) -> None:
        self._engine = engine
        self._arrivals = arrivals
        self._routes: dict[int, dict[str, Route]] = {}  # by id of the source, by name
        self._line: Bands[Route] = Bands()
        self._retries: list[tuple[int, int, Route]] = []  # a heap of (when, serial, route)
        self._serial = 0
        self._blocked: dict[str, set[Route]] = {}  # by name of a full destination on this shard
        self._moved: dict[int, None] = {}  # sources with routers whose cursors are not written down
        self._in_flight = 0
        self._made: dict[tuple[object, ...], Step] = {}
        self._made_bytes = 0
        self._encodings: dict[int, bytes] = {}  # by identity of the copies in `_made`

    # --- who is there -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Take up the routers that recovery has found."""
        for topic in set(self._engine.state.routers.values()):
            self.note(topic)

    def note(self, topic: Topic) -> None:
        """The topic has changed, or its routers have."""
        if self._blocked:
            for waiting in self._blocked.pop(topic.name, ()):
                self._again(waiting)
        routes = self._routes.get(topic.id)
        if topic.routers is None and routes is None:
            return
        if topic.id not in self._engine.state.catalog.by_id:
            self._routes.pop(topic.id, None)
            return
        if routes is None:
            routes = self._routes[topic.id] = {}
        routers = topic.routers or {}
        for name, router in routers.items():
            route = routes.get(name)
            if route is None or route.router is not router:
                route = routes[name] = Route(topic, router)
            if not (route.queued or route.busy or route.retry_ms) and route.has_work:
                self._enqueue(route)
        if len(routes) > len(routers):
            for name in routes.keys() - routers.keys():
                del routes[name]
            if not routes:
                del self._routes[topic.id]

    def link_lost(self, shard: int) -> None:
        """The worker of that shard is gone; its successor may know less than it did."""
        peers = self._engine.moves.peers
        for route in self._all():
            if peers.shard_of(route.router.dest) == shard:
                route.sure = False
                if not (route.queued or route.busy or route.retry_ms):
                    self._enqueue(route)

    def _all(self) -> Iterator[Route]:
        for routes in self._routes.values():
            yield from routes.values()

    def _is_there(self, route: Route) -> bool:
        return self._routes.get(route.topic.id, {}).get(route.router.name) is route

    def view(self, topic: Topic, router: Router) -> RouterView:
        route = self._routes.get(topic.id, {}).get(router.name)
        lag = router.lag(topic.head)
        state: RouterProgress = route.state if route is not None else "forwarding" if lag else "caught_up"
        error = route.error if route is not None else None
        return RouterView(
            router.name, topic.name, router.dest, router.cursor, lag, router.forwarded, state, error
        )

    def views(self) -> list[RouterView]:
        """All routers of this shard, in name order; changes nothing."""
        found = []
        for name, topic in sorted(self._engine.state.routers.items()):
            if topic.routers is not None and name in topic.routers:
                found.append(self.view(topic, topic.routers[name]))
        return found

    # --- whose turn it is -------------------------------------------------------------------------------

    @property
    def runnable(self) -> bool:
        return len(self._line) > 0 and self._in_flight < FORWARDS_IN_FLIGHT_MAX

    def next_deadline_ms(self) -> int | None:
        return self._retries[0][0] if self._retries else None

    def tick(self, now_ms: int) -> None:
        self._retry_due(now_ms)
        self._save_cursors(now_ms)

    def run(self, seconds: float = 0.0) -> None:
        """Steps of one router after the other until the time is over (0: until nobody can go on), and commit them."""
        clock = self._engine.clock
        until = clock() + seconds if seconds else None
        self._retry_due(self._engine.now_ms())
        for _ in range(len(self._line)):
            route = self.next_route() if self.runnable else None
            if route is None:
                break
            self._step(route)
            if until is not None and clock() >= until:
                break
        if not len(self._line):
            self._forget_made()
        self._engine.commit()

    def next_route(self) -> Route | None:
        """Whose step comes next: by the priority of the source and by how long it has waited, so nobody starves."""
        return self._line.pick(self._engine.now_ms())

    def _enqueue(self, route: Route) -> None:
        route.queued = True
        topic, now_ms = route.topic, self._engine.now_ms()
        self._line.put(route, effective_priority(topic.config, topic.last_read_ts, now_ms), now_ms)

    def _again(self, route: Route) -> None:
        """What stood in its way may be gone."""
        route.retry_ms = 0
        blocked = self._blocked.get(route.router.dest)
        if blocked is not None:
            blocked.discard(route)
            if not blocked:
                del self._blocked[route.router.dest]
        if self._is_there(route) and not (route.queued or route.busy) and route.has_work:
            self._enqueue(route)

    def _retry_due(self, now_ms: int) -> None:
        while self._retries and self._retries[0][0] <= now_ms:
            due_ms, _, route = heapq.heappop(self._retries)
            if route.retry_ms == due_ms:
                self._again(route)

    def _retry_later(self, route: Route, code: str) -> None:
        route.error = code
        route.backoff_ms = min(max(2 * route.backoff_ms, FORWARD_RETRY_MIN_MS), FORWARD_RETRY_MAX_MS)
        route.retry_ms = self._engine.now_ms() + route.backoff_ms
        self._serial += 1
        heapq.heappush(self._retries, (route.retry_ms, self._serial, route))
        self._engine.counters.forward_retries += 1
        if code == "topic_full" and self._is_local(route):
            self._blocked.setdefault(route.router.dest, set()).add(route)

    # --- one step ---------------------------------------------------------------------------------------

    def _step(self, route: Route) -> None:
        route.queued = False
        if not self._is_there(route):
            return
        topic, router = route.topic, route.router
        if route.held is not None:
            held, route.held = route.held, None
            self._send(route, *held)
            return
        delivery = Delivery(router.name, router.epoch, router.dest_epoch, router.start, router.sent)
        step = Step(router.cursor)
        if route.sure:
            if route.skip:
                step = Step(route.skip)
                delivery.lost, delivery.lost_upto = 1, route.skip
            else:
                try:
                    step = self._gather(topic, router)
                except DataDamage:
                    self._retry_later(route, _DAMAGED)  # named by whoever reads it; the others go on
                    return
                self._note_passed_over(route, step)
                if step.lost is not None:
                    delivery.lost, delivery.lost_upto = step.lost.gap_to - step.lost.gap_from + 1, step.upto
                delivery.copies = step.copies
            if not delivery.lost and step.copies is None:
                # Also what did not fit the last time is gone, or passed over by now.
                route.backoff_ms, route.error = 0, None
                self._passed(route, step.upto)
                return
        route.busy = True
        if self._may_be_undone(route, step):
            self._hold(route, delivery, step)
        else:
            self._send(route, delivery, step)

    def _may_be_undone(self, route: Route, step: Step) -> bool:
        """Could a power cut here make the destination's progress a lie? Then what the step rests on is synced first.

        It could bring records back that were gone when the step was made, and nobody would ever copy them; and it
        could take copies that this topic has itself got from a router, which come again under other seqs: the
        destination would not know them. Not on one shard: of one log a power cut leaves a prefix.
        """
        topic, synced = route.topic, self._engine.wal.synced
        chained = topic.routed is not None and route.router.rules.exactly_once
        rests_on = max(route.passed_over, topic.lsn + 1 if chained else 0)
        return rests_on > synced and not self._is_local(route)

    def _hold(self, route: Route, delivery: Delivery, step: Step) -> None:
        self._in_flight += 1  # it takes as much memory as one that is

        def settled(synced: bool) -> None:
            self._in_flight -= 1
            if not synced:
                route.busy = False  # and the step is made anew
            elif self._is_there(route):
                route.held = delivery, step
            self._enqueue(route)

        self._engine.commits.when_synced(settled)

    def _gather(self, topic: Topic, router: Router) -> Step:
        """A step that another router of this source may have made just now is made once."""
        rules = router.rules
        engine = self._engine
        floor = engine.floor_now(topic, engine.now_ms())
        if rules.marks_copies:
            return gather(topic, router, floor, engine.state.source)
        key = (
            topic.id,
            router.cursor,
            floor,
            topic.removals,
            rules.match,
            rules.preserve_node,
            rules.preserve_tag,
        )
        step = self._made.get(key)
        if step is None:
            step = gather(topic, router, floor, engine.state.source)
            self._made_bytes += len(step.copies.tails) if step.copies is not None else 0
            if self._made_bytes > FORWARD_CACHE_BYTES:
                self._forget_made()
            self._made[key] = step
        return step

    def _note_passed_over(self, route: Route, step: Step) -> None:
        topic, cursor = route.topic, route.router.cursor
        if step.lost is not None:
            route.passed_over = self._engine.wal.end  # a TTL's floor may be staged only
        elif topic.live_between(cursor + 1, step.upto) < step.upto - cursor:
            route.passed_over = topic.lsn + 1

    def _forget_made(self) -> None:
        self._made.clear()
        self._encodings.clear()
        self._made_bytes = 0

    def _encoded(self, copies: Copies) -> bytes:
        """As they cross a link; the same bytes for every destination that gets the same copies."""
        body = self._encodings.get(id(copies))
        if body is None:
            body = encode_copies(copies)
            if any(step.copies is copies for step in self._made.values()):
                self._encodings[id(copies)] = body
        return body

    def _is_local(self, route: Route) -> bool:
        return self._engine.moves.peers.shard_of(route.router.dest) == self._engine.shard

    def _send(self, route: Route, delivery: Delivery, step: Step) -> None:
        if self._is_local(route):
            self._arrivals.take(
                route.router.dest,
                delivery,
                lambda status, progress, taken, code: self._answered(
                    route, step, status, progress, taken, code
                ),
            )
            return
        self._in_flight += 1

        def on_reply(status: int, body: bytes) -> None:
            self._in_flight -= 1
            progress = taken = 0
            code = body.decode("utf-8", "replace")
            if status == 200:
                try:
                    progress, taken = decode_numbers(body, 2)
                except LinkError as err:
                    status, code = 503, err.code
            self._answered(route, step, status, progress, taken, code)

        body = b"" if delivery.copies is None else self._encoded(delivery.copies)
        peers = self._engine.moves.peers
        shard = peers.shard_of(route.router.dest)
        peers.ask(shard, Op.FORWARD, route.router.dest, body, delivery_options(delivery), on_reply)

    def _answered(self, route: Route, step: Step, status: int, progress: int, taken: int, code: str) -> None:
        route.busy = False
        if not self._is_there(route):
            return
        if status == 200:
            self._confirmed(route, step, progress, taken)
        elif code == _GONE:
            self._drop(route)
        elif code == _TOO_LARGE and step.copies is not None:
            route.skip = step.copies.seqs[0]  # its turn comes when all in front of it are there
            self._again(route)
        else:
            self._retry_later(route, code or "shard_unavailable")

    def _confirmed(self, route: Route, step: Step, progress: int, taken: int) -> None:
        router = route.router
        route.sure = True
        route.backoff_ms, route.error, route.retry_ms = 0, None, 0
        in_step = router.confirmed(progress)
        router.forwarded += taken
        self._engine.counters.copies_forwarded += taken
        route.skip = 0
        wanted = step.copies.seqs[-1] if step.copies is not None else 0
        # Where only a part of the copies had room, the rest is gathered anew from where the destination is.
        self._passed(route, step.upto if in_step and progress >= wanted else progress)

    def _passed(self, route: Route, upto: int) -> None:
        route.router.cursor = max(route.router.cursor, upto)
        route.moved = True
        self._moved[route.topic.id] = None
        if route.has_work and not route.queued:
            self._enqueue(route)

    def _drop(self, route: Route) -> None:
        """The destination was deleted, and nobody told us: so goes the router."""
        engine = self._engine
        if engine.commits.read_only is not None:
            self._retry_later(route, _GONE)
            return
        fact = RouterDropped(route.router.name, route.router.epoch)
        engine.commits.stage_control(PendingControl(fact, route.topic, engine.now_ms()))

    # --- cursors ----------------------------------------------------------------------------------------

    def _save_cursors(self, now_ms: int) -> None:
        """Write down where routers stand; what a crash takes of that is asked of the destinations."""
        commits, catalog = self._engine.commits, self._engine.state.catalog
        if commits.read_only is not None:
            return
        for topic_id in list(self._moved)[:CURSOR_TOPICS_PER_TICK]:
            del self._moved[topic_id]
            topic = catalog.by_id.get(topic_id)
            moved = [route for route in self._routes.get(topic_id, {}).values() if route.moved]
            if topic is None or not moved:
                continue
            for route in moved:
                route.moved = False
            rows = tuple(route.router.position() for route in moved)
            commits.stage_control(PendingControl(RouterCursors(rows), topic, now_ms))
