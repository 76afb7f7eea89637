"""Moving sealed segments to the cold directory, off the hot path.

Copy aside, sync, verify the copy, rename, then a new manifest generation whose rename is the commit point. The hot
copy goes later, when the log durably says where the cold one is. Until then every crash leaves the hot one in charge.
Layout: docs/disk-format.md §6.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress

import msgspec

from shard_worker.core.shard_state import SegmentEntry
from shared.errors import CorruptSegment, DataDamage
from shared.io.durable_fs import File, FileSystem
from shared.io.manifest_files import load_manifest, write_next_manifest
from shared.manifest import ManifestSegment, ManifestTopic
from shared.segment_reader import read_index, read_trailer
from shared.segment_scan import verify_segment
from shared.store_layout import segment_file_name

_COPY_BYTES = 4 << 20


class RelocateJob(msgspec.Struct):
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
        return describe_verified(copy, self.entry.number, self.entry.digest)

    def _publish(self, segment: ManifestSegment) -> None:
        current, checksum = load_manifest(self.fs, self.cold_directory)
        kept = [held for held in (current.segments if current else ()) if held.number != segment.number]
        write_next_manifest(
            self.fs, self.cold_directory, self.shard, self.now_ms, current, checksum, [*kept, segment]
        )


def describe_verified(file: File, number: int, digest: str) -> ManifestSegment:
    """What a manifest says of this segment file, all of which is read and checked."""
    verdict = verify_segment(file.pread, file.size(), digest)
    if verdict.findings:
        finding = verdict.findings[0]
        raise CorruptSegment(path=file.path, offset=finding.offset, reason=finding.reason)
    index = read_index(file.pread, read_trailer(file.pread, file.size()))
    topics = index.topics()
    return ManifestSegment(
        number=number,
        path=f"data/{segment_file_name(number)}",
        size=file.size(),
        digest=digest,
        blocks=verdict.blocks,
        records=verdict.records,
        deleted=index.deleted,
        min_ts=min(topic.min_ts for topic in topics),
        max_ts=max(topic.max_ts for topic in topics),
        topics=tuple(
            ManifestTopic(topic.name, topic.epoch, topic.first, topic.last, topic.count) for topic in topics
        ),
    )


class ForgetJob(msgspec.Struct):
    """Segments in which nothing lives any more leave the manifest, then the directory. May run in a thread."""

    fs: FileSystem
    cold_directory: str
    shard: int
    numbers: Collection[int]
    now_ms: int

    def run(self) -> None:
        fs, directory = self.fs, f"{self.cold_directory}/data"
        current, checksum = load_manifest(fs, self.cold_directory)
        if current is not None and any(held.number in self.numbers for held in current.segments):
            kept = [held for held in current.segments if held.number not in self.numbers]
            write_next_manifest(fs, self.cold_directory, self.shard, self.now_ms, current, checksum, kept)
        for number in self.numbers:
            path = f"{directory}/{segment_file_name(number)}"
            if fs.exists(path):
                fs.unlink(path)
        fs.sync_dir(directory)


def _copy(source: File, target: File) -> None:
    at, size = 0, source.size()
    while at < size:
        chunk = source.pread(min(_COPY_BYTES, size - at), at)
        if not chunk:
            raise OSError(f"{source.path} ends at {at}, not at {size}")
        at += target.pwritev([chunk], at)
