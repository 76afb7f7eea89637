"""The `topics` command in a process of its own, as people and scripts run it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import IO, Any, Self

from tests.support.server_process import ROOT, environment

Json = dict[str, Any]
WAIT_S = 30.0


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[Any]:
        """Its stdout as NDJSON."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def datas(self) -> list[Any]:
        return [row["data"] for row in self.rows]


class TopicsCli:
    def __init__(self, port: int, **env: str) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.env = environment({"TOPICS_URL": self.url, "TOPICS_NODE": "tester", **env})

    def command(self, *arguments: object) -> list[str]:
        return [sys.executable, "-m", "topicsd.client", *map(str, arguments)]

    def run(self, *arguments: object, stdin: str | bytes = b"", env: Mapping[str, str] | None = None) -> Ran:
        ran = subprocess.run(
            self.command(*arguments),
            input=stdin.encode() if isinstance(stdin, str) else stdin,
            capture_output=True,
            timeout=WAIT_S,
            env={**self.env, **(env or {})},
            cwd=ROOT,
            check=False,
        )
        return Ran(ran.returncode, ran.stdout.decode(), ran.stderr.decode())

    def ok(self, *arguments: object, stdin: str | bytes = b"") -> Ran:
        ran = self.run(*arguments, stdin=stdin)
        assert ran.code == 0, ran
        return ran

    def fails(self, code: int, *arguments: object, stdin: str | bytes = b"") -> str:
        """Its complaint, which is one line."""
        ran = self.run(*arguments, stdin=stdin)
        assert ran.code == code, ran
        assert ran.err.count("\n") == 1, ran.err
        return ran.err

    def start(self, *arguments: object, **more: Any) -> subprocess.Popen[bytes]:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(self.command(*arguments), env=self.env, cwd=ROOT, **{**pipes, **more})


class Following:
    """A command that goes on, and what it has printed so far."""

    def __init__(self, cli: TopicsCli, *arguments: object) -> None:
        self.process = cli.start(*arguments)
        self.lines: list[str] = []
        self.notes: list[str] = []
        self._changed = threading.Condition()
        self._threads = [
            threading.Thread(target=self._collect, args=(pipe, into), daemon=True)
            for pipe, into in ((self.process.stdout, self.lines), (self.process.stderr, self.notes))
        ]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        for thread in self._threads:
            thread.join(WAIT_S)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()

    def _collect(self, pipe: IO[bytes], into: list[str]) -> None:
        for line in pipe:
            with self._changed:
                into.append(line.decode().rstrip("\n"))
                self._changed.notify_all()

    def wait(self, accept: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(accept, WAIT_S), (self.lines, self.notes)

    def rows(self, count: int) -> list[Any]:
        """The first `count` lines as JSON, when they have come."""
        self.wait(lambda: len(self.lines) >= count)
        return [json.loads(line) for line in self.lines]

    def wait_note(self, part: str) -> None:
        self.wait(lambda: any(part in line for line in self.notes))

    def write(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text.encode())
        self.process.stdin.flush()

    def end(self, number: int | None = None) -> int:
        """Its exit code, after a signal if one is given."""
        if number is not None:
            self.process.send_signal(number)
        return self.process.wait(WAIT_S)
