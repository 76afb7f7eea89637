"""The log's frames about routers. Bodies: docs/disk-format.md §3.1; how they work together: docs/routers.md.

Three concern the source of a router, two its destination. They belong to `control_frames` and are decoded there.
"""

from typing import ClassVar, NamedTuple

import msgspec

from shared.cbor_body import Fields, as_list, as_text, as_uint, list_of
from shared.frame import Kind
from shared.router_types import RouterRules


class RouterDefined(msgspec.Struct, frozen=True):
    """On the source. `epoch` is the router's own: one that is made anew under the same name has a later one."""

    kind: ClassVar[Kind] = Kind.ROUTER_DEFINED
    name: str
    epoch: int
    dest: str
    dest_epoch: int
    start: int
    """It copies what comes behind this seq of the source."""
    rules: RouterRules

    def to_map(self) -> dict[str, object]:
        return {
            "name": self.name,
            "epoch": self.epoch,
            "dest": self.dest,
            "dest_epoch": self.dest_epoch,
            "start": self.start,
        } | self.rules.to_map()

    @classmethod
    def from_fields(cls, fields: Fields) -> "RouterDefined":
        return cls(
            fields.need("name", as_text),
            fields.need("epoch", as_uint),
            fields.need("dest", as_text),
            fields.need("dest_epoch", as_uint),
            fields.need("start", as_uint),
            RouterRules.from_fields(fields),
        )


class RouterDropped(msgspec.Struct, frozen=True):
    """On the source."""

    kind: ClassVar[Kind] = Kind.ROUTER_DROPPED
    name: str
    epoch: int

    def to_map(self) -> dict[str, object]:
        return {"name": self.name, "epoch": self.epoch}

    @classmethod
    def from_fields(cls, fields: Fields) -> "RouterDropped":
        return cls(fields.need("name", as_text), fields.need("epoch", as_uint))


class CursorRow(NamedTuple):
    name: str
    epoch: int
    cursor: int
    """Everything up to this seq of the source was copied or passed over."""
    sent: int
    """The last seq of which the destination has confirmed a copy."""
    forwarded: int


class RouterCursors(msgspec.Struct, frozen=True):
    """On the source, now and then. A hint: the destination knows better."""

    kind: ClassVar[Kind] = Kind.ROUTER_CURSORS
    cursors: tuple[CursorRow, ...]

    def to_map(self) -> dict[str, object]:
        return {"cursors": [list(row) for row in self.cursors]}

    @classmethod
    def from_fields(cls, fields: Fields) -> "RouterCursors":
        return cls(fields.need("cursors", lambda value: list_of(value, as_cursor_row)))


class RouteTrimmed(msgspec.Struct, frozen=True):
    """On the destination: records that the source lost before they were copied, as a hole in its seqs."""

    kind: ClassVar[Kind] = Kind.ROUTE_TRIMMED
    router: str
    epoch: int
    source_seq: int
    first: int
    last: int

    def to_map(self) -> dict[str, object]:
        return {
            "router": self.router,
            "epoch": self.epoch,
            "source_seq": self.source_seq,
            "first": self.first,
            "last": self.last,
        }

    @classmethod
    def from_fields(cls, fields: Fields) -> "RouteTrimmed":
        return cls(
            fields.need("router", as_text),
            fields.need("epoch", as_uint),
            fields.need("source_seq", as_uint),
            fields.need("first", as_uint),
            fields.need("last", as_uint),
        )


class RouteForgotten(msgspec.Struct, frozen=True):
    """On the destination: the router is gone, its progress need not be remembered."""

    kind: ClassVar[Kind] = Kind.ROUTE_FORGOTTEN
    router: str
    epoch: int

    def to_map(self) -> dict[str, object]:
        return {"router": self.router, "epoch": self.epoch}

    @classmethod
    def from_fields(cls, fields: Fields) -> "RouteForgotten":
        return cls(fields.need("router", as_text), fields.need("epoch", as_uint))


RouterFact = RouterDefined | RouterDropped | RouterCursors | RouteTrimmed | RouteForgotten
ROUTER_FACTS: tuple[type[RouterFact], ...] = (
    RouterDefined,
    RouterDropped,
    RouterCursors,
    RouteTrimmed,
    RouteForgotten,
)


def as_cursor_row(value: object) -> CursorRow:
    name, *numbers = as_list(value, 5)
    return CursorRow(as_text(name), *map(as_uint, numbers))
