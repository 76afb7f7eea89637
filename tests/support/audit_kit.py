"""Auditing copies of a store, and damaging them in every way of the catalogue: by accident, and on purpose.

A forger recomputes what can be recomputed: checksums, digests, manifests, snapshots.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ops.coldstore.audit import Audit, AuditOptions
from ops.coldstore.engines import Engine, LocalEngine
from ops.coldstore.places import ShardSnapshot, load_snapshot
from ops.coldstore.progress import Progress
from shared.audit_report import Previous, Report, encode_report, report_digest
from shared.file_header import FileHeader
from shared.io.durable_fs import RealFileSystem
from shared.manifest import Manifest, decode_manifest, encode_manifest
from shared.record_assembler import RecordAssembler
from shared.segment_reader import read_block, read_header, read_index, read_trailer
from shared.segment_scan import verify_segment
from shared.segment_writer import SegmentBuilder, SegmentTopic
from shared.snapshot_format import SnapshotEncoder
from shared.snapshot_items import SnapBegin, SnapSegment, SnapTopic
from shared.store_layout import snapshot_number
from tests.support.cold_stores import StorePaths
from tests.support.format_samples import pread_of

FS = RealFileSystem()


def run_audit(
    paths: StorePaths,
    before: Report | None = None,
    *,
    engine: Engine | None = None,
    online: bool = False,
    between_looks: Callable[[], None] = lambda: None,
    bin_bytes: int = 4096,
) -> Report:
    """One audit, with the report before it as its history. Small bins: files are cut and share bins."""
    options = AuditOptions(paths.data, paths.cold, online=online, bin_bytes=bin_bytes, pause_s=0.0)
    earlier = None
    if before is not None:
        earlier = (Previous(name="before", sha256=report_digest(encode_report(before))), before)
    audit = Audit(FS, options, engine or LocalEngine(), Progress(quiet=True), between_looks=between_looks)
    return audit.run(earlier, [])


def kinds(report: Report) -> dict[str, int]:
    return dict(
        Counter(str(finding["kind"]) for finding in report.findings if finding["severity"] == "error")
    )


def copy_store(paths: StorePaths, target: Path) -> StorePaths:
    copied = StorePaths(str(target / "data"), str(target / "cold"))
    shutil.copytree(paths.data, copied.data)
    shutil.copytree(paths.cold, copied.cold)
    return copied


def cold_segments(paths: StorePaths) -> list[str]:
    directory = f"{paths.cold_shard}/data"
    return [f"{directory}/{name}" for name in FS.list_dir(directory)]


def hot_segments(paths: StorePaths) -> list[str]:
    directory = f"{paths.shard}/segments"
    return [f"{directory}/{name}" for name in FS.list_dir(directory)]


def is_intact(path: str) -> bool:
    content = Path(path).read_bytes()
    return verify_segment(pread_of(content), len(content)).ok


def flip_byte(path: str, offset: int) -> None:
    content = bytearray(Path(path).read_bytes())
    content[offset] ^= 1
    Path(path).write_bytes(content)
    assert not is_intact(path), f"a flip at byte {offset} of {path} is no damage"


def regions(path: str) -> dict[str, int]:
    """A byte in every part of a segment file."""
    content = Path(path).read_bytes()
    pread = pread_of(content)
    trailer = read_trailer(pread, len(content))
    index = read_index(pread, trailer)
    block = index.block(1)
    header = read_block(pread, block).header
    return {
        "file header": 20,
        "file header checksum": 60,
        "block magic": block.offset,
        "block header": block.offset + 20,
        "block header checksum": block.offset + 75,
        "block columns": block.offset + 85,
        "block JSON": block.offset + header.json_at + 5,
        "block JSON checksum": block.offset + block.length - 3,
        "terms": trailer.terms_at + 3,
        "index": trailer.index_at + trailer.index_len // 2,
        "trailer": len(content) - 40,
        "trailer checksum": len(content) - 2,
    }


# --- forging ----------------------------------------------------------------------------------------------


def forge_segment(
    path: str, change: Callable[[bytes], bytes], *, drop_first: bool = False
) -> tuple[int, str]:
    """The segment again with other JSON of the same length, all checksums right. Returns size and digest."""
    content = Path(path).read_bytes()
    pread = pread_of(content)
    header = read_header(pread)
    index = read_index(pread, read_trailer(pread, len(content)))
    builder = SegmentBuilder(header.shard, header.number, header.created_ms)
    parts = [builder.header]
    for topic in index.topics():
        for place, ordinal in enumerate(index.blocks_of(topic.topic_id)):
            block = read_block(pread, index.block(ordinal))
            json = change(bytes(block.json))
            assert len(json) == len(block.json)
            assembler = RecordAssembler()
            low = 1 if drop_first and place == 0 else 0
            count = block.header.count
            assembler.add_block(memoryview(json), block.columns, low, count, block.seqs, block.times)
            named = SegmentTopic(topic.topic_id, topic.name, topic.epoch)
            parts.append(builder.add_block(named, assembler.finish()))
    parts.append(builder.finish(index.deleted))
    Path(path).write_bytes(b"".join(parts))
    assert is_intact(path), "the forger's work looks right"
    return builder.size, builder.digest


def newest_manifest_path(paths: StorePaths) -> str:
    return max(str(path) for path in Path(paths.cold_shard).glob("manifest-*"))


def edit_manifest(paths: StorePaths, edit: Callable[[Manifest], Manifest]) -> None:
    path = newest_manifest_path(paths)
    Path(path).write_bytes(encode_manifest(edit(decode_manifest(Path(path).read_bytes()))))


def edit_snapshots(
    paths: StorePaths,
    edit_topic: Callable[[SnapTopic], SnapTopic] = lambda topic: topic,
    edit_segment: Callable[[SnapSegment], SnapSegment | None] = lambda segment: segment,
) -> None:
    """Every kept snapshot, rewritten with valid checksums."""
    directory = f"{paths.shard}/snapshots"
    for name in os.listdir(directory):
        number = snapshot_number(name)
        assert number is not None
        path = f"{directory}/{name}"
        _write_snapshot(path, load_snapshot(FS, path, number), edit_topic, edit_segment)


def _write_snapshot(path: str, held: ShardSnapshot, edit_topic: Any, edit_segment: Any) -> None:
    encoder = SnapshotEncoder(FileHeader(held.shard, held.number, 0))
    segments = [each for segment in held.table.segments if (each := edit_segment(segment)) is not None]
    parts = [encoder.begin(SnapBegin(held.shard, held.start))]
    parts += [encoder.topic(edit_topic(topic)) for topic in held.topics]
    parts.append(encoder.segments(replace(held.table, segments=tuple(segments))))
    parts.append(encoder.end(end=held.end.end, clean=held.end.clean, boot_id=held.end.boot_id))
    Path(path).write_bytes(b"".join(parts))
    assert load_snapshot(FS, path, held.number).topics


def recompute_everything(paths: StorePaths, number: int, size: int, digest: str) -> None:
    """Manifest and snapshots say of segment `number` what it now is."""

    def in_manifest(manifest: Manifest) -> Manifest:
        rows = tuple(
            replace(held, size=size, digest=digest) if held.number == number else held
            for held in manifest.segments
        )
        return replace(manifest, segments=rows)

    def in_snapshot(segment: SnapSegment) -> SnapSegment:
        return replace(segment, size=size, digest=digest) if segment.number == number else segment

    edit_manifest(paths, in_manifest)
    edit_snapshots(paths, edit_segment=in_snapshot)
