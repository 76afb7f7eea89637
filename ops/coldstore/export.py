"""Sealed records as Parquet, by topic and day, only what is new since the last run.

What is exported is what a snapshot calls live. Seqs of a topic are sealed in order, so "new" is a seq per topic: a
compaction may put old records into a new segment, and they are not exported again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import groupby
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ops.coldstore.export_files import Commit, ExportDir, ExportedTopic, ExportFile, export_path
from ops.coldstore.places import filesystem_for, find_places
from ops.coldstore.record_rows import slice_batches
from ops.coldstore.segment_files import open_index
from shared.cold_plan import (
    BIN_BYTES,
    Bin,
    LiveRules,
    Query,
    SegmentSlice,
    pack_bins,
    slice_segment,
    topic_order,
)
from shared.io.durable_fs import FileSystem

_COLUMNS = ("shard", "epoch", "seq", "ts", "node", "tag", "key", "meta", "data")
_DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class ExportWork:
    """What a run is going to write."""

    out: str
    number: int
    bins: tuple[Bin, ...]
    topics: tuple[ExportedTopic, ...]
    """How far everything is exported when this run is committed."""
    segments: tuple[tuple[int, int, str], ...]


class ExportEngine(Protocol):
    def write(self, work: ExportWork) -> list[ExportFile]: ...


class LocalExport:
    def write(self, work: ExportWork) -> list[ExportFile]:
        return [file for at in range(len(work.bins)) for file in write_export_bin(work, at, 0)]


def run_export(
    data_dir: str,
    cold_dir: str | None,
    out: str,
    engine: ExportEngine,
    *,
    now_ms: int,
    bin_bytes: int = BIN_BYTES,
    topics: Sequence[str] = (),
) -> tuple[Commit | None, int]:
    """Export what is new; (the commit in force, rows written by this run)."""
    target = ExportDir(_out_fs(out), out.rstrip("/"))
    previous = target.begin()
    work = plan_export(data_dir, cold_dir, target.root, previous, bin_bytes, frozenset(topics) or None)
    if not work.bins:
        return previous, 0
    files = engine.write(work)
    done = target.commit(previous, files, work.topics, work.segments, now_ms)
    return done, sum(file.rows for file in files)


def _out_fs(out: str) -> FileSystem:
    return filesystem_for(out)


def plan_export(
    data_dir: str,
    cold_dir: str | None,
    out: str,
    previous: Commit | None,
    bin_bytes: int,
    topics: frozenset[str] | None,
) -> ExportWork:
    fs = filesystem_for(cold_dir or data_dir)
    places = find_places(fs, data_dir, cold_dir)
    upto = {(each.topic, each.epoch): each.upto for each in previous.topics} if previous else {}
    known = set(previous.segments) if previous is not None else set()
    query = Query(topics=topics)
    slices, segments = [], []
    reached = dict(upto)
    for place in places.segments:
        identity = (place.shard, place.number, place.digest or "")
        if identity in known:
            segments.append(identity)
            continue
        rules = _behind(places.rules.get(place.shard, {}), upto)
        header, index = open_index(fs, place)
        found = slice_segment(place.path, header.shard, header.number, index, query, rules)
        if found is not None:
            slices.append(found)
        complete = True
        for entry in index.topics():
            key = (entry.name, entry.epoch)
            rule = places.rules.get(place.shard, {}).get(key)
            chosen = topics is None or entry.name in topics
            if chosen and rule is not None and place.number in rule.segments:
                reached[key] = max(reached.get(key, 0), entry.last)
            else:
                # Not asked for; or the snapshot, which is taken in slices, saw the topic before it was sealed.
                complete = False
        if complete:
            segments.append(identity)
    return ExportWork(
        out,
        previous.commit + 1 if previous is not None else 1,
        # Topic by topic: each bin writes a file per topic and day, and segments hold many topics each.
        tuple(pack_bins(topic_order(slices), bin_bytes)),
        tuple(ExportedTopic(name, epoch, seq) for (name, epoch), seq in reached.items()),
        tuple(segments),
    )


def _behind(rules: LiveRules, upto: dict[tuple[str, int], int]) -> LiveRules:
    """The same rules, with all that is exported already counted as gone."""
    return {key: replace(rule, first=max(rule.first, upto.get(key, 0) + 1)) for key, rule in rules.items()}


def write_export_bin(work: ExportWork, at: int, attempt: int) -> list[ExportFile]:
    """One bin into one file per topic and day, aside and durable."""
    target = ExportDir(_out_fs(work.out), work.out)
    found: list[ExportFile] = []
    for topic, slices in groupby(work.bins[at].slices, key=_topic_of):
        for day, table in _days(Bin(tuple(slices))):
            name = f"c{work.number:010d}-p{at}-a{attempt}-{len(found)}.parquet"
            content = _parquet(table)
            target.stage(name, content)
            path = export_path(topic, day, f"c{work.number:010d}-p{at}.parquet")
            found.append(ExportFile(f"_topicsd/staging/{name}", path, table.num_rows, len(content)))
    return found


def _topic_of(part: SegmentSlice) -> str:
    """In the order of topics a slice holds one."""
    (topic,) = part.topics.values()
    return topic.name


def _days(work: Bin) -> Iterator[tuple[str, Any]]:
    """The records of one topic, by day in UTC."""
    fs = filesystem_for(work.slices[0].path)
    batches = [batch for part in work.slices for batch in slice_batches(fs, part, _COLUMNS, Query())]
    table = pa.Table.from_batches(batches)
    place = table.schema.get_field_index("ts")
    days = pc.divide(table["ts"], _DAY_MS)
    table = table.set_column(place, "ts", table["ts"].cast(pa.timestamp("ms")))
    found = sorted(pc.unique(days).to_pylist())
    for day in found:
        name = datetime.fromtimestamp(day * _DAY_MS / 1000, UTC).strftime("%Y-%m-%d")
        yield name, table if len(found) == 1 else table.filter(pc.equal(days, day))


def _parquet(table: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    return bytes(sink.getvalue())
