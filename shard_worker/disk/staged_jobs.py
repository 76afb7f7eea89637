"""What adopting a compaction does with files, off the hot path. Each job may run in a thread.

    COLD/shard-0000/staging/<job>.p0-a0.seg, <job>.staged.json     what a job left: adopted, or refused
                            <job>.refused.json                     why not; everything is kept for inspection
                            snapshot-wanted                        a job asks for a fresh snapshot to plan from
    COLD/shard-0000/receipts/<job>.pending.json → <job>.json       once the old files are gone

The order: verify the staged files, move them to data/ (nothing names them there yet), write the frame that switches
the topics (shard_worker/adoption.py), publish a manifest without the old segments, and let those go when no snapshot
needs them. Each step finds out what an earlier process had done already, so a crash anywhere is a crash between two.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import msgspec
from pyroaring import BitMap64

from shard_worker.disk.cold_tier import describe_verified
from shared.compaction import TopicView, seqs_in, superseded
from shared.errors import CorruptManifest, CorruptSegment
from shared.format_errors import BadBytes, FormatError
from shared.io.durable_fs import FileSystem, read_whole, write_atomically
from shared.io.manifest_files import load_manifest, write_next_manifest
from shared.manifest import Manifest, ManifestSegment
from shared.segment_rewrite import OpenSegment, key_columns
from shared.staged import (
    PENDING_ENDING,
    REFUSED_ENDING,
    SNAPSHOT_WANTED,
    STAGED_ENDING,
    Receipt,
    Staged,
    StagedSegment,
    decode_staged,
    encode_receipt,
    receipt_of,
)
from shared.store_layout import segment_file_name


class Refused(Exception):
    """The staged work cannot be adopted, ever; the text says why."""


class _PendingReceipt(msgspec.Struct, frozen=True):
    staged: Staged
    generation_after: int
    adopted_ms: int


class ScanJob(msgspec.Struct):
    """What lies in the staging directory, and receipts that can be completed."""

    fs: FileSystem
    cold: str
    known: frozenset[int]
    """Segments whose files may still be there."""
    now_ms: int
    answered: bool = False
    """The snapshot that was asked for has been taken since."""
    staged: list[Staged] = msgspec.field(default_factory=list)
    unreadable: dict[str, str] = msgspec.field(default_factory=dict)
    snapshot_wanted: bool = False
    waiting: list[str] = msgspec.field(default_factory=list)
    """Jobs whose old files are still there."""

    def run(self) -> None:
        staging = f"{self.cold}/staging"
        names = self.fs.list_dir(staging)
        if SNAPSHOT_WANTED in names:
            if self.answered:
                self.fs.unlink(f"{staging}/{SNAPSHOT_WANTED}")
            else:
                self.snapshot_wanted = True
        for name in names:
            job = name.removesuffix(STAGED_ENDING)
            if job != name and f"{job}{REFUSED_ENDING}" not in names:
                self._read(f"{staging}/{name}", job)
        self._complete_receipts()

    def _read(self, path: str, job: str) -> None:
        try:
            staged = decode_staged(read_whole(self.fs, path))
            if staged.job != job or any(
                "/" in new.file or not new.file.startswith(f"{job}.") for new in staged.new
            ):
                raise BadBytes("the staged manifest names files that are not its own")
            self.staged.append(staged)
        except FormatError as err:
            self.unreadable[job] = str(err)

    def _complete_receipts(self) -> None:
        directory = f"{self.cold}/receipts"
        for name in self.fs.list_dir(directory):
            if not name.endswith(PENDING_ENDING):
                continue
            pending = msgspec.json.decode(read_whole(self.fs, f"{directory}/{name}"), type=_PendingReceipt)
            numbers = [old.number for old in pending.staged.old]
            paths = [f"{self.cold}/data/{segment_file_name(number)}" for number in numbers]
            if self.known & set(numbers) or any(self.fs.exists(path) for path in paths):
                self.waiting.append(pending.staged.job)
                continue
            receipt: Receipt = receipt_of(
                pending.staged,
                generation_after=pending.generation_after,
                adopted_ms=pending.adopted_ms,
                erased_ms=self.now_ms,
            )
            final = f"{directory}/{name.removesuffix(PENDING_ENDING)}.json"
            write_atomically(self.fs, final, [encode_receipt(receipt)])
            self.fs.unlink(f"{directory}/{name}")


class VerifyJob(msgspec.Struct):
    """Everything that can be checked without stopping the shard; then the files move to where they will be served
    from. `views`: the topics with records in the old segments, as they stood when the job was planned."""

    fs: FileSystem
    cold: str
    shard: int
    staged: Staged
    views: dict[int, TopicView]
    now_ms: int
    refusal: str | None = None

    def run(self) -> None:
        try:
            manifest = self._check_generation()
            found = [self._check_file(new) for new in self.staged.new]
            self._check_records(manifest)
        except (Refused, FormatError, CorruptSegment, CorruptManifest) as err:
            self.refusal = str(err)
            return
        for new, path in zip(self.staged.new, found, strict=True):
            target = _data_path(self.cold, new.number)
            if path != target:
                self.fs.rename(path, target)
        if self.staged.new:
            self.fs.sync_dir(f"{self.cold}/data")
            self.fs.sync_dir(f"{self.cold}/staging")

    def _check_generation(self) -> Manifest:
        staged = self.staged
        if staged.shard != self.shard:
            raise Refused(f"it was made for shard {staged.shard}")
        manifest, _ = load_manifest(self.fs, self.cold)
        held = {segment.number: segment for segment in manifest.segments} if manifest is not None else {}
        for old in staged.old:
            if old.number not in held or held[old.number].digest != old.digest:
                raise Refused(
                    f"it is based on generation {staged.generation}, and segment {old.number} has been replaced since"
                )
        for new in staged.new:
            if new.number in held:
                raise Refused(f"generation {staged.generation} is old: segment {new.number} exists already")
            if set(new.old) - {old.number for old in staged.old}:
                raise Refused(f"segment {new.number} claims to replace what the job did not read")
        assert manifest is not None or not staged.old
        if manifest is None:
            raise Refused("the cold tier has no manifest")
        return manifest

    def _check_file(self, new: StagedSegment) -> str:
        """The whole file, every checksum. Returns where it is: an earlier process may have moved it already."""
        path = f"{self.cold}/staging/{new.file}"
        if not self.fs.exists(path):
            path = _data_path(self.cold, new.number)
        try:
            file = self.fs.open(path)
        except FileNotFoundError as err:
            raise Refused(f"{new.file} is missing") from err
        try:
            described = describe_verified(file, new.number, new.digest)
            opened = OpenSegment.read(path, new.number, self.shard, file.pread, file.size())
            entries = opened.index.topics()
            if described.size != new.size or [
                (topic.topic_id, topic.name, topic.epoch, topic.count, topic.json_bytes) for topic in entries
            ] != [(topic.id, topic.name, topic.epoch, topic.count, topic.json_bytes) for topic in new.topics]:
                raise Refused(f"{new.file} does not hold what staged.json says")
        finally:
            file.close()
        return path

    def _check_records(self, manifest: Manifest) -> None:
        """Per topic: nothing appeared, and what is missing is dead or rightly superseded."""
        declared = {each.id: seqs_in(each.superseded) for each in self.staged.removed}
        old_numbers = {old.number for old in self.staged.old}
        for view in self.views.values():
            gone = declared.get(view.id, BitMap64())
            with ExitStack() as files:
                sources = [
                    files.enter_context(self._opened(segment))
                    for segment in manifest.segments
                    if segment.number in old_numbers
                ]
                before, old_bytes = self._records_of(sources, view, gone)
            with ExitStack() as files:
                results = [files.enter_context(self._opened_new(new)) for new in self.staged.new]
                after, new_bytes = self._records_of(results, view, gone)
            if after - before:
                raise Refused(f"topic {view.name} has records in it that were not there before")
            if before - after:
                first = (before - after)[0]
                raise Refused(f"seq {first} of topic {view.name} is alive, and missing")
            if old_bytes != new_bytes:
                raise Refused(f"records of topic {view.name} have changed: {old_bytes} and {new_bytes} bytes")
            if gone:
                self._check_superseded(manifest, view, gone)

    def _records_of(
        self, sources: list[OpenSegment], view: TopicView, gone: BitMap64
    ) -> tuple[BitMap64, int]:
        """The topic's live records in these files, without those that keys let go: their seqs and bytes."""
        found, size = BitMap64(), 0
        for source in sources:
            runs = [run for run in view.runs if run[0] == source.number]
            for block in source.columns_of(view.id):
                first, last = block.seqs[0], block.seqs[-1]
                inside = BitMap64(block.seqs)
                dead = view.dead_within(first, last) | gone
                live = inside - dead
                if runs:
                    live &= seqs_in([(runs[0][1], runs[0][2])])
                found |= live
                if len(live) == len(inside):
                    size += block.header.json_raw
                elif live:
                    ends = block.columns.ends
                    size += sum(
                        ends[at] - (ends[at - 1] if at else 0)
                        for at, seq in enumerate(block.seqs)
                        if seq in live
                    )
        return found, size

    def _check_superseded(self, manifest: Manifest, view: TopicView, gone: BitMap64) -> None:
        """Keys are looked at again, here: a job that forgot a rule must not cost a record."""
        if view.keys is None:
            raise Refused(f"topic {view.name} does not keep last values any more")
        by_number = {segment.number: segment for segment in manifest.segments}
        cold = []
        for number, _, _ in view.runs:
            if number not in by_number:
                break
            cold.append(by_number[number])
        with ExitStack() as files:
            sources = [files.enter_context(self._opened(segment)) for segment in cold]
            allowed = superseded(key_columns(sources, view), view.keys, self.now_ms)
        live = gone - view.dead_within(gone[0], gone[-1])
        if live - allowed:
            raise Refused(f"seq {(live - allowed)[0]} of topic {view.name} is the last value of its key")

    @contextmanager
    def _opened(self, segment: ManifestSegment) -> Iterator[OpenSegment]:
        with self._open_file(f"{self.cold}/{segment.path}", segment.number) as found:
            yield found

    @contextmanager
    def _opened_new(self, new: StagedSegment) -> Iterator[OpenSegment]:
        path = f"{self.cold}/staging/{new.file}"
        if not self.fs.exists(path):
            path = _data_path(self.cold, new.number)
        with self._open_file(path, new.number) as found:
            yield found

    @contextmanager
    def _open_file(self, path: str, number: int) -> Iterator[OpenSegment]:
        file = self.fs.open(path)
        try:
            yield OpenSegment.read(path, number, self.shard, file.pread, file.size())
        finally:
            file.close()


