"""Requests that went wrong or took long, one line each: enough to find them, nothing of what they carried.

A line names the route, the topic and the error's code, never a body, a header or a message, which may quote one. The
client learns the id of a failed request from `X-Request-Id`; it may bring one of its own under that name.
"""

from __future__ import annotations

import logging
import os
import re
import time
from typing import Final

import msgspec

from gateway.exchange import Exchange, Response

log = logging.getLogger(__name__)

REQUEST_ID: Final = "X-Request-Id"
_GIVEN_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,64}")
LINES_PER_S: Final = 10
"""Of either kind. A shard that is down fails every request for it, and a log must not become the next problem."""


class _Code(msgspec.Struct):
    code: str


class _ErrorBody(msgspec.Struct):
    error: _Code


_error_body = msgspec.json.Decoder(_ErrorBody)


class LineBudget:
    def __init__(self, lines_per_s: int) -> None:
        self._lines_per_s = lines_per_s
        self._second = -1
        self._spent = 0
        self._left_out = 0

    def take(self, now_s: float) -> int | None:
        """None: no more lines in this second. Else the number of lines that were left out before this one."""
        if int(now_s) != self._second:
            self._second, self._spent = int(now_s), 0
        if self._spent >= self._lines_per_s:
            self._left_out += 1
            return None
        self._spent += 1
        left_out, self._left_out = self._left_out, 0
        return left_out


class RequestLog:
    def __init__(self, slow_request_ms: int) -> None:
        self.slow_s = slow_request_ms / 1000 if slow_request_ms else float("inf")
        self.slow_requests = 0
        self._failed = LineBudget(LINES_PER_S)
        self._slow = LineBudget(LINES_PER_S)

    def note(self, exchange: Exchange, route: str, topic: str, response: Response, took_s: float) -> None:
        """Called for answers that are 5xx or took `slow_s`. One that failed gets its id as a header."""
        fields: dict[str, object] = {
            "request_id": request_id(exchange),
            "method": exchange.method,
            "route": route,
            "topic": topic,
            "status": response.status,
            "took_ms": round(took_s * 1000, 1),
            "peer": exchange.peer,
        }
        if response.status >= 500:
            response.headers = (*response.headers, (REQUEST_ID, str(fields["request_id"])))
            fields["code"] = _code_of(response.body)
            # 503: refused for now, and told when to come again. Anything else is our fault.
            level = logging.WARNING if response.status == 503 else logging.ERROR
            _write(level, "request.failed", fields, self._failed)
        elif not _meant_to_wait(exchange):
            self.slow_requests += 1
            _write(logging.WARNING, "request.slow", fields, self._slow)


def _write(level: int, event: str, fields: dict[str, object], budget: LineBudget) -> None:
    left_out = budget.take(time.monotonic())
    if left_out is None:
        return
    if left_out:
        fields["left_out"] = left_out
    log.log(level, event, extra=fields)


def request_id(exchange: Exchange) -> str:
    given = exchange.headers.get("x-request-id", "")
    return given if _GIVEN_ID.fullmatch(given) else os.urandom(8).hex()


def _meant_to_wait(exchange: Exchange) -> bool:
    return b"wait_ms" in exchange.body or "wait_ms" in exchange.query


def _code_of(body: bytes) -> str:
    try:
        return _error_body.decode(body).error.code
    except msgspec.MsgspecError:
        return ""
