"""A stopped shard, looked at as a whole: what a start would make of its files, and what is wrong with any of them.

Recovery runs as it would at a start, but on a file system that keeps its changes to itself, so nothing on disk
changes. Where a start would refuse, it goes on. Verify reports what is found here, and repair works from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from shard_worker.core.loss import absent
from shard_worker.core.shard_state import ShardState
from shard_worker.core.topic import Run, Topic
from shard_worker.disk.recovery import Recovered, recover
from shard_worker.disk.shard_paths import ShardPaths, shard_paths
from shard_worker.disk.verify import Progress, SegmentFact, ShardFacts, Verification
from shard_worker.disk.wal import wal_file_number
from shared.errors import ColdUnreachable, CorruptFrame, CorruptSegment, DataDamage
from shared.io.durable_fs import FileSystem
from shared.io.scratch_fs import ScratchFileSystem
from shared.limits import WAL_FILE_BYTES
from shared.settings import Settings
from shared.wal_format import JSON_OFFSET, lsn_of


@dataclass(slots=True)
class Survey:
    shard: int
    paths: ShardPaths
    scratch: ScratchFileSystem
    recovered: Recovered
    check: Verification
    damage: list[DataDamage]
    notes: list[str]
    """Normal after a crash, and settled by the next start."""


def survey_shard(
    fs: FileSystem,
    settings: Settings,
    shard: int,
    now_ms: int,
    progress: Progress,
    *,
    wal_file_bytes: int = WAL_FILE_BYTES,
) -> Survey:
    scratch, paths = ScratchFileSystem(fs), shard_paths(settings, shard)
    recovered = recover_aside(scratch, settings, shard, now_ms, progress, wal_file_bytes=wal_file_bytes)
    check = Verification(scratch, paths, shard, facts_of(recovered), progress)
    check.run()
    _check_runs(recovered, check)
    check.damage = [_named(damage, check, recovered.state) for damage in check.damage]
    found: dict[tuple[str, int | None, int | None], DataDamage] = {}
    for each in (*recovered.report.damage, *check.damage):
        # Replay knows whose frame it was, so its word comes first.
        found.setdefault((each.path, each.offset, each.first_seq if each.offset is None else None), each)
    # A bad snapshot is a note of recovery, which does without it, and damage to whoever looks at files.
    notes = [note for note in recovered.report.notes if not note.startswith("unusable snapshot")]
    return Survey(shard, paths, scratch, recovered, check, list(found.values()), notes + check.notes)


def recover_aside(
    scratch: ScratchFileSystem,
    settings: Settings,
    shard: int,
    now_ms: int,
    progress: Progress,
    *,
    wal_file_bytes: int = WAL_FILE_BYTES,
) -> Recovered:
    """The shard as a start would find it, also where a start would refuse."""
    paths = shard_paths(settings, shard)

    def replayed(part: float) -> None:
        progress(paths.wal, round(part * 1000), 1000)

    return recover(scratch, paths, shard, settings, wal_file_bytes, now_ms, replayed, salvage=True)


def facts_of(recovered: Recovered) -> ShardFacts:
    state, snapshot = recovered.state, recovered.snapshot
    return ShardFacts(
        first_file=snapshot.first_file if snapshot is not None else 1,
        end=recovered.wal.end,
        segments={
            number: SegmentFact(number, entry.tier, entry.size, entry.digest, entry.runs > 0)
            for number, entry in sorted(state.segments.items())
        },
        names={topic.id: topic.name for topic in state.catalog.by_id.values()},
    )


def _named(damage: DataDamage, check: Verification, state: ShardState) -> DataDamage:
    """An unreadable place in the log, with the topic and seqs that a snapshot knows to be there."""
    if not isinstance(damage, CorruptFrame) or damage.offset is None or damage.topic is not None:
        return damage
    number = wal_file_number(damage.path.rpartition("/")[2]) or 0
    gap = next((gap for gap in check.gaps if gap[0] == lsn_of(number, damage.offset)), None)
    if gap is None:
        return damage
    for topic in state.catalog.by_id.values():
        hot = topic.hot
        for index in range(hot.start, len(hot.first)):
            if gap[0] <= hot.lsn[index] - JSON_OFFSET < gap[1]:
                entry = hot.entry(index)
                return CorruptFrame(
                    path=damage.path,
                    offset=damage.offset,
                    reason=damage.reason,
                    topic=topic.name,
                    first_seq=entry.first,
                    last_seq=entry.last,
                )
    return damage


def _check_runs(recovered: Recovered, check: Verification) -> None:
    """Records that a topic is said to have in a segment, and that are not in it."""
    known = frozenset(check.bad_segments)
    for topic in recovered.state.catalog.by_id.values():
        for run in topic.runs:
            if run.segment in known:
                continue
            try:
                missing = list(uncovered(recovered, topic, run))
            except ColdUnreachable:
                raise  # nobody knows what is in there
            except DataDamage as err:
                check.bad_segments.add(run.segment)
                check.damage.append(err)
                continue
            for first, last in missing:
                check.bad_segments.add(run.segment)
                path, reason = recovered.store.segment_path(run.segment), "records are not in it"
                check.damage.append(
                    CorruptSegment(path=path, reason=reason, topic=topic.name, first_seq=first, last_seq=last)
                )


def uncovered(recovered: Recovered, topic: Topic, run: Run) -> Iterator[tuple[int, int]]:
    """Live records of a run that are not in its segment, as stretches."""
    at = max(run.first, topic.live_from)
    for piece in recovered.store.sealed_pieces(run.segment, topic.id, at, run.last):
        if topic.live_between(at, piece.first - 1):
            yield at, piece.first - 1
        if not piece.dense:
            for seq in absent(topic, piece.seqs):
                yield seq, seq
        at = max(at, piece.last + 1)
    if topic.live_between(at, run.last):
        yield at, run.last
