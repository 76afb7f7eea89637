"""Watching, in the words of the OpenAPI document."""

from __future__ import annotations

from msgspec import Struct

from gateway.core.watch_session import WatchRequest, WatchTopic
from gateway.full_lane.openapi_parts import (
    BAD_TYPE,
    NOT_FOUND,
    SHARD_DOWN,
    TIMING,
    Events,
    Json,
    Operation,
    Success,
    flag,
    query,
)
from shared.api_types import Millis, Performance
from shared.errors import NotAcceptable, NotFound, Throttled

TAG = "Watch"
TAG_TEXT = "Many topics live on one connection, resumable, with every loss told."


class WatchCreated(Struct):
    """Answer of `POST /v0/watch`."""

    wid: str
    stream_url: str
    session_ttl_ms: Millis
    topics: dict[str, WatchTopic]
    performance: Performance


_WID = "wid_BuRguGorNdVFWNQULz-rrw"
_CREATED: Json = {
    "wid": _WID, "stream_url": f"/v0/watch/{_WID}", "session_ttl_ms": 300000,
    "topics": {"orders": {"from_seq": 0, "head_seq": 2, "earliest_seq": 1}}, "performance": TIMING,
}  # fmt: skip

OPERATIONS: dict[tuple[str, str], Operation] = {
    ("POST", "/v0/watch"): Operation(
        id="createWatch",
        tag=TAG,
        summary="Make a watch session",
        text="Says what to watch, from where and in which form. The answer names the stream to open; the session keeps "
        "the cursors, so a reader that comes back goes on where it was. A session without a stream goes after "
        "`session_ttl_ms`.",
        parameters=(flag("lenient", False, "Leave unknown topics out instead of answering 404."),),
        body=WatchRequest,
        body_required=True,
        bodies={
            "one topic from its start, another from now on": {
                "topics": {"orders": {"from_seq": 0}, "news": {"tail": True}}
            }
        },
        answers=(Success(200, "The session.", WatchCreated, _CREATED),),
        errors=(NOT_FOUND, BAD_TYPE, SHARD_DOWN, Throttled(limit="max_watch_sessions", max=10000)),
    ),
    ("GET", "/v0/watch/:name"): Operation(
        id="openWatch",
        tag=TAG,
        summary="Open the stream of a session",
        text="Server-sent events until the client leaves, every topic is gone, or the server stops. A second stream of "
        "the same session takes the place of the first. `Last-Event-ID` can only rewind.",
        parameters=(
            query("token", {"type": "string"}, "The API key, for clients that cannot send headers."),
        ),
        answers=(
            Events(
                "The stream: `record`, `tombstone`, `caught-up`, `topic-deleted` and `error` events, and comments as "
                "heartbeats.",
                'retry: 2000\n\nevent: record\nid: eyJvcmRlcnMiOjF9\ndata: {"topic":"orders","records":[{"$seq":1,'
                '"$ts":1794800130274,"data":{"sku":"AEROPRESS"}}],"from_seq":1,"to_seq":1,"head_seq":1}\n\n',
            ),
        ),
        errors=(
            NotFound("there is no such watch session, or it has expired"),
            NotAcceptable(),
            Throttled(limit="max_sse_connections", max=10000),
        ),
    ),
}
