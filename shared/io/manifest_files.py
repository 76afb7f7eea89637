"""The manifests of a shard's cold tier: the current one, and the next."""

from __future__ import annotations

from shared.errors import CorruptManifest
from shared.format_errors import FormatError
from shared.io.durable_fs import FileSystem, read_whole, write_atomically
from shared.manifest import (
    Manifest,
    ManifestSegment,
    decode_manifest,
    encode_manifest,
    manifest_checksum,
    manifest_name,
)
from shared.store_layout import manifest_generation

_MANIFESTS_KEPT = 10


def load_manifest(fs: FileSystem, cold_directory: str) -> tuple[Manifest | None, int]:
    """The current generation and its checksum. A damaged one is an error: going on would fork the history."""
    names = [name for name in fs.list_dir(cold_directory) if manifest_generation(name) is not None]
    if not names:
        return None, 0
    path = f"{cold_directory}/{max(names)}"
    content = read_whole(fs, path)
    try:
        return decode_manifest(content), manifest_checksum(content)
    except FormatError as err:
        raise CorruptManifest(path=path, reason=str(err)) from err


def write_next_manifest(
    fs: FileSystem,
    cold_directory: str,
    shard: int,
    now_ms: int,
    current: Manifest | None,
    checksum: int,
    segments: list[ManifestSegment],
) -> int:
    """A generation with exactly these segments. Its rename is the commit point. Returns its number."""
    generation = current.generation + 1 if current is not None else 1
    manifest = Manifest(
        generation=generation,
        shard=shard,
        created_ms=now_ms,
        previous=checksum,
        segments=tuple(sorted(segments, key=lambda segment: segment.number)),
    )
    write_atomically(fs, f"{cold_directory}/{manifest_name(generation)}", [encode_manifest(manifest)])
    outdated = manifest_name(generation - _MANIFESTS_KEPT) if generation > _MANIFESTS_KEPT else ""
    if outdated and fs.exists(f"{cold_directory}/{outdated}"):
        fs.unlink(f"{cold_directory}/{outdated}")
    return generation
