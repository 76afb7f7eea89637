"""Frames as our own encoders write them (shared/wire.py), read where they stand and without a general decoder.

Nearly every frame is of that one shape: heads of fixed width, one after the other. Read by what must stand where, a
message takes a fraction of the instructions that cbor2 needs to build its lists and we to look through them, and its
body is copied once instead of three times. From the first message on that looks different in any byte, a frame is left
to `shared.wire`, which takes all CBOR, and says what is wrong with what is none.
"""

from __future__ import annotations

from typing import Final

from librt.strings import read_f64_be, read_i16_be, read_i32_be, read_i64_be

from shared import wire
from shared.wire import Answer, Request, ServerMessage, Stats, Timings

_LENGTH_BYTES: Final = 5  # mark and u32
_NUMBER_BYTES: Final = 9  # mark and u64, or double
_REQUEST_HEAD_BYTES: Final = 14
_ANSWER_HEAD_BYTES: Final = 18  # with that of its body
_STATS_BYTES: Final = 21
_EXTENT_BYTES: Final = 28

_ARRAY: Final = 0x9A
_BYTES: Final = 0x5A
_NUMBER: Final = 0x1B
_NULL: Final = 0xF6
_TRUE: Final = 0xF5


class _NotPlain(Exception):
    """Somebody else shall look at it."""


def decode_requests(data: bytes, start: int, end: int) -> list[Request]:
    """Of the frame whose payload is `data[start:end]`."""
    found: list[Request] = []
    count, at = 0, start
    try:
        count = _length(data, start, end, _ARRAY)
        at += _LENGTH_BYTES
        while len(found) < count:
            at = _read_request(data, at, end, found)
    except (_NotPlain, IndexError, UnicodeDecodeError):
        return found + wire.decode_requests(_rest(data, at, end, count - len(found)))
    return found


def decode_answers(data: bytes, start: int, end: int) -> list[ServerMessage]:
    """Of the frame whose payload is `data[start:end]`."""
    found: list[ServerMessage] = []
    told: Timings | None = None
    count, at = 0, start
    try:
        count = _length(data, start, end, _ARRAY)
        at += _LENGTH_BYTES
        while len(found) < count:
            if data[at] == 0x84 and data[at + 1] == 0:
                found.append(_stats(data, at, end))
                at += _STATS_BYTES
                continue
            answer, at = _read_answer(data, at, end, told)
            if answer.timings is not None:
                told = answer.timings
            found.append(answer)
    except (_NotPlain, IndexError, UnicodeDecodeError):
        return found + wire.decode_answers(_rest(data, at, end, count - len(found)), told)
    return found


def _rest(data: bytes, at: int, end: int, count: int) -> bytes:
    """A payload of the messages from `at` on; with no count it is the whole one, whose head is not plain itself."""
    if not count:
        return data[at:end]
    return bytes((_ARRAY,)) + count.to_bytes(4, "big") + data[at:end]


def _read_request(data: bytes, at: int, end: int, found: list[Request]) -> int:
    """Adds the one at this place. Returns where the next one is."""
    name_at = at + _REQUEST_HEAD_BYTES
    if name_at > end or data[at] != 0x85 or data[at + 10] != 0x18 or data[at + 12] != 0x78:
        raise _NotPlain
    id_ = _number(data, at + 1)
    body_head = name_at + data[at + 13]
    body_at = body_head + _LENGTH_BYTES
    after = body_at + _length(data, body_head, end, _BYTES)
    if id_ < 1 or after >= end or data[after] != _NULL:
        raise _NotPlain
    found.append(Request(id_, data[at + 11], data[name_at:body_head].decode(), data[body_at:after]))
    return after + 1


def _read_answer(data: bytes, at: int, end: int, told: Timings | None) -> tuple[Answer, int]:
    """The one at this place, and where the next message is. `told`: the timings that came last."""
    lead = data[at]
    body_at = at + _ANSWER_HEAD_BYTES
    if body_at > end or data[at + 10] != 0x19 or (lead != 0x84 and lead != 0x86):
        raise _NotPlain
    id_ = _number(data, at + 1)
    status: int = read_i16_be(data, at + 11)
    at = body_at + _length(data, body_at - _LENGTH_BYTES, end, _BYTES)
    if id_ < 1 or not 200 <= status <= 599 or at >= end:
        raise _NotPlain
    answer = Answer(id_, status, data[body_at:at])
    kind = data[at]
    at += 1
    if kind == _TRUE and told is not None:
        answer.timings = told
    elif kind == 0xB8:
        answer.timings, at = _timings(data, at, end)
    elif kind != _NULL:
        raise _NotPlain
    if lead == 0x86:
        answer.extents, at = _extents(data, at, end)
        tail_at = at + _LENGTH_BYTES
        at = tail_at + _length(data, at, end, _BYTES)
        answer.tail = data[tail_at:at]
    if at > end:
        raise _NotPlain
    return answer, at


def _length(data: bytes, at: int, end: int, mark: int) -> int:
    """How many items, or bytes, follow."""
    if at + _LENGTH_BYTES > end or data[at] != mark:
        raise _NotPlain
    length: int = read_i32_be(data, at + 1)
    if not 0 <= length <= end:
        raise _NotPlain
    return length


def _number(data: bytes, at: int) -> int:
    """Those beyond the signed ones are rare enough to be somebody else's."""
    number: int = read_i64_be(data, at + 1)
    if data[at] != _NUMBER or number < 0:
        raise _NotPlain
    return number


def _stats(data: bytes, at: int, end: int) -> Stats:
    if at + _STATS_BYTES > end or data[at + 2] != 3:
        raise _NotPlain
    return Stats(_number(data, at + 3), _number(data, at + 3 + _NUMBER_BYTES))


def _timings(data: bytes, at: int, end: int) -> tuple[Timings, int]:
    timings: dict[str, float] = {}
    count = data[at]
    at += 1
    for _ in range(count):
        name_at = at + 2
        at = name_at + data[name_at - 1]
        if at + _NUMBER_BYTES > end or data[name_at - 2] != 0x78 or data[at] != 0xFB:
            raise _NotPlain
        timings[data[name_at:at].decode()] = read_f64_be(data, at + 1)
        at += _NUMBER_BYTES
    return timings, at


def _extents(data: bytes, at: int, end: int) -> tuple[list[tuple[int, int, int]], int]:
    extents: list[tuple[int, int, int]] = []
    count = _length(data, at, end, _ARRAY)
    at += _LENGTH_BYTES
    for _ in range(count):
        if at + _EXTENT_BYTES > end or data[at] != 0x83:
            raise _NotPlain
        offset_at = at + 1 + _NUMBER_BYTES
        length_at = offset_at + _NUMBER_BYTES
        extents.append((_number(data, at + 1), _number(data, offset_at), _number(data, length_at)))
        at += _EXTENT_BYTES
    return extents, at
