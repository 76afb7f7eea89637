"""A router as its source's shard keeps it, and the progress that its destination keeps. No clock, disk or socket.

R1 cursor ≥ sent ≥ start; copies of everything up to the cursor that the filter lets through are at the destination,
   as far as the destination has confirmed.
R2 what the destination says about its progress wins over `cursor` and `sent`: those may be lost or outdated in a
   crash, the progress is stored in one frame with the copies.
(tests/model/test_router_model.py)
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from shared.cbor_body import Fields, as_list, as_map, as_text, as_uint
from shared.router_frames import CursorRow, RouterDefined, as_cursor_row
from shared.router_types import RouterRules


class Router(msgspec.Struct, eq=False):
    name: str
    epoch: int
    dest: str
    dest_epoch: int
    start: int
    rules: RouterRules
    cursor: int
    sent: int
    forwarded: int = 0

    @classmethod
    def defined(cls, fact: RouterDefined) -> Router:
        return cls(
            fact.name, fact.epoch, fact.dest, fact.dest_epoch, fact.start, fact.rules, fact.start, fact.start
        )

    def definition(self) -> RouterDefined:
        return RouterDefined(self.name, self.epoch, self.dest, self.dest_epoch, self.start, self.rules)

    def position(self) -> CursorRow:
        return CursorRow(self.name, self.epoch, self.cursor, self.sent, self.forwarded)

    def stand_at(self, row: CursorRow) -> None:
        """It was seen here. One that has gone on since stays where it is: the frame may have waited for a sync."""
        if row.cursor >= self.cursor:
            self.cursor, self.sent, self.forwarded = row.cursor, row.sent, row.forwarded

    def lag(self, head: int) -> int:
        return max(0, head - self.cursor)

    def confirmed(self, progress: int) -> bool:
        """The destination has its copies of everything up to `progress`. False: it had more once, and lost it."""
        behind = progress < self.sent
        # What it lost, in a power cut, is copied once more.
        self.cursor = max(progress, self.start) if behind else max(self.cursor, progress)
        self.sent = max(progress, self.start)
        return not behind

    def to_snapshot(self) -> list[object]:
        return [self.definition().to_map(), list(self.position())]

    @classmethod
    def from_snapshot(cls, stored: object) -> Router:
        definition, position = as_list(stored, 2)
        fields = Fields(as_map(definition))
        router = cls.defined(RouterDefined.from_fields(fields))
        fields.done()
        router.stand_at(as_cursor_row(position))
        return router


class RouteMark(NamedTuple):
    """How far a router has come, as its destination knows it."""

    epoch: int
    seq: int


def marks_to_snapshot(marks: dict[str, RouteMark]) -> list[object]:
    return [[router, mark.epoch, mark.seq] for router, mark in marks.items()]


def marks_from_snapshot(stored: object) -> dict[str, RouteMark]:
    found = {}
    for row in as_list(stored):
        router, epoch, seq = as_list(row, 3)
        found[as_text(router)] = RouteMark(as_uint(epoch), as_uint(seq))
    return found
