"""Mode `keys`: per task one row for every topic and key, with the newest seq and the number of records.

A count or a last-value query over raw records moves every record through Spark; most of it can be done where the
columns are. Group the rows once more: `groupBy("topic", "epoch", "key").agg(max("last_seq"), sum("records"))`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from ops.coldstore.arrow_blocks import joined
from ops.coldstore.record_rows import slice_batches
from shared.cold_plan import Bin, Query
from shared.io.durable_fs import FileSystem

KEY_FIELDS: Final[dict[str, str]] = {
    "topic": "string",
    "epoch": "long",
    "key": "string",
    "last_seq": "long",
    "records": "long",
}
BINS_JOINED: Final = 8
"""A task reads only the columns, a tenth of the bytes, so it can take this many bins at once. The more records of a key
it sees, the fewer rows it gives, and rows are what costs."""
_FOLD_ROWS = 4_000_000


@dataclass(slots=True)
class _Topic:
    """The records of one topic: those grouped already, and those behind them, block by block."""

    grouped: Any = None
    keys: list[Any] = field(default_factory=list)
    seqs: list[Any] = field(default_factory=list)

    def fold(self) -> Any:
        """Everything, grouped. By one short column, which is much faster than by three."""
        if self.keys:
            keys, seqs = pa.concat_arrays(self.keys), pa.concat_arrays(self.seqs)
            ones = pa.repeat(pa.scalar(1, pa.int64()), len(keys))
            fresh = pa.table({"key": keys, "last_seq": seqs, "records": ones})
            parts = [fresh] if self.grouped is None else [self.grouped, fresh]
            # Threads of Arrow's own would compete with the other tasks of this machine.
            groups = pa.concat_tables(parts).group_by("key", use_threads=False)
            found = groups.aggregate([("last_seq", "max"), ("records", "sum")])
            self.grouped = found.rename_columns(["key", "last_seq", "records"])
            self.keys, self.seqs = [], []
        return self.grouped


def key_rows(fs: FileSystem, work: Bin, columns: tuple[str, ...], query: Query) -> Iterator[Any]:
    topics: dict[tuple[str, int], _Topic] = {}
    rows = 0
    for each in work.slices:
        blocks = slice_batches(fs, each, ("key", "seq"), query)
        for (_, entry), batch in zip(each.blocks, blocks, strict=True):
            part = each.topics[entry.topic_id]
            topic = topics.setdefault((part.name, part.epoch), _Topic())
            topic.keys.append(batch.column(0))
            topic.seqs.append(batch.column(1))
            rows += batch.num_rows
            if rows >= _FOLD_ROWS:
                rows = sum(held.fold().num_rows for held in topics.values())
    yield from joined(_named(name, topic.fold(), columns) for name, topic in topics.items())


def _named(topic: tuple[str, int], table: Any, columns: tuple[str, ...]) -> Any:
    name, epoch = topic
    count = table.num_rows
    arrays = {
        "topic": pa.repeat(pa.scalar(name), count),
        "epoch": pa.repeat(pa.scalar(epoch, pa.int64()), count),
        **{each: table.column(each).combine_chunks() for each in ("key", "last_seq", "records")},
    }
    return pa.RecordBatch.from_arrays([arrays[each] for each in columns], names=list(columns))
