"""Serving an epoll set of our own in the place where trio would sleep.

The hot sockets of a gateway or a worker are not trio's: one epoll set holds them, and a turn serves all that are
ready. If a task waited for that set, every turn would pay for trio's wait and for its scheduling: an `epoll_ctl`, two
`epoll_wait`s and a task switch, together as dear as the turn of a lone request. Instead, when trio has nothing to run
and is about to sleep, we sleep for it, on a set that holds our sockets and trio's own set, and serve turns for as long
as they give trio nothing to do. As soon as one does, or trio's sockets, threads, signals or deadlines call, it goes on.

A process that sleeps is woken in some 30 µs, half of what a lone request takes on its whole way. So where a few events
in a row have followed each other within SPIN_S, and each brought so little that nobody is busy, the next one is awaited
awake, for as long; the processor goes to whoever wants it meanwhile (`sched_yield`). One that does not come in time
ends that, and so does one that brings much: then the processor has better things to do.

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
_FEW: Final = 8  # requests and answers
_CLOSE_TURNS: Final = 4  # in a row, each with no more than that
_REST_S: Final = 0.00002  # more than a look at the set takes that finds something
_clock: Final = time.monotonic

Serve = Callable[[list[tuple[int, int]], bool], int]
"""Takes what is ready, as `epoll.poll` tells it, and whether there was nothing to serve for a while since the last
call. Returns how many requests and answers that was. Must neither block nor raise."""


Events = list[tuple[int, int]]


class Vigil:
    """Waits for the next events: awake where they follow each other closely, else asleep."""

    def __init__(
        self, poll: Callable[[float, int], Events], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._poll = poll
        self._clock = clock
        self._close = 0  # turns in a row that followed each other closely, with little to do in each
        self.awake = False  # is the next event worth staying awake for?
        self.rested = True  # was there nothing to do for a while, before the last events?

    def wait(self, timeout: float) -> Events:
        poll, clock = self._poll, self._clock
        started = clock()
        if self.awake:
            ends_at = started + min(SPIN_S, timeout)
            while True:
                events = poll(0, _MAX_EVENTS)
                if events:
                    self.rested = clock() - started > _REST_S
                    return events
                if clock() >= ends_at:
                    break
                os.sched_yield()
        # There is no look first whether something is there: a call more for everybody who waits for an answer.
        events = poll(max(0.0, timeout - (clock() - started)), _MAX_EVENTS)
        waited = clock() - started
        self.rested = waited > _REST_S
        if waited >= SPIN_S:
            self._close = 0
        self.awake = self._close >= _CLOSE_TURNS
        return events

    def served(self, count: int) -> None:
        """So much came with the last events. Who is busy has nothing to win, and others want the processor."""
        if count > _FEW:
            self._close = 0
            self.awake = False
        else:
            self._close += 1


class IdleTurns:
    """An instrument that serves `epoll` while trio is idle."""

    def __init__(self, runner: Any, epoll: select.epoll, serve: Serve) -> None:
        self._runner = runner
        self._runnable = runner.runq
        self._force_wakeup: Callable[[], None] = runner.io_manager.force_wakeup
        self._trio_fd: int = runner.io_manager._epoll.fileno()
        self._vigil = Vigil(epoll.poll)
        self._serve = serve
        epoll.register(self._trio_fd, select.EPOLLIN)

    def before_io_wait(self, timeout: float) -> None:
        """trio would now sleep for so many seconds."""
        serve, vigil, runnable, trio_fd = self._serve, self._vigil, self._runnable, self._trio_fd
        clock = _clock
        ends_at = clock() + timeout
        left = timeout
        quiet = True
        while True:
            events = vigil.wait(left)
            called = False
            for place, (fd, _) in enumerate(events):
                if fd == trio_fd:
                    called = True
                    del events[place]
                    break
            if events:
                quiet = False
                vigil.served(serve(events, vigil.rested))
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
