"""A worker's links: what a peer may cost, and that one that misbehaves costs nobody else anything.

`Link` over a socket pair, step by step; `TurnLoop` with a shard on the fake disk and a real Unix socket.
"""

from __future__ import annotations

import array
import errno
import os
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pytest
import trio

import shard_worker.serve.link as link_module
import shard_worker.serve.served_files as served_files_module
import shard_worker.serve.turns as turns_module
from shard_worker.request import Request
from shard_worker.serve.link import Link, LinkGone
from shard_worker.serve.pushes import Pushes
from shard_worker.serve.served_files import ServedFiles
from shard_worker.serve.turns import peer_uid
from shared.limits import LINK_MAX_FRAME_BYTES, KiB, MiB
from shared.session import ClientHello, ClientSession, LinkState, encode_client_hello
from shared.wire import (
    MAX_FDS_PER_FRAME,
    Answer,
    Draining,
    FileExtent,
    FileOpened,
    FileRetired,
    LinkError,
    Op,
    ServerMessage,
    Stats,
    TopicAdvanced,
    TopicNotice,
    encode_requests,
    frame,
)
from shared.wire import Request as WireRequest
from tests.support.fake_shard import eventually
from tests.support.running_worker import running
from tests.support.shard_driver import ShardDriver


def open_descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def bound(name: str, value: int) -> Any:
    """A limit of links, small enough for a test to meet."""
    return patch.object(link_module, name, value)


# --- a link, step by step ---------------------------------------------------------------------------------


