"""What a snapshot says, and the CBOR maps it is said in. Fields: docs/disk-format.md §5."""

from array import array

import msgspec

from shared.cbor_body import (
    Fields,
    as_bool,
    as_bytes,
    as_list,
    as_map,
    as_text,
    as_uint,
    dump_map,
    list_of,
    load_map,
    without_none,
)
from shared.control_frames import Hole, as_digest, as_hole, as_tier
from shared.format_errors import BadBytes
from shared.frame import Frame, Kind
from shared.int_arrays import U64, dump, load_u16, load_u32, load_u64


class SnapBegin(msgspec.Struct, frozen=True):
    shard: int
    start: int
    """Replay begins at this lsn."""


class HotIndex(msgspec.Struct, frozen=True):
    """The unsealed records of a topic: one entry per append frame, in seven columns."""

    first: "array[int]" = msgspec.field(default_factory=lambda: array(U64))
    lsn: "array[int]" = msgspec.field(default_factory=lambda: array(U64))
    """Of the JSON part."""
    ts: "array[int]" = msgspec.field(default_factory=lambda: array(U64))
    size: "array[int]" = msgspec.field(default_factory=lambda: array("I"))
    live: "array[int]" = msgspec.field(default_factory=lambda: array("I"))
    """Bytes of `size` that belong to live records."""
    count: "array[int]" = msgspec.field(default_factory=lambda: array("I"))
    flags: "array[int]" = msgspec.field(default_factory=lambda: array("H"))


class SealedRun(msgspec.Struct, frozen=True):
    """A topic's records in one segment."""

    segment: int
    first: int
    last: int
    count: int
    json_bytes: int
    max_ts: int


class DedupeEntry(msgspec.Struct, frozen=True):
    key: str
    first: int
    count: int
    ts: int


class SnapTopic(msgspec.Struct, frozen=True, kw_only=True):
    id: int
    name: str
    epoch: int
    config: dict[str, object]
    lsn: int
    """The state includes every frame up to and including this one."""
    head: int
    reserve: int
    ts: int
    floor: int
    reason: str | None
    first: int
    count: int
    json_bytes: int
    holes: tuple[Hole, ...] = ()
    deleted: bytes | None = None
    """A 64-bit roaring bitmap in the portable format."""
    hot: HotIndex = msgspec.field(default_factory=HotIndex)
    sealed: tuple[SealedRun, ...] = ()
    dedupe: tuple[DedupeEntry, ...] = ()
    more: dict[str, object] = msgspec.field(default_factory=dict)
    """Further fields, of queues and routers; their owners check them."""


class SnapSegment(msgspec.Struct, frozen=True):
    number: int
    tier: str
    size: int
    digest: str


class SnapSegments(msgspec.Struct, frozen=True, kw_only=True):
    next_segment: int
    segments: tuple[SnapSegment, ...]
    next_topic_id: int
    clock: int
    epoch: int


class SnapEnd(msgspec.Struct, frozen=True, kw_only=True):
    topics: int
    end: int
    clean: bool
    boot_id: str


SnapItem = SnapBegin | SnapTopic | SnapSegments | SnapEnd


def decode_snapshot_frame(frame: Frame) -> SnapItem:
    fields = load_map(frame.body)
    item: SnapItem
    if frame.kind == Kind.SNAP_BEGIN:
        item = SnapBegin(fields.need("shard", as_uint), fields.need("start", as_uint))
    elif frame.kind == Kind.SNAP_TOPIC:
        item = _as_topic(fields)
    elif frame.kind == Kind.SNAP_SEGMENTS:
        item = _as_segments(fields)
    elif frame.kind == Kind.SNAP_END:
        item = SnapEnd(
            topics=fields.need("topics", as_uint),
            end=fields.need("end", as_uint),
            clean=fields.need("clean", as_bool),
            boot_id=fields.need("boot_id", as_text),
        )
    else:
        raise BadBytes(f"frame kind {frame.kind} is out of place")
    fields.done()
    return item


def encode_topic(topic: SnapTopic) -> bytes:
    """The body of a SNAP_TOPIC or TOPIC_IMPORT frame."""
    return dump_map(topic_map(topic))


