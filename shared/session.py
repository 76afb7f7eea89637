"""One link between two processes, without its socket: bytes in, messages out, and the rules between them.

`ClientSession` is the side that connects (gateway, worker towards another worker, CLI), `ServerSession` the
worker that listens. Both begin with a hello, split the byte stream into frames whatever its chunking, and
keep the invariants:

S1 a request id in flight is unique, and is settled at most once;
S2 never more requests in flight than the server's credits: the client waits, the server ends the link;
S3 after a `LinkError` or `close` nothing more is accepted or sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import Enum
from typing import Final, Generic, NamedTuple, TypeVar, cast

import cbor2

from shared.limits import LINK_MAX_FRAME_BYTES
from shared.plain_frames import decode_answers, decode_requests
from shared.wire import (
    FRAME_HEAD_BYTES,
    Answer,
    Draining,
    LinkError,
    Op,
    Options,
    Request,
    ServerMessage,
    encode_answers,
    encode_requests,
    frame,
    loads,
)

PROTOCOL_LOWEST: Final = 1
PROTOCOL_HIGHEST: Final = 1
HELLO_MAX_BYTES: Final = 4096
MAX_PINGS: Final = 16  # PINGs take no credit; a sane client has one under way

ROLES: Final = frozenset({"gateway", "worker", "cli"})

_W = TypeVar("_W")


class FrameSplitter:
    """Cuts a byte stream into frame payloads. Too long a frame is refused before any of it is kept."""

    __slots__ = ("_chunks", "_have", "_max_bytes", "_need")

    def __init__(self, max_bytes: int = LINK_MAX_FRAME_BYTES) -> None:
        self._max_bytes = max_bytes
        self._chunks: list[bytes] = []  # the unfinished frame, as it came: joined once, when it is complete
        self._have = 0
        self._need = FRAME_HEAD_BYTES

    @property
    def max_bytes(self) -> int:
        return self._max_bytes

    @max_bytes.setter
    def max_bytes(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes

    def find(self, data: bytes) -> tuple[bytes, list[tuple[int, int]]]:
        """Where the payloads are that `data` completes, and in what: who reads them there saves a copy of them."""
        if self._have:
            self._chunks.append(data)
            self._have += len(data)
            if self._have < self._need:
                return b"", []
            data = b"".join(self._chunks)
            self._chunks.clear()
            self._have = 0
        return data, self._split(data)

    def _split(self, data: bytes) -> list[tuple[int, int]]:
        places: list[tuple[int, int]] = []
        start, size = 0, len(data)
        while True:
            left = size - start
            if left < FRAME_HEAD_BYTES:
                self._need = FRAME_HEAD_BYTES
                break
            length = int.from_bytes(data[start : start + FRAME_HEAD_BYTES], "big")
            if length > self._max_bytes:
                raise LinkError(f"a frame of {length} bytes is too large")
            end = start + FRAME_HEAD_BYTES + length
            if end > size:
                self._need = FRAME_HEAD_BYTES + length
                break
            places.append((start + FRAME_HEAD_BYTES, end))
            start = end
        if start < size:
            self._chunks.append(data[start:] if start else data)
            self._have = size - start
        return places


# --- hello ------------------------------------------------------------------------------------------------


class ClientHello(NamedTuple):
    lowest: int
    highest: int
    role: str
    version: str


class ServerHello(NamedTuple):
    protocol: int
    shard: int
    shards: int
    credits: int
    topics: int
    bytes: int


def encode_client_hello(hello: ClientHello) -> bytes:
    fields = {"protocol": [hello.lowest, hello.highest], "role": hello.role, "version": hello.version}
    return frame(cbor2.dumps(fields))


def decode_client_hello(payload: bytes) -> ClientHello:
    fields = _hello_map(payload)
    protocol, role, version = fields.get("protocol"), fields.get("role"), fields.get("version", "")
    if type(protocol) is not list or len(protocol) != 2 or not all(_is_unsigned(n) for n in protocol):
        raise LinkError("a hello names no range of protocol versions")
    if role not in ROLES or type(version) is not str:
        raise LinkError("a hello has no role that we know")
    return ClientHello(protocol[0], protocol[1], role, version)


def encode_server_hello(hello: ServerHello) -> bytes:
    return frame(cbor2.dumps(hello._asdict()))


def encode_refusal(reason: str) -> bytes:
    return frame(cbor2.dumps({"error": reason}))


def decode_server_hello(payload: bytes) -> ServerHello:
    fields = _hello_map(payload)
    if "protocol" not in fields:
        raise LinkError(f"the peer refused: {fields.get('error', 'no reason given')!s:.200}")
    values = [fields.get(name) for name in ServerHello._fields]
    if not all(_is_unsigned(value) for value in values):
        raise LinkError("a hello has a field of the wrong type")
    return ServerHello(*cast("list[int]", values))


def choose_protocol(hello: ClientHello) -> int | None:
    """The highest version that both sides speak."""
    highest = min(hello.highest, PROTOCOL_HIGHEST)
    return highest if highest >= max(hello.lowest, PROTOCOL_LOWEST) else None


def _hello_map(payload: bytes) -> dict[object, object]:
    fields = loads(payload)
    if type(fields) is not dict:
        raise LinkError("a hello is a map")
    return cast("dict[object, object]", fields)


def _is_unsigned(value: object) -> bool:
    return type(value) is int and value >= 0


# --- the two ends -----------------------------------------------------------------------------------------


class LinkState(Enum):
    HELLO = "hello"
    OPEN = "open"
    DRAINING = "draining"
    CLOSED = "closed"


# As names of this module: in Python 3.11 an enum's class runs a function for each look at a member.
_OPEN: Final = LinkState.OPEN
_HELLO: Final = LinkState.HELLO


class ClientSession(Generic[_W]):
    """The connecting side. `_W` is whatever the owner wants back when a request is settled."""

    def __init__(self, *, role: str, version: str, max_queued: int, first_id: int = 1) -> None:
        self.state = LinkState.HELLO
        self.peer: ServerHello | None = None
        self.unsent_bytes = 0  # bodies that have not left with a frame yet
        self._hello = ClientHello(PROTOCOL_LOWEST, PROTOCOL_HIGHEST, role, version)
        self._splitter = FrameSplitter(HELLO_MAX_BYTES)
        self._max_queued = max_queued
        self._credits = 0
        self._next_id = first_id
        self._waiters: dict[int, _W] = {}  # of requests that are sent or in the outbox
        self._uncounted: set[int] = set()  # those of them that take no credit
        self._outbox: list[Request] = []  # leaves with the next flush
        self._queue: deque[tuple[Request, _W]] = deque()  # beyond the credits

    def __repr__(self) -> str:
        return (
            f"ClientSession({self.state.value}, {self.in_flight} of {self._credits} in flight, "
            f"{len(self._queue)} queued)"
        )

    def hello(self) -> bytes:
        return encode_client_hello(self._hello)

    @property
    def in_flight(self) -> int:
        """Requests that hold a credit."""
        return len(self._waiters) - len(self._uncounted)

    @property
    def queued(self) -> int:
        return len(self._queue)

    @property
    def next_id(self) -> int:
        """Where the session after this one goes on, so that an id never means two requests."""
        return self._next_id

    @property
    def outstanding(self) -> int:
        """Everything that will still be settled."""
        return len(self._waiters) + len(self._queue)

    def has_room(self) -> bool:
        return len(self._queue) < self._max_queued

    def submit(self, op: int, topic: str, body: bytes, options: Options | None, waiter: _W) -> int:
        """Take a request; it leaves with a flush as soon as there is a credit. Ask `has_room` first."""
        assert self.state is _OPEN, "the owner refuses requests while a link is not open"
        id_ = self._next_id
        self._next_id = id_ + 1
        self.unsent_bytes += len(body)
        request = Request(id_, op, topic, body, options)
        if op == Op.PING or op == Op.CANCEL:
            # Steering messages: they must get through when every credit is taken by the requests they are about.
            self._uncounted.add(id_)
        elif self._queue or self.in_flight >= self._credits:
            assert self.has_room(), "the owner asks has_room"
            self._queue.append((request, waiter))
            return id_
        self._waiters[id_] = waiter
        self._outbox.append(request)
        return id_

    def cancel(self, id_: int) -> _W | None:
        """Nobody waits for this READ any more.

        One that was not sent yet is withdrawn, and its waiter returned. For any other the server is told, and
        answers it like every request (with 499, or properly if the two crossed).
        """
        for position, (request, waiter) in enumerate(self._queue):
            if request.id == id_:
                del self._queue[position]
                return waiter
        if id_ in self._waiters and self.state is not LinkState.CLOSED:
            self._outbox.append(Request(id_, Op.CANCEL, "", b"", {"id": id_}))
        return None

    def end_waits(self) -> None:
        """Have the server answer everything that waits there now, as it stands."""
        if self.state is not LinkState.CLOSED:
            self._outbox.append(Request(self._next_id, Op.CANCEL, "", b"", {"all": True}))
            self._next_id += 1

    def take_outgoing(self) -> bytes:
        """The frame of this turn; empty if there is nothing to send."""
        if self._queue:
            self._promote()
        if not self._outbox:
            return b""
        requests, self._outbox = self._outbox, []
        self.unsent_bytes = sum(len(request.body) for request, _ in self._queue)
        return encode_requests(requests)

    def _promote(self) -> None:
        while self._queue and self.in_flight < self._credits:
            request, waiter = self._queue.popleft()
            self._waiters[request.id] = waiter
            self._outbox.append(request)

    def receive(self, data: bytes) -> list[ServerMessage]:
        """Messages that `data` completes. The owner settles the id of each answer."""
        messages: list[ServerMessage] = []
        buffer, places = self._splitter.find(data)
        for start, end in places:
            if self.state is _HELLO:
                self._open(buffer[start:end])
            else:
                messages += decode_answers(buffer, start, end)
        return messages

    def _open(self, payload: bytes) -> None:
        hello = decode_server_hello(payload)
        if not PROTOCOL_LOWEST <= hello.protocol <= PROTOCOL_HIGHEST:
            raise LinkError(f"the peer chose protocol {hello.protocol}, which we did not offer")
        if hello.credits < 1:
            raise LinkError("the peer grants no credits")
        self.peer = hello
        self._credits = hello.credits
        self._splitter.max_bytes = LINK_MAX_FRAME_BYTES
        self.state = LinkState.OPEN

    def settle(self, id_: int) -> _W:
        """The waiter of this answer, once."""
        try:
            waiter = self._waiters.pop(id_)
        except KeyError:
            raise LinkError("an answer to no request in flight") from None
        if self._uncounted:
            self._uncounted.discard(id_)
        return waiter

    def drain(self) -> list[_W]:
        """The server takes no more: the waiters of what was not sent yet. Answers in flight still come."""
        self.state = LinkState.DRAINING
        unsent = [self._waiters.pop(request.id) for request in self._outbox if request.op != Op.CANCEL]
        self._uncounted.difference_update(request.id for request in self._outbox)
        unsent += [waiter for _, waiter in self._queue]
        self._outbox.clear()
        self._queue.clear()
        return unsent

    def close(self) -> list[_W]:
        """The link is gone: everyone who still waits, in the order in which they came."""
        self.state = LinkState.CLOSED
        waiters = [*self._waiters.values(), *(waiter for _, waiter in self._queue)]
        self._waiters.clear()
        self._uncounted.clear()
        self._outbox.clear()
        self._queue.clear()
        return waiters


class ServerSession:
    """The listening side. The owner sends what `accept` returns as soon as `client` is known."""

    def __init__(self, *, shard: int, shards: int, credits: int) -> None:
        self.state = LinkState.HELLO
        self.client: ClientHello | None = None
        self._shard = shard
        self._shards = shards
        self._credits = credits
        self._splitter = FrameSplitter(HELLO_MAX_BYTES)
        self._in_flight: set[int] = set()
        self._uncounted: set[int] = set()

    def __repr__(self) -> str:
        return f"ServerSession({self.state.value}, {len(self._in_flight)} of {self._credits} in flight)"

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    def receive(self, data: bytes) -> list[Request]:
        """Requests that `data` completes; CANCELs among them, in order."""
        requests: list[Request] = []
        buffer, places = self._splitter.find(data)
        for start, end in places:
            if self.client is None:
                self.client = decode_client_hello(buffer[start:end])
            elif self.state is _HELLO:
                # Without our hello the client cannot know how many requests it may send.
                raise LinkError("a request before the hello was answered")
            else:
                requests += decode_requests(buffer, start, end)
        for request in requests:
            self._admit(request)
        return requests

    def _admit(self, request: Request) -> None:
        if request.op == Op.CANCEL:
            return
        if request.id in self._in_flight or request.id in self._uncounted:
            raise LinkError("a request id is used twice")
        if request.op == Op.PING:
            self._uncounted.add(request.id)
            if len(self._uncounted) > MAX_PINGS:
                raise LinkError("too many PINGs at once")
            return
        self._in_flight.add(request.id)
        if len(self._in_flight) > self._credits:
            raise LinkError("more requests in flight than credits")

    def accept(self, *, topics: int, bytes: int) -> bytes:
        """Our hello. If there is no common version it says so, and the owner closes the link after it."""
        assert self.client is not None, "the client speaks first"
        protocol = choose_protocol(self.client)
        if protocol is None:
            self.state = LinkState.CLOSED
            return encode_refusal(
                f"we speak protocol {PROTOCOL_LOWEST} to {PROTOCOL_HIGHEST}, "
                f"you {self.client.lowest} to {self.client.highest}"
            )
        self.state = LinkState.OPEN
        self._splitter.max_bytes = LINK_MAX_FRAME_BYTES
        return encode_server_hello(
            ServerHello(protocol, self._shard, self._shards, self._credits, topics, bytes)
        )

    @property
    def accepted(self) -> bool:
        return self.state is not LinkState.CLOSED

    def encode(self, messages: Sequence[ServerMessage]) -> bytes:
        """The frame of this turn's answers and notices; their requests are no longer in flight."""
        for message in messages:
            if type(message) is Answer:
                id_ = message.id
                if id_ in self._in_flight:
                    self._in_flight.remove(id_)
                else:
                    assert id_ in self._uncounted, "a request is answered once"
                    self._uncounted.remove(id_)
            elif type(message) is Draining:
                self.state = LinkState.DRAINING
        return encode_answers(messages)
