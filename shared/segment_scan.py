"""Checking a segment file as a whole, and reading all its records.

Used by the verify tools and by the nightly job. `verify_segment` never raises on damage: it reports all
of it, and without an index it still finds the blocks by their magic.
"""

from collections.abc import Callable, Iterator
from struct import Struct

import msgspec
from xxhash import xxh3_64

from shared.columns import FIELDS
from shared.file_header import FILE_HEADER_BYTES
from shared.format_errors import BadBytes, FormatError, NewerVersion
from shared.segment_format import (
    BLOCK_HEADER_BYTES,
    BLOCK_MAGIC,
    Block,
    BlockHeader,
    decode_block,
    decode_block_columns,
    decode_block_header,
)
from shared.segment_index import BlockEntry, SegmentIndex
from shared.segment_reader import Pread, read_block, read_header, read_index, read_trailer
from shared.segment_terms import TRAILER_BYTES, Trailer, encode_terms, term_hash

_SEARCH_CHUNK_BYTES = 4 << 20
_U64 = Struct("<Q")


class Finding(msgspec.Struct, frozen=True):
    """One thing that is wrong. Topic and seqs are None where nothing vouches for them."""

    offset: int
    reason: str
    topic_id: int | None = None
    first_seq: int | None = None
    last_seq: int | None = None


class SegmentVerdict(msgspec.Struct, frozen=True):
    findings: tuple[Finding, ...]
    blocks: int
    """Intact blocks, and the records in them."""
    records: int
    digest: str | None
    """None if a part that it covers could not be read."""
    newer: bool
    """A part needs a newer topicsd; the findings say which."""

    @property
    def ok(self) -> bool:
        return not self.findings


class SegmentRecord(msgspec.Struct, frozen=True):
    topic_id: int
    seq: int
    ts: int
    flags: int
    json: memoryview
    """The record as it is read, without the comma."""
    node: bytes | None
    tag: bytes | None
    key: bytes | None


def iter_records(pread: Pread, size: int, topic_id: int | None = None) -> Iterator[SegmentRecord]:
    """Every record of the file, or of one topic, in the order of the file; raises on damage."""
    read_header(pread)
    index = read_index(pread, read_trailer(pread, size))
    ordinals = range(index.block_count) if topic_id is None else index.blocks_of(topic_id)
    for ordinal in ordinals:
        yield from _records_of(read_block(pread, index.block(ordinal)))


def _records_of(block: Block) -> Iterator[SegmentRecord]:
    columns = block.columns
    values = [columns.values(field) for field in FIELDS]
    start = 0
    rows = zip(block.seqs, columns.ends, columns.flags, *values, strict=True)
    for place, (seq, end, flags, node, tag, key) in enumerate(rows):
        json = block.json[start : end - 1]
        yield SegmentRecord(block.header.topic_id, seq, block.ts(place), flags, json, node, tag, key)
        start = end


OnBlock = Callable[[int, BlockHeader], None]


def verify_segment(
    pread: Pread, size: int, expected_digest: str | None = None, on_block: OnBlock | None = None
) -> SegmentVerdict:
    """Every checksum, and whether blocks, index, terms and digest agree with each other.

    `on_block` hears of every intact block: where it is, and its header.
    """
    return _Verification(pread, size, on_block).run(expected_digest)


