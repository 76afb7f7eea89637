"""Snapshots: written in slices between turns, made durable in a thread, the newest good one found at start.

A snapshot is fuzzy: each topic stands at its own `lsn`, and replay from `start` brings all of them to the same
point. It must never be ahead of the log that survives, so the log is synced before the snapshot gets its name.
Layout: docs/disk-format.md §5.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice

import msgspec

from shard_worker.core.shard_state import SegmentEntry, ShardState
from shard_worker.core.topic import Topic
from shard_worker.core.topic_snapshot import topic_from_snapshot, topic_to_snapshot
from shard_worker.disk.wal import Wal
from shared.file_header import FileHeader
from shared.format_errors import BadBytes, NewerVersion
from shared.io.durable_fs import File, FileSystem
from shared.limits import SNAPSHOT_SLICE_TOPICS
from shared.snapshot_format import SnapshotEncoder, read_snapshot
from shared.snapshot_items import SnapBegin, SnapEnd, SnapSegment, SnapSegments, SnapTopic
from shared.store_layout import snapshot_file_name as snapshot_file_name
from shared.store_layout import snapshot_number as snapshot_number
from shared.wal_format import LSN_OFFSET_BITS

KEPT = 2  # the newest, and the one before in case the newest turns out to be unreadable


class SnapshotInfo(msgspec.Struct):
    """What a snapshot that exists on disk still needs."""

    number: int
    start: int
    first_file: int  # the oldest log file that it points into or that replay reads
    dead_segments: frozenset[int] = frozenset()  # unused already when it was begun: nobody needs them for it
    end: int = 0
    clean: bool = False
    boot_id: str = ""
    size: int = 0


class SnapshotWriter:
    """One snapshot in the making: `step` until it returns False, `complete`, then `job().run()` in a thread."""

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        number: int,
        state: ShardState,
        shard: int,
        start: int,
        now_ms: int,
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._state = state
        self._encoder = SnapshotEncoder(FileHeader(shard, number, now_ms))
        self._path = f"{directory}/{snapshot_file_name(number)}"
        if fs.exists(self._path + ".tmp"):
            fs.unlink(self._path + ".tmp")
        self._file: File = fs.create(self._path + ".tmp")
        self._at = 0
        self._ids: Iterator[int] = iter(list(state.catalog.by_id))
        dead = frozenset(number for number, entry in state.segments.items() if not entry.runs)
        self._segments = dict(state.segments)
        self.completed = False
        self._failed = False
        self.info = SnapshotInfo(number, start, start >> LSN_OFFSET_BITS, dead)
        try:
            self._write(self._encoder.begin(SnapBegin(shard, start)))
        except OSError:
            self.abandon()
            raise

    def step(self, topics: int = SNAPSHOT_SLICE_TOPICS, *, clean: bool = False) -> bool:
        """Write the next topics; False when there is none left."""
        parts: list[bytes] = []
        ids = list(islice(self._ids, topics))
        for topic_id in ids:
            topic = self._state.catalog.by_id.get(topic_id)
            if topic is None:
                continue  # deleted meanwhile: its frames lie behind `start`
            stored = topic_to_snapshot(topic, clean=clean)
            if len(stored.hot.lsn):
                self.info.first_file = min(self.info.first_file, stored.hot.lsn[0] >> LSN_OFFSET_BITS)
            parts.append(self._encoder.topic(stored))
        self._write(b"".join(parts))
        return bool(ids)

    def complete(self, wal: Wal, *, clean: bool, boot_id: str) -> None:
        """All topics are written: add the rest. The job may run once the log is synced up to here."""
        state = self._state
        # What topics were served from when their slice was written: before, after, or both.
        segments = self._segments | state.segments
        table = SnapSegments(
            next_segment=state.last_segment + 1,
            segments=tuple(
                SnapSegment(entry.number, entry.tier, entry.size, entry.digest)
                # Dead ones too: the snapshot before this one may need their files.
                for _, entry in sorted(segments.items())
            ),
            next_topic_id=state.catalog.last_id + 1,
            clock=state.clock_ms,
            epoch=state.catalog.last_epoch,
        )
        self._write(self._encoder.segments(table))
        self._write(self._encoder.end(end=wal.end, clean=clean, boot_id=boot_id))
        self.info.end, self.info.clean, self.info.boot_id = wal.end, clean, boot_id
        self.info.size = self._at
        self.completed = True

    def job(self) -> SnapshotJob:
        assert self.completed
        return SnapshotJob(self._fs, self._directory, self._path, self._file, self.info)

    def _write(self, content: bytes) -> None:
        if self._failed:
            # A slice is missing; going on would make a snapshot that lacks topics.
            raise OSError(errno.EIO, "an earlier part of the snapshot could not be written", self._path)
        self._failed = True
        if content:
            self._at += self._file.pwritev([content], self._at)
        self._failed = False

    def abandon(self) -> None:
        self._file.close()
        with suppress(OSError):
            self._fs.unlink(self._path + ".tmp")


class SnapshotJob(msgspec.Struct):
    fs: FileSystem
    directory: str
    path: str
    file: File
    info: SnapshotInfo

    def run(self) -> None:
        """May run in a thread. If it fails there is no new snapshot, and the old one stays."""
        try:
            try:
                self.file.sync_data()
            finally:
                self.file.close()
            self.fs.rename(self.path + ".tmp", self.path)
        except OSError:
            # On a full disk the leftover would hold the very space that is missing.
            with suppress(OSError):
                self.fs.unlink(self.path + ".tmp")
            raise
        self.fs.sync_dir(self.directory)


def last_snapshot_number(fs: FileSystem, directory: str) -> int:
    """The highest number in use, also by a snapshot that cannot be read; 0 if there is none."""
    return max(filter(None, map(snapshot_number, fs.list_dir(directory))), default=0)


def remove_old_snapshots(
    fs: FileSystem, directory: str, is_kept: Callable[[int], bool] = lambda number: False
) -> None:
    numbers = sorted(filter(None, map(snapshot_number, fs.list_dir(directory))))
    outdated = [number for number in numbers[:-KEPT] if not is_kept(number)]
    for number in outdated:
        fs.unlink(f"{directory}/{snapshot_file_name(number)}")
    if outdated:
        fs.sync_dir(directory)


class LoadedSnapshot(msgspec.Struct):
    state: ShardState
    info: SnapshotInfo | None = None  # None: there was no usable one
    skipped: list[str] = msgspec.field(default_factory=list)  # what was wrong with newer ones


def load_newest(fs: FileSystem, directory: str, shard: int) -> LoadedSnapshot:
    """The newest snapshot that is whole. A damaged one is left where it is and reported."""
    skipped: list[str] = []
    for number in sorted(filter(None, map(snapshot_number, fs.list_dir(directory))), reverse=True):
        path = f"{directory}/{snapshot_file_name(number)}"
        try:
            state, info = load_snapshot(fs, path, number, shard)
            return LoadedSnapshot(state, info, skipped)
        except (BadBytes, ValueError, OSError) as err:
            if isinstance(err, NewerVersion):
                raise
            skipped.append(f"{path}: {err}")
    return LoadedSnapshot(ShardState(), None, skipped)


def load_snapshot(fs: FileSystem, path: str, number: int, shard: int) -> tuple[ShardState, SnapshotInfo]:
    """What one snapshot holds; BadBytes, ValueError or OSError if it is not whole."""
    state = ShardState()
    info = SnapshotInfo(number, 0, 0)
    topics = []
    file = fs.open(path)
    try:
        info.size = file.size()
        for item in read_snapshot(file.pread, info.size):
            match item:
                case SnapBegin():
                    if item.shard != shard:
                        raise BadBytes(f"a snapshot of shard {item.shard}")
                    info.start = item.start
                    info.first_file = item.start >> LSN_OFFSET_BITS
                case SnapTopic():
                    topic = topic_from_snapshot(item, state.catalog)
                    if len(topic.hot.lsn):
                        info.first_file = min(info.first_file, topic.hot.lsn[0] >> LSN_OFFSET_BITS)
                    topics.append(topic)
                case SnapSegments():
                    state.last_segment = item.next_segment - 1
                    state.catalog.last_id = item.next_topic_id - 1
                    state.catalog.last_epoch = item.epoch
                    state.clock_ms = item.clock
                    for stored in item.segments:
                        state.segments[stored.number] = SegmentEntry(
                            stored.number, stored.size, stored.digest, stored.tier
                        )
                case SnapEnd():
                    info.end, info.clean, info.boot_id = item.end, item.clean, item.boot_id
                    state.boot_id = item.boot_id
    finally:
        file.close()
    state.catalog.load(topics)
    for topic in topics:
        _count_references(state, topic)
    info.dead_segments = frozenset(at for at, entry in state.segments.items() if not entry.runs)
    return state, info


def _count_references(state: ShardState, topic: Topic) -> None:
    for run in topic.runs:
        if run.segment not in state.segments:
            raise BadBytes(f"topic {topic.name} is served from segment {run.segment}, which is not listed")
        state.segments[run.segment].runs += 1
    for lsn in topic.hot.lsn:
        state.files.setdefault(lsn >> LSN_OFFSET_BITS, set()).add(topic.id)
    if len(topic.hot.lsn):
        topic.last_file = topic.hot.lsn[-1] >> LSN_OFFSET_BITS
    state.live_bytes += topic.bytes
    state.list_routers(topic)
    if topic.dedupe is not None:
        state.dedupe_keys += len(topic.dedupe)
