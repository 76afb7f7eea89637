"""The API behind both lanes: routes a request, admits its caller, runs its handler, and words the answer.

A `Call` is one request on its way. It is answered exactly once, by a handler, by the reply of a shard, or by
`fail`; whatever raises in between ends as an error document, never as silence.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol, cast

from gateway.api import ApiPort
from gateway.core import gzip_codec
from gateway.core.auth import Access, Gatekeeper, check_name
from gateway.core.caps import InflightPerKey, TotalCaps
from gateway.core.gzip_codec import MIN_COMPRESSED_BYTES
from gateway.core.http_errors import error_response, passed_on_error, unexpected_error_response
from gateway.core.router import Query, Route, Router, parse_query, text_parameter
from gateway.exchange import JSON, Exchange, Recall, Response, Stream, StreamHead
from gateway.io.shard_link import LeasedFiles, LinkListener, OnReply, Reply
from gateway.request_log import RequestLog
from gateway.router_changes import RouterChanges
from gateway.watch_hub import WatchHub
from gateway.work_streams import WorkStreams
from shared.api_keys import ApiKey, KeyRing
from shared.errors import InvalidRequest, ShuttingDown, TopicsError, UnsupportedMediaType
from shared.settings import Settings
from shared.wire import Answer, Options, Timings

log = logging.getLogger(__name__)


class ShardStatus(Protocol):
    """One shard as health and metrics see it."""

    shard: int
    topics: int
    bytes: int
    reason: str
    throttled: int

    @property
    def up(self) -> bool: ...
    @property
    def in_flight(self) -> int: ...
    @property
    def queued(self) -> int: ...


class Shards(Protocol):
    """The shards as handlers see them; see gateway/io/shard_pool.py."""

    @property
    def links(self) -> Sequence[ShardStatus]: ...
    def request(
        self, op: int, topic: str, body: bytes, options: Options | None, on_reply: OnReply
    ) -> int: ...
    def cancel(self, topic: str, id_: int) -> None: ...
    def request_all(
        self, op: int, options: Options | None, on_replies: Callable[[list[Reply]], None]
    ) -> None: ...
    def flush(self) -> None: ...
    def totals(self) -> tuple[int, int]: ...
    def listen(self, listener: LinkListener) -> None: ...
    def shard_of(self, topic: str) -> int: ...
    def request_shard(
        self, shard: int, op: int, topic: str, options: Options | None, on_reply: OnReply
    ) -> int: ...


class ReplayReport(Protocol):
    @property
    def restarts(self) -> int: ...
    def why_not_ready(self) -> str | None: ...


class ReplayView(Protocol):
    """What the supervisor knows about shards that do not answer yet; see gateway/io/supervisor_feed.py."""

    @property
    def shards(self) -> Sequence[ReplayReport]: ...
    def replay_progress(self) -> float: ...


Handler = Callable[["Call"], None]


class Call:
    __slots__ = ("_entered", "_query", "_took_s", "answered", "api", "exchange", "key", "name", "route")

    def __init__(self, api: Api, exchange: Exchange, route: Route[Handler]) -> None:
        self.api = api
        self.exchange = exchange
        self.route = route
        self.name = exchange.recall.name  # the topic in the path, decoded and valid once the handler runs
        self.key: ApiKey | None = None  # None: auth is off, or the route needs none
        self.answered = False
        self._entered = False
        self._took_s = 0.0  # as told in the answer, if it is
        self._query: Query | None = None

    # --- the request ----------------------------------------------------------------------------------

    @property
    def query(self) -> Query:
        if self._query is None:
            self._query = parse_query(self.exchange.query)
        return self._query

    def json_body(self) -> bytes:
        """The body, decompressed and declared to be JSON; not parsed."""
        body = self.exchange.body
        if not body or self._recall().plain_json:
            return body
        headers = self.exchange.headers
        if not _is_json(headers.get("content-type")):
            raise UnsupportedMediaType()
        encoding = headers.get("content-encoding")
        if encoding is None:
            return body
        return gzip_codec.decode_body(body, encoding, self.api.settings.max_body_bytes)

    @property
    def idempotency_key(self) -> str | None:
        return self._recall().idempotency_key

    def _recall(self) -> Recall:
        recall = self.exchange.recall
        if not recall.headers_seen:
            headers = self.exchange.headers
            recall.headers_seen = True
            recall.idempotency_key = headers.get("idempotency-key")
            recall.plain_json = _is_json(headers.get("content-type")) and "content-encoding" not in headers
            recall.wants_gzip = gzip_codec.wants_gzip(headers.get("accept-encoding"))
        return recall

    def wants_gzip(self) -> bool:
        return self._recall().wants_gzip

    def admit(self) -> None:
        """Who calls, and whether it may: 401, 403, or go on."""
        token = text_parameter(self.query, "token") if self.route.sse and self.exchange.query else None
        api = self.api
        self.key = api.gatekeeper.admit(self.route.access, self.exchange.headers, token)
        api.inflight.enter(self.key)
        self._entered = True
        if self.exchange.recall.refused:
            raise InvalidRequest("the path does not hold a valid topic name")
        if self.key is not None and self.route.named and not self.route.opaque:
            check_name(self.key, self.name)

    # --- the answer -----------------------------------------------------------------------------------

    def ask(self, op: int, body: bytes, options: Options | None) -> int:
        """Let the topic's shard answer."""
        return self.api.shards.request(op, self.name, body, options, self.reply)

    def reply(self, reply: Reply, leased: LeasedFiles | None) -> None:
        """A shard's answer becomes ours."""
        if not isinstance(reply, Answer):
            self.fail(reply)
        elif leased is not None:
            tail = (reply.tail or b"") + self.performance(reply.timings)
            self.respond(
                Response(reply.status, reply.body, extents=leased.extents, tail=tail, release=leased.release)
            )
        elif reply.status < 400:
            self.succeed(reply.status, reply.body, reply.timings)
        else:
            hint = None if reply.timings is None else reply.timings.get("retry_after_ms")
            self.respond(passed_on_error(reply.status, reply.body, hint))

    def succeed(self, status: int, open_body: bytes, timings: Timings | None = None) -> None:
        """Answer with a JSON object that lacks its closing brace."""
        body = open_body + self.performance(timings)
        if len(body) >= MIN_COMPRESSED_BYTES and self.wants_gzip():
            headers = (("Content-Encoding", "gzip"), ("Vary", "Accept-Encoding"))
            compressed = Response(status, gzip_codec.compress(body), headers=headers)
            self._took_s = 0.0  # that took its time, too
            self.respond(compressed)
        else:
            self.respond(Response(status, body))

    def performance(self, timings: Timings | None) -> bytes:
        """The end of every successful document, closing brace included."""
        self._took_s = _clock() - self.exchange.started
        end = self.api.timings_json(timings) if timings else b"}}"
        thousandths = _thousandths(self._took_s * 1000)
        # Put together in one step, and therefore not with `_milliseconds`.
        return b',"performance":{"server_total_ms":%b%b%b' % (
            _whole(thousandths),
            _BEHIND_THE_POINT[thousandths % 1000],
            end,
        )

    def finish(self, action: Callable[[], None]) -> None:
        """Run what gives the answer in a later turn; if it raises, that is the answer."""
        try:
            action()
        except TopicsError as err:
            self.fail(err)
        except Exception:
            self.crash()

    def crash(self) -> None:
        """Called while an exception nobody planned is being handled."""
        log.exception("api.call.failed", extra={"method": self.route.method, "route": self.route.path})
        if not self.answered:
            self.respond(unexpected_error_response())

    def fail(self, error: TopicsError) -> None:
        self.respond(error_response(error))

    def respond(self, response: Response) -> None:
        self._leave(response.status)
        # What was told in it is near enough; to ask for the time again would take as long as the rest here.
        took_s = self._took_s or _clock() - self.exchange.started
        if response.status >= 500 or took_s >= self.api.slow_s:
            self._note(response, took_s)
        self.exchange.respond(response)

    def _note(self, response: Response, took_s: float) -> None:
        # Whoever probes us expects a 503 now and then, and asks all the time.
        if self.route.access is not Access.PROBE:
            topic = "" if self.route.opaque else self.name
            self.api.request_log.note(self.exchange, self.route.path, topic, response, took_s)

    def respond_stream(self, head: StreamHead) -> Stream:
        """The call is over for whoever counts calls; the stream goes on."""
        self._leave(head.status)
        return self.exchange.respond_stream(head)

    def _leave(self, status: int) -> None:
        assert not self.answered, "a call is answered once"
        self.answered = True
        api = self.api
        if self._entered:
            api.inflight.leave(self.key)
        api.count(self.route, status)


