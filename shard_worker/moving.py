"""Moving topics from one shard to another while neither serves anyone: when the number of shards has changed.

The target gets the live records in a segment, then a `TOPIC_IMPORT` frame with everything else, synced; only then does
the source delete the topic. Killed anywhere, a topic is on the source, or on both with the same epoch: the next
start finds it on the target, does not import it again, and deletes it at the source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec.structs import replace

from shard_worker.core.topic import Topic
from shard_worker.core.topic_snapshot import topic_to_snapshot
from shard_worker.disk.block_cutter import cut_blocks
from shard_worker.disk.record_store import segment_file_name
from shard_worker.pending import PendingControl, PendingImport
from shard_worker.shard import Shard
from shared.control_frames import Sealed, TopicDeleted
from shared.errors import DiskFault
from shared.io.durable_fs import FileSystem
from shared.limits import MOVE_PASS_TOPICS, SEAL_PASS_MAX_BYTES
from shared.segment_writer import SegmentBuilder, SegmentTopic
from shared.snapshot_items import HotIndex, SealedRun, SnapTopic


def move_topics(
    fs: FileSystem, source: Shard, target: Shard, topics: Iterable[Topic], moved: Callable[[int], None]
) -> None:
    """Move them all, in passes of bounded size; `moved` is told how many each pass brought over."""
    batch: list[Topic] = []
    size = 0
    for topic in topics:
        batch.append(topic)
        size += topic.bytes
        if size >= SEAL_PASS_MAX_BYTES or len(batch) >= MOVE_PASS_TOPICS:
            _move_pass(fs, source, target, batch)
            moved(len(batch))
            batch, size = [], 0
    if batch:
        _move_pass(fs, source, target, batch)
        moved(len(batch))


def _move_pass(fs: FileSystem, source: Shard, target: Shard, topics: list[Topic]) -> None:
    wanted = [topic for topic in topics if not _is_there(target, topic)]
    if wanted:
        _import(fs, source, target, wanted)
    now_ms = source.engine.now_ms()
    for topic in topics:
        source.engine.commits.stage_control(PendingControl(TopicDeleted(), topic, now_ms))
    source.engine.sync_now()
    _insist(source, not any(topic.id in source.engine.state.catalog.by_id for topic in topics))


def _insist(shard: Shard, written: bool) -> None:
    """A log that refuses a frame (a full disk) must stop the move: what comes next relies on it."""
    if not written:
        raise DiskFault(
            path=shard.engine.wal.directory, operation="move topics", reason="the log took no more"
        )


def _is_there(target: Shard, topic: Topic) -> bool:
    held = target.engine.state.catalog.visible.get(topic.name)
    if held is None:
        return False
    if held.epoch != topic.epoch:
        raise AssertionError(f"topic {topic.name} exists on two shards in different epochs")
    return True


def _import(fs: FileSystem, source: Shard, target: Shard, topics: list[Topic]) -> None:
    engine = target.engine
    now_ms = engine.now_ms()
    first_id = engine.state.catalog.last_id + 1
    segment = engine.state.last_segment + 1
    new_ids = {topic: first_id + place for place, topic in enumerate(topics)}
    sealed = _write_segment(fs, source, target, segment, new_ids, now_ms)
    if sealed is not None:
        engine.commits.stage_control(PendingControl(replace(sealed, topics=()), None, now_ms))
        engine.commit()
        _insist(target, segment in engine.state.segments)
    runs = {share.topic_id: share for share in sealed.topics} if sealed is not None else {}
    for topic, topic_id in new_ids.items():
        stored = topic_to_snapshot(topic, clean=True)
        share = runs.get(topic_id)
        run: tuple[SealedRun, ...] = ()
        if share is not None:
            run = (SealedRun(segment, share.first, share.last, share.count, stored.json_bytes, share.max_ts),)
        engine.commits.stage_import(PendingImport(_as_imported(stored, topic_id, run), now_ms))
    engine.sync_now()
    _insist(target, all(topic_id in engine.state.catalog.by_id for topic_id in new_ids.values()))


def _as_imported(stored: SnapTopic, topic_id: int, run: tuple[SealedRun, ...]) -> SnapTopic:
    return replace(stored, id=topic_id, lsn=0, hot=HotIndex(), sealed=run)


def _write_segment(
    fs: FileSystem, source: Shard, target: Shard, number: int, new_ids: dict[Topic, int], now_ms: int
) -> Sealed | None:
    builder = SegmentBuilder(target.engine.shard, number, now_ms)
    path = f"{target.maintenance.segments_directory}/{segment_file_name(number)}"
    if fs.exists(path + ".tmp"):
        fs.unlink(path + ".tmp")
    file = fs.create(path + ".tmp")
    try:
        at = file.pwritev([builder.header], 0)
        for topic, topic_id in new_ids.items():
            label = SegmentTopic(topic_id, topic.name, topic.epoch)
            pieces = topic.pieces(topic.live_from, source.store)
            for records in cut_blocks(pieces, topic.live_from, topic.deleted):
                at += file.pwritev([builder.add_block(label, records)], at)
        if not builder.block_count:
            fs.unlink(path + ".tmp")
            return None
        file.pwritev([builder.finish()], at)
        file.sync_data()
    finally:
        file.close()
    fs.rename(path + ".tmp", path)
    fs.sync_dir(target.maintenance.segments_directory)
    return builder.sealed()
