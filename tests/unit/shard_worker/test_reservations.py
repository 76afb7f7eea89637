"""Reserved seqs follow the speed of a topic: whoever writes steadily to a topic without syncs waits for none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shard_worker.request import Request
from shard_worker.shard import Shard
from shared.limits import RESERVE_IDLE_MS, SEQ_RESERVE_MAX, SEQ_RESERVE_MIN
from shared.settings import Settings
from shared.wire import Op
from tests.support.fake_disk import FakeDisk
from tests.support.shard_driver import DATA_DIR, ManualClock

SYNC_MS = 200


class Answers:
    full = False

    def __init__(self) -> None:
        self.count = 0

    def answer(self, id: int, status: int, *_: object, **__: object) -> None:
        assert status < 300
        self.count += 1


class Steady:
    def __init__(self) -> None:
        self.clock, self.sink, self.waits = ManualClock(), Answers(), 0
        self._steady_s = 0.0
        settings = replace(Settings(), data_dir=DATA_DIR, min_free_bytes=0, sync_interval_ms=SYNC_MS)
        shard = Shard.open(
            FakeDisk(), settings, 0, wall_ms=self.clock, clock=lambda: self._steady_s, wal_file_bytes=1 << 24
        )
        self.engine = shard.engine
        self.write(1)

    @property
    def ahead(self) -> int:
        topic = self.engine.state.catalog.visible["t"]
        return topic.reserved - topic.head

    def write(self, records: int) -> None:
        body = b'{"records":[%b]}' % b",".join([b'{"data":1}'] * records)
        self.engine.submit(Request(self.sink, 1, Op.APPEND, "t", body, None))
        self.engine.commit()
        if self.engine.commits.waiting:
            self.waits += 1
            self.engine.sync_now()

    def go_on(self, ms: int, records: int, every_ms: int) -> int:
        """How many writes waited for a sync, while others came in the background."""
        before = self.waits
        for at in range(ms):
            self.clock.advance(1)
            self._steady_s += 0.001
            if at % every_ms == 0:
                self.write(records)
            if at % SYNC_MS == 0 and self.engine.sync_due():
                self.engine.sync_now()
        return self.waits - before


@pytest.mark.parametrize(("records", "every_ms"), [(1, 1), (100, 1), (10, 5), (500, 50)])
def test_a_steady_writer_soon_waits_for_no_sync(records: int, every_ms: int) -> None:
    steady = Steady()
    assert steady.go_on(2000, records, every_ms) <= 12
    assert steady.go_on(3000, records, every_ms) == 0
    assert steady.ahead <= max(SEQ_RESERVE_MAX, 2 * records)


def test_a_slow_writer_reserves_little_and_a_topic_at_rest_nothing() -> None:
    steady = Steady()
    steady.go_on(20_000, 1, 100)
    assert 0 < steady.ahead <= SEQ_RESERVE_MIN
    steady.clock.advance(2 * RESERVE_IDLE_MS)
    steady.engine.tick()
    assert steady.ahead == 0
    steady.write(1)
    assert 0 < steady.ahead <= 4 * SEQ_RESERVE_MIN, "and it begins anew with a small step"


def test_a_writer_that_was_fast_takes_smaller_steps_again() -> None:
    steady = Steady()
    steady.go_on(1500, 20, 1)
    fast = steady.ahead
    assert fast > 4 * SEQ_RESERVE_MIN
    topic = steady.engine.state.catalog.visible["t"]
    raises = set()
    for _ in range(400):
        steady.go_on(1000, 500, 1000)
        raises.add(topic.reserve_step)
    assert min(raises) < fast
