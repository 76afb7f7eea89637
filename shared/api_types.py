"""The JSON bodies of the public API as types: requests as they are decoded, answers as they are documented.

A request type is decoded by exactly one function below, so that a malformed body is always the same
`InvalidRequest`. The answer types are never used to encode on the hot path (workers write JSON by hand); they
describe the answers for the OpenAPI document and for tests.

`data` and `meta` stay `msgspec.Raw`: the bytes the client wrote, neither parsed nor rewritten.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from shared.errors import InvalidRequest, TopicExistsIncompatible
from shared.names import valid_topic_name

U64_MAX = 2**64 - 1

Seq = Annotated[int, Meta(ge=0, description="sequence number, unsigned 64 bit")]
Millis = Annotated[int, Meta(ge=0, description="milliseconds")]
Count = Annotated[int, Meta(ge=0)]
AnyJson = Annotated[object, Meta(extra_json_schema={"description": "any JSON value"})]


# --- topic config ---

CLAMPED = {"priority": (-1000, 1000), "lease_ms": (100, 86_400_000), "claim_jitter_ms": (0, 5000)}

# An upper bound keeps every stored number in a signed 64-bit field, and sums of two of them as well.
NonNegative = Annotated[int, Meta(ge=0, le=2**62)]

TopicType = Literal["log", "queue"]
Discard = Literal["old", "reject"]
Durability = Literal["ephemeral", "memory", "disk", "fsync"]
Cleanup = Literal["delete", "compact", "compact,delete"]


class TopicConfigIn(Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of `PUT /v0/topics/:t`, and `config` of a write."""

    type: TopicType | UnsetType = UNSET
    ttl_ms: NonNegative | UnsetType = UNSET
    cap_records: NonNegative | UnsetType = UNSET
    cap_bytes: NonNegative | UnsetType = UNSET
    discard: Discard | UnsetType = UNSET
    durability: Durability | UnsetType = UNSET
    durable: bool | UnsetType = UNSET
    priority: int | UnsetType | None = UNSET
    auto_priority: bool | UnsetType = UNSET
    auto_create: bool | UnsetType = UNSET
    idempotency_window_ms: NonNegative | UnsetType = UNSET
    dedupe_node: bool | UnsetType = UNSET
    lease_ms: int | UnsetType = UNSET
    claim_jitter_ms: int | UnsetType = UNSET
    max_deliveries: NonNegative | UnsetType = UNSET
    dead_letter: str | UnsetType | None = UNSET
    leases_durable: bool | UnsetType = UNSET
    cleanup: Cleanup | UnsetType = UNSET
    min_compaction_lag_ms: NonNegative | UnsetType = UNSET
    delete_retention_ms: NonNegative | UnsetType = UNSET


class TopicConfig(Struct, frozen=True, kw_only=True, gc=False):
    """A complete configuration. Hashable, so that topics configured alike can share one object.

    `durable` follows from `durability` and is stored only because every answer shows it.
    """

    type: TopicType = "log"
    ttl_ms: int = 0
    cap_records: int = 0
    cap_bytes: int = 0
    discard: Discard = "old"
    durability: Durability = "disk"
    durable: bool = False
    priority: int | None = None
    auto_priority: bool = True
    auto_create: bool = True
    idempotency_window_ms: int = 120_000
    dedupe_node: bool = True
    lease_ms: int = 30_000
    claim_jitter_ms: int = 0
    max_deliveries: int = 0
    dead_letter: str | None = None
    leases_durable: bool = False
    cleanup: Cleanup = "delete"
    min_compaction_lag_ms: int = 0
    delete_retention_ms: int = 86_400_000


DEFAULT_CONFIG = TopicConfig()


def resolve_config(base: TopicConfig | None, patch: TopicConfigIn, *, topic: str) -> TopicConfig:
    """The configuration of `topic` after `patch`; `base` is None if the patch creates it.

    Returns `base` itself when nothing changes, so that "same" is an identity test.
    """
    changes: dict[str, object] = {}
    for name in TopicConfigIn.__struct_fields__:
        value = getattr(patch, name)
        if value is UNSET:
            continue
        if name in CLAMPED and value is not None:
            low, high = CLAMPED[name]
            value = max(low, min(high, value))
        changes[name] = value

    if base is not None and changes.get("type", base.type) != base.type:
        raise TopicExistsIncompatible(
            f"topic {topic} is a {base.type} and its type cannot change",
            detail={"topic": topic, "type": base.type},
        )
    if isinstance(patch.dead_letter, str):
        _check_dead_letter(topic, patch.dead_letter)
    if isinstance(patch.durable, bool):
        changes.setdefault("durability", "fsync" if patch.durable else "disk")
    if "durability" in changes:
        changes["durable"] = changes["durability"] == "fsync"

    before = DEFAULT_CONFIG if base is None else base
    after = msgspec.structs.replace(before, **changes)
    return before if after == before else after


