"""The Quart app of the full lane: pages, documents and WebSockets, and the API for HTTP/2.

API paths go straight to the bridge. Everything else is for whoever registers it (`register(app)`);
a path that nobody did is a JSON 404 like any other error.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, cast

from quart import Response as QuartResponse
from quart_trio import QuartTrio
from werkzeug.exceptions import HTTPException
from werkzeug.exceptions import MethodNotAllowed as WerkzeugMethodNotAllowed

from gateway.exchange import Response
from gateway.fast_lane.bounds import EdgeOptions
from gateway.fast_lane.head import is_api_path
from gateway.fast_lane.refusals import error_response
from gateway.full_lane.asgi_bridge import AsgiBridge
from gateway.full_lane.asgi_types import AsgiApp, Send
from gateway.full_lane.early_answer import EarlyAnswer
from shared.errors import Internal, InvalidRequest, MethodNotAllowed, NotFound

log = logging.getLogger(__name__)

Register = Callable[[QuartTrio], None]
"""Adds routes to the app: pages, OpenAPI, WebSockets."""


class FullLaneApp(QuartTrio):
    def __init__(self, bridge: AsgiBridge, options: EdgeOptions) -> None:
        super().__init__("gateway.full_lane", static_folder=None)
        self._bridge = bridge
        self.websockets: dict[bytes, AsgiApp] = {}  # by path; others go to the framework
        self._linger_s = options.linger_ms / 1000
        self.config["MAX_CONTENT_LENGTH"] = options.max_body_bytes

    async def asgi_app(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket" and bytes(scope["raw_path"]) in self.websockets:
            await self.websockets[bytes(scope["raw_path"])](scope, receive, send)
            return
        if scope["type"] != "http":
            await super().asgi_app(scope, receive, send)
            return
        early = EarlyAnswer(receive, send, linger_s=self._linger_s)
        if is_api_path(bytes(scope["raw_path"]).decode("latin-1")):
            await self._bridge(scope, early.receive, early.send)
        else:
            await super().asgi_app(scope, cast(Any, early.receive), cast(Any, early.send))


async def reject_websocket(send: Send, response: Response) -> None:
    """Answer a handshake like any request."""
    headers = [("Content-Type", response.content_type), *response.headers]
    headers.append(("Content-Length", str(len(response.body))))
    raw = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]
    await send({"type": "websocket.http.response.start", "status": response.status, "headers": raw})
    await send({"type": "websocket.http.response.body", "body": response.body, "more_body": False})


def create_app(bridge: AsgiBridge, options: EdgeOptions, registrations: Sequence[Register]) -> FullLaneApp:
    app = FullLaneApp(bridge, options)
    app.register_error_handler(HTTPException, _http_error)
    app.register_error_handler(Exception, _bug)
    for register in registrations:
        register(app)
    return app


async def _http_error(error: HTTPException) -> QuartResponse | HTTPException:
    status = error.code or 500
    if status < 400:
        return error  # a redirect of a page
    if isinstance(error, WerkzeugMethodNotAllowed):
        allow = sorted(error.valid_methods or ())
        answer = error_response(MethodNotAllowed(allow=allow))
        answer.headers = (("Allow", ", ".join(allow)),)
        return _quart(answer)
    if status == 404:
        return _quart(error_response(NotFound()))
    if status < 500:
        return _quart(error_response(InvalidRequest(error.description or error.name), status=status))
    return _quart(error_response(Internal("the request met a bug in the server")))


async def _bug(error: Exception) -> QuartResponse:
    log.error("full_lane.page_failed", exc_info=error)
    return _quart(error_response(Internal("the request met a bug in the server")))


def _quart(response: Response) -> QuartResponse:
    return QuartResponse(
        response.body,
        status=response.status,
        content_type=response.content_type,
        headers=dict(response.headers),
    )
