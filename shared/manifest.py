"""The manifest of the cold tier: which segments belong to a generation. Layout: docs/disk-format.md §6.

`previous` chains the generations: a manifest of the past that was rewritten no longer fits the next one.
"""

import msgspec
from xxhash import xxh3_64_intdigest

from shared.cbor_body import Fields, as_list, as_map, as_text, as_uint, dump_map, list_of, load_map
from shared.control_frames import as_digest
from shared.file_header import (
    FILE_HEADER_BYTES,
    MANIFEST_MAGIC,
    FileHeader,
    decode_file_header,
    encode_file_header,
)
from shared.format_errors import BadBytes
from shared.frame import BadFrame, Frame, Kind, build_frame, decode_frame


class ManifestTopic(msgspec.Struct, frozen=True):
    name: str
    epoch: int
    first: int
    last: int
    count: int


class ManifestSegment(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    path: str
    """Relative to the shard's directory in the cold tier."""
    size: int
    digest: str
    blocks: int
    records: int
    deleted: int
    min_ts: int
    max_ts: int
    topics: tuple[ManifestTopic, ...]


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    generation: int
    shard: int
    created_ms: int
    previous: int
    """`manifest_checksum` of the generation before, 0 for the first."""
    segments: tuple[ManifestSegment, ...]


def manifest_name(generation: int) -> str:
    return f"manifest-{generation:010d}"


def manifest_checksum(file: bytes) -> int:
    return xxh3_64_intdigest(file)


def encode_manifest(manifest: Manifest) -> bytes:
    """The whole file."""
    header = encode_file_header(
        MANIFEST_MAGIC, FileHeader(manifest.shard, manifest.generation, manifest.created_ms)
    )
    body = dump_map(
        {
            "generation": manifest.generation,
            "shard": manifest.shard,
            "previous": manifest.previous,
            "segments": [_segment_map(segment) for segment in manifest.segments],
        }
    )
    return header + build_frame(Kind.MANIFEST, 0, len(header), 0, manifest.created_ms, body)


def decode_manifest(file: bytes) -> Manifest:
    """The manifest that fills `file`; BadBytes or NewerVersion otherwise."""
    header = decode_file_header(MANIFEST_MAGIC, file)
    frame = decode_frame(memoryview(file), FILE_HEADER_BYTES, FILE_HEADER_BYTES)
    if not isinstance(frame, Frame):
        reason = frame.reason if isinstance(frame, BadFrame) else "the manifest is torn"
        raise BadBytes(reason, FILE_HEADER_BYTES)
    if frame.kind != Kind.MANIFEST or frame.end != len(file):
        raise BadBytes("a manifest is one frame", frame.end)
    fields = load_map(frame.body)
    manifest = Manifest(
        generation=fields.need("generation", as_uint),
        shard=fields.need("shard", as_uint),
        created_ms=header.created_ms,
        previous=fields.need("previous", as_uint),
        segments=fields.need("segments", lambda value: list_of(value, _as_segment)),
    )
    fields.done()
    if (manifest.generation, manifest.shard) != (header.number, header.shard):
        raise BadBytes("header and body name different manifests", FILE_HEADER_BYTES)
    return manifest


def _segment_map(segment: ManifestSegment) -> dict[str, object]:
    return {
        "number": segment.number,
        "path": segment.path,
        "size": segment.size,
        "digest": segment.digest,
        "blocks": segment.blocks,
        "records": segment.records,
        "deleted": segment.deleted,
        "min_ts": segment.min_ts,
        "max_ts": segment.max_ts,
        "topics": [
            [topic.name, topic.epoch, topic.first, topic.last, topic.count] for topic in segment.topics
        ],
    }


def _as_segment(value: object) -> ManifestSegment:
    fields = Fields(as_map(value))
    segment = ManifestSegment(
        number=fields.need("number", as_uint),
        path=fields.need("path", _as_path),
        size=fields.need("size", as_uint),
        digest=fields.need("digest", as_digest),
        blocks=fields.need("blocks", as_uint),
        records=fields.need("records", as_uint),
        deleted=fields.need("deleted", as_uint),
        min_ts=fields.need("min_ts", as_uint),
        max_ts=fields.need("max_ts", as_uint),
        topics=fields.need("topics", lambda rows: list_of(rows, _as_topic)),
    )
    fields.done()
    return segment


def _as_path(value: object) -> str:
    """A manifest must not lead out of its directory."""
    path = as_text(value)
    if (
        not path
        or "\0" in path
        or path.startswith("/")
        or any(part in ("", ".", "..") for part in path.split("/"))
    ):
        raise BadBytes("a path inside the shard's directory is expected")
    return path


def _as_topic(value: object) -> ManifestTopic:
    name, epoch, first, last, count = as_list(value, 5)
    return ManifestTopic(as_text(name), as_uint(epoch), as_uint(first), as_uint(last), as_uint(count))
