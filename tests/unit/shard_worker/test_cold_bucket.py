"""The cold tier in a bucket: moved to, read from by ranges, compacted there; and a bucket that fails in every way."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ops.coldstore.compact_local import compact_local
from ops.coldstore.staging import ShardPlace, load_basis
from shared.errors import BadSetting
from shared.io.bucket_fs import ColdBucket, TieredFileSystem, file_system
from shared.io.durable_fs import RealFileSystem, read_whole, write_atomically
from shared.io.manifest_files import load_manifest
from shared.io.object_store import StoreUnreachable
from tests.support.compaction_kit import run_jobs
from tests.support.s3_server import S3Server, s3_server
from tests.support.shard_driver import ShardDriver


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture
def url(s3: S3Server) -> str:
    return f"s3://{s3.new_bucket()}/some/prefix"


def shard_on(url: str, tmp_path: Path) -> ShardDriver:
    """Three segments, two of them beyond the hot bound."""
    driver = ShardDriver(
        TieredFileSystem(url),  # type: ignore[arg-type]
        wal_file_bytes=1 << 16,
        data_dir=str(tmp_path / "data"),
        cold_dir=url,
    )
    driver.put("t", durable=True)
    for number in range(3):
        driver.append("t", [{"data": f"{number}.{at}", "tag": f"t{at}"} for at in range(4)])
        assert driver.seal()
    driver.append("t", [{"data": "hot"}])
    driver.sync()
    return driver


def reopen(driver: ShardDriver, url: str, tmp_path: Path) -> ShardDriver:
    driver.shard.store.close()
    driver.shard.engine.wal.close()
    return ShardDriver(
        TieredFileSystem(url),  # type: ignore[arg-type]
        wal_file_bytes=1 << 16,
        data_dir=str(tmp_path / "data"),
        cold_dir=url,
    )


def data(driver: ShardDriver, from_seq: int = 0) -> list[Any]:
    return [record["data"] for record in driver.read_all("t", from_seq)]


def hot_files(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "data/shard-0000/segments").iterdir())


def test_files_in_a_bucket_behave_like_files(url: str) -> None:
    fs = TieredFileSystem(url)
    path = f"{url}/a/b/file"
    assert fs.list_dir(f"{url}/a") == [] and not fs.exists(path)
    with pytest.raises(FileNotFoundError):
        fs.open(path)
    write_atomically(fs, path, [b"one", b"two"])
    assert read_whole(fs, path) == b"onetwo"
    assert fs.list_dir(url) == ["a"] and fs.list_dir(f"{url}/a/b") == ["file"]
    file = fs.open(path)
    assert (file.size(), file.pread(3, 3), file.pread(9, 4), file.pread(9, 6)) == (6, b"two", b"wo", b"")
    with pytest.raises(OSError, match="written once"):
        file.pwritev([b"x"], 0)
    with pytest.raises(FileExistsError):
        fs.create(path)
    fs.rename(path, f"{url}/a/new")
    assert fs.list_dir(f"{url}/a") == ["new"]
    big = fs.create(f"{url}/a/big")
    big.pwritev([b"x" * (9 << 20)], 0)
    big.sync_data()
    big.close()
    assert fs.open(f"{url}/a/big").pread(4, (9 << 20) - 2) == b"xx"
    fs.unlink(f"{url}/a/new")
    assert not fs.exists(f"{url}/a/new")
    with pytest.raises(OSError, match="not in"):
        fs.open("s3://elsewhere/x")


def test_only_a_bucket_needs_the_package(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    assert isinstance(file_system(None, "/mnt/cold"), RealFileSystem)
    monkeypatch.setitem(__import__("sys").modules, "obstore", None)
    with pytest.raises(BadSetting, match=r"pip install topicsd\[s3\]"):
        file_system("s3://bucket/x")


def test_any_path_in_the_bucket_is_reached(url: str) -> None:
    write_atomically(TieredFileSystem(url), f"{url}/a/file", [b"x"])
    fs = file_system(None, f"{url}/a/file")
    assert read_whole(fs, f"{url}/a/file") == b"x"
    assert fs.list_dir(f"{url}/a") == ["file"] and fs.list_dir(url.removesuffix("/some/prefix")) == ["some"]
    with pytest.raises(BadSetting, match="names no bucket"):
        file_system("s3://")


def test_segments_move_to_the_bucket_and_are_read_from_there(url: str, tmp_path: Path) -> None:
    driver = shard_on(url, tmp_path)
    before = data(driver)
    assert driver.relocate() == 2
    assert hot_files(tmp_path) == ["0000000003.seg"]
    assert data(driver) == before
    twin = reopen(driver, url, tmp_path)
    assert data(twin) == before
    manifest, _ = load_manifest(TieredFileSystem(url), f"{url}/shard-0000")
    assert manifest is not None and [each.number for each in manifest.segments] == [1, 2]


def test_a_store_in_a_bucket_is_compacted_there(url: str, tmp_path: Path) -> None:
    driver = shard_on(url, tmp_path)
    driver.relocate()
    driver.delete_records("t", match=["tag", "Eq", "t1"])
    left = data(driver)
    driver.snapshot()
    fs = TieredFileSystem(url)
    place = ShardPlace(0, str(tmp_path / "data"), url)
    basis = load_basis(fs, place)
    assert basis is not None
    staged = compact_local(fs, place, basis, job="job", now_ms=driver.clock())
    assert staged is not None
    run_jobs(driver)
    assert data(driver) == left
    assert fs.list_dir(f"{url}/shard-0000/data") == [f"{staged.new[0].number}.seg"]
    assert fs.list_dir(f"{url}/shard-0000/receipts") == ["job.json"]
    assert data(reopen(driver, url, tmp_path)) == left


def test_a_bucket_that_goes_away_keeps_the_hot_copies_and_everything_else_going(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with s3_server() as server:
        url = f"s3://{server.new_bucket()}/cold"
        driver = shard_on(url, tmp_path)
        assert driver.finish_job(driver.begin_relocation())
        driver.sync()
        driver.shard.maintenance.next_job()
        driver.shard.store.forget_segment(1)
    before = hot_files(tmp_path)
    answer = driver.read_answer("t")
    assert (answer.status, answer.error) == (503, "shard_unavailable")
    asked: list[str] = []
    with monkeypatch.context() as counting:
        counting.setattr(ColdBucket, "_call", lambda self, key, call: asked.append(key))
        for _ in range(20):
            assert driver.read_answer("t").status == 503
    assert not asked, "having failed it refuses at once for a while"
    assert data(driver, 4)[-1] == "hot"
    assert driver.append("t", [{"data": "writes go on"}]).ok
    assert driver.seal()
    assert set(before) <= set(hot_files(tmp_path)), "nothing was removed"


def test_a_bucket_that_never_answers_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with s3_server() as server:
        url = f"s3://{server.new_bucket()}/cold"
        driver = shard_on(url, tmp_path)
        driver.relocate()
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        host, port = silent.getsockname()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
        fs = TieredFileSystem(url).impatient()
        with pytest.raises(StoreUnreachable):
            fs.open(f"{url}/shard-0000/data/0000000001.seg")
        with pytest.raises(StoreUnreachable, match="a moment ago"):
            fs.open(f"{url}/shard-0000/data/0000000001.seg")


def test_a_bucket_that_forgets_what_it_took_keeps_the_hot_copy(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = shard_on(url, tmp_path)
    with monkeypatch.context() as lying:
        lying.setattr(ColdBucket, "put", lambda self, key, chunks: list(chunks))
        assert not driver.finish_job(driver.begin_relocation())
    assert hot_files(tmp_path) == ["0000000001.seg", "0000000002.seg", "0000000003.seg"]
    assert driver.relocate() == 2
    bucket = TieredFileSystem(url)
    bucket.unlink(f"{url}/shard-0000/data/0000000001.seg")
    twin = reopen(driver, url, tmp_path)
    assert twin.read_answer("t").status == 500, "it is gone, and that is said"
    assert data(twin, 4)[-1] == "hot"


def test_dead_segments_leave_the_bucket_in_a_job_and_not_between_turns(url: str, tmp_path: Path) -> None:
    driver = shard_on(url, tmp_path)
    driver.relocate()
    driver.delete_records("t", before_seq=9)
    for number in range(3):
        driver.append("t", [{"data": number}])
        assert driver.snapshot()
    assert TieredFileSystem(url).list_dir(f"{url}/shard-0000/data") != []
    run_jobs(driver)
    assert TieredFileSystem(url).list_dir(f"{url}/shard-0000/data") == []
