"""What a compaction hands to the owning worker: `<job>.staged.json`, written last, and the receipt of what went.

The job puts its segments into the staging directory and writes this file when all of them are durable. Segments
without it are unfinished work; a file that does not match its own checksum is refused. docs/disk-format.md §6.
"""

from __future__ import annotations

import msgspec
from xxhash import xxh3_64_hexdigest

from shared.format_errors import BadBytes, NewerVersion

STAGED_ENDING = ".staged.json"
REFUSED_ENDING = ".refused.json"
PENDING_ENDING = ".pending.json"
SNAPSHOT_WANTED = "snapshot-wanted"
STAGED_FORMAT = 1

Ranges = list[tuple[int, int]]


class StagedTopic(msgspec.Struct, frozen=True):
    id: int
    name: str
    epoch: int
    first: int
    """first…last is what the segment stands for, dead records at the ends included."""
    last: int
    count: int
    json_bytes: int
    max_ts: int


class StagedSegment(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    file: str
    """In the staging directory."""
    size: int
    digest: str
    old: list[int]
    """What it replaces, in the order of seqs."""
    topics: list[StagedTopic]


class OldSegment(msgspec.Struct, frozen=True):
    number: int
    size: int
    digest: str
    records: int


class Removed(msgspec.Struct, frozen=True, kw_only=True):
    """The records of one topic that are in no new segment."""

    id: int
    topic: str
    epoch: int
    seqs: Ranges
    superseded: Ranges
    """Those of `seqs` that were live, and had to go because of a younger record with their key."""


class Staged(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    job: str
    engine: str
    shard: int
    generation: int
    """The generation of the manifest that the job read, and the checksum of its file."""
    manifest: str
    snapshot: int
    made_ms: int
    old: list[OldSegment]
    new: list[StagedSegment]
    removed: list[Removed]


class _Envelope(msgspec.Struct, frozen=True):
    checksum: str
    staged: msgspec.Raw


class _FormatOnly(msgspec.Struct):
    format: int


def encode_staged(staged: Staged) -> bytes:
    body = msgspec.json.encode(staged)
    return msgspec.json.encode(_Envelope(xxh3_64_hexdigest(body), msgspec.Raw(body))) + b"\n"


def decode_staged(content: bytes) -> Staged:
    try:
        envelope = msgspec.json.decode(content, type=_Envelope)
        body = bytes(envelope.staged)
        if xxh3_64_hexdigest(body) != envelope.checksum:
            raise BadBytes("the checksum of the staged manifest")
        found = msgspec.json.decode(body, type=_FormatOnly).format
        if found > STAGED_FORMAT:
            raise NewerVersion(found, STAGED_FORMAT, "staged manifest")
        return msgspec.json.decode(body, type=Staged)
    except msgspec.MsgspecError as err:
        raise BadBytes(f"the staged manifest: {err}") from err


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """What is physically gone, for people and auditors. Written when the old files are gone."""

    format: int = 1
    job: str
    shard: int
    generation_before: int
    generation_after: int
    adopted_ms: int
    erased_ms: int
    """When the last old file was removed."""
    before: list[OldSegment]
    after: list[OldSegment]
    records_removed: int
    topics: list[Removed]


def receipt_of(staged: Staged, *, generation_after: int, adopted_ms: int, erased_ms: int) -> Receipt:
    after = [
        OldSegment(new.number, new.size, new.digest, sum(topic.count for topic in new.topics))
        for new in staged.new
    ]
    return Receipt(
        job=staged.job,
        shard=staged.shard,
        generation_before=staged.generation,
        generation_after=generation_after,
        adopted_ms=adopted_ms,
        erased_ms=erased_ms,
        before=staged.old,
        after=after,
        records_removed=sum(last - first + 1 for each in staged.removed for first, last in each.seqs),
        topics=staged.removed,
    )


def encode_receipt(receipt: Receipt) -> bytes:
    return msgspec.json.format(msgspec.json.encode(receipt), indent=1) + b"\n"
