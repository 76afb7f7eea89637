"""Topics: create, show, list, delete."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

import msgspec

from gateway.core.auth import Access, check_name, visible_prefixes
from gateway.core.cursors import decode_cursor, encode_cursor
from gateway.core.router import Query, Route, flag_parameter, number_parameter, text_parameter
from gateway.router_changes import removed_names
from shared.api_types import decode_config
from shared.errors import Internal, InvalidRequest
from shared.limits import PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX
from shared.wire import Answer, LinkError, Op, decode_list_body

if TYPE_CHECKING:
    from gateway.io.shard_link import LeasedFiles, Reply
    from gateway.service import Call, Handler

_CURSOR_KIND = "topics"


def put_topic(call: Call) -> None:
    body = call.json_body()
    if call.key is not None and call.key.prefixes:
        # A dead letter is written to the topic named here, so the key must reach that one, too.
        dead_letter = decode_config(body).dead_letter
        if isinstance(dead_letter, str):
            check_name(call.key, dead_letter)
    call.ask(Op.PUT_TOPIC, body, call.api.caps.nocreate(call.api.shards.totals()[0]))


def get_topic(call: Call) -> None:
    touch = flag_parameter(call.query, "touch", default=True)
    call.ask(Op.STATE, b"", None if touch else {"touch": False})


def delete_topic(call: Call) -> None:
    if_empty = flag_parameter(call.query, "if_empty", default=False)

    def answered(reply: Reply, leased: LeasedFiles | None) -> None:
        if isinstance(reply, Answer) and reply.status == 200:
            call.finish(lambda: _remove_routers_to(call, reply))
        else:
            call.reply(reply, leased)

    options = {"if_empty": True} if if_empty else None
    call.api.shards.request(Op.DELETE_TOPIC, call.name, b"", options, answered)


class _Deleted(msgspec.Struct):
    topic: str
    deleted: bool
    routers_removed: list[str]


_deleted_decoder = msgspec.json.Decoder(_Deleted)


def _remove_routers_to(call: Call, answer: Answer) -> None:
    """The topic is gone, and with it the routers from it. Those that lead to it are on any shard.

    One that is down is not waited for: its routers find out by themselves that their destination is gone.
    """
    deleted = _deleted_decoder.decode(answer.body + b"}")
    if not deleted.deleted:
        call.succeed(200, answer.body, answer.timings)
        return

    def removed(replies: list[Reply]) -> None:
        names, _ = removed_names(replies)
        deleted.routers_removed = sorted({*deleted.routers_removed, *names})
        call.succeed(200, msgspec.json.encode(deleted)[:-1], answer.timings)

    def told(replies: list[Reply]) -> None:
        call.finish(lambda: removed(replies))

    call.api.shards.request_all(Op.ROUTER_DELETE, {"dest": call.name}, told)
    call.api.shards.flush()


def list_topics(call: Call) -> None:
    query = call.query
    page_size = page_size_parameter(query)
    cursor = text_parameter(query, "cursor")
    options = {
        "prefix": text_parameter(query, "prefix"),
        "after": decode_cursor(_CURSOR_KIND, cursor) if cursor else "",
        "limit": page_size,
        "prefixes": visible_prefixes(call.key),
    }

    def answer(replies: list[Reply]) -> None:
        entries, more = merge_pages(replies, page_size)
        body = b'{"topics":[' + b",".join(entry for _, entry in entries) + b"]"
        if more:
            body += b',"next_cursor":"%b"' % encode_cursor(_CURSOR_KIND, entries[-1][0]).encode()
        call.succeed(200, body)

    call.api.shards.request_all(Op.LIST, options, lambda replies: call.finish(lambda: answer(replies)))


def page_size_parameter(query: Query) -> int:
    page_size = number_parameter(query, "page_size")
    if page_size is None:
        return PAGE_SIZE_DEFAULT
    if page_size == 0:
        raise InvalidRequest("page_size must be at least 1", detail={"parameter": "page_size"})
    return min(page_size, PAGE_SIZE_MAX)


def merge_pages(replies: list[Reply], page_size: int) -> tuple[list[tuple[str, bytes]], bool]:
    """All shards' pages as one, in name order, and whether there is a next one.

    A list with a hole would be a lie, so one missing shard fails it all. A shard that has more than it sent
    ends what can be said at its last name: another shard's later names wait for the next page.
    """
    merged: list[tuple[str, bytes]] = []
    ends: list[str] = []
    for reply in replies:
        if not isinstance(reply, Answer):
            raise reply
        if reply.status != 200:
            raise Internal(f"a shard answered LIST with {reply.status}")
        try:
            items, more = decode_list_body(reply.body)
        except LinkError as err:
            raise Internal("a shard's LIST is not what was agreed") from err
        merged += items
        if more:
            ends.append(items[-1][0] if items else "")
    merged.sort(key=lambda item: item[0])
    if ends:
        known = bisect_right(merged, min(ends), key=lambda item: item[0])
        if known == 0:
            raise Internal("a shard promised more names and sent none")
        return merged[: min(known, page_size)], True
    return merged[:page_size], len(merged) > page_size


ROUTES: list[Route[Handler]] = [
    Route("GET", "/v0/topics", list_topics, Access.READ),
    Route("PUT", "/v0/topics/:name", put_topic, Access.ADMIN),
    Route("GET", "/v0/topics/:name", get_topic, Access.READ),
    Route("DELETE", "/v0/topics/:name", delete_topic, Access.DELETE),
]
