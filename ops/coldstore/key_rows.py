"""Mode `keys`: per task one row for every topic and key, with the newest seq and the number of records.

A count or a last-value query over raw records moves every record through Spark; most of it can be done where the
columns are. Group the rows once more: `groupBy("topic", "epoch", "key").agg(max("last_seq"), sum("records"))`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

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
_COLUMNS = ("topic", "epoch", "key", "seq")
_GROUP = ["topic", "epoch", "key"]
_FOLD_ROWS = 500_000


def key_rows(fs: FileSystem, work: Bin, columns: tuple[str, ...], query: Query) -> Iterator[Any]:
    partial: list[Any] = []
    held: list[Any] = []
    rows = 0
    for each in work.slices:
        for batch in slice_batches(fs, each, _COLUMNS, query):
            held.append(batch)
            rows += batch.num_rows
            if rows >= _FOLD_ROWS:
                partial.append(_grouped(pa.Table.from_batches(held)))
                held, rows = [], 0
    if held:
        partial.append(_grouped(pa.Table.from_batches(held)))
    if not partial:
        return
    whole = pa.concat_tables(partial).group_by(_GROUP).aggregate([("last_seq", "max"), ("records", "sum")])
    named = whole.rename_columns([*_GROUP, "last_seq", "records"])
    yield from named.select(list(columns)).combine_chunks().to_batches()


def _grouped(table: Any) -> Any:
    # Threads of Arrow's own would compete with the other tasks of this machine.
    found = table.group_by(_GROUP, use_threads=False).aggregate([("seq", "max"), ("seq", "count")])
    return found.rename_columns([*_GROUP, "last_seq", "records"])
