"""Small stores on a real disk, made by a real shard: sealed, moved to the cold tier, with deletes, caps and holes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from shared.io.durable_fs import RealFileSystem
from tests.support.shard_driver import ShardDriver


@dataclass(frozen=True)
class StorePaths:
    data: str
    cold: str

    @property
    def shard(self) -> str:
        return f"{self.data}/shard-0000"

    @property
    def cold_shard(self) -> str:
        return f"{self.cold}/shard-0000"


class RealDisk(RealFileSystem):
    """The real one, without its syncs: the tests here are about content, not about power cuts."""

    def sync_dir(self, path: str) -> None:
        pass

    def kill_process(self) -> None:
        pass


@contextmanager
def store_in(directory: Any, **settings: object) -> Iterator[tuple[ShardDriver, StorePaths]]:
    """A running shard whose files are under `directory`; closed cleanly at the end."""
    paths = StorePaths(f"{directory}/data", f"{directory}/cold")
    os.makedirs(paths.data, exist_ok=True)
    with open(f"{paths.data}/store.json", "w") as file:
        json.dump({"format": 1, "shards": 1}, file)
    driver = ShardDriver(
        RealDisk(),  # type: ignore[arg-type]
        data_dir=paths.data,
        cold_dir=paths.cold,
        wal_file_bytes=1 << 20,
        **settings,
    )
    yield driver, paths
    driver.close()


def rows(first: int, count: int, **more: object) -> list[dict[str, object]]:
    """Records with labels here and there, as writers leave them."""
    found: list[dict[str, object]] = []
    for number in range(first, first + count):
        row: dict[str, object] = {"data": {"n": number, "text": f"record {number} ü"}, **more}
        if number % 2:
            row["tag"] = f"tag-{number % 5}"
        if number % 3:
            row["key"] = f"key-{number % 7}"
        if number % 4 == 0:
            row["meta"] = {"source": "test", "n": number}
        found.append(row)
    return found


def fill(driver: ShardDriver, topics: Sequence[str], *, segments: int = 3, each: int = 40) -> None:
    """Every topic gets `each` records per segment."""
    for number in range(segments):
        for topic in topics:
            driver.append(topic, rows(1 + number * each, each))
        assert driver.seal()
    driver.sync()


def fill_with_history(driver: ShardDriver) -> None:
    """Six segments, cold and hot, with every reason that there is for a seq not to be there."""
    driver.put("capped", cap_records=50)
    driver.put("old", ttl_ms=1000)
    driver.append("old", rows(1, 20))
    driver.append("plain", [{"data": number} for number in range(20)])  # no labels, no meta
    fill(driver, ["alpha", "beta", "capped"], segments=3)
    driver.clock.advance(5000)
    driver.tick()
    driver.delete_records("alpha", match=["tag", "Eq", "tag-3"])
    driver.delete_records("beta", before_seq=31)
    fill(driver, ["alpha", "beta", "gone"], segments=2)
    driver.delete_topic("gone")
    driver.relocate()
    driver.snapshot()
    driver.append("alpha", rows(500, 10))
    driver.delete_records("alpha", match=["key", "Eq", "key-2"])
    driver.seal()
    driver.snapshot()
