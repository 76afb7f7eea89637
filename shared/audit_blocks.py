"""Auditing the blocks of a segment file: every checksum, and digests that no recomputed checksum can imitate.

Pure, and the same for every engine: `check_slice` reads some blocks through `pread` and returns facts that are small,
whatever the blocks weigh; `fold_segment` puts the facts of all slices of a file together.

The format's own digest is XXH3, which finds accidents. Someone who edits the past can recompute it, so the audit also
takes SHA-256 of every block; those make the digests of segments and topics that reports are chained with.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256

from pyroaring import BitMap64
from xxhash import xxh3_64, xxh3_64_intdigest

from shared.audit_findings import Finding
from shared.audit_routers import RouterCopies, copies_in
from shared.cold_plan import SegmentSlice
from shared.columns import COLUMN_META
from shared.file_header import FILE_HEADER_BYTES, FileHeader
from shared.format_errors import BadBytes, FormatError
from shared.int_arrays import is_ascending
from shared.segment_format import Block, BlockColumns, decode_block, decode_block_columns
from shared.segment_index import SegmentIndex
from shared.segment_reader import Pread, check_entry, read_header, read_index, read_trailer
from shared.segment_scan import verify_segment
from shared.segment_terms import TRAILER_BYTES, Trailer


@dataclass(frozen=True, slots=True)
class Footer:
    """What the ends of a file say about it, checked in itself."""

    header: FileHeader
    size: int
    index: SegmentIndex
    ends: bytes
    """Header and trailer, as they are: part of the digests."""
    terms_sha: bytes
    sound: bool
    """Header and terms are good, too; otherwise only the blocks can be spoken of."""


@dataclass(slots=True)
class SliceFacts:
    """What was found in some blocks of a file, by ordinal from `first`."""

    path: str
    number: int
    first: int
    sums: list[bytes] = field(default_factory=list)
    """Both checksums of each block; empty for a bad one."""
    shas: list[bytes] = field(default_factory=list)
    sparse: dict[int, bytes] = field(default_factory=dict)
    """The seqs of blocks in which they are not contiguous, as roaring bitmaps."""
    copies: list[RouterCopies] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    bytes: int = 0
    records: int = 0


@dataclass(frozen=True, slots=True)
class TopicRun:
    """A topic's share of one segment."""

    topic_id: int
    name: str
    epoch: int
    segment: int
    first: int
    last: int
    count: int
    min_ts: int
    max_ts: int
    present: BitMap64
    sha: bytes


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    digest: str | None
    """As manifests record it; None if a part of the file could not be trusted."""
    sha: str
    runs: tuple[TopicRun, ...]
    blocks: int
    records: int
    bad_blocks: int


def read_footer(
    pread: Pread, size: int, path: str, shard: int, number: int
) -> tuple[Footer | None, list[Finding]]:
    """Header, trailer, index and terms of a file that should be segment `number` of `shard`."""
    found: list[Finding] = []

    def note(kind: str, err: FormatError, base: int = 0) -> None:
        offset = base + err.offset if isinstance(err, BadBytes) else base
        reason = err.reason if isinstance(err, BadBytes) else str(err)
        found.append(Finding(kind=kind, reason=reason, path=path, offset=offset, shard=shard, segment=number))

    header: FileHeader | None = None
    try:
        header = read_header(pread)
    except FormatError as err:
        note("bad_header", err)
    if header is not None and (header.shard, header.number) != (shard, number):
        found.append(
            Finding(
                kind="wrong_file",
                reason=f"this is segment {header.number} of shard {header.shard}",
                path=path,
                offset=0,
                shard=shard,
                segment=number,
            )
        )
    trailer: Trailer | None = None
    try:
        trailer = read_trailer(pread, size)
        index = read_index(pread, trailer)
    except FormatError as err:
        note("bad_footer", err)
        return None, found
    terms = pread(trailer.terms_len, trailer.terms_at)
    sound = header is not None
    try:
        trailer.check_terms(terms)
    except FormatError as err:
        note("bad_footer", err)
        sound = False
    found += _times_between_blocks(index, path, shard, number)
    ends = pread(FILE_HEADER_BYTES, 0) + pread(TRAILER_BYTES, size - TRAILER_BYTES)
    header = header or FileHeader(shard, number, 0)
    return Footer(header, size, index, ends, sha256(terms).digest(), sound), found


def _times_between_blocks(index: SegmentIndex, path: str, shard: int, number: int) -> list[Finding]:
    found = []
    for topic in index.topics():
        latest = 0
        for ordinal in index.blocks_of(topic.topic_id):
            entry = index.block(ordinal)
            if entry.min_ts < latest:
                found.append(
                    Finding(
                        kind="ts_order",
                        reason=f"begins at time {entry.min_ts}, and the block before ends at {latest}",
                        path=path,
                        offset=entry.offset,
                        shard=shard,
                        segment=number,
                        topic=topic.name,
                        epoch=topic.epoch,
                        first_seq=entry.first,
                        last_seq=entry.last,
                    )
                )
            latest = entry.max_ts
    return found


