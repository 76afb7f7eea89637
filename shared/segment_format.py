"""Blocks of a segment file. Layout: docs/disk-format.md §4.

Two checksums: the first covers header and columns, so that a search by tag reads and verifies those
alone; the second covers the JSON and is seeded with the first, so the parts of two blocks never mix.
"""

from array import array
from collections.abc import Callable, Sequence
from struct import Struct

import msgspec
from xxhash import xxh3_64_intdigest

from shared.columns import COLUMNS_MASK, Columns
from shared.file_header import SEGMENT_MAGIC, FileHeader, decode_file_header, encode_file_header
from shared.format_errors import BadBytes, NewerVersion
from shared.int_arrays import dump, is_ascending, is_strictly_ascending, load_u64
from shared.limits import BLOCK_MAX_RECORDS
from shared.record_assembler import BLOCK_MAX_JSON_BYTES, AssembledRecords
from shared.zstd_part import compress, decompress

BLOCK_MAGIC = b"TBK1"
BLOCK_HEADER_BYTES = 80
BLOCK_MIN_BYTES = 88
# A block of one record holds what one frame held, and no more than a frame's worth of columns.
BLOCK_MAX_COLUMNS_BYTES = 256 << 20

FLAG_SEQS = 64
FLAG_TIMES = 128
_FLAGS_MASK = COLUMNS_MASK | FLAG_SEQS | FLAG_TIMES
CODEC_STORED = 0
CODEC_ZSTD = 1

_HEADER = Struct("<4sIQQQQQIHHIIII")
_U64 = Struct("<Q")
_SUMMED_HEADER_BYTES = 72


class BlockHeader(msgspec.Struct, frozen=True):
    length: int
    topic_id: int
    first_seq: int
    last_seq: int
    min_ts: int
    max_ts: int
    count: int
    flags: int
    codec: int
    columns_stored: int
    columns_raw: int
    json_stored: int
    json_raw: int
    checksum: int
    """Of header and columns; the seed of the JSON's."""

    @property
    def json_at(self) -> int:
        """Bytes of header and stored columns: what a search by tag has to read."""
        return BLOCK_HEADER_BYTES + self.columns_stored


class BlockColumns(msgspec.Struct, frozen=True):
    """What describes a block's records: everything but their JSON."""

    header: BlockHeader
    columns: Columns
    seqs: Sequence[int]
    times: "array[int] | int"
    """One ts per record, or the ts of all."""

    @property
    def times_ascend(self) -> bool:
        return False  # nobody has said so: whoever wants to know looks

    def ts(self, index: int) -> int:
        return self.times if isinstance(self.times, int) else self.times[index]


class Block(BlockColumns, frozen=True):
    json: memoryview


def encode_segment_header(header: FileHeader) -> bytes:
    return encode_file_header(SEGMENT_MAGIC, header)


def decode_segment_header(buffer: bytes | memoryview) -> FileHeader:
    return decode_file_header(SEGMENT_MAGIC, buffer)


def encode_block(
    topic_id: int, records: AssembledRecords, deflate: Callable[[bytes], bytes] = compress
) -> bytes:
    flags, raw_columns = records.column_flags, records.columns
    if records.times is not None:
        flags |= FLAG_TIMES
        raw_columns = dump(records.times) + raw_columns
    if records.seqs is not None:
        flags |= FLAG_SEQS
        raw_columns = dump(records.seqs) + raw_columns
    # An empty part stays empty: most blocks of one record have no columns.
    columns = deflate(raw_columns) if raw_columns else raw_columns
    codec, json = CODEC_ZSTD, deflate(records.json)
    raw_bytes = len(raw_columns) + len(records.json)
    # Every read of a compressed block pays for decompression: a few per cent are not worth it.
    if len(columns) + len(json) > raw_bytes - raw_bytes // 16:
        codec, columns, json = CODEC_STORED, raw_columns, records.json
    header = _HEADER.pack(
        BLOCK_MAGIC,
        BLOCK_MIN_BYTES + len(columns) + len(json),
        topic_id,
        records.first_seq,
        records.last_seq,
        records.min_ts,
        records.max_ts,
        records.count,
        flags,
        codec,
        len(columns),
        len(raw_columns),
        len(json),
        len(records.json),
    )
    checksum = xxh3_64_intdigest(header + columns)
    json_checksum = xxh3_64_intdigest(json, checksum)
    return b"".join((header, _U64.pack(checksum), columns, json, _U64.pack(json_checksum)))