class PublishJob(msgspec.Struct):
    """The log says that the new segments are in use: a manifest that says so too, and the staging is cleared."""

    fs: FileSystem
    cold: str
    shard: int
    staged: Staged
    in_use: frozenset[int]
    """Everything in a new segment may have died since; then its file is gone."""
    now_ms: int
    generation: int = 0

    def run(self) -> None:
        staged, fs = self.staged, self.fs
        current, checksum = load_manifest(fs, self.cold)
        held = {segment.number: segment for segment in current.segments} if current is not None else {}
        old = {segment.number for segment in staged.old}
        wanted = {number: segment for number, segment in held.items() if number not in old}
        for new in staged.new:
            if new.number not in wanted and new.number in self.in_use:
                wanted[new.number] = self._described(new)
        if wanted.keys() != held.keys():
            self.generation = write_next_manifest(
                fs, self.cold, self.shard, self.now_ms, current, checksum, list(wanted.values())
            )
        else:
            self.generation = current.generation if current is not None else 0
        receipts = f"{self.cold}/receipts"
        fs.make_dir(receipts)
        pending = _PendingReceipt(staged, self.generation, self.now_ms)
        if not fs.exists(f"{receipts}/{staged.job}.json"):
            write_atomically(fs, f"{receipts}/{staged.job}{PENDING_ENDING}", [msgspec.json.encode(pending)])
        _clear(fs, f"{self.cold}/staging", staged.job)

    def _described(self, new: StagedSegment) -> ManifestSegment:
        file = self.fs.open(_data_path(self.cold, new.number))
        try:
            return describe_verified(file, new.number, new.digest)
        finally:
            file.close()


