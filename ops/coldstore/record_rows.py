"""The records of a task as Arrow batches. A block that cannot be trusted ends the task with its name: never a gap."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ops.coldstore.arrow_blocks import JSON_COLUMNS, BlockPlace, joined, record_batch, wanted_rows
from ops.coldstore.segment_files import named, opened
from shared.cold_plan import Bin, Query, SegmentSlice
from shared.errors import CorruptSegment
from shared.format_errors import FormatError
from shared.io.durable_fs import FileSystem
from shared.segment_reader import read_block, read_block_columns


def record_rows(fs: FileSystem, work: Bin, columns: Sequence[str], query: Query) -> Iterator[Any]:
    yield from joined(batch for each in work.slices for batch in slice_batches(fs, each, columns, query))


def slice_batches(fs: FileSystem, work: SegmentSlice, columns: Sequence[str], query: Query) -> Iterator[Any]:
    """One batch per block, dead records and those outside the query left out."""
    # Without data and meta the JSON, most of the bytes, is not even read.
    read = read_block if JSON_COLUMNS & set(columns) else read_block_columns
    try:
        with opened(fs, work.path) as file:
            for ordinal, entry in work.blocks:
                topic = work.topics[entry.topic_id]
                place = BlockPlace(topic.name, topic.epoch, work.shard, work.number, ordinal)
                try:
                    block = read(file.pread, entry)
                    batch = record_batch(block, place, columns)
                except FormatError as err:
                    raise named(err, work.path, entry, topic) from err
                yield wanted_rows(batch, block, topic, query)
    except FileNotFoundError as err:
        raise CorruptSegment(path=work.path, reason="the file is missing") from err
