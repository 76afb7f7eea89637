"""Compaction against a model of what readers must still see, with writes, deletes, crashes and other jobs in between.

The model knows every record that was acked and not deleted. Of a topic that keeps last values a record may be missing
only if a younger one with its key was written; everything else must be there, once, with its bytes.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from shared.compaction import PlanOptions
from tests.support.compaction_kit import run_jobs, stage
from tests.support.fault_kit import expect_stable
from tests.support.shard_driver import ShardDriver, small_limits

KEYS = ["a", "b", "c"]
TAGS = ["x", "y", "z"]


class Model:
    def __init__(self) -> None:
        self.written: dict[str, dict[int, dict[str, Any]]] = {"log": {}, "last": {}}
        self.deleted: dict[str, set[int]] = {"log": set(), "last": set()}

    def append(self, topic: str, first: int, records: list[dict[str, Any]]) -> None:
        for at, record in enumerate(records):
            self.written[topic][first + at] = record

    def delete(self, topic: str, tag: str) -> None:
        held = self.written[topic]
        self.deleted[topic] |= {seq for seq, record in held.items() if record.get("tag") == tag}

    def check(self, topic: str, shown: list[dict[str, Any]]) -> None:
        held = self.written[topic]
        seen = {record["$seq"]: record for record in shown}
        assert len(seen) == len(shown) and list(seen) == sorted(seen)
        for seq, record in seen.items():
            assert seq in held and seq not in self.deleted[topic], f"{topic}: {seq} came back"
            assert record["data"] == held[seq]["data"]
            assert record.get("$key") == held[seq].get("key") and record.get("$tag") == held[seq].get("tag")
        for seq in held.keys() - seen.keys() - self.deleted[topic]:
            key = held[seq].get("key")
            younger = [later for later in held if later > seq and held[later].get("key") == key]
            assert topic == "last" and key is not None and younger, f"{topic}: {seq} is missing"


class Run:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.driver = ShardDriver(wal_file_bytes=1 << 13)
        self.driver.put("log", durable=True)
        # The retention never ends: a null is a value like any other to this model.
        self.driver.put("last", durable=True, cleanup="compact", delete_retention_ms=10**12)
        self.model = Model()
        self.jobs = 0
        self.half: Any = None

    def step(self) -> str:
        choice = self.random.choices(
            ["append", "delete", "seal", "move", "stage", "work", "finish", "kill", "power", "snapshot"],
            weights=[30, 6, 12, 8, 8, 14, 6, 3, 3, 4],
        )[0]
        getattr(self, choice)()
        return choice

    def append(self) -> None:
        topic = self.random.choice(["log", "last"])
        records = []
        for _ in range(self.random.randint(1, 5)):
            record: dict[str, Any] = {"data": self.random.choice([None, self.random.randint(0, 999)])}
            if self.random.random() < 0.7:
                record["key"] = self.random.choice(KEYS)
            if self.random.random() < 0.5:
                record["tag"] = self.random.choice(TAGS)
            records.append(record)
        answer = self.driver.append(topic, records)
        assert answer.ok
        self.model.append(topic, answer.json["first_seq"], records)
        self.driver.clock.advance(5)

    def delete(self) -> None:
        topic, tag = self.random.choice(["log", "last"]), self.random.choice(TAGS)
        assert self.driver.delete_records(topic, match=["tag", "Eq", tag]).ok
        self.model.delete(topic, tag)

    def _idle(self) -> bool:
        return self.half is None and not self.driver.shard.maintenance.stepping

    def seal(self) -> None:
        if self._idle():
            self.driver.finish_job(self.driver.begin_seal())

    def move(self) -> None:
        if self._idle():
            self.driver.relocate()

    def snapshot(self) -> None:
        if self._idle() and self.driver.shard.maintenance._writer is None:
            self.driver.snapshot()

    def stage(self) -> None:
        if not self._idle():
            return
        if self.random.random() < 0.7:
            self.snapshot()
        self.jobs += 1
        merge = self.random.random() < 0.7
        target = self.random.choice([600, 4000, 1 << 20])
        stage(self.driver, f"j{self.jobs}", PlanOptions(merge=merge, target_bytes=target))

    def work(self) -> None:
        """One step of the worker's own, perhaps stopped between running and finishing."""
        if self.half is not None:
            self.finish()
            return
        maintenance = self.driver.shard.maintenance
        assert maintenance.adoption is not None
        maintenance.adoption.scan_soon()
        job = maintenance.next_job()
        if job is None:
            self.driver.sync()
            return
        job.run()
        self.half = job
        if self.random.random() < 0.6:
            self.finish()

    def finish(self) -> None:
        if self.half is not None:
            job, self.half = self.half, None
            self.driver.shard.maintenance.finish(job)

    def kill(self) -> None:
        self.half = None
        self.driver.kill()
        self.check()

    def power(self) -> None:
        self.half = None
        self.driver.lose_power(self.random.randint(0, 10**6))
        self.check()

    def check(self) -> None:
        for topic in ("log", "last"):
            self.model.check(topic, self.driver.read_all(topic, include_tags=True, include_keys=True))


def run(seed: int, steps: int) -> int:
    with small_limits():
        machine = Run(seed)
        for _ in range(steps):
            machine.step()
        machine.finish()
        machine.check()
        run_jobs(machine.driver, limit=200)
        machine.check()
        expect_stable(machine.driver)
        adoption = machine.driver.shard.maintenance.adoption
        assert adoption is not None
        return sum(
            entry.runs > 0 for number, entry in machine.driver.engine.state.segments.items() if number > 10**9
        )


def test_readers_of_compacted_topics_see_what_they_must() -> None:
    compacted = sum(run(seed, 120) for seed in range(12))
    assert compacted >= 5, "the runs must come to compacted segments, or they prove nothing"


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(100, 160))
def test_readers_of_compacted_topics_see_what_they_must_for_long(seed: int) -> None:
    run(seed, 800)
