"""Where the segments of a store are: in a data directory, a cold directory, or named one by one. Reads only.

A data directory is read as its newest snapshots say, so what was deleted or replaced is not shown. A cold directory
knows nothing of deletes that came later; there every stored record is shown.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from shared.cold_plan import LiveRule, LiveRules
from shared.errors import CorruptManifest
from shared.format_errors import FormatError
from shared.io.bucket_fs import file_system
from shared.io.durable_fs import FileSystem, read_whole
from shared.io.object_store import S3_SCHEME, is_bucket
from shared.manifest import Manifest, decode_manifest
from shared.snapshot_format import read_snapshot
from shared.snapshot_items import SnapBegin, SnapEnd, SnapSegments, SnapTopic
from shared.store_layout import (
    manifest_generation,
    segment_file_name,
    segment_number,
    shard_dir_name,
    shard_of_dir,
    snapshot_number,
)


class NoStore(Exception):
    """There is nothing here to read; the message says what was looked for."""


@dataclass(frozen=True, slots=True)
class SegmentPlace:
    path: str
    shard: int
    number: int
    size: int | None = None
    """As a manifest or snapshot says; None where nobody says."""
    digest: str | None = None


@dataclass(frozen=True, slots=True)
class ShardSnapshot:
    """A snapshot, read whole."""

    number: int
    path: str
    shard: int
    start: int
    topics: tuple[SnapTopic, ...]
    table: SnapSegments
    end: SnapEnd


@dataclass(frozen=True, slots=True)
class Places:
    segments: tuple[SegmentPlace, ...]
    rules: dict[int, LiveRules] = field(default_factory=dict)
    """By shard: what is live there. A shard without an entry has no snapshot, and all of its records count."""


def filesystem_for(path: str) -> FileSystem:
    """Where `path` is read from."""
    if not is_bucket(path):
        return file_system(path)
    settings = tuple(sorted(item for item in os.environ.items() if item[0].startswith("AWS_")))
    return _bucket(path.removeprefix(S3_SCHEME).partition("/")[0], settings)


@lru_cache(maxsize=8)
def _bucket(name: str, settings: tuple[tuple[str, str], ...]) -> FileSystem:
    """One per bucket and settings that it is reached by: connecting for every file takes longer than reading it."""
    return file_system(S3_SCHEME + name)


def find_places(fs: FileSystem, path: str, cold: str | None = None) -> Places:
    """The segments behind `path`: a data directory, a cold directory, one shard of either, or a segment file."""
    path = path.rstrip("/")
    name = path.rsplit("/", 1)[-1]
    if name.endswith(".seg"):
        return Places((SegmentPlace(path, 0, segment_number(name) or 0),))
    names = fs.list_dir(path)
    shards = {shard: f"{path}/{each}" for each in names if (shard := shard_of_dir(each)) is not None}
    if (own := shard_of_dir(name)) is not None:
        shards = {own: path}
        cold = None if cold is None else cold.rstrip("/").removesuffix("/" + name)
    segments: list[SegmentPlace] = []
    rules: dict[int, LiveRules] = {}
    for shard, directory in sorted(shards.items()):
        if (manifest := newest_manifest(fs, directory)) is not None:
            segments += _of_manifest(directory, manifest)
        elif (snapshot := newest_snapshot(fs, f"{directory}/snapshots")) is not None:
            cold_shard = None if cold is None else f"{cold.rstrip('/')}/{shard_dir_name(shard)}"
            segments += _of_snapshot(directory, cold_shard, snapshot)
            rules[shard] = live_rules(snapshot)
        else:
            segments += _of_files(fs, shard, f"{directory}/segments")
    if not shards:
        segments += _of_files(fs, 0, path)
    if not shards and not segments:
        raise NoStore(f"{path}: no data directory, no cold directory and no segment files are here")
    return Places(tuple(segments), rules)


def _of_manifest(directory: str, manifest: Manifest) -> Iterator[SegmentPlace]:
    for held in manifest.segments:
        path = f"{directory}/{held.path}"
        yield SegmentPlace(path, manifest.shard, held.number, held.size, held.digest)


def _of_snapshot(directory: str, cold: str | None, snapshot: ShardSnapshot) -> Iterator[SegmentPlace]:
    used = {run.segment for topic in snapshot.topics for run in topic.sealed}
    for held in snapshot.table.segments:
        if held.number not in used:
            continue
        file_name = segment_file_name(held.number)
        if held.tier == "hot":
            path = f"{directory}/segments/{file_name}"
        elif cold is not None:
            path = f"{cold}/data/{file_name}"
        else:
            raise NoStore(
                f"segment {held.number} of shard {snapshot.shard} is in the cold tier: name its directory, "
                'with .option("cold", DIR)'
            )
        yield SegmentPlace(path, snapshot.shard, held.number, held.size, held.digest)


def _of_files(fs: FileSystem, shard: int, directory: str) -> Iterator[SegmentPlace]:
    for name in fs.list_dir(directory):
        if (number := segment_number(name)) is not None:
            yield SegmentPlace(f"{directory}/{name}", shard, number)


def live_rules(snapshot: ShardSnapshot) -> LiveRules:
    return {
        (topic.name, topic.epoch): LiveRule(
            frozenset(run.segment for run in topic.sealed), topic.first, topic.deleted
        )
        for topic in snapshot.topics
    }


def newest_manifest(fs: FileSystem, directory: str) -> Manifest | None:
    generations = [name for name in fs.list_dir(directory) if manifest_generation(name) is not None]
    if not generations:
        return None
    path = f"{directory}/{max(generations)}"
    try:
        return decode_manifest(read_whole(fs, path))
    except FormatError as err:
        raise CorruptManifest(path=path, reason=str(err)) from err


def newest_snapshot(fs: FileSystem, directory: str) -> ShardSnapshot | None:
    """The newest one that is whole, as a worker would choose."""
    for name in sorted(fs.list_dir(directory), reverse=True):
        if (number := snapshot_number(name)) is None:
            continue
        try:
            return load_snapshot(fs, f"{directory}/{name}", number)
        except (FormatError, FileNotFoundError):
            continue  # torn, or replaced while we looked: the one before serves
    return None


def load_snapshot(fs: FileSystem, path: str, number: int) -> ShardSnapshot:
    begin: SnapBegin | None = None
    topics: list[SnapTopic] = []
    table: SnapSegments | None = None
    end: SnapEnd | None = None
    file = fs.open(path)
    try:
        for item in read_snapshot(file.pread, file.size()):
            match item:
                case SnapBegin():
                    begin = item
                case SnapTopic():
                    topics.append(item)
                case SnapSegments():
                    table = item
                case SnapEnd():
                    end = item
    finally:
        file.close()
    assert begin is not None and table is not None and end is not None, "read_snapshot raises on less"
    return ShardSnapshot(number, path, begin.shard, begin.start, tuple(topics), table, end)
