"""What a command asks of a shard, whoever answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from shard_worker.inspection import Answer, Options


class AskFailed(Exception):
    """The question could not be answered; the message says what to do."""

    def __init__(self, message: str, *, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class Asked(Protocol):
    """A shard that answers: a running worker, or the files of a stopped one."""

    @property
    def kind(self) -> str:
        """`live` or `files`."""

    def ask(self, question: str, options: Options) -> Answer: ...
    def close(self) -> None: ...


def pages(shard: Asked, question: str, rows: str, options: Options, after: str = "after") -> Iterator[Any]:
    """The rows of all pages, `limit` of them if `options` has one."""
    wanted = options.get("limit")
    left = wanted if isinstance(wanted, int) else None
    asked = dict(options)
    while left is None or left > 0:
        if left is not None:
            asked["limit"] = left
        page = shard.ask(question, asked)
        found = page[rows]
        assert isinstance(found, list)
        yield from found
        if "next" not in page:
            return
        asked[after] = page["next"]
        left = None if left is None else left - len(found)
