"""`topicsd cold` on a stopped server, in this process: what it says and how it ends."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ops.coldstore.compact_local import compact_local
from ops.coldstore.staging import ShardPlace, load_basis
from shared.io.durable_fs import RealFileSystem
from tests.support.shard_driver import ShardDriver
from topicsd.commands.cold import cold


def run(*args: str) -> Result:
    return CliRunner().invoke(cold, list(args))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A stopped server's files: two cold segments, with deleted records in both."""
    driver = ShardDriver(
        RealFileSystem(),  # type: ignore[arg-type]
        wal_file_bytes=1 << 16,
        data_dir=str(tmp_path / "data"),
        cold_dir=str(tmp_path / "cold"),
    )
    driver.put("t", durable=True)
    for number in range(3):
        driver.append("t", [{"data": [number, at], "tag": f"t{at}"} for at in range(4)])
        assert driver.seal()
    assert driver.relocate() == 2
    driver.delete_records("t", match=["tag", "Eq", "t1"])
    driver.close()
    return tmp_path


def dirs(store: Path) -> list[str]:
    return ["--data-dir", str(store / "data"), "--cold-dir", str(store / "cold")]


def stage(store: Path) -> None:
    place = ShardPlace(0, str(store / "data"), str(store / "cold"))
    basis = load_basis(RealFileSystem(), place)
    assert basis is not None
    assert compact_local(RealFileSystem(), place, basis, job="by-hand", now_ms=1) is not None


def test_compact_says_what_it_did(store: Path) -> None:
    done = run("compact", *dirs(store))
    assert done.exit_code == 0
    assert "shard 0: 2 segments became 1" in done.output and "2 records removed; receipt: " in done.output
    assert run("compact", *dirs(store)).output == "shard 0: nothing to compact\n"


def test_a_job_that_was_left_behind_is_adopted(store: Path) -> None:
    stage(store)
    done = run("adopt", *dirs(store))
    assert done.exit_code == 0
    assert "shard 0: by-hand: receipt: " in done.output
    assert list((store / "cold/shard-0000/staging").iterdir()) == []


def test_a_refused_job_is_named_kept_and_discarded_when_told_to(store: Path) -> None:
    stage(store)
    staging = store / "cold/shard-0000/staging"
    path = staging / "by-hand.p0-a0.seg"
    path.write_bytes(path.read_bytes()[:-5])
    (staging / "unfinished.p0-a3.seg").write_bytes(b"x")
    done = run("adopt", *dirs(store))
    assert done.exit_code == 1 and "by-hand: refused: " in done.output
    assert path.exists(), "kept for inspection"
    again = run("adopt", *dirs(store), "--discard")
    assert again.exit_code == 0 and "4 files removed" in again.output
    assert list(staging.iterdir()) == []


def test_a_damaged_segment_is_named_and_nothing_changes(store: Path) -> None:
    path = store / "cold/shard-0000/data/0000000002.seg"
    content = bytearray(path.read_bytes())
    content[200] ^= 1
    path.write_bytes(content)
    done = run("compact", *dirs(store))
    assert done.exit_code == 1
    assert str(path) in done.output and "Nothing was changed" in done.output
    assert sorted(each.name for each in path.parent.iterdir()) == ["0000000001.seg", "0000000002.seg"]


def test_a_server_that_does_not_answer_is_given_up(store: Path) -> None:
    from shard_worker.disk.dir_lock import DirLock

    with DirLock(str(store / "data")):
        done = run("compact", *dirs(store), "--wait", "0.1")
    assert done.exit_code == 2 and "did not take a snapshot within" in done.output


def test_export_says_what_it_wrote_and_what_is_missing(store: Path) -> None:
    out = str(store / "out")
    done = run("export", *dirs(store), "--out", out)
    assert done.exit_code == 0 and "9 records in 1 files, commit 1" in done.output
    assert run("export", *dirs(store), "--out", out).output == "nothing new to export\n"
    assert run("export", *dirs(store), "--out", "s3://").exit_code == 2
