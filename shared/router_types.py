"""Routers as the public API speaks of them: the body of a PUT, the answers, and the rules both sides agree on."""

from __future__ import annotations

from typing import Literal, cast

import msgspec
from msgspec import UNSET, Struct, UnsetType

from shared.api_types import Count, Performance, Seq, decode_body
from shared.cbor_body import Fields, as_bool, as_list, as_text, without_none
from shared.errors import InvalidRequest
from shared.format_errors import BadBytes
from shared.match import Match, parse_match
from shared.names import valid_topic_name

Guarantee = Literal["at_least_once", "exactly_once"]
RouterProgress = Literal["caught_up", "forwarding", "retrying"]

MARK_KEY = "_topics_router"
"""In the `meta` of a copy that an exactly-once router made: which record of which topic it is."""

HOPS_KEY = "_topics_hops"
"""In the `meta` of a copy that a router with `allow_cycle` made: through how many of those it has come."""


class RouterIn(Struct, forbid_unknown_fields=True, kw_only=True):
    """Body of `PUT /v0/routers/:r`."""

    source: str
    dest: str
    preserve_node: bool = True
    preserve_tag: bool = True
    create_dest: bool = True
    filter: str | list[str] | None = None
    allow_cycle: bool = False
    guarantee: Guarantee = "at_least_once"


class RouterPut(Struct):
    """Answer of `PUT /v0/routers/:r`."""

    router: str
    created: bool
    source: str
    dest: str
    preserve_node: bool
    preserve_tag: bool
    create_dest: bool
    filter: list[str] | None
    allow_cycle: bool
    guarantee: Guarantee
    performance: Performance


class RouterEntry(Struct):
    router: str
    source: str
    dest: str
    preserve_node: bool
    preserve_tag: bool
    create_dest: bool
    filter: list[str] | None
    allow_cycle: bool
    guarantee: Guarantee
    forwarded_total: Count
    lag: Count
    cursor: Seq
    state: RouterProgress
    last_error: str | None


class RouterState(RouterEntry, kw_only=True):
    """Answer of `GET /v0/routers/:r`."""

    performance: Performance


class RouterList(Struct):
    """Answer of `GET /v0/routers`; `next_cursor` is left out on the last page."""

    routers: list[RouterEntry]
    performance: Performance
    next_cursor: str | UnsetType = UNSET


class RouterDeleted(Struct):
    """Answer of `DELETE /v0/routers/:r`."""

    router: str
    deleted: bool
    performance: Performance


class RouterRules(msgspec.Struct, frozen=True):
    """How a router copies. What may change in place: where it stands does not depend on it."""

    preserve_node: bool = True
    preserve_tag: bool = True
    create_dest: bool = True
    match: Match | None = None
    allow_cycle: bool = False
    guarantee: Guarantee = "at_least_once"

    @property
    def exactly_once(self) -> bool:
        return self.guarantee == "exactly_once"

    @property
    def marks_copies(self) -> bool:
        """Does it add to the meta of what it copies?"""
        return self.exactly_once or self.allow_cycle

    def to_public(self) -> dict[str, object]:
        """The fields as clients see them."""
        return {
            "preserve_node": self.preserve_node,
            "preserve_tag": self.preserve_tag,
            "create_dest": self.create_dest,
            "filter": None if self.match is None else self.match.to_wire(),
            "allow_cycle": self.allow_cycle,
            "guarantee": self.guarantee,
        }

    def to_map(self) -> dict[str, object]:
        """The fields as they are stored."""
        fields = self.to_public()
        return without_none(**fields)

    @classmethod
    def from_fields(cls, fields: Fields) -> RouterRules:
        match = fields.maybe("filter", as_list)
        guarantee = fields.need("guarantee", as_text)
        if guarantee not in ("at_least_once", "exactly_once"):
            raise BadBytes(f"no such guarantee: {guarantee!r:.40}")
        return cls(
            fields.need("preserve_node", as_bool),
            fields.need("preserve_tag", as_bool),
            fields.need("create_dest", as_bool),
            None if match is None else _stored_match(match),
            fields.need("allow_cycle", as_bool),
            cast(Guarantee, guarantee),
        )


def _stored_match(value: object) -> Match:
    try:
        return Match.from_wire(value)
    except InvalidRequest as err:
        raise BadBytes(str(err)) from err


_router_decoder = msgspec.json.Decoder(RouterIn)


def decode_router(body: bytes) -> RouterIn:
    """The body of a PUT, with names checked and the filter known to be a predicate."""
    wanted = decode_body(_router_decoder, body or b"{}")
    for field in ("source", "dest"):
        if not valid_topic_name(getattr(wanted, field)):
            raise InvalidRequest(f"{field} is not a valid topic name", detail={"field": field})
    if wanted.source == wanted.dest:
        raise InvalidRequest("source and dest must be different topics", detail={"field": "dest"})
    rules_of(wanted)
    return wanted


def rules_of(wanted: RouterIn) -> RouterRules:
    match = None if wanted.filter is None else parse_match(wanted.filter, where="filter")
    return RouterRules(
        wanted.preserve_node,
        wanted.preserve_tag,
        wanted.create_dest,
        match,
        wanted.allow_cycle,
        wanted.guarantee,
    )
