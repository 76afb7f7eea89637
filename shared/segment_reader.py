"""Reading parts of a segment file through `pread(length, offset)`, each verified before it is used."""

from collections.abc import Callable

from shared.file_header import FILE_HEADER_BYTES, FileHeader
from shared.format_errors import BadBytes
from shared.segment_format import (
    BLOCK_HEADER_BYTES,
    Block,
    BlockColumns,
    decode_block,
    decode_block_columns,
    decode_block_header,
    decode_segment_header,
)
from shared.segment_index import BlockEntry, SegmentIndex, decode_index
from shared.segment_terms import TRAILER_BYTES, Terms, Trailer, decode_trailer

Pread = Callable[[int, int], bytes]
# Columns usually fit in what is read along with the header, which saves the second read.
_COLUMNS_GUESS_BYTES = 16 << 10


def read_header(pread: Pread) -> FileHeader:
    return decode_segment_header(pread(FILE_HEADER_BYTES, 0))


def read_trailer(pread: Pread, size: int) -> Trailer:
    start = max(size - TRAILER_BYTES, 0)
    return decode_trailer(pread(TRAILER_BYTES, start), size)


def read_index(pread: Pread, trailer: Trailer) -> SegmentIndex:
    stored = _exactly(pread, trailer.index_len, trailer.index_at)
    trailer.check_index(stored)
    index = decode_index(stored, trailer.terms_at)
    if index.block_count != trailer.blocks:
        raise BadBytes("index and trailer count blocks differently", trailer.index_at)
    return index


def read_terms(pread: Pread, trailer: Trailer) -> Terms:
    stored = _exactly(pread, trailer.terms_len, trailer.terms_at)
    trailer.check_terms(stored)
    return Terms(stored)


def read_block(pread: Pread, entry: BlockEntry) -> Block:
    block = decode_block(memoryview(_exactly(pread, entry.length, entry.offset)))
    check_entry(block, entry)
    return block


def read_block_columns(pread: Pread, entry: BlockEntry) -> BlockColumns:
    """Header and columns only: all that a search by node, tag or key needs."""
    start = pread(min(entry.length, BLOCK_HEADER_BYTES + _COLUMNS_GUESS_BYTES), entry.offset)
    wanted = decode_block_header(start).json_at
    if wanted > entry.length:
        raise BadBytes("block columns reach over the block", entry.offset)
    if len(start) < wanted:
        start = _exactly(pread, wanted, entry.offset)
    block = decode_block_columns(memoryview(start))
    check_entry(block, entry)
    return block


def check_entry(block: BlockColumns, entry: BlockEntry) -> None:
    """A block that is intact but not the one the index means must not be served for it."""
    header = block.header
    found = (
        header.length,
        header.topic_id,
        header.first_seq,
        header.last_seq,
        header.count,
        header.min_ts,
        header.max_ts,
        header.json_raw,
    )
    expected = (
        entry.length,
        entry.topic_id,
        entry.first,
        entry.last,
        entry.count,
        entry.min_ts,
        entry.max_ts,
        entry.json_bytes,
    )
    if found != expected:
        raise BadBytes("block and index disagree", entry.offset)


def _exactly(pread: Pread, length: int, offset: int) -> bytes:
    found = pread(length, offset)
    if len(found) != length:
        raise BadBytes("the file is shorter than its parts", offset + len(found))
    return found
