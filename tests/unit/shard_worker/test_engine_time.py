"""Time in the engine goes on when the wall clock is set back: P9 of the fault catalogue."""

from __future__ import annotations

from dataclasses import replace

from shard_worker.request import Request
from shard_worker.shard import Shard
from shared.settings import Settings
from shared.wire import Op
from tests.support.fake_disk import FakeDisk
from tests.support.shard_driver import DATA_DIR, ManualClock

HOUR_MS = 3_600_000


class Collected:
    def __init__(self) -> None:
        self.statuses: dict[int, int] = {}

    def answer(self, id: int, status: int, *_: object, **__: object) -> None:
        self.statuses[id] = status


class SteppedTime:
    """A wall clock that can be set back, and a steady one that cannot."""

    def __init__(self) -> None:
        self.wall, self.steady_s = ManualClock(), 0.0

    def pass_ms(self, ms: int) -> None:
        self.wall.advance(ms)
        self.steady_s += ms / 1000


def opened(time: SteppedTime) -> Shard:
    settings = replace(Settings(), data_dir=DATA_DIR, min_free_bytes=0)
    return Shard.open(
        FakeDisk(), settings, 0, wall_ms=time.wall, clock=lambda: time.steady_s, wal_file_bytes=1 << 20
    )


def test_within_a_turn_time_stands_still_but_never_behind_what_was_written() -> None:
    time = SteppedTime()
    engine = opened(time).engine
    engine.begin_turn()
    began = engine.now_ms()
    time.pass_ms(50)
    assert engine.now_ms() == began
    engine.state.clock_ms = began + 7
    assert engine.now_ms() == began + 7
    engine.end_turn()
    assert engine.now_ms() == began + 50


def test_p09_a_long_poll_ends_although_the_clock_was_set_back() -> None:
    time, sink = SteppedTime(), Collected()
    engine = opened(time).engine
    engine.submit(Request(sink, 1, Op.APPEND, "t", b'{"records":[{"data":1}]}', None))
    engine.sync_now()
    time.wall.advance(-HOUR_MS)
    engine.submit(Request(sink, 2, Op.READ, "t", b'{"from_seq":1,"wait_ms":1000}', None))
    engine.tick()
    assert 2 not in sink.statuses
    time.pass_ms(1100)
    engine.tick()
    assert sink.statuses[2] == 200


def test_p09_background_syncs_go_on_although_the_clock_was_set_back() -> None:
    time, sink = SteppedTime(), Collected()
    engine = opened(time).engine
    engine.submit(Request(sink, 1, Op.APPEND, "t", b'{"records":[{"data":1}]}', None))
    engine.sync_now()
    time.wall.advance(-HOUR_MS)
    engine.submit(Request(sink, 2, Op.APPEND, "t", b'{"records":[{"data":2}]}', None))
    engine.commit()
    assert sink.statuses[2] == 200
    time.pass_ms(10_000)
    assert engine.sync_due()


def test_p09_times_of_records_never_go_back() -> None:
    time = SteppedTime()
    engine = opened(time).engine
    before = engine.now_ms()
    time.wall.advance(-HOUR_MS)
    time.pass_ms(50)
    assert before + 50 <= engine.now_ms() <= before + 51
    time.wall.advance(2 * HOUR_MS)
    assert engine.now_ms() == time.wall()


def test_an_answer_that_waits_behind_a_running_sync_asks_for_the_next_one() -> None:
    time, sink = SteppedTime(), Collected()
    engine = opened(time).engine
    config = b'{"durability":"fsync"}'
    engine.submit(Request(sink, 1, Op.PUT_TOPIC, "t", config, None))
    engine.sync_now()
    engine.submit(Request(sink, 2, Op.APPEND, "t", b'{"records":[{"data":1}]}', None))
    engine.commit()
    running = engine.begin_sync()
    engine.submit(Request(sink, 3, Op.PUT_TOPIC, "t", config, None))
    engine.commit()
    running.run()
    engine.finish_sync(running)
    assert 3 not in sink.statuses and not engine.wal.unsynced
    assert engine.commits.needs_sync and engine.sync_due()
    engine.sync_now()
    assert sink.statuses[3] == 200
    assert not engine.commits.needs_sync


def test_a_background_sync_is_due_an_interval_after_the_last_one_whatever_the_clock_does() -> None:
    time = SteppedTime()
    time.pass_ms(HOUR_MS)
    engine = opened(time).engine
    interval_ms = engine.settings.sync_interval_ms
    engine.sync_now()
    assert engine.next_sync_in_ms() == interval_ms
    time.pass_ms(interval_ms - 10)
    assert engine.next_sync_in_ms() == 10
    time.pass_ms(HOUR_MS)
    assert engine.next_sync_in_ms() == 1, "overdue: soon, and never in the same instant over and over"
    engine.sync_now()
    time.wall.advance(-HOUR_MS)
    assert engine.next_sync_in_ms() == interval_ms, "set back, it is still an interval at most"
