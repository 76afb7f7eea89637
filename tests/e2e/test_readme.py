"""The README's quickstart, pasted as printed, gives what is printed."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tests.support.live_server import LiveServer

README = (Path(__file__).resolve().parents[2] / "README.md").read_text()
PRINTED_URL = "http://127.0.0.1:4000"


def commands(text: str) -> list[tuple[str, str]]:
    """(command, printed output) of every console block."""
    found = []
    for block in re.findall(r"```console\n(.*?)```", text, re.S):
        for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
            command, _, output = part.partition("\n")
            found.append((command, output.strip()))
    return found


def without_times(document: str) -> str:
    """Times and durations differ from run to run; everything else must not."""
    document = re.sub(r'"\$ts":\d+', '"$ts":0', document)
    answer, mark, performance = document.partition('"performance":')
    return answer + mark + re.sub(r"\d+(\.\d+)?", "0", performance)


def test_the_quickstart_gives_the_printed_outputs(tmp_path: Path) -> None:
    printed = commands(README)
    assert len(printed) >= 8
    with LiveServer(tmp_path / "data") as server:
        server.wait_serving()
        port = server.port_file.read_text().strip()
        for command, output in printed:
            assert PRINTED_URL in command
            ran = subprocess.run(
                ["bash", "-c", command.replace(PRINTED_URL, f"http://127.0.0.1:{port}")],
                capture_output=True,
                text=True,
                timeout=30,
                check=True,
            )
            assert without_times(ran.stdout) == without_times(output), command