def _check_dead_letter(topic: str, dead_letter: str) -> None:
    if not valid_topic_name(dead_letter):
        raise InvalidRequest("dead_letter is not a valid topic name", detail={"field": "dead_letter"})
    if dead_letter == topic:
        raise InvalidRequest("a topic cannot be its own dead_letter", detail={"field": "dead_letter"})


def config_to_dict(config: TopicConfig) -> dict[str, object]:
    """Plain values for the disk. Every field is written: a later version may have other defaults."""
    fields = msgspec.structs.asdict(config)
    del fields["durable"]
    return fields


def config_from_dict(stored: dict[str, object]) -> TopicConfig:
    """The reverse. Fields of a later version are ignored, fields that did not exist yet get their default.

    Raises msgspec.ValidationError if a field has the wrong type: the caller knows which file is damaged.
    """
    return msgspec.convert({**stored, "durable": stored.get("durability") == "fsync"}, TopicConfig)


# --- requests ---------------------------------------------------------------------------------------------


class RecordIn(Struct, gc=False):
    """One record of a write. `data` is any JSON value, `meta` an object; both are kept byte for byte."""

    data: Raw
    tag: str | None = None
    node: str | None = None
    key: str | None = None
    meta: Raw | UnsetType = UNSET
    # For queues; a log topic takes no notice of them.
    deliver_at: Millis | None = None
    delay_ms: Millis | None = None
    priority: int | None = None
    group: str | None = None


class WriteRequest(Struct):
    """Body of `POST /v0/topics/:t`."""

    records: list[RecordIn]
    node: str | None = None
    idempotency_key: str | None = None
    create: bool | None = None
    config: TopicConfigIn | None = None
    disable_backpressure: bool = False


class PlainRecordIn(Struct, forbid_unknown_fields=True, gc=False):
    """A record that has nothing but `data`: most have."""

    data: Raw


class PlainWriteRequest(Struct, forbid_unknown_fields=True, gc=False):
    """A write of plain records. What decodes into this needs no look at single records."""

    records: list[PlainRecordIn]
    idempotency_key: str | None = None
    create: bool | None = None
    config: TopicConfigIn | None = None
    disable_backpressure: bool = False


class ClaimRequest(Struct):
    """Body of `POST /v0/topics/:t/claim`."""

    node: str
    max: Count = 1
    lease_ms: Millis | None = None
    wait_ms: Millis = 0


class AckRequest(Struct):
    """Body of `POST /v0/topics/:t/ack`."""

    node: str
    seqs: list[Seq]
    lease_ids: list[str] | None = None


class NackRequest(Struct):
    """Body of `POST /v0/topics/:t/nack`."""

    node: str
    seqs: list[Seq]
    lease_ids: list[str] | None = None
    delay_ms: Millis = 0


class ExtendRequest(Struct):
    """Body of `POST /v0/topics/:t/extend`."""

    node: str
    seqs: list[Seq]
    lease_ms: Millis
    lease_ids: list[str] | None = None


class RedriveRequest(Struct):
    """Body of `POST /v0/topics/:t/redrive`: move dead letters back into this queue."""

    source: str = msgspec.field(name="from")
    match: str | list[str] | None = None
    limit: Count = 0


class DiffRequest(Struct):
    """Body of `POST /v0/topics/:t/diff`. Clamping to the limits is the reader's business, not the type's."""

    from_seq: Seq = 0
    limit: Count = 0
    node: str | list[str] | None = None
    include_tags: bool = False
    include_keys: bool = False
    include_meta: bool = True
    wait_ms: Millis = 0
    max_bytes: Annotated[int, Meta(ge=0)] | None = None
    match: str | list[str] | None = None

    def __post_init__(self) -> None:
        if self.from_seq > U64_MAX:
            raise ValueError("from_seq is larger than a seq can be")


class DeleteRequest(Struct):
    """Body of `POST /v0/topics/:t/delete`; at least one of the two must be given."""

    before_seq: Seq | None = None
    match: str | list[str] | None = None

    def __post_init__(self) -> None:
        if self.before_seq is not None and self.before_seq > U64_MAX:
            raise ValueError("before_seq is larger than a seq can be")


_T = TypeVar("_T")