class Peer:
    """The other end of a link, on a socket that never waits."""

    def __init__(self, sock: socket.socket, role: str) -> None:
        self.sock = sock
        self.session: ClientSession[str] = ClientSession(role=role, version="test", max_queued=1000)
        self.fds: list[int] = []

    def ask(self, count: int = 1) -> None:
        for _ in range(count):
            self.session.submit(Op.READ, "t", b"{}", None, "waits")
        self.sock.send(self.session.take_outgoing())

    def receive(self) -> list[ServerMessage]:
        """Whatever has arrived; descriptors gather in `fds`."""
        found: list[ServerMessage] = []
        while True:
            try:
                data, ancillary, _, _ = self.sock.recvmsg(1 << 20, socket.CMSG_SPACE(4 * MAX_FDS_PER_FRAME))
            except BlockingIOError:
                return found
            for _, _, raw in ancillary:
                self.fds += array.array("i", raw[: len(raw) // 4 * 4]).tolist()
            if not data:
                raise EOFError
            found += self.session.receive(data)


class Wired:
    """A link and its peer."""

    def __init__(self, files: ServedFiles | None = None, role: str = "gateway") -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        self.link = Link(ours, cast(ServedFiles, files), shard=2, shards=5)
        self.peer = Peer(theirs, role)

    def shake_hands(self) -> Wired:
        self.peer.sock.send(self.peer.session.hello())
        assert self.link.receive(7, 700) == []
        assert self.peer.receive() == []
        assert self.peer.session.state is LinkState.OPEN
        return self

    def asked(self, count: int = 1) -> list[int]:
        """Ids of requests that have arrived."""
        self.peer.ask(count)
        return [request.id for request in self.link.receive(7, 700)]

    def flush(self) -> None:
        self.link.flush(7, 700)

    def drained(self) -> list[ServerMessage]:
        """Everything that the link has for its peer."""
        found = self.peer.receive()
        while self.link.blocked:
            self.link.send_more()
            found += self.peer.receive()
        return found

    def close(self) -> None:
        self.link.close()
        self.peer.sock.close()
        for fd in self.peer.fds:
            os.close(fd)


@pytest.fixture
def wired() -> Iterator[Wired]:
    both = Wired()
    yield both
    both.close()


def log_files(directory: Path, count: int) -> tuple[ServedFiles, dict[int, SimpleNamespace]]:
    """Files 1 … count as a log has them, each with a content of its own."""
    held = {}
    for number in range(1, count + 1):
        path = directory / f"{number:010d}.wal"
        path.write_bytes(content_of(number))

        def pread(length: int, offset: int, path: Path = path) -> bytes:
            return path.read_bytes()[offset : offset + length]

        held[number] = SimpleNamespace(path=str(path), pread=pread)
    return ServedFiles(cast(Any, SimpleNamespace(files=held))), held


def content_of(number: int) -> bytes:
    return b"the content of log file %d" % number


def extents_of(*files: int) -> list[tuple[int, int, int]]:
    return [(file, 0, len(content_of(file))) for file in files]


def without_stats(messages: Sequence[ServerMessage]) -> list[ServerMessage]:
    return [message for message in messages if not isinstance(message, Stats)]


def test_a_hello_is_answered_with_the_shard_its_credits_and_totals(wired: Wired) -> None:
    assert not wired.link.open
    wired.shake_hands()
    assert wired.link.open
    peer = wired.peer.session.peer
    assert peer is not None
    assert (peer.shard, peer.shards, peer.topics, peer.bytes) == (2, 5, 7, 700)
    assert peer.credits == link_module.LINK_CREDITS


def test_a_hello_without_a_common_version_is_told_why_and_ends_the_link(wired: Wired) -> None:
    wired.peer.sock.send(encode_client_hello(ClientHello(98, 99, "gateway", "test")))
    with pytest.raises(LinkGone):
        wired.link.receive(0, 0)
    with pytest.raises(LinkError, match="we speak protocol"):
        wired.peer.receive()


def test_nothing_is_sent_before_the_hello(wired: Wired) -> None:
    wired.link.drain()
    wired.flush()
    assert wired.peer.receive() == []


def test_a_request_before_the_hello_is_answered_ends_the_link(wired: Wired) -> None:
    request = encode_requests([WireRequest(1, Op.PING, "", b"")])
    wired.peer.sock.send(wired.peer.session.hello() + request)
    with pytest.raises(LinkGone):
        wired.link.receive(0, 0)


@pytest.mark.parametrize(
    "garbage",
    [
        (LINK_MAX_FRAME_BYTES + 1).to_bytes(4, "big"),
        frame(b"\xff\xff\xff"),
        frame(b"\x81\x81\x01"),
        frame(b"\xa1\x01\x02"),
    ],
    ids=["oversized", "no-cbor", "no-request", "no-list"],
)
def test_bytes_that_are_no_requests_end_the_link(wired: Wired, garbage: bytes) -> None:
    wired.shake_hands()
    wired.peer.sock.send(garbage)
    with pytest.raises(LinkGone):
        wired.link.receive(0, 0)


def test_a_peer_that_hangs_up_ends_the_link(wired: Wired) -> None:
    wired.shake_hands()
    wired.peer.sock.close()
    with pytest.raises(LinkGone):
        wired.link.receive(0, 0)


def test_more_requests_than_credits_end_the_link() -> None:
    with bound("LINK_CREDITS", 4):
        both = Wired().shake_hands()
    requests = [WireRequest(number, Op.READ, "t", b"{}") for number in range(1, 6)]
    both.peer.sock.send(encode_requests(requests[:4]))
    assert len(both.link.receive(0, 0)) == both.link.in_flight == 4
    both.peer.sock.send(encode_requests(requests[4:]))
    with pytest.raises(LinkGone):
        both.link.receive(0, 0)
    both.close()


def test_an_answer_gives_its_credit_back_and_a_turn_leaves_as_one_frame(wired: Wired) -> None:
    first, second = wired.shake_hands().asked(2)
    wired.link.answer(second, 200, b"b")
    wired.link.answer(first, 404, b"a", {"retry_after_ms": 5.0})
    assert wired.link.in_flight == 2
    assert wired.peer.receive() == []
    wired.flush()
    assert wired.link.in_flight == 0
    assert wired.peer.receive() == [
        Answer(second, 200, b"b"),
        Answer(first, 404, b"a", {"retry_after_ms": 5.0}),
    ]


@pytest.mark.parametrize("over", [-1, 0, 1, 100_000])
def test_a_frame_of_any_length_arrives(wired: Wired, over: int) -> None:
    wired.shake_hands()
    peer = wired.peer
    peer.sock.setblocking(True)
    empty = len(encode_requests([WireRequest(1, Op.APPEND, "t", b"")]))
    body = b"x" * (link_module._MOST_FIT_BYTES + over - empty)
    peer.session.submit(Op.APPEND, "t", body, None, "waits")
    outgoing = peer.session.take_outgoing()
    assert len(outgoing) == link_module._MOST_FIT_BYTES + over
    peer.sock.sendall(outgoing)
    (request,) = wired.link.receive(7, 700)
    assert request.body == body
    assert wired.link.receive(7, 700) == []


def test_an_answer_that_the_socket_takes_in_parts_arrives_whole_and_in_order(wired: Wired) -> None:
    wired.shake_hands()
    ids = wired.asked(2)
    large, small = b"x" * MiB, b"y"
    wired.link.answer(ids[0], 200, large)
    wired.link.flush(7, 700)
    assert wired.link.blocked and 0 < wired.link.unsent_bytes < MiB
    wired.link.answer(ids[1], 200, small)
    wired.link.flush(7, 700)
    found: list[ServerMessage] = []
    while wired.link.blocked:
        found += wired.peer.receive()
        wired.link.send_more()
    found += wired.peer.receive()
    assert [message.body for message in found if isinstance(message, Answer)] == [large, small]
    assert wired.link.unsent_bytes == 0


def test_draining_is_told_once(wired: Wired) -> None:
    wired.shake_hands()
    for _ in range(2):
        wired.link.drain()
        wired.flush()
    assert wired.peer.receive() == [Draining()]


# --- descriptors ------------------------------------------------------------------------------------------


def test_a_gateway_gets_each_file_once_and_extents_from_then_on(tmp_path: Path) -> None:
    both = Wired(log_files(tmp_path, 2)[0]).shake_hands()
    ids = both.asked(3)
    for id_, files in zip(ids, [(1,), (1,), (1, 2)], strict=True):
        both.link.answer(id_, 200, b"[", None, extents_of(*files), b"]")
        both.flush()
    messages = both.drained()
    opened = [message.file for message in messages if isinstance(message, FileOpened)]
    assert opened == [1, 2]
    assert [os.pread(fd, 100, 0) for fd in both.peer.fds] == [content_of(1), content_of(2)]
    answers = [message for message in messages if isinstance(message, Answer)]
    assert answers[2] == Answer(
        ids[2], 200, b"[", None, [FileExtent(*extent) for extent in extents_of(1, 2)], b"]"
    )
    for fd in both.peer.fds:
        with pytest.raises(OSError):
            os.write(fd, b"read only")
    both.close()


@pytest.mark.parametrize("role", ["worker", "cli"])
def test_anybody_else_gets_bytes(tmp_path: Path, role: str) -> None:
    both = Wired(log_files(tmp_path, 1)[0], role).shake_hands()
    (id_,) = both.asked()
    both.link.answer(id_, 200, b"[", None, extents_of(1), b"]")
    both.flush()
    assert both.drained() == [Answer(id_, 200, b"[" + content_of(1) + b"]")]
    assert both.peer.fds == []
    both.close()


def test_more_files_than_a_frame_carries_are_sent_as_bytes(tmp_path: Path) -> None:
    both = Wired(log_files(tmp_path, MAX_FDS_PER_FRAME + 1)[0]).shake_hands()
    (id_,) = both.asked()
    files = range(1, MAX_FDS_PER_FRAME + 2)
    both.link.answer(id_, 200, b"", None, extents_of(*files))
    both.flush()
    assert both.drained() == [Answer(id_, 200, b"".join(map(content_of, files)))]
    both.close()


def test_a_file_that_is_retired_while_the_socket_is_blocked_is_still_the_one_that_arrives(
    tmp_path: Path,
) -> None:
    files, held = log_files(tmp_path, 2)
    both = Wired(files).shake_hands()
    first, second = both.asked(2)
    both.link.answer(first, 200, b"x" * (4 * MiB))
    both.flush()
    assert both.link.blocked
    both.link.answer(second, 200, b"[", None, extents_of(1), b"]")
    both.flush()
    number = files.descriptor(1)
    both.link.retire(1)
    fd = files.forget(1)
    assert fd is not None
    os.close(fd)
    del held[1]
    both.flush()
    assert files.descriptor(2) == number, "this test needs a number that is used again"

    messages = both.drained()
    assert [os.pread(fd, 100, 0) for fd in both.peer.fds] == [content_of(1)]
    kinds = [type(message) for message in without_stats(messages)]
    assert kinds == [Answer, FileOpened, Answer, FileRetired]
    both.close()
    files.close()


def test_descriptors_are_closed_when_they_have_left_or_their_link_has_gone(tmp_path: Path) -> None:
    files, _ = log_files(tmp_path, 3)
    for number in (1, 2, 3):
        files.descriptor(number)
    before = open_descriptors()
    both = Wired(files).shake_hands()
    ids = both.asked(4)
    both.link.answer(ids[0], 200, b"", None, extents_of(1))
    both.flush()  # has left
    both.link.answer(ids[1], 200, b"x" * (4 * MiB))
    both.flush()
    both.link.answer(ids[2], 200, b"", None, extents_of(2))
    both.flush()  # waits behind the large one
    both.link.answer(ids[3], 200, b"", None, extents_of(3))  # waits for the end of the turn
    assert both.link.blocked
    both.peer.receive()
    both.close()
    assert open_descriptors() == before
    files.close()


@pytest.mark.parametrize("what", ["open", "dup"])
def test_out_of_descriptors_a_read_is_answered_with_bytes_and_leaks_none(tmp_path: Path, what: str) -> None:
    files, _ = log_files(tmp_path, 3)
    both = Wired(files).shake_hands()
    (id_,) = both.asked()
    if what == "dup":
        for number in (1, 2, 3):
            files.descriptor(number)
    before = open_descriptors()
    calls, original = 0, getattr(os, what)

    def refused(*args: object) -> int:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return cast(int, original(*args))

    module = served_files_module if what == "open" else link_module
    with patch.object(module.os, what, refused):
        both.link.answer(id_, 200, b"[", None, extents_of(1, 2, 3), b"]")
    assert calls == 2, "this test needs a first descriptor that is had and a second that is not"
    both.flush()
    whole = b"[" + content_of(1) + content_of(2) + content_of(3) + b"]"
    assert both.drained() == [Answer(id_, 200, whole)]
    assert both.peer.fds == []
    files.close()
    assert len(open_descriptors()) == len(before) - (3 if what == "dup" else 0)
    both.close()


def test_out_of_descriptors_a_read_of_the_log_does_not_escape_the_engine() -> None:
    driver = ShardDriver(wal_file_bytes=4 * MiB, cold_dir=None)
    driver.append("t", [{"data": "x" * 60_000}])
    both = Wired(ServedFiles(driver.engine.wal)).shake_hands()
    (id_,) = both.asked()

    def refused(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with patch.object(served_files_module.os, "open", refused):
        driver.engine.submit(Request(both.link, id_, Op.READ, "t", b"{}", None))
    both.flush()
    (answer,) = both.drained()
    assert isinstance(answer, Answer)
    assert answer.status == 200 and answer.extents is None and b"x" * 60_000 in answer.body
    both.close()


# --- a peer that does not read ----------------------------------------------------------------------------


def test_pushes_to_a_peer_that_does_not_read_stay_bounded_and_it_is_told_where_to_read_on() -> None:
    driver = ShardDriver(wal_file_bytes=64 * MiB, cold_dir=None)
    driver.put("t", cap_records=10)
    both = Wired().shake_hands()
    pushes = Pushes(driver.engine)
    driver.engine.on_changed.append(pushes.note)
    pushes.subscribe(both.link, "t", strong=False)
    most = 0
    with bound("LINK_UNSENT_MAX_BYTES", MiB):
        for _ in range(100):
            driver.append("t", [{"data": "x" * 60_000}])
            both.flush()
            most = max(most, both.link.unsent_bytes)
        assert MiB < most < MiB + 128 * KiB
        advances = [each for each in both.drained() if isinstance(each, TopicAdvanced)]
    assert [each.to_seq for each in advances] == [*range(1, 101)], "every step is told"
    assert advances[0].records is not None and advances[-1].records is None
    driver.append("t", [{"data": "again"}])
    both.flush()
    (last,) = (each for each in both.drained() if isinstance(each, TopicAdvanced))
    assert last.records is not None, "who has caught up gets records again"
    both.close()


def test_pushes_of_one_turn_are_bounded() -> None:
    both = Wired().shake_hands()
    with bound("LINK_TURN_MAX_BYTES", 100 * KiB):
        for seq in range(1, 51):
            both.link.notify(advance(seq, b"x" * (10 * KiB)))
        both.flush()
    advances = [each for each in both.drained() if isinstance(each, TopicAdvanced)]
    assert len(advances) == 50
    assert sum(len(each.records or b"") for each in advances) <= 110 * KiB
    both.close()


def test_a_peer_that_reads_nothing_for_good_loses_its_link() -> None:
    both = Wired().shake_hands()

    def push_for_ever() -> None:
        for seq in range(1, 1_000_000):
            both.link.notify(advance(seq, None))
            both.flush()
            assert both.link.unsent_bytes <= 4 * 16 * KiB

    with bound("LINK_UNSENT_MAX_BYTES", 16 * KiB), pytest.raises(LinkGone):
        push_for_ever()
    both.close()


def advance(seq: int, records: bytes | None) -> TopicNotice:
    return TopicAdvanced("t", 1, seq - 1, seq, seq, 1, records)


# --- the turn loop ----------------------------------------------------------------------------------------


def shard_with(records: int, size: int) -> ShardDriver:
    """A topic `t` whose records are sealed, so that reads of it are answered with bytes."""
    driver = ShardDriver(wal_file_bytes=64 * MiB, cold_dir=None)
    for _ in range(records):
        driver.append("t", [{"data": "x" * size}])
    driver.sync()
    driver.seal()
    return driver


@pytest.mark.trio
async def test_the_answers_of_one_turn_to_one_link_are_bounded_and_come_in_order() -> None:
    with bound("LINK_TURN_MAX_BYTES", 64 * KiB):
        async with running(shard_with(1, 20_000)) as worker:
            client = await worker.connect()
            ids = await client.ask(Op.READ, "t", b"{}", count=100)
            answers = await client.answers(100)
            assert [answer.id for answer in answers] == ids
            assert {(answer.status, len(answer.body) > 20_000) for answer in answers} == {(200, True)}
            assert max(client.frames) < 64 * KiB + 25_000
            assert len(client.frames) > 20


@pytest.mark.trio
async def test_requests_that_wait_for_their_turn_hold_nobody_else_up_and_go_with_their_link() -> None:
    with bound("LINK_TURN_MAX_BYTES", 64 * KiB), bound("LINK_UNSENT_MAX_BYTES", 256 * KiB):
        async with running(shard_with(1, 20_000)) as worker:
            greedy, modest = await worker.connect(), await worker.connect()
            await greedy.ask(Op.READ, "t", b"{}", count=1000)
            assert (await modest.call(Op.STATE, "t")).status == 200
            await eventually(lambda: any(link.congested for link in worker.loop._links.values()))
            reads = worker.driver.engine.counters.reads
            assert reads < 100, "it does not read, so it is not served"
            await greedy.stream.aclose()
            await eventually(lambda: len(worker.loop._links) == 1)
            assert (await modest.call(Op.STATE, "t")).status == 200
            assert worker.driver.engine.counters.reads == reads


@pytest.mark.trio
async def test_a_congested_link_is_not_read_from_until_its_peer_reads() -> None:
    append = b'{"records":[{"data":"%b"}]}' % (b"x" * (100 * KiB))
    with bound("LINK_TURN_MAX_BYTES", 64 * KiB), bound("LINK_UNSENT_MAX_BYTES", 256 * KiB):
        async with running(shard_with(1, 20_000)) as worker:
            slow, other = await worker.connect(), await worker.connect()
            await slow.ask(Op.READ, "t", b"{}", count=100)
            await eventually(lambda: any(link.congested for link in worker.loop._links.values()))
            assert (await other.call(Op.STATE, "t")).status == 200
            sent = trio.Event()

            async def write() -> None:
                for _ in range(100):
                    await slow.ask(Op.APPEND, "u", append)
                sent.set()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(write)
                await eventually(lambda: slow.session.outstanding > 100)
                for _ in range(300):  # turns enough to take all of it in
                    assert (await other.call(Op.STATE, "u")).status == 404
                assert not sent.is_set(), "10 MiB were taken in from a peer that reads nothing"
                answers = await slow.answers(200)
            assert [answer.status for answer in answers[:100]] == [200] * 100
            assert {answer.status for answer in answers[100:]} <= {200, 201}
            assert (await other.call(Op.STATE, "u")).status == 200


@pytest.mark.trio
@pytest.mark.parametrize("fault", ["credits", "oversized", "garbage"])
async def test_a_peer_that_breaks_the_protocol_loses_its_link_and_nobody_elses(fault: str) -> None:
    bad = {
        "credits": encode_requests(
            [WireRequest(number, Op.READ, "t", b'{"from_seq":1,"wait_ms":9000}') for number in range(1, 10)]
        ),
        "oversized": (LINK_MAX_FRAME_BYTES + 1).to_bytes(4, "big"),
        "garbage": frame(b"\xff\xff"),
    }[fault]
    with bound("LINK_CREDITS", 8):
        async with running(shard_with(1, 10)) as worker:
            good, rogue = await worker.connect(), await worker.connect()
            waiting = await good.ask(Op.READ, "t", b'{"from_seq":1,"wait_ms":9000}')
            await rogue.stream.send_all(bad)
            await rogue.expect_end()
            assert len(worker.loop._links) == 1
            appended = await good.ask(Op.APPEND, "t", b'{"records":[{"data":"new"}]}')
            answers = await good.answers(2)
            assert {answer.id for answer in answers} == {*waiting, *appended}
            assert [answer.status for answer in answers] == [200, 200]
            assert (await (await worker.connect()).call(Op.PING)).status == 200


@pytest.mark.trio
async def test_a_peer_of_another_user_is_hung_up_on_before_it_says_anything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    uids = [os.getuid() + 1, os.getuid()]
    monkeypatch.setattr(turns_module, "peer_uid", lambda sock: uids.pop(0))
    async with running(shard_with(1, 10)) as worker:
        stranger = await worker.connect_raw()
        await stranger.expect_end()
        assert worker.loop._links == {}
        assert (await (await worker.connect()).call(Op.PING)).status == 200
    assert uids == []


def test_the_kernel_says_who_the_peer_is() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert peer_uid(ours) == os.getuid()


@pytest.mark.trio
async def test_a_drain_is_told_waiting_reads_are_answered_and_new_requests_refused() -> None:
    async with running(shard_with(1, 20_000)) as worker:
        client, slow = await worker.connect(), await worker.connect()
        (poll,) = await client.ask(Op.READ, "t", b'{"from_seq":1,"wait_ms":9000}')
        await eventually(lambda: worker.driver.engine.waiting_polls == 1)
        # A link that still has answers to take keeps the drain from ending at once.
        await slow.ask(Op.READ, "t", b"{}", count=100)
        await eventually(lambda: any(link.blocked for link in worker.loop._links.values()))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.loop.drain, 5.0)
            await client.until(Draining)
            assert [answer.status for answer in await client.answers(1, {poll})] == [200]
            refused = await client.call(Op.STATE, "t")
            assert refused.status == 503 and b"shutting_down" in refused.body
            assert (await client.call(Op.PING)).status == 200
            assert len(await slow.answers(100)) == 100
