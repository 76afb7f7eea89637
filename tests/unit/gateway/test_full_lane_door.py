"""The full lane is loaded once, for the first connection that needs it, and others wait for it."""

from __future__ import annotations

import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from gateway.full_lane.door import FullLaneDoor, Host


class RecordingHost:
    def __init__(self) -> None:
        self.served: list[bytes] = []
        self.drained = self.aborted = self.running = False

    @property
    def connections(self) -> int:
        return len(self.served)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        self.running = True
        task_status.started()
        await trio.sleep_forever()

    def serve(self, sock: socket.socket, unread: bytes) -> None:
        assert self.running
        self.served.append(unread)
        sock.close()

    async def drain(self) -> None:
        self.drained = True

    def abort(self) -> None:
        self.aborted = True


class SlowLoad:
    """A load that takes until it is let go."""

    def __init__(self) -> None:
        self.host = RecordingHost()
        self.go_on = threading.Event()
        self.threads: list[threading.Thread] = []

    def __call__(self) -> Host:
        self.threads.append(threading.current_thread())
        assert self.go_on.wait(10)
        return self.host


@asynccontextmanager
async def opened(load: Callable[[], Host]) -> AsyncIterator[FullLaneDoor]:
    door = FullLaneDoor(load)
    async with trio.open_nursery() as nursery:
        await nursery.start(door.run)
        yield door
        nursery.cancel_scope.cancel()


def connection() -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair()
    theirs.settimeout(5)
    return ours, theirs


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(10):
        while not condition():  # noqa: ASYNC110 - what changes, changes in the code under test
            await trio.sleep(0.001)


@pytest.mark.trio
async def test_it_loads_nothing_before_the_first_connection() -> None:
    load = SlowLoad()
    async with opened(load) as door:
        await trio.testing.wait_all_tasks_blocked()
        assert door.connections == 0
        await door.drain()
    assert load.threads == []


@pytest.mark.trio
async def test_connections_wait_in_order_while_it_loads_once_in_a_thread() -> None:
    load = SlowLoad()
    async with opened(load) as door:
        for text in (b"first", b"second"):
            door.serve(connection()[0], text)
        await until(lambda: bool(load.threads))
        # The loop runs: this very line is the proof.
        assert door.connections == 2 and load.host.served == []
        load.go_on.set()
        await until(lambda: len(load.host.served) == 2)
        door.serve(connection()[0], b"third")
        assert load.host.served == [b"first", b"second", b"third"]
        assert door.connections == 3
    assert len(load.threads) == 1 and load.threads[0] is not threading.main_thread()


@pytest.mark.trio
async def test_a_drain_waits_for_those_who_wait() -> None:
    load = SlowLoad()
    async with opened(load) as door, trio.open_nursery() as nursery:
        door.serve(connection()[0], b"early")
        nursery.start_soon(door.drain)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert not load.host.drained
        load.go_on.set()
        await until(lambda: load.host.drained)
        assert load.host.served == [b"early"]


@pytest.mark.trio
async def test_an_abort_breaks_those_who_wait_and_the_lane() -> None:
    load = SlowLoad()
    ours, theirs = connection()
    async with opened(load) as door:
        door.serve(ours, b"")
        door.abort()
        assert await trio.to_thread.run_sync(theirs.recv, 1) == b""
        load.go_on.set()
        await until(lambda: door.connections == len(load.host.served) == 1)
        door.abort()
        assert load.host.aborted


@pytest.mark.trio
async def test_a_lane_that_cannot_be_loaded_costs_its_connections_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tries = [0]
    host = RecordingHost()

    def load() -> Host:
        tries[0] += 1
        if tries[0] == 1:
            raise ImportError("no module named quart")
        return host

    ours, theirs = connection()
    async with opened(load) as door:
        door.serve(ours, b"x")
        await until(lambda: door.connections == 0)
        assert theirs.recv(1) == b""
        assert "full_lane.not_loaded" in caplog.text
        door.serve(connection()[0], b"again")
        await until(lambda: host.served == [b"again"])


@pytest.mark.trio
async def test_whoever_waits_at_the_end_is_let_go() -> None:
    load = SlowLoad()
    ours, theirs = connection()
    async with opened(load) as door:
        door.serve(ours, b"x")
        await until(lambda: bool(load.threads))
    assert theirs.recv(1) == b"" and door.connections == 0
    late, their_late = connection()
    door.serve(late, b"x")
    assert their_late.recv(1) == b""
    load.go_on.set()
