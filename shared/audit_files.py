"""Which files a shard should have, which it has, and what its manifests say of each other. Pure: names and sizes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from shared.audit_findings import Finding
from shared.compaction import COMPACTED_FROM
from shared.manifest import Manifest, ManifestSegment
from shared.snapshot_items import SnapSegments
from shared.store_layout import manifest_generation, segment_file_name, segment_number

HOT, COLD = "hot", "cold"


@dataclass(frozen=True, slots=True)
class ExpectedSegment:
    """A segment that is recorded, and where. `needed`: a live record is served from it."""

    number: int
    tier: str
    size: int
    digest: str
    needed: bool


@dataclass(frozen=True, slots=True)
class ShardListing:
    """The names in a shard's directories."""

    shard: int
    directory: str
    cold_directory: str | None
    hot: Collection[str]
    cold: Collection[str]
    adopting: bool = False
    """A compaction has handed segments over, and they are not in the manifest yet."""

    def path(self, tier: str, name: str) -> str:
        return f"{self.directory}/segments/{name}" if tier == HOT else f"{self.cold_directory}/data/{name}"


@dataclass(slots=True)
class FilePlan:
    """The files to look into, and what is known about each before."""

    files: list[tuple[str, int, ExpectedSegment | None]] = field(default_factory=list)
    """(path, segment number, what is recorded)"""
    missing: list[tuple[str, ExpectedSegment]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


def expected_segments(table: SnapSegments | None, used: Collection[int]) -> dict[int, ExpectedSegment]:
    if table is None:
        return {}
    return {
        held.number: ExpectedSegment(held.number, held.tier, held.size, held.digest, held.number in used)
        for held in table.segments
    }


def plan_files(
    listing: ShardListing,
    table: SnapSegments | None,
    used: Collection[int],
    manifest: Manifest | None,
    kept: Collection[int] = (),
) -> FilePlan:
    """What is there against what the newest snapshot and the newest manifest record.

    `used`: segments that live records are served from; `kept`: what the snapshot before still lists.
    """
    plan = FilePlan()
    recorded = expected_segments(table, used)
    hot, cold = frozenset(listing.hot), frozenset(listing.cold)
    in_manifest = {held.number for held in manifest.segments} if manifest is not None else set()
    next_segment = table.next_segment if table is not None else 0
    # A manifest with compacted segments that the snapshot does not know is younger: others made room for them.
    replaced = any(number >= COMPACTED_FROM and number not in recorded for number in in_manifest)
    for tier, names in ((HOT, listing.hot), (COLD, listing.cold)):
        for name in sorted(names):
            number = segment_number(name)
            path = listing.path(tier, name)
            if number is None:
                kind = "leftover_file" if name.endswith(".tmp") else "foreign_file"
                reason = "unfinished" if name.endswith(".tmp") else "no segment has such a name"
                plan.findings.append(Finding(kind=kind, reason=reason, path=path, shard=listing.shard))
                continue
            expected = recorded.get(number)
            if tier == COLD and number not in in_manifest:
                kind, reason = "orphan_file", "in the cold directory, and the manifest does not name it"
                if number in recorded or number in kept:
                    kind, reason = "leftover_file", "replaced; a snapshot that is kept may still need it"
                elif listing.adopting and number >= COMPACTED_FROM:
                    kind, reason = "leftover_file", "made by a compaction that is being adopted"
                plan.findings.append(_of_file(kind, reason, path, listing.shard, number))
            elif tier == HOT and expected is None and table is not None and number < next_segment:
                reason = "the snapshot knows of no such segment"
                plan.findings.append(_of_file("orphan_file", reason, path, listing.shard, number))
            elif tier == HOT and expected is not None and expected.tier == COLD and number in in_manifest:
                reason = "the segment has moved to the cold tier"
                plan.findings.append(_of_file("leftover_file", reason, path, listing.shard, number))
            plan.files.append((path, number, expected))
    for number, expected in sorted(recorded.items()):
        name = segment_file_name(number)
        present = name in hot or name in cold
        if expected.needed and not present:
            plan.missing.append((listing.path(expected.tier, name), expected))
        elif expected.needed and expected.tier == COLD and number not in in_manifest and not replaced:
            reason = f"segment {number} is in the cold tier by the snapshot, and no manifest names it"
            path = listing.path(COLD, name)
            plan.findings.append(_of_file("manifest_disagrees", reason, path, listing.shard, number))
    if manifest is not None:
        named = {path for path, _ in plan.missing}
        for held in manifest.segments:
            path = f"{listing.cold_directory}/{held.path}"
            if segment_file_name(held.number) not in cold and path not in named:
                plan.missing.append(
                    (path, ExpectedSegment(held.number, COLD, held.size, held.digest, held.number in used))
                )
    return plan


def check_recorded(
    path: str, shard: int, size: int, digest: str | None, recorded: Iterable[tuple[str, int, str]]
) -> list[Finding]:
    """A file against (who says so, size, digest). `digest` None: a bad block is reported already."""
    found = []
    number = segment_number(path.rsplit("/", 1)[-1])
    for who, wanted_size, wanted_digest in recorded:
        if size != wanted_size:
            reason = f"{size} bytes; the {who} says {wanted_size}"
            found.append(_of_file("size_differs", reason, path, shard, number, min(size, wanted_size)))
        elif digest is not None and digest != wanted_digest:
            reason = f"digest {digest}; the {who} says {wanted_digest}"
            found.append(_of_file("digest_differs", reason, path, shard, number, 0))
    return found


def check_manifests(
    shard: int, directory: str, files: Mapping[str, tuple[Manifest | str, int]]
) -> list[Finding]:
    """The kept generations: each whole, under its own name, following from the one before.

    `files`: name -> (manifest, or what is wrong with it; checksum).
    """
    found = []
    last: tuple[int, int] | None = None
    for name, (manifest, checksum) in sorted(files.items()):
        path = f"{directory}/{name}"
        generation = manifest_generation(name)
        if isinstance(manifest, str):
            found.append(Finding(kind="bad_manifest", reason=manifest, path=path, shard=shard))
            last = None
            continue
        if (manifest.generation, manifest.shard) != (generation, shard):
            reason = f"this is generation {manifest.generation} of shard {manifest.shard}"
            found.append(Finding(kind="wrong_file", reason=reason, path=path, shard=shard))
            last = None
            continue
        if last is not None:
            before, before_checksum = last
            if manifest.generation != before + 1:
                reason = f"generation {manifest.generation} follows {before}: those between are missing"
                found.append(Finding(kind="manifest_chain", reason=reason, path=path, shard=shard))
            elif manifest.previous != before_checksum:
                reason = f"generation {before} is not the one that this one was made from"
                found.append(Finding(kind="manifest_chain", reason=reason, path=path, shard=shard))
        last = (manifest.generation, checksum)
    return found


def check_manifest_entry(
    path: str, shard: int, held: ManifestSegment, topics: Sequence[tuple[str, int, int, int, int]]
) -> list[Finding]:
    """What the manifest says of a segment against (name, epoch, first, last, count) from its own index."""
    said = [(each.name, each.epoch, each.first, each.last, each.count) for each in held.topics]
    if sorted(said) == sorted(topics) and held.records == sum(each[4] for each in topics):
        return []
    reason = "topics or counts in the manifest are not those of the segment"
    return [_of_file("manifest_disagrees", reason, path, shard, held.number)]


def _of_file(
    kind: str, reason: str, path: str, shard: int, number: int | None, offset: int | None = None
) -> Finding:
    return Finding(kind=kind, reason=reason, path=path, offset=offset, shard=shard, segment=number)
