"""A link to a worker that behaves, misbehaves, hangs and dies."""

from __future__ import annotations

import os
import struct
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest
import trio
import trio.testing

from gateway.io import shard_link
from gateway.io.link_options import LinkOptions
from gateway.io.shard_link import LeasedFiles, Reply
from gateway.io.shard_pool import ShardPool
from shared.errors import ShardUnavailable, Throttled
from shared.limits import LINK_MAX_FRAME_BYTES, LINK_SEND_AT_BYTES
from shared.wire import (
    Answer,
    Draining,
    FileExtent,
    FileOpened,
    FileRetired,
    Op,
    Request,
    Stats,
    encode_answers,
)
from tests.support.fake_shard import FakeShard, eventually, ok, running_pool, silent

pytestmark = pytest.mark.trio


@pytest.fixture
def socket_dir() -> Iterator[str]:
    # Not tmp_path: a socket's path has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="tsd") as path:
        yield path


class Replies:
    """Collects what callers get; every request appears exactly once or the assertion in `take` fires."""

    def __init__(self) -> None:
        self.got: dict[str, Reply] = {}
        self.leased: dict[str, LeasedFiles] = {}

    def take(self, name: str) -> shard_link.OnReply:
        def on_reply(reply: Reply, leased: LeasedFiles | None) -> None:
            assert name not in self.got, "replied twice"
            self.got[name] = reply
            if leased is not None:
                self.leased[name] = leased

        return on_reply

    def ask(self, pool: ShardPool, *names: str, op: int = Op.READ, body: bytes = b"") -> list[int]:
        ids = [pool.request(op, name, body, None, self.take(name)) for name in names]
        pool.flush()
        return ids

    def status(self, name: str) -> int:
        reply = self.got[name]
        return reply.status if isinstance(reply, Answer) else reply.status_hint


async def up(pool: ShardPool) -> None:
    await eventually(lambda: all(link.up for link in pool.links))


async def test_requests_of_one_turn_leave_in_one_frame_and_are_answered(socket_dir: str) -> None:
    shard = FakeShard(socket_dir)
    replies = Replies()
    async with trio.open_nursery() as nursery:
        await nursery.start(shard.run)
        async with running_pool(socket_dir) as pool:
            await up(pool)
            replies.ask(pool, "a", "b", "c")
            await eventually(lambda: len(replies.got) == 3)
            assert [request.topic for request in shard.requests] == ["a", "b", "c"]
            reply = replies.got["b"]
            assert isinstance(reply, Answer) and reply.body == b'{"topic":"b"'
        nursery.cancel_scope.cancel()