# To format floats took nearly half of all that is done to an answer here.
_NUMBERS: Final = [b"%d" % number for number in range(100)]
_BEHIND_THE_POINT: Final = [b".%03d" % number for number in range(1000)]
_clock: Final = time.perf_counter

_TIMING_TEXTS: Final = {
    name: b',"%b":' % name.encode()
    for name in ("wal_append_ms", "fsync_ms", "throttle_wait_ms", "records_scanned")
}


def _milliseconds(value: float) -> bytes:
    """With three places."""
    thousandths = _thousandths(value)
    return _whole(thousandths) + _BEHIND_THE_POINT[thousandths % 1000]


def _thousandths(value: float) -> int:
    return max(0, int(value * 1000 + 0.5))


def _whole(thousandths: int) -> bytes:
    whole = thousandths // 1000
    return _NUMBERS[whole] if whole < len(_NUMBERS) else b"%d" % whole


def _timings_json(timings: Timings) -> bytes:
    """With the two braces behind them."""
    text = b""
    for name, value in timings.items():
        start = _TIMING_TEXTS.get(name)
        if start is None:
            continue
        if not value:
            text += start + b"0"
        elif name == "records_scanned":
            text += start + b"%d" % value
        else:
            text += start + _milliseconds(value)
    return text + b"}}"


