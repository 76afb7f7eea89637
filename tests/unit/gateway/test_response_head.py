"""The Date header is the one that the standard library would write."""

from __future__ import annotations

from email.utils import formatdate

from hypothesis import example, given
from hypothesis import strategies as st

from gateway.fast_lane.response_head import http_date


@given(st.integers(0, 4_102_444_800))
@example(0)
@example(951_782_400)  # 29 February
def test_dates_are_those_of_http(second: int) -> None:
    assert http_date(second) == formatdate(second, usegmt=True)