async def test_large_requests_leave_before_the_turn_is_over(socket_dir: str) -> None:
    # An answer, also to a PING, would have the rest sent, too.
    shard = FakeShard(socket_dir, answer=silent)
    patient = LinkOptions(ping_after_s=3600)
    replies = Replies()
    async with trio.open_nursery() as nursery:
        await nursery.start(shard.run)
        async with running_pool(socket_dir, options=patient) as pool:
            await up(pool)
            half = b"x" * (LINK_SEND_AT_BYTES // 2)
            for name in "abc":
                pool.request(Op.APPEND, name, half, None, replies.take(name))
            await eventually(lambda: len(shard.requests) == 2)
            await trio.sleep(0.02)
            assert [request.topic for request in shard.requests] == ["a", "b"]
            pool.flush()
            await eventually(lambda: len(shard.requests) == 3)
            assert [request.topic for request in shard.requests] == ["a", "b", "c"]
        nursery.cancel_scope.cancel()


async def test_a_link_that_breaks_while_it_sends_early_replies_once(socket_dir: str) -> None:
    shard = FakeShard(socket_dir, answer=silent)
    replies = Replies()
    large = b"x" * LINK_SEND_AT_BYTES
    async with trio.open_nursery() as nursery:
        await nursery.start(shard.run)
        async with running_pool(socket_dir) as pool:
            await up(pool)
            shard.say_and_go()
            assert pool.links[0].up, "nobody has noticed yet"
            ids = [pool.request(Op.APPEND, name, large, None, replies.take(name)) for name in "ab"]
            await eventually(lambda: len(replies.got) == 2)
            assert {replies.status(name) for name in "ab"} == {503}
            for id_ in ids:
                pool.links[0].cancel(id_)
            pool.flush()
        nursery.cancel_scope.cancel()


async def test_answers_that_have_arrived_survive_a_request_that_cannot_be_sent(socket_dir: str) -> None:
    shard = FakeShard(socket_dir, answer=silent)
    replies = Replies()
    large = b"x" * LINK_SEND_AT_BYTES
    async with trio.open_nursery() as nursery:
        await nursery.start(shard.run)
        async with running_pool(socket_dir) as pool:
            await up(pool)
            replies.ask(pool, "a")
            await eventually(lambda: shard.requests)
            shard.say_and_go(Answer(shard.requests[0].id, 200, b"{"))
            pool.request(Op.APPEND, "b", large, None, replies.take("b"))
            assert not replies.got, "both come with the link's own event"
            await eventually(lambda: len(replies.got) == 2)
            assert (replies.status("a"), replies.status("b")) == (200, 503)
        nursery.cancel_scope.cancel()


async def test_a_link_goes_down_in_order_where_no_thread_can_be_started(
    socket_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files are unlinked and large, so they would be closed by one."""

    def full(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    shard = FakeShard(socket_dir, answer=silent)
    replies = Replies()
    async with trio.open_nursery() as nursery:
        await nursery.start(shard.run)
        async with running_pool(socket_dir) as pool:
            await up(pool)
            with tempfile.TemporaryFile() as file:
                file.truncate(8 << 20)
                await shard.send_with_fds([file.fileno()], FileOpened(1))
            replies.ask(pool, "a")
            await eventually(lambda: shard.requests and len(pool.links[0]._files) == 1)
            monkeypatch.setattr(threading.Thread, "start", full)
            await shard.die()
            await eventually(lambda: replies.got)
            assert replies.status("a") == 503
            monkeypatch.undo()
            await up(pool)
        nursery.cancel_scope.cancel()


async def test_without_a_worker_requests_are_refused_at_once(socket_dir: str) -> None:
    replies = Replies()
    async with running_pool(socket_dir) as pool:
        replies.ask(pool, "a")
        reply = replies.got["a"]
        assert isinstance(reply, ShardUnavailable) and reply.retry_after_ms


async def test_a_worker_that_is_known_to_be_there_is_not_waited_for(socket_dir: str) -> None:
    shard = FakeShard(socket_dir)
    patient = LinkOptions(backoff_min_s=3600, backoff_max_s=3600)
    async with trio.open_nursery() as nursery, running_pool(socket_dir, options=patient) as pool:
        await trio.testing.wait_all_tasks_blocked(0.01)  # its first try has failed
        await nursery.start(shard.run)
        pool.connect_now(0)
        await up(pool)
        nursery.cancel_scope.cancel()


async def test_p01_death_of_the_worker_answers_what_it_had_with_503_and_never_again(socket_dir: str) -> None:
    shard = FakeShard(socket_dir, answer=silent)
    replies = Replies()
    async with trio.open_nursery() as nursery:
        await nursery.start(shard.run)
        async with running_pool(socket_dir) as pool:
            await up(pool)
            replies.ask(pool, "a", "b")
            await eventually(lambda: len(shard.requests) == 2)
            await shard.die()
            await eventually(lambda: len(replies.got) == 2)
            assert {replies.status(name) for name in "ab"} == {503}
            shard.answer = ok
            await up(pool)
            replies.ask(pool, "c")
            await eventually(lambda: "c" in replies.got)
            assert replies.status("c") == 200
            # What was in flight was not sent again over the new link.
            assert [request.topic for request in shard.requests if request.topic] == ["a", "b", "c"]
        nursery.cancel_scope.cancel()


async def test_p01_one_dead_shard_does_not_touch_the_others(socket_dir: str) -> None:
    shards = [FakeShard(socket_dir, shard=n, shards=2, answer=silent) for n in range(2)]
    shards[1].answer = ok
    names = [f"topic-{n}" for n in range(20)]
    replies = Replies()
    async with trio.open_nursery() as nursery:
        for shard in shards:
            await nursery.start(shard.run)
        async with running_pool(socket_dir, shards=2) as pool:
            await up(pool)
            replies.ask(pool, *names)
            await eventually(lambda: sum(len(shard.requests) for shard in shards) == 20)
            await shards[0].die()
            await eventually(lambda: len(replies.got) == 20)
            for shard, status in zip(shards, (503, 200), strict=True):
                topics = [request.topic for request in shard.requests]
                assert topics and {replies.status(topic) for topic in topics} == {status}
        nursery.cancel_scope.cancel()


async def test_p04_a_worker_that_hangs_is_given_up_after_a_bounded_time(socket_dir: str) -> None:
    shard = FakeShard(socket_dir, answer=lambda request: None)
    replies = Replies()
    async with trio.open_nursery() as nursery:
        await nursery.start(shard.run)
        async with running_pool(socket_dir) as pool:
            await up(pool)
            replies.ask(pool, "a")
            await eventually(lambda: "a" in replies.got)
            reply = replies.got["a"]
            assert isinstance(reply, ShardUnavailable) and "hangs" in reply.message
            assert [request.op for request in shard.requests] == [Op.READ, Op.PING]
        nursery.cancel_scope.cancel()


async def test_p04_a_worker_that_only_accepts_never_counts_as_up(socket_dir: str) -> None:
    shard = FakeShard(socket_dir)
    shard.says_hello = False
    replies = Replies()
    async with trio.open_nursery() as nursery:
        await nursery.start(shard.run)
        async with running_pool(socket_dir) as pool:
            await eventually(lambda: shard.hellos >= 2)  # it was given up, and tried again
            replies.ask(pool, "a")
            assert replies.status("a") == 503
        nursery.cancel_scope.cancel()


async def test_a_quiet_worker_with_long_polls_is_not_a_hanging_one(socket_dir: str) -> None:
    shard = FakeShard(socket_dir, answer=silent)
    replies = Replies()
    async with trio.open_nursery() as nursery:
        await nursery.start(shard.run)
        async with running_pool(socket_dir) as pool:
            await up(pool)
            replies.ask(pool, "a")
            # Several PINGs later the link still stands and the poll still waits.
            await eventually(lambda: sum(request.op == Op.PING for request in shard.requests) >= 4)
            assert not replies.got and pool.links[0].up
        nursery.cancel_scope.cancel()


BAD_BYTES = {
    "garbage": b"\x00\x00\x00\x04\xff\xff\xff\xff",
    "oversize": (LINK_MAX_FRAME_BYTES + 1).to_bytes(4, "big"),
    "not an array": b"\x00\x00\x00\x01\xa0",
    "answer to nobody": encode_answers([Answer(4711, 200, b"")]),
    "unknown file": encode_answers([Answer(1, 200, b"", None, [FileExtent(7, 0, 1)], b"")]),
    "file without descriptor": encode_answers([FileOpened(7)]),
    "unknown file retired": encode_answers([FileRetired(7)]),
}


@pytest.mark.parametrize("name", BAD_BYTES)
async def test_p05_bytes_that_are_not_the_protocol_end_that_link_only(socket_dir: str, name: str) -> None:
    shard = FakeShard(socket_dir, answer=silent)
    replies = Replies()
    async with trio.open_nursery() as nursery:
        await nursery.start(shard.run)
        async with running_pool(socket_dir) as pool:
            await up(pool)
            assert replies.ask(pool, "a") == [1]
            await eventually(lambda: shard.requests)
            await shard.send_raw(BAD_BYTES[name])
            await eventually(lambda: "a" in replies.got)
            assert replies.status("a") == 503
            shard.answer = ok
            await up(pool)
            replies.ask(pool, "b")
            await eventually(lambda: "b" in replies.got)
            assert replies.status("b") == 200
        nursery.cancel_scope.cancel()


async def test_p05_half_frames_wait_for_their_other_half(socket_dir: str) -> None:
    shard = FakeShard(socket_dir)
    shard.chunk_bytes = 3
    replies = Replies()
    async with trio.open_nursery() as nursery:
        await nursery.start(shard.run)
        async with running_pool(socket_dir) as pool:
            await up(pool)
            replies.ask(pool, "a", "b")
            await eventually(lambda: len(replies.got) == 2)
            assert {replies.status(name) for name in "ab"} == {200}
        nursery.cancel_scope.cancel()


async def test_p05_a_worker_of_another_shard_is_refused(socket_dir: str) -> None:
    shard = FakeShard(socket_dir, shard=0, shards=3)
    async with trio.open_nursery() as nursery:
        await nursery.start(shard.run)
        async with running_pool(socket_dir) as pool:
            await eventually(lambda: "shard 0 of 3" in pool.links[0].reason)
            assert not pool.links[0].up
        nursery.cancel_scope.cancel()


async def test_credits_bound_what_is_in_flight_and_the_rest_waits_its_turn(socket_dir: str) -> None:
    shard = FakeShard(socket_dir, credits=2, answer=silent)
    replies = Replies()
    async with trio.open_nursery() as nursery:
        await nursery.start(shard.run)
        async with running_pool(socket_dir) as pool:
            await up(pool)
            replies.ask(pool, *"abcde")
            await eventually(lambda: len(shard.requests) == 2)
            assert pool.links[0].in_flight == 2 and pool.links[0].queued == 3
            first = shard.requests[0]
            await shard.send(Answer(first.id, 200, b"{"))
            await eventually(lambda: len(shard.requests) == 3)
            shard.answer = ok
            for request in shard.requests[1:3]:
                await shard.send(Answer(request.id, 200, b"{"))
            await eventually(lambda: len(replies.got) == 5)
            assert [request.topic for request in shard.requests] == [*"abcde"]
            assert not shard.violations
        nursery.cancel_scope.cancel()


async def test_beyond_credits_and_queue_the_answer_is_429(socket_dir: str) -> None:
    shard = FakeShard(socket_dir, credits=1, answer=silent)
    options = LinkOptions(max_queued=1)
    replies = Replies()
    async with trio.open_nursery() as nursery:
        await nursery.start(shard.run)
        async with running_pool(socket_dir, options=options) as pool:
            await up(pool)
            replies.ask(pool, *"abc")
            reply = replies.got["c"]
            assert isinstance(reply, Throttled) and reply.detail == {"retry_after_ms": reply.retry_after_ms}
            assert list(replies.got) == ["c"]
        nursery.cancel_scope.cancel()


async def test_a_worker_that_does_not_read_fills_a_bound_and_not_the_memory(socket_dir: str) -> None:
    shard = FakeShard(socket_dir, answer=silent)
    options = LinkOptions(max_unsent_bytes=2_000_000)
    replies = Replies()
    body = b"x" * 500_000
    async with trio.open_nursery() as nursery:
        await nursery.start(shard.run)
        async with running_pool(socket_dir, options=options) as pool:
            await up(pool)
            shard.stop_reading()
            replies.ask(pool, "wake")
            await eventually(lambda: shard.requests)
            for n in range(12):
                replies.ask(pool, f"t{n}", body=body)
            assert replies.got and {replies.status(name) for name in replies.got} == {429}
            shard.resume_reading()
            taken = 12 - len(replies.got)
            await eventually(lambda: len(shard.requests) == 1 + taken)
        nursery.cancel_scope.cancel()


async def test_a_cancelled_read_is_told_to_the_worker_or_withdrawn(socket_dir: str) -> None:
    shard = FakeShard(socket_dir, credits=1, answer=silent)
    replies = Replies()
    async with trio.open_nursery() as nursery:
        await nursery.start(shard.run)
        async with running_pool(socket_dir) as pool:
            await up(pool)
            sent, queued = replies.ask(pool, "sent", "queued")
            await eventually(lambda: shard.requests)
            pool.cancel("queued", queued)
            assert list(replies.got) == ["queued"]
            pool.cancel("sent", sent)
            pool.flush()
            await eventually(lambda: len(shard.requests) == 2)
            assert shard.requests[1] == Request(sent, Op.CANCEL, "", b"", {"id": sent})
            await shard.send(Answer(sent, 499, b""))
            await eventually(lambda: "sent" in replies.got)
            pool.cancel("sent", sent)  # too late, and harmless
        nursery.cancel_scope.cancel()


async def test_totals_come_with_hello_and_stats(socket_dir: str) -> None:
    shard = FakeShard(socket_dir)
    async with trio.open_nursery() as nursery:
        await nursery.start(shard.run)
        async with running_pool(socket_dir) as pool:
            await up(pool)
            assert pool.totals() == (0, 0)
            await shard.send(Stats(5, 700))
            await eventually(lambda: pool.totals() == (5, 700))
        nursery.cancel_scope.cancel()


async def test_a_draining_worker_finishes_and_takes_no_more(socket_dir: str) -> None:
    shard = FakeShard(socket_dir, credits=1, answer=silent)
    replies = Replies()
    async with trio.open_nursery() as nursery:
        await nursery.start(shard.run)
        async with running_pool(socket_dir) as pool:
            await up(pool)
            replies.ask(pool, "sent", "queued")
            await eventually(lambda: shard.requests)
            await shard.send(Draining())
            await eventually(lambda: "queued" in replies.got)
            replies.ask(pool, "late")
            assert replies.status("queued") == replies.status("late") == 503
            await shard.send(Answer(shard.requests[0].id, 200, b"{"))
            await eventually(lambda: "sent" in replies.got)
            assert replies.status("sent") == 200
        nursery.cancel_scope.cancel()


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def opened(path: Path) -> BinaryIO:
    return path.open("rb")


async def test_passed_files_are_read_and_closed_when_retired_and_released(
    socket_dir: str, tmp_path: Path
) -> None:
    (tmp_path / "wal").write_bytes(b"0123456789")
    shard = FakeShard(socket_dir, answer=silent)
    replies = Replies()
    async with trio.open_nursery() as nursery:
        await nursery.start(shard.run)
        async with running_pool(socket_dir) as pool:
            await up(pool)
            replies.ask(pool, "a", "b")
            await eventually(lambda: len(shard.requests) == 2)
            a, b = (request.id for request in shard.requests)
            with opened(tmp_path / "wal") as file:
                # The second answer and the retirement are in the same frame.
                await shard.send_with_fds(
                    [file.fileno()],
                    FileOpened(3),
                    Answer(a, 200, b"{", None, [FileExtent(3, 2, 4)], b"}"),
                    Answer(b, 200, b"{", None, [FileExtent(3, 0, 1), FileExtent(3, 5, 2)], b"}"),
                    FileRetired(3),
                )
            await eventually(lambda: len(replies.leased) == 2)
            (extent,) = replies.leased["a"].extents
            assert os.pread(extent.fd, extent.length, extent.offset) == b"2345"
            replies.leased["a"].release()
            assert is_open(extent.fd)
            replies.leased["b"].release()
            replies.leased["b"].release()  # once is enough, twice does no harm
            assert not is_open(extent.fd)
        nursery.cancel_scope.cancel()


async def test_files_in_use_outlive_their_link_and_the_others_end_with_it(
    socket_dir: str, tmp_path: Path
) -> None:
    (tmp_path / "wal").write_bytes(b"0123456789")
    shard = FakeShard(socket_dir, answer=silent)
    replies = Replies()
    before = set(os.listdir("/proc/self/fd"))
    async with trio.open_nursery() as nursery:
        await nursery.start(shard.run)
        async with running_pool(socket_dir) as pool:
            await up(pool)
            replies.ask(pool, "a")
            await eventually(lambda: shard.requests)
            with opened(tmp_path / "wal") as file:
                await shard.send_with_fds(
                    [file.fileno()] * 3,
                    FileOpened(1),
                    FileOpened(2),
                    Answer(shard.requests[0].id, 200, b"{", None, [FileExtent(1, 0, 10)], b"}"),
                )
            await eventually(lambda: replies.leased)
            await shard.die()
            await eventually(lambda: not pool.links[0].up)
            (extent,) = replies.leased["a"].extents
            assert os.pread(extent.fd, 10, 0) == b"0123456789"
            replies.leased["a"].release()
            assert not is_open(extent.fd)
        nursery.cancel_scope.cancel()
    assert set(os.listdir("/proc/self/fd")) == before


async def test_a_bug_behind_one_answer_does_not_cost_the_others_theirs(socket_dir: str) -> None:
    shard = FakeShard(socket_dir)
    replies = Replies()

    def broken(reply: Reply, leased: LeasedFiles | None) -> None:
        raise RuntimeError("a handler's bug")

    async with trio.open_nursery() as nursery:
        await nursery.start(shard.run)
        async with running_pool(socket_dir) as pool:
            await up(pool)
            pool.request(Op.READ, "x", b"", None, broken)
            replies.ask(pool, "a")
            await eventually(lambda: "a" in replies.got)
            assert replies.status("a") == 200 and pool.links[0].up
        nursery.cancel_scope.cancel()


async def test_a_socket_of_another_user_is_not_trusted(
    socket_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_link, "_PEERCRED", _OtherUser())
    shard = FakeShard(socket_dir)
    async with trio.open_nursery() as nursery:
        await nursery.start(shard.run)
        async with running_pool(socket_dir) as pool:
            await eventually(lambda: "belongs to user" in pool.links[0].reason)
            assert shard.hellos == 0
        nursery.cancel_scope.cancel()


class _OtherUser:
    size = struct.calcsize("3i")

    def unpack(self, data: bytes) -> tuple[int, int, int]:
        pid, uid, gid = struct.unpack("3i", data)
        return pid, uid + 1, gid


async def test_asking_every_shard_gives_one_reply_per_shard_in_order(socket_dir: str) -> None:
    shards = [FakeShard(socket_dir, shard=n, shards=3) for n in range(2)]
    got: list[list[Reply]] = []
    async with trio.open_nursery() as nursery:
        for shard in shards:
            await nursery.start(shard.run)
        async with running_pool(socket_dir, shards=3) as pool:
            await eventually(lambda: sum(link.up for link in pool.links) == 2)
            pool.request_all(Op.LIST, None, got.append)
            pool.flush()
            await eventually(lambda: got)
            assert [isinstance(reply, Answer) for reply in got[0]] == [True, True, False]
        nursery.cancel_scope.cancel()
