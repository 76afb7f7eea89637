"""A worker loop: claims a job, runs a command on it, acks or nacks by how that ended, keeps the lease meanwhile.

Each of the parallel workers is a thread with a connection of its own. The first signal lets the running commands
finish; the second one stops them and gives their jobs back.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import FrameType

import msgspec

from topicsd.client.api import Server
from topicsd.client.errors import ClientError, Exit, JobsFailed, Refused, Unreachable
from topicsd.client.jobs import Held, Job, Queue, Settled
from topicsd.client.output import count, note
from topicsd.client.patience import patiently
from topicsd.client.record_lines import Form, shown

WAIT_MS = 20_000  # of one claim
KILL_AFTER_S = 5.0


@dataclass(frozen=True, kw_only=True)
class WorkPlan:
    topic: str
    node: str
    command: str
    lease_ms: int
    nack_delay_ms: int
    form: Form
    drain: bool  # end when nothing is ready
    limit: int | None  # end after so many jobs
    retry_for_s: float


@dataclass
class Tally:
    """Shared by all workers; each field is changed under the lock."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    left: int | None = None
    done: int = 0
    failed: int = 0
    lost: int = 0

    def take_turn(self) -> bool:
        with self.lock:
            if self.left is None:
                return True
            self.left -= 1
            return self.left >= 0

    def return_turn(self) -> None:
        with self.lock:
            if self.left is not None:
                self.left += 1

    def add(self, *, done: int = 0, failed: int = 0, lost: int = 0) -> None:
        with self.lock:
            self.done += done
            self.failed += failed
            self.lost += lost


def run_workers(server: Server, plan: WorkPlan, *, parallel: int) -> Exit:
    tally = Tally(left=plan.limit)
    workers = [Worker(server.another(), plan, tally) for _ in range(parallel)]
    threads = [threading.Thread(target=worker.run, daemon=True) for worker in workers]
    signals = 0

    def stop(_number: int, _frame: FrameType | None) -> None:
        nonlocal signals
        signals += 1
        if signals == 1 and any(worker.busy for worker in workers):
            note("finishing the jobs that run; once more to stop them and give them back")
        for worker in workers:
            worker.stop(now=signals > 1)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(0.2)  # in slices, so that signals are handled in between
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    problem = next((worker.problem for worker in workers if worker.problem is not None), None)
    if problem is not None:
        raise problem
    lost = f", {count(tally.lost)} lost to others" if tally.lost else ""
    summary = f"{count(tally.done)} jobs done, {count(tally.failed)} failed{lost}"
    if signals:
        note(summary)
        return Exit.INTERRUPTED
    if tally.failed or tally.lost:
        raise JobsFailed(f"{summary}; failed ones were given back, see above for why")
    note(summary)
    return Exit.OK


