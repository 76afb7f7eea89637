"""Watch: make a session, open its stream. What flows there is gateway/watch_hub.py's business."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gateway.core.auth import Access
from gateway.core.router import Route, flag_parameter
from gateway.core.watch_session import decode_watch, parse_last_event_id, plan_watch
from gateway.exchange import StreamHead
from shared.errors import Forbidden, NotAcceptable, NotFound, TopicsError

if TYPE_CHECKING:
    from gateway.service import Call, Handler
    from gateway.watch_hub import Created

_encoder = msgspec.json.Encoder()

_STREAM = StreamHead(headers=(("Cache-Control", "no-store"), ("X-Accel-Buffering", "no")))


def create(call: Call) -> None:
    api = call.api
    plan = plan_watch(decode_watch(call.json_body()), api.settings, call.key)
    lenient = flag_parameter(call.query, "lenient", default=False)

    def done(outcome: Created | TopicsError) -> None:
        if isinstance(outcome, TopicsError):
            call.fail(outcome)
            return
        session, topics = outcome
        body = _encoder.encode(
            {
                "wid": session.wid,
                "stream_url": f"/v0/watch/{session.wid}",
                "session_ttl_ms": api.hub.options.session_ttl_ms,
                "topics": topics,
            }
        )
        call.succeed(200, body[:-1])

    api.hub.create(plan, call.key, lenient=lenient, done=done)


def stream(call: Call) -> None:
    if not accepts_event_stream(call.exchange.headers.get("accept")):
        raise NotAcceptable()
    hub = call.api.hub
    session = hub.sessions.get(call.name)
    if session is None:
        raise NotFound("there is no such watch session, or it has expired")
    if session.key != call.key:
        raise Forbidden("this session belongs to another key")
    text = call.exchange.headers.get("last-event-id")
    last = parse_last_event_id(text) if text else None
    if session.stream is None:  # one that is open gives its place to this one
        hub.streams.check(call.key)
    hub.open(session, call.respond_stream(_STREAM), last)


def accepts_event_stream(accept: str | None) -> bool:
    if not accept:
        return True
    for choice in accept.split(","):
        kind, *parameters = (part.strip().lower() for part in choice.split(";"))
        if kind in ("text/event-stream", "text/*", "*/*"):
            weights = [text.partition("=")[2] for text in parameters if text.partition("=")[0].strip() == "q"]
            if not weights or weights[0].strip("0. "):
                return True
    return False


ROUTES: list[Route[Handler]] = [
    Route("POST", "/v0/watch", create, Access.READ),
    Route("GET", "/v0/watch/:name", stream, Access.READ, sse=True, opaque=True),
]
