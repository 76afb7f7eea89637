"""Router copies in segments, and whether they are what their source holds. Pure.

An exactly-once router marks a copy with `meta._topics_router`: which record of which topic it is. A copy keeps the
source's key and data byte for byte; node, tag and meta may differ by what the router was told.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec
from xxhash import xxh3_64_intdigest

from shared.audit_findings import Finding
from shared.segment_format import Block

_MARK = b'"_topics_router"'


class _Mark(msgspec.Struct):
    router: str
    source: str
    epoch: int
    seq: int


class _Meta(msgspec.Struct):
    mark: _Mark = msgspec.field(name="_topics_router")


class _Record(msgspec.Struct):
    data: msgspec.Raw
    meta: msgspec.Raw = msgspec.Raw()


@dataclass(slots=True)
class RouterCopies:
    """Copies in one block that came from one source."""

    router: str
    source: str
    source_epoch: int
    topic: str
    epoch: int
    path: str
    offset: int
    seqs: array[int] = field(default_factory=lambda: array("Q"))
    source_seqs: array[int] = field(default_factory=lambda: array("Q"))
    hashes: array[int] = field(default_factory=lambda: array("Q"))


def copies_in(block: Block, topic: str, epoch: int, path: str, offset: int) -> list[RouterCopies]:
    """What the block holds of marked copies; most blocks hold none, which one search tells."""
    if _MARK not in bytes(block.json):
        return []
    found: dict[tuple[str, str, int], RouterCopies] = {}
    start = 0
    for place, (seq, end) in enumerate(zip(block.seqs, block.columns.ends, strict=True)):
        text, start = block.json[start : end - 1], end
        if _MARK not in bytes(text):
            continue
        try:
            record = msgspec.json.decode(text, type=_Record)
            mark = msgspec.json.decode(record.meta, type=_Meta).mark
        except msgspec.MsgspecError:
            continue  # somebody's own field of that name, or in the data
        origin = (mark.router, mark.source, mark.epoch)
        held = found.setdefault(origin, RouterCopies(*origin, topic, epoch, path, offset))
        held.seqs.append(seq)
        held.source_seqs.append(mark.seq)
        held.hashes.append(content_hash(record.data, block.columns.key(place)))
    return list(found.values())


def content_hash(data: bytes | memoryview | msgspec.Raw, key: bytes | None) -> int:
    """Of what a copy has in common with its source."""
    seed = 0 if key is None else 1 + xxh3_64_intdigest(key) % (1 << 63)
    return xxh3_64_intdigest(bytes(data), seed)


def hashes_of(block: Block, wanted: set[int]) -> dict[int, int]:
    """The hashes of these seqs, as far as the block holds them."""
    found = {}
    start = 0
    for place, (seq, end) in enumerate(zip(block.seqs, block.columns.ends, strict=True)):
        text, start = block.json[start : end - 1], end
        if seq in wanted:
            record = msgspec.json.decode(text, type=_Record)
            found[seq] = content_hash(record.data, block.columns.key(place))
    return found


def compare_copies(copies: Iterable[RouterCopies], source: dict[int, int]) -> list[Finding]:
    """Every copy whose source is at hand holds the same; each source record at most once per topic."""
    found = []
    taken: dict[int, int] = {}
    for each in copies:
        for seq, source_seq, content in zip(each.seqs, each.source_seqs, each.hashes, strict=True):
            reason = ""
            if source.get(source_seq, content) != content:
                reason = f"router {each.router} copied seq {source_seq} of {each.source}, which holds something else"
            elif source_seq in taken:
                reason = f"seq {source_seq} of {each.source} was copied before, as seq {taken[source_seq]}"
            taken[source_seq] = seq
            if reason:
                found.append(
                    Finding(
                        kind="copy_differs",
                        reason=reason,
                        path=each.path,
                        offset=each.offset,
                        topic=each.topic,
                        epoch=each.epoch,
                        first_seq=seq,
                        last_seq=seq,
                    )
                )
    return found
