"""`topicsd cold compact` and `adopt` as an operator runs them: beside a live server, and while it is stopped."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.support.live_server import LiveServer
from tests.support.server_process import ROOT, environment, wait_for


def cold(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "topicsd", "cold", *args],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment({}),
        timeout=240,
        check=False,
    )


def dirs(tmp_path: Path) -> list[str]:
    return ["--data-dir", str(tmp_path / "data"), "--cold-dir", str(tmp_path / "cold")]


def server(tmp_path: Path) -> LiveServer:
    env = {
        "TOPICS_COLD_DIR": str(tmp_path / "cold"),
        "TOPICS_SEGMENT_MAX_EVENTS": "50",
        "TOPICS_HOT_RETAIN_SEGMENTS": "1",
        "TOPICS_MIN_FREE_BYTES": "0",
    }
    return LiveServer(tmp_path / "data", shards=1, env=env)


def cold_segments(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "cold").glob("shard-*/data/*.seg"))


def receipts(tmp_path: Path) -> list[dict[str, Any]]:
    found = sorted((tmp_path / "cold").glob("shard-*/receipts/*.json"))
    return [json.loads(path.read_text()) for path in found if ".pending." not in path.name]


def seals(client: Any) -> float:
    lines = client.send("GET", "/v0/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("topics_seals_total"))


def fill(client: Any, rounds: int) -> None:
    """Every round becomes a segment of its own, at the least."""
    for number in range(rounds):
        before = seals(client)
        for topic in ("log", "last"):
            records = [{"data": [number, at], "key": f"k{at}", "tag": f"t{at % 3}"} for at in range(60)]
            client.write(topic, *records)
        wait_for(lambda before=before: seals(client) > before)


def test_a_live_server_is_compacted_while_it_is_written_to_and_deleted_from(tmp_path: Path) -> None:
    with server(tmp_path) as live, live.wait_serving().client() as client:
        client.put("log", durable=True)
        client.put("last", durable=True, cleanup="compact")
        fill(client, 4)
        wait_for(lambda: len(cold_segments(tmp_path)) >= 3)
        client.delete_records("log", match=["tag", "Eq", "t1"])
        stop = threading.Event()
        written: list[int] = []

        def write() -> None:
            with live.client() as mine:
                number = 0
                while not stop.is_set():
                    number += 1
                    answer = mine.append("log", f"more {number}")
                    written.append(answer["last_seq"])
                    if number % 5 == 0:
                        mine.delete_records("log", match=["tag", "Eq", "t2"])

        writer = threading.Thread(target=write)
        writer.start()
        try:
            done = cold("compact", *dirs(tmp_path))
        finally:
            stop.set()
            writer.join()
        assert done.returncode == 0, done.stdout + done.stderr
        assert "records removed" in done.stdout
        wait_for(lambda: len(receipts(tmp_path)) == 1)
        (receipt,) = receipts(tmp_path)
        assert {each["topic"] for each in receipt["topics"]} == {"log", "last"}
        for old in receipt["before"]:
            assert f"{old['number']:010d}.seg" not in cold_segments(tmp_path)
        expect_what_readers_must_see(client, written)
        live.stop()
    with server(tmp_path) as live, live.wait_serving().client() as client:
        expect_what_readers_must_see(client, written)


def expect_what_readers_must_see(client: Any, written: list[int]) -> None:
    log = {record["$seq"]: record["data"] for record in client.everything("log")}
    for seq in range(1, 241):
        tag = (seq - 1) % 60 % 3
        assert (seq in log) == (tag == 0 or (tag == 2 and not len(written) >= 5)), seq
    assert set(written) <= set(log)
    last = client.everything("last")
    newest = {record["data"][1]: record["data"][0] for record in last}
    assert newest == dict.fromkeys(range(60), 3), "the last value of every key"


def test_a_stopped_server_is_compacted_by_the_command_itself(tmp_path: Path) -> None:
    with server(tmp_path) as live, live.wait_serving().client() as client:
        client.put("log", durable=True)
        fill(client, 4)
        wait_for(lambda: len(cold_segments(tmp_path)) >= 3)
        client.delete_records("log", match=["tag", "Eq", "t1"])
        before = client.everything("log")
        live.stop()
    done = cold("compact", *dirs(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "receipt: " in done.stdout
    assert len(receipts(tmp_path)) == 1
    again = cold("compact", *dirs(tmp_path))
    assert (again.returncode, again.stdout) == (0, "shard 0: nothing to compact\n")
    assert cold("adopt", *dirs(tmp_path)).stdout == "shard 0: nothing is staged\n"
    audit = cold("audit", *dirs(tmp_path), "--offline", "--quiet")
    assert audit.returncode == 0, audit.stdout + audit.stderr
    with server(tmp_path) as live, live.wait_serving().client() as client:
        assert client.everything("log") == before


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["compact", "--data-dir", "/nowhere/at/all", "--cold-dir", "/nowhere"], "--data-dir"),
        (["export", "--data-dir", "/nowhere/at/all", "--out", "/nowhere/out"], "no data directory"),
    ],
)
def test_a_wrong_place_is_named(args: list[str], words: str) -> None:
    done = cold(*args)
    assert done.returncode == 2 and words in done.stderr, done.stderr
