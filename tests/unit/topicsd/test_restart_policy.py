from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topicsd.core.restart_policy import RestartPolicy, RestartTimes

TIMES = RestartTimes(first_delay_s=0.5, max_delay_s=3.0, stable_s=10.0, loop_after=5, loop_delay_s=60.0)


def test_quick_deaths_double_the_delay_up_to_the_bound_and_then_are_a_crash_loop() -> None:
    policy = RestartPolicy(TIMES)
    dues = [policy.died(ready_for_s=0.0) for _ in range(7)]
    assert [due.delay_s for due in dues] == [0.5, 1.0, 2.0, 3.0, 60.0, 60.0, 60.0]
    assert [due.crash_loop for due in dues] == [False] * 4 + [True] * 3
    assert dues[-1].quick_deaths == 7


def test_a_stable_run_makes_up_for_the_deaths_before_it() -> None:
    policy = RestartPolicy(TIMES)
    for _ in range(6):
        policy.died(ready_for_s=9.9)
    assert policy.crash_loop
    due = policy.died(ready_for_s=10.0)
    assert (due.delay_s, due.quick_deaths, due.crash_loop) == (0.5, 0, False)
    assert not policy.crash_loop
    assert policy.died(ready_for_s=0.0).delay_s == 0.5


def test_times_that_contradict_each_other_are_a_bug() -> None:
    with pytest.raises(AssertionError):
        RestartTimes(first_delay_s=2.0, max_delay_s=1.0)


@given(st.lists(st.floats(min_value=0, max_value=20), max_size=2000))
def test_delays_stay_within_their_bounds_and_never_shrink_in_a_row_of_quick_deaths(runs: list[float]) -> None:
    policy = RestartPolicy(TIMES)
    last = 0.0
    for ready_for_s in runs:
        due = policy.died(ready_for_s=ready_for_s)
        assert TIMES.first_delay_s <= due.delay_s <= TIMES.loop_delay_s
        assert due.delay_s >= last or due.quick_deaths == 0
        last = due.delay_s