class _Verification:
    def __init__(self, pread: Pread, size: int, on_block: OnBlock | None) -> None:
        self._on_block = on_block
        self._pread = pread
        self._size = size
        self._findings: list[Finding] = []
        self._newer = False
        self._blocks = self._records = 0
        self._terms: list[tuple[int, int]] = []
        self._checksums: list[bytes] = []

    def run(self, expected_digest: str | None) -> SegmentVerdict:
        try:
            read_header(self._pread)
        except FormatError as err:
            self._report(err, 0)
        trailer, index = self._read_tail()
        if index is not None and trailer is not None:
            for ordinal in range(index.block_count):
                self._check_indexed(ordinal, index.block(ordinal))
            self._check_terms(trailer)
        else:
            self._salvage(trailer.terms_at if trailer else self._size, end_known=trailer is not None)
        digest = None if self._findings else self._digest()
        if digest is not None and expected_digest is not None and digest != expected_digest:
            self._findings.append(Finding(0, f"digest {digest} instead of {expected_digest}"))
        return SegmentVerdict(tuple(self._findings), self._blocks, self._records, digest, self._newer)

    def _report(self, err: FormatError, base: int, block: BlockEntry | BlockHeader | None = None) -> None:
        self._newer |= isinstance(err, NewerVersion)
        offset = base + err.offset if isinstance(err, BadBytes) else base
        reason = err.reason if isinstance(err, BadBytes) else str(err)
        if isinstance(block, BlockEntry):
            finding = Finding(offset, reason, block.topic_id, block.first, block.last)
        elif isinstance(block, BlockHeader):
            finding = Finding(offset, reason, block.topic_id, block.first_seq, block.last_seq)
        else:
            finding = Finding(offset, reason)
        self._findings.append(finding)

    def _read_tail(self) -> tuple[Trailer | None, SegmentIndex | None]:
        trailer = None
        try:
            trailer = read_trailer(self._pread, self._size)
            return trailer, read_index(self._pread, trailer)
        except FormatError as err:
            self._report(err, 0)
            return trailer, None

    def _check_indexed(self, ordinal: int, entry: BlockEntry) -> None:
        stored = self._pread(entry.length, entry.offset)
        try:
            block = decode_block(memoryview(stored))
            self._check_content(block)
        except FormatError as err:
            self._report(err, entry.offset, entry)
            return
        self._count(entry.offset, block, stored)
        ranges = {}
        for field in FIELDS:
            values = {value for value in block.columns.values(field) if value is not None}
            self._terms.extend((term_hash(entry.topic_id, field, value), ordinal) for value in values)
            if values:
                ranges[field] = (min(values), max(values))
        if _entry_of(entry.offset, block.header, ranges) != entry:
            self._report(BadBytes("block and index disagree"), entry.offset, entry)

    def _count(self, offset: int, block: Block, stored: bytes) -> None:
        if self._on_block is not None:
            self._on_block(offset, block.header)
        self._blocks += 1
        self._records += block.header.count
        self._checksums += (_U64.pack(block.header.checksum), stored[-8:])

    def _check_content(self, block: Block) -> None:
        """Behind the checksums: columns that make sense, and records that carry their own seq."""
        block.columns.verify()
        start = 0
        for seq, end in zip(block.seqs, block.columns.ends, strict=True):
            record = bytes(block.json[start:end])
            if not record.startswith(b'{"$seq":%d,' % seq) or not record.endswith(b"},"):
                raise BadBytes(f"the record of seq {seq} is not in its place", block.header.json_at)
            start = end

    def _check_terms(self, trailer: Trailer) -> None:
        stored = self._pread(trailer.terms_len, trailer.terms_at)
        try:
            trailer.check_terms(stored)
        except BadBytes as err:
            self._report(err, 0)
            return
        # With a bad block its terms are unknown, so a difference would say nothing.
        if not self._findings and encode_terms(self._terms) != stored:
            self._report(BadBytes("terms and blocks disagree"), trailer.terms_at)

    def _digest(self) -> str:
        digest = xxh3_64(self._pread(FILE_HEADER_BYTES, 0))
        for checksum in self._checksums:
            digest.update(checksum)
        digest.update(self._pread(TRAILER_BYTES, self._size - TRAILER_BYTES))
        return digest.hexdigest()

    def _salvage(self, end: int, end_known: bool) -> None:
        """Without an index: go from block to block, and search for the next one behind damage."""
        position = FILE_HEADER_BYTES
        while position < end:
            header = None
            try:
                header = self._header_at(position, end)
                stored = self._pread(header.length, position)
                block = decode_block(memoryview(stored))
                self._check_content(block)
            except FormatError as err:
                following = self._next_block(position + 1, end)
                # Where the end of the blocks is unknown, terms and index follow, which are no damage.
                if end_known or header is not None or following is not None:
                    self._report(err, position, header)
                if following is None:
                    return
                position = following
            else:
                self._count(position, block, stored)
                position += header.length

    def _header_at(self, position: int, end: int) -> BlockHeader:
        header = decode_block_header(self._pread(BLOCK_HEADER_BYTES, position))
        # Before anything is read by it: a damaged length can claim gigabytes.
        if header.length > end - position:
            raise BadBytes("the block reaches over the end", 4)
        return header

    def _next_block(self, start: int, end: int) -> int | None:
        """Where the next header with intact columns stands."""
        overlap = len(BLOCK_MAGIC) - 1
        position = start
        while position < end:
            chunk = self._pread(min(_SEARCH_CHUNK_BYTES, end - position), position)
            at = chunk.find(BLOCK_MAGIC)
            while at >= 0:
                if self._is_block(position + at, end):
                    return position + at
                at = chunk.find(BLOCK_MAGIC, at + 1)
            if len(chunk) <= overlap:
                break
            position += len(chunk) - overlap
        return None

    def _is_block(self, position: int, end: int) -> bool:
        try:
            header = self._header_at(position, end)
            decode_block_columns(memoryview(self._pread(header.json_at, position)))
        except NewerVersion:
            return True
        except BadBytes:
            return False
        return True


def _entry_of(offset: int, header: BlockHeader, ranges: dict[str, tuple[bytes, bytes]]) -> BlockEntry:
    return BlockEntry(
        offset,
        header.length,
        header.topic_id,
        header.first_seq,
        header.last_seq,
        header.count,
        header.min_ts,
        header.max_ts,
        header.json_raw,
        ranges,
    )
