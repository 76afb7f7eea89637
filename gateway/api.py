"""The API behind both lanes, as the lanes see it."""

from __future__ import annotations

from abc import ABC, abstractmethod

from gateway.exchange import Exchange


class ApiPort(ABC):
    """A class and no Protocol, for the same reason as `Exchange`."""

    @abstractmethod
    def handle(self, exchange: Exchange) -> None:
        """Start one request. Answers through `exchange.respond`, now or in a later turn."""

    @abstractmethod
    def flush(self) -> None:
        """End of a turn: send each shard one frame with all requests gathered since the last flush."""
