"""Routers: define, show, list, delete.

A router is kept with its source, and its name does not say where that is: looking for one asks all shards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gateway.core.auth import Access, check_name, check_names, visible_prefixes
from gateway.core.cursors import decode_cursor, encode_cursor
from gateway.core.router import Route, text_parameter
from gateway.handlers.topics import merge_pages, page_size_parameter
from gateway.router_changes import PutRouter, removed_names
from shared.errors import InvalidRequest, RouterNotFound, TopicsError
from shared.names import valid_router_name
from shared.router_types import RouterEntry, decode_router
from shared.wire import Answer, Op

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.io.shard_link import Reply
    from gateway.service import Call, Handler

_CURSOR_KIND = "routers"
_entries = msgspec.json.Decoder(RouterEntry)


def put_router(call: Call) -> None:
    _check_router_name(call)
    body = call.json_body()
    wanted = decode_router(body)
    check_names(call.key, (wanted.source, wanted.dest))
    changes = call.api.router_changes
    changes.submit(PutRouter(call, changes, body, wanted).run)


def get_router(call: Call) -> None:
    _check_router_name(call)

    def answer(found: Answer) -> None:
        call.succeed(200, found.body, found.timings)

    _find(call, answer, lambda: call.fail(RouterNotFound(router=call.name)))


def delete_router(call: Call) -> None:
    _check_router_name(call)
    if call.key is not None and call.key.prefixes:
        # First see whose topics it touches.
        _find(call, lambda _: _delete(call), lambda: _deleted(call, False))
    else:
        _delete(call)


def _delete(call: Call) -> None:
    changes = call.api.router_changes

    def change(done: Callable[[], None]) -> None:
        def answer(replies: list[Reply]) -> None:
            names, error = removed_names(replies)
            if names or error is None:
                _deleted(call, bool(names))
            else:
                call.fail(error)

        def told(replies: list[Reply]) -> None:
            try:
                call.finish(lambda: answer(replies))
            finally:
                done()

        call.api.shards.request_all(Op.ROUTER_DELETE, {"router": call.name}, told)
        call.api.shards.flush()

    changes.submit(change)


def _deleted(call: Call, deleted: bool) -> None:
    call.succeed(200, msgspec.json.encode({"router": call.name, "deleted": deleted})[:-1])


def _find(call: Call, found: Callable[[Answer], None], absent: Callable[[], None]) -> None:
    """Look for the router on all shards. One that is down may have it, so absence needs all of them."""

    def answer(replies: list[Reply]) -> None:
        error: TopicsError | None = None
        for reply in replies:
            if not isinstance(reply, Answer):
                error = reply
            elif reply.status == 200:
                if call.key is not None:
                    entry = _entries.decode(reply.body + b"}")
                    check_names(call.key, (entry.source, entry.dest))
                found(reply)
                return
        if error is not None:
            raise error
        absent()

    options = {"router": call.name}
    call.api.shards.request_all(Op.ROUTER_GET, options, lambda replies: call.finish(lambda: answer(replies)))


def list_routers(call: Call) -> None:
    query = call.query
    page_size = page_size_parameter(query)
    cursor = text_parameter(query, "cursor")
    options = {
        "prefix": text_parameter(query, "prefix"),
        "source": text_parameter(query, "source"),
        "dest": text_parameter(query, "dest"),
        "after": decode_cursor(_CURSOR_KIND, cursor) if cursor else "",
        "limit": page_size,
        "prefixes": visible_prefixes(call.key),
    }

    def answer(replies: list[Reply]) -> None:
        entries, more = merge_pages(replies, page_size)
        body = b'{"routers":[' + b",".join(entry for _, entry in entries) + b"]"
        if more:
            body += b',"next_cursor":"%b"' % encode_cursor(_CURSOR_KIND, entries[-1][0]).encode()
        call.succeed(200, body)

    call.api.shards.request_all(Op.ROUTER_LIST, options, lambda replies: call.finish(lambda: answer(replies)))


def _check_router_name(call: Call) -> None:
    if not valid_router_name(call.name):
        raise InvalidRequest("the path does not hold a valid router name")
    check_name(call.key, call.name)


ROUTES: list[Route[Handler]] = [
    Route("GET", "/v0/routers", list_routers, Access.READ),
    Route("PUT", "/v0/routers/:name", put_router, Access.ADMIN, opaque=True),
    Route("GET", "/v0/routers/:name", get_router, Access.READ, opaque=True),
    Route("DELETE", "/v0/routers/:name", delete_router, Access.DELETE, opaque=True),
]
