"""Messages between the processes: docs/wire-protocol.md as types, and the only code that knows their bytes.

Encoders write a whole turn's frame, length prefix included, with CBOR heads of fixed width: a fraction of the time of
`cbor2.dumps` on nested lists, and still plain CBOR to any reader. Decoders validate
every message and raise `LinkError` on anything else, whatever the bytes are; the caller then drops that link
and nothing more. The hello is in shared/session.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, TypeVar, cast

import cbor2
from librt.strings import BytesWriter, write_f64_be, write_i16_be, write_i32_be

from shared.errors import Bug
from shared.limits import LINK_MAX_FRAME_BYTES
from shared.packing import put_u64_be


class Op:
    """What a request asks for. Plain numbers: they are looked up once per request."""

    APPEND: Final = 1
    READ: Final = 2
    STATE: Final = 3
    LIST: Final = 4
    PUT_TOPIC: Final = 5
    DELETE_TOPIC: Final = 6
    DELETE_RECORDS: Final = 7
    PING: Final = 8
    CANCEL: Final = 9
    METRICS: Final = 10
    SUBSCRIBE: Final = 20
    UNSUBSCRIBE: Final = 21
    SUBSCRIBE_PREFIX: Final = 22
    UNSUBSCRIBE_PREFIX: Final = 23
    CLAIM: Final = 30
    ACK: Final = 31
    NACK: Final = 32
    EXTEND: Final = 33
    LEASES: Final = 34
    REDRIVE: Final = 35
    APPEND_MOVED: Final = 36
    ROUTERS_FENCE: Final = 40
    ROUTER_PUT: Final = 41
    ROUTER_DEST: Final = 42
    ROUTER_GET: Final = 43
    ROUTER_LIST: Final = 44
    ROUTER_DELETE: Final = 45
    FORWARD: Final = 46
    ROUTE_FORGET: Final = 47
    INSPECT: Final = 50
    BACKUP_HOLD: Final = 64
    BACKUP_RELEASE: Final = 65


STATUS_CANCELLED: Final = 499

FRAME_HEAD_BYTES: Final = 4
MAX_FDS_PER_FRAME: Final = 64  # far below the kernel's 253 per message, so one control buffer always fits

_NOTICE_ID: Final = 0
_FILE_OPENED, _FILE_RETIRED, _DRAINING = 1, 2, 4
_STATS: Final = 3
_ADVANCED, _GONE, _APPEARED, _SYNCED = 5, 6, 7, 8


class LinkError(Bug):
    """The peer broke the protocol: the link is useless from here on. Never shown to a client."""

    code = "link_error"


_M = TypeVar("_M")

Options = Mapping[str, object]
Timings = dict[str, float]  # of a turn, shared by its answers: nobody changes it


class Request:
    """With `Answer` the one message that is made for every call: a plain class, because a NamedTuple is put together
    by interpreted code however the module is compiled."""

    __slots__ = ("body", "id", "op", "options", "topic")

    def __init__(self, id: int, op: int, topic: str, body: bytes, options: Options | None = None) -> None:
        self.id = id
        self.op = op
        self.topic = topic
        self.body = body
        self.options = options

    def _fields(self) -> tuple[object, ...]:
        return self.id, self.op, self.topic, self.body, self.options

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Request) and self._fields() == other._fields()

    def __repr__(self) -> str:
        return f"Request{self._fields()!r}"


class FileExtent(NamedTuple):
    """For who wants to name its parts; plain tuples will do, and are quicker to make."""

    file: int
    offset: int
    length: int


class Answer:
    __slots__ = ("body", "extents", "id", "status", "tail", "timings")

    def __init__(
        self,
        id: int,
        status: int,
        body: bytes,
        timings: Timings | None = None,
        extents: Sequence[tuple[int, int, int]] | None = None,  # file, offset, length: see `FileExtent`
        tail: bytes | None = None,
    ) -> None:
        self.id = id
        self.status = status
        self.body = body
        self.timings = timings
        self.extents = extents
        self.tail = tail

    def _fields(self) -> tuple[object, ...]:
        return self.id, self.status, self.body, self.timings, self.extents, self.tail

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Answer) and self._fields() == other._fields()

    def __repr__(self) -> str:
        return f"Answer{self._fields()!r}"


class FileOpened(NamedTuple):
    """The next descriptor that came with the bytes of this link is this file."""

    file: int


class FileRetired(NamedTuple):
    file: int


class Stats:
    """In nearly every frame of a shard that is written to: a plain class, like `Answer`."""

    __slots__ = ("bytes", "topics")
    __match_args__ = ("topics", "bytes")

    def __init__(self, topics: int, bytes: int) -> None:
        self.topics = topics
        self.bytes = bytes

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stats) and (self.topics, self.bytes) == (other.topics, other.bytes)

    def __repr__(self) -> str:
        return f"Stats({self.topics}, {self.bytes})"


class Draining(NamedTuple):
    pass


class TopicAdvanced(NamedTuple):
    """Live records with from_seq < seq ≤ to_seq; `records` None: read them."""

    topic: str
    epoch: int
    from_seq: int
    to_seq: int
    head: int
    records_count: int
    records: bytes | None


class TopicGone(NamedTuple):
    topic: str
    epoch: int
    head: int


class TopicAppeared(NamedTuple):
    topic: str
    epoch: int
    head: int
    earliest: int


class TopicSynced(NamedTuple):
    topic: str
    head: int


TopicNotice = TopicAdvanced | TopicGone | TopicAppeared | TopicSynced
Notice = FileOpened | FileRetired | Stats | Draining | TopicNotice
ServerMessage = Answer | Notice


# --- requests ---------------------------------------------------------------------------------------------

# Heads of fixed width are not the shortest CBOR, but need no branch on the value.
_ARRAY_HEAD_BYTES: Final = 5
_COPIED_BELOW_BYTES: Final = 4096  # of a body: copying it once more is cheaper than a part of its own


def encode_requests(requests: Sequence[Request]) -> bytes:
    """One frame with these requests; more than one only if they would not fit.

    An `options` object that several requests in a row share is encoded once.
    """
    parts: list[bytes] = [b""]
    writer = BytesWriter()
    known_options: Options | None = None
    known_bytes = b"\xf6"
    for request in requests:
        options, body = request.options, request.body
        if options is not known_options:
            known_options = options
            known_bytes = b"\xf6" if options is None else cbor2.dumps(options)
        name = request.topic.encode()
        writer.append(0x85)  # array of 5
        _put_u64(writer, request.id)
        writer.append(0x18)  # u8
        writer.append(request.op)
        writer.append(0x78)  # text, length as u8
        writer.append(len(name))
        writer.write(name)
        writer = _put_body(writer, parts, body)
        writer.write(known_bytes)
    parts.append(writer.getvalue())
    frame_bytes = _finish_frame(parts, len(requests))
    if frame_bytes is None:
        first, second = _halves(requests)
        return encode_requests(first) + encode_requests(second)
    return frame_bytes


def _put_u64(writer: BytesWriter, number: int) -> None:
    writer.append(0x1B)
    put_u64_be(writer, number)


def _put_length(writer: BytesWriter, kind: int, length: int) -> None:
    """Of an array (0x9A) or a byte string (0x5A), as u32."""
    writer.append(kind)
    write_i32_be(writer, length)


def _put_body(writer: BytesWriter, parts: list[bytes], body: bytes) -> BytesWriter:
    """Returns where to go on: a large body is a part of its own, with another writer behind it."""
    _put_length(writer, 0x5A, len(body))
    if len(body) < _COPIED_BELOW_BYTES:
        writer.write(body)
        return writer
    parts.append(writer.getvalue())
    parts.append(body)
    return BytesWriter()


def _finish_frame(parts: list[bytes], messages: int) -> bytes | None:
    """Puts its head into the first part, which is empty yet. None: too large for one frame."""
    size = _ARRAY_HEAD_BYTES
    for part in parts:  # compiled, quicker than `sum` and `map`
        size += len(part)
    if size > LINK_MAX_FRAME_BYTES:
        return None
    head = BytesWriter()
    write_i32_be(head, size)
    _put_length(head, 0x9A, messages)
    parts[0] = head.getvalue()
    return b"".join(parts)


def decode_requests(payload: bytes) -> list[Request]:
    """From any CBOR; shared/plain_frames.py is quicker with what we encode."""
    return [_request(message) for message in _messages(payload)]


def _request(message: object) -> Request:
    if type(message) is not list or not 4 <= len(message) <= 5:
        raise LinkError("a request is an array of five")
    id_, op, topic, body = message[0], message[1], message[2], message[3]
    options = message[4] if len(message) == 5 else None
    if (
        type(id_) is not int
        or id_ < 1
        or type(op) is not int
        or type(topic) is not str
        or type(body) is not bytes
        or (options is not None and type(options) is not dict)
    ):
        raise LinkError("a request has a field of the wrong type")
    return Request(id_, op, topic, body, options)


# --- answers and notices ----------------------------------------------------------------------------------


def encode_answers(messages: Sequence[ServerMessage]) -> bytes:
    """One frame with these messages in order; more than one only if they would not fit.

    Answers of one turn often share one `timings` object: it travels with the first of them.
    """
    parts: list[bytes] = [b""]
    writer = BytesWriter()
    told: Timings | None = None
    for message in messages:
        if type(message) is Stats:
            _put_stats(writer, message)
            continue
        if type(message) is not Answer:
            writer.write(_encode_notice(message))
            continue
        body, timings, extents = message.body, message.timings, message.extents
        writer.append(0x84 if extents is None else 0x86)  # array
        _put_u64(writer, message.id)
        writer.append(0x19)  # u16
        write_i16_be(writer, message.status)
        writer = _put_body(writer, parts, body)
        if timings is None:
            writer.append(0xF6)  # null
        elif timings is told:
            writer.append(0xF5)  # true: the same as before
        else:
            told = timings
            _put_timings(writer, timings)
        if extents is not None:
            _put_extents(writer, extents)
            tail = message.tail or b""
            _put_length(writer, 0x5A, len(tail))
            writer.write(tail)
    parts.append(writer.getvalue())
    frame_bytes = _finish_frame(parts, len(messages))
    if frame_bytes is None:
        first, second = _halves(messages)
        return encode_answers(first) + encode_answers(second)
    return frame_bytes


def _put_timings(writer: BytesWriter, timings: Timings) -> None:
    """By hand, like the rest: every turn has one, and `cbor2.dumps` takes longer than all else in its frame."""
    writer.append(0xB8)  # map, of u8 entries
    writer.append(len(timings))
    for name, value in timings.items():
        text = name.encode()
        writer.append(0x78)  # text, length as u8
        writer.append(len(text))
        writer.write(text)
        writer.append(0xFB)  # double
        write_f64_be(writer, value)


def _put_extents(writer: BytesWriter, extents: Sequence[tuple[int, int, int]]) -> None:
    _put_length(writer, 0x9A, len(extents))
    for extent in extents:
        writer.append(0x83)  # array of 3
        _put_u64(writer, extent[0])
        _put_u64(writer, extent[1])
        _put_u64(writer, extent[2])


def _put_stats(writer: BytesWriter, stats: Stats) -> None:
    writer.append(0x84)  # array of 4
    writer.append(_NOTICE_ID)
    writer.append(_STATS)
    _put_u64(writer, stats.topics)
    _put_u64(writer, stats.bytes)


def _encode_notice(notice: ServerMessage) -> bytes:
    match notice:
        case FileOpened(file):
            return cbor2.dumps([_NOTICE_ID, _FILE_OPENED, file])
        case FileRetired(file):
            return cbor2.dumps([_NOTICE_ID, _FILE_RETIRED, file])
        case Draining():
            return cbor2.dumps([_NOTICE_ID, _DRAINING])
        case TopicAdvanced():
            return cbor2.dumps([_NOTICE_ID, _ADVANCED, *notice])
        case TopicGone():
            return cbor2.dumps([_NOTICE_ID, _GONE, *notice])
        case TopicAppeared():
            return cbor2.dumps([_NOTICE_ID, _APPEARED, *notice])
        case TopicSynced():
            return cbor2.dumps([_NOTICE_ID, _SYNCED, *notice])
        case _:
            raise AssertionError(f"{notice!r} is encoded elsewhere")


def decode_answers(payload: bytes, told: Timings | None = None) -> list[ServerMessage]:
    """Answers and notices in the order in which they were sent; notices of a later protocol are left out.

    `told`: the timings that came last, if this is the rest of a frame.
    """
    found: list[ServerMessage] = []
    for message in _messages(payload):
        if type(message) is not list or not message:
            raise LinkError("a message is an array")
        if message[0] == _NOTICE_ID:
            notice = _notice(message)
            if notice is not None:
                found.append(notice)
            continue
        answer = _answer(message, told)
        if answer.timings is not None:
            told = answer.timings
        found.append(answer)
    return found


def _answer(message: list[object], told: Timings | None) -> Answer:
    """`told`: the timings that came last in this frame."""
    count = len(message)
    if not 3 <= count <= 6:
        raise LinkError("an answer is an array of three to six")
    id_, status, body = message[0], message[1], message[2]
    if (
        type(id_) is not int
        or id_ < 1
        or type(status) is not int
        or not 200 <= status <= 599
        or type(body) is not bytes
    ):
        raise LinkError("an answer has a field of the wrong type")
    timings = message[3] if count > 3 else None
    if timings is True:
        if told is None:
            raise LinkError("an answer shares timings that nobody has told")
        timings = told
    elif timings is not None:
        _check_timings(timings)
    extents = message[4] if count > 4 else None
    tail = message[5] if count > 5 else None
    if tail is not None and type(tail) is not bytes:
        raise LinkError("the tail of an answer is not a byte string")
    return Answer(
        id_,
        status,
        body,
        cast("Timings | None", timings),
        None if extents is None else _extents(extents),
        tail,
    )


def _check_timings(timings: object) -> None:
    if type(timings) is not dict:
        raise LinkError("timings are not a map")
    for name, value in timings.items():
        if type(name) is not str or (type(value) is not float and type(value) is not int):
            raise LinkError("timings are not a map of names to numbers")


def _extents(value: object) -> list[tuple[int, int, int]]:
    if type(value) is not list:
        raise LinkError("extents are not an array")
    found = []
    for item in value:
        if type(item) is not list or len(item) != 3:
            raise LinkError("an extent is not three unsigned numbers")
        file, offset, length = item
        if not (_is_unsigned(file) and _is_unsigned(offset) and _is_unsigned(length)):
            raise LinkError("an extent is not three unsigned numbers")
        found.append((file, offset, length))
    return found


_NOTICE_FIELDS: Final = {_FILE_OPENED: 1, _FILE_RETIRED: 1, _STATS: 2, _DRAINING: 0}
_TOPIC_NOTICES: Final = {_ADVANCED: 5, _GONE: 2, _APPEARED: 3, _SYNCED: 1}  # numbers behind the topic's name


def _notice(message: list[object]) -> Notice | None:
    kind = message[1] if len(message) > 1 else None
    if type(kind) is not int:
        raise LinkError("a notice has no kind")
    if kind in _TOPIC_NOTICES:
        return _topic_notice(kind, message)
    if kind not in _NOTICE_FIELDS:
        return None
    numbers = message[2 : 2 + _NOTICE_FIELDS[kind]]
    if len(numbers) < _NOTICE_FIELDS[kind] or not all(_is_unsigned(number) for number in numbers):
        raise LinkError("a notice has a field of the wrong type")
    fields = cast("list[int]", numbers)
    if kind == _FILE_OPENED:
        return FileOpened(*fields)
    if kind == _FILE_RETIRED:
        return FileRetired(*fields)
    return Stats(*fields) if kind == _STATS else Draining()


def _topic_notice(kind: int, message: list[object]) -> TopicNotice:
    count = _TOPIC_NOTICES[kind]
    topic, numbers = (message[2] if len(message) > 2 else None), message[3 : 3 + count]
    if type(topic) is not str or len(numbers) < count or not all(_is_unsigned(number) for number in numbers):
        raise LinkError("a notice about a topic has a field of the wrong type")
    fields = cast("list[int]", numbers)
    if kind == _ADVANCED:
        records = message[8] if len(message) > 8 else None
        if records is not None and type(records) is not bytes:
            raise LinkError("pushed records are not a byte string")
        epoch, from_seq, to_seq, head, delivered = fields
        return TopicAdvanced(topic, epoch, from_seq, to_seq, head, delivered, records)
    if kind == _GONE:
        return TopicGone(topic, *fields)
    return TopicAppeared(topic, *fields) if kind == _APPEARED else TopicSynced(topic, *fields)


# --- bodies that are CBOR ---------------------------------------------------------------------------------


def encode_list_body(items: Sequence[tuple[str, bytes]], more: bool) -> bytes:
    """The body of a LIST answer: names in order with their entries as JSON, and whether more follow."""
    return cbor2.dumps([items, more])


def decode_list_body(body: bytes) -> tuple[list[tuple[str, bytes]], bool]:
    value = loads(body)
    if type(value) is not list or len(value) != 2 or type(value[0]) is not list or type(value[1]) is not bool:
        raise LinkError("a list is not [items, more]")
    for item in value[0]:
        if type(item) is not list or len(item) != 2 or type(item[0]) is not str or type(item[1]) is not bytes:
            raise LinkError("an item of a list is not [name, entry]")
    return [(name, entry) for name, entry in value[0]], value[1]


Entry = tuple[str, int, int, int]
"""Of a topic: name, epoch, head, earliest."""


def encode_entry(entry: Entry | None) -> bytes:
    """The body of a SUBSCRIBE answer."""
    return cbor2.dumps(entry)


def decode_entry(body: bytes) -> Entry | None:
    value = loads(body)
    return None if value is None else _entry(value)


def encode_entries(entries: Sequence[Entry]) -> bytes:
    """The body of a SUBSCRIBE_PREFIX answer."""
    return cbor2.dumps(entries)


def decode_entries(body: bytes) -> list[Entry]:
    value = loads(body)
    if type(value) is not list:
        raise LinkError("entries are not an array")
    return [_entry(item) for item in value]


def _entry(value: object) -> Entry:
    if (
        type(value) is not list
        or len(value) != 4
        or type(value[0]) is not str
        or not all(_is_unsigned(number) for number in value[1:])
    ):
        raise LinkError("an entry is not [name, epoch, head, earliest]")
    return value[0], value[1], value[2], value[3]


class Edge(NamedTuple):
    """A router, seen as an arrow between two topics."""

    router: str
    source: str
    dest: str
    allow_cycle: bool


def encode_edges(edges: Sequence[Edge]) -> bytes:
    """The body of a ROUTERS_FENCE answer."""
    return cbor2.dumps([list(edge) for edge in edges])


def decode_edges(body: bytes) -> list[Edge]:
    value = loads(body)
    if type(value) is not list:
        raise LinkError("edges are not an array")
    for item in value:
        if (
            type(item) is not list
            or len(item) != 4
            or not all(type(name) is str for name in item[:3])
            or type(item[3]) is not bool
        ):
            raise LinkError("an edge is not [router, source, dest, allow_cycle]")
    return [Edge(*item) for item in value]


def encode_numbers(*numbers: int) -> bytes:
    """A body that is a few numbers: of ROUTER_DEST, FORWARD, and of a fence that was refused."""
    return cbor2.dumps(numbers)


def decode_numbers(body: bytes, count: int) -> list[int]:
    value = loads(body)
    if type(value) is not list or len(value) != count or not all(_is_unsigned(each) for each in value):
        raise LinkError(f"a body is not {count} unsigned numbers")
    return value


def encode_names(names: Sequence[str]) -> bytes:
    """The body of a ROUTER_DELETE answer."""
    return cbor2.dumps(list(names))


def decode_names(body: bytes) -> list[str]:
    value = loads(body)
    if type(value) is not list or not all(type(name) is str for name in value):
        raise LinkError("names are not an array of text")
    return value


def encode_metrics(metrics: Mapping[str, object]) -> bytes:
    return cbor2.dumps(metrics)


def decode_metrics(body: bytes) -> dict[str, object]:
    """What the values are is for the reader to check: a worker may know more metrics than a gateway."""
    fields = loads(body)
    if type(fields) is not dict or not all(type(name) is str for name in fields):
        raise LinkError("metrics are not a map of names")
    return fields


# --- pieces -----------------------------------------------------------------------------------------------


def frame(payload: bytes) -> bytes:
    if len(payload) > LINK_MAX_FRAME_BYTES:
        raise LinkError(f"a frame of {len(payload)} bytes is too large")
    return len(payload).to_bytes(FRAME_HEAD_BYTES, "big") + payload


def _messages(payload: bytes) -> list[object]:
    messages = loads(payload)
    if type(messages) is not list:
        raise LinkError("a frame is an array of messages")
    return messages


def loads(payload: bytes) -> object:
    try:
        return cast(object, cbor2.loads(payload, max_depth=16))
    except Exception as err:  # whatever garbage provokes in the decoder, it is one and the same fault to us
        raise LinkError(f"a frame is not CBOR: {err!s:.200}") from err


def _halves(messages: Sequence[_M]) -> tuple[Sequence[_M], Sequence[_M]]:
    if len(messages) == 1:
        raise LinkError("one message is larger than a frame may be")
    middle = len(messages) // 2
    return messages[:middle], messages[middle:]


def _is_unsigned(value: object) -> bool:
    return type(value) is int and value >= 0
