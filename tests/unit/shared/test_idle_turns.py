"""An epoll set that is served while trio sleeps: nothing of trio's waits for it, and it waits for nothing of trio's."""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Iterator

import pytest
import trio
import trio.testing

from shared.io.idle_turns import SPIN_S, Vigil, serve_epoll

pytestmark = pytest.mark.trio


class Served:
    """A socket in an epoll set, and what came out of it."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.ours.setblocking(False)
        self.epoll = select.epoll()
        self.epoll.register(self.ours.fileno(), select.EPOLLIN)
        self.got: list[bytes] = []
        self.told = trio.Event()

    def serve(self, events: list[tuple[int, int]], rested: bool) -> int:
        assert [fd for fd, _ in events] == [self.ours.fileno()], "trio's own set is not the caller's business"
        self.got.append(self.ours.recv(100))
        self.told.set()
        return len(events)

    async def hears(self, count: int) -> None:
        while len(self.got) < count:
            self.told = trio.Event()
            await self.told.wait()

    def close(self) -> None:
        for each in (self.epoll, self.ours, self.theirs):
            each.close()


@pytest.fixture
def served() -> Iterator[Served]:
    served = Served()
    yield served
    served.close()


async def test_what_arrives_is_served_while_every_task_sleeps(served: Served) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_epoll, served.epoll, served.serve)
        with trio.fail_after(5):
            await trio.to_thread.run_sync(served.theirs.send, b"one")
            await served.hears(1)
            served.theirs.send(b"two")
            await served.hears(2)
        assert served.got == [b"one", b"two"]
        nursery.cancel_scope.cancel()


async def test_deadlines_threads_and_sockets_of_trio_are_kept_while_it_is_served(served: Served) -> None:
    stop = False

    def flood() -> None:
        while not stop:
            served.theirs.send(b"x")
            time.sleep(0.0005)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_epoll, served.epoll, served.serve)
        nursery.start_soon(trio.to_thread.run_sync, flood)
        started = time.monotonic()
        await trio.sleep(0.05)
        assert 0.05 <= time.monotonic() - started < 2
        assert await trio.to_thread.run_sync(lambda: "from a thread") == "from a thread"
        end, other = os.pipe()
        os.write(other, b"!")
        with trio.fail_after(5):
            await trio.lowlevel.wait_readable(end)
        os.close(end)
        os.close(other)
        stop = True
        nursery.cancel_scope.cancel()
    assert served.got


async def test_a_sleep_without_arrivals_takes_its_time_once(served: Served) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_epoll, served.epoll, served.serve)
        started = time.monotonic()
        for _ in range(5):
            await trio.sleep(0.1)
        assert 0.5 <= time.monotonic() - started < 0.9
        nursery.cancel_scope.cancel()


async def test_tests_can_wait_until_nothing_happens(served: Served) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_epoll, served.epoll, served.serve)
        with trio.fail_after(5):
            await trio.testing.wait_all_tasks_blocked(0.01)
        assert served.got == []
        nursery.cancel_scope.cancel()


async def test_afterwards_the_set_is_left_alone(served: Served) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_epoll, served.epoll, served.serve)
        await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    served.theirs.send(b"late")
    await trio.sleep(0.01)
    assert served.got == []


class Arrivals:
    """A poll that finds something at given times, and a clock that moves by a step with every look."""

    def __init__(self, *at: float) -> None:
        self.now = 0.0
        self.slept = 0
        self._at = list(at)

    def clock(self) -> float:
        return self.now

    def poll(self, timeout: float, most: int) -> list[tuple[int, int]]:
        self.now += SPIN_S / 20
        if timeout:
            self.slept += 1
            self.now = max(self.now, min(self._at[0] if self._at else self.now + timeout, self.now + timeout))
        if self._at and self._at[0] <= self.now:
            del self._at[0]
            return [(1, select.EPOLLIN)]
        return []


def calm_vigil(arrivals: Arrivals) -> Vigil:
    vigil = Vigil(arrivals.poll, arrivals.clock)
    for _ in range(4):
        vigil.served(1)
    return vigil


async def test_events_that_follow_each_other_closely_are_awaited_awake() -> None:
    arrivals = Arrivals(*(SPIN_S * n / 2 for n in range(1, 11)))
    vigil = calm_vigil(arrivals)
    for _ in range(10):
        assert vigil.wait(1.0)
        vigil.served(8)
    assert arrivals.slept == 1, "only the first one was slept for"


async def test_one_that_does_not_come_ends_the_vigil() -> None:
    arrivals = Arrivals(SPIN_S / 2, 10 * SPIN_S, 20 * SPIN_S)
    vigil = calm_vigil(arrivals)
    vigil.wait(1.0)
    assert vigil.awake
    assert vigil.wait(1.0) and arrivals.slept == 2 and not vigil.awake
    before = arrivals.now
    assert vigil.wait(1.0) and arrivals.slept == 3 and arrivals.now - before < 11 * SPIN_S


async def test_no_vigil_is_longer_than_the_wait(served: Served) -> None:
    vigil = Vigil(served.epoll.poll)
    vigil.awake = True
    started = time.monotonic()
    assert vigil.wait(0.01) == [] and 0.009 < time.monotonic() - started < 5 and not vigil.awake


async def test_who_is_busy_does_not_stay_awake() -> None:
    arrivals = Arrivals(*(SPIN_S * n / 2 for n in range(1, 11)))
    vigil = calm_vigil(arrivals)
    for count in (9, 1, 1, 1, 9, 1, 1, 1, 9, 1):
        assert vigil.wait(1.0)
        vigil.served(count)
        assert not vigil.awake, "a few between many are no sign that it is calm"
    assert arrivals.slept == 10


async def test_after_some_turns_with_few_it_is_calm_again() -> None:
    arrivals = Arrivals(*(SPIN_S * n / 2 for n in range(1, 11)))
    vigil = Vigil(arrivals.poll, arrivals.clock)
    awake = []
    for _ in range(10):
        vigil.wait(1.0)
        awake.append(vigil.awake)
        vigil.served(1)
    assert awake == [False] * 4 + [True] * 6


async def test_a_rest_is_told_from_what_was_there_already() -> None:
    arrivals = Arrivals(0.0, 10 * SPIN_S)
    vigil = Vigil(arrivals.poll, arrivals.clock)
    assert vigil.wait(1.0) and not vigil.rested
    assert vigil.wait(1.0) and vigil.rested
