"""A shard on a fake disk that is written to, archived and backed up, with a model of what was acked at every moment."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from shard_worker.backup_pins import plan_backup
from shared.backup_format import Backup
from shared.io.object_store import DirectoryStore, ObjectStore
from tests.support.fake_disk import FakeDisk
from tests.support.shard_driver import COLD_DIR, DATA_DIR, STORE_ID, ManualClock, ShardDriver
from topicsd.backup.create import BackupMaker, Source, Tally
from topicsd.backup.cut import Target
from topicsd.backup.restore import Restored, Restorer

PLACE = "/place"
TOPICS = ("a", "b", "c")
Model = dict[str, list[tuple[int, Any]]]  # topic -> live records as (seq, data)


@dataclass
class Moment:
    now_ms: int
    model: Model


@dataclass
class BackedUp:
    """The store, the place of its backups (on a disk of its own), and its history."""

    archive: bool = True
    clock: ManualClock = field(default_factory=ManualClock)
    place_disk: FakeDisk = field(default_factory=FakeDisk)
    model: Model = field(default_factory=dict)
    heads: dict[str, int] = field(default_factory=dict)
    moments: list[Moment] = field(default_factory=list)

    def __post_init__(self) -> None:
        # One disk for the store and the archive: the shard has only one door to it.
        overrides = {"wal_archive": PLACE} if self.archive else {}
        self.driver = ShardDriver(clock=self.clock, **overrides)
        if self.archive:
            self.place_disk = self.driver.disk

    @property
    def place(self) -> ObjectStore:
        return DirectoryStore(self.place_disk, PLACE)

    # --- living -----------------------------------------------------------------------------------------

    def append(self, topic: str, count: int = 1) -> None:
        first = self.heads.get(topic, 0) + 1
        records = [{"data": [topic, seq], "tag": f"t{seq % 3}"} for seq in range(first, first + count)]
        answer = self.driver.append(topic, records)
        assert answer.ok and answer.json["first_seq"] == first
        self.heads[topic] = first + count - 1
        self.model.setdefault(topic, []).extend((first + at, each["data"]) for at, each in enumerate(records))

    def delete_tag(self, topic: str, rest: int) -> None:
        if topic in self.model:
            assert self.driver.delete_records(topic, match=["tag", "Eq", f"t{rest}"]).ok
            self.model[topic] = [(seq, data) for seq, data in self.model[topic] if seq % 3 != rest]

    def delete_topic(self, topic: str) -> None:
        if self.model.pop(topic, None) is not None:
            assert self.driver.delete_topic(topic).ok
            del self.heads[topic]

    def step(self, rng: random.Random) -> None:
        """Something happens, and a moment passes."""
        topic = rng.choice(TOPICS)
        match rng.choices(
            ("append", "tag", "delete", "seal", "snapshot", "relocate", "archive"), (12, 2, 1, 2, 2, 1, 2)
        )[0]:
            case "append":
                self.append(topic, rng.randint(1, 4))
            case "tag":
                self.delete_tag(topic, rng.randint(0, 2))
            case "delete":
                self.delete_topic(topic)
            case "seal":
                self.driver.seal([topic])
            case "snapshot":
                self.driver.snapshot()
            case "relocate":
                self.driver.relocate()
            case "archive":
                self.driver.sync()
                self.hand_over()
        self.tick()

    def tick(self) -> None:
        self.moments.append(
            Moment(self.clock.now_ms, {name: list(rows) for name, rows in self.model.items()})
        )
        self.clock.advance(10)

    def hand_over(self) -> int:
        archive = self.driver.shard.archive
        done = 0
        while archive is not None and (job := archive.next_job()) is not None:
            job.run()
            archive.finish(job)
            done += 1
        return done

    # --- backing up -------------------------------------------------------------------------------------

    def backup(self) -> Backup:
        return self.counted_backup()[0]

    def counted_backup(self) -> tuple[Backup, Tally]:
        driver = self.driver
        driver.settle()
        driver.sync()
        maker = BackupMaker(self.place, self.source(), STORE_ID, "test")
        return maker.make([plan_backup(driver.shard)], self.clock.now_ms), maker.tally

    def source(self) -> Source:
        disk = self.driver.disk
        return Source(DirectoryStore(disk, DATA_DIR), DirectoryStore(disk, COLD_DIR))

    # --- restoring --------------------------------------------------------------------------------------

    def restorer(self, disk: FakeDisk | None = None) -> Restorer:
        return Restorer(
            FakeDisk() if disk is None else disk,
            self.place,
            DATA_DIR,
            self.driver.settings,
            wall_ms=self.clock,
            wal_file_bytes=self.driver.wal_file_bytes,
        )

    def restore(self, target: Target | None = None, **options: Any) -> tuple[ShardDriver, Restored]:
        restorer = self.restorer()
        restored = restorer.restore(target or Target(), **options)
        assert isinstance(restorer.fs, FakeDisk)
        driver = ShardDriver(restorer.fs, clock=self.clock, wal_archive=None)
        assert driver.shard.report.damage == [] and driver.shard.report.notes == []
        return driver, restored


def shown(driver: ShardDriver) -> Model:
    """What a reader finds now."""
    items, _ = driver.list()
    return {
        item["topic"]: [(each["$seq"], each["data"]) for each in driver.read_all(item["topic"])]
        for item in items
    }
