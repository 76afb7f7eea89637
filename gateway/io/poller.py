"""What a shard link needs from whoever runs the turns: readiness of its socket, told inside a turn.

The edge's turn loop is one. Handlers get the epoll mask, never block, and are called level-triggered.
"""

from __future__ import annotations

import select
from collections.abc import Callable
from typing import Protocol

READABLE = select.EPOLLIN
WRITABLE = select.EPOLLOUT


class Poller(Protocol):
    def register(self, fd: int, mask: int, handler: Callable[[int], None]) -> None:
        """Call `handler` with the events of `mask` on `fd`; hang-ups and errors are always told."""

    def modify(self, fd: int, mask: int) -> None: ...

    def unregister(self, fd: int) -> None:
        """Forget `fd`, before it is closed."""
