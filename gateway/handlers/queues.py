"""Queues: claim, ack, nack, extend, look at leases, redrive dead letters, and streams of jobs.

Bodies go to the worker as they came. The gateway looks into them only where it must act itself: when a client
left before its jobs came, and when a stream has jobs of that queue leased to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gateway.core.auth import Access, check_name
from gateway.core.claims import empty_claim, jobs_of, no_decision_body, ready_of
from gateway.core.cursors import decode_cursor, encode_cursor
from gateway.core.router import Route, number_parameter, text_parameter
from gateway.exchange import StreamHead
from gateway.handlers.topics import page_size_parameter
from gateway.handlers.watch import accepts_event_stream
from shared.api_types import decode_claim, decode_redrive
from shared.errors import InvalidRequest, NotAcceptable
from shared.names import valid_topic_name
from shared.wire import Answer, Op

if TYPE_CHECKING:
    from gateway.io.shard_link import LeasedFiles, Reply
    from gateway.service import Call, Handler

_CURSOR_KIND = "leases"
_CANCELLED = 499  # what a worker answers to a request that was cancelled
_STREAM_HEAD = StreamHead(headers=(("Cache-Control", "no-store"), ("X-Accel-Buffering", "no")))


# --- claims ---------------------------------------------------------------------------------------------------


class _Claim:
    """A claim that may wait. It lets go of its call when that is answered: the exchange, which the call knows, keeps
    `stop_waiting` for longer, and what knows itself in a circle is left to the collector."""

    __slots__ = ("_body", "_call", "_id")

    def __init__(self, call: Call, body: bytes) -> None:
        self._call: Call | None = call
        self._body = body
        self._id = 0

    def ask(self) -> None:
        call = self._call
        assert call is not None
        exchange = call.exchange
        self._id = call.api.shards.request(Op.CLAIM, call.name, self._body, None, self._answered)
        if self._id:
            # A client that sends no more may be gone: a job for it would be one delivery for nothing.
            exchange.on_half_closed(self._stop_waiting)
            exchange.on_gone(self._stop_waiting)

    def _answered(self, reply: Reply, leased: LeasedFiles | None) -> None:
        call, self._call = self._call, None
        assert call is not None
        if not (call.exchange.gone or call.exchange.half_closed):
            call.reply(reply, leased)
        else:
            _finish_without_client(call, self._body, reply)

    def _stop_waiting(self) -> None:
        if self._call is not None:
            self._call.api.shards.cancel(self._call.name, self._id)


def claim(call: Call) -> None:
    _Claim(call, call.json_body()).ask()


def _finish_without_client(call: Call, body: bytes, reply: Reply) -> None:
    call.finish(lambda: _take_back(call, body, reply))


def _take_back(call: Call, body: bytes, reply: Reply) -> None:
    """The client left, or may have, before its jobs came: others get them, now and not when the lease runs out."""
    ready = 0
    if isinstance(reply, Answer) and reply.status == 200:
        jobs, ready = jobs_of(reply.body), ready_of(reply.body)
        if jobs:
            work = call.api.work
            leases = [(job.seq, job.lease_id) for job in jobs]
            until_ms = work.until_ms(jobs[0].deadline)
            work.release(call.name, decode_claim(body).node, leases, until_ms)
            ready += len(jobs)
    elif not (isinstance(reply, Answer) and reply.status == _CANCELLED):
        call.reply(reply, None)
        return
    call.succeed(200, empty_claim(call.name, ready))


# --- decisions ------------------------------------------------------------------------------------------------


def ack(call: Call) -> None:
    _decide(call, Op.ACK)


def nack(call: Call) -> None:
    _decide(call, Op.NACK)


def _decide(call: Call, op: int) -> None:
    body = call.json_body()
    work = call.api.work
    if not work.follows(call.name):
        call.ask(op, body, None)
        return

    def answered(reply: Reply, leased: LeasedFiles | None) -> None:
        call.reply(reply, leased)
        if isinstance(reply, Answer) and reply.status == 200:
            work.decided(call.name, body)

    call.api.shards.request(op, call.name, body, None, answered)


def extend(call: Call) -> None:
    body = call.json_body()
    work = call.api.work
    if not work.follows(call.name):
        call.ask(Op.EXTEND, body, None)
        return

    def answered(reply: Reply, leased: LeasedFiles | None) -> None:
        call.reply(reply, leased)
        if isinstance(reply, Answer) and reply.status == 200:
            work.extended(call.name, body, reply.body)

    call.api.shards.request(Op.EXTEND, call.name, body, None, answered)


# --- looking and moving ---------------------------------------------------------------------------------------


def leases(call: Call) -> None:
    cursor = text_parameter(call.query, "cursor")
    options: dict[str, object] = {"limit": page_size_parameter(call.query)}
    if cursor:
        options["after"] = int(decode_cursor(_CURSOR_KIND, cursor))

    def answered(reply: Reply, leased: LeasedFiles | None) -> None:
        if isinstance(reply, Answer) and reply.status == 200:
            call.succeed(200, _with_opaque_cursor(reply.body), reply.timings)
        else:
            call.reply(reply, leased)

    call.api.shards.request(Op.LEASES, call.name, b"", options, answered)


_CURSOR_FIELD = b',"next_cursor":"'  # cannot stand inside a string, where its quotes would be escaped


def _with_opaque_cursor(open_body: bytes) -> bytes:
    before, field, value = open_body.rpartition(_CURSOR_FIELD)
    if not field:
        return open_body
    seq = value.rstrip(b'"').decode()
    return before + field + encode_cursor(_CURSOR_KIND, seq).encode() + b'"'


def redrive(call: Call) -> None:
    body = call.json_body()
    source = decode_redrive(body).source
    if not valid_topic_name(source):
        raise InvalidRequest("from is not a valid topic name", detail={"field": "from"})
    check_name(call.key, source)

    def move() -> None:
        call.api.shards.request(Op.REDRIVE, source, body, {"to": call.name}, call.reply)

    _when_a_queue(call, "redrive", move)


def _when_a_queue(call: Call, node: str, go_on: Callable[[], None]) -> None:
    """Deciding about no job at all is refused for everything that is not a queue, and changes nothing."""

    def answered(reply: Reply, leased: LeasedFiles | None) -> None:
        if isinstance(reply, Answer) and reply.status == 200:
            call.finish(go_on)
        else:
            call.reply(reply, leased)

    call.api.shards.request(Op.NACK, call.name, no_decision_body(node), None, answered)


# --- streams --------------------------------------------------------------------------------------------------


def work(call: Call) -> None:
    if not accepts_event_stream(call.exchange.headers.get("accept")):
        raise NotAcceptable()
    node = text_parameter(call.query, "node")
    if not node:
        raise InvalidRequest("node is required", detail={"parameter": "node"})
    api = call.api
    asked = number_parameter(call.query, "max")
    most = max(1, min(1 if asked is None else asked, api.settings.max_claim))
    lease_ms = number_parameter(call.query, "lease_ms")

    def begin() -> None:
        api.hub.streams.check(call.key)
        stream = call.respond_stream(_STREAM_HEAD)
        if stream.gone:
            return  # HEAD, or left meanwhile: nobody to lease a job to
        api.hub.streams.enter(call.key)
        api.work.open(
            stream,
            key=call.key,
            topic=call.name,
            node=node,
            most=most,
            lease_ms=lease_ms,
            on_end=lambda: api.hub.streams.leave(call.key),
        )

    _when_a_queue(call, node, begin)


ROUTES: list[Route[Handler]] = [
    Route("POST", "/v0/topics/:name/claim", claim, Access.READ_WRITE),
    Route("POST", "/v0/topics/:name/ack", ack, Access.WRITE),
    Route("POST", "/v0/topics/:name/nack", nack, Access.WRITE),
    Route("POST", "/v0/topics/:name/extend", extend, Access.WRITE),
    Route("GET", "/v0/topics/:name/leases", leases, Access.READ),
    Route("POST", "/v0/topics/:name/redrive", redrive, Access.WRITE_DELETE),
    Route("GET", "/v0/topics/:name/work", work, Access.READ_WRITE, sse=True),
]
