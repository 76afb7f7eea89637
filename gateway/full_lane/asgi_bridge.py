"""API calls that arrive by ASGI (HTTP/2): the same exchange, the same handlers, the same answers.

The call goes from ASGI straight to the API, without a web framework in between: a framework would
decode, normalise and redirect paths, and the two lanes would no longer see the same request.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import trio

from gateway.api import ApiPort
from gateway.exchange import Response
from gateway.fast_lane.bounds import STREAM_STALL_FACTOR, EdgeOptions
from gateway.fast_lane.dispatch import dispatch
from gateway.fast_lane.head import check_target
from gateway.fast_lane.lane import FastLane
from gateway.fast_lane.refusals import Refusal, bad_request
from gateway.fast_lane.response_head import BODYLESS
from gateway.full_lane.asgi_exchange import AsgiExchange, AsgiStream
from gateway.full_lane.asgi_types import Message, Receive, Scope, Send
from shared.errors import PayloadTooLarge

_SEND_PIECE_BYTES = 256 * 1024


class AsgiBridge:
    """An ASGI application that is the API."""

    def __init__(self, api: ApiPort, lane: FastLane, options: EdgeOptions) -> None:
        self._api = api
        self._lane = lane
        self._options = options

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = AsgiExchange(scope, time.perf_counter())
        try:
            check_target(f"{exchange.path}?{exchange.query}" if exchange.query else exchange.path)
            body = await self._read_body(exchange, receive)
        except Refusal as refusal:
            await self._send_response(refusal.response(), send)
            return
        if body is None:
            return  # gone before the request was complete
        exchange.body = body
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_disconnect, exchange, receive, nursery.cancel_scope)
            with self._lane.turn():
                dispatch(self._api, exchange)
            await exchange.ready.wait()
            if exchange.stream is not None:
                await self._send_stream(exchange.stream, send)
            elif exchange.response is not None:
                try:
                    await self._send_response(exchange.response, send)
                finally:
                    if exchange.response.release is not None:
                        exchange.response.release()
            nursery.cancel_scope.cancel()

    async def _read_body(self, exchange: AsgiExchange, receive: Receive) -> bytes | None:
        limit = self._options.max_body_bytes
        declared = exchange.headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > limit:
            raise Refusal(PayloadTooLarge(max_bytes=limit))
        body = bytearray()
        with trio.move_on_after(self._options.request_timeout_ms / 1000):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return None
                body += message.get("body", b"")
                if len(body) > limit:
                    raise Refusal(PayloadTooLarge(max_bytes=limit))
                if not message.get("more_body", False):
                    return bytes(body)
        raise bad_request("the request did not arrive in time", status=408)

    async def _watch_disconnect(
        self, exchange: AsgiExchange, receive: Receive, scope: trio.CancelScope
    ) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        with self._lane.turn():
            exchange.lose()
        scope.cancel()

    async def _send_response(self, response: Response, send: Send) -> None:
        body = response.body + response.tail
        head = _head_message(response.status, response.content_type, response.headers, length=len(body))
        timeout = self._options.write_timeout_ms / 1000
        with trio.move_on_after(timeout) as scope:
            await send(head)
            view = memoryview(body)
            for start in range(0, len(view), _SEND_PIECE_BYTES):
                scope.deadline = trio.current_time() + timeout
                piece = bytes(view[start : start + _SEND_PIECE_BYTES])
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_stream(self, stream: AsgiStream, send: Send) -> None:
        timeout = STREAM_STALL_FACTOR * self._options.write_timeout_ms / 1000
        await send(
            _head_message(stream.head.status, stream.head.content_type, stream.head.headers, length=None)
        )
        # Hypercorn holds the head back until the first body message: an idle stream would look unanswered.
        await send({"type": "http.response.body", "body": b"", "more_body": True})
        while (frame := await stream.next_frame()) is not None:
            with trio.move_on_after(timeout) as scope:
                await send({"type": "http.response.body", "body": frame, "more_body": True})
            if scope.cancelled_caught:
                with self._lane.turn():
                    stream.lose()
                return
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _head_message(
    status: int, content_type: str, headers: Sequence[tuple[str, str]], *, length: int | None
) -> Message:
    raw = [(b"content-type", content_type.encode("latin-1"))]
    raw += [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]
    if length is not None and status not in BODYLESS:
        raw.append((b"content-length", b"%d" % length))
    return {"type": "http.response.start", "status": status, "headers": raw}
