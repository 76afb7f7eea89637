"""A request on its way through the engine, and where its answer goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from shared.errors import TopicsError

Timings = dict[str, float]
Extents = Sequence[tuple[int, int, int]]


class Sink(Protocol):
    """The link a request came from."""

    @property
    def full(self) -> bool:
        """Have enough answers gathered for this turn?"""

    def answer(
        self,
        id: int,
        status: int,
        body: bytes,
        timings: Timings | None = None,
        extents: Extents | None = None,
        tail: bytes | None = None,
    ) -> None: ...


class Request:
    __slots__ = ("body", "id", "op", "options", "sink", "topic")

    def __init__(
        self, sink: Sink, id: int, op: int, topic: str, body: bytes, options: Mapping[str, object] | None
    ) -> None:
        self.sink = sink
        self.id = id
        self.op = op
        self.topic = topic
        self.body = body
        self.options = options

    def option(self, name: str) -> object:
        return self.options.get(name) if self.options else None

    def fail(self, error: TopicsError) -> None:
        status, body, retry_after_ms = error.to_wire()
        timings = None if retry_after_ms is None else {"retry_after_ms": float(retry_after_ms)}
        self.sink.answer(self.id, status, body, timings)
