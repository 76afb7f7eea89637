"""How pressed a worker is: four signals, one level, and what each level costs (docs/pressure.md).

    0  nothing     pushes leave with the turn that made them
    1  COALESCE    pushes gather, and several writes to a topic leave as one
    2  WIDEN       syncs wait a little, so that more writes share one
    3  PAUSE       pushes of topics with a negative priority stand still
    4  FULL        writes that would wait for a sync are refused

Only the bytes that wait for a sync reach level 4: everything else can be made up for by being late. The level rises at
once and falls step by step, each step after a calm while, so that a load at a threshold does not make it flutter.
Time comes as an argument.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from shared.limits import (
    COMMIT_WINDOW_MAX_MS,
    COMMIT_WINDOW_MIN_MS,
    LINK_CREDITS,
    LINK_UNSENT_MAX_BYTES,
    PRESSURE_CALM_MS,
    PRESSURE_SAMPLE_MS,
)

COALESCE, WIDEN, PAUSE, FULL = 1, 2, 3, 4

PUSH_INTERVALS_MS: Final = (0, 5, 10, 25, 50)
"""Milliseconds between two rounds of pushes at each level."""

_RELEASED_AT = 0.7  # of the threshold that was crossed


class Signals(NamedTuple):
    lag_ms: float  # how long what arrives waits for the loop, smoothed
    requests: int  # taken in, and not answered because of links that are slow or syncs that run
    backlog_bytes: int  # of answers and pushes that the slowest link has not taken
    intake: float  # share of the bytes that may wait for a sync; 1 is full


CALM: Final = Signals(0.0, 0, 0, 0.0)

THRESHOLDS: Final[tuple[tuple[float, ...], ...]] = (
    (25.0, 50.0, 100.0),
    (LINK_CREDITS / 8, LINK_CREDITS / 4, LINK_CREDITS / 2),
    (LINK_UNSENT_MAX_BYTES / 16, LINK_UNSENT_MAX_BYTES / 4, LINK_UNSENT_MAX_BYTES / 2),
    (0.25, 0.5, 0.75, 1.0),
)
"""Per signal, in the order of `Signals`: where levels 1, 2, … begin."""


def level_of(signals: Signals, share: float = 1.0) -> int:
    """The highest level for which a signal has reached `share` of its threshold."""
    lag_ms, requests, backlog_bytes, intake = signals
    reached = _climb(0, lag_ms, THRESHOLDS[0], share)
    reached = _climb(reached, float(requests), THRESHOLDS[1], share)
    reached = _climb(reached, float(backlog_bytes), THRESHOLDS[2], share)
    return _climb(reached, intake, THRESHOLDS[3], share)


def _climb(reached: int, value: float, thresholds: tuple[float, ...], share: float) -> int:
    while reached < len(thresholds) and value >= thresholds[reached] * share:
        reached += 1
    return reached


class LoopLag:
    """How long what arrives waits until the loop comes round to it. Times in seconds, of any steady clock."""

    def __init__(self, now_s: float) -> None:
        self.ms = 0.0  # smoothed: one long turn is not pressure
        self._last_s = now_s
        self._next_look_s = now_s

    def turned(self, now_s: float) -> bool:
        """The loop has come round without a rest; True if it is time for a look at the pressure."""
        self.ms += ((now_s - self._last_s) * 1000 - self.ms) / 4
        self._last_s = now_s
        if now_s < self._next_look_s:
            return False
        self._next_look_s = now_s + PRESSURE_SAMPLE_MS / 1000
        return True

    def idle(self, now_s: float) -> None:
        """The loop has had nothing to do until now."""
        self.ms /= 2
        self._last_s = now_s


@dataclass(slots=True)
class PressureCounters:
    pushes_coalesced: int = 0
    pushes_paused: int = 0
    commits_widened: int = 0


class Pressure:
    def __init__(self) -> None:
        self.level = 0
        self.signals = CALM
        self.counters = PressureCounters()
        self._calm_since_ms: int | None = None
        self._window_ms = 0.0

    def __repr__(self) -> str:
        return f"<Pressure {self.level} {self.signals}>"

    def observe(self, signals: Signals, now_ms: int) -> int:
        """Take a look; returns the level."""
        self.signals = signals
        reached = level_of(signals)
        if reached >= self.level:
            self.level = reached
            self._calm_since_ms = None
        elif level_of(signals, _RELEASED_AT) >= self.level:
            self._calm_since_ms = None
        elif self._calm_since_ms is None or now_ms < self._calm_since_ms:
            self._calm_since_ms = now_ms
        elif now_ms - self._calm_since_ms >= PRESSURE_CALM_MS:
            self.level -= 1
            self._calm_since_ms = now_ms
        return self.level

    def next_commit_window_ms(self) -> float:
        """How long the next sync waits for company: doubled with every pressed sync, halved with every other."""
        if self.level >= WIDEN:
            self._window_ms = min(COMMIT_WINDOW_MAX_MS, max(COMMIT_WINDOW_MIN_MS, 2 * self._window_ms))
        elif self._window_ms:
            halved = self._window_ms / 2
            self._window_ms = halved if halved >= COMMIT_WINDOW_MIN_MS else 0.0
        return self._window_ms

    @property
    def commit_window_ms(self) -> float:
        return self._window_ms