plain_write_decoder = msgspec.json.Decoder(PlainWriteRequest)
_write_decoder = msgspec.json.Decoder(WriteRequest)
claim_decoder = msgspec.json.Decoder(ClaimRequest)
ack_decoder = msgspec.json.Decoder(AckRequest)
_nack_decoder = msgspec.json.Decoder(NackRequest)
_extend_decoder = msgspec.json.Decoder(ExtendRequest)
_redrive_decoder = msgspec.json.Decoder(RedriveRequest)
_diff_decoder = msgspec.json.Decoder(DiffRequest)
_delete_decoder = msgspec.json.Decoder(DeleteRequest)
_config_decoder = msgspec.json.Decoder(TopicConfigIn)


def _decode(decode: Callable[[bytes], _T], body: bytes) -> _T:
    try:
        # msgspec does not look inside Raw strings, so invalid UTF-8 would be stored and served as "JSON".
        if not body.isascii():
            body.decode("utf-8")
        return decode(body)
    except msgspec.ValidationError as err:
        raise InvalidRequest(f"the body has the wrong shape: {err}") from err
    except (msgspec.DecodeError, UnicodeDecodeError) as err:
        raise InvalidRequest(f"the body is not valid JSON: {err}") from err
    except RecursionError as err:
        raise InvalidRequest("the body is nested too deeply") from err


def decode_body(decoder: msgspec.json.Decoder[_T], body: bytes) -> _T:
    """For requests whose type is known to the gateway alone."""
    return _decode(decoder.decode, body)


def decode_write(body: bytes) -> WriteRequest | PlainWriteRequest:
    try:
        if body.isascii():
            return plain_write_decoder.decode(body)
    except (msgspec.DecodeError, RecursionError):
        pass  # a field that plain writes do not have, or an error: the complete type tells which
    return decode_rich_write(body)


def decode_rich_write(body: bytes) -> WriteRequest:
    """Any write, plain ones as well."""
    return _decode(_write_decoder.decode, body)


def decode_diff(body: bytes) -> DiffRequest:
    """An empty body is the empty request: every field has a default."""
    return _decode(_diff_decoder.decode, body) if body else DiffRequest()


def decode_claim(body: bytes) -> ClaimRequest:
    return _decode(claim_decoder.decode, body)


def decode_ack(body: bytes) -> AckRequest:
    return _decode(ack_decoder.decode, body)


def decode_nack(body: bytes) -> NackRequest:
    return _decode(_nack_decoder.decode, body)


def decode_extend(body: bytes) -> ExtendRequest:
    return _decode(_extend_decoder.decode, body)


def decode_redrive(body: bytes) -> RedriveRequest:
    return _decode(_redrive_decoder.decode, body)


def decode_delete(body: bytes) -> DeleteRequest:
    return _decode(_delete_decoder.decode, body)


def decode_config(body: bytes) -> TopicConfigIn:
    """An empty body is the empty patch."""
    return _decode(_config_decoder.decode, body) if body else TopicConfigIn()


def meta_bytes(record: RecordIn) -> bytes | None:
    """The record's meta as the client wrote it; None if it was left out or `null`."""
    if record.meta is UNSET:
        return None
    meta = bytes(record.meta)
    if meta.startswith(b"{"):
        return meta
    if meta == b"null":
        return None
    raise InvalidRequest("meta must be an object")


# --- answers ----------------------------------------------------------------------------------------------


class Performance(Struct):
    """Where the time went; fields that do not apply are left out."""

    server_total_ms: float
    wal_append_ms: float | UnsetType = UNSET
    fsync_ms: float | UnsetType = UNSET
    throttle_wait_ms: float | UnsetType = UNSET
    records_scanned: Count | UnsetType = UNSET


class TopicPut(Struct):
    """Answer of `PUT /v0/topics/:t`."""

    topic: str
    created: bool
    config: TopicConfig
    performance: Performance


class QueueState(Struct):
    """Jobs by what becomes of them next; `ready + in_flight + delayed` is the topic's `count`."""

    ready: Count
    in_flight: Count
    delayed: Count
    dead_lettered: Count


class TopicState(Struct):
    """Answer of `GET /v0/topics/:t`."""

    topic: str
    type: Literal["log", "queue"]
    head_seq: Seq
    earliest_seq: Seq
    next_seq: Seq
    count: Count
    bytes: Count
    config: TopicConfig
    effective_priority: int
    last_write_ts: Millis | None
    last_read_ts: Millis | None
    epoch: Count
    shard: Count
    performance: Performance
    queue: QueueState | UnsetType = UNSET


class TopicSummary(Struct):
    topic: str
    type: Literal["log", "queue"]
    head_seq: Seq
    earliest_seq: Seq
    count: Count
    bytes: Count
    durable: bool
    effective_priority: int


class TopicList(Struct):
    """Answer of `GET /v0/topics`; `next_cursor` is left out on the last page."""

    topics: list[TopicSummary]
    performance: Performance
    next_cursor: str | UnsetType = UNSET


