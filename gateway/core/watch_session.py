"""What a watcher asked for, and where it stands. Pure: no clock, no randomness, no socket.

C1 a cursor is (epoch, seq): a seq of an older epoch of a topic never counts in the new one;
C2 whatever a client sends back as `Last-Event-ID` can only rewind: a cursor never moves ahead by it;
C3 after a rewind nothing that was sent behind that id is taken for received;
C4 an id says which deletions its client has heard of: one that it has not is told again, one that it has is not.
"""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta, Struct

from gateway.core.sse import id_line
from shared.api_keys import ApiKey
from shared.api_types import U64_MAX, Count, Seq, decode_body
from shared.errors import Forbidden, InvalidRequest, Throttled
from shared.limits import (
    READ_DEFAULT_LIMIT,
    READ_MAX_BYTES,
    WATCH_BATCH_BYTES,
    WATCH_HEARTBEAT_MAX_MS,
    WATCH_HEARTBEAT_MIN_MS,
    WATCH_HEARTBEAT_MS,
    WATCH_ID_MAX_BYTES,
)
from shared.match import Match, parse_match
from shared.names import valid_topic_name
from shared.settings import Settings
from shared.wire import Options

_encoder = msgspec.json.Encoder()


# --- what it asked for ------------------------------------------------------------------------------------


class Start(Struct):
    """Where to begin in a topic: behind `from_seq`, or with what comes next."""

    from_seq: Seq = 0
    tail: bool = False

    def __post_init__(self) -> None:
        if self.from_seq > U64_MAX:
            raise ValueError("from_seq is larger than a seq can be")


class WatchRequest(Struct):
    """Body of `POST /v0/watch`; the options of a WebSocket subscription are the same."""

    topics: dict[str, Start] = {}
    prefixes: dict[str, Start] = {}
    node: str | list[str] | None = None
    match: str | list[str] | None = None
    limit: Count = 0
    max_batch_bytes: Annotated[int, Meta(ge=0)] = 0
    heartbeat_ms: Annotated[int, Meta(ge=0)] = WATCH_HEARTBEAT_MS
    include_meta: bool = True
    include_tags: bool = False
    include_keys: bool = False
    include_data: bool = True
    consistency: Literal["eventual", "strong"] = "eventual"


class WatchTopic(Struct):
    from_seq: Seq
    head_seq: Seq
    earliest_seq: Seq


class View(NamedTuple):
    """Which records a watcher gets and in which form. Watchers with equal views share what is read for one."""

    limit: int
    max_bytes: int
    nodes: tuple[str, ...]
    match: tuple[str, ...] | None
    include_meta: bool
    include_tags: bool
    include_keys: bool
    include_data: bool
    strong: bool

    @property
    def plain(self) -> bool:
        """Is it the form in which shards push records?"""
        return (
            self.include_meta
            and self.include_data
            and not (self.include_tags or self.include_keys or self.nodes or self.match or self.strong)
        )

    def read_body(self, from_seq: int) -> bytes:
        wanted: dict[str, object] = {
            "from_seq": from_seq,
            "limit": self.limit,
            "max_bytes": self.max_bytes,
            "include_meta": self.include_meta,
            "include_tags": self.include_tags,
            "include_keys": self.include_keys,
        }
        if self.nodes:
            wanted["node"] = self.nodes
        if self.match is not None:
            wanted["match"] = self.match
        return _encoder.encode(wanted)

    def read_options(self, upto: int | None) -> Options:
        options: dict[str, object] = {"inline": True, "touch": False}
        if not self.include_data:
            options["data"] = False
        if upto is not None:
            options["upto"] = upto
        return options


class WatchPlan(NamedTuple):
    """A valid request, with defaults and limits applied."""

    topics: dict[str, Start]
    prefixes: dict[str, Start]
    view: View
    heartbeat_ms: int


_request_decoder = msgspec.json.Decoder(WatchRequest)


