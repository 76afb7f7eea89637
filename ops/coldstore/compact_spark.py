"""Compaction as a Spark job: keys are shuffled, payloads never. The result is what compact_local makes.

1. A task per 256 MiB of segments reads the key columns and gives, per key, the newest seq there: only topic, key and
   seq go through the shuffle that finds the newest of all. What comes back to the driver is bitmaps of seqs, no keys.
2. A task per bin rewrites segments from file to file (ops/coldstore/staging.py), and reports what it wrote.
3. Spark hands the reports of the attempts that counted to `commit`, which writes the one file that makes them count.
   Files of other attempts (failed, lost, speculative) are never looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final
from zlib import crc32

from pyroaring import BitMap64
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import Row, StructType

from ops.coldstore.places import filesystem_for
from ops.coldstore.plan_file import Work, load_work, plan_path, save_work
from ops.coldstore.staging import (
    ShardPlace,
    Written,
    commit_staged,
    remove_staging,
    segment_name,
    write_bin,
)
from shared.compaction import Basis, LastValues, Plan, PlanOptions, make_plan
from shared.io.durable_fs import read_whole
from shared.segment_rewrite import key_columns
from shared.staged import STAGED_ENDING, Staged, decode_staged

_KEYS_BYTES: Final = 256 << 20
"""Of segments per task that reads keys: it reads a tenth of them."""
_BUCKETS: Final = 16


# --- last value per key -----------------------------------------------------------------------------------

Newest = dict[int, dict[bytes, int]]
"""By topic id: the newest seq of each key."""
Seqs = dict[int, bytes]
"""By topic id: a set of seqs, as a roaring bitmap."""


@dataclass(frozen=True, slots=True)
class _Found:
    """What is shuffled. A task says once which records it has looked at, and to each bucket which keys they have."""

    newest: Newest
    candidates: Seqs
    expired: Seqs


class _ReadKeys:
    """The keys of some segments, shared out to buckets by key."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __call__(self, numbers: list[int]) -> Iterator[tuple[int, _Found]]:
        fs = filesystem_for(self._path)
        work = load_work(fs, self._path)
        wanted = set(numbers)
        by_number = {each.number: each for each in work.basis.manifest.segments if each.number in wanted}
        buckets: list[Newest] = [{} for _ in range(_BUCKETS)]
        candidates: Seqs = {}
        expired: Seqs = {}
        with work.place.opened(fs) as pool:
            for topic, held in work.basis.keyed_segments():
                assert topic.keys is not None
                last = LastValues(topic.keys, work.now_ms)
                sources = (pool.open(by_number[number]) for number in held if number in wanted)
                for block in key_columns(sources, topic):
                    if not last.add(block):
                        break
                if not last.candidates:
                    continue
                candidates[topic.id] = bytes(last.candidates.serialize())
                expired[topic.id] = bytes(last.expired.serialize())
                mine: list[dict[bytes, int]] = [{} for _ in range(_BUCKETS)]
                for key, seq in last.newest.items():
                    mine[crc32(key) % _BUCKETS][key] = seq
                for bucket, newest in zip(buckets, mine, strict=True):
                    bucket[topic.id] = newest
        yield numbers[0] % _BUCKETS, _Found({}, candidates, expired)
        for number, bucket in enumerate(buckets):
            if bucket:
                yield number, _Found(bucket, {}, {})


def _merge(rows: Iterator[tuple[int, _Found]]) -> Iterator[tuple[Seqs, Seqs, Seqs]]:
    """One bucket: candidates, expired and newest, all as bitmaps. Keys end here."""
    newest: Newest = {}
    candidates: dict[int, BitMap64] = {}
    expired: dict[int, BitMap64] = {}
    for _, found in rows:
        _unite(candidates, found.candidates)
        _unite(expired, found.expired)
        for topic_id, theirs in found.newest.items():
            mine = newest.setdefault(topic_id, {})
            for key, seq in theirs.items():
                if seq > mine.get(key, 0):
                    mine[key] = seq
    last = {topic_id: BitMap64(keys.values()) for topic_id, keys in newest.items()}
    yield _dump(candidates), _dump(expired), _dump(last)


def _unite(into: dict[int, BitMap64], seqs: Seqs) -> None:
    for topic_id, stored in seqs.items():
        into.setdefault(topic_id, BitMap64()).update(BitMap64.deserialize(stored))


def _dump(sets: dict[int, BitMap64]) -> Seqs:
    return {topic_id: bytes(seqs.serialize()) for topic_id, seqs in sets.items()}


def find_superseded_spark(session: Any, plan_file: str, work: Work) -> dict[int, BitMap64]:
    groups = _key_groups(work.basis)
    if not groups:
        return {}
    rows = session.sparkContext.parallelize(groups, len(groups)).flatMap(_ReadKeys(plan_file))
    merged = rows.partitionBy(_BUCKETS, int).mapPartitions(_merge).collect()
    candidates: dict[int, BitMap64] = {}
    expired: dict[int, BitMap64] = {}
    last: dict[int, BitMap64] = {}
    for found in merged:
        for into, seqs in zip((candidates, expired, last), found, strict=True):
            _unite(into, seqs)
    gone = {topic_id: seqs - (last[topic_id] - expired[topic_id]) for topic_id, seqs in candidates.items()}
    return {topic_id: seqs for topic_id, seqs in sorted(gone.items()) if seqs}


def _key_groups(basis: Basis) -> list[list[int]]:
    """The segments whose keys matter, in groups of some size: a task for each tiny one would take longer than it."""
    wanted = {number for _, numbers in basis.keyed_segments() for number in numbers}
    groups: list[list[int]] = []
    size = 0
    for segment in basis.manifest.segments:
        if segment.number not in wanted:
            continue
        if not groups or size + segment.size > _KEYS_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(segment.number)
        size += segment.size
    return groups


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
