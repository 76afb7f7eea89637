"""How much a link to a worker may hold, and how long it waits."""

from __future__ import annotations

import msgspec

from shared.limits import MiB


class LinkOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of one link. All times in seconds."""

    max_queued: int = 4096  # requests beyond the credits; then 429
    max_unsent_bytes: int = 128 * MiB  # bodies not yet taken by the worker; then 429
    hello_timeout_s: float = 5.0
    ping_after_s: float = 2.0  # of silence while somebody waits for an answer
    hang_after_s: float = 15.0  # without an answer to the PING: longer than a disk may stall a healthy worker
    tick_s: float = 0.5
    backoff_min_s: float = 0.02
    backoff_max_s: float = 0.5
