"""Records on their way through a router, and the body in which they cross a link (docs/wire-protocol.md, FORWARD).

A copy differs from its record in `$seq` and `$ts` alone, and those stand in front. So what travels is the rest of
each record, its *tail*, as it is stored (`,"$node":…,"data":…,"meta":…},`), end to end, with columns that describe
the tails. The destination puts a head in front of each and never looks inside.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from itertools import accumulate

import cbor2
import msgspec

from shared.columns import Columns, encode_columns
from shared.format_errors import BadBytes
from shared.int_arrays import dump, load_u64
from shared.wire import LinkError, loads


class Copies(msgspec.Struct):
    seqs: array[int]
    """Of the records at their source, ascending."""
    tails: bytes
    column_flags: int
    columns: bytes

    def __len__(self) -> int:
        return len(self.seqs)

    def decode_columns(self) -> Columns:
        return Columns(self.column_flags, len(self.seqs), len(self.tails), memoryview(self.columns))

    def behind(self, seq: int) -> Copies:
        """Those of records behind `seq`."""
        place = bisect_right(self.seqs, seq)
        return self if place == 0 else self.part(place, len(self.seqs))

    def part(self, low: int, high: int) -> Copies:
        """The copies [low, high)."""
        if low == 0 and high == len(self.seqs):
            return self
        if low >= high:
            return Copies(array("Q"), b"", 0, b"")
        columns = self.decode_columns()
        ends = columns.ends
        begin = ends[low - 1] if low else 0
        metas = columns.meta
        flags, packed = encode_columns(
            count=high - low,
            ends=array("I", (end - begin for end in ends[low:high])),
            flags=columns.flags[low:high],
            meta=None if metas is None else metas[low:high],
            nodes=columns.values("node")[low:high],
            tags=columns.values("tag")[low:high],
            keys=columns.values("key")[low:high],
        )
        return Copies(self.seqs[low:high], self.tails[begin : ends[high - 1]], flags, packed)


def pack_copies(
    seqs: array[int],
    tails: list[bytes],
    flags: bytes | None,
    metas: array[int] | None,
    nodes: list[bytes | None],
    tags: list[bytes | None],
    keys: list[bytes | None],
) -> Copies:
    """`flags` None: no record has anything but data, and the lists behind it do not count."""
    ends = array("I", accumulate(map(len, tails)))
    if flags is None:
        column_flags, columns = encode_columns(count=len(tails), ends=ends)
    else:
        column_flags, columns = encode_columns(
            count=len(tails), ends=ends, flags=flags, meta=metas, nodes=nodes, tags=tags, keys=keys
        )
    return Copies(seqs, b"".join(tails), column_flags, columns)


def encode_copies(copies: Copies) -> bytes:
    return cbor2.dumps([dump(copies.seqs), copies.column_flags, copies.columns, copies.tails])


def decode_copies(body: bytes) -> Copies:
    """Raises LinkError: only our own workers send this."""
    value = loads(body)
    if type(value) is not list or len(value) != 4:
        raise LinkError("copies are not an array of four")
    seqs, flags, columns, tails = value
    if not all(type(part) is bytes for part in (seqs, columns, tails)) or type(flags) is not int:
        raise LinkError("copies have a field of the wrong type")
    if len(seqs) % 8 or not seqs:
        raise LinkError("copies without seqs")
    copies = Copies(load_u64(seqs), tails, flags, columns)
    try:
        copies.decode_columns().verify()
    except BadBytes as err:
        raise LinkError(f"copies whose columns are wrong: {err}") from err
    return copies