class TopicDeleted(Struct):
    """Answer of `DELETE /v0/topics/:t`."""

    topic: str
    deleted: bool
    routers_removed: list[str]
    performance: Performance


class WriteResult(Struct):
    """Answer of `POST /v0/topics/:t`; `seqs` is left out with `?return_seqs=false`."""

    topic: str
    first_seq: Seq
    last_seq: Seq
    head_seq: Seq
    count: Count
    created: bool
    deduped: bool
    performance: Performance
    seqs: list[Seq] | UnsetType = UNSET


class Record(Struct):
    """One record as it is read. Server metadata has a `$`; what a record does not have is left out."""

    seq: Seq = msgspec.field(name="$seq")
    ts: Millis = msgspec.field(name="$ts")
    data: AnyJson
    node: str | UnsetType = msgspec.field(name="$node", default=UNSET)
    tag: str | UnsetType = msgspec.field(name="$tag", default=UNSET)
    key: str | UnsetType = msgspec.field(name="$key", default=UNSET)
    meta: dict[str, AnyJson] | UnsetType = UNSET


class Tombstone(Struct):
    """Records in [gap_from, gap_to] were lost before the reader saw them, and nobody had asked for that."""

    gap_from: Seq
    gap_to: Seq
    reason: Literal["cap", "ttl", "mixed", "recreated", "source_trim"]
    missed_estimate: Count
    earliest_seq: Seq
    head_seq: Seq


class ReadResult(Struct):
    """Answer of `POST /v0/topics/:t/diff` and `GET /v0/topics/:t/records`."""

    topic: str
    records: list[Record]
    next_from_seq: Seq
    head_seq: Seq
    earliest_seq: Seq
    caught_up: bool
    tombstone: Tombstone | None
    lag: Count
    performance: Performance


class DeleteResult(Struct):
    """Answer of `POST /v0/topics/:t/delete`; `count` and `bytes` are what is left."""

    topic: str
    deleted: Count
    earliest_seq: Seq
    head_seq: Seq
    count: Count
    bytes: Count
    performance: Performance


class Job(Struct):
    """One job as it is claimed: the record, and the lease on it."""

    seq: Seq = msgspec.field(name="$seq")
    ts: Millis = msgspec.field(name="$ts")
    deliveries: Count
    lease_id: str
    deadline: Millis
    data: AnyJson
    node: str | UnsetType = msgspec.field(name="$node", default=UNSET)
    tag: str | UnsetType = msgspec.field(name="$tag", default=UNSET)
    meta: dict[str, AnyJson] | UnsetType = UNSET


class ClaimResult(Struct):
    """Answer of `POST /v0/topics/:t/claim`; `ready` is what is left for others."""

    topic: str
    claimed: list[Job]
    count: Count
    ready: Count
    performance: Performance


class AckResult(Struct):
    """Answer of `POST /v0/topics/:t/ack`."""

    acked: Count
    skipped: Count
    ready: Count
    in_flight: Count
    performance: Performance


class NackResult(Struct):
    """Answer of `POST /v0/topics/:t/nack`."""

    nacked: Count
    skipped: Count
    ready: Count
    in_flight: Count
    performance: Performance


class ExtendResult(Struct):
    """Answer of `POST /v0/topics/:t/extend`; deadlines by seq."""

    extended: Count
    skipped: Count
    deadlines: dict[str, Millis]
    performance: Performance


class Lease(Struct):
    seq: Seq
    node: str
    lease_id: str
    deliveries: Count
    age_ms: Millis
    deadline: Millis


class LeaseList(Struct):
    """Answer of `GET /v0/topics/:t/leases`; `next_cursor` is left out on the last page."""

    topic: str
    leases: list[Lease]
    in_flight: Count
    performance: Performance
    next_cursor: str | UnsetType = UNSET


class RedriveResult(Struct):
    """Answer of `POST /v0/topics/:t/redrive`."""

    moved: Count
    performance: Performance


class ErrorInfo(Struct):
    code: str
    message: str
    detail: dict[str, AnyJson] | UnsetType = UNSET


class ErrorBody(Struct):
    """Every answer that is not 2xx."""

    error: ErrorInfo


class Health(Struct):
    status: Literal["ok"]
    version: str
    uptime_ms: Millis
    performance: Performance


class ShardReadiness(Struct):
    shard: Count
    ready: bool
    topics: Count
    reason: str | UnsetType = UNSET


class Ready(Struct):
    status: Literal["ready"]
    wal_replay_complete: bool
    topics: Count
    shards: list[ShardReadiness]
    performance: Performance
