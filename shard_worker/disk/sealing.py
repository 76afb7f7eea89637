"""Sealing: the live hot records of many topics become one segment file.

`SealPlan` is taken between turns and holds everything the job needs; `SealJob.run` runs in a thread and only reads
log files. Deletes and evictions that come meanwhile are not its business: they live in the topics, which decide
what is live whatever a segment holds.
"""

from __future__ import annotations

from contextlib import suppress

import msgspec

from shard_worker.core.hot_index import HotIndex
from shard_worker.core.seq_set import SeqSet
from shard_worker.core.topic import Topic
from shard_worker.disk.block_cutter import cut_blocks
from shard_worker.disk.record_store import RecordStore, segment_file_name
from shared.control_frames import Sealed, SealedTopic
from shared.errors import DataDamage
from shared.io.durable_fs import File, FileSystem
from shared.segment_writer import SegmentBuilder, SegmentTopic

_WRITE_BYTES = 4 << 20


class TopicShare(msgspec.Struct, frozen=True):
    """What one topic gives to the segment: whole batches, in order."""

    topic: SegmentTopic
    hot: HotIndex  # a copy: the topic's own goes on changing
    live_from: int
    deleted: SeqSet | None

    @property
    def last(self) -> int:
        return self.hot.last_seq()


class SealPlan(msgspec.Struct, frozen=True):
    number: int
    shares: tuple[TopicShare, ...]


def plan_share(topic: Topic) -> TopicShare | None:
    """All of the topic's hot records that are in the log; None if there is none."""
    # Resident batches are not sealed; what stands behind one stays in the log until they are gone.
    hot = topic.hot.in_log(residents=bool(topic.resident))
    if not len(hot):
        return None
    return TopicShare(
        SegmentTopic(topic.id, topic.name, topic.epoch),
        hot,
        topic.live_from,
        topic.deleted.copy() if topic.deleted is not None else None,
    )


class SealJob(msgspec.Struct):
    """`run` may be called in a thread; afterwards `fact` says what was sealed (None: nothing was live)."""

    fs: FileSystem
    directory: str
    store: RecordStore
    shard: int
    plan: SealPlan
    now_ms: int
    fact: Sealed | None = None
    _taken: int = 0

    def run(self) -> None:
        builder = SegmentBuilder(self.shard, self.plan.number, self.now_ms)
        path = f"{self.directory}/{segment_file_name(self.plan.number)}"
        if self.fs.exists(path + ".tmp"):
            self.fs.unlink(path + ".tmp")
        file = self.fs.create(path + ".tmp")
        try:
            try:
                self._write(file, builder)
            finally:
                file.close()
            if not builder.block_count:
                self.fs.unlink(path + ".tmp")
                return
            self.fs.rename(path + ".tmp", path)
        except (OSError, DataDamage):
            # On a full disk the leftover would hold the very space that is missing.
            with suppress(OSError):
                self.fs.unlink(path + ".tmp")
            raise
        self.fs.sync_dir(self.directory)
        self.fact = self._fact(builder.sealed())

    def _write(self, file: File, builder: SegmentBuilder) -> None:
        at, buffered, waiting = 0, [builder.header], 0
        for share in sorted(self.plan.shares, key=lambda share: share.topic.topic_id):
            pieces = self.store.hot_pieces(share.topic.topic_id, share.hot)
            for records in cut_blocks(pieces, share.live_from, share.deleted):
                self._taken += records.count
                block = builder.add_block(share.topic, records)
                buffered.append(block)
                waiting += len(block)
                if waiting >= _WRITE_BYTES:
                    at += file.pwritev(buffered, at)
                    buffered, waiting = [], 0
        if builder.block_count:
            given = sum(sum(share.hot.count) for share in self.plan.shares)
            buffered.append(builder.finish(deleted=given - self._taken))
            file.pwritev(buffered, at)
            file.sync_data()

    def _fact(self, sealed: Sealed) -> Sealed:
        """The log speaks of the batches that the segment replaces, dead records at their ends included."""
        shares = {share.topic.topic_id: share for share in self.plan.shares}
        topics = tuple(
            SealedTopic(
                part.topic_id,
                shares[part.topic_id].hot.first[0],
                shares[part.topic_id].last,
                part.count,
                part.json_bytes,
                part.max_ts,
            )
            for part in sealed.topics
        )
        return Sealed(sealed.segment, sealed.digest, sealed.size, topics)
