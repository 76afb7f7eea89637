"""What the supervisor tells the gateway while it runs: the state of each shard, and new keys.

A link shows only that a worker does not answer; the feed knows why, how far its replay has come, and whether
it will come back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Annotated, Final, Literal

import msgspec

from shared.api_keys import ApiKey, KeyRing
from shared.io.child_channel import ChildChannel, Event

log = logging.getLogger(__name__)

State = Literal["replaying", "ready", "down", "failed"]


class ShardReport(msgspec.Struct, frozen=True, kw_only=True):
    """The latest word on one shard."""

    shard: Annotated[int, msgspec.Meta(ge=0)]
    state: State
    progress: float | None = None
    reason: str | None = None
    restarts: int = 0
    """How many times its worker was started again since the server started."""

    def replay_progress(self) -> float:
        """0 to 1; a shard that is down has everything to replay again."""
        if self.state == "ready":
            return 1.0
        return self.progress or 0.0

    def why_not_ready(self) -> str | None:
        if self.state == "ready":
            return None
        if self.state == "replaying":
            return f"it replays its log ({self.replay_progress():.0%})"
        return self.reason or "it is down"


class _Keys(msgspec.Struct):
    keys: tuple[ApiKey, ...]


UNKNOWN: Final = "it is starting"


class SupervisorFeed:
    def __init__(
        self,
        shards: int,
        *,
        on_keys: Callable[[KeyRing], None],
        on_ready: Callable[[int], None] = lambda shard: None,
    ) -> None:
        """`on_ready` gets a shard whose worker has begun to listen."""
        self.shards = [ShardReport(shard=shard, state="down", reason=UNKNOWN) for shard in range(shards)]
        self._on_keys = on_keys
        self._on_ready = on_ready

    def __repr__(self) -> str:
        return f"SupervisorFeed({', '.join(report.state for report in self.shards)})"

    @property
    def ready(self) -> bool:
        return all(report.state == "ready" for report in self.shards)

    def replay_progress(self) -> float:
        """Of all shards together."""
        return sum(report.replay_progress() for report in self.shards) / len(self.shards)

    async def follow(self, channel: ChildChannel) -> None:
        """Until the supervisor says, by closing the channel, that it is time to drain."""
        while (event := await channel.receive()) is not None:
            self.apply(event)

    def apply(self, event: Event) -> None:
        try:
            match event.get("event"):
                case "shard":
                    report = msgspec.convert(event, ShardReport)
                    self.shards[report.shard] = report
                    if report.state == "ready":
                        self._on_ready(report.shard)
                case "keys":
                    # The event itself is never logged: digests are not for logs either.
                    self._on_keys(KeyRing(msgspec.convert(event, _Keys).keys))
                case other:
                    # A newer supervisor cannot be here, but an unknown word should not end the gateway.
                    log.warning("feed.event.unknown", extra={"kind": str(other)})
        except (msgspec.ValidationError, IndexError) as err:
            log.error("feed.event.malformed", extra={"kind": str(event.get("event")), "reason": str(err)})
