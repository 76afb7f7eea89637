"""Damaged segments: the blocks that can still be read, from any copy there is, go into a new segment.

Looked for in this order: an intact copy in the other tier, which simply takes over; intact blocks of the damaged
copies; and for records that are in none of them, other segment files, in case the log has lost the frame that told
of one. What is nowhere is lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from shard_worker.core.loss import Lost, absent, let_go, live_seqs, lose
from shard_worker.core.piece import Piece
from shard_worker.core.seq_set import SeqSet
from shard_worker.core.shard_state import TIER_COLD, TIER_HOT, SegmentEntry
from shard_worker.core.topic import Run, Topic
from shard_worker.disk.block_cutter import cut_blocks
from shard_worker.disk.record_store import segment_file_name, segment_number
from shard_worker.disk.survey import Survey
from shard_worker.disk.verify import DIGEST_UNKNOWN, Progress
from shared.format_errors import FormatError
from shared.io.durable_fs import File, FileSystem
from shared.segment_format import BlockHeader, decode_block
from shared.segment_reader import read_header, read_index, read_trailer
from shared.segment_scan import verify_segment
from shared.segment_writer import SegmentBuilder, SegmentTopic


@dataclass(frozen=True, slots=True)
class _Place:
    """An intact block."""

    path: str
    offset: int
    header: BlockHeader


class SegmentRescue:
    def __init__(self, fs: FileSystem, survey: Survey, now_ms: int, progress: Progress) -> None:
        self._fs = fs
        self._survey = survey
        self._state = survey.recovered.state
        self._now_ms = now_ms
        self._progress = progress
        self._blocks: dict[str, list[_Place]] = {}  # by file
        self.losses: list[tuple[Topic, Lost]] = []
        self.notes: list[str] = []

    def run(self) -> list[str]:
        """Returns the files that nobody needs any more and that are to be kept as evidence."""
        bad_files: list[str] = []
        for number in sorted(self._survey.check.bad_segments):
            bad_files += self._rescue(number)
        return bad_files

    def _rescue(self, number: int) -> list[str]:
        entry = self._state.segments[number]
        copies = [path for path in self._copies(number) if self._fs.exists(path)]
        holders = [
            (topic, run)
            for topic in self._state.catalog.by_id.values()
            for run in topic.runs
            if run.segment == number
        ]
        whole = [path for path in copies if self._is_whole(path, entry)]
        intact = [path for path in whole if self._has_all(path, holders)]
        for path in intact:
            tier = TIER_HOT if path.startswith(self._survey.paths.segments + "/") else TIER_COLD
            if tier == TIER_HOT or self._in_manifest(number, entry.digest):
                entry.tier = tier
                self.notes.append(
                    f"segment {number} is served from its other copy, {path}: nothing of it is lost"
                )
                return [copy for copy in copies if copy not in intact]
        for topic, run in holders if whole else ():
            let_go(topic, self._removed_before(topic, run, whole[0]))
        self._rewrite(copies, holders)
        del self._state.segments[number]
        return copies

    def _copies(self, number: int) -> list[str]:
        paths = self._survey.paths
        name = segment_file_name(number)
        found = [f"{paths.segments}/{name}"]
        if paths.cold is not None:
            found.append(f"{paths.cold}/data/{name}")
        return found

    def _in_manifest(self, number: int, digest: str) -> bool:
        manifest = self._survey.check.manifest
        listed = manifest.segments if manifest is not None else ()
        return any((held.number, held.digest) == (number, digest) for held in listed)

    def _is_whole(self, path: str, entry: SegmentEntry) -> bool:
        file = self._fs.open(path)
        try:
            header = read_header(file.pread)
            if (header.number, header.shard) != (entry.number, self._survey.shard):
                return False
            digest = entry.digest if entry.digest != DIGEST_UNKNOWN else None
            return verify_segment(file.pread, file.size(), digest).ok
        except FormatError:
            return False
        finally:
            file.close()

    def _has_all(self, path: str, holders: list[tuple[Topic, Run]]) -> bool:
        """Is everything in it that is said to be?"""
        for topic, run in holders:
            places = self._places(path, topic, run)
            if self._missing(topic, run, places) or self._removed_before(topic, run, path):
                return False
        return True

    def _removed_before(self, topic: Topic, run: Run, path: str) -> list[int]:
        """Seqs among those of a whole file that it does not have: they were dead when it was sealed."""
        gone: list[int] = []
        places = self._places(path, topic, run)
        for place, following in pairwise([*places, None]):
            assert place is not None
            gone += self._absent(topic, place)
            if following is not None:
                gone += live_seqs(topic, place.header.last_seq + 1, following.header.first_seq - 1)
        return gone

    def _absent(self, topic: Topic, place: _Place) -> list[int]:
        header = place.header
        dense = header.last_seq - header.first_seq + 1 == header.count
        return [] if dense else absent(topic, self._piece(place).seqs)

    # --- reading what can be read -----------------------------------------------------------------------

    def _places(self, path: str, topic: Topic, run: Run) -> list[_Place]:
        """The intact blocks of the file with records of the run, ascending."""
        if path not in self._blocks:
            found: list[_Place] = []
            file = self._fs.open(path)
            try:
                verify_segment(
                    file.pread,
                    file.size(),
                    on_block=lambda offset, header: found.append(_Place(path, offset, header)),
                )
            finally:
                file.close()
            self._blocks[path] = found
            self._progress(path, 1, 1)
        wanted = [
            place
            for place in self._blocks[path]
            if place.header.topic_id == topic.id
            and place.header.first_seq <= run.last
            and place.header.last_seq >= run.first
        ]
        return sorted(wanted, key=lambda place: place.header.first_seq)

    def _missing(self, topic: Topic, run: Run, places: list[_Place]) -> list[tuple[int, int]]:
        """The stretches of the run with live records that are in none of the blocks."""
        missing, at = [], max(run.first, topic.live_from)
        for place in places:
            if topic.live_between(at, place.header.first_seq - 1):
                missing.append((at, place.header.first_seq - 1))
            at = max(at, place.header.last_seq + 1)
        if topic.live_between(at, run.last):
            missing.append((at, run.last))
        return missing

    def _best_places(self, topic: Topic, run: Run, copies: list[str]) -> list[_Place]:
        """Blocks that do not overlap, from as many files as it takes."""
        chosen: list[_Place] = []
        for path in [*copies, *(path for path in self._other_files(topic) if path not in copies)]:
            if not self._missing(topic, run, chosen):
                break
            for place in self._places(path, topic, run):
                head = place.header
                if not any(
                    held.header.first_seq <= head.last_seq and head.first_seq <= held.header.last_seq
                    for held in chosen
                ):
                    chosen.append(place)
            chosen.sort(key=lambda place: place.header.first_seq)
        return chosen

    def _other_files(self, topic: Topic) -> Iterator[str]:
        """Every other segment file that says it holds records of this topic."""
        for directory in [path.rpartition("/")[0] for path in self._copies(1)]:
            for name in self._fs.list_dir(directory):
                if segment_number(name) is not None and self._tells_of(f"{directory}/{name}", topic):
                    yield f"{directory}/{name}"

    def _tells_of(self, path: str, topic: Topic) -> bool:
        file = self._fs.open(path)
        try:
            found = read_index(file.pread, read_trailer(file.pread, file.size())).topic(topic.id)
            return found is not None and found.epoch == topic.epoch
        except FormatError:
            return False
        finally:
            file.close()

    # --- writing it anew --------------------------------------------------------------------------------

    def _rewrite(self, copies: list[str], holders: list[tuple[Topic, Run]]) -> None:
        state = self._state
        state.last_segment += 1
        builder = SegmentBuilder(self._survey.shard, state.last_segment, self._now_ms)
        path = f"{self._survey.paths.segments}/{segment_file_name(builder.number)}"
        if self._fs.exists(path + ".tmp"):
            self._fs.unlink(path + ".tmp")
        file = self._fs.create(path + ".tmp")
        try:
            file.pwritev([builder.header], 0)
            for topic, run in sorted(holders, key=lambda holder: (holder[0].id, holder[1].first)):
                self._move_run(topic, run, self._best_places(topic, run, copies), file, builder)
            if builder.block_count:
                at = builder.size
                file.pwritev([builder.finish()], at)
                file.sync_data()
        finally:
            file.close()
        if not builder.block_count:
            self._fs.unlink(path + ".tmp")
            return
        self._fs.rename(path + ".tmp", path)
        self._fs.sync_dir(self._survey.paths.segments)
        state.segments[builder.number] = SegmentEntry(builder.number, builder.size, builder.digest)

    def _move_run(
        self, topic: Topic, run: Run, places: list[_Place], file: File, builder: SegmentBuilder
    ) -> None:
        for place in places:
            let_go(topic, self._absent(topic, place))
        for first, last in self._missing(topic, run, places):
            self.losses.extend((topic, lost) for lost in lose(topic, first, last))
        live = 0
        pieces = (self._piece(place) for place in places)
        deleted = topic.deleted.copy() if topic.deleted is not None else SeqSet()
        if places:
            # A block of another file may reach over the run, into records that are served from elsewhere.
            for seq in range(run.last + 1, places[-1].header.last_seq + 1):
                deleted.add(seq)
        for records in cut_blocks(pieces, max(topic.live_from, run.first), deleted):
            at = builder.size
            file.pwritev([builder.add_block(SegmentTopic(topic.id, topic.name, topic.epoch), records)], at)
            live += len(records.json)
        topic.bytes += live - run.live
        if live:
            run.segment, run.live = builder.number, live
        else:
            topic.runs.remove(run)

    def _piece(self, place: _Place) -> Piece:
        file = self._fs.open(place.path)
        try:
            block = decode_block(memoryview(file.pread(place.header.length, place.offset)))
        finally:
            file.close()
        times = block.times if not isinstance(block.times, int) else None
        return Piece(
            first=place.header.first_seq,
            last=place.header.last_seq,
            count=place.header.count,
            ts=place.header.max_ts,
            load_columns=lambda: (block.columns, block.seqs, times),
            load_json=lambda: block.json,
        )
