"""Cold manifests."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from shared.cbor_body import dump_map
from shared.file_header import MANIFEST_MAGIC, FileHeader, encode_file_header
from shared.format_errors import BadBytes, FormatError
from shared.frame import Kind, build_frame
from shared.manifest import (
    Manifest,
    ManifestSegment,
    ManifestTopic,
    decode_manifest,
    encode_manifest,
    manifest_checksum,
    manifest_name,
)
from tests.support.format_samples import U32, U64, every_flip

SEGMENTS = st.builds(
    ManifestSegment,
    number=U64,
    path=st.integers(0, 10**9).map(lambda number: f"data/{number:010d}.seg"),
    size=U64,
    digest=U64.map(lambda number: f"{number:016x}"),
    blocks=U64,
    records=U64,
    deleted=U64,
    min_ts=U64,
    max_ts=U64,
    topics=st.lists(st.builds(ManifestTopic, st.text(), U64, U64, U64, U64), max_size=3).map(tuple),
)
MANIFESTS = st.builds(
    Manifest,
    generation=U64,
    shard=U32,
    created_ms=U64,
    previous=U64,
    segments=st.lists(SEGMENTS, max_size=3).map(tuple),
)
SEGMENT = ManifestSegment(
    number=1,
    path="data/0000000001.seg",
    size=900,
    digest="0123456789abcdef",
    blocks=1,
    records=2,
    deleted=0,
    min_ts=5,
    max_ts=6,
    topics=(ManifestTopic("a", 1, 1, 2, 2),),
)
SMALL = Manifest(generation=2, shard=3, created_ms=77, previous=5, segments=(SEGMENT,))


@given(MANIFESTS)
def test_a_manifest_decodes_to_what_was_encoded(manifest: Manifest) -> None:
    assert decode_manifest(encode_manifest(manifest)) == manifest


def test_c05_any_flipped_bit_of_a_manifest_is_refused() -> None:
    content = encode_manifest(SMALL)
    assert decode_manifest(content) == SMALL
    for damaged in every_flip(content):
        with pytest.raises(BadBytes):
            decode_manifest(damaged)


def test_c05_a_half_written_manifest_is_refused() -> None:
    content = encode_manifest(SMALL)
    for size in range(len(content)):
        with pytest.raises(BadBytes):
            decode_manifest(content[:size])
    with pytest.raises(BadBytes):
        decode_manifest(content + b"\0")


@given(st.binary(max_size=200))
def test_garbage_raises_only_format_errors(garbage: bytes) -> None:
    header = encode_file_header(MANIFEST_MAGIC, FileHeader(3, 2, 77))
    framed = header + build_frame(Kind.MANIFEST, 0, 64, 0, 77, garbage)
    for content in (garbage, header + garbage, framed):
        with pytest.raises(FormatError):
            decode_manifest(content)


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../x", "data/../../x", "data//x", "./x", "data/\0"])
def test_a_path_that_leaves_the_directory_is_refused(path: str) -> None:
    with pytest.raises(BadBytes, match="path"):
        decode_manifest(encode_manifest(replace(SMALL, segments=(replace(SEGMENT, path=path),))))


def test_header_and_body_must_name_the_same_generation() -> None:
    body = dump_map({"generation": 9, "shard": 3, "previous": 0, "segments": []})
    header = encode_file_header(MANIFEST_MAGIC, FileHeader(3, 2, 77))
    with pytest.raises(BadBytes, match="different"):
        decode_manifest(header + build_frame(Kind.MANIFEST, 0, 64, 0, 77, body))


def test_generations_are_chained_by_the_checksum_of_the_file() -> None:
    first = encode_manifest(replace(SMALL, previous=0))
    rewritten = encode_manifest(replace(SMALL, previous=0, segments=()))
    assert manifest_checksum(first) != manifest_checksum(rewritten)
    assert manifest_name(12) == "manifest-0000000012"
