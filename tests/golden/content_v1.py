"""What the golden files of format 1 say, in plain values. Like the files, only added to."""

from __future__ import annotations

from array import array

from shared.control_frames import (
    Control,
    FileEnded,
    Hole,
    JobsDone,
    JobsLeased,
    JobsReleased,
    LeaseRow,
    RecordsDeleted,
    Sealed,
    SealedTopic,
    SegmentMoved,
    SegmentsReplaced,
    Session,
    Synced,
    TopicConfigured,
    TopicCreated,
    TopicDeleted,
    Watermark,
)
from shared.file_header import FileHeader
from shared.manifest import Manifest, ManifestSegment, ManifestTopic
from shared.match import Match
from shared.router_frames import (
    CursorRow,
    RouteForgotten,
    RouterCursors,
    RouterDefined,
    RouterDropped,
    RouteTrimmed,
)
from shared.router_types import RouterRules
from shared.snapshot_items import (
    DedupeEntry,
    HotIndex,
    SealedRun,
    SnapBegin,
    SnapEnd,
    SnapItem,
    SnapSegment,
    SnapSegments,
    SnapTopic,
)
from shared.wal_format import AppendExtra, JobMark, MoveMark, RouterMark

NOW_MS = 1_790_000_000_000
WAL_HEADER = FileHeader(3, 2, NOW_MS)
SEGMENT_HEADER = FileHeader(3, 5, NOW_MS)
SNAPSHOT_HEADER = FileHeader(3, 4, NOW_MS)

# (seq, ts, record without its comma, node, tag, key, bytes of meta)
Record = tuple[int, int, bytes, bytes | None, bytes | None, bytes | None, int]

PLAIN: list[Record] = [(1, NOW_MS, b'{"$seq":1,"$ts":1790000000000,"data":{"n":1}}', None, None, None, 0)]
RICH: list[Record] = [
    (
        2,
        NOW_MS + 1,
        b'{"$seq":2,"$ts":1790000000001,"$node":"edge-1","data":"\xc3\xbc","meta":{"a":"b"}}',
        b"edge-1",
        b"red",
        b"k1",
        17,
    ),
    (3, NOW_MS + 1, b'{"$seq":3,"$ts":1790000000001,"data":null}', None, b"", None, 0),
    (4, NOW_MS + 1, b'{"$seq":4,"$ts":1790000000001,"data":[1,2,3]}', None, None, b"k2", 0),
]
ROUTED: list[Record] = [
    (seq, NOW_MS + 2, b'{"$seq":%d,"$ts":1790000000002,"data":%d}' % (seq, seq * seq), None, None, None, 0)
    for seq in range(10, 14)
]

# (records, reserve, idempotency key, router mark)
APPENDS: list[tuple[list[Record], int, str | None, RouterMark | None]] = [
    (PLAIN, 1024, None, None),
    (RICH, 0, "once", None),
    (ROUTED, 7, None, RouterMark("copy", 2, 99)),
]

DIGEST = "0123456789abcdef"
CONTROLS: list[tuple[int, Control]] = [
    (0, Session("6f1c8f3e-0000-4000-8000-000000000001", "0.1.0")),
    (7, TopicCreated("orders/eu", 1, {"durability": "fsync", "retention": {"count": 10}}, 1024)),
    (7, TopicConfigured({"durability": "disk"})),
    (7, RecordsDeleted(4)),
    (7, RecordsDeleted(4, 3, ["tag", "Glob", "r*"])),
    (7, Watermark(floor=2, reason="retention")),
    (7, Watermark(reserve=4096)),
    (7, Watermark(hole=Hole(5, 9, "power loss"))),
    (0, Sealed(5, DIGEST, 4096, (SealedTopic(7, 1, 13, 8, 500, NOW_MS + 2),))),
    (0, SegmentMoved(5, "cold")),
    (0, Synced(2 << 32 | 64)),
    (0, SegmentsReplaced((5, 6), (Sealed(8, DIGEST, 99, (SealedTopic(7, 1, 13, 8, 500, NOW_MS),)),))),
    (7, TopicDeleted()),
    (0, FileEnded()),
]

IMPORT_WAL_HEADER = FileHeader(3, 3, NOW_MS)
IMPORTED = SnapTopic(
    id=11,
    name="moved",
    epoch=4,
    config={"durability": "disk"},
    lsn=0,
    head=20,
    reserve=1044,
    ts=NOW_MS,
    floor=3,
    reason=None,
    first=4,
    count=17,
    json_bytes=999,
    sealed=(SealedRun(5, 4, 20, 17, 999, NOW_MS),),
)

