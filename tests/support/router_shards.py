"""Several shards in one process, each on a fake disk of its own, behind the real API: routers between them.

    shards = RouterShards({"s": 0, "d": 1})
    shards.put_router("r", source="s", dest="d")
    shards.append("s", {"data": 1})
    shards.settle()                    # forward until nobody has anything to do
    shards.kill(1); shards.lose_power(seed=7)

Messages between shards wait in `wire` until `deliver`, and answers likewise, so that anything may happen in between:
a shard that dies takes what was on its way with it, and the others hear 503, as from a broken link.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.io.shard_link import LinkListener, OnReply, Reply
from gateway.service import Api
from shard_worker.request import Extents, Request
from shared.errors import ShardUnavailable
from shared.settings import Settings
from shared.wire import Answer, Options
from tests.support.fake_disk import FakeDisk, Keep
from tests.support.queue_driver import QueueDriver
from tests.support.recorded_exchange import RecordedExchange
from tests.support.shard_driver import ManualClock

Told = Callable[[int, bytes], None]


@dataclass(slots=True)
class _Sink:
    told: Callable[[int, bytes, Mapping[str, float] | None], None]
    full: bool = False

    def answer(
        self,
        id: int,
        status: int,
        body: bytes,
        timings: Mapping[str, float] | None = None,
        extents: Extents | None = None,
        tail: bytes | None = None,
    ) -> None:
        self.told(status, body, timings)


@dataclass(slots=True, eq=False)
class _Message:
    origin: int
    shard: int
    op: int
    topic: str
    body: bytes
    options: Mapping[str, object]
    told: Told
    reply: tuple[int, bytes] | None = None


class Wire:
    """What is on its way between the shards."""

    def __init__(self, shards: RouterShards) -> None:
        self._shards = shards
        self.sent: list[_Message] = []  # not arrived yet
        self.arrived: list[_Message] = []  # not answered yet
        self.answers: list[_Message] = []  # answered, and nobody has heard it
        self.faults: list[str] = []

    @property
    def quiet(self) -> bool:
        return not (self.sent or self.arrived or self.answers)

    def send(self, message: _Message) -> None:
        self.sent.append(message)

    def deliver(self) -> None:
        """Everything that was sent arrives. `faults` are used up one per message: "lose" or "repeat"."""
        sent, self.sent = self.sent, []
        for message in sent:
            fault = self.faults.pop(0) if self.faults else ""
            if fault == "lose":
                # It arrives, and the link breaks before the answer.
                self._submit(message, lambda status, body, _: None)
                self._shards.drivers[message.origin].engine.forwarder.link_lost(message.shard)
                message.told(503, b"")
                continue
            if fault == "repeat":
                self._submit(message, lambda status, body, _: None)
            self.arrived.append(message)
            self._submit(message, self._answered(message))

    def _submit(self, message: _Message, told: Callable[..., None]) -> None:
        request = Request(_Sink(told), 1, message.op, message.topic, message.body, message.options)
        self._shards.drivers[message.shard].engine.submit(request)

    def _answered(self, message: _Message) -> Callable[..., None]:
        def answered(status: int, body: bytes, _: object) -> None:
            if message in self.arrived:  # its shard has not died meanwhile
                self.arrived.remove(message)
                message.reply = (status, body)
                self.answers.append(message)

        return answered

    def hear(self) -> None:
        """All answers reach those who asked."""
        answers, self.answers = self.answers, []
        for message in answers:
            assert message.reply is not None
            message.told(*message.reply)

    def cut(self, shard: int) -> None:
        """That shard has died."""
        for waiting in (self.sent, self.arrived, self.answers):
            lost = [message for message in waiting if shard in (message.origin, message.shard)]
            waiting[:] = [message for message in waiting if message not in lost]
            for message in lost:
                if message.origin != shard:
                    message.told(503, b"")
        for number, driver in self._shards.drivers.items():
            if number != shard:
                driver.engine.forwarder.link_lost(shard)


@dataclass(slots=True)
class _Seat:
    """Implements `moves.Peers` for one shard."""

    shards: RouterShards
    own: int

    def shard_of(self, topic: str) -> int:
        return self.shards.shard_of(topic)

    def request(
        self,
        shard: int,
        op: int,
        topic: str,
        body: bytes,
        options: Mapping[str, object],
        on_answer: Callable[[int], None],
    ) -> None:
        self.ask(shard, op, topic, body, options, lambda status, _: on_answer(status))

    def ask(
        self, shard: int, op: int, topic: str, body: bytes, options: Mapping[str, object], on_reply: Told
    ) -> None:
        self.shards.wire.send(_Message(self.own, shard, op, topic, body, options, on_reply))


@dataclass(slots=True)
class _Link:
    shard: int
    up: bool = True
    topics: int = 0
    bytes: int = 0
    reason: str = ""
    in_flight: int = 0
    queued: int = 0


class _Network:
    """What QueueDriver wants in order to know its peers."""

    def __init__(self, shards: RouterShards) -> None:
        self.shards = shards
        self.drivers: dict[int, QueueDriver] = {}

    def seen_from(self, shard: int) -> _Seat:
        return _Seat(self.shards, shard)


@dataclass(slots=True)
class _Gateway:
    """Implements `gateway.service.Shards`: every request is carried out at once, syncs included."""

    shards: RouterShards
    links: list[_Link] = field(default_factory=list)

    def request(self, op: int, topic: str, body: bytes, options: Options | None, on_reply: OnReply) -> int:
        self._ask(self.shards.shard_of(topic), op, topic, body, options, lambda reply: on_reply(reply, None))
        return 1

    def _ask(
        self,
        shard: int,
        op: int,
        topic: str,
        body: bytes,
        options: Options | None,
        told: Callable[[Reply], None],
    ) -> None:
        if not self.links[shard].up:
            told(ShardUnavailable(shard=shard, reason="down"))
            return
        replies: list[Reply] = []
        driver = self.shards.drivers[shard]

        def answered(status: int, content: bytes, timings: Mapping[str, float] | None) -> None:
            replies.append(Answer(1, status, content, timings))

        inline = {**(options or {}), "inline": True}
        driver.engine.submit(Request(_Sink(answered), 1, op, topic, body, inline))
        driver.commit()
        if not replies:
            driver.sync()
        (reply,) = replies
        told(reply)

    def request_all(
        self, op: int, options: Options | None, on_replies: Callable[[list[Reply]], None]
    ) -> None:
        replies: list[Reply] = []
        for link in self.links:
            self._ask(link.shard, op, "", b"", options, replies.append)
        on_replies(replies)

    def request_shard(
        self, shard: int, op: int, topic: str, options: Options | None, on_reply: OnReply
    ) -> int:
        self._ask(shard, op, topic, b"", options, lambda reply: on_reply(reply, None))
        return 1

    def shard_of(self, topic: str) -> int:
        return self.shards.shard_of(topic)

    def cancel(self, topic: str, id_: int) -> None:
        return None

    def listen(self, listener: LinkListener) -> None:
        return None

    def flush(self) -> None:
        return None

    def totals(self) -> tuple[int, int]:
        return 0, 0


class RouterShards:
    def __init__(
        self, places: Mapping[str, int], *, wal_file_bytes: int = 1 << 16, **settings: object
    ) -> None:
        self.places = dict(places)
        self.clock = ManualClock()
        self.wire = Wire(self)
        self.network = _Network(self)
        self.drivers: dict[int, QueueDriver] = self.network.drivers
        for number in range(max(self.places.values()) + 1):
            QueueDriver(
                FakeDisk(),
                number=number,
                network=self.network,  # type: ignore[arg-type]
                clock=self.clock,
                wal_file_bytes=wal_file_bytes,
                **settings,
            )
        self.gateway = _Gateway(self, [_Link(number) for number in self.drivers])
        self.api = self.new_api(**settings)

    def new_api(self, **settings: object) -> Api:
        """A gateway that knows nothing of the one before."""
        return Api(Settings(**settings), self.gateway, version="test")  # type: ignore[arg-type]

    def shard_of(self, topic: str) -> int:
        return self.places[topic]

    def on(self, topic: str) -> QueueDriver:
        return self.drivers[self.places[topic]]

    # --- clients ------------------------------------------------------------------------------------------

    def call(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        content = b"" if body is None else json.dumps(body).encode()
        path, _, query = path.partition("?")
        headers = {"content-type": "application/json"} if content else {}
        exchange = RecordedExchange(method, path, query, headers, content)
        self.api.handle(exchange)
        assert exchange.response is not None, f"no answer to {method} {path}"
        return exchange.response.status, json.loads(exchange.response.body)

    def ok(self, method: str, path: str, body: object = None) -> Any:
        status, document = self.call(method, path, body)
        assert status < 300, document
        return document

    def put(self, topic: str, **config: object) -> Any:
        return self.ok("PUT", f"/v0/topics/{topic}", config)

    def put_router(self, name: str, **fields: object) -> Any:
        return self.ok("PUT", f"/v0/routers/{name}", fields)

    def router(self, name: str) -> Any:
        return self.ok("GET", f"/v0/routers/{name}")

    def append(self, topic: str, *records: Mapping[str, object]) -> list[int]:
        seqs: list[int] = self.ok("POST", f"/v0/topics/{topic}", {"records": list(records)})["seqs"]
        return seqs

    def write(self, topic: str, *values: object) -> list[int]:
        return self.append(topic, *({"data": value} for value in values))

    def records(self, topic: str) -> list[dict[str, Any]]:
        """All live records, with tags, keys and meta."""
        if topic not in self.on(topic).engine.state.catalog.visible:
            return []
        found: list[dict[str, Any]] = self.on(topic).read_all(topic, include_tags=True, include_keys=True)
        return found

    def data(self, topic: str) -> list[Any]:
        return [record["data"] for record in self.records(topic)]

    def trims(self, topic: str) -> list[tuple[int, int]]:
        """The holes of which readers are told as `source_trim`."""
        held = self.on(topic).topic(topic)
        return [(hole.first, hole.last) for hole in held.holes if hole.reason == "source_trim"]

    # --- time ---------------------------------------------------------------------------------------------

    def forward(self) -> None:
        """Every shard's routers do what they can; nothing is synced that nobody waits for."""
        for driver in self.drivers.values():
            driver.engine.forwarder.run()

    def turn(self) -> None:
        """Forward, let messages and answers through, sync what waits."""
        self.forward()
        self.wire.deliver()
        for driver in self.drivers.values():
            driver.settle()
        self.wire.hear()
        for driver in self.drivers.values():
            driver.commit()

    @property
    def idle(self) -> bool:
        return self.wire.quiet and not any(
            driver.engine.forwarder.runnable for driver in self.drivers.values()
        )

    def settle(self, turns: int = 100) -> None:
        """Until nobody has anything to do but wait for a full destination."""
        for _ in range(turns):
            self.turn()
            if self.idle:
                return
        raise AssertionError(f"routers do not come to rest: {self.views()}")

    def wait(self, ms: int = 6000) -> None:
        """Time passes, and whoever waited for it tries again."""
        self.clock.advance(ms)
        for driver in self.drivers.values():
            driver.tick()

    def views(self) -> list[object]:
        return [view for driver in self.drivers.values() for view in driver.engine.forwarder.views()]

    # --- crashes ------------------------------------------------------------------------------------------

    def kill(self, shard: int) -> None:
        """SIGKILL of one worker, and its restart."""
        self.wire.cut(shard)
        self.drivers[shard].kill()

    def lose_power(self, seed: int = 0, keep: Keep = "random") -> None:
        """Of the whole machine; each disk keeps another part of what was not synced."""
        self.wire = Wire(self)
        for number, driver in self.drivers.items():
            driver.disk.lose_power(seed + number, keep)
        for driver in self.drivers.values():
            driver.reopen()

    def restart_all(self) -> None:
        """A clean stop and start."""
        self.wire = Wire(self)
        for driver in self.drivers.values():
            driver.close()
            driver.reopen()
