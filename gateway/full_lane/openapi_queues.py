"""The operations on queues, in the words of the OpenAPI document."""

from __future__ import annotations

from gateway.full_lane.openapi_parts import (
    BAD_TYPE,
    PAGE_PARAMETERS,
    SHARD_DOWN,
    TIMING,
    Events,
    Json,
    Operation,
    Success,
    query,
)
from shared import api_types
from shared.api_types import CLAMPED, U64_MAX
from shared.errors import BatchTooLarge, NotAcceptable, NotAQueue, TopicNotFound
from shared.limits import (
    CLAIM_MAX_BYTES,
    JOB_DELAY_MAX_MS,
    JOB_GROUP_MAX_BYTES,
    QUEUE_SEQS_MAX,
    REDRIVE_DEFAULT_LIMIT,
    REDRIVE_MAX_LIMIT,
    WAIT_MAX_MS,
)
from shared.settings import Settings

TAG = "Queues"
TAG_TEXT = (
    'Topics of `type: "queue"`, whose records are jobs: leased to one worker at a time, and gone when acked. '
    "Delivery is at least once."
)

_ABSENT = (TopicNotFound(topic="jobs"), NotAQueue(topic="jobs"))
_REFUSED = (*_ABSENT, BAD_TYPE, SHARD_DOWN)
_TOO_MANY = BatchTooLarge(what="seqs", count=2000, max=QUEUE_SEQS_MAX)

_LEASE = "lease_GdKXcf5VcBD6_1"
_JOB: Json = {
    "$seq": 7, "$ts": 1794800130274, "$tag": "order-7731", "deliveries": 1, "lease_id": _LEASE,
    "deadline": 1794800160311, "data": {"sku": "AEROPRESS", "qty": 2},
}  # fmt: skip
_MINE: Json = {"node": "worker-1", "seqs": [7], "lease_ids": [_LEASE]}
_SKIPS = (
    " What `node` does not hold, or holds by a newer lease than the one shown, is skipped, never an error."
)

OPERATIONS: dict[tuple[str, str], Operation] = {
    ("POST", "/v0/topics/:name/claim"): Operation(
        id="claimJobs",
        tag=TAG,
        summary="Claim jobs",
        text="Leases up to `max` jobs to `node`, in ascending order of their seqs. Each is nobody else's until "
        "`deadline`, and comes back by itself if it was not acked by then. Every claim counts a delivery.",
        body=api_types.ClaimRequest,
        body_required=True,
        bodies={
            "one job, waiting up to 20 s for it": {"node": "worker-1", "wait_ms": 20000},
            "a hundred for a minute": {"node": "worker-1", "max": 100, "lease_ms": 60000},
        },
        answers=(
            Success(
                200,
                "What there was; an empty list if there was nothing.",
                api_types.ClaimResult,
                {"topic": "jobs", "claimed": [_JOB], "count": 1, "ready": 41, "performance": TIMING},
            ),
        ),
        errors=_REFUSED,
    ),
    ("POST", "/v0/topics/:name/ack"): Operation(
        id="ackJobs",
        tag=TAG,
        summary="Ack jobs",
        text="The jobs are done and removed for good, as durably as the queue writes." + _SKIPS,
        body=api_types.AckRequest,
        body_required=True,
        bodies={"with the lease that was given": _MINE, "without": {"node": "worker-1", "seqs": [7, 8]}},
        answers=(
            Success(
                200,
                "How many were done, and what is left.",
                api_types.AckResult,
                {"acked": 1, "skipped": 0, "ready": 41, "in_flight": 0, "performance": TIMING},
            ),
        ),
        errors=(_TOO_MANY, *_REFUSED),
    ),
    ("POST", "/v0/topics/:name/nack"): Operation(
        id="nackJobs",
        tag=TAG,
        summary="Give jobs back",
        text="Somebody else may have them at once, or after `delay_ms`; until then they are neither ready nor in "
        "flight." + _SKIPS,
        body=api_types.NackRequest,
        body_required=True,
        bodies={"try again in a minute": {**_MINE, "delay_ms": 60000}},
        answers=(
            Success(
                200,
                "How many went back.",
                api_types.NackResult,
                {"nacked": 1, "skipped": 0, "ready": 41, "in_flight": 0, "performance": TIMING},
            ),
        ),
        errors=(_TOO_MANY, *_REFUSED),
    ),
    ("POST", "/v0/topics/:name/extend"): Operation(
        id="extendLeases",
        tag=TAG,
        summary="Extend leases",
        text="Sets the deadline of each lease to now + `lease_ms`, sooner or later than it was." + _SKIPS,
        body=api_types.ExtendRequest,
        body_required=True,
        bodies={"another minute": {**_MINE, "lease_ms": 60000}},
        answers=(
            Success(
                200,
                "The new deadlines by seq.",
                api_types.ExtendResult,
                {"extended": 1, "skipped": 0, "deadlines": {"7": 1794800190311}, "performance": TIMING},
            ),
        ),
        errors=(_TOO_MANY, *_REFUSED),
    ),
    ("GET", "/v0/topics/:name/leases"): Operation(
        id="listLeases",
        tag=TAG,
        summary="Who holds which job",
        text="All leases of a queue in ascending order of seqs.",
        parameters=PAGE_PARAMETERS,
        answers=(
            Success(
                200,
                "One page.",
                api_types.LeaseList,
                {
                    "topic": "jobs",
                    "leases": [
                        {
                            "seq": 7,
                            "node": "worker-1",
                            "lease_id": _LEASE,
                            "deliveries": 1,
                            "age_ms": 1200,
                            "deadline": 1794800160311,
                        }
                    ],
                    "in_flight": 1,
                    "performance": TIMING,
                },
            ),
        ),
        errors=(*_ABSENT, SHARD_DOWN),
    ),
    ("POST", "/v0/topics/:name/redrive"): Operation(
        id="redriveJobs",
        tag=TAG,
        summary="Move dead letters back",
        text="Moves records of the topic `from` into this queue, oldest first, without what dead-lettering added to "
        "their `meta`. A record is never in neither topic, and comes once. Call it until `moved` is 0.",
        body=api_types.RedriveRequest,
        body_required=True,
        bodies={
            "all of them, page by page": {"from": "jobs-dead"},
            "one kind": {"from": "jobs-dead", "match": ["tag", "Glob", "order-*"], "limit": 1000},
        },
        answers=(
            Success(200, "How many moved.", api_types.RedriveResult, {"moved": 12, "performance": TIMING}),
        ),
        errors=_REFUSED,
    ),
    ("GET", "/v0/topics/:name/work"): Operation(
        id="workOnJobs",
        tag=TAG,
        summary="Jobs as a stream",
        text="Keeps up to `max` jobs leased to this connection: each comes as an `event: job` whose `id` is the seq "
        "and whose data are the fields of a claim. Ack (or nack, extend) them by the calls above with the same `node`: "
        "that makes room for the next. When the connection ends, all jobs that it still holds go back at once. "
        "Since an EventSource cannot send headers, the key may be in `?token=`.",
        parameters=(
            query("node", {"type": "string", "minLength": 1}, "Who works.", required=True),
            query(
                "max",
                {"type": "integer", "minimum": 0, "maximum": U64_MAX, "default": 1},
                "Jobs that it may hold at a time.",
            ),
            query(
                "lease_ms",
                {"type": "integer", "minimum": 0, "maximum": U64_MAX},
                "Length of its leases; that of the queue if it is left out.",
            ),
            query("token", {"type": "string"}, "The API key, for clients that cannot send headers."),
        ),
        curl_query="node=worker-1",
        answers=(
            Events(
                "Jobs as they come; a comment every 15 s without one. An `event: error` with `code` 429 or 503 "
                "tells that none come for the moment; any other is the last.",
                "retry: 2000\n\nid: 7\nevent: job\n"
                f'data: {{"$seq":7,"$ts":1794800130274,"deliveries":1,"lease_id":"{_LEASE}",'
                '"deadline":1794800160311,"data":{"sku":"AEROPRESS"}}\n\n',
            ),
        ),
        errors=(*_ABSENT, NotAcceptable(), SHARD_DOWN),
    ),
}


