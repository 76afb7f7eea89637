"""One row per block: where it is, what it holds, and what is wrong with it. Damage is a value here, not an error."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from ops.coldstore.segment_files import named, opened
from shared.cold_plan import Bin, SegmentSlice
from shared.format_errors import FormatError
from shared.io.durable_fs import FileSystem
from shared.segment_reader import read_block

BLOCK_FIELDS: Final[dict[str, str]] = {
    "topic": "string",
    "shard": "int",
    "epoch": "long",
    "segment": "long",
    "block": "int",
    "path": "string",
    "offset": "long",
    "length": "long",
    "first_seq": "long",
    "last_seq": "long",
    "count": "int",
    "min_ts": "long",
    "max_ts": "long",
    "json_bytes": "long",
    "checksum": "string",
    "problem": "string",
}
_ARROW = {"string": pa.string(), "long": pa.int64(), "int": pa.int32()}
_ROWS_PER_BATCH = 4096


def block_rows(fs: FileSystem, work: Bin, columns: Sequence[str]) -> Iterator[Any]:
    schema = pa.schema([(name, _ARROW[BLOCK_FIELDS[name]]) for name in columns])
    held: list[dict[str, object]] = []
    for each in work.slices:
        for row in _rows(fs, each):
            held.append(row)
            if len(held) == _ROWS_PER_BATCH:
                yield pa.RecordBatch.from_pylist(held, schema)
                held = []
    if held:
        yield pa.RecordBatch.from_pylist(held, schema)


def _rows(fs: FileSystem, work: SegmentSlice) -> Iterator[dict[str, object]]:
    with opened(fs, work.path) as file:
        for ordinal, entry in work.blocks:
            topic = work.topics[entry.topic_id]
            checksum = problem = None
            try:
                checksum = f"{read_block(file.pread, entry).header.checksum:016x}"
            except FormatError as err:
                problem = named(err, work.path, entry, topic).reason
            yield {
                "topic": topic.name,
                "shard": work.shard,
                "epoch": topic.epoch,
                "segment": work.number,
                "block": ordinal,
                "path": work.path,
                "offset": entry.offset,
                "length": entry.length,
                "first_seq": entry.first,
                "last_seq": entry.last,
                "count": entry.count,
                "min_ts": entry.min_ts,
                "max_ts": entry.max_ts,
                "json_bytes": entry.json_bytes,
                "checksum": checksum,
                "problem": problem,
            }
