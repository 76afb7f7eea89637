"""The destination's side of routers: copies arrive, and with them, in the same frame, how far their router has come.

A step that arrives twice is recognised by that progress, so a router may repeat whatever it has no answer to. One
whose predecessor is missing here (it was confirmed, and lost in a power cut) is not taken: the answer says how far
the router really is, and it goes back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shard_worker.core.batch import Batch
from shard_worker.core.copying import as_batch, sizes_at
from shard_worker.core.topic import Topic
from shard_worker.pending import PendingAppend, PendingControl
from shard_worker.request import Extents, Request, Timings
from shared.api_types import DEFAULT_CONFIG
from shared.copies import Copies, decode_copies
from shared.errors import (
    InvalidRequest,
    RecordTooLarge,
    ShardUnavailable,
    TopicFull,
    TopicNotFound,
    TopicsError,
)
from shared.limits import FORWARD_RETRY_MIN_MS
from shared.router_frames import RouteForgotten, RouteTrimmed
from shared.wal_format import AppendExtra, RouterMark
from shared.wire import Op, encode_numbers

if TYPE_CHECKING:
    from shard_worker.engine import Engine

OnArrived = Callable[[int, int, int, str], None]
"""Status; with 200 the router's progress here and how many copies were taken; otherwise the error's code."""

STATUS_STALE = 409
"""A router of the same name was made later, and has copied already."""


@dataclass(slots=True)
class Delivery:
    """One step of a router, as its destination gets it."""

    router: str
    epoch: int
    dest_epoch: int
    start: int
    last: int
    """How far the destination has confirmed."""
    lost: int = 0
    """So many records were trimmed at the source, up to `lost_upto`."""
    lost_upto: int = 0
    copies: Copies | None = None


_NUMBERS = ("epoch", "dest_epoch", "start", "last", "lost", "lost_upto")


def delivery_options(delivery: Delivery) -> dict[str, object]:
    return {"router": delivery.router, **{name: getattr(delivery, name) for name in _NUMBERS}}


def delivery_from(request: Request) -> Delivery:
    router = request.option("router")
    numbers = [number for name in _NUMBERS if isinstance(number := request.option(name), int)]
    if not isinstance(router, str) or len(numbers) != len(_NUMBERS):
        raise InvalidRequest("malformed FORWARD")
    epoch, dest_epoch, start, last, lost, lost_upto = numbers
    copies = decode_copies(request.body) if request.body else None
    return Delivery(router, epoch, dest_epoch, start, last, lost, lost_upto, copies)


@dataclass(slots=True)
class _Arrived:
    """Stands for the caller of a write that the shard makes itself."""

    arrivals: Arrivals
    key: tuple[int, str]
    seq: int
    taken: int
    on_arrived: OnArrived
    full: bool = False

    def answer(
        self,
        id: int,
        status: int,
        body: bytes,
        timings: Timings | None = None,
        extents: Extents | None = None,
        tail: bytes | None = None,
    ) -> None:
        self.arrivals.settled(self.key)
        if status < 300:
            self.on_arrived(200, self.seq, self.taken, "")
        else:
            self.on_arrived(status, 0, 0, "shard_unavailable")


class PendingCopies(PendingAppend):
    """An append whose caller wants no document."""

    __slots__ = ()

    def answer(self, timings: Timings) -> None:
        assert self.request is not None
        self.request.sink.answer(self.request.id, 200, b"")


class Arrivals:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._arriving: set[tuple[int, str]] = set()  # (topic, router) of steps on their way to the disk

    def handlers(self) -> dict[int, Callable[[Request], None]]:
        return {Op.FORWARD: self._forward, Op.ROUTER_DEST: self._dest, Op.ROUTE_FORGET: self._forget}

    # --- steps ------------------------------------------------------------------------------------------

    def _forward(self, request: Request) -> None:
        def arrived(status: int, progress: int, taken: int, code: str) -> None:
            body = encode_numbers(progress, taken) if status == 200 else code.encode()
            request.sink.answer(request.id, status, body)

        self.take(request.topic, delivery_from(request), arrived)

    def take(self, name: str, delivery: Delivery, on_arrived: OnArrived) -> None:
        """Answers when the copies are as durable as the topic asks for; also every refusal is an answer."""
        try:
            self._take(name, delivery, on_arrived)
        except TopicsError as err:
            on_arrived(err.status_hint, 0, 0, err.code)

    def _take(self, name: str, delivery: Delivery, on_arrived: OnArrived) -> None:
        engine = self._engine
        topic = engine.state.catalog.planned.get(name)
        if topic is None or topic.epoch != delivery.dest_epoch:
            raise TopicNotFound(topic=name)
        now_ms = engine.now_ms()
        if topic.planned_config.discard == "reject":
            engine.sweep(topic, now_ms)  # before seqs are planned: it writes
        copies = len(delivery.copies) if delivery.copies is not None else 0
        commits = engine.commits
        waits = delivery.lost > 0 or (commits.full and commits.gates(topic, topic.planned_config, copies))
        commits.check_writable(gated=waits)
        key = (topic.id, delivery.router)
        if key in self._arriving:
            # An earlier try is on its way to the disk, and may fail yet: come again.
            raise ShardUnavailable(
                shard=engine.shard, reason="the copies are arriving", retry_after_ms=FORWARD_RETRY_MIN_MS
            )
        mark = topic.routed.get(delivery.router) if topic.routed is not None else None
        if mark is not None and mark.epoch > delivery.epoch:
            on_arrived(STATUS_STALE, 0, 0, "router_replaced")
            return
        known = mark is not None and mark.epoch == delivery.epoch
        progress = mark.seq if mark is not None and known else delivery.start
        if progress < delivery.last:
            if topic.planned_config.durability != "ephemeral":
                on_arrived(200, progress, 0, "")
                return
            progress = delivery.last  # what it knew is gone with its records, and nobody wants those back
        sink = _Arrived(self, key, progress, 0, on_arrived)
        if delivery.lost and delivery.lost_upto > progress:
            self._stage_hole(topic, delivery, sink, now_ms)
        else:
            new = delivery.copies.behind(progress) if delivery.copies is not None else None
            if new is None or not len(new):
                on_arrived(200, progress, 0, "")
                return
            self._stage_copies(topic, new, delivery, sink, now_ms)

    def _stage_hole(self, topic: Topic, delivery: Delivery, sink: _Arrived, now_ms: int) -> None:
        first = topic.staged_head + 1
        last = topic.staged_head + delivery.lost
        fact = RouteTrimmed(delivery.router, delivery.epoch, delivery.lost_upto, first, last)

        def undo() -> None:
            topic.staged_head = first - 1

        sink.seq = delivery.lost_upto
        self._arriving.add(sink.key)
        topic.staged_head = last
        request = Request(sink, 0, Op.FORWARD, topic.name, b"", None)
        ts = max(now_ms, topic.staged_ts)
        pending = PendingControl(fact, topic, ts, request, lambda _: (200, b""), undo)
        # Readers may take the end of the hole for their cursor, so it must not be given out again.
        self._engine.commits.stage_control(pending, gated=True)
        self._engine.counters.routes_trimmed += 1

    def _stage_copies(
        self, topic: Topic, copies: Copies, delivery: Delivery, sink: _Arrived, now_ms: int
    ) -> None:
        engine = self._engine
        first, ts = topic.staged_head + 1, max(now_ms, topic.staged_ts)
        fitting = copies.part(0, self._room(topic, copies, first, ts))
        batch: Batch = as_batch(fitting, first, ts)
        engine.check_caps(topic.planned_config, topic, batch, topic.name)
        sink.seq, sink.taken = fitting.seqs[-1], len(fitting)
        extra = AppendExtra(router=RouterMark(delivery.router, delivery.epoch, sink.seq))
        self._arriving.add(sink.key)
        request = Request(sink, 0, Op.FORWARD, topic.name, b"", None)
        engine.commits.stage_append(PendingCopies(request, topic, batch, first, ts, 0, extra, False))
        engine.counters.copies_arrived += len(fitting)

    def _room(self, topic: Topic, copies: Copies, first: int, ts: int) -> int:
        """How many of the copies fit: as many as there is room for, and no more than the whole cap at a time."""
        config = topic.planned_config
        room = len(copies)
        rejects = config.discard == "reject"
        if config.cap_records:
            held = topic.count + topic.pending_records if rejects else 0
            room = min(room, config.cap_records - held)
        if config.cap_bytes:
            sizes = sizes_at(copies, first, ts)
            if sizes[0] > config.cap_bytes:
                raise RecordTooLarge("the copy alone is larger than the topic's cap")
            left = config.cap_bytes - (topic.bytes + topic.pending_bytes if rejects else 0)
            fits = 0
            for size in sizes:
                left -= size
                if left < 0:
                    break
                fits += 1
            room = min(room, fits)
        if room <= 0:
            raise TopicFull(topic=topic.name)
        return room

    def settled(self, key: tuple[int, str]) -> None:
        self._arriving.discard(key)

    # --- being a destination ----------------------------------------------------------------------------

    def _dest(self, request: Request) -> None:
        """Is there such a topic? Make it if that is wanted. Answers with its epoch."""
        engine = self._engine
        topic = engine.state.catalog.planned.get(request.topic)
        if topic is None:
            if request.option("create") is not True:
                raise TopicNotFound(topic=request.topic)
            engine.check_topic_cap(request)
            engine.commits.check_writable()
            topic = engine.stage_create(request.topic, DEFAULT_CONFIG, engine.now_ms())
        epoch = topic.epoch
        engine.answer_when_synced(request, topic, lambda _: (200, encode_numbers(epoch)))

    def _forget(self, request: Request) -> None:
        """A router is gone; what is remembered of it may go, too."""
        engine = self._engine
        router, epoch = request.option("router"), request.option("epoch")
        topic = engine.state.catalog.visible.get(request.topic)
        if not isinstance(router, str) or not isinstance(epoch, int):
            raise InvalidRequest("malformed ROUTE_FORGET")
        self.forget(topic, router, epoch)
        request.sink.answer(request.id, 200, b"")

    def forget(self, topic: Topic | None, router: str, epoch: int) -> None:
        engine = self._engine
        if topic is None or topic.routed is None or router not in topic.routed:
            return
        if engine.commits.read_only is None:
            pending = PendingControl(RouteForgotten(router, epoch), topic, engine.now_ms())
            engine.commits.stage_control(pending)
