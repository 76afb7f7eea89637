"""The API behind both lanes, as the lanes see it."""

from __future__ import annotations

from typing import Protocol

from gateway.exchange import Exchange


class ApiPort(Protocol):
    def handle(self, exchange: Exchange) -> None:
        """Start one request. Answers through `exchange.respond`, now or in a later turn."""

    def flush(self) -> None:
        """End of a turn: send each shard one frame with all requests gathered since the last flush."""
