"""The log's frames besides appends: one frozen class per kind. Bodies: docs/disk-format.md §3.1.

Past tense, because a frame in the log is a fact. `encode_control` and `decode_control` are inverse.
"""

from typing import ClassVar, Final, NamedTuple

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
from shared.cbor_uints import dump_uints
from shared.format_errors import BadBytes
from shared.frame import Frame, Kind
from shared.router_frames import ROUTER_FACTS, RouterFact

TIERS = ("hot", "cold")


class SealedTopic(msgspec.Struct, frozen=True):
    """One topic's share of a segment."""

    topic_id: int
    first: int
    last: int
    count: int
    json_bytes: int
    max_ts: int

    def to_list(self) -> list[int]:
        return [self.topic_id, self.first, self.last, self.count, self.json_bytes, self.max_ts]


class Hole(NamedTuple):
    """Seqs first..last that hold no records, and why."""

    first: int
    last: int
    reason: str


class TopicCreated(msgspec.Struct, frozen=True):
    kind: ClassVar[Kind] = Kind.TOPIC_CREATE
    name: str
    epoch: int
    config: dict[str, object]
    reserve: int

    def to_map(self) -> dict[str, object]:
        return {"name": self.name, "epoch": self.epoch, "config": self.config, "reserve": self.reserve}

    @classmethod
    def from_fields(cls, fields: Fields) -> "TopicCreated":
        return cls(
            fields.need("name", as_text),
            fields.need("epoch", as_uint),
            fields.need("config", as_map),
            fields.need("reserve", as_uint),
        )


class TopicConfigured(msgspec.Struct, frozen=True):
    kind: ClassVar[Kind] = Kind.TOPIC_CONFIG
    config: dict[str, object]

    def to_map(self) -> dict[str, object]:
        return {"config": self.config}

    @classmethod
    def from_fields(cls, fields: Fields) -> "TopicConfigured":
        return cls(fields.need("config", as_map))


class TopicDeleted(msgspec.Struct, frozen=True):
    kind: ClassVar[Kind] = Kind.TOPIC_DELETE


class RecordsDeleted(msgspec.Struct, frozen=True):
    kind: ClassVar[Kind] = Kind.RECORDS_DELETE
    upto: int
    before: int | None = None
    match: list[object] | None = None
    """The caller's predicate as it came."""

    def to_map(self) -> dict[str, object]:
        return without_none(upto=self.upto, before=self.before, match=self.match)

    @classmethod
    def from_fields(cls, fields: Fields) -> "RecordsDeleted":
        return cls(
            fields.need("upto", as_uint), fields.maybe("before", as_uint), fields.maybe("match", as_list)
        )


class Watermark(msgspec.Struct, frozen=True):
    kind: ClassVar[Kind] = Kind.WATERMARK
    floor: int | None = None
    reason: str | None = None
    reserve: int | None = None
    hole: Hole | None = None

    def to_map(self) -> dict[str, object]:
        hole = None if self.hole is None else list(self.hole)
        return without_none(floor=self.floor, reason=self.reason, reserve=self.reserve, hole=hole)

    @classmethod
    def from_fields(cls, fields: Fields) -> "Watermark":
        return cls(
            fields.maybe("floor", as_uint),
            fields.maybe("reason", as_text),
            fields.maybe("reserve", as_uint),
            fields.maybe("hole", as_hole),
        )


class Sealed(msgspec.Struct, frozen=True):
    kind: ClassVar[Kind] = Kind.SEALED
    segment: int
    digest: str
    size: int
    topics: tuple[SealedTopic, ...]

    def to_map(self) -> dict[str, object]:
        topics = [topic.to_list() for topic in self.topics]
        return {"segment": self.segment, "digest": self.digest, "size": self.size, "topics": topics}

    @classmethod
    def from_fields(cls, fields: Fields) -> "Sealed":
        return cls(
            fields.need("segment", as_uint),
            fields.need("digest", as_digest),
            fields.need("size", as_uint),
            fields.need("topics", lambda value: list_of(value, _as_sealed_topic)),
        )


