"""Little-endian integer columns as `array`, handled whole: no Python work per element."""

import sys
from array import array
from collections.abc import Sequence
from functools import lru_cache
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
    if isinstance(values, array) and len(values) >= _SHIFT_MIN:
        found = _all_steps(values, 0)
        if found is not None:
            return found
    return all(map(le, values, islice(values, 1, None)))


def is_strictly_ascending(values: Sequence[int]) -> bool:
    if isinstance(values, array) and len(values) >= _SHIFT_MIN:
        found = _all_steps(values, 1)
        if found is not None:
            return found
    return all(map(lt, values, islice(values, 1, None)))


def _all_steps(values: "array[int]", least: int) -> bool | None:
    """Is every element at least `least` above the one before? None if an element needs the top bit of its lane.

    Two big integers again, the column and the column moved by one element. With the top bit of every lane set before
    they are subtracted no lane borrows from the next, and the bit is still there where the difference is not negative.
    """
    width, steps = values.itemsize, len(values) - 1
    column = memoryview(values).cast("B")
    before, after = (int.from_bytes(part, sys.byteorder) for part in (column[:-width], column[width:]))
    tops, ones = _lanes(width, steps)
    if (before | after) & tops:
        return None
    return ((after | tops) - before - (ones if least else 0)) & tops == tops


@lru_cache(maxsize=64)
def _lanes(width: int, count: int) -> tuple[int, int]:
    """The top bit and the bottom bit of `count` lanes of `width` bytes."""
    top = (1 << (8 * width - 1)).to_bytes(width, sys.byteorder)
    one = (1).to_bytes(width, sys.byteorder)
    return int.from_bytes(top * count, sys.byteorder), int.from_bytes(one * count, sys.byteorder)