ROUTER_WAL_HEADER = FileHeader(3, 8, NOW_MS)
ROUTER_CONTROLS: list[tuple[int, Control]] = [
    (7, RouterDefined("plain", 1794800000000001, "audit", 1794800000005, 41, RouterRules())),
    (
        7,
        RouterDefined(
            "orders>eu",
            1794800000000002,
            "orders-eu",
            1794800000006,
            0,
            RouterRules(False, False, False, Match("tag", "Glob", "eu-"), True, "exactly_once"),
        ),
    ),
    (
        7,
        RouterCursors((CursorRow("plain", 1794800000000001, 57, 55, 12), CursorRow("orders>eu", 2, 9, 9, 0))),
    ),
    (12, RouteTrimmed("plain", 1794800000000001, 60, 13, 15)),
    (12, RouteForgotten("plain", 1794800000000001)),
    (7, RouterDropped("plain", 1794800000000001)),
    (0, FileEnded()),
]

QUEUE_WAL_HEADER = FileHeader(3, 7, NOW_MS)
QUEUE_EXTRA = AppendExtra(
    idem="jobs-1",
    jobs=(JobMark(0, NOW_MS + 60_000, 0, None), JobMark(2, 0, -7, "müller")),
    moved=(MoveMark(1, "orders/eu:1790000000000:12"),),
)
QUEUE_CONTROLS: list[tuple[int, Control]] = [
    (
        12,
        JobsLeased(
            (
                LeaseRow(2, "lease_aZ3-_9_1", NOW_MS + 30_000, 1, "worker-1"),
                LeaseRow(4, "lease_aZ3-_9_2", NOW_MS + 86_400_000, 250, "wörker 2"),
            )
        ),
    ),
    (12, JobsLeased((LeaseRow(2, "lease_aZ3-_9_1", NOW_MS + 45_000, 1, "worker-1"),))),
    (12, JobsReleased(((2, NOW_MS + 5000), (4, 0)))),
    (12, JobsDone((3,))),
    (12, JobsDone((2, 4), True)),
    (0, FileEnded()),
]

# (topic id, name, epoch) and the records of each of its blocks, in the order of the file
SEGMENT_TOPICS: list[tuple[tuple[int, str, int], list[list[Record]]]] = [
    ((9, "zeta", 1), [PLAIN]),
    ((7, "orders/eu", 1), [[*PLAIN, *RICH], ROUTED]),
    ((8, "sparse", 3), [[RICH[0], RICH[2], ROUTED[1], ROUTED[3]]]),
]
SEGMENT_DELETED = 12

SNAPSHOT: list[SnapItem] = [
    SnapBegin(3, 2 << 32 | 64),
    SnapTopic(
        id=7,
        name="orders/eu",
        epoch=1,
        config={"durability": "fsync"},
        lsn=2 << 32 | 500,
        head=13,
        reserve=1024,
        ts=NOW_MS + 2,
        floor=1,
        reason="retention",
        first=2,
        count=7,
        json_bytes=400,
        holes=(Hole(5, 9, "power loss"),),
        deleted=bytes(range(16)),
        hot=HotIndex(
            array("Q", [2, 10]),
            array("Q", [2 << 32 | 128, 2 << 32 | 512]),
            array("Q", [NOW_MS + 1, NOW_MS + 2]),
            array("I", [180, 170]),
            array("I", [150, 170]),
            array("I", [3, 4]),
            array("H", [0x3F, 0x41]),
        ),
        sealed=(SealedRun(5, 1, 1, 1, 46, NOW_MS),),
        dedupe=(DedupeEntry("once", 2, 3, NOW_MS + 1),),
        more={"queue": {"visible": [1, 2]}},
    ),
    SnapTopic(
        id=8,
        name="empty",
        epoch=2,
        config={},
        lsn=2 << 32 | 700,
        head=0,
        reserve=0,
        ts=0,
        floor=0,
        reason=None,
        first=1,
        count=0,
        json_bytes=0,
    ),
    SnapSegments(
        next_segment=6,
        segments=(SnapSegment(5, "hot", 4096, DIGEST),),
        next_topic_id=10,
        clock=NOW_MS + 2,
        epoch=3,
    ),
    SnapEnd(topics=2, end=2 << 32 | 900, clean=True, boot_id="6f1c8f3e-0000-4000-8000-000000000001"),
]

MANIFEST = Manifest(
    generation=6,
    shard=3,
    created_ms=NOW_MS,
    previous=0xFEDCBA9876543210,
    segments=(
        ManifestSegment(
            number=5,
            path="data/0000000005.seg",
            size=4096,
            digest=DIGEST,
            blocks=4,
            records=13,
            deleted=12,
            min_ts=NOW_MS,
            max_ts=NOW_MS + 2,
            topics=(ManifestTopic("orders/eu", 1, 1, 13, 8), ManifestTopic("sparse", 3, 2, 13, 4)),
        ),
    ),
)
