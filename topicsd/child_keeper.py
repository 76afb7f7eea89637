"""Keeps one child alive: starts it, restarts it when it dies, and ends it when told to.

Its condition is told to `on_condition` at every change. A child that says itself that a restart is pointless
stays down; one in a crash loop is tried again at long intervals.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import trio

from shared.io.child_channel import StatusLine
from topicsd.child_process import ChildProcess, Ending, Silence
from topicsd.core.pulse import Sign
from topicsd.core.restart_policy import RestartPolicy, RestartTimes

log = logging.getLogger(__name__)


class Phase(Enum):
    STARTING = "starting"
    REPLAYING = "replaying"
    READY = "ready"
    DOWN = "down"
    """Dead or draining; the next start is due."""
    FAILED = "failed"
    """Will not come back by itself soon; `reason` says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    phase: Phase
    progress: float | None = None
    reason: str | None = None


class ChildKeeper:
    def __init__(
        self,
        name: str,
        start: Callable[[], ChildProcess],
        *,
        silence: Silence,
        restart: RestartTimes,
        on_condition: Callable[[Condition], None],
        on_word: Callable[[StatusLine], None] = lambda status: None,
    ) -> None:
        """`on_word` is told everything that the child says, heartbeats included."""
        self.name = name
        self.condition = Condition(phase=Phase.STARTING)
        self.last_ending: Ending | None = None
        self.restarts = 0
        self._start = start
        self._silence = silence
        self._policy = RestartPolicy(restart)
        self._on_condition = on_condition
        self._on_word = on_word
        self._started_at = 0.0
        self._heard_at: float | None = None  # None: not a word yet
        self.ready_at: float | None = None
        self._process: ChildProcess | None = None
        self._stopping = trio.Event()
        self._gone = trio.Event()
        self._was_killed = False

    def __repr__(self) -> str:
        return f"ChildKeeper({self.name}, {self.condition.phase.value}, {self._process!r})"

    async def run(self) -> None:
        """Until `stop`."""
        try:
            while not self._stopping.is_set():
                ending = await self._run_once()
                if self._stopping.is_set():
                    return
                await self._pause(ending)
                self.restarts += 1
        finally:
            self._gone.set()

    def send(self, message: object) -> None:
        """To the child, if there is one; the next one is told everything at its start."""
        if self._process is not None:
            self._process.send(message)

    def sign(self, now: float) -> Sign | None:
        """How lively the child is; None without one."""
        if self._process is None:
            return None
        heard_at = self._started_at if self._heard_at is None else self._heard_at
        return Sign(name=self.name, silent_s=now - heard_at, spoke=self._heard_at is not None)

    async def stop(self, timeout_s: float, *, kill_grace_s: float) -> bool:
        """Let the child drain, kill it when the time is up. True if it ended by itself, and well."""
        was_running = self._process is not None
        self._stopping.set()
        if self._process is not None:
            self._process.ask_to_drain()
        with trio.move_on_after(timeout_s):
            await self._gone.wait()
        if not self._gone.is_set():
            log.error("child.drain.overdue", extra={"child": self.name, "timeout_s": round(timeout_s, 3)})
            self.kill("it did not drain in time")
            # Not for ever: a process inside a stuck system call dies only when that returns.
            with trio.move_on_after(kill_grace_s):
                await self._gone.wait()
        if self._was_killed:
            return False
        return not was_running or (self.last_ending is not None and self.last_ending.clean)

    def kill(self, reason: str) -> None:
        """At once, and for good."""
        self._stopping.set()
        if self._process is not None:
            self._was_killed = True
            self._process.kill(reason)

    async def _run_once(self) -> Ending:
        if not self._policy.crash_loop:
            # In a crash loop the reason stays visible until there is better news.
            self._become(Condition(phase=Phase.STARTING))
        try:
            process = self._start()
        except OSError as err:
            # Out of memory, processes or descriptors: as with any other death, a later try may work.
            reason = f"it could not be started: {err.strerror}"
            return Ending(returncode=1, reason=reason, retry=True, ready_for_s=0.0)
        log.info("child.started", extra={"child": self.name, "child_pid": process.pid})
        self._process = process
        self._started_at, self._heard_at = trio.current_time(), None
        try:
            self.last_ending = await process.run(self._on_status, self._silence)
        finally:
            self._process = None
        return self.last_ending

    async def _pause(self, ending: Ending) -> None:
        if not ending.retry:
            log.error("child.failed", extra={"child": self.name, "reason": ending.reason})
            self._become(Condition(phase=Phase.FAILED, reason=ending.reason))
            await self._stopping.wait()
            return
        due = self._policy.died(ready_for_s=ending.ready_for_s)
        fields = {"child": self.name, "reason": ending.reason, "restart_in_s": due.delay_s}
        if due.crash_loop:
            log.error("child.crash_loop", extra=fields | {"quick_deaths": due.quick_deaths})
            reason = f"crash loop: it died {due.quick_deaths} times in a row, the last time: {ending.reason}"
            self._become(Condition(phase=Phase.FAILED, reason=reason))
        else:
            log.warning("child.died", extra=fields)
            self._become(Condition(phase=Phase.DOWN, reason=ending.reason))
        with trio.move_on_after(due.delay_s):
            await self._stopping.wait()

    def _on_status(self, status: StatusLine) -> None:
        self._heard_at = trio.current_time()
        self._on_word(status)
        match status.status:
            case "replaying":
                self._become(Condition(phase=Phase.REPLAYING, progress=status.progress or 0.0))
            case "ready":
                self._become(Condition(phase=Phase.READY))
            case "draining":
                self._become(Condition(phase=Phase.DOWN, reason="it is shutting down"))
            case _:
                pass  # a heartbeat counts by having come; a failure is told with the end of the process

    def _become(self, condition: Condition) -> None:
        if condition == self.condition:
            return
        self.ready_at = trio.current_time() if condition.phase is Phase.READY else None
        if condition.phase is Phase.READY:
            log.info("child.ready", extra={"child": self.name})
        self.condition = condition
        self._on_condition(condition)
