"""The 64-byte header that every file of the store begins with. Layout: docs/disk-format.md §3."""

from struct import Struct
from typing import Final

import msgspec
from xxhash import xxh3_64_intdigest

from shared.format_errors import BadBytes, NewerVersion

FILE_HEADER_BYTES: Final = 64
FILE_VERSION = 1

WAL_MAGIC = b"TOPICWAL"
SEGMENT_MAGIC = b"TOPICSEG"
SNAPSHOT_MAGIC = b"TOPICSNP"
MANIFEST_MAGIC = b"TOPICMAN"

_BODY = Struct("<8sIIQQ24s")
_CHECKSUM = Struct("<Q")
_ZEROS = bytes(24)


class FileHeader(msgspec.Struct, frozen=True):
    shard: int
    number: int
    """File, segment or snapshot number, or the generation of a manifest."""
    created_ms: int


def encode_file_header(magic: bytes, header: FileHeader) -> bytes:
    body = _BODY.pack(magic, FILE_VERSION, header.shard, header.number, header.created_ms, _ZEROS)
    return body + _CHECKSUM.pack(xxh3_64_intdigest(body))


def decode_file_header(magic: bytes, buffer: bytes | memoryview) -> FileHeader:
    """The header at the start of `buffer`; raises BadBytes or NewerVersion."""
    if len(buffer) < FILE_HEADER_BYTES:
        raise BadBytes("the file ends inside its header", len(buffer))
    found, version, shard, number, created_ms, zeros = _BODY.unpack_from(buffer)
    if found != magic:
        raise BadBytes(f"not a {magic.decode()} file")
    (checksum,) = _CHECKSUM.unpack_from(buffer, _BODY.size)
    if xxh3_64_intdigest(bytes(buffer[: _BODY.size])) != checksum:
        raise BadBytes("file header checksum", _BODY.size)
    # Behind the checksum: a flipped bit must not pass for a newer writer.
    if version > FILE_VERSION:
        raise NewerVersion(version, FILE_VERSION, "file version")
    if version != FILE_VERSION or zeros != _ZEROS:
        raise BadBytes("file header fields", 8)
    return FileHeader(shard, number, created_ms)
