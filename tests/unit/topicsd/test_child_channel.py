from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest
import trio
import trio.testing

from shared.api_keys import parse_api_keys
from shared.io.child_channel import (
    STATUS_LINE_MAX_BYTES,
    BadLine,
    Boot,
    ChildChannel,
    LineSplitter,
    decode_boot,
    decode_event,
    decode_status,
    encode_line,
)
from shared.settings import Settings


class Ends:
    """A channel and the supervisor's ends of it."""

    def __init__(self) -> None:
        ours, control_theirs = socket.socketpair()
        self.control = ours.detach()
        self.status, status_theirs = os.pipe()
        os.set_blocking(self.status, False)
        self.channel = ChildChannel(control_theirs, status_theirs)
        self._open = {self.control, self.status}

    def close(self, fd: int) -> None:
        self._open.remove(fd)
        os.close(fd)

    def close_all(self) -> None:
        for fd in list(self._open):
            self.close(fd)
        self.channel.close()

    def statuses(self) -> list[dict[str, object]]:
        data = os.read(self.status, 1 << 20)
        return [json.loads(line) for line in data.splitlines()]


@pytest.fixture
def ends() -> Iterator[Ends]:
    both = Ends()
    yield both
    both.close_all()


def test_a_boot_arrives_as_it_was_sent_with_digests_for_keys() -> None:
    keys = parse_api_keys("s3cret:rw:a.|b.,other", key="api_keys", source="test")
    boot = Boot(
        settings=Settings(api_keys=keys, port=0), shards=3, socket_dir="/run", shard=2, listen_fds=(7, 8)
    )
    line = encode_line(boot)
    assert b"s3cret" not in line
    assert line.count(b"\n") == 1
    assert decode_boot(line) == boot


@pytest.mark.parametrize("decode", [decode_boot, decode_status, decode_event])
@pytest.mark.parametrize("line", [b"", b"{", b"[]", b'{"status":1,"event":', b"\xff"])
def test_garbage_on_a_pipe_is_one_kind_of_error(decode: object, line: bytes) -> None:
    assert callable(decode)
    with pytest.raises(BadLine):
        decode(line)


def test_lines_are_found_whatever_the_chunking() -> None:
    data = b'{"a":1}\n\n{"b":2}\n'
    for size in range(1, len(data) + 1):
        splitter = LineSplitter(100)
        lines = [line for at in range(0, len(data), size) for line in splitter.feed(data[at : at + size])]
        assert lines == [b'{"a":1}', b"", b'{"b":2}']


def test_a_line_without_end_is_refused() -> None:
    splitter = LineSplitter(10)
    splitter.feed(b"x" * 10)
    with pytest.raises(BadLine):
        splitter.feed(b"x")


def test_the_boot_line_does_not_swallow_the_events_behind_it(ends: Ends) -> None:
    boot = Boot(settings=Settings(), shards=1, socket_dir="/run", heartbeat_s=0.25)
    os.write(ends.control, encode_line(boot) + encode_line({"event": "shard", "shard": 0}))
    assert ends.channel.read_boot() == boot
    assert trio.run(ends.channel.receive) == {"event": "shard", "shard": 0}


def test_descriptors_come_with_the_boot_line_under_numbers_of_the_receiver(ends: Ends) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        boot = Boot(settings=Settings(), shards=1, socket_dir="/run", listen_fds=(listener.fileno(),))
        with socket.socket(fileno=os.dup(ends.control)) as control:
            socket.send_fds(control, [encode_line(boot)], boot.listen_fds)
        (fd,) = ends.channel.read_boot().listen_fds
        assert fd != listener.fileno() and not os.get_inheritable(fd)
        with socket.socket(fileno=fd) as received:
            assert received.getsockname() == listener.getsockname()


def test_descriptors_that_got_lost_are_noticed(ends: Ends) -> None:
    os.write(
        ends.control, encode_line(Boot(settings=Settings(), shards=1, socket_dir="/run", listen_fds=(3,)))
    )
    with pytest.raises(BadLine):
        ends.channel.read_boot()


@pytest.mark.trio
async def test_the_end_of_the_control_socket_ends_the_wait(ends: Ends) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ends.channel.closed)
        await trio.testing.wait_all_tasks_blocked()
        os.write(ends.control, encode_line({"event": "ignored by workers"}))
        await trio.testing.wait_all_tasks_blocked()
        assert nursery.child_tasks
        ends.close(ends.control)


def test_a_long_reason_still_fits_one_write(ends: Ends) -> None:
    ends.channel.report("failed", reason="ü\n" * 10_000, retry=False)
    (status,) = ends.statuses()
    assert status["status"] == "failed"
    assert len(encode_line(status)) <= STATUS_LINE_MAX_BYTES


def test_a_full_pipe_costs_heartbeats_and_nothing_else(ends: Ends) -> None:
    for _ in range(10_000):
        ends.channel.report("alive")
    ends.channel.report("ready")
    waiting = ends.statuses()
    assert 0 < len(waiting) < 10_000
    assert {status["status"] for status in waiting} == {"alive"}
    ends.channel.report("alive")
    assert [status["status"] for status in ends.statuses()] == ["ready", "alive"]


def test_reporting_to_a_supervisor_that_is_gone_does_nothing(ends: Ends) -> None:
    ends.close(ends.status)
    ends.channel.report("ready")
    ends.channel.report("alive")


@pytest.mark.trio
async def test_the_heart_beats_once_per_interval(ends: Ends, autojump_clock: trio.testing.MockClock) -> None:
    beats = iter(range(100))
    with trio.move_on_after(3.5):
        await ends.channel.heartbeat(lambda: {"beat": next(beats)})
    assert ends.statuses() == [{"status": "alive", "beat": beat} for beat in range(4)]


@pytest.mark.parametrize("module", ["gateway"])
def test_a_child_without_a_supervisor_says_how_it_is_started(module: str) -> None:
    done = subprocess.run([sys.executable, "-m", module], stdin=subprocess.DEVNULL, capture_output=True)
    assert done.returncode == 2
    assert b"topicsd serve" in done.stderr or b"--status-fd" in done.stderr


def test_a_hang_up_is_seen_outside_of_the_loop_and_data_is_not_taken_for_one(ends: Ends) -> None:
    os.write(ends.control, b"{}\n")
    assert not ends.channel.hung_up()
    ends.close(ends.control)
    assert ends.channel.hung_up()


def test_a_child_whose_loop_hangs_ends_when_its_supervisor_is_gone() -> None:
    code = "import sys\nfrom shared.io.child_channel import ChildChannel\nChildChannel.open(sys.argv)\nwhile True: pass"
    boot = Boot(settings=Settings(), shards=1, socket_dir="/run", exit_within_s=0.05)
    status_ours, status_theirs = os.pipe()
    control_ours, control_theirs = socket.socketpair()
    child = subprocess.Popen(
        [sys.executable, "-c", code, "--status-fd", str(status_theirs)],
        stdin=control_theirs,
        pass_fds=[status_theirs],
    )
    os.close(status_theirs)
    control_theirs.close()
    try:
        control_ours.sendall(encode_line(boot))
        control_ours.close()
        assert child.wait(10) == 1
        assert os.read(status_ours, 1) == b""
    finally:
        child.kill()
        os.close(status_ours)
