"""A store as it lies on disk, for the audit: listings, snapshots, manifests. Read-only, beside a running server or not.

The order of reading matters while a worker goes on: the snapshot first, then the manifest, then the names of files. So
what a view misses is younger than it, never older.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from ops.coldstore.places import ShardSnapshot, filesystem_for, load_snapshot
from shared.audit_files import ShardListing
from shared.audit_findings import Finding
from shared.format_errors import FormatError
from shared.io.durable_fs import FileSystem, read_whole
from shared.manifest import Manifest, decode_manifest, manifest_checksum
from shared.staged import STAGED_ENDING
from shared.store_layout import (
    manifest_generation,
    shard_dir_name,
    shard_of_dir,
    snapshot_number,
)

STORE_FORMAT = 1


class NotAStore(Exception):
    """There is nothing to audit here; the message says what was expected."""


class StoreFile(msgspec.Struct, frozen=True):
    format: int
    shards: int
    moving_to: int | None = None

    @property
    def counts(self) -> list[int]:
        """The numbers of shards by which topics may be placed now."""
        return [self.shards] if self.moving_to is None else [self.shards, self.moving_to]


@dataclass(frozen=True, slots=True)
class ShardView:
    listing: ShardListing
    newest: ShardSnapshot | None
    older: ShardSnapshot | None
    manifest: Manifest | None
    checksum: int
    manifests: dict[str, tuple[Manifest | str, int]]
    findings: list[Finding] = field(default_factory=list)

    @property
    def shard(self) -> int:
        return self.listing.shard

    @property
    def identity(self) -> tuple[object, ...]:
        """Differs as soon as a worker did anything that matters here."""
        number = self.newest.number if self.newest is not None else 0
        return (number, sorted(self.manifests), sorted(self.listing.hot), sorted(self.listing.cold))


def read_store_file(fs: FileSystem, data_dir: str) -> StoreFile:
    path = f"{data_dir}/store.json"
    if not fs.exists(path):
        raise NotAStore(f"{path} is not there: name the data directory of a topicsd with --data-dir")
    try:
        store = msgspec.json.decode(read_whole(fs, path), type=StoreFile)
    except msgspec.MsgspecError as err:
        raise NotAStore(f"{path} is damaged: {err}") from err
    if store.format != STORE_FORMAT:
        raise NotAStore(f"{path} says format version {store.format}; this release knows {STORE_FORMAT}")
    return store


def shards_in(fs: FileSystem, data_dir: str, cold_dir: str | None) -> list[int]:
    found = {shard_of_dir(name) for name in fs.list_dir(data_dir)}
    if cold_dir is not None:
        found |= {shard_of_dir(name) for name in filesystem_for(cold_dir).list_dir(cold_dir)}
    return sorted(shard for shard in found if shard is not None)


def view_shard(fs: FileSystem, data_dir: str, cold_dir: str | None, shard: int) -> ShardView:
    directory = f"{data_dir}/{shard_dir_name(shard)}"
    cold = None if cold_dir is None else f"{cold_dir}/{shard_dir_name(shard)}"
    findings: list[Finding] = []
    snapshots = _snapshots(fs, f"{directory}/snapshots", shard, findings)
    manifests = {} if cold is None else _manifests(filesystem_for(cold), cold)
    names = [] if cold is None else filesystem_for(cold).list_dir(f"{cold}/data")
    staged = [] if cold is None else filesystem_for(cold).list_dir(f"{cold}/staging")
    adopting = any(name.endswith(STAGED_ENDING) for name in staged)
    listing = ShardListing(shard, directory, cold, fs.list_dir(f"{directory}/segments"), names, adopting)
    newest = max(manifests, default=None)
    manifest, checksum = manifests[newest] if newest is not None else (None, 0)
    return ShardView(
        listing,
        snapshots[0] if snapshots else None,
        snapshots[1] if len(snapshots) > 1 else None,
        manifest if isinstance(manifest, Manifest) else None,
        checksum,
        manifests,
        findings,
    )


def _snapshots(fs: FileSystem, directory: str, shard: int, findings: list[Finding]) -> list[ShardSnapshot]:
    """The newest two that are whole."""
    found: list[ShardSnapshot] = []
    for name in sorted(fs.list_dir(directory), reverse=True):
        path, number = f"{directory}/{name}", snapshot_number(name)
        if number is None or len(found) == 2:
            continue
        try:
            found.append(load_snapshot(fs, path, number))
        except FileNotFoundError:
            continue  # the worker has written a newer one and removed this one
        except FormatError as err:
            findings.append(Finding(kind="bad_snapshot", reason=str(err), path=path, shard=shard))
    return found


def _manifests(fs: FileSystem, directory: str) -> dict[str, tuple[Manifest | str, int]]:
    found: dict[str, tuple[Manifest | str, int]] = {}
    for name in fs.list_dir(directory):
        if manifest_generation(name) is None:
            continue
        try:
            content = read_whole(fs, f"{directory}/{name}")
        except FileNotFoundError:
            continue  # one of the oldest, removed meanwhile
        checksum = manifest_checksum(content)
        try:
            found[name] = (decode_manifest(content), checksum)
        except FormatError as err:
            found[name] = (str(err), checksum)
    return found
