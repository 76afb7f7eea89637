"""Stores for the bench of cold data, written straight in the file formats: millions of records in minutes."""

from __future__ import annotations

import json
import random
import shutil
from array import array
from dataclasses import dataclass
from pathlib import Path

from shared.columns import HAS_KEY, HAS_TAG, Columns, encode_columns
from shared.file_header import FileHeader
from shared.record_assembler import RecordAssembler
from shared.segment_writer import SegmentBuilder, SegmentTopic
from shared.snapshot_format import SnapshotEncoder
from shared.snapshot_items import SealedRun, SnapBegin, SnapSegment, SnapSegments, SnapTopic
from shared.store_layout import segment_file_name

START_MS = 1_790_000_000_000
KEYS = 50_000
"""Per topic: a key has some dozen records, as in a table of last values."""


@dataclass(frozen=True)
class Store:
    directory: Path
    records: int
    segment_bytes: int
    segments: int

    @property
    def data(self) -> str:
        return str(self.directory / "data")


class Records:
    """Batches of records whose payload is half random, so that they compress about as logs do."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self._texts = [rng.randbytes(60).hex() for _ in range(4096)]
        self._rng = rng

    def block(self, first: int, count: int, ts: int) -> RecordAssembler:
        rng, texts = self._rng, self._texts
        start = rng.randrange(4096)
        rows = [
            b'{"$seq":%d,"$ts":%d,"data":{"level":"info","n":%d,"text":"%s","user":%d}},'
            % (first + at, ts, first + at, texts[(start + at * 7) % 4096].encode(), (first + at) % 9973)
            for at in range(count)
        ]
        ends, total = array("I"), 0
        for row in rows:
            total += len(row)
            ends.append(total)
        labels = rng.choices(range(KEYS), k=count)
        flags, columns = encode_columns(
            count=count,
            ends=ends,
            flags=bytes([HAS_TAG | HAS_KEY]) * count,
            tags=[b"tag-%d" % (label % 20) for label in labels],
            keys=[b"key-%d" % label for label in labels],
        )
        assembler = RecordAssembler()
        decoded = Columns(flags, count, total, memoryview(columns))
        assembler.add(memoryview(b"".join(rows)), decoded, 0, count, first, ts)
        return assembler


def build(directory: Path, *, segments: int, blocks: int, records: int, topics: int) -> Store:
    """`segments` files of `blocks` blocks of `records` records, over `topics` topics; a snapshot that names it all."""
    shutil.rmtree(directory, ignore_errors=True)
    shard = directory / "data" / "shard-0000"
    (shard / "segments").mkdir(parents=True)
    (shard / "snapshots").mkdir()
    (directory / "data" / "store.json").write_text(json.dumps({"format": 1, "shards": 1}))
    make = Records(seed=1)
    heads = dict.fromkeys(range(1, topics + 1), 0)
    runs: dict[int, list[SealedRun]] = {number: [] for number in heads}
    table = []
    total_bytes = 0
    per_segment = min(topics, blocks)
    for number in range(1, segments + 1):
        ts = START_MS + number * 60_000
        builder = SegmentBuilder(0, number, ts)
        parts = [builder.header]
        chosen = sorted((number * per_segment + at) % topics + 1 for at in range(per_segment))
        for place, topic in enumerate(chosen):
            share = blocks // per_segment + (place < blocks % per_segment)
            first = heads[topic] + 1
            for _ in range(share):
                assembled = make.block(heads[topic] + 1, records, ts).finish()
                heads[topic] += records
                parts.append(builder.add_block(SegmentTopic(topic, f"topic-{topic}", 1), assembled))
            runs[topic].append(SealedRun(number, first, heads[topic], heads[topic] - first + 1, 1, ts))
        parts.append(builder.finish())
        with open(shard / "segments" / segment_file_name(number), "wb") as file:
            file.writelines(parts)
        table.append(SnapSegment(number, "hot", builder.size, builder.digest))
        total_bytes += builder.size
    _snapshot(shard / "snapshots" / "0000000001.snap", heads, runs, table)
    return Store(directory, sum(heads.values()), total_bytes, segments)


def _snapshot(
    path: Path, heads: dict[int, int], runs: dict[int, list[SealedRun]], table: list[SnapSegment]
) -> None:
    encoder = SnapshotEncoder(FileHeader(0, 1, START_MS))
    parts = [encoder.begin(SnapBegin(0, 1 << 32))]
    for topic, head in heads.items():
        if head:
            parts.append(
                encoder.topic(
                    SnapTopic(
                        id=topic,
                        name=f"topic-{topic}",
                        epoch=1,
                        config={},
                        lsn=0,
                        head=head,
                        reserve=head,
                        ts=START_MS,
                        floor=1,
                        reason=None,
                        first=1,
                        count=head,
                        json_bytes=head,
                        sealed=tuple(runs[topic]),
                    )
                )
            )
    parts.append(
        encoder.segments(
            SnapSegments(
                next_segment=len(table) + 1,
                segments=tuple(table),
                next_topic_id=len(heads) + 1,
                clock=START_MS,
                epoch=1,
            )
        )
    )
    parts.append(encoder.end(end=1 << 32, clean=True, boot_id="bench"))
    path.write_bytes(b"".join(parts))
