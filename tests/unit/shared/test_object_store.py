"""What a directory and a bucket promise alike, and what only a directory can show: crashes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from shared.errors import BadSetting
from shared.io.durable_fs import RealFileSystem, read_whole
from shared.io.object_store import (
    BucketStore,
    DirectoryStore,
    Listed,
    ObjectStore,
    StoreUnreachable,
    file_chunks,
    object_chunks,
    open_store,
)
from tests.support.fake_disk import FakeDisk, PowerCut
from tests.support.s3_server import S3Server, s3_server


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture(params=["directory", "fake", "bucket"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    match request.param:
        case "directory":
            return open_store(RealFileSystem(), str(tmp_path / "store"), setting="x")
        case "fake":
            return open_store(FakeDisk(), "/store", setting="x")
    server: S3Server = request.getfixturevalue("s3")
    return open_store(FakeDisk(), f"s3://{server.new_bucket()}/some/prefix", setting="x")


def test_what_was_put_is_there_whole_and_in_parts(store: ObjectStore) -> None:
    store.put("a/b", [b"hello ", b"world"])
    assert store.get("a/b") == b"hello world"
    assert store.size("a/b") == 11
    assert store.get_range("a/b", 6, 3) == b"wor"
    assert store.get_range("a/b", 6, 100) == b"world"
    assert store.get_range("a/b", 11, 5) == store.get_range("a/b", 99, 5) == b""
    assert b"".join(object_chunks(store, "a/b", 11)) == b"hello world"
    with pytest.raises(OSError, match="ends at 11"):
        list(object_chunks(store, "a/b", 12))


def test_put_replaces_and_takes_empty_objects(store: ObjectStore) -> None:
    store.put("k", [b"old"])
    store.put("k", [b"new!"])
    assert store.get("k") == b"new!"
    store.put("empty", [])
    assert store.get("empty") == b"" and store.size("empty") == 0


def test_the_first_of_two_writers_wins(store: ObjectStore) -> None:
    assert store.put_if_absent("commit/1", b"mine")
    assert not store.put_if_absent("commit/1", b"yours")
    assert store.get("commit/1") == b"mine"


def test_a_list_is_in_order_and_ends_at_the_directory(store: ObjectStore) -> None:
    for key in ("b/2", "b/1", "b/deep/er", "bb/3", "a"):
        store.put(key, [key.encode()])
    assert list(store.list("b")) == [Listed("b/1", 3), Listed("b/2", 3), Listed("b/deep/er", 9)]
    assert [each.key for each in store.list("")] == ["a", "b/1", "b/2", "b/deep/er", "bb/3"]
    assert list(store.list("nothing")) == []


def test_what_is_not_there_is_said_so(store: ObjectStore) -> None:
    assert store.size("no") is None
    with pytest.raises(FileNotFoundError):
        store.get("no")
    with pytest.raises(FileNotFoundError):
        store.get_range("no", 0, 1)
    store.delete("no")


def test_a_deleted_object_is_gone_and_its_name_free(store: ObjectStore) -> None:
    store.put("x/y", [b"1"])
    store.delete("x/y")
    assert store.size("x/y") is None and list(store.list("x")) == []
    assert store.put_if_absent("x/y", b"2")


@pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", "../a", "a/./b", "a.tmp"])
def test_a_key_is_a_plain_relative_path(key: str) -> None:
    with pytest.raises(AssertionError):
        DirectoryStore(FakeDisk(), "/store").put(key, [b""])


def test_a_large_object_travels_in_parts(s3: S3Server) -> None:
    store = open_store(FakeDisk(), f"s3://{s3.new_bucket()}", setting="x")
    disk = FakeDisk()
    content = bytes(range(256)) * (80 << 10)  # 20 MiB
    disk.make_dir("/d")
    file = disk.create("/d/big")
    file.pwritev([content], 0)
    store.put("big", file_chunks(file))
    assert store.get("big") == content
    assert b"".join(object_chunks(store, "big", len(content))) == content


def test_an_object_in_a_directory_appears_whole_or_not_at_all_whenever_the_power_goes() -> None:
    cuts, outcomes = 1, set()
    while True:
        disk = FakeDisk()
        store = DirectoryStore(disk, "/store")
        store.put("kept", [b"before"])
        disk.crash_after(cuts, half=True, seed=cuts)
        try:
            store.put("key", [b"part one, ", b"part two"])
            done = True
        except PowerCut:
            done = False
        disk.lose_power(seed=cuts)
        again = DirectoryStore(disk, "/store")
        assert again.get("kept") == b"before"
        found = again.get("key") if again.size("key") is not None else None
        assert found in (None, b"part one, part two"), cuts
        assert found is not None or not done, "durable when put returns"
        outcomes.add(found)
        again.put("key", [b"part one, part two"])
        assert [each.key for each in again.list("")] == ["kept", "key"]
        if done:
            break
        cuts += 1
    assert cuts > 4 and outcomes == {None, b"part one, part two"}


def test_a_bucket_that_cannot_be_reached_is_an_os_error_that_names_the_object(s3: S3Server) -> None:
    store = open_store(FakeDisk(), "s3://no-such-bucket/p", setting="x")
    with pytest.raises((StoreUnreachable, FileNotFoundError)):
        store.put("key", [b"1"])
    with pytest.raises(OSError, match=r"no-such-bucket|NoSuchBucket"):
        store.put_if_absent("key", b"1")


def test_without_the_package_the_message_says_what_to_install() -> None:
    with patch.dict(sys.modules, {"obstore": None}), pytest.raises(BadSetting, match=r"topicsd\[s3\]"):
        BucketStore("s3://b/p", setting="wal_archive")


@pytest.mark.parametrize("place", ["ftp://x/y", "s3://", "s3:///p"])
def test_a_place_that_is_neither_is_refused(place: str) -> None:
    with pytest.raises(BadSetting, match="s3://"):
        open_store(FakeDisk(), place, setting="x")


@pytest.mark.parametrize("kind", ["real", "fake"])
def test_a_name_that_is_taken_is_not_replaced_by_rename_new(kind: str, tmp_path: Path) -> None:
    fs, root = (RealFileSystem(), str(tmp_path / "d")) if kind == "real" else (FakeDisk(), "/d")
    fs.make_dir(root)
    for name in ("a", "b"):
        file = fs.create(f"{root}/{name}")
        file.pwritev([name.encode()], 0)
        file.close()
    fs.rename_new(f"{root}/a", f"{root}/new")
    with pytest.raises(FileExistsError):
        fs.rename_new(f"{root}/b", f"{root}/new")
    assert fs.list_dir(root) == ["b", "new"]
    assert read_whole(fs, f"{root}/new") == b"a"
