"""When a dead child is started again. No clock: callers say how long it had been ready.

Delays double from `first_delay_s` to `max_delay_s`. A child that dies `loop_after` times in a row, each time
before it had been ready for `stable_s`, is in a crash loop: it stays down for `loop_delay_s` between tries,
and whoever asks is told why. One stable run makes up for everything before it.

R1 a delay is never below `first_delay_s` nor above `loop_delay_s`; R2 quick deaths in a row never shorten it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartTimes:
    first_delay_s: float = 0.1
    max_delay_s: float = 5.0
    stable_s: float = 10.0
    # With the delays above some 15 s of trying: as long as the worker of a killed supervisor may take to
    # drain and give up the directory that its successor waits for.
    loop_after: int = 8
    loop_delay_s: float = 30.0

    def __post_init__(self) -> None:
        assert 0 < self.first_delay_s <= self.max_delay_s <= self.loop_delay_s
        assert self.loop_after >= 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartDue:
    delay_s: float
    quick_deaths: int
    """In a row, this one included; 0 after a stable run."""

    crash_loop: bool


class RestartPolicy:
    def __init__(self, times: RestartTimes) -> None:
        self._times = times
        self._quick_deaths = 0

    def __repr__(self) -> str:
        return f"RestartPolicy({self._quick_deaths} quick deaths, crash_loop={self.crash_loop})"

    @property
    def crash_loop(self) -> bool:
        return self._quick_deaths >= self._times.loop_after

    def died(self, *, ready_for_s: float) -> RestartDue:
        """`ready_for_s`: how long it had been ready, 0 if it never was. A long replay is not stability."""
        if ready_for_s >= self._times.stable_s:
            self._quick_deaths = 0
            return RestartDue(delay_s=self._times.first_delay_s, quick_deaths=0, crash_loop=False)
        self._quick_deaths += 1
        return RestartDue(
            delay_s=self._delay_s(), quick_deaths=self._quick_deaths, crash_loop=self.crash_loop
        )

    def _delay_s(self) -> float:
        if self.crash_loop:
            return self._times.loop_delay_s
        # The exponent is below loop_after, so that the power cannot overflow.
        return min(self._times.first_delay_s * 2.0 ** (self._quick_deaths - 1), self._times.max_delay_s)
