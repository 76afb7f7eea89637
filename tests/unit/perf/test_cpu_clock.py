"""The clock of benches counts what processes below have used, also those that nobody waits for."""

from __future__ import annotations

import subprocess
import sys

from perf.cpu_clock import CpuClock

# As Spark's daemon does: children are not waited for, and the kernel forgets what they have used.
DAEMON = """
import os, signal, sys, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
if os.fork() == 0:
    while time.process_time() < 0.6:
        pass
    print("worked", flush=True)
    sys.stdin.readline()
    os._exit(0)
time.sleep(60)
"""


def test_a_worker_that_ends_unwaited_for_takes_nothing_away() -> None:
    with CpuClock() as clock:
        before = clock.seconds()
        daemon = subprocess.Popen(
            [sys.executable, "-c", DAEMON], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert daemon.stdin is not None and daemon.stdout is not None
        try:
            assert daemon.stdout.readline() == b"worked\n"
            worked = clock.seconds()
            assert worked - before >= 0.5
            daemon.stdin.write(b"\n")
            daemon.stdin.close()
            while _children(daemon.pid):
                pass
            assert clock.seconds() >= worked
        finally:
            daemon.kill()
            daemon.wait()


def _children(pid: int) -> str:
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        return file.read()
