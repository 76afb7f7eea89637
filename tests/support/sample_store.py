"""A store on the real disk with a bit of everything in it, the same each time: for the commands that look at stores.

Two shards; all topics are in shard 0. It is written in the year 2100. A server's time never runs backwards, so one that
is started on it stays there: times are the same in every run, nothing grows old, and no lease ends.
"""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from shard_worker.disk.shard_paths import shard_paths
from shard_worker.shard import Shard
from shared.io.durable_fs import RealFileSystem
from shared.routing import shard_for
from shared.wire import Op
from tests.support.shard_driver import ManualClock, ShardDriver
from topicsd.store_file import STORE_FORMAT, Store, save_store

YEAR_2100_MS = 4_102_444_800_000
LOG_FILE_BYTES = 1 << 16
SHARDS = 2


def open_sample(root: Path) -> ShardDriver:
    """Shard 0 of a new store, empty and open; `seal_sample` ends it."""
    data_dir = root / "data"
    data_dir.mkdir(mode=0o700)
    fs = RealFileSystem()
    save_store(fs, str(data_dir), Store(format=STORE_FORMAT, shards=SHARDS))
    driver = ShardDriver(
        fs,  # type: ignore[arg-type]  # it is driven, not crashed
        clock=ManualClock(YEAR_2100_MS),
        wal_file_bytes=LOG_FILE_BYTES,
        data_dir=str(data_dir),
        cold_dir=None,
        wal_shards=SHARDS,
    )
    with suppress(FileExistsError):
        fs.make_dir(shard_paths(driver.settings, 1).root)
    other = Shard.open(
        fs, driver.settings, 1, wall_ms=driver.clock, clock=time.perf_counter, wal_file_bytes=LOG_FILE_BYTES
    )
    other.close()
    return driver


def make_sample(root: Path) -> Path:
    """The store, stopped; returns its data directory."""
    driver = open_sample(root)
    fill_sample(driver)
    driver.close()
    return root / "data"


def fill_sample(driver: ShardDriver) -> None:
    for name in ("events", "jobs", "orders"):
        assert shard_for(name, SHARDS) == 0
    driver.put("orders", durable=True)
    for n in range(1, 5):
        records = [
            {"data": {"sku": f"S{n}"}, "tag": f"t{n}", "node": "eu"},
            {"data": [n, "é"], "key": f"k{n}"},
        ]
        driver.append("orders", records, idempotency_key=f"write-{n}")
        driver.clock.advance(1000)
    driver.seal(["orders"])
    driver.delete_records("orders", match=["tag", "Eq", "t2"])
    driver.append("orders", [{"data": "five", "meta": {"trace": "ab"}}])
    driver.put("events", cap_records=3)
    for n in range(5):
        driver.append("events", [{"data": n}])
    driver.put("jobs", type="queue", leases_durable=True, lease_ms=3_600_000)
    driver.append("jobs", [{"data": n} for n in range(3)])
    driver.call(Op.CLAIM, "jobs", {"node": "worker-1"})
    driver.sync()
