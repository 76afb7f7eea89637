"""CBOR maps with text keys, and typed access to their fields: where untyped input stops.

Anything that is not exactly the expected shape raises BadBytes.
"""

from collections.abc import Callable
from io import BytesIO
from typing import TypeVar

import cbor2

from shared.format_errors import BadBytes

T = TypeVar("T")
U64_MAX = (1 << 64) - 1
# What decoders of different cbor2 releases raise on garbage, besides their own error.
_DECODE_ERRORS = (cbor2.CBORDecodeError, ValueError, TypeError, OverflowError, RecursionError, MemoryError)


def dump_map(value: dict[str, object]) -> bytes:
    return cbor2.dumps(value)


def load_map(buffer: bytes | memoryview) -> "Fields":
    """One map that fills the buffer."""
    stream = BytesIO(buffer)
    try:
        value = cbor2.CBORDecoder(stream).decode()
    except _DECODE_ERRORS as err:
        raise BadBytes(f"not CBOR: {type(err).__name__}") from err
    if stream.tell() != len(buffer):
        raise BadBytes("bytes behind the CBOR map", stream.tell())
    return Fields(as_map(value))


def as_uint(value: object) -> int:
    if type(value) is not int or not 0 <= value <= U64_MAX:
        raise BadBytes("an unsigned integer is expected")
    return value


def as_text(value: object) -> str:
    if type(value) is not str:
        raise BadBytes("a text is expected")
    return value


def as_bytes(value: object) -> bytes:
    if type(value) is not bytes:
        raise BadBytes("a byte string is expected")
    return value


def as_bool(value: object) -> bool:
    if type(value) is not bool:
        raise BadBytes("a boolean is expected")
    return value


def as_map(value: object) -> dict[str, object]:
    if type(value) is not dict or not all(type(key) is str for key in value):
        raise BadBytes("a map with text keys is expected")
    return value


def as_list(value: object, length: int | None = None) -> list[object]:
    if type(value) is not list or (length is not None and len(value) != length):
        raise BadBytes("a list is expected" if length is None else f"a list of {length} is expected")
    return value


def list_of(value: object, check: Callable[[object], T]) -> tuple[T, ...]:
    return tuple(check(item) for item in as_list(value))


class Fields:
    """A map being taken apart; `done` refuses what nobody asked for."""

    __slots__ = ("_left",)

    def __init__(self, value: dict[str, object]) -> None:
        self._left = dict(value)

    def need(self, key: str, check: Callable[[object], T]) -> T:
        if key not in self._left:
            raise BadBytes(f"field {key} is missing")
        return self._check(key, check)

    def maybe(self, key: str, check: Callable[[object], T]) -> T | None:
        """None where the field is absent; a null in its place is refused."""
        return self._check(key, check) if key in self._left else None

    def _check(self, key: str, check: Callable[[object], T]) -> T:
        try:
            return check(self._left.pop(key))
        except BadBytes as err:
            raise BadBytes(f"field {key}: {err.reason}") from err

    def rest(self) -> dict[str, object]:
        """The fields not yet taken."""
        left, self._left = self._left, {}
        return left

    def done(self) -> None:
        if self._left:
            # A writer that adds a field raises the version; so this is damage or a bug, not the future.
            raise BadBytes(f"unknown field {min(self._left)}")


def without_none(**fields: object) -> dict[str, object]:
    """A map of the fields that are set."""
    return {key: value for key, value in fields.items() if value is not None}
