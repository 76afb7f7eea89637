"""What a compaction reads first and leaves behind: the basis of its plan, and files of its own in the cold tier.

    COLD_DIR/shard-0000/staging/<job>.p0-a0.seg …    segments, in any number of attempts
                                <job>.staged.json    written last: from here on the worker may adopt

Nothing here lists the directory to learn what was written: only what the writers reported counts, so the leftovers of
a failed or doubled task can never be adopted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ops.coldstore.places import newest_snapshot
from ops.coldstore.segment_pool import SegmentPool
from shared.compaction import Basis, Bin, Plan, TopicView, ranges_of, view_topic
from shared.io.durable_fs import FileSystem, write_atomically
from shared.io.manifest_files import load_manifest
from shared.segment_rewrite import Rewrite
from shared.segment_writer import SegmentBuilder
from shared.staged import (
    STAGED_ENDING,
    STAGED_FORMAT,
    OldSegment,
    Removed,
    Staged,
    StagedSegment,
    StagedTopic,
    encode_staged,
)
from shared.store_layout import shard_dir_name

_WRITE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class ShardPlace:
    """Where a shard's files are."""

    shard: int
    data_dir: str
    cold_dir: str

    @property
    def cold(self) -> str:
        return f"{self.cold_dir}/{shard_dir_name(self.shard)}"

    @property
    def snapshots(self) -> str:
        return f"{self.data_dir}/{shard_dir_name(self.shard)}/snapshots"

    @property
    def staging(self) -> str:
        return f"{self.cold}/staging"

    def opened(self, fs: FileSystem) -> SegmentPool:
        """The shard's cold segments, for reading."""
        return SegmentPool(fs, self.cold, self.shard)


def load_basis(fs: FileSystem, place: ShardPlace) -> Basis | None:
    """What a plan can stand on now; None if there is no cold data yet, or no snapshot."""
    # The manifest first: what the snapshot knows and the manifest does not is left alone.
    manifest, checksum = load_manifest(fs, place.cold)
    if manifest is None or not manifest.segments:
        return None
    snapshot = newest_snapshot(fs, place.snapshots)
    if snapshot is None:
        return None
    return Basis(
        place.shard,
        manifest,
        checksum,
        snapshot.number,
        cold={segment.number for segment in snapshot.table.segments if segment.tier == "cold"},
        topics={topic.id: view_topic(topic) for topic in snapshot.topics},
    )


@dataclass(frozen=True, slots=True)
class Written:
    """What the writer of one bin reports. `segment` is None if nothing in the bin was alive."""

    segment: StagedSegment | None
    removed: tuple[Removed, ...]


def segment_name(job: str, partition: int, attempt: int) -> str:
    return f"{job}.p{partition}-a{attempt}.seg"


def write_bin(
    fs: FileSystem,
    place: ShardPlace,
    plan_bin: Bin,
    topics: dict[int, TopicView],
    plan: Plan,
    *,
    file_name: str,
    now_ms: int,
) -> Written:
    """Rewrite one bin into the staging directory, durable on return."""
    with place.opened(fs) as pool:
        sources = [pool.open(segment) for segment in plan_bin.old]
        builder = SegmentBuilder(place.shard, plan_bin.number, now_ms)
        rewrite = Rewrite(sources, topics, plan.dropped, builder)
        _write_file(fs, f"{place.staging}/{file_name}", rewrite.run())
    removed = tuple(_removed(rewrite, plan))
    if not builder.block_count:
        fs.unlink(f"{place.staging}/{file_name}")
        return Written(None, removed)
    fs.sync_dir(place.staging)
    old = {segment.number for segment in plan_bin.old}
    segment = StagedSegment(
        number=builder.number,
        file=file_name,
        size=builder.size,
        digest=builder.digest,
        old=[segment.number for segment in plan_bin.old],
        topics=[
            StagedTopic(
                topic.topic_id,
                topic.name,
                topic.epoch,
                min(first for number, first, _ in topics[topic.topic_id].runs if number in old),
                max(last for number, _, last in topics[topic.topic_id].runs if number in old),
                topic.count,
                topic.json_bytes,
                topic.max_ts,
            )
            for topic in builder.topics
        ],
    )
    return Written(segment, removed)


def _removed(rewrite: Rewrite, plan: Plan) -> Iterator[Removed]:
    for topic, gone in sorted(rewrite.removed.items()):
        dropped = plan.dropped.get(topic.topic_id)
        yield Removed(
            id=topic.topic_id,
            topic=topic.name,
            epoch=topic.epoch,
            seqs=ranges_of(gone),
            superseded=ranges_of(gone & dropped) if dropped is not None else [],
        )


def _write_file(fs: FileSystem, path: str, chunks: Iterable[bytes]) -> None:
    if fs.exists(path):
        fs.unlink(path)  # of an attempt that died here
    file = fs.create(path)
    try:
        at, held, size = 0, [], 0
        for chunk in chunks:
            held.append(chunk)
            size += len(chunk)
            if size >= _WRITE_BYTES:
                at += file.pwritev(held, at)
                held, size = [], 0
        if held:
            file.pwritev(held, at)
        file.sync_data()
    finally:
        file.close()


def commit_staged(
    fs: FileSystem,
    place: ShardPlace,
    basis: Basis,
    plan: Plan,
    written: Iterable[Written],
    *,
    job: str,
    engine: str,
    now_ms: int,
) -> Staged:
    """Hand the job's result over. Before this returns nothing of it counts."""
    reports = list(written)
    removed: dict[int, Removed] = {}
    for report in reports:
        for part in report.removed:
            held = removed.get(part.id)
            removed[part.id] = part if held is None else _joined(held, part)
    staged = Staged(
        format=STAGED_FORMAT,
        job=job,
        engine=engine,
        shard=basis.shard,
        generation=basis.manifest.generation,
        manifest=f"{basis.manifest_checksum:016x}",
        snapshot=basis.snapshot,
        made_ms=now_ms,
        old=[
            OldSegment(segment.number, segment.size, segment.digest, segment.records)
            for group in plan.bins
            for segment in group.old
        ],
        new=sorted((report.segment for report in reports if report.segment), key=lambda each: each.number),
        removed=[removed[topic_id] for topic_id in sorted(removed)],
    )
    check_totals(staged)
    write_atomically(fs, f"{place.staging}/{job}{STAGED_ENDING}", [encode_staged(staged)])
    return staged


def check_totals(staged: Staged) -> None:
    """Every record of the old segments is in a new one or on the list of what went: nothing slipped through."""
    before = sum(segment.records for segment in staged.old)
    after = sum(topic.count for segment in staged.new for topic in segment.topics)
    gone = sum(last - first + 1 for each in staged.removed for first, last in each.seqs)
    if before != after + gone:
        raise AssertionError(f"{before} records went in, {after} came out and {gone} were removed")


def _joined(one: Removed, other: Removed) -> Removed:
    return Removed(
        id=one.id,
        topic=one.topic,
        epoch=one.epoch,
        seqs=sorted([*one.seqs, *other.seqs]),
        superseded=sorted([*one.superseded, *other.superseded]),
    )


def remove_staging(fs: FileSystem, place: ShardPlace, job: str) -> None:
    """Give up a job: everything it has written goes. Not if it was handed over: that is the worker's from then on."""
    names = fs.list_dir(place.staging)
    if f"{job}{STAGED_ENDING}" in names:
        return
    for name in names:
        if name.startswith(f"{job}."):
            fs.unlink(f"{place.staging}/{name}")