def _is_json(content_type: str | None) -> bool:
    if content_type == JSON:
        return True
    return content_type is not None and content_type.partition(";")[0].strip().lower() == JSON


class Api(ApiPort):
    """Handlers reach everything they share through it."""

    def __init__(self, settings: Settings, shards: Shards, *, version: str) -> None:
        # Imported here because the handlers' signatures name `Call`.
        from gateway.handlers import all_routes

        self.settings = settings
        self.shards = shards
        self.version = version
        self.started_at = time.monotonic()
        self.gatekeeper = Gatekeeper(settings.key_ring(), probe_auth=settings.probe_auth)
        self.inflight = InflightPerKey(settings.max_inflight_per_key)
        self.caps = TotalCaps(max_topics=settings.max_topics, max_total_bytes=settings.max_total_bytes)
        self.request_log = RequestLog(settings.slow_request_ms)
        self.slow_s = self.request_log.slow_s
        self.connections: Callable[[], int] = lambda: 0  # open ones, of both lanes; told by the process
        self._requests: dict[Route[Handler] | None, dict[int, int]] = {}  # answered, by route and status
        self._counted_route: Route[Handler] | None = (
            None  # and those of the last kind that are not in there yet
        )
        self._counted_status = 0
        self._counted = 0
        self._totals_known = False  # of this turn, what follows
        self._topics = 0
        self._total_bytes = 0
        self.work = WorkStreams(shards)
        self.router_changes = RouterChanges(shards, max_routers=settings.max_routers)
        self.draining = False
        self._worded: Timings | None = None  # the timings that were put into words last, and how
        self._words = b""
        self.replay: ReplayView | None = None  # None: nobody but the links can say how the shards are
        self.router: Router[Handler] = Router(all_routes())
        self.hub = WatchHub(settings, shards)
        shards.listen(self.hub)

    def handle(self, exchange: Exchange) -> None:
        recall = exchange.recall
        if recall.route is None:
            try:
                target = self.router.resolve(exchange.method, exchange.path)
            except TopicsError as err:
                self.count(None, err.status_hint)
                exchange.respond(error_response(err))
                return
            recall.route, recall.name, recall.refused = target.route, target.name, target.refused
        route = cast("Route[Handler]", recall.route)
        call = Call(self, exchange, route)
        try:
            if self.draining and route.access is not Access.PROBE:
                raise ShuttingDown()
            call.admit()
            route.handler(call)
        except TopicsError as err:
            call.fail(err)
        except Exception:
            call.crash()

    def count(self, route: Route[Handler] | None, status: int) -> None:
        # Nearly every answer is of the same kind as the one before.
        if route is not self._counted_route or status != self._counted_status:
            self._put_counted()
            self._counted_route, self._counted_status = route, status
        self._counted += 1

    def _put_counted(self) -> None:
        if self._counted:
            counts = self._requests.setdefault(self._counted_route, {})
            counts[self._counted_status] = counts.get(self._counted_status, 0) + self._counted
            self._counted = 0

    @property
    def requests(self) -> dict[Route[Handler] | None, dict[int, int]]:
        """How many were answered, by route and status."""
        self._put_counted()
        return self._requests

    def totals(self) -> tuple[int, int]:
        """Topics and bytes of all shards, asked for once per turn."""
        if not self._totals_known:
            self._topics, self._total_bytes = self.shards.totals()
            self._totals_known = True
        return self._topics, self._total_bytes

    def timings_json(self, timings: Timings) -> bytes:
        """The end of a document; answers of one turn share their timings, and these are put into words once."""
        if timings is not self._worded:
            self._worded, self._words = timings, _timings_json(timings)
        return self._words

    def flush(self) -> None:
        self._totals_known = False
        self.shards.flush()

    def replace_keys(self, ring: KeyRing) -> None:
        self.gatekeeper.replace_keys(ring)
        self.hub.keys_replaced(ring)
        self.work.keys_replaced(ring)
        self.flush()  # outside of a turn: jobs of streams that ended go back now

    def replay_progress(self) -> float:
        """0 to 1, of all shards together."""
        links = self.shards.links
        up = sum(link.up for link in links)
        if up == len(links):
            return 1.0
        return up / len(links) if self.replay is None else self.replay.replay_progress()

    def shard_restarts(self, shard: int) -> int:
        return 0 if self.replay is None else self.replay.shards[shard].restarts

    def why_not_ready(self, link: ShardStatus) -> str:
        told = None if self.replay is None else self.replay.shards[link.shard].why_not_ready()
        return told or link.reason

    def drain(self) -> None:
        """Answer new requests with 503 from now on; probes still work, those under way finish, streams end."""
        self.draining = True
        self.hub.shut_down()
        self.work.drain()
