"""The `topics` command in a process of its own, as people and scripts run it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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
