"""Opaque cursors of lists: where the last page ended.

A cursor holds a name and not a position, so it stays good while entries come and go: the next page starts
behind that name whether or not it still exists. Layout: base64url of `version | crc32 | name`; the checksum
covers the kind of list, too, so a cursor of another list is as corrupt as a mistyped one.
"""

from __future__ import annotations

import base64
import binascii
import zlib

from shared.errors import InvalidRequest

_VERSION = b"\x01"
_MAX_CHARS = 400  # a name has at most 255 characters


def encode_cursor(kind: str, name: str) -> str:
    raw = name.encode()
    packed = _VERSION + _checksum(kind, raw) + raw
    return base64.urlsafe_b64encode(packed).rstrip(b"=").decode("ascii")


def decode_cursor(kind: str, cursor: str) -> str:
    """The name behind which the page starts."""
    try:
        if len(cursor) > _MAX_CHARS:
            raise ValueError("too long")
        packed = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        version, checksum, raw = packed[:1], packed[1:5], packed[5:]
        if version != _VERSION or checksum != _checksum(kind, raw):
            raise ValueError("bad checksum")
        return raw.decode("utf-8")
    except (ValueError, binascii.Error) as err:
        raise InvalidRequest("the cursor is corrupt; use next_cursor as it was given") from err


def _checksum(kind: str, raw: bytes) -> bytes:
    return zlib.crc32(kind.encode() + b"\x00" + raw).to_bytes(4, "big")
