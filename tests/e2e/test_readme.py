"""The README's quickstart, run as printed."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tests.support.server_process import ServerProcess

ROOT = Path(__file__).resolve().parents[2]
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
    return re.sub(r'"performance":\{[^}]*\}', '"performance":{}', document)
