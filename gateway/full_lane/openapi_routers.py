"""The operations on routers, in the words of the OpenAPI document."""

from __future__ import annotations

from gateway.full_lane.openapi_parts import (
    BAD_TYPE,
    NOT_FOUND,
    PAGE_PARAMETERS,
    SHARD_DOWN,
    TIMING,
    Json,
    Operation,
    Success,
    query,
)
from shared import router_types
from shared.errors import RouterCycle, RouterNotFound, Throttled, TopicExistsIncompatible
from shared.limits import ROUTER_MAX_HOPS

TAG = "Routers"
TAG_TEXT = (
    "A router copies every record that comes to one topic to another, in order, off the path of the write."
)

_NAME = "orders>audit"
_ABSENT = RouterNotFound(router=_NAME)
_RULES: Json = {
    "source": "orders", "dest": "audit", "preserve_node": True, "preserve_tag": True, "create_dest": True,
    "filter": None, "allow_cycle": False, "guarantee": "at_least_once",
}  # fmt: skip
_ENTRY: Json = {
    "router": _NAME, **_RULES, "forwarded_total": 31, "lag": 0, "cursor": 31, "state": "caught_up", "last_error": None,
}  # fmt: skip

OPERATIONS: dict[tuple[str, str], Operation] = {
    ("GET", "/v0/routers"): Operation(
        id="listRouters",
        tag=TAG,
        summary="List routers",
        text="All routers in name order, across all shards.",
        parameters=(
            query("prefix", {"type": "string"}, "Only names that start with this."),
            query("source", {"type": "string"}, "Only those that copy from this topic."),
            query("dest", {"type": "string"}, "Only those that copy to this topic."),
            *PAGE_PARAMETERS,
        ),
        answers=(
            Success(
                200,
                "One page; `next_cursor` is there if more follow.",
                router_types.RouterList,
                {"routers": [_ENTRY], "performance": TIMING},
            ),
        ),
        errors=(SHARD_DOWN,),
    ),
    ("PUT", "/v0/routers/:name"): Operation(
        id="putRouter",
        tag=TAG,
        summary="Define a router",
        text="Copies what is written to `source` from now on to `dest`. A repeat changes the rules and leaves the "
        "router where it stands; another `source` or `dest` makes it begin anew. Needs all shards, because a cycle may "
        "run through any of them.",
        body=router_types.RouterIn,
        body_required=True,
        bodies={
            "copy everything": {"source": "orders", "dest": "audit"},
            "only some, exactly once": {
                "source": "orders",
                "dest": "orders-eu",
                "filter": ["tag", "Glob", "eu-*"],
                "guarantee": "exactly_once",
            },
        },
        answers=(
            Success(
                201,
                "It was created.",
                router_types.RouterPut,
                {"router": _NAME, "created": True, **_RULES, "performance": TIMING},
            ),
            Success(
                200,
                "It existed, and is as asked for now.",
                router_types.RouterPut,
                {"router": _NAME, "created": False, **_RULES, "performance": TIMING},
            ),
        ),
        errors=(
            NOT_FOUND,
            RouterCycle(cycle=["orders", "audit", "orders"]),
            TopicExistsIncompatible(
                "router other copies to audit already, from another topic; a destination has one source",
                detail={"reason": "router_dest_fan_in", "dest": "audit", "router": "other"},
            ),
            BAD_TYPE,
            Throttled(limit="max_routers", max=10_000),
            SHARD_DOWN,
        ),
    ),
    ("GET", "/v0/routers/:name"): Operation(
        id="getRouter",
        tag=TAG,
        summary="Show a router",
        text="Its rules and how far it is. `lag` counts the source's seqs that it has not dealt with yet.",
        answers=(
            Success(
                200,
                "The router as it is now.",
                router_types.RouterState,
                {**_ENTRY, "performance": TIMING},
            ),
        ),
        errors=(_ABSENT, SHARD_DOWN),
    ),
    ("DELETE", "/v0/routers/:name"): Operation(
        id="deleteRouter",
        tag=TAG,
        summary="Delete a router",
        text="Copies that were on their way may still arrive, later records are not copied. A router that is not there "
        "is no error: `deleted` is false.",
        answers=(
            Success(
                200,
                "It is gone.",
                router_types.RouterDeleted,
                {"router": _NAME, "deleted": True, "performance": TIMING},
            ),
        ),
        errors=(SHARD_DOWN,),
    ),
}


def notes(match: Json, topic_pattern: str) -> dict[str, dict[str, Json]]:
    """What the types do not say about their fields; see gateway/full_lane/openapi.py."""
    name: Json = {"pattern": topic_pattern}
    return {
        "RouterIn": {
            "source": {**name, "description": "The topic to copy from. It must exist."},
            "dest": {**name, "description": "The topic to copy to: another one, and no other source copies to it."},
            "preserve_node": {"description": "Copies keep their `node`."},
            "preserve_tag": {"description": "Copies keep their `tag`."},
            "create_dest": {"description": "Create `dest` if it is absent; with false that is a 404."},
            "filter": {**match, "description": "Copy only records that match; null = all."},
            "allow_cycle": {
                "description": "Copies may come back to where they were written. Each pass counts a hop in `meta`, and "
                f"after {ROUTER_MAX_HOPS} of them the record stays where it is."
            },
            "guarantee": {
                "description": "`exactly_once` marks each copy in its `meta` with the record it was made from, and "
                "never makes a second one."
            },
        },
        "RouterEntry": _shown(),
        "RouterState": _shown(),
        "RouterDeleted": {"deleted": {"description": "Was it there?"}},
    }  # fmt: skip


def _shown() -> dict[str, Json]:
    return {
        "forwarded_total": {"description": "Copies that the destination has confirmed."},
        "lag": {"description": "Seqs of the source that it has not dealt with yet."},
        "cursor": {"description": "The last seq of the source that it has dealt with."},
        "state": {
            "description": "`retrying`: the destination refuses or cannot be reached; `last_error` says why."
        },
        "last_error": {"description": "The error code of the last refusal; null once it goes on."},
    }
