"""The cold tier's share of a repair: a manifest that names the segments that are there."""

from __future__ import annotations

from shard_worker.core.shard_state import TIER_COLD
from shard_worker.disk.cold_tier import describe_verified
from shard_worker.disk.record_store import segment_file_name
from shard_worker.disk.survey import Survey
from shared.errors import CorruptSegment
from shared.io.durable_fs import FileSystem, read_whole
from shared.io.manifest_files import write_next_manifest
from shared.manifest import Manifest, manifest_checksum, manifest_name


def repair_manifest(fs: FileSystem, survey: Survey, now_ms: int) -> None:
    """A new generation, if the newest is bad or names segments that are served from elsewhere now."""
    check, directory = survey.check, survey.paths.cold
    if directory is None:
        return
    state, current = survey.recovered.state, check.manifest
    gone = {number for number in check.bad_segments if not _is_cold(survey, number)} | {*check.stale_cold}
    listed = {held.number: held for held in (current.segments if current is not None else ())}
    if not check.bad_manifests and not gone & listed.keys():
        return
    if check.manifest is None and not check.bad_manifests:
        return
    kept = {number: held for number, held in listed.items() if number not in gone}
    for number, entry in state.segments.items():
        if entry.tier != TIER_COLD or number in kept:
            continue
        try:
            file = fs.open(f"{directory}/data/{segment_file_name(number)}")
            try:
                kept[number] = describe_verified(file, number, entry.digest)
            finally:
                file.close()
        except (CorruptSegment, FileNotFoundError):
            if entry.runs:
                raise
    checksum = 0
    if current is not None:
        checksum = manifest_checksum(read_whole(fs, f"{directory}/{manifest_name(current.generation)}"))
    newest = max([*check.bad_manifests, current.generation if current is not None else 0])
    before = Manifest(generation=newest, shard=survey.shard, created_ms=now_ms, previous=0, segments=())
    write_next_manifest(fs, directory, survey.shard, now_ms, before, checksum, list(kept.values()))


def _is_cold(survey: Survey, number: int) -> bool:
    entry = survey.recovered.state.segments.get(number)
    return entry is not None and entry.tier == TIER_COLD
