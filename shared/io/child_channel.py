"""The tie between a child process and its supervisor: a socket, a pipe, and JSON lines.

Control, the child's stdin, a Unix socket: the first line is its `Boot`, and descriptors come with it; later lines
are events (`{"event": …}`). End of file means that the child shall drain and exit, whether the supervisor asked for
it or is gone, so that a killed supervisor leaves no orphans. Status, a pipe whose descriptor is named in argv
(`--status-fd N`): what the child says.

| status | fields | meaning |
|---|---|---|
| `replaying` | `progress` 0 to 1 | alive, not serving yet |
| `ready` | | serving |
| `alive` | any | heartbeat from the loop; without one for long enough the child is taken for hung |
| `draining` | | takes no new work |
| `failed` | `reason`, `retry` | will exit now; `retry` false: a restart would fail again |

The gateway's heartbeat has a list `answering`: the shards that have answered it since the one before.

Children follow these two alone and ignore SIGINT, SIGTERM and SIGHUP: a terminal or an init system may
signal the whole group, and the order of draining is the supervisor's. PR_SET_PDEATHSIG is not used: as
SIGKILL it would forbid draining, as SIGTERM it would tell nothing that the end of the socket does not.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Never

import msgspec
import trio
from msgspec import structs

from shared.errors import Internal
from shared.io.spare_memory import use_one_arena
from shared.settings import Settings

HEARTBEAT_S: Final = 1.0

# An event carries at most all keys of the server; a line beyond this is no line of ours.
CONTROL_LINE_MAX_BYTES: Final = 16 << 20
# PIPE_BUF: a write up to here is all or nothing, so a full pipe never holds half a line.
STATUS_LINE_MAX_BYTES: Final = 4096
_REASON_MAX_CHARS: Final = 800
# Statuses that found the pipe full and wait for room; heartbeats are dropped instead.
_UNSENT_MAX: Final = 64
_READ_BYTES: Final = 64 << 10
_FDS_MAX: Final = 64
_USAGE: Final = "usage: --status-fd FD\nA child process of `topicsd serve`, started by it.\n"

Event = Mapping[str, object]


class Boot(msgspec.Struct, frozen=True, kw_only=True):
    """What a child is told at start."""

    settings: Settings
    shards: int
    socket_dir: str
    """Directory of the Unix sockets, see `socket_path`."""

    shard: int | None = None
    """Workers only: which one this is."""

    store_id: str = ""
    """Workers only: the history that this data is part of; the archive is sorted by it."""

    listen_fds: tuple[int, ...] = ()
    """The gateway only: bound and listening sockets. They travel with the line, and have numbers of the receiver's."""

    heartbeat_s: float = HEARTBEAT_S
    exit_within_s: float = 15.0
    """After the end of the control socket; a child that is still there then ends itself, drained or not."""


class StatusLine(msgspec.Struct, frozen=True):
    """What the supervisor reads of a status; other fields are for people."""

    status: str
    progress: float | None = None
    reason: str | None = None
    retry: bool = True
    answering: tuple[int, ...] = ()


class BadLine(Internal):
    """A line on one of the pipes that the other side cannot have meant."""


_BOOT = msgspec.json.Decoder(Boot)
_STATUS = msgspec.json.Decoder(StatusLine)
_EVENT = msgspec.json.Decoder(dict[str, object])


def socket_path(socket_dir: str, shard: int) -> str:
    return os.path.join(socket_dir, f"shard-{shard:04d}.sock")


def encode_line(value: object) -> bytes:
    return msgspec.json.encode(value) + b"\n"


def decode_boot(line: bytes) -> Boot:
    try:
        return _BOOT.decode(line)
    except msgspec.MsgspecError as err:
        raise BadLine(f"boot line from the supervisor: {err}") from err


def decode_status(line: bytes) -> StatusLine:
    try:
        return _STATUS.decode(line)
    except msgspec.MsgspecError as err:
        raise BadLine(f"status line of a child: {err}") from err


def decode_event(line: bytes) -> Event:
    try:
        return _EVENT.decode(line)
    except msgspec.MsgspecError as err:
        raise BadLine(f"event line from the supervisor: {err}") from err


