"""Moving sealed segments to the cold directory, off the hot path.

Copy aside, sync, verify the copy, rename, then a new manifest generation whose rename is the commit point. The hot
copy goes later, when the log durably says where the cold one is. Until then every crash leaves the hot one in charge.
Layout: docs/disk-format.md §6.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass

from shard_worker.core.shard_state import SegmentEntry
from shared.errors import CorruptManifest, CorruptSegment, DataDamage
from shared.format_errors import FormatError
from shared.io.durable_fs import File, FileSystem, read_whole, write_atomically
from shared.manifest import (
    Manifest,
    ManifestSegment,
    ManifestTopic,
    decode_manifest,
    encode_manifest,
    manifest_checksum,
    manifest_name,
)
from shared.segment_reader import read_index, read_trailer
from shared.segment_scan import verify_segment
from shared.store_layout import manifest_generation, segment_file_name

_COPY_BYTES = 4 << 20
_MANIFESTS_KEPT = 10


@dataclass(slots=True)
class RelocateJob:
    """`run` may be called in a thread."""

    fs: FileSystem
    source: str
    cold_directory: str
    shard: int
    entry: SegmentEntry
    now_ms: int

    def run(self) -> None:
        fs, number = self.fs, self.entry.number
        directory = f"{self.cold_directory}/data"
        fs.make_dir(directory)
        target = f"{directory}/{segment_file_name(number)}"
        if fs.exists(target + ".tmp"):
            fs.unlink(target + ".tmp")
        source = fs.open(self.source)
        try:
            copy = fs.create(target + ".tmp")
            try:
                _copy(source, copy)
                copy.sync_data()
                described = self._verified(copy)
            finally:
                copy.close()
            fs.rename(target + ".tmp", target)
        except (OSError, DataDamage):
            with suppress(OSError):
                fs.unlink(target + ".tmp")
            raise
        finally:
            source.close()
        fs.sync_dir(directory)
        self._publish(described)

    def _verified(self, copy: File) -> ManifestSegment:
        """Read the copy back: a store that lies about what it took is found out while the hot copy exists."""
        verdict = verify_segment(copy.pread, copy.size(), self.entry.digest)
        if verdict.findings:
            finding = verdict.findings[0]
            raise CorruptSegment(path=copy.path, offset=finding.offset, reason=finding.reason)
        index = read_index(copy.pread, read_trailer(copy.pread, copy.size()))
        topics = index.topics()
        return ManifestSegment(
            number=self.entry.number,
            path=f"data/{segment_file_name(self.entry.number)}",
            size=copy.size(),
            digest=self.entry.digest,
            blocks=verdict.blocks,
            records=verdict.records,
            deleted=index.deleted,
            min_ts=min(topic.min_ts for topic in topics),
            max_ts=max(topic.max_ts for topic in topics),
            topics=tuple(
                ManifestTopic(topic.name, topic.epoch, topic.first, topic.last, topic.count)
                for topic in topics
            ),
        )

    def _publish(self, segment: ManifestSegment) -> None:
        current, checksum = load_manifest(self.fs, self.cold_directory)
        kept = [held for held in (current.segments if current else ()) if held.number != segment.number]
        _write_next(
            self.fs, self.cold_directory, self.shard, self.now_ms, current, checksum, [*kept, segment]
        )


def forget_cold_segments(
    fs: FileSystem, cold_directory: str, shard: int, numbers: Collection[int], now_ms: int
) -> None:
    """Segments in which nothing lives any more leave the manifest, then the directory."""
    current, checksum = load_manifest(fs, cold_directory)
    if current is not None and any(held.number in numbers for held in current.segments):
        kept = [held for held in current.segments if held.number not in numbers]
        _write_next(fs, cold_directory, shard, now_ms, current, checksum, kept)
    directory = f"{cold_directory}/data"
    for number in numbers:
        path = f"{directory}/{segment_file_name(number)}"
        if fs.exists(path):
            fs.unlink(path)
    fs.sync_dir(directory)


def load_manifest(fs: FileSystem, cold_directory: str) -> tuple[Manifest | None, int]:
    """The current generation and its checksum. A damaged one is an error: going on would fork the history."""
    names = [name for name in fs.list_dir(cold_directory) if manifest_generation(name) is not None]
    if not names:
        return None, 0
    path = f"{cold_directory}/{max(names)}"
    content = read_whole(fs, path)
    try:
        return decode_manifest(content), manifest_checksum(content)
    except FormatError as err:
        raise CorruptManifest(path=path, reason=str(err)) from err


def _write_next(
    fs: FileSystem,
    cold_directory: str,
    shard: int,
    now_ms: int,
    current: Manifest | None,
    checksum: int,
    segments: list[ManifestSegment],
) -> None:
    generation = current.generation + 1 if current is not None else 1
    manifest = Manifest(
        generation=generation,
        shard=shard,
        created_ms=now_ms,
        previous=checksum,
        segments=tuple(sorted(segments, key=lambda segment: segment.number)),
    )
    write_atomically(fs, f"{cold_directory}/{manifest_name(generation)}", [encode_manifest(manifest)])
    outdated = manifest_name(generation - _MANIFESTS_KEPT) if generation > _MANIFESTS_KEPT else ""
    if outdated and fs.exists(f"{cold_directory}/{outdated}"):
        fs.unlink(f"{cold_directory}/{outdated}")


def _copy(source: File, target: File) -> None:
    at, size = 0, source.size()
    while at < size:
        chunk = source.pread(min(_COPY_BYTES, size - at), at)
        if not chunk:
            raise OSError(f"{source.path} ends at {at}, not at {size}")
        at += target.pwritev([chunk], at)