class SegmentMoved(msgspec.Struct, frozen=True):
    kind: ClassVar[Kind] = Kind.SEGMENT_MOVED
    segment: int
    tier: str

    def to_map(self) -> dict[str, object]:
        return {"segment": self.segment, "tier": self.tier}

    @classmethod
    def from_fields(cls, fields: Fields) -> "SegmentMoved":
        return cls(fields.need("segment", as_uint), fields.need("tier", as_tier))


class Synced(msgspec.Struct, frozen=True):
    kind: ClassVar[Kind] = Kind.SYNCED
    lsn: int

    def to_map(self) -> dict[str, object]:
        return {"lsn": self.lsn}

    @classmethod
    def from_fields(cls, fields: Fields) -> "Synced":
        return cls(fields.need("lsn", as_uint))


class FileEnded(msgspec.Struct, frozen=True):
    kind: ClassVar[Kind] = Kind.FILE_END


class SegmentsReplaced(msgspec.Struct, frozen=True):
    """A compaction was adopted: what topics had in the old segments they have in the new ones from here on."""

    kind: ClassVar[Kind] = Kind.SEGMENTS_REPLACED
    old: tuple[int, ...]
    new: tuple[Sealed, ...]
    dropped: tuple[tuple[int, bytes], ...] = ()
    """Topic id and roaring bitmap: records that were live until now, and are superseded by their key."""

    def to_map(self) -> dict[str, object]:
        fields: dict[str, object] = {
            "old": list(self.old),
            "new": [segment.to_map() for segment in self.new],
        }
        if self.dropped:
            fields["dropped"] = [list(row) for row in self.dropped]
        return fields

    @classmethod
    def from_fields(cls, fields: Fields) -> "SegmentsReplaced":
        return cls(
            fields.need("old", lambda value: list_of(value, as_uint)),
            fields.need("new", lambda value: list_of(value, _as_sealed)),
            fields.maybe("dropped", lambda value: list_of(value, _as_dropped)) or (),
        )


class Session(msgspec.Struct, frozen=True):
    """A worker opened the log here."""

    kind: ClassVar[Kind] = Kind.SESSION
    boot_id: str
    version: str

    def to_map(self) -> dict[str, object]:
        return {"boot_id": self.boot_id, "version": self.version}

    @classmethod
    def from_fields(cls, fields: Fields) -> "Session":
        return cls(fields.need("boot_id", as_text), fields.need("version", as_text))


class LeaseRow(NamedTuple):
    seq: int
    token: str
    deadline_ms: int
    deliveries: int
    node: str


class JobsLeased(msgspec.Struct, frozen=True):
    kind: ClassVar[Kind] = Kind.JOBS_LEASED
    leases: tuple[LeaseRow, ...]

    def to_map(self) -> dict[str, object]:
        return {"leases": [list(lease) for lease in self.leases]}

    @classmethod
    def from_fields(cls, fields: Fields) -> "JobsLeased":
        return cls(fields.need("leases", lambda value: list_of(value, _as_lease)))


class JobsDone(msgspec.Struct, frozen=True):
    kind: ClassVar[Kind] = Kind.JOBS_DONE
    seqs: tuple[int, ...]
    dead: bool = False
    """Moved to the dead letters, where they are already."""

    def to_map(self) -> dict[str, object]:
        return {"seqs": list(self.seqs), "dead": self.dead}

    @classmethod
    def from_fields(cls, fields: Fields) -> "JobsDone":
        return cls(fields.need("seqs", lambda value: list_of(value, as_uint)), fields.need("dead", as_bool))


class JobsReleased(msgspec.Struct, frozen=True):
    kind: ClassVar[Kind] = Kind.JOBS_RELEASED
    jobs: tuple[tuple[int, int], ...]
    """(seq, when it is due)"""

    def to_map(self) -> dict[str, object]:
        return {"jobs": [list(job) for job in self.jobs]}

    @classmethod
    def from_fields(cls, fields: Fields) -> "JobsReleased":
        return cls(fields.need("jobs", lambda value: list_of(value, _as_seq_and_time)))


