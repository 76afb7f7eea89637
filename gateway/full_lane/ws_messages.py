"""The messages of `/v0/ws`, in and out. What the shards push is worded in gateway/core/sse.py."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from gateway.core.watch_session import Start, WatchRequest, WatchTopic
from shared.api_types import U64_MAX, Seq, decode_body
from shared.errors import InvalidRequest, TopicsError

_encoder = msgspec.json.Encoder()


class Envelope(Struct):
    """What every message has. `request_id` is any JSON value, and comes back as it was."""

    op: str
    request_id: Raw | UnsetType = UNSET


class Subscribe(WatchRequest):
    """The options of a watch; one topic may be named without a map around it."""

    topics: dict[str, Start] | list[str] = {}  # type: ignore[assignment]
    topic: str | None = None
    from_seq: Seq = 0
    tail: bool = False
    lenient: bool = False

    def __post_init__(self) -> None:
        if self.from_seq > U64_MAX:
            raise ValueError("from_seq is larger than a seq can be")

    def as_watch(self) -> WatchRequest:
        topics = {name: Start(self.from_seq, self.tail) for name in self.topics}
        if isinstance(self.topics, dict):
            topics |= self.topics
        if self.topic is not None:
            topics[self.topic] = Start(self.from_seq, self.tail)
        fields = {name: getattr(self, name) for name in WatchRequest.__struct_fields__ if name != "topics"}
        return WatchRequest(topics=topics, **fields)


class Unsubscribe(Struct):
    topic: str | None = None
    topics: list[str] = []
    prefixes: list[str] = []


class Publish(Struct):
    """As much of a write as the gateway looks at; the worker validates the rest."""

    topic: str
    config: Raw | UnsetType = UNSET


_envelope = msgspec.json.Decoder(Envelope)
_subscribe = msgspec.json.Decoder(Subscribe)
_unsubscribe = msgspec.json.Decoder(Unsubscribe)
_publish = msgspec.json.Decoder(Publish)


def decode_envelope(message: bytes) -> Envelope:
    return decode_body(_envelope, message)


def decode_subscribe(message: bytes) -> Subscribe:
    return decode_body(_subscribe, message)


def decode_unsubscribe(message: bytes) -> Unsubscribe:
    return decode_body(_unsubscribe, message)


def decode_publish(message: bytes) -> Publish:
    return decode_body(_publish, message)


def _reply(op: str, request_id: Raw | UnsetType, rest: bytes = b"") -> str:
    """`rest`: further fields, each with a comma in front."""
    text = b'{"op":"%b"' % op.encode()
    if request_id is not UNSET:
        text += b',"request_id":' + bytes(request_id)
    return (text + rest + b"}").decode()


def subscribed(request_id: Raw | UnsetType, topics: dict[str, WatchTopic]) -> str:
    return _reply("subscribed", request_id, b',"topics":' + _encoder.encode(topics))


def unsubscribed(request_id: Raw | UnsetType, topics: list[str], prefixes: list[str]) -> str:
    rest = b',"topics":%b,"prefixes":%b' % (_encoder.encode(topics), _encoder.encode(prefixes))
    return _reply("unsubscribed", request_id, rest)


def ack(request_id: Raw | UnsetType, open_body: bytes) -> str:
    """`open_body`: the answer of a write, a JSON object without its closing brace."""
    return _reply("ack", request_id, b"," + open_body[1:])


def pong(request_id: Raw | UnsetType) -> str:
    return _reply("pong", request_id)


def refused(request_id: Raw | UnsetType, error: TopicsError) -> str:
    return refused_by_shard(request_id, error.to_json_body())


class _Error(Struct):
    code: str
    message: str
    detail: Raw | UnsetType = UNSET


class _ErrorDocument(Struct):
    error: _Error


_error_decoder = msgspec.json.Decoder(_ErrorDocument)


def refused_by_shard(request_id: Raw | UnsetType, document: bytes) -> str:
    """The same fields as in the error document of an HTTP answer."""
    return _reply("error", request_id, b"," + _encoder.encode(_error_decoder.decode(document).error)[1:-1])


def unknown_op(op: str) -> InvalidRequest:
    return InvalidRequest(f"unknown op {op[:40]}; there are subscribe, unsubscribe, publish and ping")
