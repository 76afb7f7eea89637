"""`topics top`: plain where there is no terminal, a live screen where there is one."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator

import pytest

from tests.support.api_client import ApiClient, fresh
from tests.support.live_server import LiveServer
from tests.support.server_process import ROOT
from tests.support.topics_cli import WAIT_S, TopicsCli
from topicsd.client.readings import REFUSALS, SIGNS, TROUBLES


class Terminal:
    """A pseudo-terminal and what stands on its screen: enough of one for what `top` sends."""

    def __init__(self, cli: TopicsCli, *arguments: object, rows: int = 24, columns: int = 100) -> None:
        self._fd, child = pty.openpty()
        self.resize(rows, columns, notify=False)
        self.process = subprocess.Popen(
            cli.command(*arguments),
            stdin=child,
            stdout=child,
            stderr=child,
            env={**cli.env, "TERM": "xterm"},
            cwd=ROOT,
            start_new_session=True,
        )
        self.modes_before = termios.tcgetattr(child)
        self._child = child
        self.received = ""
        self.frames = 0

    def resize(self, rows: int, columns: int, *, notify: bool = True) -> None:
        self.rows = rows
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        if notify:
            self.process.send_signal(28)  # SIGWINCH: the kernel sends it to the foreground group only

    def press(self, key: str) -> None:
        os.write(self._fd, key.encode())

    def wait(self, accept: Callable[[list[str]], bool]) -> list[str]:
        """The screen, as soon as it is accepted."""
        give_up_at = time.monotonic() + WAIT_S
        while True:
            screen = self.screen()
            if accept(screen):
                return screen
            left = give_up_at - time.monotonic()
            assert left > 0, "\n".join(screen)
            if select.select([self._fd], [], [], left)[0]:
                self._receive()

    def _receive(self) -> bool:
        try:
            data = os.read(self._fd, 65536)
        except OSError:  # what a closed pseudo-terminal says on Linux
            return False
        self.received += data.decode(errors="replace")
        return bool(data)

    def screen(self) -> list[str]:
        """The last complete frame, as text: drawn from the top left corner, every line to its end."""
        frames = re.findall(r"\x1b\[\?2026h\x1b\[H(.*?)\x1b\[J\x1b\[\?2026l", self.received, re.S)
        self.frames = len(frames)
        if not frames:
            return []
        lines = re.split(r"\r+\n", frames[-1])  # the line discipline adds a return
        assert all(line.endswith("\x1b[K") for line in lines), "the rest of an older line would stay"
        return [re.sub(r"\x1b\[[0-9;]*[mK]", "", line) for line in lines]

    def end(self) -> int:
        code = self.process.wait(WAIT_S)
        while select.select([self._fd], [], [], 0)[0] and self._receive():
            pass
        return code

    def modes(self) -> list[object]:
        return termios.tcgetattr(self._child)

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        os.close(self._fd)
        os.close(self._child)


@pytest.fixture
def cli(server: LiveServer) -> TopicsCli:
    return TopicsCli(server.port)


@pytest.fixture
def terminal(cli: TopicsCli) -> Iterator[Terminal]:
    opened = Terminal(cli, "top", "--interval", "0.2")
    yield opened
    opened.close()


def test_without_a_terminal_it_prints_one_picture(cli: TopicsCli, plain_client: ApiClient) -> None:
    queue = fresh("a-top")  # early in the alphabet, and small screens are no matter here
    plain_client.put(queue, type="queue")
    plain_client.append(queue, 1, 2, 3)
    ran = cli.ok("top", "--once", "--interval", "0.2", "--sort", "name")
    assert "\x1b" not in ran.out and ran.err == ""
    assert re.search(rf"^{queue} .* 3 .* 3 ", ran.out, re.M)
    shards = re.findall(r"^[012]      ready ", ran.out, re.M)
    assert len(shards) == 3
    metrics = cli.ok("top", "--json").rows[0]["metrics"]
    assert metrics["ready"] == 1
    # Whatever it looks for under pressure is there: a name that no server gives would never be noticed otherwise.
    for shard, link in zip(metrics["shards"], metrics["links"], strict=True):
        assert {"pressure_level", *SIGNS, *TROUBLES} <= shard["gauges"].keys()
        assert REFUSALS.keys() <= shard["counters"].keys() | link.keys()


def test_the_screen_lives_sorts_fits_and_is_put_back(terminal: Terminal, plain_client: ApiClient) -> None:
    topic = fresh("0-live")
    screen = terminal.wait(lambda lines: any("keys:" in line for line in lines))
    assert screen[0].startswith("topics top  http://127.0.0.1:")
    assert terminal.received.startswith("\x1b[?1049h\x1b[?25l")

    plain_client.append(topic, *range(50))
    terminal.press("n")
    screen = terminal.wait(
        lambda lines: lines[-1].startswith("sorted by name") and any(topic in line for line in lines)
    )
    (row,) = [line for line in screen if line.startswith(topic)]
    assert "50" in row.split()
    terminal.press("s")
    terminal.wait(lambda lines: lines[-1].startswith("sorted by size"))

    terminal.resize(12, 40)
    screen = terminal.wait(lambda lines: len(lines) <= 12 and max(map(len, lines)) <= 40)
    assert any(line.endswith("…") for line in screen)

    # Redrawn in place: the screen is cleared once, when it is entered, and never again.
    assert terminal.frames >= 3 and terminal.received.count("\x1b[2J") == 1
    terminal.press("q")
    assert terminal.end() == 0
    assert terminal.received.endswith("\x1b[?25h\x1b[?1049l")
    assert terminal.modes() == terminal.modes_before


def test_a_signal_puts_the_terminal_back_as_well(terminal: Terminal) -> None:
    terminal.wait(lambda lines: bool(lines))
    terminal.process.terminate()
    assert terminal.end() == 130
    assert "\x1b[?25h\x1b[?1049l" in terminal.received
    assert terminal.modes() == terminal.modes_before
