"""Tells the service manager that the server moves, only while it does (`WatchdogSec=` in its unit).

The supervisor itself kills and replaces a child that is silent for 20 s, so a manager that waits longer than that
steps in only when the supervisor is stuck, or when its cure does not help.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import trio

from topicsd.child_keeper import ChildKeeper, Phase
from topicsd.core.pulse import PulseLimits, Sign, stuck
from topicsd.service_notify import ServiceNotifier

log = logging.getLogger(__name__)

# The manual asks for half; a quarter survives a ping that is late.
_PINGS_PER_INTERVAL: Final = 4


class Watchdog:
    def __init__(self, notifier: ServiceNotifier, limits: PulseLimits) -> None:
        self._notifier = notifier
        self._limits = limits
        self._answered_at: dict[int, float] = {}
        self._withheld = False

    def answered(self, shards: Iterable[int]) -> None:
        """The gateway has heard from these."""
        now = trio.current_time()
        for shard in shards:
            self._answered_at[shard] = now

    async def run(self, gateway: ChildKeeper, workers: Sequence[ChildKeeper]) -> None:
        if self._notifier.watchdog_s is None:
            return
        # Often enough to notice, however patient the manager is.
        pause_s = min(self._notifier.watchdog_s / _PINGS_PER_INTERVAL, self._limits.silent_s)
        while True:
            self._look(list(self._signs(gateway, workers)))
            await trio.sleep(pause_s)

    def _look(self, signs: list[Sign]) -> None:
        reasons = stuck(signs, self._limits)
        if not reasons:
            self._notifier.send(WATCHDOG=1)
        if bool(reasons) != self._withheld:
            self._withheld = bool(reasons)
            if reasons:
                log.warning("watchdog.withheld", extra={"reason": "; ".join(reasons)})
            else:
                log.info("watchdog.resumed")

    def _signs(self, gateway: ChildKeeper, workers: Sequence[ChildKeeper]) -> Iterator[Sign]:
        now = trio.current_time()
        if (sign := gateway.sign(now)) is not None:
            yield sign
        asking_since = gateway.ready_at
        for shard, worker in enumerate(workers):
            if (sign := worker.sign(now)) is None:
                continue
            if (
                asking_since is not None
                and worker.condition.phase is Phase.READY
                and worker.ready_at is not None
            ):
                # It may have answered an earlier gateway, or been another process then.
                since = max(asking_since, worker.ready_at, self._answered_at.get(shard, 0.0))
                sign = dataclasses.replace(sign, unanswered_s=now - since)
            yield sign
