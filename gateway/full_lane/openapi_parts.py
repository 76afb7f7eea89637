"""What is said about a route in the OpenAPI document, beyond what the router's table and the types know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from shared.api_types import U64_MAX
from shared.errors import ShardUnavailable, TopicNotFound, TopicsError, UnsupportedMediaType
from shared.limits import PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX

Json = dict[str, Any]

# Errors stand here as they would be raised, so that codes, statuses and example bodies are the real ones.
NOT_FOUND = TopicNotFound(topic="orders")
SHARD_DOWN = ShardUnavailable(shard=1, reason="the shard is starting")
BAD_TYPE = UnsupportedMediaType()

TIMING = {"server_total_ms": 0.412}


@dataclass(frozen=True, slots=True)
class Success:
    status: int
    text: str
    type: type[msgspec.Struct]
    example: Json
    also_text: str | None = None  # the same answer as text/plain


@dataclass(frozen=True, slots=True)
class Events:
    """An answer that is a stream of events."""

    text: str
    example: str
    status: int = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    id: str
    tag: str
    summary: str
    text: str
    answers: tuple[Success | Events, ...]
    parameters: tuple[Json, ...] = ()
    query_of: type[msgspec.Struct] | None = None  # its fields are query parameters
    body: type[msgspec.Struct] | None = None
    body_required: bool = False
    bodies: Mapping[str, Json] | None = None  # example bodies by title; the first one is used for curl
    errors: tuple[TopicsError, ...] = ()
    curl_query: str = ""  # what a call needs in its query


def query(name: str, schema: Json, text: str, *, required: bool = False) -> Json:
    return {"name": name, "in": "query", "required": required, "description": text, "schema": schema}


def flag(name: str, default: bool, text: str) -> Json:
    return query(name, {"type": "boolean", "default": default}, text)


PAGE_PARAMETERS = (
    query(
        "page_size",
        {"type": "integer", "minimum": 1, "maximum": U64_MAX, "default": PAGE_SIZE_DEFAULT},
        f"Entries on one page; more than {PAGE_SIZE_MAX} counts as {PAGE_SIZE_MAX}.",
    ),
    query("cursor", {"type": "string"}, "`next_cursor` of the page before, as it was given."),
)
