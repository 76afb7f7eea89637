"""Log files and append frames. Layout: docs/disk-format.md §2 to §3.2.

A body is handed over in parts, and build_frame copies it once. The hot path builds body and frame together
(shared/append_frame.py).
"""

from struct import Struct
from typing import Final, NamedTuple

import msgspec

from shared.cbor_body import U64_MAX, as_list, as_text, as_uint, dump_map, list_of, load_map, without_none
from shared.columns import COLUMNS_MASK, Columns
from shared.file_header import WAL_MAGIC, FileHeader, decode_file_header, encode_file_header
from shared.format_errors import BadBytes
from shared.frame import FRAME_HEADER_BYTES, Frame, Kind

FLAG_EXTRA: Final = 64
APPEND_HEADER_BYTES: Final = 24
JSON_OFFSET: Final = FRAME_HEADER_BYTES + APPEND_HEADER_BYTES
"""The JSON part of every append frame starts here, counted from the frame's start."""
LSN_OFFSET_BITS: Final = 32
LSN_OFFSET_MASK: Final = (1 << LSN_OFFSET_BITS) - 1
WAL_MAX_FILE_BYTES = 1 << LSN_OFFSET_BITS

APPEND_HEADER_FORMAT = "QIIII"
_APPEND = Struct(f"<{APPEND_HEADER_FORMAT}")
_pack_append = _APPEND.pack
_unpack_append = _APPEND.unpack_from
_NOT_APPEND_FLAGS = ~(COLUMNS_MASK | FLAG_EXTRA)
_U32 = Struct("<I")
_COMMA = ord(",")


class RouterMark(NamedTuple):
    """How far a router has come at its destination, stored with the copies it made."""

    router: str
    epoch: int
    source_seq: int


class JobMark(NamedTuple):
    """What the writer of a job asked for; of the record at this place in the batch."""

    place: int
    deliver_at_ms: int
    priority: int
    group: str | None


class MoveMark(NamedTuple):
    """The record at this place came from another topic; `identity` says which record it was there."""

    place: int
    identity: str


class AppendExtra(NamedTuple):
    idem: str | None = None
    router: RouterMark | None = None
    jobs: tuple[JobMark, ...] = ()
    moved: tuple[MoveMark, ...] = ()


NO_EXTRA = AppendExtra()


class AppendView(msgspec.Struct):
    """An append frame taken apart. Not frozen only because replay makes millions: that triples the cost."""

    first_seq: int
    count: int
    reserve: int
    json: memoryview
    column_flags: int
    columns: memoryview
    extra: AppendExtra
    json_offset: int = JSON_OFFSET

    @property
    def last_seq(self) -> int:
        return self.first_seq + self.count - 1

    def decode_columns(self) -> Columns:
        return Columns(self.column_flags, self.count, len(self.json), self.columns)


def lsn_of(file_number: int, offset: int) -> int:
    return file_number << LSN_OFFSET_BITS | offset


def split_lsn(lsn: int) -> tuple[int, int]:
    """(file number, offset)"""
    return lsn >> LSN_OFFSET_BITS, lsn & LSN_OFFSET_MASK


def encode_wal_header(header: FileHeader) -> bytes:
    return encode_file_header(WAL_MAGIC, header)


def decode_wal_header(buffer: bytes | memoryview) -> FileHeader:
    return decode_file_header(WAL_MAGIC, buffer)


def encode_extra(extra: AppendExtra) -> bytes:
    """What goes behind the columns; a frame that has it carries FLAG_EXTRA. Empty if there is nothing to say."""
    if extra == NO_EXTRA:
        return b""
    cbor = dump_map(
        without_none(
            idem=extra.idem,
            router=None if extra.router is None else list(extra.router),
            jobs=[list(mark) for mark in extra.jobs] or None,
            moved=[list(mark) for mark in extra.moved] or None,
        )
    )
    return cbor + _U32.pack(len(cbor))


def build_append_body(
    first_seq: int, count: int, json: bytes, reserve: int, columns: bytes = b"", extra: bytes = b""
) -> list[bytes]:
    """The parts of an append frame's body. `extra` is the outcome of encode_extra or empty."""
    header = _pack_append(first_seq, count, len(json), reserve, len(columns) + len(extra))
    return [header, json, columns, extra]


def decode_append_header(flags: int, body: memoryview) -> tuple[int, int, int, int]:
    """(first seq, count, bytes of JSON, reserve) of an intact APPEND frame; raises BadBytes if it contradicts itself.

    All that replay needs of a frame without FLAG_EXTRA: it makes nothing but these numbers.
    """
    if flags & _NOT_APPEND_FLAGS:
        raise BadBytes(f"append frame with flags {flags:#x}")
    length = len(body)
    if length < APPEND_HEADER_BYTES:
        raise BadBytes("append frame without header")
    first_seq, count, json_len, reserve, columns_len = _unpack_append(body)
    json_end = APPEND_HEADER_BYTES + json_len
    if json_end + columns_len != length:
        raise BadBytes("lengths of an append frame", 12)
    if count < 1 or first_seq + count - 1 > U64_MAX:
        raise BadBytes(f"append frame of {count} records from seq {first_seq}")
    if json_len == 0 or body[json_end - 1] != _COMMA:
        raise BadBytes("the JSON part does not end with a comma", json_end)
    return first_seq, count, json_len, reserve


def decode_append(frame: Frame) -> AppendView:
    """The content of an intact APPEND frame; raises BadBytes if it contradicts itself."""
    body, flags = frame.body, frame.flags
    if frame.kind != Kind.APPEND:
        raise BadBytes(f"append frame with kind {frame.kind}")
    first_seq, count, json_len, reserve = decode_append_header(flags, body)
    json_end = APPEND_HEADER_BYTES + json_len
    columns, extra = body[json_end:], NO_EXTRA
    if flags & FLAG_EXTRA:
        columns, extra = _split_extra(columns)
    json = body[APPEND_HEADER_BYTES:json_end]
    return AppendView(first_seq, count, reserve, json, flags & COLUMNS_MASK, columns, extra)


def _split_extra(columns: memoryview) -> tuple[memoryview, AppendExtra]:
    map_end = len(columns) - _U32.size
    if map_end < 0:
        raise BadBytes("no room for the extra map")
    (length,) = _U32.unpack_from(columns, map_end)
    if length > map_end:
        raise BadBytes("the extra map is longer than its part", map_end)
    fields = load_map(columns[map_end - length : map_end])
    extra = AppendExtra(
        fields.maybe("idem", as_text),
        fields.maybe("router", _as_router_mark),
        fields.maybe("jobs", lambda value: list_of(value, _as_job_mark)) or (),
        fields.maybe("moved", lambda value: list_of(value, _as_move_mark)) or (),
    )
    fields.done()
    return columns[: map_end - length], extra


def _as_job_mark(value: object) -> JobMark:
    place, deliver_at_ms, priority, group = as_list(value, 4)
    if type(priority) is not int:
        raise BadBytes("a priority is a whole number")
    return JobMark(
        as_uint(place), as_uint(deliver_at_ms), priority, None if group is None else as_text(group)
    )


def _as_move_mark(value: object) -> MoveMark:
    place, identity = as_list(value, 2)
    return MoveMark(as_uint(place), as_text(identity))


def _as_router_mark(value: object) -> RouterMark:
    router, epoch, source_seq = as_list(value, 3)
    return RouterMark(as_text(router), as_uint(epoch), as_uint(source_seq))