def decode_block_header(buffer: bytes | memoryview) -> BlockHeader:
    """Lengths that add up, nothing more: only the columns' checksum vouches for the header."""
    if len(buffer) < BLOCK_HEADER_BYTES:
        raise BadBytes("the block ends inside its header", len(buffer))
    magic, *fields = _HEADER.unpack_from(buffer)
    if magic != BLOCK_MAGIC:
        raise BadBytes("no block magic")
    header = BlockHeader(*fields, *_U64.unpack_from(buffer, _SUMMED_HEADER_BYTES))
    if header.length != BLOCK_MIN_BYTES + header.columns_stored + header.json_stored:
        raise BadBytes("block lengths", 4)
    if header.columns_raw > BLOCK_MAX_COLUMNS_BYTES or header.json_raw > BLOCK_MAX_JSON_BYTES:
        raise BadBytes("block lengths", 60)
    return header


def decode_block_columns(buffer: memoryview) -> BlockColumns:
    """The columns of the block at the start of `buffer`, which may end behind them."""
    header, columns, seqs, times = _decode_columns(buffer)
    return BlockColumns(header, columns, seqs, times)


def decode_block(buffer: memoryview) -> Block:
    """The block that fills `buffer`, both checksums verified."""
    header, columns, seqs, times = _decode_columns(buffer)
    if len(buffer) != header.length:
        raise BadBytes(f"{len(buffer)} bytes for a block of {header.length}", len(buffer))
    stored = buffer[header.json_at : header.length - _U64.size]
    (checksum,) = _U64.unpack_from(buffer, header.length - _U64.size)
    if xxh3_64_intdigest(stored, header.checksum) != checksum:
        raise BadBytes("block JSON checksum", header.json_at)
    json = _raw(stored, header.codec, header.json_raw)
    return Block(header, columns, seqs, times, json)


def _decode_columns(
    buffer: memoryview,
) -> "tuple[BlockHeader, Columns, Sequence[int], array[int] | int]":
    header = decode_block_header(buffer)
    if len(buffer) < header.json_at:
        raise BadBytes("the block ends inside its columns", len(buffer))
    stored = buffer[BLOCK_HEADER_BYTES : header.json_at]
    if xxh3_64_intdigest(bytes(buffer[:_SUMMED_HEADER_BYTES]) + bytes(stored)) != header.checksum:
        raise BadBytes("block checksum", _SUMMED_HEADER_BYTES)
    if header.codec > CODEC_ZSTD:
        raise NewerVersion(header.codec, CODEC_ZSTD, "block codec")
    if not 1 <= header.count <= BLOCK_MAX_RECORDS or header.flags & ~_FLAGS_MASK:
        raise BadBytes(f"block of {header.count} records with flags {header.flags:#x}", 48)
    raw = _raw(stored, header.codec, header.columns_raw)
    seqs, raw = _split_seqs(header, raw)
    times, raw = _split_times(header, raw)
    columns = Columns(header.flags & COLUMNS_MASK, header.count, header.json_raw, raw)
    return header, columns, seqs, times


def _split_seqs(header: BlockHeader, raw: memoryview) -> tuple[Sequence[int], memoryview]:
    if not header.flags & FLAG_SEQS:
        if header.last_seq - header.first_seq != header.count - 1:
            raise BadBytes("the block's seqs are not contiguous", 16)
        return range(header.first_seq, header.last_seq + 1), raw
    seqs, raw = _split_u64(header, raw)
    if (seqs[0], seqs[-1]) != (header.first_seq, header.last_seq) or not is_strictly_ascending(seqs):
        raise BadBytes("the block's seqs", 16)
    return seqs, raw


def _split_times(header: BlockHeader, raw: memoryview) -> "tuple[array[int] | int, memoryview]":
    if not header.flags & FLAG_TIMES:
        if header.min_ts != header.max_ts:
            raise BadBytes("the block's times are not equal", 32)
        return header.min_ts, raw
    times, raw = _split_u64(header, raw)
    bounds = (times[0], times[-1]) if is_ascending(times) else (min(times), max(times))
    if bounds != (header.min_ts, header.max_ts):
        raise BadBytes("the block's times", 32)
    return times, raw


def _split_u64(header: BlockHeader, raw: memoryview) -> "tuple[array[int], memoryview]":
    size = 8 * header.count
    if len(raw) < size:
        raise BadBytes("block columns too short", BLOCK_HEADER_BYTES)
    return load_u64(raw[:size]), raw[size:]


def _raw(stored: memoryview, codec: int, raw_len: int) -> memoryview:
    if codec == CODEC_STORED or raw_len == 0:
        if len(stored) != raw_len:
            raise BadBytes("stored and raw length differ", 56)
        return stored
    return memoryview(decompress(stored, raw_len))