def decode_watch(body: bytes) -> WatchRequest:
    if not body:
        raise InvalidRequest("name topics or prefixes to watch")
    return decode_body(_request_decoder, body)


def plan_watch(request: WatchRequest, settings: Settings, key: ApiKey | None) -> WatchPlan:
    if not request.topics and not request.prefixes:
        raise InvalidRequest("name topics or prefixes to watch")
    if len(request.topics) + len(request.prefixes) > settings.max_watch_topics:
        raise Throttled(limit="max_watch_topics", max=settings.max_watch_topics)
    for name in request.topics:
        if not valid_topic_name(name):
            raise InvalidRequest("topics holds something that is no topic name")
    for prefix in request.prefixes:
        if prefix and not valid_topic_name(prefix):
            raise InvalidRequest("prefixes holds something that no topic name starts with")
    # A prefix that is shorter than the key's would let in names that the key may not see.
    if key is not None and key.prefixes:
        for name in (*request.topics, *request.prefixes):
            if not name.startswith(key.prefixes):
                raise Forbidden("this key may not use that name")
    heartbeat_ms = min(max(request.heartbeat_ms, WATCH_HEARTBEAT_MIN_MS), WATCH_HEARTBEAT_MAX_MS)
    return WatchPlan(request.topics, request.prefixes, view_of(request, settings), heartbeat_ms)


def view_of(request: WatchRequest, settings: Settings) -> View:
    nodes = [request.node] if isinstance(request.node, str) else request.node or []
    match: Match | None = None if request.match is None else parse_match(request.match)
    try:
        _encoder.encode([nodes, None if match is None else match.value])
    except UnicodeEncodeError as err:
        raise InvalidRequest("node or match has a lone surrogate") from err
    return View(
        limit=min(request.limit or READ_DEFAULT_LIMIT, settings.max_limit),
        max_bytes=min(request.max_batch_bytes or WATCH_BATCH_BYTES, READ_MAX_BYTES),
        nodes=tuple(sorted(set(nodes))),
        match=None if match is None else tuple(match.to_wire()),
        include_meta=request.include_meta,
        include_tags=request.include_tags,
        include_keys=request.include_keys,
        include_data=request.include_data,
        strong=request.consistency == "strong",
    )


# --- where it stands --------------------------------------------------------------------------------------

UNTOLD = U64_MAX + 1  # the number of a deletion that comes after all that any client has heard of


@dataclass(slots=True, eq=False, kw_only=True)
class Cursor:
    """A watcher's place in one topic: it has been sent everything up to `seq` of this `epoch`."""

    name: str
    seq: int
    epoch: int
    named: bool  # asked for by name; otherwise found by a prefix
    began: int = 0  # where it stood when the stream that is open, or was last, began
    gone: bool = False  # the topic was deleted, and not made anew
    # The deletions that a watcher is told of are numbered. This is the last one of this topic; 0: there was none.
    told: int = 0

    def __post_init__(self) -> None:
        self.begin()

    @property
    def untold(self) -> bool:
        """Must the watcher still be told, perhaps once more, that the topic was deleted?"""
        return self.told == UNTOLD

    def begin(self) -> None:
        """A stream begins, and its client stands here."""
        self.began = self.seq

    def renew(self, epoch: int) -> None:
        """The topic was deleted and made anew."""
        self.seq = self.began = 0
        self.epoch = epoch
        self.gone = False


@dataclass(slots=True)
class LastEventId:
    """What an `id:` says about the client that sends it back."""

    seqs: dict[str, int] = field(default_factory=dict)
    told: int = 0  # the last deletion it has heard of
    partial: bool = False  # topics were left out for lack of room


class _IdMap(Struct):
    """The keys that are no topics: `$` cannot stand in a name."""

    told: Seq = msgspec.field(name="$told", default=0)
    partial: bool = msgspec.field(name="$more", default=False)


_id_decoder = msgspec.json.Decoder(_IdMap)
_any_map_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_seq_decoder = msgspec.json.Decoder(Seq)


