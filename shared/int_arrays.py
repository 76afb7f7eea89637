"""Little-endian integer columns as `array`, handled whole: no Python work per element."""

import sys
from array import array
from collections.abc import Sequence
from itertools import islice
from operator import le, lt
from typing import Final

# The same numbers, but `array` takes twice as long to store them as Q.
U64: Final = "L" if array("L").itemsize == 8 else "Q"

_SWAP = sys.byteorder != "little"
# Below this many elements the fixed cost of two big integers exceeds that of a comprehension.
_SHIFT_MIN = 8
_COMPARE_MIN = 16
_LANES = 2048  # elements compared at once; long integers for more would only take more memory


class _Masks:
    """For `_LANES` lanes of one width: the highest bit of each, the lowest of each, and all bits."""

    __slots__ = ("all", "bits", "ones", "tops")

    def __init__(self, bits: int) -> None:
        self.bits = bits
        self.all = (1 << bits * _LANES) - 1
        self.ones = self.all // ((1 << bits) - 1)
        self.tops = self.ones << bits - 1


_MASKS = {4: _Masks(32), 8: _Masks(64)}


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
    return _load(U64, buffer)


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
    found = _compare_lanes(values, strictly=False)
    return all(map(le, values, islice(values, 1, None))) if found is None else found


def is_strictly_ascending(values: Sequence[int]) -> bool:
    found = _compare_lanes(values, strictly=True)
    return all(map(lt, values, islice(values, 1, None))) if found is None else found


def _compare_lanes(values: Sequence[int], *, strictly: bool) -> bool | None:
    """Is each element above the one before it (or equal)? None: not to be told this way.

    As in `shift_u32` the column is one big integer: with the highest bit of every lane set, subtracting all lanes
    from their successors at once clears that bit exactly where a lane falls. Five times as fast as a loop.
    """
    if _SWAP or not isinstance(values, array) or len(values) < _COMPARE_MIN:
        return None
    masks = _MASKS.get(values.itemsize)
    if masks is None:
        return None
    for at in range(0, len(values) - 1, _LANES - 1):
        part = values[at : at + _LANES]
        found = _rises(int.from_bytes(part.tobytes(), "little"), len(part), masks, strictly)
        if not found:
            return found
    return True


def _rises(column: int, count: int, masks: _Masks, strictly: bool) -> bool | None:
    """Of `count` elements, two at least, as one little-endian integer."""
    bits, spare = masks.bits, _LANES - count
    if column & masks.tops >> bits * spare:
        return None  # there is no bit to spare
    pairs = bits * (spare + 1)
    tops = masks.tops >> pairs
    rest = (column >> bits) + tops - (column & masks.all >> pairs)
    if strictly:
        rest -= masks.ones >> pairs
    return rest & tops == tops
