"""A move of topics at start leaves the supervisor's loop free, and ends when it is told to stop."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from shared.io.durable_fs import RealFileSystem
from shared.settings import Settings
from topicsd import reshard, supervisor
from topicsd.exits import Exit
from topicsd.store_file import open_store


def test_a_signal_stops_a_move_between_two_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def endless_move(*_: Any, proceed: Callable[[], None]) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        while True:  # only `proceed` can end it
            proceed()
            time.sleep(0.001)

    monkeypatch.setattr(reshard, "ensure_shard_count", endless_move)
    (tmp_path / "data").mkdir()
    open_store(RealFileSystem(), str(tmp_path / "data"), shards=1)
    settings = replace(Settings(), data_dir=str(tmp_path / "data"), port=0, wal_shards=2)
    server = supervisor.Supervisor(settings, env={}, announce=lambda url: pytest.fail("the port was opened"))
    assert trio.run(server.run) == Exit.CLEAN
