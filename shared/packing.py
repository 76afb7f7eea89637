"""Unsigned numbers, one behind the other, into a writer of bytes: little-endian for files, big-endian for links.

Compiled, a number takes a few instructions: `struct` and `array` want an object for each first, which is most of what
they cost where a write of a hundred records has a hundred ends. librt, mypyc's own library, writes signed numbers only.
What does not fit is refused with OverflowError, negative numbers too: a wrong one must not get a checksum of its own.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, write_i32_le, write_i64_be, write_i64_le

_I32_MAX: Final = (1 << 31) - 1
_SHORT_MAX: Final = (1 << 62) - 1
"""The largest integer that compiled code keeps without an object."""


def put_u32(writer: BytesWriter, number: int) -> None:
    if 0 <= number <= _I32_MAX:
        write_i32_le(writer, number)
    else:
        writer.write(number.to_bytes(4, "little"))


def put_u64(writer: BytesWriter, number: int) -> None:
    if 0 <= number <= _SHORT_MAX:
        write_i64_le(writer, number)
    else:
        writer.write(number.to_bytes(8, "little"))


def put_u64_be(writer: BytesWriter, number: int) -> None:
    if 0 <= number <= _SHORT_MAX:
        write_i64_be(writer, number)
    else:
        writer.write(number.to_bytes(8, "big"))
