"""A private epoll set, served whenever trio is idle: everything that is ready is handled in one turn.

trio's own wait costs an `epoll_ctl` and a task switch per socket and wake-up. Here the sockets are
registered once, and no task waits for them (shared/io/idle_turns.py). A turn takes all that is ready,
calls the handlers, and then runs `end_of_turn` once, which is where gathered work goes out.
"""

from __future__ import annotations

import logging
import select
import time
from collections.abc import Callable
from typing import Final

import trio

from shared.io.idle_turns import serve_epoll

log = logging.getLogger(__name__)

_clock: Final = time.perf_counter


class TurnLoop:
    """Register descriptors from anywhere in the process; handlers must not block."""

    def __init__(self, end_of_turn: Callable[[], int], contain: Callable[[int], bool]) -> None:
        """`end_of_turn` returns how many it has sent something to. `contain` ends what a failed handler was about, and
        says False if it does not know it."""
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._end_of_turn = end_of_turn
        self._contain = contain
        self._failure: Exception | None = None
        self._failed = trio.Event()
        self.in_turn = False
        self.now = time.perf_counter()

    def register(self, fd: int, mask: int, handler: Callable[[int], None]) -> None:
        self._handlers[fd] = handler
        self._epoll.register(fd, mask)

    def modify(self, fd: int, mask: int) -> None:
        self._epoll.modify(fd, mask)

    def is_registered(self, fd: int, handler: Callable[[int], None]) -> bool:
        return self._handlers.get(fd) is handler

    def unregister(self, fd: int) -> None:
        del self._handlers[fd]
        self._epoll.unregister(fd)

    def forget(self, fd: int) -> None:
        """For a descriptor that is about to be closed: closing takes it out of the set."""
        del self._handlers[fd]

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve_epoll, self._epoll, self._serve)
            await self._failed.wait()
            assert self._failure is not None
            raise self._failure

    def _serve(self, events: list[tuple[int, int]], rested: bool) -> int:
        if self._failure is not None:
            return 0
        try:
            return self._turn(events)
        except Exception as err:
            self._failure = err  # raised by the task that runs us
            self._failed.set()
            return 0

    def close(self) -> None:
        self._epoll.close()

    def _turn(self, events: list[tuple[int, int]]) -> int:
        self.now = _clock()
        self.in_turn = True
        handlers = self._handlers
        try:
            for fd, mask in events:
                handler = handlers.get(fd)
                if handler is None:
                    continue  # an earlier handler of this turn has closed it
                try:
                    handler(mask)
                except Exception:
                    # A bug, met by one descriptor: it must not take the others down with it.
                    log.exception("edge.handler_failed", extra={"fd": fd})
                    if not self._contain(fd):
                        raise
            return max(len(events), self._end_of_turn())
        finally:
            self.in_turn = False