def salvage(pread: Pread, size: int, path: str, shard: int, number: int) -> list[Finding]:
    """Without a footer: which blocks are bad, found by going through the file."""
    return [
        Finding(
            kind="bad_block",
            reason=each.reason,
            path=path,
            offset=each.offset,
            shard=shard,
            segment=number,
            first_seq=each.first_seq,
            last_seq=each.last_seq,
        )
        for each in verify_segment(pread, size).findings
        if each.topic_id is not None
    ]


def check_slice(pread: Pread, work: SegmentSlice) -> SliceFacts:
    facts = SliceFacts(work.path, work.number, work.blocks[0][0])
    for ordinal, entry in work.blocks:
        topic = work.topics[entry.topic_id]
        stored = pread(entry.length, entry.offset)
        facts.bytes += len(stored)
        kind = "bad_block"
        try:
            block = _checked(stored)
            check_entry(block, entry)
            kind = "ts_order"
            if not isinstance(block.times, int) and not is_ascending(block.times):
                raise BadBytes("times run backwards inside a block")
        except FormatError as err:
            offset = entry.offset + (err.offset if isinstance(err, BadBytes) and kind == "bad_block" else 0)
            facts.findings.append(
                Finding(
                    kind=kind,
                    reason=err.reason if isinstance(err, BadBytes) else str(err),
                    path=work.path,
                    offset=offset,
                    shard=work.shard,
                    segment=work.number,
                    topic=topic.name,
                    epoch=topic.epoch,
                    first_seq=entry.first,
                    last_seq=entry.last,
                )
            )
            if kind == "bad_block":
                facts.sums.append(b"")
                facts.shas.append(b"")
                continue
        facts.sums.append(stored[72:80] + stored[-8:])
        facts.shas.append(sha256(stored).digest())
        facts.records += entry.count
        if not isinstance(block.seqs, range):
            facts.sparse[ordinal] = bytes(BitMap64(block.seqs).serialize())
        if isinstance(block, Block):
            facts.copies += copies_in(block, topic.name, topic.epoch, work.path, entry.offset)
    return facts


def _checked(stored: bytes) -> Block | BlockColumns:
    """Both checksums. The JSON is decompressed only where it may hold the marks of a router."""
    view = memoryview(stored)
    columns = decode_block_columns(view)
    header = columns.header
    if header.flags & COLUMN_META or len(stored) != header.length:
        return decode_block(view)
    json_sum = int.from_bytes(stored[-8:], "little")
    if xxh3_64_intdigest(view[header.json_at : header.length - 8], header.checksum) != json_sum:
        raise BadBytes("block JSON checksum", header.json_at)
    return columns


def fold_segment(footer: Footer, slices: Iterable[SliceFacts]) -> SegmentFacts:
    """The facts of a whole file; the slices are all of its blocks, cut in any way."""
    index = footer.index
    sums: list[bytes] = [b""] * index.block_count
    shas: list[bytes] = [b""] * index.block_count
    sparse: dict[int, bytes] = {}
    for each in slices:
        sums[each.first : each.first + len(each.sums)] = each.sums
        shas[each.first : each.first + len(each.shas)] = each.shas
        sparse |= each.sparse
    bad = sums.count(b"")
    digest = None
    if not bad and footer.sound:
        state = xxh3_64(footer.ends[:FILE_HEADER_BYTES])
        for each_sum in sums:
            state.update(each_sum)
        state.update(footer.ends[FILE_HEADER_BYTES:])
        digest = state.hexdigest()
    sha = sha256(footer.ends + footer.terms_sha + b"".join(shas)).hexdigest()
    runs = []
    for topic in index.topics():
        ordinals = index.blocks_of(topic.topic_id)
        runs.append(
            TopicRun(
                topic.topic_id,
                topic.name,
                topic.epoch,
                footer.header.number,
                topic.first,
                topic.last,
                topic.count,
                topic.min_ts,
                topic.max_ts,
                _present(index, ordinals, sums, sparse),
                sha256(b"".join(shas[at] for at in ordinals)).digest(),
            )
        )
    records = sum(index.block(at).count for at in range(index.block_count) if sums[at])
    return SegmentFacts(digest, sha, tuple(runs), index.block_count, records, bad)


def _present(
    index: SegmentIndex, ordinals: range, sums: list[bytes], sparse: Mapping[int, bytes]
) -> BitMap64:
    """The seqs that can be read. Those of a bad block count as present: it is reported as what it is, once."""
    found = BitMap64()
    for ordinal in ordinals:
        if ordinal in sparse:
            found |= BitMap64.deserialize(sparse[ordinal])
        else:
            entry = index.block(ordinal)
            found.add_range(entry.first, entry.last + 1)
    return found
