"""A real supervisor in a process of its own, with stand-ins for its children and short times.

Tests follow it by its log (JSON lines) and by the journal of the stand-ins; waiting is always for an event,
never for time to pass.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

from shared.settings import load_settings
from topicsd.child_process import Silence
from topicsd.commands.serve import run_server
from topicsd.core.pulse import PulseLimits
from topicsd.core.restart_policy import RestartTimes
from topicsd.key_file import with_key_file
from topicsd.supervisor import ChildPlan

ROOT = Path(__file__).parents[2]
WAIT_S = 45.0
Line = dict[str, Any]
T = TypeVar("T")

FAKES = {"worker_module": "tests.support.fake_worker", "gateway_module": "tests.support.fake_gateway"}
FAST_RESTART = {
    "first_delay_s": 0.02,
    "max_delay_s": 0.08,
    "stable_s": 30.0,
    "loop_after": 5,
    "loop_delay_s": 60.0,
}


# LISTEN_PID must be that of the server, which is known only in the process that becomes it.
AS_SERVICE_MANAGER = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ["LISTEN_PID"] = str(os.getpid())
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""


def environment(extra: Mapping[str, str]) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
    return clean | {"PYTHONPATH": str(ROOT)} | dict(extra)


class ServerProcess:
    def __init__(
        self,
        data_dir: Path,
        *,
        env: Mapping[str, str] | None = None,
        plan: Mapping[str, object] | None = None,
        silence: Mapping[str, float] | None = None,
        restart: Mapping[str, float] | None = None,
        pulse: Mapping[str, float] | None = None,
        listener: socket.socket | None = None,
    ) -> None:
        self.data_dir = data_dir
        self.port_file = data_dir.parent / f"{data_dir.name}.port"
        everything = {
            "plan": FAKES | {"heartbeat_s": 0.05} | dict(plan or {}),
            "silence": dict(silence or {}),
            "restart": FAST_RESTART | dict(restart or {}),
            "pulse": dict(pulse or {}),
        }
        settings = {
            "TOPICS_DATA_DIR": str(data_dir),
            "TOPICS_PORT": "0",
            "TOPICS_PORT_FILE": str(self.port_file),
            "TOPICS_WAL_SHARDS": "2",
            "TOPICS_DRAIN_TIMEOUT_MS": "5000",
        }
        command = ["-m", "tests.support.server_process", json.dumps(everything)]
        self._launch(command, settings | dict(env or {}), listener)

    def _launch(
        self, arguments: Sequence[str], env: Mapping[str, str], listener: socket.socket | None = None
    ) -> None:
        """`listener` is passed as a service manager would, as descriptor 3."""
        passed = () if listener is None else (listener.fileno(),)
        if listener is not None:
            arguments = ["-c", AS_SERVICE_MANAGER, str(listener.fileno()), *arguments]
            env = {"LISTEN_FDS": "1"} | dict(env)
        self._process = subprocess.Popen(
            [sys.executable, *arguments],
            env=environment(env),
            cwd=ROOT,
            pass_fds=passed,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.pid = self._process.pid
        self._lines: list[Line] = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pids = {self.pid, *(entry["pid"] for entry in self.journal())}
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        for pid in pids - {self.pid}:
            # Ours by the journal; a pid that was given to someone else meanwhile has no such command line.
            if is_fake(pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join(WAIT_S)
        for pipe in (self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()

    def _read_log(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            try:
                entry = json.loads(line)
            except ValueError:
                entry = {"event": "plain", "text": line.decode().rstrip()}
            with self._changed:
                self._lines.append(entry)
                self._changed.notify_all()

    # --- what it says -------------------------------------------------------------------------

    @property
    def log(self) -> list[Line]:
        with self._changed:
            return list(self._lines)

    def wait_log(self, event: str, *, count: int = 1, **fields: object) -> Line:
        """The `count`-th line with this event and these fields, now or later."""

        def found() -> list[Line]:
            wanted = {"event": event, **fields}
            return [line for line in self._lines if wanted.items() <= line.items()]

        with self._changed:
            if not self._changed.wait_for(lambda: len(found()) >= count, WAIT_S):
                raise AssertionError(f"no {event} {fields} in {self._lines}")
            return found()[count - 1]

    def journal(self) -> list[Line]:
        try:
            text = (self.data_dir / "journal").read_text()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in text.splitlines()]

    def steps(self) -> list[tuple[str, str]]:
        return [(entry["who"], entry["step"]) for entry in self.journal()]

    def events(self) -> list[Line]:
        return [entry["event"] for entry in self.journal() if entry["step"] == "event"]

    def wait_journal(self, accept: Callable[[Line], bool]) -> Line:
        return wait_for(lambda: next((entry for entry in self.journal() if accept(entry)), None))

    def wait_event(self, **fields: object) -> Line:
        """The first event of the gateway with these fields."""
        found = self.wait_journal(lambda e: e["step"] == "event" and fields.items() <= e["event"].items())
        event: Line = found["event"]
        return event

    def worker_pid(self, shard: int) -> int:
        started = [e for e in self.journal() if (e["who"], e["step"]) == (f"shard-{shard}", "started")]
        pid: int = started[-1]["pid"]
        return pid

    @property
    def port(self) -> int:
        return int(wait_for(lambda: self.port_file.read_text() if self.port_file.exists() else None))

    # --- what is done to it -------------------------------------------------------------------

    def wait_ready(self) -> Self:
        self.wait_log("server.ready")
        return self

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def wait_exit(self) -> int:
        return self._process.wait(WAIT_S)

    def stop(self) -> int:
        self.signal(signal.SIGTERM)
        return self.wait_exit()

    def output(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.read().decode()


def wait_for(look: Callable[[], T | None]) -> T:
    """What `look` finds, as soon as it finds it. For things that other processes do to files."""
    give_up_at = time.monotonic() + WAIT_S
    while not (found := look()):
        assert time.monotonic() < give_up_at, "it did not happen"
        time.sleep(0.005)
    return found


def is_fake(pid: int) -> bool:
    try:
        return b"tests.support.fake" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


def cue(data_dir: Path, name: str, text: str = "") -> Path:
    path = data_dir / "cues" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    settings = with_key_file(load_settings({}, os.environ, None, cpus=2))
    plan = ChildPlan(
        **given["plan"],
        silence=Silence(**given["silence"]),
        restart=RestartTimes(**given["restart"]),
        pulse=PulseLimits(**given.get("pulse", {})),
    )
    sys.exit(run_server(settings, plan))
