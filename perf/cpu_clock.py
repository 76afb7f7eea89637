"""CPU time of this process and of everything below it, also of what has ended meanwhile.

Adding up what /proc shows is not enough: Spark's daemon ignores SIGCHLD, so the kernel adds the time of a worker that
ends to nobody's, and the sum falls by all that it ever used. Here each process is remembered with what was last seen of
it, and a thread looks often: what is missed is the last moment of those that end.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import TracebackType
from typing import Final

_LOOK_S: Final = 0.5
_PARENT, _USER, _SYSTEM, _STARTED = 1, 11, 12, 19
"""Places in /proc/PID/stat, counted from the state."""


class CpuClock:
    def __init__(self) -> None:
        self._ticks: dict[tuple[int, str], int] = {}
        """By pid and start: pids are used again."""
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> CpuClock:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def seconds(self) -> float:
        """Since the first look. Never falls."""
        with self._lock:
            self._look()
            return sum(self._ticks.values()) / os.sysconf("SC_CLK_TCK")

    def _watch(self) -> None:
        while not self._over.wait(_LOOK_S):
            with self._lock:
                self._look()

    def _look(self) -> None:
        children: dict[int, list[int]] = {}
        found: dict[int, tuple[tuple[int, str], int]] = {}
        for name in os.listdir("/proc"):
            if not name.isdigit():
                continue
            try:
                # The name of the program comes first, in brackets, and may hold anything.
                fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            pid = int(name)
            children.setdefault(int(fields[_PARENT]), []).append(pid)
            found[pid] = ((pid, fields[_STARTED]), int(fields[_USER]) + int(fields[_SYSTEM]))
        todo = [os.getpid()]
        while todo:
            pid = todo.pop()
            todo += children.get(pid, [])
            if pid in found:
                process, ticks = found[pid]
                self._ticks[process] = max(ticks, self._ticks.get(process, 0))