class LineSplitter:
    """Cuts a byte stream into lines, whatever its chunking."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that `data` completes, without their line ends."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > self._max_bytes:
            raise BadLine(f"a line of more than {self._max_bytes} bytes")
        return lines


class ChildChannel:
    """The child's end. `receive` and `closed` read the same socket: use one of them."""

    def __init__(self, control: socket.socket, status_fd: int, *, heartbeat_s: float = HEARTBEAT_S) -> None:
        os.set_blocking(status_fd, False)
        os.set_inheritable(status_fd, False)
        self._control = control
        self._status_fd = status_fd
        self._heartbeat_s = heartbeat_s
        self._splitter = LineSplitter(CONTROL_LINE_MAX_BYTES)
        self._lines: deque[bytes] = deque()
        self._unsent: deque[bytes] = deque(maxlen=_UNSENT_MAX)

    @classmethod
    def open(cls, argv: Sequence[str]) -> tuple[ChildChannel, Boot]:
        """Take over this process's end. Blocks until the boot line is there; call it before the loop runs.

        `argv` is `sys.argv`. A process that no supervisor started exits 2 with a usage message.
        """
        status_fd = _status_fd(argv)
        use_one_arena()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        channel = cls(_take_stdin(), status_fd)
        boot = channel.read_boot()
        _arm_last_resort(channel._control, boot.exit_within_s)
        return channel, boot

    def read_boot(self) -> Boot:
        received: list[int] = []
        while not self._lines:
            data, fds, _, _ = socket.recv_fds(self._control, _READ_BYTES, _FDS_MAX)
            received += fds
            if not data:
                # It died between starting us and speaking to us, and nobody waits for a report.
                raise SystemExit(0)
            self._lines.extend(self._splitter.feed(data))
        boot = decode_boot(self._lines.popleft())
        self._heartbeat_s = boot.heartbeat_s
        if len(received) != len(boot.listen_fds):
            raise BadLine(f"{len(boot.listen_fds)} descriptors were announced, and {len(received)} came")
        for fd in received:
            os.set_inheritable(fd, False)
        return structs.replace(boot, listen_fds=tuple(received))

    def close(self) -> None:
        """For owners that outlive it; at the end of the process the kernel does the same."""
        self._control.close()
        os.close(self._status_fd)

    # --- to the supervisor --------------------------------------------------------------------

    def report(self, status: str, **fields: object) -> None:
        """Send a status now, or with a later one if the pipe is full. Never blocks, never fails."""
        reason = fields.get("reason")
        if reason is not None:
            fields["reason"] = str(reason)[:_REASON_MAX_CHARS]
        line = encode_line({"status": status, **fields})
        assert len(line) <= STATUS_LINE_MAX_BYTES, "a longer line could be cut in half"
        if status != "alive":
            self._unsent.append(line)
            self._send_unsent()
        elif self._send_unsent():
            # A heartbeat that does not fit is worth nothing later.
            self._write(line)

    def _send_unsent(self) -> bool:
        while self._unsent:
            if not self._write(self._unsent[0]):
                return False
            self._unsent.popleft()
        return True

    def _write(self, line: bytes) -> bool:
        try:
            os.write(self._status_fd, line)
        except BlockingIOError:
            return False
        except BrokenPipeError:
            # The supervisor is gone; the control socket says so to whoever must act on it.
            return True
        return True

    async def heartbeat(self, facts: Callable[[], Mapping[str, object]] | None = None) -> Never:
        """Report `alive`, with `facts`, for as long as the loop runs."""
        while True:
            self.report("alive", **(facts() if facts is not None else {}))
            await trio.sleep(self._heartbeat_s)

    # --- from the supervisor ------------------------------------------------------------------

    async def receive(self) -> Event | None:
        """The next event; None at the end, which means: drain and exit."""
        while not self._lines:
            await trio.lowlevel.wait_readable(self._control)
            data = self._control.recv(_READ_BYTES)
            if not data:
                return None
            self._lines.extend(self._splitter.feed(data))
        return decode_event(self._lines.popleft())

    def hung_up(self) -> bool:
        """Whether `closed` would return now, for code that runs outside of the loop (a replay)."""
        return _hang_up_poll(self._control, 0)

    async def closed(self) -> None:
        """Return when it is time to drain and exit. For children that await no events."""
        while await self.receive() is not None:
            pass


def _status_fd(argv: Sequence[str]) -> int:
    # By hand: argparse takes longer to import than everything else that happens here.
    if len(argv) == 3 and argv[1] == "--status-fd" and argv[2].isdecimal():
        return int(argv[2])
    sys.stderr.write(_USAGE)
    raise SystemExit(2)


def _take_stdin() -> socket.socket:
    """The control socket under a number of its own, so that nothing else can read from it by mistake."""
    try:
        control = socket.socket(fileno=os.dup(0))
    except OSError as err:
        sys.stderr.write(_USAGE)
        raise SystemExit(2) from err
    null_fd = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null_fd, 0)
    os.close(null_fd)
    return control


def _hang_up_poll(control: socket.socket, timeout_ms: int | None) -> bool:
    poll = select.poll()
    poll.register(control, 0)  # not for data; the hang-up is always reported
    return bool(poll.poll(timeout_ms))


def _arm_last_resort(control: socket.socket, after_s: float) -> None:
    """End this process `after_s` after the control socket has closed, even if its loop hangs.

    A supervisor that lives kills a child that does not drain; this is for the one that was killed itself.
    """

    def wait_and_end() -> None:
        _hang_up_poll(control, None)
        time.sleep(after_s)
        os._exit(1)

    threading.Thread(target=wait_and_end, name="last-resort", daemon=True).start()
