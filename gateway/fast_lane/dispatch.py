"""Starting a request so that a bug met by one of them stays that one's problem."""

from __future__ import annotations

import logging

from gateway.api import ApiPort
from gateway.exchange import Exchange
from gateway.fast_lane.refusals import error_response
from shared.errors import Internal

log = logging.getLogger(__name__)


def dispatch(api: ApiPort, exchange: Exchange) -> None:
    try:
        api.handle(exchange)
    except Exception:
        log.exception("edge.api_failed", extra={"method": exchange.method, "peer": exchange.peer})
        if not exchange.answered:
            exchange.respond(error_response(Internal("the request met a bug in the server")))
