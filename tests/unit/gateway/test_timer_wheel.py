"""Coarse timers: never early, at most a slot late, in order."""

from __future__ import annotations

from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.timer_wheel import TimerWheel


@given(st.lists(st.integers(0, 10_000)), st.lists(st.integers(0, 12_000)))
def test_timers_go_off_after_their_time_and_at_most_a_slot_late(dues: list[int], looks: list[int]) -> None:
    wheel = TimerWheel(250)
    fired: list[tuple[int, int]] = []
    now = 0

    def fire(due: int) -> None:
        fired.append((due, now))

    for due in dues:
        wheel.add(due, partial(fire, due))
    for look in sorted(looks):
        now = look
        for callback in wheel.take_due(now):
            callback()
        # Whoever sleeps until `next_due_ms` misses nothing.
        upcoming = wheel.next_due_ms()
        assert upcoming is None or upcoming > now
        waiting = [due for due in dues if -(-due // 250) * 250 > now]
        assert len(wheel) == len(waiting) and (upcoming is not None) == bool(waiting)
    assert all(due <= at for due, at in fired)


def test_a_timer_may_set_the_next_one() -> None:
    wheel = TimerWheel(250)
    fired: list[int] = []

    def again() -> None:
        fired.append(1)
        wheel.add(1000, again)

    wheel.add(0, again)
    for callback in wheel.take_due(0):
        callback()
    assert fired == [1] and wheel.take_due(999) == [] and len(wheel.take_due(1000)) == 1
    assert wheel.next_due_ms() is None
