"""docs/cli.md: its examples, pasted as printed, give what is printed; and it names every command and exit code."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.support.live_server import LiveServer
from tests.support.server_process import ROOT, environment
from topicsd.client.cli import COMMANDS
from topicsd.client.errors import Exit

PAGE = (ROOT / "docs" / "cli.md").read_text()


def examples() -> list[tuple[str, str]]:
    found = []
    for block in re.findall(r"```console\n(.*?)```", PAGE, re.S):
        for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
            command, _, output = part.partition("\n")
            found.append((command, output))
    return found


def comparable(output: str) -> str:
    """Times and leases differ from run to run, and so does the order of different topics."""
    output = re.sub(r'"(\$ts|deadline)":\d+', r'"\1":0', output)
    output = re.sub(r'"lease_id":"[^"]+"', '"lease_id":""', output)
    return "".join(sorted(output.splitlines(keepends=True)))


def test_the_examples_give_the_printed_outputs(tmp_path: Path) -> None:
    shim = tmp_path / "bin" / "topics"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m topicsd.client "$@"\n')
    shim.chmod(0o755)
    printed = examples()
    assert len(printed) >= 20
    with LiveServer(tmp_path / "data") as server:
        server.wait_serving()
        env = environment({"TOPICS_URL": f"http://127.0.0.1:{server.port}"})
        env["PATH"] = f"{shim.parent}:{env['PATH']}"
        for command, output in printed:
            ran = subprocess.run(
                ["bash", "-c", f"exec 2>&1; {command}"],
                capture_output=True,
                text=True,
                timeout=60,
                env=env,
                cwd=tmp_path,
                check=False,
            )
            assert comparable(ran.stdout) == comparable(output), command


def test_the_page_names_every_command_and_every_exit_code() -> None:
    for command in COMMANDS:
        assert re.search(rf"\b{command}\b", PAGE), command
    _, _, table = PAGE.partition("\n## Exit codes\n")
    rows = dict(re.findall(r"^\| (\d+) \| ([a-z ]+) \|", table, re.M))
    assert {int(code) for code in rows} == {code.value for code in Exit}
