"""One run of one child process: starts it, hears and feeds it, notices its end or its silence."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import trio

from shared.io.child_channel import (
    STATUS_LINE_MAX_BYTES,
    BadLine,
    Boot,
    LineSplitter,
    StatusLine,
    decode_status,
    encode_line,
)
from topicsd.spawn import Spawned

log = logging.getLogger(__name__)

# Events that a child has not read yet. It reads them in its loop, so one that is this far behind is stuck.
MAIL_MAX: Final = 4096
# Between the end of the status pipe and that of the process; only a child that closes it by mistake needs it.
_EXIT_GRACE_S: Final = 2.0
_SECOND_LOOK_S: Final = 0.1
_READ_BYTES: Final = 64 << 10

OnStatus = Callable[[StatusLine], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """How long a child may say nothing before it is killed: until its first word, and after it."""

    start_s: float = 60.0
    # Well above the 10 s for which a disk may stall a worker that is healthy otherwise.
    hang_s: float = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    returncode: int
    reason: str
    """What happened, for people."""

    retry: bool
    """False: the child itself said that another start would fail the same way."""

    ready_for_s: float

    @property
    def clean(self) -> bool:
        return self.returncode == 0


class ChildProcess:
    def __init__(self, spawned: Spawned, boot: Boot) -> None:
        """Tells a process that has been started what it is to do, and looks after it from now on."""
        self.pid = spawned.process.pid
        self._process = spawned.process
        self._pidfd = spawned.pidfd
        rest = _send_boot(spawned.control, boot)
        self._control = trio.lowlevel.FdStream(spawned.control.detach())
        self._status = trio.lowlevel.FdStream(spawned.status_fd)
        self._post, self._mail = trio.open_memory_channel[bytes](MAIL_MAX)
        self._splitter = LineSplitter(STATUS_LINE_MAX_BYTES)
        self._killed_for: str | None = None
        self._failure: StatusLine | None = None
        self._ready_at: float | None = None
        if rest:
            self._post.send_nowait(rest)

    def __repr__(self) -> str:
        return f"ChildProcess(pid={self.pid}, returncode={self._process.returncode})"

    def send(self, message: object) -> None:
        """Queue a line for the child. One that does not read its mail is taken for hung."""
        try:
            self._post.send_nowait(encode_line(message))
        except trio.WouldBlock:
            self.kill("it does not read its events")
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # it is dying, and its successor will be told everything

    def ask_to_drain(self) -> None:
        """End its control socket, behind what was sent before."""
        self._post.close()

    def kill(self, reason: str) -> None:
        if self._killed_for is None:
            self._killed_for = reason
        self._process.kill()

    async def run(self, on_status: OnStatus, silence: Silence) -> Ending:
        """Look after the child until it has ended. Cancelled, it kills the child."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._deliver_mail)
                await self._hear(on_status, silence)
                with trio.move_on_after(_EXIT_GRACE_S):
                    await self._wait()
                if self._process.returncode is None:
                    self.kill("it closed its status pipe")
                    await self._wait()
                nursery.cancel_scope.cancel()
        finally:
            await self._clean_up()
        assert self._process.returncode is not None
        return self._ending(self._process.returncode)

    async def _deliver_mail(self) -> None:
        with contextlib.suppress(trio.BrokenResourceError):
            async for line in self._mail:
                await self._control.send_all(line)
        await self._control.aclose()
        self._mail.close()

    async def _hear(self, on_status: OnStatus, silence: Silence) -> None:
        """Until its end of the pipe closes, which the kernel does for a dead process, or it is killed."""
        allowed_s = silence.start_s
        while True:
            data = await self._receive_within(allowed_s)
            if data is None:
                # Looked at twice: if this process itself was stopped for a while, it wakes to a deadline
                # that has passed and finds the words only when it looks again.
                data = await self._receive_within(_SECOND_LOOK_S)
            if data is None:
                self.kill(f"no heartbeat for {allowed_s:g} s")
            if not data:
                return
            allowed_s = silence.hang_s
            try:
                for line in self._splitter.feed(data):
                    self._take(decode_status(line), on_status)
            except BadLine as err:
                self.kill(err.message)
                return

    async def _receive_within(self, seconds: float) -> bytes | None:
        with trio.move_on_after(seconds):
            return bytes(await self._status.receive_some(_READ_BYTES))
        return None

    def _take(self, status: StatusLine, on_status: OnStatus) -> None:
        if status.status == "ready" and self._ready_at is None:
            self._ready_at = trio.current_time()
        elif status.status == "failed":
            self._failure = status
        on_status(status)

    async def _wait(self) -> None:
        while self._process.poll() is None:
            await trio.lowlevel.wait_readable(self._pidfd)

    async def _clean_up(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        with trio.CancelScope(shield=True):
            self._post.close()
            self._mail.close()
            await trio.aclose_forcefully(self._control)
            await trio.aclose_forcefully(self._status)
        trio.lowlevel.notify_closing(self._pidfd)
        os.close(self._pidfd)

    def _ending(self, returncode: int) -> Ending:
        ready_for_s = 0.0 if self._ready_at is None else trio.current_time() - self._ready_at
        failure = self._failure
        reason = self._killed_for or (failure and failure.reason) or exit_text(returncode)
        retry = failure is None or failure.retry
        return Ending(returncode=returncode, reason=reason, retry=retry, ready_for_s=ready_for_s)


def exit_text(returncode: int) -> str:
    if returncode >= 0:
        return f"it exited with code {returncode}"
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        name = f"signal {-returncode}"
    return f"it was killed by {name}"


def _send_boot(control: socket.socket, boot: Boot) -> bytes:
    """With the descriptors that belong to it, as much as there is room for. Returns the rest of the line."""
    control.setblocking(False)
    line = encode_line(boot)
    try:
        return line[socket.send_fds(control, [line], boot.listen_fds) :]
    except (BrokenPipeError, ConnectionResetError):
        return b""  # it has died already, and its status pipe says so