def notes(settings: Settings, match: Json) -> dict[str, dict[str, Json]]:
    """What the types do not say about their fields; see gateway/full_lane/openapi.py."""
    low, high = CLAMPED["lease_ms"]
    node = {"description": "Who works: the leases are in this name.", "minLength": 1}
    seqs = {"maxItems": QUEUE_SEQS_MAX, "description": "Which jobs."}
    lease_ids = {
        "description": "The lease of each of `seqs`, as its claim gave it. An old one decides nothing."
    }
    wait = f"Wait this long for a job if there is none; more than {WAIT_MAX_MS} counts as {WAIT_MAX_MS}."
    lease = f"Length of the lease, clamped to {low}…{high}. null = that of the queue."
    by_default = REDRIVE_DEFAULT_LIMIT
    return {
        "RecordIn": {
            "deliver_at": {"description": "Queues: deliver the job for the first time at this time."},
            "delay_ms": {"description": f"Queues: the same, from now; at most {JOB_DELAY_MAX_MS}."},
            "priority": {"description": "Queues: a point counts as much as a second of waiting. Higher goes first."},
            "group": {
                "description": "Queues: jobs of a group are handed out one after the other, in the order in which "
                f"they were written; at most {JOB_GROUP_MAX_BYTES} bytes."
            },
        },
        "ClaimRequest": {
            "node": node,
            "max": {
                "description": f"Jobs at most; more than {settings.max_claim} counts as {settings.max_claim}. "
                f"One answer holds about {CLAIM_MAX_BYTES >> 20} MiB of jobs, and at least one."
            },
            "lease_ms": {"description": lease},
            "wait_ms": {"description": wait},
        },
        "AckRequest": {"node": node, "seqs": seqs, "lease_ids": lease_ids},
        "NackRequest": {
            "node": node,
            "seqs": seqs,
            "lease_ids": lease_ids,
            "delay_ms": {"description": "Not before this long from now."},
        },
        "ExtendRequest": {
            "node": node,
            "seqs": seqs,
            "lease_ids": lease_ids,
            "lease_ms": {"description": f"From now; clamped to {low}…{high}."},
        },
        "RedriveRequest": {
            "from": {"description": "The topic that holds the dead letters."},
            "match": match,
            "limit": {"description": f"Records at most; 0 = {by_default}, the most is {REDRIVE_MAX_LIMIT}."},
        },
    }  # fmt: skip
