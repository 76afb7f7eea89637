"""The plan of a compaction as a file in the staging directory, for tasks on other machines: `<job>.plan`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
from pyroaring import BitMap64
from xxhash import xxh3_64_intdigest

from ops.coldstore.staging import ShardPlace
from shared.compaction import Basis, Bin, KeyRules, Plan, TopicView
from shared.format_errors import BadBytes
from shared.io.durable_fs import FileSystem, read_whole, write_atomically
from shared.manifest import decode_manifest, encode_manifest


class _Topic(msgspec.Struct, frozen=True, array_like=True):
    id: int
    name: str
    epoch: int
    live_from: int
    deleted: bytes
    runs: list[tuple[int, int, int]]
    keys: tuple[int, int] | None


class _File(msgspec.Struct, frozen=True, kw_only=True):
    shard: int
    data_dir: str
    cold_dir: str
    job: str
    now_ms: int
    manifest: bytes
    manifest_checksum: int
    snapshot: int
    cold: list[int]
    bins: list[tuple[int, list[int]]]
    topics: list[_Topic]
    dropped: list[tuple[int, bytes]]


@dataclass(frozen=True, slots=True)
class Work:
    """Everything that a task of a compaction knows."""

    place: ShardPlace
    job: str
    now_ms: int
    basis: Basis
    plan: Plan


def plan_path(place: ShardPlace, job: str) -> str:
    return f"{place.staging}/{job}.plan"


def save_work(fs: FileSystem, work: Work) -> str:
    """Write the file; returns its path."""
    basis, place = work.basis, work.place
    content = msgspec.msgpack.encode(
        _File(
            shard=place.shard,
            data_dir=place.data_dir,
            cold_dir=place.cold_dir,
            job=work.job,
            now_ms=work.now_ms,
            manifest=encode_manifest(basis.manifest),
            manifest_checksum=basis.manifest_checksum,
            snapshot=basis.snapshot,
            cold=sorted(basis.cold),
            bins=[(group.number, [segment.number for segment in group.old]) for group in work.plan.bins],
            topics=[_topic(view) for view in basis.topics.values()],
            dropped=_dump(work.plan.dropped),
        )
    )
    path = plan_path(place, work.job)
    write_atomically(fs, path, [xxh3_64_intdigest(content).to_bytes(8, "little"), content])
    return path


def load_work(fs: FileSystem, path: str) -> Work:
    content = read_whole(fs, path)
    if xxh3_64_intdigest(content[8:]) != int.from_bytes(content[:8], "little"):
        raise BadBytes(f"the checksum of {path}")
    stored = msgspec.msgpack.decode(content[8:], type=_File)
    manifest = decode_manifest(stored.manifest)
    by_number = {segment.number: segment for segment in manifest.segments}
    topics = {
        row.id: TopicView(
            row.id,
            row.name,
            row.epoch,
            row.live_from,
            BitMap64.deserialize(row.deleted),
            tuple(row.runs),
            KeyRules(*row.keys) if row.keys is not None else None,
        )
        for row in stored.topics
    }
    basis = Basis(stored.shard, manifest, stored.manifest_checksum, stored.snapshot, set(stored.cold), topics)
    bins = tuple(
        Bin(number, tuple(by_number[segment] for segment in segments)) for number, segments in stored.bins
    )
    dropped = {topic_id: BitMap64.deserialize(seqs) for topic_id, seqs in stored.dropped}
    place = ShardPlace(stored.shard, stored.data_dir, stored.cold_dir)
    return Work(place, stored.job, stored.now_ms, basis, Plan(bins, dropped))


def _topic(view: TopicView) -> _Topic:
    keys = (view.keys.lag_ms, view.keys.retention_ms) if view.keys is not None else None
    return _Topic(
        view.id, view.name, view.epoch, view.live_from, bytes(view.deleted.serialize()), list(view.runs), keys
    )


def _dump(sets: Mapping[int, BitMap64]) -> list[tuple[int, bytes]]:
    return [(topic_id, bytes(seqs.serialize())) for topic_id, seqs in sorted(sets.items())]
