"""The columns that describe the records of a log frame or a block. Layout: docs/disk-format.md §3.3.

Decoding looks at lengths only; a column's content is checked when it is first asked for, so a plain
read of a batch costs nothing per record. Every contradiction raises BadBytes.
"""

from array import array
from collections.abc import Sequence
from itertools import accumulate, chain, compress
from operator import or_
from struct import Struct

from shared.format_errors import BadBytes
from shared.int_arrays import dump, is_ascending, is_strictly_ascending, load_u32

COLUMN_ENDS = 1
COLUMN_FLAGS = 2
COLUMN_META = 4
COLUMN_NODE = 8
COLUMN_TAG = 16
COLUMN_KEY = 32
COLUMNS_MASK = 63

HAS_NODE = 1
HAS_TAG = 2
HAS_KEY = 4
HAS_META = 8
DATA_NULL = 16
_RECORD_FLAGS_MASK = 31

FIELDS = ("node", "tag", "key")
FIELD_COLUMN = {"node": COLUMN_NODE, "tag": COLUMN_TAG, "key": COLUMN_KEY}
FIELD_FLAG = {"node": HAS_NODE, "tag": HAS_TAG, "key": HAS_KEY}
_COLUMN_FOR_FLAG = (
    (COLUMN_META, HAS_META, "meta"),
    *((FIELD_COLUMN[field], FIELD_FLAG[field], field) for field in FIELDS),
)

_SELECTS = {field: bytes(flags & bit != 0 for flags in range(256)) for field, bit in FIELD_FLAG.items()}

_unpack_u32 = Struct("<I").unpack_from


def encode_columns(
    *,
    count: int,
    ends: "array[int] | None" = None,
    flags: bytes | None = None,
    meta: "array[int] | None" = None,
    nodes: Sequence[bytes | None] | None = None,
    tags: Sequence[bytes | None] | None = None,
    keys: Sequence[bytes | None] | None = None,
) -> tuple[int, bytes]:
    """(column flags, bytes). Columns that say nothing are left out. `flags` must agree with the values."""
    present = 0
    parts: list[bytes] = []
    if count > 1:
        if ends is None:
            raise ValueError("several records need their ends")
        present |= COLUMN_ENDS
        parts.append(dump(ends))
    if flags is None or flags.count(0) == count:
        flags = bytes(count)
    else:
        present |= COLUMN_FLAGS
        parts.append(flags)
    if meta is not None and any(meta):
        present |= COLUMN_META
        parts.append(dump(meta))
    for field, values in (("node", nodes), ("tag", tags), ("key", keys)):
        if values is not None and _encode_values(field, values, flags, parts):
            present |= FIELD_COLUMN[field]
    return present, b"".join(parts)


def _encode_values(field: str, values: Sequence[bytes | None], flags: bytes, parts: list[bytes]) -> bool:
    bit = FIELD_FLAG[field]
    if [value is not None for value in values] != [flag & bit != 0 for flag in flags]:
        raise ValueError(f"the record flags do not agree with the {field} values")
    kept = [value or b"" for value in values]
    if not any(flag & bit for flag in flags):
        return False
    parts.append(dump(array("I", accumulate(map(len, kept)))))
    parts.extend(kept)
    return True


