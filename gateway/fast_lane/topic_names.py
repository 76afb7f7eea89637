"""The name of a topic where it stands in a request. The grammar is that of shared/names.py, read off byte by byte.

In a module of its own because it is compiled: `shared.names` is loaded before that can be decided.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shared.names import TOPIC_NAME, TOPIC_NAME_MAX_CHARS

if TYPE_CHECKING:
    from mypy_extensions import i64  # what an integer is to compiled code; to any other it is one like all

_LEADS: Final = bytes(TOPIC_NAME.fullmatch(chr(byte)) is not None for byte in range(256))
_FOLLOWS: Final = bytes(TOPIC_NAME.fullmatch(f"a{chr(byte)}") is not None for byte in range(256))


def topic_name_end(data: bytes, start: int) -> int:
    """Where the longest topic name ends that begins at `start`; `start` itself if none does."""
    at: i64 = start
    limit: i64 = min(len(data), start + TOPIC_NAME_MAX_CHARS)
    if at >= limit or not _LEADS[data[at]]:
        return start
    at += 1
    while at < limit and _FOLLOWS[data[at]]:
        at += 1
    return at