class RefuseJob(msgspec.Struct):
    """Say why, and leave everything where it can be looked at."""

    fs: FileSystem
    cold: str
    job: str
    reason: str
    staged: Staged | None
    known: frozenset[int]
    """Segments of the shard: what a number of theirs names in data/ is not this job's."""
    now_ms: int

    def run(self) -> None:
        fs, staging = self.fs, f"{self.cold}/staging"
        for new in self.staged.new if self.staged is not None else ():
            if new.number in self.known:
                continue
            moved = _data_path(self.cold, new.number)
            if fs.exists(moved) and not fs.exists(f"{staging}/{new.file}"):
                fs.rename(moved, f"{staging}/{new.file}")
        note = msgspec.json.encode({"job": self.job, "reason": self.reason, "refused_ms": self.now_ms})
        write_atomically(fs, f"{staging}/{self.job}{REFUSED_ENDING}", [note + b"\n"])


def _data_path(cold: str, number: int) -> str:
    return f"{cold}/data/{segment_file_name(number)}"


def _clear(fs: FileSystem, staging: str, job: str) -> None:
    """What a job left behind, attempts that did not count included; the file that tells of it goes last."""
    last = f"{job}{STAGED_ENDING}"
    for name in fs.list_dir(staging):
        if name.startswith(f"{job}.") and name != last:
            fs.unlink(f"{staging}/{name}")
    fs.sync_dir(staging)
    if fs.exists(f"{staging}/{last}"):
        fs.unlink(f"{staging}/{last}")
    fs.sync_dir(staging)


AdoptionJob = ScanJob | VerifyJob | PublishJob | RefuseJob
