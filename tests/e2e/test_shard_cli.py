"""`topicsd shard …` on a stopped store and beside a running server: the same words for the same state.

What it prints is in tests/golden/shard_cli, one file per command; `NAME.live.txt` where a running server says more.
UPDATE_GOLDEN=1 writes them anew: read the difference before you keep it.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.support.live_server import LiveServer
from tests.support.sample_store import SHARDS, make_sample
from topicsd.cli import main

GOLDEN = Path(__file__).parents[1] / "golden" / "shard_cli"

COMMANDS = {
    "ls": "ls",
    "show": "show 0",
    "topics": "topics 0",
    "topics-page": "topics 0 --after events --limit 1",
    "topic": "topic orders",
    "topic-queue": "topic 0 jobs",
    "tail": "tail orders --limit 3",
    "dump": "dump 0",
    "dump-page": "dump orders --after 6 --limit 2",
    "wal": "wal 0",
    "wal-page": "wal 0 --from 1:173 --limit 2",
    "segments": "segments 0",
    "segments-topic": "segments 0 --topic orders",
    "segments-seq": "segments 0 --topic orders --seq 4",
    "segments-seq-log": "segments 0 --topic orders --seq 9",
    "segments-seq-deleted": "segments 0 --topic orders --seq 3",
    "segments-seq-evicted": "segments 0 --topic events --seq 1",
    "locks": "locks",
}
CHANGED_BY_A_START = {"ls", "show", "topic", "topic-queue", "wal", "locks"}


def run(data_dir: Path, line: str) -> Result:
    env = {"TOPICS_DATA_DIR": str(data_dir), "TOPICS_WAL_SHARDS": str(SHARDS)}
    return CliRunner().invoke(main, ["shard", *line.split()], env=env)


def shown(data_dir: Path, line: str) -> str:
    result = run(data_dir, line)
    assert result.exit_code == 0, result.output + repr(result.exception)
    text = result.output.replace(str(data_dir), "DATA")
    text = re.sub(r"boot_id=\S+ version=\S+", "boot_id=ID version=V", text)
    text = re.sub(r"(DATA\S*LOCK +)\d+ .*", r"\1PID COMMAND", text)
    text = re.sub(r"^lock .*", "lock", text)
    return re.sub(r" +$", "", text, flags=re.MULTILINE)


def expect(name: str, text: str, *, live: bool) -> None:
    path = GOLDEN / (f"{name}.live.txt" if live and name in CHANGED_BY_A_START else f"{name}.txt")
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text(), f"{path.name} says otherwise"


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_sample(tmp_path_factory.mktemp("sample"))


def files_of(data_dir: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in data_dir.rglob("*")
        if path.is_file()
    }


def test_a_stopped_store_is_shown_and_not_touched(sample: Path) -> None:
    before = files_of(sample)
    for name, line in COMMANDS.items():
        expect(name, shown(sample, line), live=False)
    assert files_of(sample) == before


@pytest.mark.parametrize(
    "line", [line for line in COMMANDS.values() if line.split()[0] not in ("tail", "dump")]
)
def test_every_answer_comes_as_json(sample: Path, line: str) -> None:
    document = json.loads(run(sample, f"{line} --json").output)
    assert isinstance(document, dict) and document


def test_records_come_as_they_were_written(sample: Path) -> None:
    lines = [json.loads(line) for line in run(sample, "dump orders").output.splitlines()]
    assert [line["$seq"] for line in lines] == [1, 2, 4, 5, 6, 7, 8, 9]
    assert lines[0] == {
        "topic": "orders", "$seq": 1, "$ts": 4102444800000, "$node": "eu", "data": {"sku": "S1"}, "$tag": "t1",
    }  # fmt: skip
    assert lines[-1]["meta"] == {"trace": "ab"}


def test_what_cannot_be_answered_says_why(sample: Path, tmp_path: Path) -> None:
    for line, code, words in (
        ("topic nobody", 1, "topic nobody is not in any of the 2 shards"),
        ("topic 1 orders", 1, "topic orders is not in shard 1"),
        ("show 7", 2, "there is no shard 7"),
        ("wal 0 --from here", 2, "no position in the log"),
        ("segments 0 --seq 4", 2, "--seq needs --topic"),
    ):
        result = run(sample, line)
        assert (result.exit_code, words in result.output) == (code, True), result.output
    result = run(tmp_path, "ls")
    assert result.exit_code == 2 and "there is no store" in result.output


def test_a_running_server_says_the_same(tmp_path: Path) -> None:
    data_dir = make_sample(tmp_path)
    stopped = {name: shown(data_dir, line) for name, line in COMMANDS.items()}
    with LiveServer(data_dir, shards=SHARDS) as server:
        server.wait_serving()
        live = {name: shown(data_dir, line) for name, line in COMMANDS.items()}
        for name in COMMANDS:
            expect(name, live[name], live=True)
        assert server.failures() == []
        assert server.stop() == 0
    same = COMMANDS.keys() - CHANGED_BY_A_START
    assert {name: live[name] for name in same} == {name: stopped[name] for name in same}
    # What the server wrote is in the files now, so they say what it said.
    again = {name: shown(data_dir, COMMANDS[name]) for name in ("wal", "topics", "topic")}
    assert again["wal"] == live["wal"]
    assert again["topic"].replace("its files; it is stopped", "its running worker") == live["topic"]