class Columns:
    """The decoded columns of `count` records whose JSON part has `json_len` bytes."""

    __slots__ = ("_at", "_buffer", "_ends", "_flags", "_meta", "_parts", "column_flags", "count", "json_len")

    def __init__(self, column_flags: int, count: int, json_len: int, buffer: memoryview) -> None:
        self.column_flags = column_flags
        self.count = count
        self.json_len = json_len
        self._buffer = buffer
        self._at: dict[int, tuple[int, int]] = {}
        self._ends: array[int] | None = None
        self._flags: bytes | None = None
        self._meta: array[int] | None = None
        self._parts: dict[str, tuple[array[int], memoryview]] | None = None
        self._lay_out()

    @classmethod
    def of_ends(cls, ends: "array[int]", json_len: int) -> "Columns":
        """Of records that have nothing but data. The caller has seen that `ends` rise strictly."""
        if not ends or ends[0] == 0 or ends[-1] != json_len:
            raise BadBytes("record ends do not divide the JSON part")
        several = len(ends) > 1
        columns = cls(COLUMN_ENDS * several, len(ends), json_len, memoryview(dump(ends) if several else b""))
        columns._ends = ends
        return columns

    def _lay_out(self) -> None:
        """Find each column; O(1) in the number of records."""
        present, count, size = self.column_flags, self.count, len(self._buffer)
        if count < 1 or present & ~COLUMNS_MASK:
            raise BadBytes(f"column flags {present:#x} for {count} records")
        if bool(present & COLUMN_ENDS) != (count > 1):
            raise BadBytes(f"record ends present or absent against the rule for {count} records")
        at = 0
        for column, width in ((COLUMN_ENDS, 4), (COLUMN_FLAGS, 1), (COLUMN_META, 4)):
            if present & column:
                self._at[column] = (at, at + width * count)
                at += width * count
        for column in FIELD_COLUMN.values():
            if present & column:
                if at + 4 * count > size:
                    raise BadBytes("columns too short", size)
                values_at = at + 4 * count
                (values_len,) = _unpack_u32(self._buffer, values_at - 4)
                self._at[column] = (at, values_at + values_len)
                at = values_at + values_len
        if at != size:
            raise BadBytes(f"columns take {at} bytes of {size}", min(at, size))
        if present & ~(COLUMN_ENDS | COLUMN_FLAGS) and not present & COLUMN_FLAGS:
            raise BadBytes("values without record flags")

    @property
    def ends(self) -> "array[int]":
        """End of each record in the JSON part. Do not change it."""
        if self._ends is None:
            if self.count == 1:
                ends = array("I", (self.json_len,))
            else:
                at, end = self._at[COLUMN_ENDS]
                ends = load_u32(self._buffer[at:end])
            if ends[-1] != self.json_len or ends[0] == 0 or not is_strictly_ascending(ends):
                raise BadBytes("record ends do not divide the JSON part")
            self._ends = ends
        return self._ends

    @property
    def flags(self) -> bytes:
        if self._flags is None:
            self._flags = self._checked_flags()
        return self._flags

    def _checked_flags(self) -> bytes:
        if not self.column_flags & COLUMN_FLAGS:
            return bytes(self.count)
        at, end = self._at[COLUMN_FLAGS]
        flags = bytes(self._buffer[at:end])
        seen = flags[0]
        if flags.count(seen) != len(flags):  # records of a topic are mostly alike
            *_, seen = accumulate(set(flags), or_)
        if not seen or seen & ~_RECORD_FLAGS_MASK:
            raise BadBytes(f"record flags {seen:#x}", at)
        for column, bit, name in _COLUMN_FOR_FLAG:
            if bool(seen & bit) != bool(self.column_flags & column):
                raise BadBytes(f"record flags and columns disagree on {name}", at)
        return flags

    @property
    def meta(self) -> "array[int] | None":
        """Bytes of `,"meta":…` per record, or None if no record has any. Do not change it."""
        if self._meta is None and self.column_flags & COLUMN_META:
            at, end = self._at[COLUMN_META]
            meta = load_u32(self._buffer[at:end])
            start = 0
            for length, flag, record_end in zip(meta, self.flags, self.ends, strict=True):
                if bool(length) != bool(flag & HAS_META) or length > record_end - start:
                    raise BadBytes("meta lengths do not fit the records", at)
                start = record_end
            self._meta = meta
        return self._meta

    def node(self, index: int) -> bytes | None:
        return self._value("node", index)

    def tag(self, index: int) -> bytes | None:
        return self._value("tag", index)

    def key(self, index: int) -> bytes | None:
        return self._value("key", index)

    def _value(self, field: str, index: int) -> bytes | None:
        """One value, without decoding the rest of its column."""
        if not 0 <= index < self.count:
            raise IndexError(index)
        if not self.column_flags & FIELD_COLUMN[field] or not self.flags[index] & FIELD_FLAG[field]:
            return None
        at, column_end = self._at[FIELD_COLUMN[field]]
        values_at = at + 4 * self.count
        (end,) = _unpack_u32(self._buffer, at + 4 * index)
        (start,) = _unpack_u32(self._buffer, at + 4 * index - 4) if index else (0,)
        if not start <= end <= column_end - values_at:
            raise BadBytes(f"{field} offsets", at)
        return bytes(self._buffer[values_at + start : values_at + end])

    def field_parts(self, field: str) -> "tuple[array[int], memoryview] | None":
        """(end offsets, bytes of all values) of a column, or None where no record has a value."""
        if not self.column_flags & FIELD_COLUMN[field]:
            return None
        # Kept: compaction cuts many short runs out of one block, and asks once per run.
        if self._parts is None:
            self._parts = {}
        found = self._parts.get(field)
        if found is None:
            at, end = self._at[FIELD_COLUMN[field]]
            values_at = at + 4 * self.count
            ends = load_u32(self._buffer[at:values_at])
            if not is_ascending(ends):
                raise BadBytes(f"{field} offsets", at)
            found = self._parts[field] = ends, self._buffer[values_at:end]
        return found

    def values(self, field: str) -> list[bytes | None]:
        """Every record's value of "node", "tag" or "key"."""
        parts = self.field_parts(field)
        if parts is None:
            return [None] * self.count
        ends, blob = parts[0], bytes(parts[1])
        bit = FIELD_FLAG[field]
        if self.flags[0] & bit and self.flags.count(self.flags[0]) == self.count:
            return [blob[low:high] for low, high in zip(chain((0,), ends), ends, strict=False)]
        values: list[bytes | None] = []
        start = 0
        for end, flag in zip(ends, self.flags, strict=True):
            if flag & bit:
                values.append(blob[start:end])
            elif end == start:
                values.append(None)
            else:
                raise BadBytes(f"an absent {field} has bytes")
            start = end
        return values

    def distinct(self, field: str) -> set[bytes]:
        """The values of "node", "tag" or "key" that occur; without Python work per record."""
        parts = self.field_parts(field)
        if parts is None:
            return set()
        ends, blob = parts[0], bytes(parts[1])
        values = map(blob.__getitem__, map(slice, chain((0,), ends), ends))
        found = list(compress(values, self.flags.translate(_SELECTS[field])))
        if sum(map(len, found)) != len(blob):
            raise BadBytes(f"an absent {field} has bytes")
        return set(found)

    def verify(self) -> None:
        """Check everything that lazy decoding leaves for later."""
        _ = self.ends, self.flags, self.meta
        for field in FIELDS:
            self.values(field)
