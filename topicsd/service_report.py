"""The state of the server as its service manager sees it: starting, ready, reloading, stopping, and a line of status.

READY is said once, when no shard is on its way any more: all have replayed, or one has failed for good while
others serve. Holding it back for that one would have the manager kill those that work.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from topicsd.child_keeper import Condition, Phase
from topicsd.service_notify import ServiceNotifier, monotonic_usec

# From each sign of progress on. A worker that shows none for 20 s is killed by the supervisor long before.
REPLAY_EXTENSION_S: Final = 60
# One step of a move is one segment, however slow the disk.
MOVE_EXTENSION_S: Final = 300

_GATEWAY: Final = "gateway"


class ServiceReport:
    def __init__(self, notifier: ServiceNotifier) -> None:
        self._notifier = notifier
        self._ready = False
        self._stopping = False
        self._status = ""

    @property
    def ready(self) -> bool:
        return self._ready

    def moving(self, moved: int, total: int) -> None:
        """Topics change their shard before anyone is served. Called from the thread that moves them."""
        status = f"moving topics to their shards: {moved} of {total}"
        self._notifier.send(STATUS=status, EXTEND_TIMEOUT_USEC=MOVE_EXTENSION_S * 1_000_000)

    def conditions(self, conditions: Mapping[str, Condition]) -> None:
        """At every change of one of them."""
        if self._stopping:
            return
        status = describe(conditions)
        fields: dict[str, str | int] = {"STATUS": status}
        if not self._ready and settled(conditions):
            self._ready = True
            fields["READY"] = 1
        elif status == self._status:
            return
        elif not self._ready:
            fields["EXTEND_TIMEOUT_USEC"] = REPLAY_EXTENSION_S * 1_000_000
        self._status = status
        self._notifier.send(**fields)

    def reloading(self) -> None:
        if self._ready:
            self._notifier.send(RELOADING=1, MONOTONIC_USEC=monotonic_usec())

    def reloaded(self) -> None:
        if self._ready:
            self._notifier.send(READY=1, STATUS=self._status)

    def stopping(self, within_s: float) -> None:
        """`within_s`: by when this process will have ended, whatever its children do."""
        self._stopping = True
        self._notifier.send(STOPPING=1, STATUS="draining", EXTEND_TIMEOUT_USEC=int(within_s * 1_000_000))


def settled(conditions: Mapping[str, Condition]) -> bool:
    shards = [condition.phase for name, condition in conditions.items() if name != _GATEWAY]
    return (
        conditions[_GATEWAY].phase is Phase.READY
        and Phase.READY in shards
        and all(phase in (Phase.READY, Phase.FAILED) for phase in shards)
    )


def describe(conditions: Mapping[str, Condition]) -> str:
    shards = {name: condition for name, condition in conditions.items() if name != _GATEWAY}
    ready = sum(condition.phase is Phase.READY for condition in shards.values())
    text = f"{ready} of {len(shards)} shards ready"
    replaying = [c.progress or 0.0 for c in shards.values() if c.phase in (Phase.STARTING, Phase.REPLAYING)]
    if replaying:
        text += f", {len(replaying)} replaying ({sum(replaying) / len(replaying):.0%})"
    broken = {name: c for name, c in conditions.items() if c.phase in (Phase.DOWN, Phase.FAILED)}
    for name, condition in broken.items():
        text += f"; {name} {condition.phase.value}: {condition.reason}"
    return text
