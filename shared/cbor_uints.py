"""Arrays of unsigned integers in CBOR, byte for byte as cbor2 writes them: the seqs of finished jobs, in every ack.

Nearly all seqs are of one width, a byte 1a and four more, and nearly all acks are about a few neighbours. Together the
items of such a run are one number with digits of five bytes: what they are for the seqs 0, 1, 2, …, and the first seq
in every digit. Long ones are put together from planes of bytes, which are copied faster than integers are encoded.
"""

from __future__ import annotations

import sys
from array import array
from typing import Final

import cbor2

_SHORT_HEAD: Final = 24  # fewer items than that have a head of one byte
_WIDTH: Final = 5
_NARROWEST: Final = 0x10000
_WIDEST: Final = 0xFFFFFFFF
_HEAD: Final = [bytes([0x80 + count]) for count in range(_SHORT_HEAD)]
_ONES: Final = [int.from_bytes(b"\0\0\0\0\1" * count, "big") for count in range(_SHORT_HEAD)]
_FROM_ZERO: Final = [
    int.from_bytes(b"".join([b"\x1a" + item.to_bytes(4, "big") for item in range(count)]), "big")
    for count in range(_SHORT_HEAD)
]


def dump_uints(values: tuple[int, ...]) -> bytes:
    count = len(values)
    if 0 < count < _SHORT_HEAD and _is_narrow_run(values):
        return _HEAD[count] + (_FROM_ZERO[count] + values[0] * _ONES[count]).to_bytes(_WIDTH * count, "big")
    if not 0 < count <= 0xFFFF or min(values) < _NARROWEST or max(values) > _WIDEST:
        return cbor2.dumps(list(values))
    if count >= _SHORT_HEAD:
        return _dump_planes(values)
    return _HEAD[count] + b"".join([b"\x1a" + value.to_bytes(4, "big") for value in values])


def _is_narrow_run(values: tuple[int, ...]) -> bool:
    """Neighbours, one behind the other, and all of four bytes?"""
    expected = values[0]
    if expected < _NARROWEST:
        return False
    for value in values:
        if value != expected:
            return False
        expected += 1
    return expected <= _WIDEST + 1


def _dump_planes(values: tuple[int, ...]) -> bytes:
    count = len(values)
    numbers = array("I", values)
    if sys.byteorder == "little":
        numbers.byteswap()
    planes = numbers.tobytes()
    out = bytearray(b"\x1a") * (_WIDTH * count)
    out[1::5], out[2::5], out[3::5], out[4::5] = planes[::4], planes[1::4], planes[2::4], planes[3::4]
    head = b"\x98%c" % count if count < 0x100 else b"\x99" + count.to_bytes(2, "big")
    return head + bytes(out)
