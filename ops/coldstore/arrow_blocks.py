"""Blocks of a segment as Arrow record batches, without Python work per record.

A block holds what Arrow wants: ends of values and the bytes of all values behind each other. Tags, keys and nodes
are wrapped as they are. `data` and `meta` are stretches inside a record's JSON: the record's ends and the place of
`,"data":` give the ends of those stretches, and one `take` cuts them out.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from shared.cold_plan import Query, TopicPart
from shared.columns import FIELD_FLAG, HAS_META
from shared.segment_format import Block, BlockColumns

assert sys.byteorder == "little", "the store's columns are little-endian, and so must Arrow's be"

RECORD_FIELDS: Final[dict[str, pa.DataType]] = {
    "topic": pa.string(),
    "shard": pa.int32(),
    "epoch": pa.int64(),
    "seq": pa.int64(),
    "ts": pa.int64(),
    "node": pa.string(),
    "tag": pa.string(),
    "key": pa.string(),
    "meta": pa.string(),
    "data": pa.string(),
    "segment": pa.int64(),
    "block": pa.int32(),
}
JSON_COLUMNS: Final = frozenset({"meta", "data"})
"""Columns for which the JSON of a block has to be read."""

_LEADING_ZERO = bytes(4)
_DATA_FIELD = b',"data":'
_META_FIELD = b',"meta":'
_RECORD_END = b"},"
_BATCH_ROWS = 16 << 10
_BATCH_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class BlockPlace:
    topic: str
    epoch: int
    shard: int
    segment: int
    ordinal: int


def record_batch(block: BlockColumns, place: BlockPlace, columns: Iterable[str]) -> Any:
    """One row per record of the block, with the columns that are asked for, in that order.

    `data` and `meta` need a whole `Block`.
    """
    arrays = {name: _array(block, place, name) for name in columns}
    return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))


def _array(block: BlockColumns, place: BlockPlace, name: str) -> Any:
    count = block.header.count
    match name:
        case "seq":
            if isinstance(block.seqs, range):
                return pa.arange(block.seqs.start, block.seqs.stop)
            return _numbers(block.seqs)
        case "ts":
            if isinstance(block.times, int):
                return pa.repeat(pa.scalar(block.times, pa.int64()), count)
            return _numbers(block.times)
        case "node" | "tag" | "key":
            return _labels(block, name)
        case "data":
            assert isinstance(block, Block)
            return _data(block)
        case "meta":
            assert isinstance(block, Block)
            return _meta(block)
    constants: dict[str, str | int] = {
        "topic": place.topic,
        "shard": place.shard,
        "epoch": place.epoch,
        "segment": place.segment,
        "block": place.ordinal,
    }
    return pa.repeat(pa.scalar(constants[name], RECORD_FIELDS[name]), count)


def _numbers(values: Any) -> Any:
    """An `array` of u64, seen as int64: seqs and times stay far below the sign bit."""
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])


def _labels(block: BlockColumns, name: str) -> Any:
    parts = block.columns.field_parts(name)
    count = block.header.count
    if parts is None:
        return pa.nulls(count, pa.string())
    ends, blob = parts
    offsets = pa.py_buffer(_LEADING_ZERO + ends.tobytes())
    present = _present(block, FIELD_FLAG[name])
    return pa.Array.from_buffers(pa.string(), count, [present, offsets, pa.py_buffer(blob)])


def _present(block: BlockColumns, flag: int) -> Any:
    """The validity bitmap of a column: which records have it. None: all."""
    stored = block.columns.flags
    if stored[0] & flag and stored.count(stored[0]) == len(stored):
        return None
    flags = pa.Array.from_buffers(pa.uint8(), block.header.count, [None, pa.py_buffer(stored)])
    has = pc.not_equal(pc.bit_wise_and(flags, pa.scalar(flag, pa.uint8())), pa.scalar(0, pa.uint8()))
    return None if has.true_count == len(has) else has.buffers()[1]


def _record_ends(block: BlockColumns) -> tuple[Any, Any, Any]:
    """The buffer of n + 1 offsets, and start and end of each record as int32 columns."""
    count = block.header.count
    offsets = pa.py_buffer(_LEADING_ZERO + block.columns.ends.tobytes())
    bounds = pa.Array.from_buffers(pa.int32(), count + 1, [None, offsets])
    return offsets, bounds[:count], bounds[1:]


def _data(block: Block) -> Any:
    offsets, starts, ends = _record_ends(block)
    json = pa.py_buffer(block.json)
    records = pa.Array.from_buffers(pa.binary(), block.header.count, [None, offsets, json])
    # The first match is the field: before it stand numbers and the node, in which a quote is escaped.
    starts = pc.add(starts, pc.add(pc.find_substring(records, _DATA_FIELD), len(_DATA_FIELD)))
    ends = pc.subtract(ends, len(_RECORD_END))
    meta = block.columns.meta
    if meta is not None:
        lengths = pa.Array.from_buffers(pa.int32(), len(meta), [None, pa.py_buffer(meta)])
        ends = pc.subtract(ends, lengths)
    return _cut(json, starts, ends, None)


def _meta(block: Block) -> Any:
    meta = block.columns.meta
    count = block.header.count
    if meta is None:
        return pa.nulls(count, pa.string())
    _, _, ends = _record_ends(block)
    lengths = pa.Array.from_buffers(pa.int32(), count, [None, pa.py_buffer(meta)])
    ends = pc.subtract(ends, len(_RECORD_END))
    starts = pc.subtract(ends, lengths)
    # Where there is none both ends meet; moving on by the name of the field would cross them.
    name_bytes = pc.if_else(
        pc.equal(lengths, 0), pa.scalar(0, pa.int32()), pa.scalar(len(_META_FIELD), pa.int32())
    )
    return _cut(pa.py_buffer(block.json), pc.add(starts, name_bytes), ends, _present(block, HAS_META))


def _cut(json: Any, starts: Any, ends: Any, present: Any) -> Any:
    """The stretches starts…ends of `json` as strings.

    Start and end of each in one buffer, behind each other, are the offsets of an array of twice as many strings:
    every second one is wanted, those between are what separates them.
    """
    count = len(starts)
    wide = pa.uint64()
    pairs = pc.bit_wise_or(starts.cast(wide), pc.shift_left(ends.cast(wide), pa.scalar(32, wide)))
    both = pa.Array.from_buffers(pa.string(), 2 * count - 1, [None, pairs.buffers()[1], json])
    found = both.take(pa.arange(0, 2 * count, 2))
    if present is None:
        return found
    _, offsets, values = found.buffers()
    return pa.Array.from_buffers(pa.string(), count, [present, offsets, values])


def wanted_rows(batch: Any, block: BlockColumns, part: TopicPart, query: Query) -> Any:
    """The rows of `batch` that are live and inside the query's bounds; `batch` itself if all are."""
    header = block.header
    masks = []
    low = max(part.live_from, query.from_seq or 0)
    if header.first_seq < low or (query.to_seq is not None and header.last_seq > query.to_seq):
        seqs = _array(block, _NOWHERE, "seq")
        masks.append(pc.greater_equal(seqs, low))
        if query.to_seq is not None:
            masks.append(pc.less_equal(seqs, query.to_seq))
    if (query.from_ts is not None and header.min_ts < query.from_ts) or (
        query.to_ts is not None and header.max_ts > query.to_ts
    ):
        times = _array(block, _NOWHERE, "ts")
        masks.append(pc.greater_equal(times, query.from_ts or 0))
        if query.to_ts is not None:
            masks.append(pc.less_equal(times, query.to_ts))
    if part.deleted is not None:
        gone = _bitmap(part.deleted)
        if gone.range_cardinality(header.first_seq, header.last_seq + 1):
            masks.append(pa.array([seq not in gone for seq in block.seqs]))
    return batch.filter(reduce(pc.and_, masks)) if masks else batch


_NOWHERE = BlockPlace("", 0, 0, 0, 0)


@lru_cache(maxsize=4)
def _bitmap(stored: bytes) -> BitMap64:
    """Blocks come topic by topic: decoded once per topic and not once per block."""
    return BitMap64.deserialize(stored)


def joined(batches: Iterable[Any]) -> Iterator[Any]:
    """The same rows in fewer batches: each one has a price, and blocks of small topics have few rows."""
    held: list[Any] = []
    rows = size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        held.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= _BATCH_ROWS or size >= _BATCH_BYTES:
            yield _one(held)
            held, rows, size = [], 0, 0
    if held:
        yield _one(held)


def _one(batches: list[Any]) -> Any:
    if len(batches) == 1:
        return batches[0]
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
