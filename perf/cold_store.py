"""Stores for the bench of cold data: segments by the product's own writer, a manifest and a snapshot that name them.

All segments are cold, and all topics keep last values: one store serves audits, counts, compactions and exports. The
segments are built by as many processes as there are cores; what is in one depends on its number alone.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import time
from array import array
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Final, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from ops.coldstore.record_rows import record_rows
from ops.coldstore.source import ReadOptions, plan_bins
from ops.coldstore.staging import ShardPlace
from shared.cold_plan import Bin
from shared.columns import HAS_KEY, HAS_TAG, Columns, encode_columns
from shared.file_header import FileHeader
from shared.io.durable_fs import RealFileSystem
from shared.manifest import Manifest, ManifestSegment, ManifestTopic, encode_manifest, manifest_name
from shared.record_assembler import AssembledRecords, RecordAssembler
from shared.segment_writer import SegmentBuilder, SegmentTopic
from shared.snapshot_format import SnapshotEncoder
from shared.snapshot_items import SealedRun, SnapBegin, SnapSegment, SnapSegments, SnapTopic
from shared.store_layout import segment_file_name

START_MS: Final = 1_790_000_000_000
RECORDS_PER_KEY: Final = 10
_TEXTS: Final = 4096
_APPENDED: Final = 32
"""Records that came in one request, and so at the same time."""
_COLUMNS: Final = "topic,epoch,seq,ts,tag,key,data"

_A = TypeVar("_A")
_B = TypeVar("_B")


@dataclass(frozen=True)
class Store:
    name: str
    directory: Path
    records: int
    segment_bytes: int
    segments: int

    @property
    def data(self) -> str:
        return str(self.directory / "data")

    @property
    def cold(self) -> str:
        return str(self.directory / "cold")

    @property
    def place(self) -> ShardPlace:
        return ShardPlace(0, self.data, self.cold)

    @property
    def segment_dir(self) -> str:
        return f"{self.place.cold}/data"

    @property
    def parquet(self) -> Path:
        return self.directory / "parquet"


@dataclass(frozen=True)
class Shape:
    """`segments` files of `blocks` blocks of `records` records each, over `topics` topics."""

    segments: int
    blocks: int
    records: int
    topics: int

    @property
    def keys(self) -> int:
        """Per topic. They are drawn at random, so a few of them may not occur."""
        return max(1, self.segments * self.blocks * self.records // self.topics // RECORDS_PER_KEY)


Share = tuple[int, int, int]
"""Topic, its first seq and its number of blocks in a segment."""


def build(name: str, directory: Path, shape: Shape) -> Store:
    shutil.rmtree(directory, ignore_errors=True)
    for each in ("cold/shard-0000/data", "data/shard-0000/segments", "data/shard-0000/snapshots"):
        (directory / each).mkdir(parents=True)
    (directory / "data" / "store.json").write_text(json.dumps({"format": 1, "shards": 1}))
    work = list(enumerate(_shares(shape), start=1))
    segments = in_processes(
        partial(_write_segment, str(directory / "cold" / "shard-0000"), shape), work, f"{name}: segments"
    )
    manifest = Manifest(
        generation=1, shard=0, created_ms=START_MS, previous=0, segments=tuple(each for each, _ in segments)
    )
    (directory / "cold" / "shard-0000" / manifest_name(1)).write_bytes(encode_manifest(manifest))
    _snapshot(directory / "data" / "shard-0000" / "snapshots" / "0000000001.snap", segments)
    records = sum(each.records for each, _ in segments)
    return Store(name, directory, records, sum(each.size for each, _ in segments), len(segments))


def _shares(shape: Shape) -> Iterable[list[Share]]:
    heads = dict.fromkeys(range(1, shape.topics + 1), 0)
    held = min(shape.topics, shape.blocks)
    for number in range(1, shape.segments + 1):
        found = []
        chosen = sorted((number * held + at) % shape.topics + 1 for at in range(held))
        for at, topic in enumerate(chosen):
            blocks = shape.blocks // held + (at < shape.blocks % held)
            found.append((topic, heads[topic] + 1, blocks))
            heads[topic] += blocks * shape.records
        yield found


def _write_segment(
    directory: str, shape: Shape, work: tuple[int, list[Share]]
) -> tuple[ManifestSegment, list[tuple[int, SealedRun]]]:
    number, shares = work
    ts = START_MS + number * 60_000
    rng = random.Random(number)
    builder = SegmentBuilder(0, number, ts)
    parts = [builder.header]
    for topic, first, blocks in shares:
        for at in range(blocks):
            records = _block(rng, shape, first + at * shape.records, ts + at * shape.records)
            parts.append(builder.add_block(SegmentTopic(topic, f"topic-{topic}", 1), records))
    parts.append(builder.finish())
    path = f"data/{segment_file_name(number)}"
    with open(f"{directory}/{path}", "wb") as file:
        file.writelines(parts)
    held = ManifestSegment(
        number=number,
        path=path,
        size=builder.size,
        digest=builder.digest,
        blocks=builder.block_count,
        records=sum(each.count for each in builder.topics),
        deleted=0,
        min_ts=min(each.min_ts for each in builder.topics),
        max_ts=max(each.max_ts for each in builder.topics),
        topics=tuple(
            ManifestTopic(each.name, each.epoch, each.first, each.last, each.count) for each in builder.topics
        ),
    )
    runs = [
        (each.topic_id, SealedRun(number, each.first, each.last, each.count, each.json_bytes, each.max_ts))
        for each in builder.topics
    ]
    return held, runs


@lru_cache(maxsize=1)
def _texts() -> list[bytes]:
    """Half random: a record takes about 310 bytes of JSON, which compress to about 125, as those of logs do."""
    rng = random.Random(1)
    return [b"user logged in from " + rng.randbytes(92).hex().encode() for _ in range(_TEXTS)]


def _block(rng: random.Random, shape: Shape, first: int, ts: int) -> AssembledRecords:
    count = shape.records
    texts, start, stride = _texts(), rng.randrange(_TEXTS), 2 * rng.randrange(_TEXTS // 2) + 1
    seqs = range(first, first + count)
    times = array("Q", [ts + at // _APPENDED for at in range(count)])
    rows = [
        b'{"$seq":%d,"$ts":%d,"data":{"level":"info","n":%d,"text":"%s","user":%d,"service":"checkout"}},'
        % (seq, at, seq, texts[(start + seq * stride) % _TEXTS], seq % 9973)
        for seq, at in zip(seqs, times, strict=True)
    ]
    ends, total = array("I"), 0
    for row in rows:
        total += len(row)
        ends.append(total)
    labels = rng.choices(range(shape.keys), k=count)
    flags, columns = encode_columns(
        count=count,
        ends=ends,
        flags=bytes([HAS_TAG | HAS_KEY]) * count,
        tags=[b"tag-%d" % (label % 20) for label in labels],
        keys=[b"key-%d" % label for label in labels],
    )
    assembler = RecordAssembler()
    decoded = Columns(flags, count, total, memoryview(columns))
    assembler.add_block(memoryview(b"".join(rows)), decoded, 0, count, seqs, times)
    return assembler.finish()


def _snapshot(path: Path, segments: list[tuple[ManifestSegment, list[tuple[int, SealedRun]]]]) -> None:
    runs: dict[int, list[SealedRun]] = {}
    for _, found in segments:
        for topic, run in found:
            runs.setdefault(topic, []).append(run)
    encoder = SnapshotEncoder(FileHeader(0, 1, START_MS))
    parts = [encoder.begin(SnapBegin(0, 1 << 32))]
    for topic, held in sorted(runs.items()):
        head = held[-1].last
        described = SnapTopic(
            id=topic,
            name=f"topic-{topic}",
            epoch=1,
            config={"cleanup": "compact"},
            lsn=0,
            head=head,
            reserve=head,
            ts=START_MS,
            floor=1,
            reason=None,
            first=1,
            count=head,
            json_bytes=sum(run.json_bytes for run in held),
            sealed=tuple(held),
        )
        parts.append(encoder.topic(described))
    table = SnapSegments(
        next_segment=len(segments) + 1,
        segments=tuple(SnapSegment(each.number, "cold", each.size, each.digest) for each, _ in segments),
        next_topic_id=max(runs) + 1,
        clock=START_MS,
        epoch=1,
    )
    parts.append(encoder.segments(table))
    parts.append(encoder.end(end=1 << 32, clean=True, boot_id="bench"))
    path.write_bytes(b"".join(parts))


# --- the same records as Parquet --------------------------------------------------------------------------


def write_parquet(store: Store) -> None:
    """A file per bin, as `pyarrow.parquet.write_table` makes it (one row group), with zstd."""
    store.parquet.mkdir()
    options = ReadOptions.parse({"path": store.cold, "columns": _COLUMNS})
    work = list(enumerate(plan_bins(options)))
    in_processes(partial(_write_parquet, store.parquet, options), work, f"{store.name}: Parquet")


def _write_parquet(directory: Path, options: ReadOptions, work: tuple[int, Bin]) -> None:
    number, wanted = work
    batches = list(record_rows(RealFileSystem(), wanted, options.columns, options.query))
    pq.write_table(pa.Table.from_batches(batches), directory / f"{number:05d}.parquet", compression="zstd")


# --- work in several processes ------------------------------------------------------------------------------


def in_processes(job: Callable[[_A], _B], work: list[_A], what: str) -> list[_B]:
    """`job` of everything in `work`, in its order; how far it is goes to stderr."""
    began = told = time.monotonic()
    found = []
    chunk = max(1, len(work) // 64)
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        for done in pool.map(job, work, chunksize=chunk):
            found.append(done)
            if time.monotonic() - told > 5:
                told = time.monotonic()
                say(f"{what}: {len(found):,} of {len(work):,} after {told - began:.0f} s")
    say(f"{what}: {len(work):,} in {time.monotonic() - began:.0f} s")
    return found


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