def decode_topic(frame: Frame) -> SnapTopic:
    fields = load_map(frame.body)
    topic = _as_topic(fields)
    fields.done()
    return topic


def topic_map(topic: SnapTopic) -> dict[str, object]:
    hot = topic.hot
    fields = without_none(
        id=topic.id,
        name=topic.name,
        epoch=topic.epoch,
        config=topic.config,
        lsn=topic.lsn,
        head=topic.head,
        reserve=topic.reserve,
        ts=topic.ts,
        floor=topic.floor,
        reason=topic.reason,
        first=topic.first,
        count=topic.count,
        bytes=topic.json_bytes,
        holes=[list(hole) for hole in topic.holes],
        deleted=topic.deleted,
        hot=[
            dump(column) for column in (hot.first, hot.lsn, hot.ts, hot.size, hot.live, hot.count, hot.flags)
        ],
        sealed=[
            [run.segment, run.first, run.last, run.count, run.json_bytes, run.max_ts] for run in topic.sealed
        ],
        dedupe=[[entry.key, entry.first, entry.count, entry.ts] for entry in topic.dedupe],
    )
    clash = fields.keys() & topic.more.keys()
    if clash:
        raise ValueError(f"fields of a topic given twice: {sorted(clash)}")
    return fields | topic.more


def _as_topic(fields: Fields) -> SnapTopic:
    return SnapTopic(
        id=fields.need("id", as_uint),
        name=fields.need("name", as_text),
        epoch=fields.need("epoch", as_uint),
        config=fields.need("config", as_map),
        lsn=fields.need("lsn", as_uint),
        head=fields.need("head", as_uint),
        reserve=fields.need("reserve", as_uint),
        ts=fields.need("ts", as_uint),
        floor=fields.need("floor", as_uint),
        reason=fields.maybe("reason", as_text),
        first=fields.need("first", as_uint),
        count=fields.need("count", as_uint),
        json_bytes=fields.need("bytes", as_uint),
        holes=fields.need("holes", lambda value: list_of(value, as_hole)),
        deleted=fields.maybe("deleted", as_bytes),
        hot=fields.need("hot", _as_hot),
        sealed=fields.need("sealed", lambda value: list_of(value, _as_run)),
        dedupe=fields.need("dedupe", lambda value: list_of(value, _as_dedupe)),
        more=fields.rest(),
    )


def _as_hot(value: object) -> HotIndex:
    columns = [as_bytes(column) for column in as_list(value, 7)]
    entries, odd = divmod(len(columns[0]), 8)
    widths = (8, 8, 8, 4, 4, 4, 2)
    if odd or any(len(column) != width * entries for column, width in zip(columns, widths, strict=True)):
        raise BadBytes("columns of different lengths")
    first, lsn, ts, size, live, count, flags = columns
    return HotIndex(
        load_u64(first),
        load_u64(lsn),
        load_u64(ts),
        load_u32(size),
        load_u32(live),
        load_u32(count),
        load_u16(flags),
    )


def _as_run(value: object) -> SealedRun:
    return SealedRun(*map(as_uint, as_list(value, 6)))


def _as_dedupe(value: object) -> DedupeEntry:
    key, first, count, ts = as_list(value, 4)
    return DedupeEntry(as_text(key), as_uint(first), as_uint(count), as_uint(ts))


def segments_map(item: SnapSegments) -> dict[str, object]:
    return {
        "next_segment": item.next_segment,
        "segments": [
            [segment.number, segment.tier, segment.size, segment.digest] for segment in item.segments
        ],
        "next_topic_id": item.next_topic_id,
        "clock": item.clock,
        "epoch": item.epoch,
    }


def _as_segments(fields: Fields) -> SnapSegments:
    return SnapSegments(
        next_segment=fields.need("next_segment", as_uint),
        segments=fields.need("segments", lambda value: list_of(value, _as_segment)),
        next_topic_id=fields.need("next_topic_id", as_uint),
        clock=fields.need("clock", as_uint),
        epoch=fields.need("epoch", as_uint),
    )


def _as_segment(value: object) -> SnapSegment:
    number, tier, size, digest = as_list(value, 4)
    return SnapSegment(as_uint(number), as_tier(tier), as_uint(size), as_digest(digest))
