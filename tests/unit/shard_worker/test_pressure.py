"""The ladder: when a level is reached, when it is left, and how wide the commit window gets."""

from __future__ import annotations

import pytest

from shard_worker.pressure import (
    CALM,
    COALESCE,
    FULL,
    PAUSE,
    PUSH_INTERVALS_MS,
    THRESHOLDS,
    WIDEN,
    LoopLag,
    Pressure,
    Signals,
    level_of,
)
from shared.limits import COMMIT_WINDOW_MAX_MS, COMMIT_WINDOW_MIN_MS, PRESSURE_CALM_MS


def lagging(ms: float) -> Signals:
    return CALM._replace(lag_ms=ms)


@pytest.mark.parametrize("signal", range(len(Signals._fields)), ids=Signals._fields)
def test_each_signal_climbs_the_ladder_by_itself(signal: int) -> None:
    for level, threshold in enumerate(THRESHOLDS[signal], start=1):
        values = list(CALM)
        values[signal] = threshold
        assert level_of(Signals(*values)) == level
        values[signal] = threshold * 0.999
        assert level_of(Signals(*values)) == level - 1


def test_only_a_full_intake_reaches_the_last_step() -> None:
    assert level_of(Signals(1e9, 10**9, 10**12, 0.99)) == PAUSE
    assert level_of(CALM._replace(intake=1.0)) == FULL
    assert len(PUSH_INTERVALS_MS) == FULL + 1


def test_the_level_rises_at_once_and_falls_one_step_per_calm_while() -> None:
    pressure = Pressure()
    assert pressure.observe(lagging(100), 0) == PAUSE
    seen = [(at, pressure.observe(CALM, at)) for at in range(1, 4 * PRESSURE_CALM_MS, 10)]
    falls = [at for (at, level), (_, before) in zip(seen[1:], seen, strict=False) if level < before]
    assert [level for _, level in seen][-1] == 0
    assert falls == [1 + PRESSURE_CALM_MS, 1 + 2 * PRESSURE_CALM_MS, 1 + 3 * PRESSURE_CALM_MS]


def test_a_load_around_a_threshold_does_not_make_the_level_flutter() -> None:
    pressure = Pressure()
    seconds = range(20)
    levels = [
        pressure.observe(lagging(36 if second % 2 else 50), 1000 * second + ms)
        for second in seconds
        for ms in range(0, 1000, 20)
    ]
    assert set(levels) == {WIDEN}, "0.72 of the threshold is not calm"


def test_a_single_peak_restarts_the_calm_while() -> None:
    pressure = Pressure()
    pressure.observe(lagging(25), 0)
    for at in range(1, 20 * PRESSURE_CALM_MS, PRESSURE_CALM_MS - 1):
        assert pressure.observe(CALM, at) == COALESCE
        assert pressure.observe(lagging(25), at + 1) == COALESCE


def test_a_clock_that_was_set_back_does_not_keep_the_level_up() -> None:
    pressure = Pressure()
    pressure.observe(lagging(25), 10**9)
    pressure.observe(CALM, 10**9)
    pressure.observe(CALM, 0)
    assert pressure.observe(CALM, PRESSURE_CALM_MS) == 0


def test_the_commit_window_doubles_under_pressure_and_closes_after_it() -> None:
    pressure = Pressure()
    assert pressure.next_commit_window_ms() == 0, "without pressure a sync waits for nobody"
    pressure.observe(lagging(50), 0)
    widening = [pressure.next_commit_window_ms() for _ in range(7)]
    assert widening == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
    assert (widening[0], widening[-1]) == (COMMIT_WINDOW_MIN_MS, COMMIT_WINDOW_MAX_MS)
    pressure.observe(CALM, 1)
    assert pressure.observe(CALM, 1 + PRESSURE_CALM_MS) == COALESCE
    closing = [pressure.next_commit_window_ms() for _ in range(6)]
    assert closing == [5.0, 2.5, 1.25, 0.625, 0.0, 0.0]


def test_one_long_turn_is_not_pressure_and_many_are() -> None:
    lag = LoopLag(0.0)
    now = 0.0
    for _ in range(100):
        now += 0.001
        lag.turned(now)
    assert lag.ms == pytest.approx(1.0, abs=0.01)
    now += 0.080
    lag.turned(now)
    assert level_of(lagging(lag.ms)) == 0
    for _ in range(10):
        now += 0.080
        lag.turned(now)
    assert level_of(lagging(lag.ms)) == WIDEN
    for _ in range(10):
        now += 1.0
        lag.idle(now)
    assert level_of(lagging(lag.ms)) == 0, "a loop that rests does not lag"


def test_looks_are_taken_now_and_then_and_not_in_every_turn() -> None:
    lag = LoopLag(0.0)
    looks = sum(lag.turned(turn / 1000) for turn in range(1, 1001))
    assert 40 <= looks <= 51
