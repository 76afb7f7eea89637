"""The servers that benches compare, each started as shipped in a directory of its own: topicsd, Redis, NATS.

`Server` tells what its processes cost so far and can be killed and started again on the same data.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path(__file__).parents[1]
_START_S = 180.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PACKAGES = {
    "redis-server": "redis-server",
    "redis-benchmark": "redis-tools",
    "nats-server": "nats-server",
    "wrk": "wrk",
    "nginx": "nginx",
    "perf": "linux-perf",
}


def need(programs: Sequence[str]) -> None:
    """Have these programs, from Debian's packages, or say how to get them."""
    missing = [program for program in programs if shutil.which(program) is None]
    if not missing:
        return
    packages = [_PACKAGES[program] for program in missing]
    if os.getuid() == 0 and shutil.which("apt-get") is not None:
        print(f"installing {' '.join(packages)} with apt-get", file=sys.stderr, flush=True)
        for command in (["apt-get", "update"], ["apt-get", "install", "--yes", *packages]):
            subprocess.run(command, check=False, stdout=subprocess.DEVNULL)
        missing = [program for program in missing if shutil.which(program) is None]
    if missing:
        raise SystemExit(
            f"{', '.join(missing)} not found. Debian, Ubuntu: sudo apt-get install {' '.join(packages)}"
        )


@dataclass(slots=True)
class Server:
    name: str
    command: list[str]
    port: int
    answers: Callable[[int], bool]  # on this port, as it does when it is ready for work
    process: subprocess.Popen[bytes]

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def pids(self) -> list[int]:
        return [self.process.pid, *_children(self.process.pid)]

    def cpu_s(self) -> dict[str, float]:
        """CPU seconds so far, by kind of process."""
        found: dict[str, float] = {}
        for pid in self.pids():
            kind = _kind(pid)
            if kind is not None:
                found[kind] = found.get(kind, 0.0) + _cpu_seconds(pid)
        return found

    def total_cpu_s(self) -> float:
        return sum(self.cpu_s().values())

    def rss_bytes(self) -> int:
        """Of all its processes together; pages that they share count once for each.

        Without a copy that Redis forks to rewrite its file: nearly all of that one is shared.
        """
        return sum(
            _rss_bytes(pid) for pid in self.pids() if pid == self.process.pid or _kind(pid) != "server"
        )

    def rss_of(self, kind: str) -> int:
        return sum(_rss_bytes(pid) for pid in self.pids() if _kind(pid) == kind)

    def kill(self) -> None:
        """SIGKILL to every process of it, at once."""
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def start_again(self) -> float:
        """Start it on the same data. Returns the seconds until it is ready for work."""
        started = time.perf_counter()
        self.process = _spawn(self.command)
        self._wait()
        return time.perf_counter() - started

    def _wait(self) -> None:
        give_up_at = time.monotonic() + _START_S
        while not self.answers(self.port):
            if self.process.poll() is not None or time.monotonic() > give_up_at:
                self.process.kill()
                raise SystemExit(f"{self.name} did not start: {' '.join(self.command)}")
            time.sleep(0.005)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()


def _spawn(command: list[str]) -> subprocess.Popen[bytes]:
    # As installed: Python keeps what it has compiled. Where a workplace forbids that, every start compiles anew.
    foreign = ("TOPICS_", "PYTHONDONTWRITEBYTECODE")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return subprocess.Popen(
        command, cwd=_ROOT, env=clean, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


@contextmanager
def running(name: str, command: list[str], port: int, answers: Callable[[int], bool]) -> Iterator[Server]:
    server = Server(name, command, port, answers, _spawn(command))
    try:
        server._wait()
        yield server
    finally:
        server.stop()


# --- each of them -----------------------------------------------------------------------------------------


@contextmanager
def topicsd(directory: str, *options: str) -> Iterator[Server]:
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "topicsd",
        "serve",
        "--port",
        str(port),
        "--data-dir",
        f"{directory}/data",
    ]
    with running("topicsd", [*command, *options], port, serves("/v0/ready")) as server:
        yield server


@contextmanager
def redis(directory: str, *, appendfsync: str = "everysec") -> Iterator[Server]:
    port = free_port()
    options = ["--port", str(port), "--dir", directory, "--save", "", "--appendonly", "yes"]
    command = ["redis-server", *options, "--appendfsync", appendfsync]
    with running(f"Redis {appendfsync}", command, port, _redis_answers) as server:
        yield server


@contextmanager
def nats(directory: str, *, jetstream: bool = True) -> Iterator[Server]:
    port = free_port()
    command = ["nats-server", "-a", "127.0.0.1", "-p", str(port)]
    if jetstream:
        command += ["-js", "-sd", directory]
    with running("NATS JetStream" if jetstream else "NATS core", command, port, listens) as server:
        yield server


def serves(path: str) -> Callable[[int], bool]:
    """Does a GET of this path bring anything but a server error?"""

    def answers(port: int) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
                answer.read()
        except urllib.error.HTTPError as err:
            return err.code < 500
        except OSError:
            return False
        return True

    return answers


def _redis_answers(port: int) -> bool:
    try:
        with connect(port) as sock:
            sock.sendall(b"PING\r\n")
            return sock.recv(100).startswith(b"+PONG")  # "-LOADING" until it has read its file
    except OSError:
        return False


def listens(port: int) -> bool:
    try:
        connect(port).close()
    except OSError:
        return False
    return True


def connect(port: int) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), timeout=30)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def send(server: Server, path: str, body: bytes, method: str = "POST") -> bytes:
    request = urllib.request.Request(
        server.url(path), body, {"Content-Type": "application/json"}, method=method
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        found: bytes = answer.read()
        return found


# --- what the kernel tells --------------------------------------------------------------------------------


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):
            found += map(int, path.read_text().split())
    return found + [below for child in found for below in _children(child)]


def _kind(pid: int) -> str | None:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The last one as an argument of its own: directories of benches are called so, too.
    for mark, kind in (("gateway", "gateway"), ("shard_worker", "worker"), ("\0topicsd\0", "supervisor")):
        if mark in command:
            return kind
    return "server"


def _cpu_seconds(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0  # it has ended since it was listed
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def _rss_bytes(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    found = status.partition("VmRSS:")[2].split()
    return int(found[0]) * 1024 if found else 0  # one that has ended has none
