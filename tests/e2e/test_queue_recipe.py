"""The worker in ten lines runs as printed, wherever it is printed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.live_server import LiveServer
from tests.support.queue_client import Queue
from tests.support.server_process import ROOT, environment, wait_for

PRINTED_URL = "http://127.0.0.1:4000"
PAGES = [
    page for page in (ROOT / "docs" / "queues.md", ROOT / "README.md") if "```python\n" in page.read_text()
]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.S)


def test_the_page_about_queues_has_the_recipe() -> None:
    assert ROOT / "docs" / "queues.md" in PAGES


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_recipe_has_ten_lines_and_works_as_printed(page: Path, tmp_path: Path) -> None:
    (recipe,) = blocks(page, "python")
    assert len(recipe.splitlines()) == 10
    commands = [
        command.partition("\n")[0]
        for block in blocks(page, "console")
        for command in re.split(r"^\$ ", block, flags=re.M)[1:]
        if re.match(r"curl -sX (PUT|POST) \S+/v0/topics/jobs ", command)
    ][:2]
    assert len(commands) == 2
    with LiveServer(tmp_path / "data", shards=1) as server, server.wait_serving().client() as client:
        url = f"http://127.0.0.1:{server.port}"
        for command in commands:
            subprocess.run(["bash", "-c", command.replace(PRINTED_URL, url)], check=True, capture_output=True)
        script = tmp_path / "worker.py"
        script.write_text(recipe.replace(PRINTED_URL, url))
        with subprocess.Popen(
            [sys.executable, str(script)], stdout=subprocess.PIPE, env=environment({}), text=True
        ) as worker:
            assert worker.stdout is not None
            try:
                assert worker.stdout.readline() == "resizing cat.png\n"
                assert worker.stdout.readline() == "resizing dog.png\n"
                queue = Queue(client, "jobs")
                wait_for(lambda: queue.counts() == (0, 0, 0))
                queue.write({"resize": "fox.png"})
                assert worker.stdout.readline() == "resizing fox.png\n"
                wait_for(lambda: queue.counts() == (0, 0, 0))
            finally:
                worker.kill()
