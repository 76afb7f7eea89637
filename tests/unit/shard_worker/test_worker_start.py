"""A worker that its disk does not let start says so in words, and is tried again."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from shard_worker.worker import Exit, run_worker, start_refused_by_disk
from shared.io.child_channel import Boot, ChildChannel
from shared.settings import Settings


class Channel:
    """The supervisor's end of a worker, as far as a start that fails needs it."""

    def __init__(self) -> None:
        self.reports: list[dict[str, Any]] = []

    def report(self, status: str, **fields: object) -> None:
        self.reports.append({"status": status, **fields})

    def hung_up(self) -> bool:
        return False


def test_a_file_that_cannot_be_used_is_named_and_the_start_tried_again(tmp_path: Path) -> None:
    (tmp_path / "shard-0000").mkdir()
    (tmp_path / "shard-0000" / "wal").write_text("a file where a directory should be")
    settings = replace(Settings(), data_dir=str(tmp_path), wal_shards=1)
    boot = Boot(settings=settings, shards=1, socket_dir=str(tmp_path), shard=0)
    channel = Channel()
    assert run_worker(cast(ChildChannel, channel), boot) == Exit.DISK_FAULT
    last = channel.reports[-1]
    assert (last["status"], last["retry"]) == ("failed", True)
    assert str(tmp_path / "shard-0000" / "wal") in last["reason"]


@pytest.mark.parametrize(
    ("number", "advice"), [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EACCES, False)]
)
def test_a_full_disk_comes_with_advice(number: int, advice: bool) -> None:
    reason = start_refused_by_disk(OSError(number, "reason", "/data/x"))
    assert "/data/x" in reason
    assert ("free some space" in reason) is advice
