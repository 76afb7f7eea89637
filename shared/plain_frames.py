"""Frames as our own encoders write them (shared/wire.py), read without a general decoder.

Nearly every frame is of that one shape: heads of fixed width, one after the other. Read by what must stand where, a
message takes a third of the instructions that cbor2 needs to build its lists and we to look through them, and a lone
request that finds everything cold has three hundred lines of code less to load, on both sides. Whatever looks different
in any byte is left to `shared.wire`, which takes all CBOR, and says what is wrong with what is none.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError
from typing import Final

from shared import wire
from shared.wire import STATS_MARK, Answer, Request, ServerMessage, Stats, Timings

# As in shared/wire.py, with the marks in front of two neighbours read as one number.
_request_head: Final = Struct(">HQHH").unpack_from  # array of 5, u64 | id | u8, op | u8 text, length
_answer_head: Final = Struct(">HQBHBI").unpack_from  # array, u64 | id | u16 | status | u32 bytes | length
_stats: Final = Struct(">IQBQ").unpack_from  # array of 4, notice, kind, u64 | topics | u64 | bytes
_extent: Final = Struct(">HQBQBQ").unpack_from  # array of 3, u64 | file | u64 | offset | u64 | length
_length: Final = Struct(">BI").unpack_from  # an array, or bytes, of u32
_double: Final = Struct(">Bd").unpack_from

_REQUEST_HEAD_BYTES: Final = 14
_ANSWER_HEAD_BYTES: Final = 18
_STATS_BYTES: Final = 21
_EXTENT_BYTES: Final = 28
_LENGTH_BYTES: Final = 5
_DOUBLE_BYTES: Final = 9

_NULL: Final = 0xF6
_TRUE: Final = 0xF5
_ARRAY: Final = 0x9A
_BYTES: Final = 0x5A


# What comes out of them, told to the compiler: it then keeps numbers, where it would work on objects.
_FourNumbers = tuple[int, int, int, int]
_SixNumbers = tuple[int, int, int, int, int, int]


class _NotPlain(Exception):
    """Somebody else shall look at it."""


def decode_requests(payload: bytes) -> list[Request]:
    try:
        return _requests(payload)
    except (_NotPlain, StructError, IndexError, UnicodeDecodeError):
        return wire.decode_requests(payload)


def decode_answers(payload: bytes) -> list[ServerMessage]:
    try:
        return _answers(payload)
    except (_NotPlain, StructError, IndexError, UnicodeDecodeError):
        return wire.decode_answers(payload)


def _requests(payload: bytes) -> list[Request]:
    found: list[Request] = []
    size, pos = len(payload), _LENGTH_BYTES
    for _ in range(_count(payload, 0, _ARRAY)):
        head: _FourNumbers = _request_head(payload, pos)
        mark, id_, op, text = head
        name_at = pos + _REQUEST_HEAD_BYTES
        body_head_at = name_at + (text & 0xFF)
        body_at = body_head_at + _LENGTH_BYTES
        pos = body_at + _count(payload, body_head_at, _BYTES)
        if mark != 0x851B or op >> 8 != 0x18 or text >> 8 != 0x78 or id_ < 1 or payload[pos] != _NULL:
            raise _NotPlain
        found.append(
            Request(id_, op & 0xFF, payload[name_at:body_head_at].decode(), payload[body_at:pos], None)
        )
        pos += 1
    if pos != size:
        raise _NotPlain
    return found


def _answers(payload: bytes) -> list[ServerMessage]:
    found: list[ServerMessage] = []
    told: Timings | None = None
    size, pos = len(payload), _LENGTH_BYTES
    for _ in range(_count(payload, 0, _ARRAY)):
        if payload[pos + 1] == 0:
            found.append(_read_stats(payload, pos))
            pos += _STATS_BYTES
            continue
        head: _SixNumbers = _answer_head(payload, pos)
        mark, id_, status_mark, status, body_mark, length = head
        if status_mark != 0x19 or body_mark != _BYTES or id_ < 1 or not 200 <= status <= 599:
            raise _NotPlain
        body_at = pos + _ANSWER_HEAD_BYTES
        pos = body_at + length
        answer = Answer(id_, status, payload[body_at:pos])
        kind = payload[pos]
        pos += 1
        if kind == _TRUE and told is not None:
            answer.timings = told
        elif kind == 0xB8:
            told, pos = _read_timings(payload, pos)
            answer.timings = told
        elif kind != _NULL:
            raise _NotPlain
        if mark == 0x861B:
            answer.extents, pos = _read_extents(payload, pos)
            tail_at = pos + _LENGTH_BYTES
            pos = tail_at + _count(payload, pos, _BYTES)
            answer.tail = payload[tail_at:pos]
        elif mark != 0x841B:
            raise _NotPlain
        found.append(answer)
    if pos != size:
        raise _NotPlain
    return found


def _count(payload: bytes, pos: int, wanted: int) -> int:
    """How many items, or bytes, follow."""
    head: tuple[int, int] = _length(payload, pos)
    if head[0] != wanted:
        raise _NotPlain
    return head[1]


def _read_stats(payload: bytes, pos: int) -> Stats:
    numbers: _FourNumbers = _stats(payload, pos)
    mark, topics, middle, total = numbers
    if mark != STATS_MARK or middle != 0x1B:
        raise _NotPlain
    return Stats(topics, total)


def _read_timings(payload: bytes, pos: int) -> tuple[Timings, int]:
    timings: dict[str, float] = {}
    count = payload[pos]
    pos += 1
    for _ in range(count):
        if payload[pos] != 0x78:
            raise _NotPlain
        name_at = pos + 2
        pos = name_at + payload[pos + 1]
        number: tuple[int, float] = _double(payload, pos)
        if number[0] != 0xFB:
            raise _NotPlain
        timings[payload[name_at:pos].decode()] = number[1]
        pos += _DOUBLE_BYTES
    return timings, pos


def _read_extents(payload: bytes, pos: int) -> tuple[list[tuple[int, int, int]], int]:
    extents: list[tuple[int, int, int]] = []
    count = _count(payload, pos, _ARRAY)
    pos += _LENGTH_BYTES
    for _ in range(count):
        numbers: _SixNumbers = _extent(payload, pos)
        mark, file, offset_mark, offset, length_mark, length = numbers
        if mark != 0x831B or offset_mark != 0x1B or length_mark != 0x1B:
            raise _NotPlain
        extents.append((file, offset, length))
        pos += _EXTENT_BYTES
    return extents, pos
