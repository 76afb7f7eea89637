"""Content-Encoding of requests and responses: gzip or nothing."""

from __future__ import annotations

import zlib
from typing import Final

from shared.errors import InvalidRequest, PayloadTooLarge, UnsupportedMediaType

_GZIP_WBITS = 31
_LEVEL = 1  # a read is compressed in the turn that answers it; the higher levels take several times longer

MIN_COMPRESSED_BYTES: Final = 1024
"""Below this a compressed answer is hardly smaller, and setting up the compressor costs more than sending."""


def decode_body(body: bytes, encoding: str | None, max_bytes: int) -> bytes:
    """The body without its Content-Encoding, never larger than `max_bytes`."""
    if encoding is None or not body:
        return body
    coding = encoding.strip().lower()
    if coding in ("", "identity"):
        return body
    if coding not in ("gzip", "x-gzip"):
        raise UnsupportedMediaType("Content-Encoding may be gzip or left out")
    return _gunzip(body, max_bytes)


def _gunzip(body: bytes, max_bytes: int) -> bytes:
    parts: list[bytes] = []
    left = max_bytes
    rest = body
    # A gzip body may be several members end to end.
    while rest:
        member = zlib.decompressobj(_GZIP_WBITS)
        try:
            # One byte more than allowed tells "just fits" from "too large" without inflating all of it.
            part = member.decompress(rest, left + 1)
        except zlib.error as err:
            raise InvalidRequest("the body is not valid gzip") from err
        if len(part) > left:
            raise PayloadTooLarge(max_bytes=max_bytes)
        if not member.eof:
            raise InvalidRequest("the gzip body is cut short")
        parts.append(part)
        left -= len(part)
        rest = member.unused_data
    return b"".join(parts)


def wants_gzip(accept_encoding: str | None) -> bool:
    """Only if gzip is named: a bare `*` is not asking for it."""
    if not accept_encoding or "gzip" not in accept_encoding.lower():
        return False
    for item in accept_encoding.lower().split(","):
        coding, *parameters = (part.strip() for part in item.split(";"))
        if coding in ("gzip", "x-gzip"):
            return _quality(parameters) > 0
    return False


def _quality(parameters: list[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0


def compress(body: bytes) -> bytes:
    compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP_WBITS)
    return compressor.compress(body) + compressor.flush()
