"""Where the records of a batch end once other batches stand in front of it: for sealing, which joins many.

Compiled, this is a loop over plain numbers, four times as fast as adding and comparing all of them as one big integer.
"""

from __future__ import annotations

from librt.strings import BytesWriter, read_i32_le

from shared.packing import put_u32


def move_ends(into: BytesWriter, log: bytes, at: int, count: int, size: int, before: int) -> bool:
    """Add the ends of `count` records, found at `log[at:]`, as they are behind `before` bytes of other records.

    False: they do not rise strictly up to `size`. The sum fits: a block has less than a frame may have.
    """
    stop = at + 4 * count
    if stop > len(log):
        return False
    last = 0
    for place in range(at, stop, 4):
        end: int = read_i32_le(log, place)
        if end <= last:  # or negative: more than any frame has
            return False
        put_u32(into, before + end)
        last = end
    return last == size
