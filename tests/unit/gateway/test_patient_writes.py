"""Writes with `disable_backpressure` on a link that is full: they wait, in order, within bounds."""

from __future__ import annotations

from collections.abc import Iterator
from tempfile import TemporaryDirectory
from unittest.mock import patch

import pytest
import trio

from gateway.io.link_options import LinkOptions
from gateway.io.patient_writes import PatientWrites
from gateway.io.shard_link import Reply
from gateway.io.shard_pool import ShardPool
from shared.errors import Throttled
from shared.limits import THROTTLE_WAIT_MAX_MS
from shared.wire import Answer, Op
from tests.support.fake_shard import FakeShard, eventually, ok, running_pool, silent

PATIENT = b'{"records":[{"data":1}],"disable_backpressure":true}'
IMPATIENT = b'{"records":[{"data":1}],"disable_backpressure":false}'


@pytest.fixture
def socket_dir() -> Iterator[str]:
    with TemporaryDirectory() as path:
        yield path


class Writes:
    def __init__(self, pool: ShardPool) -> None:
        self._pool = pool
        self.got: dict[str, Reply] = {}

    def send(self, name: str, body: bytes = PATIENT, *, op: int = Op.APPEND) -> None:
        def on_reply(reply: Reply, _: object) -> None:
            assert name not in self.got, "replied twice"
            self.got[name] = reply

        self._pool.request(op, name, body, None, on_reply)
        self._pool.flush()

    def status(self, name: str) -> int:
        reply = self.got[name]
        return reply.status if isinstance(reply, Answer) else reply.status_hint


FULL_AT_TWO = LinkOptions(max_queued=1)  # one in flight, one queued


async def filled(shard: FakeShard, pool: ShardPool) -> Writes:
    await eventually(lambda: pool.links[0].up)
    writes = Writes(pool)
    writes.send("first", IMPATIENT)
    writes.send("second", IMPATIENT)
    await eventually(lambda: len(shard.requests) == 1)
    return writes


@pytest.mark.trio
async def test_a_patient_write_waits_for_room_and_is_told_how_long(socket_dir: str) -> None:
    shard = FakeShard(socket_dir, credits=1, answer=silent)
    async with trio.open_nursery() as nursery:
        await nursery.start(shard.run)
        async with running_pool(socket_dir, options=FULL_AT_TWO) as pool:
            writes = await filled(shard, pool)
            writes.send("third")
            writes.send("no", IMPATIENT)
            writes.send("fourth")
            assert list(writes.got) == ["no"] and isinstance(writes.got["no"], Throttled)
            assert pool.links[0].throttled == 1
            shard.answer = ok
            await shard.send(Answer(shard.requests[0].id, 200, b"{"))
            await eventually(lambda: len(writes.got) == 5)
            assert [request.topic for request in shard.requests] == ["first", "second", "third", "fourth"]
            for name in ("third", "fourth"):
                reply = writes.got[name]
                assert isinstance(reply, Answer) and reply.timings is not None
                assert reply.timings["throttle_wait_ms"] > 0
            second = writes.got["second"]
            assert isinstance(second, Answer) and not second.timings, "the others pay nothing"
            assert not shard.violations
        nursery.cancel_scope.cancel()


def test_the_waits_in_gateway_and_worker_add_up() -> None:
    waiting: PatientWrites[object] = PatientWrites()
    got: list[object] = []
    assert waiting.offer("t", PATIENT, None, lambda reply, _: got.append(reply), 10.0)
    waiting.take(10.25).reply(Answer(1, 200, b"{", {"fsync_ms": 3.0, "throttle_wait_ms": 100.0}), None)
    assert got == [Answer(1, 200, b"{", {"fsync_ms": 3.0, "throttle_wait_ms": 350.0})]


@pytest.mark.trio
async def test_later_writes_do_not_overtake_those_that_wait(socket_dir: str) -> None:
    shard = FakeShard(socket_dir, credits=1, answer=silent)
    options = LinkOptions(max_queued=1, max_unsent_bytes=1000)
    async with trio.open_nursery() as nursery:
        await nursery.start(shard.run)
        async with running_pool(socket_dir, options=options) as pool:
            await eventually(lambda: pool.links[0].up)
            writes = Writes(pool)
            writes.send("first", IMPATIENT)
            await eventually(lambda: len(shard.requests) == 1)
            writes.send("large", PATIENT + b" " * 1000)
            writes.send("small, later", IMPATIENT)
            assert writes.status("small, later") == 429
            writes.send("a read", b"{}", op=Op.READ)
            assert "a read" not in writes.got, "only writes stand in that line"
            shard.answer = ok
            await shard.send(Answer(shard.requests[0].id, 200, b"{"))
            await eventually(lambda: writes.got.keys() >= {"large", "a read"})
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_a_link_that_ends_answers_those_that_wait_with_503(socket_dir: str) -> None:
    shard = FakeShard(socket_dir, credits=1, answer=silent)
    async with trio.open_nursery() as nursery:
        await nursery.start(shard.run)
        async with running_pool(socket_dir, options=FULL_AT_TWO) as pool:
            writes = await filled(shard, pool)
            writes.send("third")
            await shard.die()
            await eventually(lambda: len(writes.got) == 3)
            assert {writes.status(name) for name in writes.got} == {503}
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_after_the_longest_wait_it_is_refused(socket_dir: str) -> None:
    shard = FakeShard(socket_dir, credits=1, answer=silent)
    options = LinkOptions(max_queued=1, tick_s=0.01)
    async with trio.open_nursery() as nursery:
        await nursery.start(shard.run)
        async with running_pool(socket_dir, options=options) as pool:
            writes = await filled(shard, pool)
            with patch("gateway.io.patient_writes.THROTTLE_WAIT_MAX_MS", 20):
                writes.send("third")
                await eventually(lambda: "third" in writes.got)
            assert writes.status("third") == 429
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("bound", [("THROTTLED_MAX_REQUESTS", 2), ("THROTTLED_MAX_BYTES", 2 * len(PATIENT))])
def test_what_waits_is_bounded(bound: tuple[str, int]) -> None:
    waiting: PatientWrites[object] = PatientWrites()
    with patch(f"gateway.io.patient_writes.{bound[0]}", bound[1]):
        taken = [waiting.offer("t", PATIENT, None, lambda *_: None, 0.0) for _ in range(3)]
        assert taken == [True, True, False]
        waiting.take(1.0)
        assert waiting.offer("t", PATIENT, None, lambda *_: None, 0.0), "there is room again"
    assert len(waiting.take_expired(THROTTLE_WAIT_MAX_MS / 1000)) == 2


@pytest.mark.parametrize(
    "body",
    [
        IMPATIENT,
        b'{"records":[{"data":"disable_backpressure"}]}',
        b'{"records":[{"data":{"disable_backpressure":true}}]}',
        b'{"disable_backpressure":true',
        b"",
    ],
)
def test_only_a_write_that_says_so_waits(body: bytes) -> None:
    waiting: PatientWrites[object] = PatientWrites()
    assert not waiting.offer("t", body, None, lambda *_: None, 0.0)