_Mapped = (
    TopicCreated
    | TopicConfigured
    | RecordsDeleted
    | Watermark
    | Sealed
    | SegmentMoved
    | Synced
    | SegmentsReplaced
    | Session
    | JobsLeased
    | JobsDone
    | JobsReleased
    | RouterFact
)
Control = _Mapped | TopicDeleted | FileEnded

_EMPTY: dict[int, type[TopicDeleted] | type[FileEnded]] = {cls.kind: cls for cls in (TopicDeleted, FileEnded)}
_MAPPED: dict[int, type[_Mapped]] = {
    TopicCreated.kind: TopicCreated,
    TopicConfigured.kind: TopicConfigured,
    RecordsDeleted.kind: RecordsDeleted,
    Watermark.kind: Watermark,
    Sealed.kind: Sealed,
    SegmentMoved.kind: SegmentMoved,
    Synced.kind: Synced,
    SegmentsReplaced.kind: SegmentsReplaced,
    Session.kind: Session,
    JobsLeased.kind: JobsLeased,
    JobsDone.kind: JobsDone,
    JobsReleased.kind: JobsReleased,
    **{fact.kind: fact for fact in ROUTER_FACTS},
}


_FOUR_BYTES: Final = 0xFFFFFFFF  # larger numbers have eight in CBOR


def encode_control(control: Control) -> bytes:
    """The body of the frame of kind `control.kind`."""
    if isinstance(control, JobsDone):
        return b"\xa2\x64seqs%b\x64dead%b" % (dump_uints(control.seqs), b"\xf5" if control.dead else b"\xf4")
    if isinstance(control, Synced) and control.lsn > _FOUR_BYTES:
        return b"\xa1\x63lsn\x1b%b" % control.lsn.to_bytes(8, "big")  # in front of every group behind a sync
    return b"" if isinstance(control, TopicDeleted | FileEnded) else dump_map(control.to_map())


def decode_control(frame: Frame) -> Control:
    """What an intact frame says; raises BadBytes if its body is not of its kind's shape."""
    empty = _EMPTY.get(frame.kind)
    if empty is not None:
        if len(frame.body):
            raise BadBytes(f"a body in a frame of kind {frame.kind}")
        return empty()
    mapped = _MAPPED.get(frame.kind)
    if mapped is None:
        raise BadBytes(f"frame kind {frame.kind} is out of place here")
    fields = load_map(frame.body)
    control = mapped.from_fields(fields)
    fields.done()
    return control


def _as_lease(value: object) -> LeaseRow:
    seq, token, deadline_ms, deliveries, node = as_list(value, 5)
    return LeaseRow(as_uint(seq), as_text(token), as_uint(deadline_ms), as_uint(deliveries), as_text(node))


def _as_seq_and_time(value: object) -> tuple[int, int]:
    seq, due_ms = as_list(value, 2)
    return as_uint(seq), as_uint(due_ms)


def as_tier(value: object) -> str:
    tier = as_text(value)
    if tier not in TIERS:
        raise BadBytes(f"tier is one of {', '.join(TIERS)}")
    return tier


def as_digest(value: object) -> str:
    digest = as_text(value)
    if len(digest) != 16 or not set(digest) <= set("0123456789abcdef"):
        raise BadBytes("a digest is 16 hex digits")
    return digest


def as_hole(value: object) -> Hole:
    first, last, reason = as_list(value, 3)
    return Hole(as_uint(first), as_uint(last), as_text(reason))


def _as_sealed_topic(value: object) -> SealedTopic:
    return SealedTopic(*map(as_uint, as_list(value, 6)))


def _as_sealed(value: object) -> Sealed:
    fields = Fields(as_map(value))
    sealed = Sealed.from_fields(fields)
    fields.done()
    return sealed


def _as_dropped(value: object) -> tuple[int, bytes]:
    topic_id, seqs = as_list(value, 2)
    return as_uint(topic_id), as_bytes(seqs)
