"""Memory is given back when there is more of it than before and nothing to do, and not again and again."""

from __future__ import annotations

import subprocess
import sys

import pytest
import trio
from trio.testing import MockClock

from shared.io import spare_memory

MiB = 1 << 20


class FakeProcess:
    """Resident bytes, CPU time, and a C library that gives a fourth of the former back."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.resident = 100 * MiB
        self.cpu_s = 1.0
        self.trims = 0
        monkeypatch.setattr(spare_memory, "resident_bytes", lambda: self.resident)
        monkeypatch.setattr(spare_memory.time, "process_time", lambda: self.cpu_s)
        monkeypatch.setattr(spare_memory, "from_libc", lambda name: self.trim)

    def trim(self, pad: int) -> int:
        assert pad == 0
        self.trims += 1
        self.resident -= self.resident // 4
        return 1


@pytest.mark.trio
async def test_memory_is_given_back_once_after_each_time_of_work(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    process = FakeProcess(monkeypatch)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(spare_memory.return_spare_memory)
        await trio.sleep(10)
        assert process.trims == 1  # what the start left behind
        for _ in range(20):
            process.resident += MiB
            process.cpu_s += 0.2
            await trio.sleep(0.25)
        assert process.trims == 1  # it is busy
        await trio.sleep(10)
        assert process.trims == 2
        process.resident += 100 << 10
        await trio.sleep(10)
        assert process.trims == 2  # not worth it
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spare_memory, "from_libc", lambda name: None)
    await spare_memory.return_spare_memory()
    spare_memory.use_one_arena()


THREADS = """
import threading
from shared.io.spare_memory import use_one_arena
use_one_arena()
kept = []
threads = [threading.Thread(target=lambda: kept.append(bytes(4096))) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(open("/proc/self/maps").read())
"""


@pytest.mark.parametrize("setting", [None, "4"])
def test_threads_get_no_arenas_of_their_own(setting: str | None) -> None:
    """One would show as a mapping of 64 MiB, most of it out of bounds."""
    env = {} if setting is None else {"MALLOC_ARENA_MAX": setting}
    done = subprocess.run(
        [sys.executable, "-c", THREADS], capture_output=True, text=True, check=True, env=env
    )
    sizes = []
    for line in done.stdout.splitlines():
        words = line.split()
        start, _, end = words[0].partition("-") if words else ("0", "", "0")
        if words and words[1] == "---p" and len(words) < 6:
            sizes.append(int(end, 16) - int(start, 16))
    assert any(size > 60 * MiB for size in sizes) == (setting is not None)
