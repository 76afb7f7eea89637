"""Whether the processes of a server really move, judged from when each was last heard. No clock.

A child speaks from its own loop, so its word shows that the loop turns. The gateway moreover says which shards have
just answered a question that took the same way as every request: its link, the worker's turn, and back.

A child that is not there is not stuck: its restart is under way, or it was given up with a reason that is told.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    """What is known of one running child."""

    name: str
    silent_s: float
    """Since its last word, or since its start."""

    spoke: bool
    """Since its start."""

    unanswered_s: float = 0.0
    """A worker that is ready: how long it has not answered the gateway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PulseLimits:
    # Five heartbeats: a busy machine may delay one or two.
    silent_s: float = 5.0
    # Until its first word a process only loads its code.
    start_s: float = 60.0


def stuck(signs: Iterable[Sign], limits: PulseLimits) -> list[str]:
    """Why the server cannot be said to move, in words; empty if it does."""
    reasons = []
    for sign in signs:
        if sign.silent_s > (limits.silent_s if sign.spoke else limits.start_s):
            reasons.append(f"{sign.name} is silent")
        elif sign.unanswered_s > limits.silent_s:
            reasons.append(f"{sign.name} does not answer the gateway")
    return reasons
