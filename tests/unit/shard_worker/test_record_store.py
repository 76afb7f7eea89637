"""Where records are read from: open files are bounded, and our own shortage is not called damage."""

from __future__ import annotations

import errno

import pytest

from shard_worker.disk import record_store
from tests.support.shard_driver import ShardDriver


def many_segments(count: int) -> ShardDriver:
    shard = ShardDriver(hot_retain_segments=count, cold_dir=None)
    for number in range(count):
        shard.append("t", [{"data": f"in segment {number}"}])
        shard.seal(["t"])
    shard.close()
    shard.reopen()
    return shard


def test_only_so_many_segment_files_are_open_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_store, "SEGMENT_MAX_OPEN_FILES", 3)
    shard = many_segments(8)
    for _ in range(2):
        assert [record["data"] for record in shard.read("t")["records"]] == [
            f"in segment {number}" for number in range(8)
        ]
        assert 0 < len(shard.shard.store._files) <= 3


def test_a_lack_of_descriptors_is_unavailable_for_a_moment_and_not_damage() -> None:
    shard = many_segments(2)
    shard.disk.fail_on("open", error=errno.EMFILE, path_contains=".seg")
    answer = shard.read_answer("t")
    assert answer.status == 503
    assert answer.error == "shard_unavailable"
    assert len(shard.read("t")["records"]) == 2
