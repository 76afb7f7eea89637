"""The OpenAPI document: paths from the router's table, schemas from the types that decode requests.

`OPERATIONS` says about each route what neither of them knows: words, examples, and which errors it can give.
Errors stand there as exceptions, so that codes, statuses and example bodies are the real ones. A route
without an entry cannot be documented, and a test fails (tests/e2e/test_openapi.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus

import msgspec

from gateway.core.auth import Access
from gateway.core.router import Route
from gateway.full_lane import openapi_queues, openapi_routers, openapi_watch
from gateway.full_lane.openapi_parts import (
    BAD_TYPE,
    NOT_FOUND,
    PAGE_PARAMETERS,
    SHARD_DOWN,
    TIMING,
    Events,
    Json,
    Operation,
    Success,
    flag,
    query,
)
from gateway.service import Handler
from shared import api_types
from shared.api_types import CLAMPED, DEFAULT_CONFIG, U64_MAX, Performance
from shared.errors import (
    BatchTooLarge,
    Forbidden,
    Internal,
    InvalidRequest,
    NotReady,
    PayloadTooLarge,
    RecordTooLarge,
    ShuttingDown,
    Throttled,
    TopicExistsIncompatible,
    TopicFull,
    TopicNotEmpty,
    TopicsError,
    Unauthorized,
)
from shared.limits import (
    IDEMPOTENCY_KEY_MAX_CHARS,
    META_MAX_KEYS,
    READ_DEFAULT_BYTES,
    READ_DEFAULT_LIMIT,
    READ_MAX_BYTES,
    WAIT_MAX_MS,
)
from shared.match import FIELDS
from shared.names import ROUTER_NAME, TOPIC_NAME
from shared.settings import Settings

JSON = "application/json"
EVENT_STREAM = "text/event-stream"
SCHEMAS = "#/components/schemas/"


class ShardMetrics(msgspec.Struct):
    """Numbers of one shard by name; empty while the shard is down."""

    gauges: dict[str, api_types.AnyJson]
    counters: dict[str, api_types.AnyJson]
    histograms: dict[str, api_types.AnyJson]
    per_topic: dict[str, api_types.AnyJson]


class Metrics(msgspec.Struct):
    """Answer of `GET /v0/metrics` to `Accept: application/json`; `shards` in order of their number."""

    uptime_ms: api_types.Millis
    ready: int
    recovery_progress: float
    shards: list[ShardMetrics]
    performance: Performance


# --- errors, as they would be raised ----------------------------------------------------------------------

EDGE_ERRORS: list[tuple[int, TopicsError]] = [
    (400, InvalidRequest("limit must be an unsigned 64-bit number", detail={"parameter": "limit"})),
    (408, InvalidRequest("the request did not arrive in time")),
    (413, PayloadTooLarge(max_bytes=64 << 20)),
    (414, InvalidRequest("the URL is longer than 8192 bytes")),
    (417, InvalidRequest("the only expectation understood is 100-continue")),
    (429, Throttled(retry_after_ms=1000)),
    (431, InvalidRequest("the headers are longer than 65536 bytes")),
    (500, Internal("internal error; the server's log has the details")),
]
"""What any request may meet, whatever its route."""

EDGE_STATUSES = frozenset(status for status, _ in EDGE_ERRORS)

MEANINGS = {
    400: "The request cannot be understood or breaks a limit.",
    401: "No key, or one that the server does not know.",
    403: "The key lacks the scope, or the name is outside its prefixes.",
    404: "There is no such topic or router.",
    406: "The client does not take `text/event-stream`.",
    408: "The request took too long to arrive.",
    409: "It contradicts what exists.",
    413: "The body is too large, as sent or decompressed.",
    414: "The URL is too long.",
    415: "The body is not declared as JSON, or has an encoding other than gzip.",
    417: "An `Expect` other than `100-continue`.",
    422: "The topic is full and rejects more.",
    429: "A cap is reached, or the server is busy. Nothing was done.",
    431: "The headers are too long or too many.",
    500: "A bug, or damaged data.",
    503: "Not available right now.",
}


# --- what is said about each route ------------------------------------------------------------------------


_CONFIG = msgspec.to_builtins(DEFAULT_CONFIG)
_STATE = {
    "topic": "orders", "type": "log", "head_seq": 3, "earliest_seq": 1, "next_seq": 4, "count": 3, "bytes": 214,
    "config": _CONFIG, "effective_priority": 500, "last_write_ts": 1794800130274, "last_read_ts": 1794800131020,
    "epoch": 1, "shard": 1, "performance": TIMING,
}  # fmt: skip
_SUMMARY = {
    "topic": "orders", "type": "log", "head_seq": 3, "earliest_seq": 1, "count": 3, "bytes": 214,
    "durable": False, "effective_priority": 500,
}  # fmt: skip
_RECORD = {"$seq": 1, "$ts": 1794800130274, "$node": "eu-1", "data": {"sku": "AEROPRESS", "qty": 2}}
_READ = {
    "topic": "orders", "records": [_RECORD], "next_from_seq": 1, "head_seq": 1, "earliest_seq": 1,
    "caught_up": True, "tombstone": None, "lag": 0, "performance": {"server_total_ms": 0.3, "records_scanned": 1},
}  # fmt: skip
_WRITTEN = {
    "topic": "orders", "first_seq": 2, "last_seq": 2, "seqs": [2], "head_seq": 2, "count": 1, "created": False,
    "deduped": False, "performance": {"server_total_ms": 0.6, "wal_append_ms": 0.1, "fsync_ms": 0},
}  # fmt: skip
_HEALTH = Success(
    200,
    "The gateway lives.",
    api_types.Health,
    {"status": "ok", "version": "0.1.0", "uptime_ms": 86400000, "performance": TIMING},
)
_READY = Success(
    200,
    "Every shard answers.",
    api_types.Ready,
    {
        "status": "ready",
        "wal_replay_complete": True,
        "topics": 12,
        "shards": [{"shard": 0, "ready": True, "topics": 7}, {"shard": 1, "ready": True, "topics": 5}],
        "performance": TIMING,
    },
)
_NOT_READY = NotReady(replay_progress=0.42)
_READ_ANSWER = Success(200, "Records, and where to go on.", api_types.ReadResult, _READ)

OPERATIONS: dict[tuple[str, str], Operation] = {
    ("GET", "/v0/topics"): Operation(
        id="listTopics",
        tag="Topics",
        summary="List topics",
        text="Topics in name order, across all shards. A key with prefixes sees only names that start with one.",
        parameters=(
            query("prefix", {"type": "string", "default": ""}, "Only names that start with this."),
            *PAGE_PARAMETERS,
        ),
        answers=(
            Success(200, "One page.", api_types.TopicList, {"topics": [_SUMMARY], "performance": TIMING}),
        ),
        errors=(SHARD_DOWN,),
    ),
    ("PUT", "/v0/topics/:name"): Operation(
        id="putTopic",
        tag="Topics",
        summary="Create or configure a topic",
        text="Creates the topic, or changes the fields that are given and keeps the others. Repeating it is "
        "harmless. `type` cannot change once the topic exists.",
        body=api_types.TopicConfigIn,
        bodies={
            "synced before every ack, one week": {"durability": "fsync", "ttl_ms": 604800000},
            "the last million records": {"cap_records": 1000000},
            "all defaults": {},
        },
        answers=(
            Success(
                200,
                "It existed; the configuration is as asked.",
                api_types.TopicPut,
                {"topic": "orders", "created": False, "config": _CONFIG, "performance": TIMING},
            ),
            Success(
                201,
                "Created.",
                api_types.TopicPut,
                {"topic": "orders", "created": True, "config": _CONFIG, "performance": TIMING},
            ),
        ),
        errors=(
            TopicExistsIncompatible(
                "topic orders is a log and its type cannot change", detail={"topic": "orders", "type": "log"}
            ),
            BAD_TYPE,
            SHARD_DOWN,
        ),
    ),
    ("GET", "/v0/topics/:name"): Operation(
        id="getTopic",
        tag="Topics",
        summary="Show a topic",
        text="Head, floor, size and configuration. In an empty topic `earliest_seq` is `head_seq + 1`.",
        parameters=(flag("touch", True, "Does this count as a read (`last_read_ts`, automatic priority)?"),),
        answers=(Success(200, "The topic as it is now.", api_types.TopicState, _STATE),),
        errors=(NOT_FOUND, SHARD_DOWN),
    ),
    ("DELETE", "/v0/topics/:name"): Operation(
        id="deleteTopic",
        tag="Topics",
        summary="Delete a topic",
        text="Deletes the topic with all records. A topic that is not there is no error: `deleted` is false. "
        "Created again, it starts a new epoch at seq 1.",
        parameters=(flag("if_empty", False, "Refuse with 409 if the topic still holds records."),),
        answers=(
            Success(
                200,
                "It is gone.",
                api_types.TopicDeleted,
                {"topic": "orders", "deleted": True, "routers_removed": [], "performance": TIMING},
            ),
        ),
        errors=(TopicNotEmpty(topic="orders", count=3), SHARD_DOWN),
    ),
    ("POST", "/v0/topics/:name"): Operation(
        id="appendRecords",
        tag="Records",
        summary="Write records",
        text="Appends all records or none. Their seqs are contiguous, in the order of the array. The topic is "
        "created if it is absent, unless `create` or the given config's `auto_create` says no. `data` is stored "
        "byte for byte.\n\nWith an idempotency key a repeat within the topic's `idempotency_window_ms` appends nothing "
        "and answers with the first seqs and `deduped: true`.",
        parameters=(
            flag("return_seqs", True, "With false `seqs` is left out; first and last say the same."),
            {
                "name": "Idempotency-Key",
                "in": "header",
                "required": False,
                "description": "Used if the body has no `idempotency_key`.",
                "schema": {"type": "string", "maxLength": IDEMPOTENCY_KEY_MAX_CHARS},
            },
        ),
        body=api_types.WriteRequest,
        body_required=True,
        bodies={
            "one record": {"records": [{"data": {"sku": "AEROPRESS", "qty": 2}, "tag": "order-7731"}]},
            "a batch that can be repeated": {
                "records": [{"data": 21.5, "key": "sensor-1"}, {"data": 19, "key": "sensor-2"}],
                "node": "eu-1",
                "idempotency_key": "upload-42",
            },
        },
        answers=(
            Success(200, "Appended (or found again).", api_types.WriteResult, _WRITTEN),
            Success(
                201,
                "Appended, and the topic was created.",
                api_types.WriteResult,
                {**_WRITTEN, "first_seq": 1, "last_seq": 1, "seqs": [1], "head_seq": 1, "created": True},
            ),
        ),
        errors=(
            BatchTooLarge(what="records", count=20000, max=10000),
            RecordTooLarge(
                "record 0 has 2097152 bytes of data and meta, at most 1048576 are allowed",
                detail={"record": 0, "max_bytes": 1048576},
            ),
            NOT_FOUND,
            BAD_TYPE,
            TopicFull(topic="orders"),
            SHARD_DOWN,
        ),
    ),
    ("POST", "/v0/topics/:name/diff"): Operation(
        id="readRecords",
        tag="Records",
        summary="Read records",
        text="Records after `from_seq`, oldest first. Go on with `next_from_seq`: it is the last seq that was "
        "looked at, so records that are deleted, expired or filtered out are behind it, too. If records were "
        "lost that nobody asked to remove, `tombstone` says which. Never creates a topic.",
        body=api_types.DiffRequest,
        bodies={
            "from the start": {"from_seq": 0, "limit": 100},
            "wait up to 20 s for what comes next": {"from_seq": 3, "wait_ms": 20000},
            "one customer's records, with tags": {"match": ["tag", "Glob", "order-*"], "include_tags": True},
        },
        answers=(_READ_ANSWER,),
        errors=(NOT_FOUND, BAD_TYPE, SHARD_DOWN),
    ),
    ("GET", "/v0/topics/:name/records"): Operation(
        id="getRecords",
        tag="Records",
        summary="Read records (for curl and browsers)",
        text="The same read as `POST …/diff`, with its fields in the query.",
        query_of=api_types.DiffRequest,
        answers=(_READ_ANSWER,),
        errors=(NOT_FOUND, SHARD_DOWN),
    ),
    ("POST", "/v0/topics/:name/delete"): Operation(
        id="deleteRecords",
        tag="Records",
        summary="Delete records",
        text="Deletes what lies before `before_seq`, or what `match` picks, or what both agree on; one of them "
        "must be given. Permanent, and silent for readers. Records written after the call are not touched.",
        body=api_types.DeleteRequest,
        body_required=True,
        bodies={
            "everything before seq 1000": {"before_seq": 1000},
            "one order": {"match": ["tag", "Eq", "order-7731"]},
        },
        answers=(
            Success(
                200,
                "How many went, and what is left.",
                api_types.DeleteResult,
                {
                    "topic": "orders",
                    "deleted": 1,
                    "earliest_seq": 2,
                    "head_seq": 3,
                    "count": 2,
                    "bytes": 142,
                    "performance": TIMING,
                },
            ),
        ),
        errors=(NOT_FOUND, BAD_TYPE, SHARD_DOWN),
    ),
    ("GET", "/v0/health"): Operation(
        id="health",
        tag="Operation",
        summary="Is the gateway alive?",
        text="200 as long as the gateway runs, whatever the shards do.",
        answers=(_HEALTH,),
    ),
    ("GET", "/healthz"): Operation(
        id="healthz",
        tag="Operation",
        summary="The same as /v0/health",
        text="For probes that expect this path.",
        answers=(_HEALTH,),
    ),
    ("GET", "/v0/ready"): Operation(
        id="ready",
        tag="Operation",
        summary="Can every topic be served?",
        text="200 when every shard answers; 503 while one of them is starting or replaying its log. "
        "`detail.shards` then says which and why. The topics of the other shards work meanwhile.",
        answers=(_READY,),
        errors=(_NOT_READY,),
    ),
    ("GET", "/readyz"): Operation(
        id="readyz",
        tag="Operation",
        summary="The same as /v0/ready",
        text="For probes that expect this path.",
        answers=(_READY,),
        errors=(_NOT_READY,),
    ),
    ("GET", "/v0/metrics"): Operation(
        id="metrics",
        tag="Operation",
        summary="Metrics",
        text="Prometheus text; JSON if `Accept` names `application/json`. A shard that is down has no series.",
        answers=(
            Success(
                200,
                "The numbers as of now.",
                Metrics,
                {
                    "uptime_ms": 86400000,
                    "ready": 1,
                    "recovery_progress": 1.0,
                    "shards": [{"gauges": {"topics": 7}, "counters": {}, "histograms": {}, "per_topic": {}}],
                    "performance": TIMING,
                },
                also_text="# HELP topics_ready ready\n# TYPE topics_ready gauge\ntopics_ready 1.0\n",
            ),
        ),
    ),
    **openapi_queues.OPERATIONS,
    **openapi_routers.OPERATIONS,
    **openapi_watch.OPERATIONS,
}

TAGS = {
    "Topics": "A topic is an append-only log of records under a name. It exists from its first write or PUT.",
    "Records": "Written in batches, read by position, deleted by position or label.",
    openapi_queues.TAG: openapi_queues.TAG_TEXT,
    openapi_routers.TAG: openapi_routers.TAG_TEXT,
    openapi_watch.TAG: openapi_watch.TAG_TEXT,
    "Operation": "For load balancers, dashboards and people on call.",
}

INFO = (
    "Persistent topics over HTTP: append records, read them from any position, wait for new ones.\n\n"
    "`data` is stored and returned byte for byte. Times are milliseconds since the epoch, durations are "
    "milliseconds, a seq is an unsigned 64-bit number. Fields without a value are left out. HEAD works wherever "
    "GET does.\n\n"
    "A body needs `Content-Type: application/json` and may have `Content-Encoding: gzip`; answers are compressed "
    "if `Accept-Encoding` names gzip. Every successful JSON answer ends with `performance`, every other answer is "
    '`{"error":{"code","message","detail"}}`. Ignore fields that you do not know.'
)


# --- what the types do not say about their fields ---------------------------------------------------------

_NAME_PATTERN = f"^{TOPIC_NAME.pattern}$"


def _predicate(op: str, value: Json) -> Json:
    return {
        "type": "array",
        "prefixItems": [{"enum": [*FIELDS]}, {"const": op}, value],
        "minItems": 3,
        "maxItems": 3,
    }


def _given(field: str) -> Json:
    return {"required": [field], "properties": {field: {"not": {"type": "null"}}}}


def _notes(settings: Settings) -> dict[str, dict[str, Json]]:
    """Schema and field to what is added; the field "" is the schema itself."""

    def clamp(name: str) -> str:
        return f"clamped to {CLAMPED[name][0]}…{CLAMPED[name][1]}"

    most = settings.max_limit
    match: Json = {
        "description": "A tag, or `[field, op, value]`: field `tag`, `key` or `node`, op `Eq` or `Glob`. A Glob value "
        "ends with its only star.",
        "anyOf": [
            {"type": "string"},
            _predicate("Eq", {"type": "string"}),
            _predicate("Glob", {"type": "string", "pattern": r"^[^*]*\*$"}),
            {"type": "null"},
        ],
        "examples": [["tag", "Glob", "order-*"]],
    }
    config = {
        "": {
            "description": "A field left out keeps its value, or has its default in a new topic. Unknown fields are "
            "refused."
        },
        "type": {"description": "`log` or `queue`; cannot change once the topic exists."},
        "ttl_ms": {"description": "Records older than this are not delivered. 0 = off."},
        "cap_records": {"description": "Records to keep at most. 0 = off."},
        "cap_bytes": {"description": "Bytes to keep at most. 0 = off."},
        "discard": {"description": "At the cap: `old` evicts the oldest records, `reject` answers 422."},
        "durability": {"description": "What an ack means: see the durability classes. Default from `durable`."},
        "durable": {"description": "Short for `durability`: true = `fsync`, false = `disk`. `durability` wins."},
        "priority": {"description": f"Manual priority, {clamp('priority')}. null = none."},
        "auto_priority": {"description": "Add to the priority while the topic is being read."},
        "auto_create": {"description": "In the `config` of a write: may that write create the topic?"},
        "idempotency_window_ms": {"description": "How long idempotency keys are remembered."},
        "dedupe_node": {"description": "May readers leave out records by `node`? If not, their filter is ignored."},
        "lease_ms": {"description": f"Queues: length of a lease, {clamp('lease_ms')}."},
        "claim_jitter_ms": {
            "description": "Queues: claims that come within this time share the jobs evenly, "
            f"{clamp('claim_jitter_ms')}. 0 = off."
        },
        "max_deliveries": {"description": "Queues: after so many deliveries a job goes to `dead_letter`. 0 = off."},
        "dead_letter": {
            "description": "Queues: topic for jobs that were delivered too often, not the queue itself.",
            "pattern": _NAME_PATTERN,
        },
        "leases_durable": {"description": "Queues: leases survive a restart of the server."},
        "cleanup": {"description": "With `compact`, a compaction keeps the last value of each key."},
        "min_compaction_lag_ms": {"description": "Compaction leaves younger records alone."},
        "delete_retention_ms": {"description": "How long a keyed null stays before compaction drops it."},
    }  # fmt: skip
    of_queues = openapi_queues.notes(settings, match)
    return of_queues | openapi_routers.notes(match, _NAME_PATTERN) | {
        "TopicConfigIn": config,
        "TopicConfig": {**config, "": {"description": "The complete configuration of a topic."}},
        "WriteRequest": {
            "records": {
                "minItems": 1,
                "maxItems": settings.max_batch_records,
                "description": "Appended together or not at all.",
            },
            "node": {"description": "Node of every record that has none of its own."},
            "idempotency_key": {
                "maxLength": IDEMPOTENCY_KEY_MAX_CHARS,
                "description": "Makes the write repeatable; wins over the `Idempotency-Key` header.",
            },
            "create": {"description": "May this write create the topic? null = as `config.auto_create` says."},
            "config": {"description": "Used only if this write creates the topic."},
            "disable_backpressure": {
                "description": "Under pressure wait for room, at most 30 s, instead of being refused with 429."
            },
        },
        "RecordIn": {
            "": {"description": f"Data and meta together: at most {settings.max_record_bytes} bytes."},
            "data": {"description": "Any JSON value, kept byte for byte."},
            "tag": {"description": f"To delete and filter by; at most {settings.max_tag_bytes} bytes."},
            "node": {"description": f"Who writes, for readers to leave out; at most {settings.max_node_bytes} bytes."},
            "key": {"description": f"What the record is about; at most {settings.max_key_bytes} bytes."},
            "meta": {
                "type": ["object", "null"],
                "maxProperties": META_MAX_KEYS,
                "description": f"An object, kept byte for byte; at most {settings.max_meta_bytes} bytes.",
            },
            **of_queues["RecordIn"],
        },
        "DiffRequest": {
            "": {"description": "Every field may be left out, and so may the body."},
            "from_seq": {"description": "Read what comes after this seq; 0 = from the start."},
            "limit": {"description": f"Records at most; 0 = {READ_DEFAULT_LIMIT}. The server's limit is {most}."},
            "node": {"description": "Leave out records of this node, or of these."},
            "include_tags": {"description": "Show `$tag`."},
            "include_keys": {"description": "Show `$key`."},
            "include_meta": {"description": "Show `meta`."},
            "wait_ms": {"description": f"Wait this long for a record if there is none; at most {WAIT_MAX_MS}."},
            "max_bytes": {
                "description": f"Bytes of records, but at least one record; null = {READ_DEFAULT_BYTES}, "
                f"more than {READ_MAX_BYTES} counts as {READ_MAX_BYTES}."
            },
            "match": match,
        },
        "DeleteRequest": {
            "": {"anyOf": [_given("before_seq"), _given("match")]},
            "before_seq": {"description": "Delete records with a smaller seq."},
            "match": match,
        },
        "TopicDeleted": {"routers_removed": {"description": "Routers from and to the topic, which went with it."}},
        "TopicState": {
            "epoch": {"description": "Tells this topic from earlier ones of its name; later ones have larger epochs."}
        },
    }  # fmt: skip


# --- building ---------------------------------------------------------------------------------------------


def build_document(routes: Iterable[Route[Handler]], settings: Settings, version: str) -> Json:
    """Raises KeyError for a route that is not in OPERATIONS."""
    routes = list(routes)
    schemas = _component_schemas(settings)
    responses: Json = {}
    paths: dict[str, Json] = {}
    for route in routes:
        path = paths.setdefault(openapi_path(route.path), {})
        path[route.method.lower()] = _operation(
            route, OPERATIONS[route.method, route.path], schemas, responses
        )
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "topicsd",
            "version": version,
            "summary": "Persistent topics over HTTP",
            "description": INFO,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": name, "description": text} for name, text in TAGS.items()],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "responses": dict(sorted(responses.items())),
            "securitySchemes": {
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "An API key. Keys have scopes (read, write, delete, admin) and may be bound to name "
                    "prefixes. A server without keys asks for none.",
                }
            },
        },
    }


def openapi_path(path: str) -> str:
    return path.replace(":name", f"{{{_name_of(path)}}}")


def _name_of(path: str) -> str:
    """What the variable part of a path is called."""
    if path.startswith("/v0/routers/"):
        return "router"
    return "wid" if path.startswith("/v0/watch/") else "topic"


def _operation(route: Route[Handler], operation: Operation, schemas: Json, responses: Json) -> Json:
    text = f"{operation.text}\n\n{_scope_text(route.access)}"
    needs: list[Json] = [{"bearer": [] if route.access is Access.PROBE else route.access.value.split("+")}]
    built: Json = {
        "operationId": operation.id,
        "tags": [operation.tag],
        "summary": operation.summary,
        "description": text,
        "security": [{}, *needs] if route.access is Access.PROBE else needs,
        "parameters": _parameters(route, operation, schemas),
        "responses": _responses(route.access, operation, responses),
    }
    if operation.body is not None:
        built["requestBody"] = _request_body(operation, operation.body)
    built["x-codeSamples"] = [{"lang": "Shell", "label": "curl", "source": _curl(route, operation)}]
    return built


def _scope_text(access: Access) -> str:
    if access is Access.PROBE:
        return "Needs no key, unless the server is set to protect its probes (`probe_auth`)."
    return f"Needs a key with scope **{access.value}**."


def _parameters(route: Route[Handler], operation: Operation, schemas: Json) -> list[Json]:
    found: list[Json] = []
    if route.named and _name_of(route.path) == "wid":
        text = "As the answer to `POST /v0/watch` gave it."
        schema = {"type": "string", "pattern": "^wid_[A-Za-z0-9_-]+$"}
        found.append({"name": "wid", "in": "path", "required": True, "description": text, "schema": schema})
    elif route.named and _name_of(route.path) == "router":
        text = "Name of the router: case-sensitive, percent-decoded once."
        schema = {"type": "string", "pattern": f"^{ROUTER_NAME.pattern}$"}
        found.append(
            {"name": "router", "in": "path", "required": True, "description": text, "schema": schema}
        )
    elif route.named:
        found.append(
            {
                "name": "topic",
                "in": "path",
                "required": True,
                "description": "Name of the topic: case-sensitive, percent-decoded once.",
                "schema": {"type": "string", "pattern": _NAME_PATTERN},
                "example": "orders",
            }
        )
    if operation.query_of is not None:
        properties: Json = schemas[operation.query_of.__name__]["properties"]
        found += [_field_inquery(name, schema) for name, schema in properties.items()]
    return [*found, *operation.parameters]


def _field_inquery(name: str, field: Json) -> Json:
    """A field of a body as it is written in a query: no null, lists as repeated names, predicates as JSON."""
    schema = {key: value for key, value in field.items() if key not in ("description", "examples")}
    if name == "match":
        text = f"{field['description']} The predicate is written as JSON."
        return {**query(name, {"type": "string"}, text), "example": '["tag","Glob","order-*"]'}
    if name == "node":
        nodes: Json = {"type": "array", "items": {"type": "string"}}
        return query(name, nodes, "Leave out records of this node; may be repeated.")
    if "anyOf" in schema:
        (schema,) = [choice for choice in schema["anyOf"] if choice != {"type": "null"}]
    if schema["type"] == "integer":
        schema = {"maximum": U64_MAX, **schema}
    return query(name, schema, field["description"])


def _request_body(operation: Operation, body: type[msgspec.Struct]) -> Json:
    content: Json = {"schema": {"$ref": SCHEMAS + body.__name__}}
    if operation.bodies:
        content["examples"] = {
            title.replace(" ", "-").replace(",", ""): {"summary": title, "value": value}
            for title, value in operation.bodies.items()
        }
    return {"required": operation.body_required, "content": {JSON: content}}


def _responses(access: Access, operation: Operation, responses: Json) -> Json:
    found: Json = {str(answer.status): _success(answer) for answer in operation.answers}
    for status, errors in sorted(_errors(access, operation).items()):
        response = _error(status, errors)
        # A response that two routes share is one component: equal statuses and codes, equal name.
        name = "-".join([f"error-{status}", *(error.code for error in errors)])
        responses[name] = response
        found[str(status)] = {"$ref": f"#/components/responses/{name}"}
    return found


def _errors(access: Access, operation: Operation) -> dict[int, list[TopicsError]]:
    given = [*EDGE_ERRORS, (401, Unauthorized())]
    if access is not Access.PROBE:
        given += [(403, Forbidden("this key lacks the scope write")), (503, ShuttingDown())]
    given += [(error.status_hint, error) for error in operation.errors]
    by_status: dict[int, list[TopicsError]] = {}
    for status, error in given:
        by_status.setdefault(status, []).append(error)
    return by_status


def _success(answer: Success | Events) -> Json:
    if isinstance(answer, Events):
        stream: Json = {"schema": {"type": "string"}, "example": answer.example}
        return {"description": answer.text, "content": {EVENT_STREAM: stream}}
    content: Json = {JSON: {"schema": {"$ref": SCHEMAS + answer.type.__name__}, "example": answer.example}}
    if answer.also_text is not None:
        content["text/plain"] = {"schema": {"type": "string"}, "example": answer.also_text}
    return {"description": answer.text, "content": content}


def _error(status: int, errors: list[TopicsError]) -> Json:
    codes = [error.code for error in errors]
    narrowed = {"properties": {"error": {"properties": {"code": {"enum": codes}}}}}
    response: Json = {
        "description": MEANINGS[status],
        "content": {
            JSON: {
                "schema": {"allOf": [{"$ref": SCHEMAS + "ErrorBody"}, narrowed]},
                "examples": {
                    error.code: {"value": msgspec.json.decode(error.to_json_body())} for error in errors
                },
            }
        },
    }
    header = _ERROR_HEADERS.get(HTTPStatus(status))
    if header is not None:
        name, schema, text = header
        response["headers"] = {name: {"description": text, "schema": schema}}
    return response


_RETRY_AFTER = ("Retry-After", {"type": "integer", "minimum": 1}, "Seconds to wait before the next try.")
_ERROR_HEADERS: dict[HTTPStatus, tuple[str, Json, str]] = {
    HTTPStatus.UNAUTHORIZED: ("WWW-Authenticate", {"type": "string"}, "Always asks for a bearer key."),
    HTTPStatus.TOO_MANY_REQUESTS: _RETRY_AFTER,
    HTTPStatus.SERVICE_UNAVAILABLE: _RETRY_AFTER,
}


def _component_schemas(settings: Settings) -> Json:
    types: list[type] = [api_types.ErrorBody]
    for operation in OPERATIONS.values():
        types += [answer.type for answer in operation.answers if isinstance(answer, Success)]
        types += [] if operation.body is None else [operation.body]
    types = list(dict.fromkeys(types))
    _, built = msgspec.json.schema_components(types, ref_template=SCHEMAS + "{name}")
    defaults = msgspec.structs.asdict(DEFAULT_CONFIG)
    all_notes = _notes(settings)
    for name, schema in built.items():
        notes = all_notes.get(name, {})
        schema.update(notes.get("", {}))
        for field, property_ in schema.get("properties", {}).items():
            _widen_seqs(property_)
            property_.update(notes.get(field, {}))
            if name == "TopicConfigIn":
                property_["default"] = defaults[field]
    return dict(sorted(built.items()))


def _widen_seqs(schema: Json) -> None:
    """The types cannot name a bound above 63 bits."""
    for part in (schema, schema.get("items", {}), *schema.get("anyOf", ())):
        if part.get("description") == "sequence number, unsigned 64 bit":
            part.update(maximum=U64_MAX, format="uint64")


def _curl(route: Route[Handler], operation: Operation) -> str:
    url = "http://127.0.0.1:4000" + openapi_path(route.path).replace("{topic}", "orders").replace(
        "{wid}", "wid_…"
    ).replace("{router}", "orders-to-audit")
    if operation.query_of is not None:
        url = f"'{url}?from_seq=0&limit=10'"
    if operation.curl_query:
        url = f"'{url}?{operation.curl_query}'"
    method = {"GET": "", "POST": ""}.get(route.method, f"-X {route.method} ")
    if not operation.bodies:
        return f"curl {method}{url}"
    body = msgspec.json.encode(next(iter(operation.bodies.values()))).decode()
    return f"curl {method}{url} \\\n  -H 'Content-Type: application/json' \\\n  -d '{body}'"
