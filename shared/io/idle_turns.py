"""Serving an epoll set of our own in the place where trio would sleep.

The hot sockets of a gateway or a worker are not trio's: one epoll set holds them, and a turn serves all that are
ready. If a task waited for that set, every turn would pay for trio's wait and for its scheduling: an `epoll_ctl`, two
`epoll_wait`s and a task switch, together as dear as the turn of a lone request. Instead, when trio has nothing to run
and is about to sleep, we sleep for it, on a set that holds our sockets and trio's own set, and serve turns for as long
as they give trio nothing to do. As soon as one does, or trio's sockets, threads, signals or deadlines call, it goes on.

A process that sleeps is woken in some 30 µs, half of what a lone request takes on its whole way. So where one event
has followed the other within SPIN_S, and so few that nobody is busy, the next one is awaited awake, for as long; the
processor goes to whoever wants it meanwhile (`sched_yield`). One that does not come in time ends that, until two
follow each other closely again: who is asked now and then sleeps in between.

An instrument is trio's public way to be called before it sleeps. Its set and its queue of runnable tasks are not
public: this is the only file that touches them, and where a trio has none (another platform) a task waits in the
ordinary way.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable
from typing import Any, Final

import trio
import trio.lowlevel
from trio._core import _run

_MAX_EVENTS: Final = 1024
SPIN_S: Final = 0.0002
_FEW_EVENTS: Final = 8
_clock: Final = time.monotonic

Serve = Callable[[list[tuple[int, int]], bool], None]
"""Takes what is ready, as `epoll.poll` tells it, and whether there was nothing to serve for a while since the last
call. Must neither block nor raise."""


Events = list[tuple[int, int]]


class Vigil:
    """Waits for the next events: awake where they follow each other closely, else asleep."""

    def __init__(
        self, poll: Callable[[float, int], Events], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._poll = poll
        self._clock = clock
        self.awake = False  # is the next event worth staying awake for?

    def wait(self, timeout: float) -> Events:
        poll, clock = self._poll, self._clock
        started = clock()
        ends_at = started + (SPIN_S if timeout > SPIN_S else timeout)
        while self.awake:
            os.sched_yield()
            events = poll(0, _MAX_EVENTS)
            if events:
                self.awake = len(events) <= _FEW_EVENTS
                return events
            self.awake = clock() < ends_at
        events = poll(timeout, _MAX_EVENTS)
        self.awake = 0 < len(events) <= _FEW_EVENTS and clock() - started < SPIN_S
        return events


class IdleTurns:
    """An instrument that serves `epoll` while trio is idle."""

    def __init__(self, runner: Any, epoll: select.epoll, serve: Serve) -> None:
        self._runner = runner
        self._runnable = runner.runq
        self._force_wakeup: Callable[[], None] = runner.io_manager.force_wakeup
        self._trio_fd: int = runner.io_manager._epoll.fileno()
        self._rested = True
        self._poll = epoll.poll
        self._vigil = Vigil(epoll.poll)
        self._serve = serve
        epoll.register(self._trio_fd, select.EPOLLIN)

    def before_io_wait(self, timeout: float) -> None:
        """trio would now sleep for so many seconds."""
        poll, serve, runnable, trio_fd = self._poll, self._serve, self._runnable, self._trio_fd
        clock = _clock
        ends_at = clock() + timeout
        left = timeout
        quiet = True
        while True:
            events = poll(0, _MAX_EVENTS)
            if not events and left > 0:
                self._rested = True
                events = self._vigil.wait(left)
            called = False
            for place, (fd, _) in enumerate(events):
                if fd == trio_fd:
                    called = True
                    del events[place]
                    break
            if events:
                quiet = False
                rested, self._rested = self._rested, False
                serve(events, rested)
            left = ends_at - clock()
            if called or runnable or left <= 0:
                break
        # It would sleep for as long as it thought before; now there is something to do, or that time is over. Only who
        # waits for nothing to happen at all (in tests) must see it sleep: `trio.testing.wait_all_tasks_blocked`.
        if timeout > 0 and not (quiet and not called and self._runner.waiting_for_idle):
            self._force_wakeup()


async def serve_epoll(epoll: select.epoll, serve: Serve) -> None:
    """Call `serve` with the events of `epoll`, until cancelled."""
    runner: Any = _run.GLOBAL_RUN_CONTEXT.runner
    trios = getattr(runner.io_manager, "_epoll", None)
    if not isinstance(trios, select.epoll):
        while True:
            await trio.lowlevel.wait_readable(epoll.fileno())
            serve(epoll.poll(0, _MAX_EVENTS), True)
    turns: Any = IdleTurns(runner, epoll, serve)
    trio.lowlevel.add_instrument(turns)
    try:
        await trio.sleep_forever()
    finally:
        trio.lowlevel.remove_instrument(turns)
        epoll.unregister(trios.fileno())
