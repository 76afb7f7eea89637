"""The terms and the trailer of a segment. Layout: docs/disk-format.md §4.

Terms answer "which blocks hold this tag" without reading blocks. They are hashes: a block they name may
turn out not to hold the value, but no block that holds it is missed.
"""

import sys
from array import array
from bisect import bisect_left
from collections.abc import Iterable
from struct import Struct

import msgspec
from xxhash import xxh3_64_intdigest

from shared.file_header import FILE_HEADER_BYTES
from shared.format_errors import BadBytes
from shared.int_arrays import dump, load_u32, load_u64

TRAILER_MAGIC = b"TOPICEND"
TRAILER_BYTES = 64
FIELD_NUMBER = {"node": 1, "tag": 2, "key": 3}

_TERMS_HEADER = Struct("<II")
_TERM_PREFIX = Struct("<QB")
_TRAILER = Struct("<8sQIQIIQQI")
_U64 = Struct("<Q")


def term_hash(topic_id: int, field: str, value: bytes) -> int:
    return xxh3_64_intdigest(_TERM_PREFIX.pack(topic_id, FIELD_NUMBER[field]) + value)


def encode_terms(entries: Iterable[tuple[int, int]]) -> bytes:
    """From (hash, block ordinal) in any order."""
    ordered = sorted(entries)
    hashes = array("Q", [entry[0] for entry in ordered])
    ordinals = array("I", [entry[1] for entry in ordered])
    return _TERMS_HEADER.pack(len(ordered), 0) + dump(hashes) + dump(ordinals)


class Terms:
    """A view of the stored terms; looking up does not unpack them."""

    __slots__ = ("_hashes", "_ordinals", "count")

    def __init__(self, stored: bytes | memoryview) -> None:
        view = memoryview(stored)
        if len(view) < _TERMS_HEADER.size:
            raise BadBytes("terms too short", len(view))
        count, reserved = _TERMS_HEADER.unpack_from(view)
        if reserved or len(view) != _TERMS_HEADER.size + 12 * count:
            raise BadBytes(f"{len(view)} bytes for {count} terms")
        self.count: int = count
        hashes_end = _TERMS_HEADER.size + 8 * count
        hashes, ordinals = view[_TERMS_HEADER.size : hashes_end], view[hashes_end:]
        self._hashes: memoryview | array[int]
        self._ordinals: memoryview | array[int]
        if sys.byteorder == "little":
            self._hashes, self._ordinals = hashes.cast("Q"), ordinals.cast("I")
        else:
            self._hashes, self._ordinals = load_u64(hashes), load_u32(ordinals)

    def find_blocks(self, topic_id: int, field: str, value: bytes) -> list[int]:
        """The ordinals of the blocks that may hold `value`, ascending."""
        wanted = term_hash(topic_id, field, value)
        place = bisect_left(self._hashes, wanted)
        found = []
        while place < self.count and self._hashes[place] == wanted:
            found.append(self._ordinals[place])
            place += 1
        return found


class Trailer(msgspec.Struct, frozen=True):
    terms_at: int
    terms_len: int
    index_at: int
    index_len: int
    blocks: int
    terms_checksum: int
    index_checksum: int

    def check_terms(self, stored: bytes | memoryview) -> None:
        if xxh3_64_intdigest(stored) != self.terms_checksum:
            raise BadBytes("terms checksum", self.terms_at)

    def check_index(self, stored: bytes | memoryview) -> None:
        if xxh3_64_intdigest(stored) != self.index_checksum:
            raise BadBytes("index checksum", self.index_at)


def encode_trailer(terms_at: int, terms: bytes, index: bytes, blocks: int) -> bytes:
    body = _TRAILER.pack(
        TRAILER_MAGIC,
        terms_at,
        len(terms),
        terms_at + len(terms),
        len(index),
        blocks,
        xxh3_64_intdigest(terms),
        xxh3_64_intdigest(index),
        0,
    )
    return body + _U64.pack(xxh3_64_intdigest(body))


def decode_trailer(buffer: bytes | memoryview, file_size: int) -> Trailer:
    """The trailer of a file of `file_size` bytes; what it points at lies inside that file."""
    trailer_at = file_size - TRAILER_BYTES
    if len(buffer) != TRAILER_BYTES or trailer_at < FILE_HEADER_BYTES:
        raise BadBytes("the file is too short for a trailer", max(trailer_at, 0))
    magic, terms_at, terms_len, index_at, index_len, blocks, terms_sum, index_sum, zero = (
        _TRAILER.unpack_from(buffer)
    )
    if magic != TRAILER_MAGIC:
        raise BadBytes("no segment trailer", trailer_at)
    (checksum,) = _U64.unpack_from(buffer, _TRAILER.size)
    if xxh3_64_intdigest(bytes(buffer[: _TRAILER.size])) != checksum:
        raise BadBytes("trailer checksum", trailer_at)
    places_meet = terms_at + terms_len == index_at and index_at + index_len == trailer_at
    if zero or terms_at < FILE_HEADER_BYTES or not places_meet:
        raise BadBytes("the trailer points outside", trailer_at)
    return Trailer(terms_at, terms_len, index_at, index_len, blocks, terms_sum, index_sum)
