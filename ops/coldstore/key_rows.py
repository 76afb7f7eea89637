"""Mode `keys`: per task one row for every topic and key, with the newest seq and the number of records.

A count or a last-value query over raw records moves every record through Spark; most of it can be done where the
columns are. Group the rows once more: `groupBy("topic", "epoch", "key").agg(max("last_seq"), sum("records"))`.
"""

from __future__ import annotations

from collections.abc import Iterator
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
_FOLD_ROWS = 500_000


def key_rows(fs: FileSystem, work: Bin, columns: tuple[str, ...], query: Query) -> Iterator[Any]:
    # Topic by topic: grouping by one short column is much faster than by three.
    held: dict[tuple[str, int], list[Any]] = {}
    rows: dict[tuple[str, int], int] = {}
    for each in work.slices:
        blocks = slice_batches(fs, each, ("key", "seq"), query)
        for (_, entry), batch in zip(each.blocks, blocks, strict=True):
            part = each.topics[entry.topic_id]
            topic = (part.name, part.epoch)
            held.setdefault(topic, []).append(_raw(batch))
            rows[topic] = rows.get(topic, 0) + batch.num_rows
            if rows[topic] >= _FOLD_ROWS:
                held[topic], rows[topic] = [_grouped(held[topic])], 0
    yield from joined(_named(topic, _grouped(parts), columns) for topic, parts in held.items())


def _raw(batch: Any) -> Any:
    """A batch in the shape of what grouping gives, so that the two can be grouped together."""
    ones = pa.repeat(pa.scalar(1, pa.int64()), batch.num_rows)
    return pa.table({"key": batch.column("key"), "last_seq": batch.column("seq"), "records": ones})


def _grouped(parts: list[Any]) -> Any:
    # Threads of Arrow's own would compete with the other tasks of this machine.
    groups = pa.concat_tables(parts).group_by("key", use_threads=False)
    found = groups.aggregate([("last_seq", "max"), ("records", "sum")])
    return found.rename_columns(["key", "last_seq", "records"])


def _named(topic: tuple[str, int], table: Any, columns: tuple[str, ...]) -> Any:
    name, epoch = topic
    count = table.num_rows
    arrays = {
        "topic": pa.repeat(pa.scalar(name), count),
        "epoch": pa.repeat(pa.scalar(epoch, pa.int64()), count),
        **{each: table.column(each).combine_chunks() for each in ("key", "last_seq", "records")},
    }
    return pa.RecordBatch.from_arrays([arrays[each] for each in columns], names=list(columns))
