"""Trying again, for a while, what may succeed later. Only for requests that can be repeated."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from topicsd.client.errors import Refused, Unreachable
from topicsd.client.output import note

T = TypeVar("T")

FIRST_DELAY_S = 0.1
LAST_DELAY_S = 2.0


def patiently(
    attempt: Callable[[], T],
    *,
    for_s: float,
    unreachable_too: bool = True,
    sleep: Callable[[float], object] = time.sleep,
) -> T:
    """What `attempt` returns, sooner or later. A refusal that will not pass is raised at once.

    `unreachable_too` false: a server that does not answer is not waited for. Whoever has not reached it even once
    has probably mistyped its address.
    """
    give_up_at: float | None = None
    delay_s = FIRST_DELAY_S
    while True:
        try:
            return attempt()
        except Refused as err:
            if not err.passes:
                raise
            problem: Refused | Unreachable = err
            wait_s = max(delay_s, err.retry_after_s or 0)
        except Unreachable as err:
            if not unreachable_too:
                raise
            problem = err
            wait_s = delay_s
        now = time.monotonic()
        if give_up_at is None:
            give_up_at = now + for_s
            if for_s > 0:
                note(f"{problem}; trying for up to {for_s:.0f} s")
        if now >= give_up_at:
            raise problem
        sleep(min(wait_s, give_up_at - now))
        delay_s = min(2 * delay_s, LAST_DELAY_S)
