"""The predicate that deletes, reads, watches and router filters share.

    ["tag", "Eq", "order-7731"]     the record's tag is exactly this
    ["tag", "Glob", "user-1042:*"]  the record's tag starts with what stands before the star
    "order-7731"                    short for ["tag", "Eq", ...]

Fields are tag, key and node. A record without the field never matches. There is exactly one star,
at the end of a Glob; it keeps every predicate answerable from a sorted index by one range.
"""

from __future__ import annotations

from typing import Literal, cast, get_args

import msgspec

from shared.errors import InvalidRequest
from shared.limits import MATCH_VALUE_MAX_BYTES

Field = Literal["tag", "key", "node"]
Op = Literal["Eq", "Glob"]

FIELDS: tuple[str, ...] = get_args(Field)
OPS: tuple[str, ...] = get_args(Op)


class Match(msgspec.Struct, frozen=True):
    """`value` is the operand: for Glob the prefix, its star removed."""

    field: Field
    op: Op
    value: str

    def matches(self, tag: str | None, key: str | None, node: str | None) -> bool:
        actual = tag if self.field == "tag" else key if self.field == "key" else node
        if actual is None:
            return False
        return actual == self.value if self.op == "Eq" else actual.startswith(self.value)

    def to_wire(self) -> list[str]:
        return [self.field, self.op, self.value + "*" if self.op == "Glob" else self.value]

    @classmethod
    def from_wire(cls, value: object) -> Match:
        return parse_match(value)


def parse_match(value: object, *, where: str = "match") -> Match:
    """From a decoded JSON value; `where` names the request field in what the caller is told."""
    if isinstance(value, str):
        return Match("tag", "Eq", _operand(value, where))
    if not isinstance(value, list | tuple) or len(value) != 3:
        raise InvalidRequest(f'{where} must be a string or [field, op, value], as in ["tag","Eq","x"]')
    field, op, operand = value
    if field not in FIELDS:
        raise InvalidRequest(f'{where}: the first element must be "tag", "key" or "node"')
    if op not in OPS:
        raise InvalidRequest(f'{where}: the second element must be "Eq" or "Glob"')
    if not isinstance(operand, str):
        raise InvalidRequest(f"{where}: the third element must be a string")
    text = _operand(operand, where)
    if op == "Glob":
        if not text.endswith("*") or text.count("*") != 1:
            raise InvalidRequest(f'{where}: a Glob has exactly one star, at its end, as in "x*"')
        text = text[:-1]
    return Match(cast(Field, field), cast(Op, op), text)


def _operand(text: str, where: str) -> str:
    # surrogatepass: whether the text is encodable is for the JSON edge to say, not for a length check.
    if len(text.encode("utf-8", "surrogatepass")) > MATCH_VALUE_MAX_BYTES:
        raise InvalidRequest(f"{where}: the value may have at most {MATCH_VALUE_MAX_BYTES} bytes")
    return text
