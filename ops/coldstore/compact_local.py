"""Compaction in one process: for stores of ordinary size, and the yardstick for the Spark engine."""

from __future__ import annotations

from pyroaring import BitMap64

from ops.coldstore.staging import (
    ShardPlace,
    commit_staged,
    remove_staging,
    segment_name,
    write_bin,
)
from shared.compaction import Basis, Plan, PlanOptions, make_plan, superseded
from shared.io.durable_fs import FileSystem
from shared.segment_rewrite import key_columns
from shared.staged import Staged


def find_superseded(fs: FileSystem, place: ShardPlace, basis: Basis, now_ms: int) -> dict[int, BitMap64]:
    """By topic: the live records that a younger one with the same key has replaced."""
    by_number = {segment.number: segment for segment in basis.manifest.segments}
    found: dict[int, BitMap64] = {}
    with place.opened(fs) as pool:
        for topic, numbers in basis.keyed_segments():
            assert topic.keys is not None
            sources = (pool.open(by_number[number]) for number in numbers)
            gone = superseded(key_columns(sources, topic), topic.keys, now_ms)
            if gone:
                found[topic.id] = gone
    return found


def compact_local(
    fs: FileSystem,
    place: ShardPlace,
    basis: Basis,
    *,
    job: str,
    now_ms: int,
    options: PlanOptions | None = None,
) -> Staged | None:
    """Stage a compaction of the shard's cold segments; None if none of them would get better.

    A segment with a bad block ends the whole job with an error that names it: nothing is ever skipped.
    """
    plan: Plan = make_plan(basis, find_superseded(fs, place, basis, now_ms), options or PlanOptions())
    if plan.empty:
        return None
    fs.make_dir(place.staging)
    try:
        written = [
            write_bin(fs, place, group, basis.topics, plan, file_name=segment_name(job, at, 0), now_ms=now_ms)
            for at, group in enumerate(plan.bins)
        ]
        return commit_staged(fs, place, basis, plan, written, job=job, engine="local", now_ms=now_ms)
    except BaseException:
        remove_staging(fs, place, job)
        raise