class Worker:
    def __init__(self, server: Server, plan: WorkPlan, tally: Tally) -> None:
        self._queue = Queue(server, plan.topic, plan.node)
        self._plan = plan
        self._tally = tally
        self._stopping = threading.Event()
        self._stop_now = threading.Event()
        self._reached = False
        self.busy = False
        self.problem: ClientError | None = None

    def stop(self, *, now: bool) -> None:
        self._stopping.set()
        if now:
            self._stop_now.set()
        if not self.busy:
            # It waits for a job; the server takes back what it may be about to answer.
            self._queue.server.abort()

    def run(self) -> None:
        try:
            while not self._stopping.is_set() and self._tally.take_turn():
                job = self._next_job()
                if job is None:
                    self._tally.return_turn()
                    if self._plan.drain:
                        return
                    continue
                self.busy = True
                try:
                    self._work_on(job)
                finally:
                    self.busy = False
        except ClientError as err:
            if not (self._stopping.is_set() and isinstance(err, Unreachable)):
                self.problem = err
        finally:
            self._queue.server.close()

    def _next_job(self) -> bytes | None:
        def attempt() -> bytes | None:
            if self._stopping.is_set():
                return None
            try:
                found = self._queue.claim(
                    1, lease_ms=self._plan.lease_ms, wait_ms=0 if self._plan.drain else WAIT_MS
                )
            except Unreachable:
                if self._stopping.is_set():
                    return None
                raise
            self._reached = True
            return bytes(found.claimed[0]) if found.claimed else None

        return patiently(
            attempt, for_s=self._plan.retry_for_s, unreachable_too=self._reached, sleep=self._stopping.wait
        )

    def _work_on(self, raw: bytes) -> None:
        job = msgspec.json.decode(raw, type=Job)
        held = Held(job.seq, job.lease_id)
        code, ours = self._run_command(job, held, raw)
        if not ours:
            self._tally.add(lost=1)
            note(f"job {job.seq}: its lease ran out and is no longer ours; the command was stopped")
            return
        if code == 0:
            self._settle("ack", held)
            return
        how = f"exit {code}" if code > 0 else f"signal {signal.Signals(-code).name}"
        delay = f" in {self._plan.nack_delay_ms} ms" if self._plan.nack_delay_ms else ""
        note(f"job {job.seq}: the command ended with {how} (delivery {job.deliveries}); given back{delay}")
        self._settle("nack", held)

    def _settle(self, verb: str, held: Held) -> None:
        delay_ms = self._plan.nack_delay_ms if verb == "nack" else 0
        answer = patiently(
            lambda: self._queue.settle("ack" if verb == "ack" else "nack", [held], delay_ms=delay_ms),
            for_s=self._plan.retry_for_s,
        )
        if self._queue.server.decode(Settled, answer).skipped:
            # Its lease ran out at the very end, or the answer to a first try was lost.
            note(f"job {held.seq}: the {verb} was skipped, another lease may have it by now")
            self._tally.add(lost=1)
        elif verb == "ack":
            self._tally.add(done=1)
        else:
            self._tally.add(failed=1)

    # --- the command ------------------------------------------------------------------------------------

    def _run_command(self, job: Job, held: Held, raw: bytes) -> tuple[int, bool]:
        """How it ended, and whether the job is still ours."""
        process = subprocess.Popen(  # noqa: S602 (the person's own command, as in `find -exec` and `xargs sh -c`)
            self._plan.command,
            shell=True,
            stdin=subprocess.PIPE,
            env={**os.environ, **job_environment(self._plan.topic, job)},
            start_new_session=True,  # ^C is for us, and a command is stopped with all it has started
        )
        feeder = threading.Thread(
            target=_feed, args=(process, shown(raw, self._plan.form) + b"\n"), daemon=True
        )
        feeder.start()
        tick_s = self._plan.lease_ms / 3000
        extend_at = time.monotonic() + tick_s
        while True:
            try:
                return process.wait(min(0.1, tick_s)), True
            except subprocess.TimeoutExpired:
                pass
            if self._stop_now.is_set():
                _stop_group(process)
                return process.returncode or -signal.SIGTERM, True
            if time.monotonic() >= extend_at:
                extend_at = time.monotonic() + tick_s
                if not self._extend(held):
                    _stop_group(process)
                    return process.returncode, False

    def _extend(self, held: Held) -> bool:
        try:
            return self._queue.extend(held, self._plan.lease_ms)
        except Unreachable:
            return True  # the command goes on; there are two more tries before the lease runs out
        except Refused as err:
            if not err.passes:
                raise
            return True


def job_environment(topic: str, job: Job) -> Mapping[str, str]:
    return {
        "TOPICS_JOB_QUEUE": topic,
        "TOPICS_JOB_SEQ": str(job.seq),
        "TOPICS_JOB_DELIVERIES": str(job.deliveries),
        "TOPICS_JOB_LEASE_ID": job.lease_id,
    }


def _feed(process: subprocess.Popen[bytes], data: bytes) -> None:
    """In a thread: a command that does not read its stdin must not keep us from its lease."""
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.write(data)
    with contextlib.suppress(OSError):
        process.stdin.close()


def _stop_group(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(KILL_AFTER_S)
            return