def parse_last_event_id(text: str) -> LastEventId:
    try:
        padded = text.rstrip("=") + "=" * (-len(text.rstrip("=")) % 4)
        raw = b64decode(padded.encode("ascii"), altchars=b"-_", validate=True)
        marks = _id_decoder.decode(raw)
        seqs = {
            name: _seq_decoder.decode(value)
            for name, value in _any_map_decoder.decode(raw).items()
            if not name.startswith("$")
        }
    except (UnicodeError, Base64Error, ValueError, msgspec.DecodeError, RecursionError) as err:
        raise InvalidRequest("Last-Event-ID is not an id of this server's streams") from err
    if any(seq > U64_MAX for seq in (*seqs.values(), marks.told)):
        raise InvalidRequest("Last-Event-ID holds a seq that cannot be")
    return LastEventId(seqs, marks.told, marks.partial)


def rewind(cursors: Iterable[Cursor], last: LastEventId) -> None:
    """Back to where the client really stands, by the last id it has got."""
    for cursor in cursors:
        if cursor.told > last.told:
            # Whatever the id says of this topic is about one that is no more.
            cursor.told = UNTOLD
            if not cursor.gone:
                cursor.seq = 0
        elif cursor.name in last.seqs:
            cursor.seq = min(cursor.seq, last.seqs[cursor.name])
        elif not cursor.named or cursor.told or last.partial:
            # Nothing has come of it since the stream began, or since it was made anew; or there was no room for it,
            # and then rather twice than never. What was asked for by name is in all other ids, unless somebody wrote
            # one by hand to rewind some topics only.
            cursor.seq = min(cursor.seq, cursor.began)


class IdMap:
    """The `id:` of the next event: topics asked for by name, and others once they have moved."""

    __slots__ = ("_bytes", "_seqs", "told")

    def __init__(self, cursors: Iterable[Cursor] = (), told: int = 0) -> None:
        self._seqs: dict[str, int] = {}
        self._bytes = 0
        self.told = told
        for cursor in cursors:
            self.begin(cursor)

    def __len__(self) -> int:
        return len(self._seqs)

    @property
    def only_one(self) -> bool:
        """Would every watcher of just this topic have the same ids?"""
        return len(self._seqs) == 1 and not self.told

    def seq_of(self, name: str) -> int | None:
        return self._seqs.get(name)

    def begin(self, cursor: Cursor) -> None:
        # The place of an untold cursor is in a topic of which its client knows nothing yet.
        if cursor.named and not (cursor.gone or cursor.untold):
            self.move(cursor, cursor.seq)

    def move(self, cursor: Cursor, seq: int) -> None:
        name = cursor.name
        if name not in self._seqs:
            self._bytes += _entry_bytes(name)
        elif self._bytes > WATCH_ID_MAX_BYTES:
            del self._seqs[name]  # so that the latest stand last, and the oldest are left out
        self._seqs[name] = seq

    def drop(self, name: str) -> None:
        if self._seqs.pop(name, None) is not None:
            self._bytes -= _entry_bytes(name)

    def tell(self, cursor: Cursor) -> None:
        """The event says that the topic was deleted."""
        self.drop(cursor.name)
        self.told = cursor.told

    def line(self) -> bytes:
        if self._bytes <= WATCH_ID_MAX_BYTES and not self.told:
            return id_line(self._seqs)
        marks = {"$told": self.told} if self.told else {}
        return id_line({**self._abridged(), **marks})

    def _abridged(self) -> Mapping[str, object]:
        if self._bytes <= WATCH_ID_MAX_BYTES:
            return self._seqs
        room = WATCH_ID_MAX_BYTES
        kept: dict[str, object] = {}
        for name in reversed(self._seqs):
            room -= _entry_bytes(name)
            if room < 0:
                return {**kept, "$more": True}
            kept[name] = self._seqs[name]
        raise AssertionError("something did not fit")


def _entry_bytes(name: str) -> int:
    return len(name) + 24  # quotes, colon, comma, and a seq of any length
