"""The repair in docs/operations.md, done again: every command printed there on a store damaged the same way."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

from click.testing import CliRunner

from shard_worker.inspection_log import lsn_from_text
from shared.wal_format import split_lsn
from tests.support.live_server import LiveServer
from tests.support.sample_store import SHARDS, open_sample
from topicsd.cli import main

DOCUMENT = Path(__file__).parents[2] / "docs" / "operations.md"
HEADING = "### A damaged store, found and repaired"


def transcript() -> list[tuple[str, str]]:
    """Command and output, in the order of the document."""
    section = DOCUMENT.read_text().split(HEADING)[1].split("\n## ")[0]
    steps = []
    for block in re.findall(r"```console\n(.*?)```", section, re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            steps.append((command, output))
    return steps


def damaged_store(root: Path) -> Path:
    driver = open_sample(root)
    for n in range(1, 5):
        driver.append(
            "orders", [{"data": {"order": 2 * n - 1}}, {"data": {"order": 2 * n}}], config={"durable": True}
        )
        driver.append("payments", [{"data": {"paid": n}}], config={"durable": True})
    driver.close()
    data_dir = root / "data"
    frames = json.loads(invoke(data_dir, "shard wal 0 --json")[1])["frames"]
    [place] = [
        frame["lsn"] for frame in frames if frame.get("topic") == "orders" and frame.get("first_seq") == 5
    ]
    log = data_dir / "shard-0000" / "wal" / "0000000001.wal"
    content = bytearray(log.read_bytes())
    content[split_lsn(lsn_from_text(place))[1] + 80] ^= 1
    log.write_bytes(content)
    return data_dir


def invoke(data_dir: Path, line: str) -> tuple[int, str]:
    env = {"TOPICS_DATA_DIR": str(data_dir), "TOPICS_WAL_SHARDS": str(SHARDS)}
    result = CliRunner().invoke(main, shlex.split(line), env=env)
    return result.exit_code, result.output


def normal(text: str) -> str:
    text = re.sub(r"at byte \d+", "at byte N", text)
    text = re.sub(r"\b\d+:\d+\b", "F:N", text)
    text = re.sub(r"files, [\d.]+ \w+", "files, SIZE", text)
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}", "TIME", text)
    text = re.sub(r"(id, epoch +\d+, )\d+", r"\1EPOCH", text)
    text = re.sub(r"^config .*", "config", text, flags=re.MULTILINE)
    return re.sub(r"[ \t]+", " ", text).strip()


EXIT_CODES = {"topicsd verify": [1, 0], "topicsd repair --dry-run": [1], "topicsd repair --yes": [0]}


def test_the_transcript_is_what_happens(tmp_path: Path) -> None:
    data_dir = damaged_store(tmp_path)
    steps = transcript()
    assert len(steps) >= 6
    codes = {line: list(expected) for line, expected in EXIT_CODES.items()}
    commands = [step for step in steps if step[0].startswith("topicsd ")]
    for command, output in commands:
        code, found = invoke(data_dir, command.removeprefix("topicsd "))
        assert normal(found) == normal(output), command
        assert code == (codes[command].pop(0) if command in codes else 0), command
    assert not any(codes.values()), "the document lacks a step"
    reads = [step for step in steps if step[0].startswith("curl ")]
    assert reads
    with LiveServer(data_dir, shards=SHARDS) as server:
        server.wait_serving()
        with server.client() as client:
            for command, output in reads:
                url = shlex.split(command)[2]
                document = client.send("GET", url.partition("4000")[2]).json()
                assert document["tombstone"] == json.loads(output)
            assert client.send("POST", "/v0/topics/orders", {"records": [{"data": 1}]}).status_code == 200
        assert server.failures() == []
