"""Compaction as a Spark job: keys are shuffled, payloads never. The result is what compact_local makes.

1. A task per segment reads the key columns and gives, per key, its newest record there: only topic, key, seq, time and
   whether it is a null go through the shuffle that finds the newest of all; what it supersedes comes as bitmaps.
2. A task per bin rewrites segments from file to file (ops/coldstore/staging.py), and reports what it wrote.
3. Spark hands the reports of the attempts that counted to `commit`, which writes the one file that makes them count.
   Files of other attempts (failed, lost, speculative) are never looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyroaring import BitMap64
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import Row, StructType

from ops.coldstore.places import filesystem_for
from ops.coldstore.plan_file import Work, load_work, plan_path, save_work
from ops.coldstore.staging import (
    ShardPlace,
    Written,
    commit_staged,
    opened_segment,
    remove_staging,
    segment_name,
    write_bin,
)
from shared.columns import DATA_NULL, HAS_KEY
from shared.compaction import Basis, Plan, PlanOptions, make_plan
from shared.io.durable_fs import read_whole
from shared.manifest import ManifestSegment
from shared.segment_rewrite import key_rows
from shared.staged import STAGED_ENDING, Staged, decode_staged

_KEYS_SCHEMA = "topic_id bigint, key binary, seq bigint, ts bigint, is_null boolean, held binary"


# --- last value per key -----------------------------------------------------------------------------------


class KeysSource(DataSource):
    """Per segment, topic and key the newest record; per segment and topic a row with all candidates (`held`)."""

    @classmethod
    def name(cls) -> str:
        return "topics_keys"

    def schema(self) -> str:
        return _KEYS_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return _KeysReader(self.options["plan"])


class _SegmentPartition(InputPartition):
    def __init__(self, segment: ManifestSegment, topic_ids: Sequence[int]) -> None:
        super().__init__(None)
        self.segment = segment
        self.topic_ids = topic_ids


class _KeysReader(DataSourceReader):
    def __init__(self, path: str) -> None:
        self._path = path

    def partitions(self) -> list[InputPartition]:
        basis = load_work(filesystem_for(self._path), self._path).basis
        wanted: dict[int, list[int]] = {}
        for topic in basis.topics.values():
            for number, _, _ in basis.cold_runs(topic) if topic.keys is not None else ():
                wanted.setdefault(number, []).append(topic.id)
        by_number = {segment.number: segment for segment in basis.manifest.segments}
        return [_SegmentPartition(by_number[number], ids) for number, ids in sorted(wanted.items())]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        assert isinstance(partition, _SegmentPartition)
        fs = filesystem_for(self._path)
        work = load_work(fs, self._path)
        with opened_segment(fs, work.place, partition.segment) as source:
            for topic_id in partition.topic_ids:
                view = work.basis.topics[topic_id]
                assert view.keys is not None
                oldest_young = work.now_ms - view.keys.lag_ms
                held = BitMap64()
                newest: dict[bytes, tuple[int, int, bool]] = {}
                for key, seq, ts, flags in key_rows([source], view):
                    if ts > oldest_young:
                        break
                    if flags & HAS_KEY and key is not None:
                        held.add(seq)
                        newest[key] = (seq, ts, bool(flags & DATA_NULL))
                for key, (seq, ts, is_null) in newest.items():
                    yield topic_id, key, seq, ts, is_null, None
                if held:
                    yield topic_id, None, 0, 0, False, bytes(held.serialize())


def find_superseded_spark(session: Any, plan_file: str, work: Work) -> dict[int, BitMap64]:
    from pyspark.sql import functions as f

    rules = {topic.id: topic.keys for topic in work.basis.topics.values() if topic.keys is not None}
    if not rules:
        return {}
    session.dataSource.register(KeysSource)
    # One pass: bitmaps of the candidates travel as rows without a key. What comes back is a seq per key.
    rows = (
        session.read.format("topics_keys")
        .option("plan", plan_file)
        .load()
        .groupBy("topic_id", "key")
        .agg(f.max(f.struct("seq", "ts", "is_null")).alias("last"), f.collect_list("held").alias("held"))
        .select("topic_id", "last.seq", "last.ts", "last.is_null", "held")
        .collect()
    )
    gone: dict[int, BitMap64] = {}
    for row in rows:
        for stored in row.held:
            gone[row.topic_id] = gone.get(row.topic_id, BitMap64()) | BitMap64.deserialize(bytes(stored))
    for row in rows:
        expired = row.is_null and row.ts < work.now_ms - rules[row.topic_id].retention_ms
        if not row.held and not expired:
            gone[row.topic_id].discard(row.seq)
    return {topic_id: seqs for topic_id, seqs in gone.items() if seqs}


# --- rewriting --------------------------------------------------------------------------------------------


@dataclass
class BinsWritten(WriterCommitMessage):
    written: list[tuple[int, Written]]


class CompactionSink(DataSource):
    """Takes rows that name bins, and rewrites those."""

    @classmethod
    def name(cls) -> str:
        return "topics_compaction"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return CompactionWriter(self.options["plan"])


class CompactionWriter(DataSourceWriter):
    def __init__(self, path: str) -> None:
        self._path = path

    def write(self, iterator: Iterator[Row]) -> BinsWritten:
        fs = filesystem_for(self._path)
        work = load_work(fs, self._path)
        context = TaskContext.get()
        attempt = context.taskAttemptId() if context is not None else 0
        return BinsWritten([(row.bin, self.write_one(work, row.bin, attempt)) for row in iterator])

    def write_one(self, work: Work, at: int, attempt: int) -> Written:
        return write_bin(
            filesystem_for(self._path),
            work.place,
            work.plan.bins[at],
            work.basis.topics,
            work.plan,
            file_name=segment_name(work.job, at, attempt),
            now_ms=work.now_ms,
        )

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        fs = filesystem_for(self._path)
        work = load_work(fs, self._path)
        written: dict[int, Written] = {}
        for message in messages:
            assert isinstance(message, BinsWritten), "commit is called when every task has reported"
            for at, report in message.written:
                assert at not in written, f"bin {at} was reported twice"
                written[at] = report
        assert sorted(written) == list(range(len(work.plan.bins))), "a bin is missing"
        commit_staged(
            fs,
            work.place,
            work.basis,
            work.plan,
            [written[at] for at in sorted(written)],
            job=work.job,
            engine="spark",
            now_ms=work.now_ms,
        )

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        work = load_work(filesystem_for(self._path), self._path)
        remove_staging(filesystem_for(self._path), work.place, work.job)


def compact_spark(
    session: Any,
    place: ShardPlace,
    basis: Basis,
    *,
    job: str,
    now_ms: int,
    options: PlanOptions | None = None,
    sink: type[CompactionSink] = CompactionSink,
) -> Staged | None:
    """Stage a compaction of the shard's cold segments; None if none of them would get better."""
    fs = filesystem_for(place.cold_dir)
    fs.make_dir(place.staging)
    try:
        path = save_work(fs, Work(place, job, now_ms, basis, Plan((), {})))
        dropped = find_superseded_spark(session, path, Work(place, job, now_ms, basis, Plan((), {})))
        plan = make_plan(basis, dropped, options or PlanOptions())
        if plan.empty:
            remove_staging(fs, place, job)
            return None
        save_work(fs, Work(place, job, now_ms, basis, plan))
        session.dataSource.register(sink)
        bins = session.range(0, len(plan.bins), 1, len(plan.bins)).withColumnRenamed("id", "bin")
        bins.write.format(sink.name()).option("plan", path).mode("append").save()
        fs.unlink(plan_path(place, job))
        return decode_staged(read_whole(fs, f"{place.staging}/{job}{STAGED_ENDING}"))
    except BaseException:
        remove_staging(fs, place, job)
        raise
