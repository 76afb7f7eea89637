"""`topicsd verify` and `topicsd repair` as an operator meets them: exit codes, locks, questions, a server at work."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from unittest.mock import patch

import pytest
from click.testing import CliRunner, Result
from xxhash import xxh3_64_intdigest

from tests.support.live_server import LiveServer
from tests.support.sample_store import SHARDS, make_sample
from tests.support.server_process import wait_for
from tests.support.write_load import Writer
from topicsd.cli import main
from topicsd.inspection.locks import lock_holder


def run(data_dir: Path, *words: str, answer: str | None = None) -> Result:
    env = {"TOPICS_DATA_DIR": str(data_dir), "TOPICS_WAL_SHARDS": str(SHARDS)}
    return CliRunner().invoke(main, [*words], env=env, input=answer)


def hurt(data_dir: Path) -> None:
    """A bit in the only block of the only segment."""
    segment = data_dir / "shard-0000" / "segments" / "0000000001.seg"
    content = bytearray(segment.read_bytes())
    content[200] ^= 4
    segment.write_bytes(content)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return make_sample(tmp_path)


def files_of(data_dir: Path) -> dict[str, bytes]:
    return {
        str(path): path.read_bytes()
        for path in data_dir.rglob("*")
        # Taking the lock that nobody holds writes nothing but a pid, and takes it away again.
        if path.is_file() and path.name != "LOCK"
    }


def test_exit_codes_and_json(store: Path, tmp_path: Path) -> None:
    assert run(store, "verify").exit_code == 0
    assert run(store, "repair", "--yes").exit_code == 0
    hurt(store)
    result = run(store, "verify", "--json")
    assert result.exit_code == 1
    document = json.loads(result.output)
    assert document["clean"] is False
    [finding] = document["shards"][0]["damage"]
    assert (finding["code"], finding["topic"], finding["first_seq"]) == ("corrupt_segment", "orders", 1)
    assert document["shards"][1]["damage"] == []
    assert run(store, "verify", "--shard", "1").exit_code == 0
    planned = json.loads(run(store, "repair", "--dry-run", "--json").output)
    assert planned["shards"][0]["losses"] == [{"topic": "orders", "first": 1, "last": 8, "records": 7}]
    assert run(tmp_path / "nowhere", "verify").exit_code == 2
    assert run(store, "repair", "--json").exit_code == 2


def test_a_format_that_is_too_new_is_not_called_damage(store: Path) -> None:
    log = store / "shard-0000" / "wal" / "0000000001.wal"
    content = bytearray(log.read_bytes())
    content[8] = 2
    content[56:64] = xxh3_64_intdigest(bytes(content[:56])).to_bytes(8, "little")
    log.write_bytes(content)
    result = run(store, "verify")
    assert result.exit_code == 2 and "version 2" in result.output
    assert run(store, "repair", "--yes").exit_code == 2


def test_a_missing_shard_is_damage_that_no_repair_can_undo(store: Path) -> None:
    for path in sorted((store / "shard-0001").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (store / "shard-0001").rmdir()
    result = run(store, "verify")
    assert result.exit_code == 1 and "this shard is missing" in result.output
    result = run(store, "repair", "--yes")
    assert result.exit_code == 2 and "restore it from a backup" in result.output


def test_repair_asks_and_takes_no_for_an_answer(store: Path) -> None:
    hurt(store)
    before = files_of(store)
    result = run(store, "repair")
    assert result.exit_code == 2 and "--yes" in result.output
    with patch("topicsd.commands.repair._somebody_is_there", return_value=True):
        assert run(store, "repair", answer="n\n").exit_code == 1
        assert files_of(store) == before
        assert run(store, "repair", answer="y\n").exit_code == 0
    assert run(store, "verify").exit_code == 0
    assert (store / "shard-0000" / "quarantine" / "0000000001.seg.1").exists()


@pytest.mark.parametrize("place", ["LOCK", "shard-0000/LOCK"])
def test_repair_does_not_touch_what_somebody_holds_and_looking_takes_no_lock(store: Path, place: str) -> None:
    hurt(store)
    before = files_of(store)
    descriptor = os.open(store / place, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        assert lock_holder(str(store / place)) == os.getpid()
        result = run(store, "repair", "--yes")
        assert result.exit_code == 2 and "stop the server first" in result.output
        assert files_of(store) == before
        result = run(store, "verify")
        # A shard that is held but does not answer may be changing: it is not judged.
        assert result.exit_code == (1 if place == "LOCK" else 2)
        result = run(store, "shard", "show", "0")
        assert result.exit_code == (0 if place == "LOCK" else 2)
        assert run(store, "shard", "show", "0", "--offline").exit_code == 0
    finally:
        os.close(descriptor)
    assert lock_holder(str(store / place)) is None


def test_a_server_under_load_is_clean_and_its_damage_is_found(tmp_path: Path) -> None:
    data_dir = make_sample(tmp_path)
    # Small segments and many of them, so that files come and go while they are read.
    env = {
        "TOPICS_SEGMENT_MAX_EVENTS": "100",
        "TOPICS_HOT_RETAIN_SEGMENTS": "1",
        "TOPICS_COLD_DIR": str(tmp_path / "cold"),
    }
    with LiveServer(data_dir, shards=SHARDS, env=env) as server:
        server.wait_serving()
        writers = [Writer(server.port, topic, f"w-{topic}", keyed=False) for topic in ("orders", "invoices")]
        for writer in writers:
            writer.start()
        try:
            wait_for(lambda: all(len(writer.acked) > 300 for writer in writers))
            wait_for(lambda: any((tmp_path / "cold").glob("shard-0000/manifest-*")))
            for _ in range(4):
                result = run(data_dir, "verify", "--cold-dir", str(tmp_path / "cold"))
                assert result.exit_code == 0, result.output
                assert result.output.count("clean (running") == SHARDS
        finally:
            for writer in writers:
                writer.stop()
            for writer in writers:
                writer.join()
        assert [writer.failure for writer in writers] == [None, None]
        # Nobody said where the cold tier is: that is no damage, and nothing was checked.
        result = run(data_dir, "verify")
        assert result.exit_code == 2 and "--cold-dir" in result.output
        segment = min((tmp_path / "cold").glob("shard-0000/data/*.seg"))
        content = bytearray(segment.read_bytes())
        content[len(content) // 2] ^= 1
        segment.write_bytes(content)
        result = run(data_dir, "verify", "--cold-dir", str(tmp_path / "cold"))
        assert result.exit_code == 1 and segment.name in result.output and "Stop the server" in result.output
