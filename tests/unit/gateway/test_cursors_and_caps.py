"""List cursors, caps, and errors as HTTP."""

from __future__ import annotations

import base64

import pytest

from gateway.core.caps import InflightPerKey, TotalCaps
from gateway.core.cursors import decode_cursor, encode_cursor
from gateway.core.http_errors import error_response, retry_after
from shared.api_keys import parse_api_keys
from shared.errors import InvalidRequest, MethodNotAllowed, ShardUnavailable, Throttled, Unauthorized
from tests.unit.gateway.api_harness import document, header


@pytest.mark.parametrize("name", ["a", "orders", "x" * 255, "a:b.c-d"])
def test_a_cursor_gives_back_its_name(name: str) -> None:
    cursor = encode_cursor("topics", name)
    assert decode_cursor("topics", cursor) == name
    assert "=" not in cursor and "+" not in cursor and "/" not in cursor


def test_any_changed_character_makes_a_cursor_corrupt() -> None:
    cursor = encode_cursor("topics", "orders-17")
    for position, character in enumerate(cursor):
        for other in "Aa0-_":
            # The last character may carry bits that stand for nothing.
            if other != character and position < len(cursor) - 1:
                with pytest.raises(InvalidRequest):
                    decode_cursor("topics", cursor[:position] + other + cursor[position + 1 :])


@pytest.mark.parametrize(
    "cursor",
    ["", "x", "!!!!", "ä", "A" * 1000, "====", base64.urlsafe_b64encode(b"\x01orders").decode(), "AQ AQ"],
)
def test_corrupt_cursors_are_400(cursor: str) -> None:
    with pytest.raises(InvalidRequest):
        decode_cursor("topics", cursor)


def test_a_cursor_of_another_list_is_corrupt() -> None:
    with pytest.raises(InvalidRequest):
        decode_cursor("topics", encode_cursor("routers", "orders"))


def test_requests_in_flight_are_counted_per_key() -> None:
    one, two = parse_api_keys("one,two", key="k", source="test")
    caps = InflightPerKey(2)
    caps.enter(one)
    caps.enter(one)
    caps.enter(two)
    with pytest.raises(Throttled) as caught:
        caps.enter(one)
    assert caught.value.detail == {"limit": "max_inflight_per_key", "max": 2}
    caps.leave(one)
    caps.enter(one)


def test_without_a_cap_or_a_key_nothing_is_counted() -> None:
    (key,) = parse_api_keys("one", key="k", source="test")
    for caps, who in ((InflightPerKey(0), key), (InflightPerKey(1), None)):
        for _ in range(5):
            caps.enter(who)


def test_total_caps_hold_at_their_value_and_zero_is_none() -> None:
    caps = TotalCaps(max_topics=3, max_total_bytes=100)
    assert caps.nocreate(2) is None
    assert caps.nocreate(3) == {"nocreate": ["max_topics", 3]}
    assert caps.nocreate(4) is caps.nocreate(3), "what is shared is encoded once"
    caps.check_bytes(99)
    with pytest.raises(Throttled):
        caps.check_bytes(100)
    unlimited = TotalCaps(max_topics=0, max_total_bytes=0)
    assert unlimited.nocreate(10**9) is None
    unlimited.check_bytes(10**15)


@pytest.mark.parametrize(
    ("milliseconds", "seconds"), [(0, "1"), (1, "1"), (1000, "1"), (1001, "2"), (30_000, "30")]
)
def test_retry_after_rounds_up_to_whole_seconds(milliseconds: int, seconds: str) -> None:
    assert retry_after(milliseconds) == ("Retry-After", seconds)


def test_errors_carry_the_headers_that_belong_to_them() -> None:
    response = error_response(ShardUnavailable(shard=3, reason="it is starting"))
    assert response.status == 503 and header(response, "Retry-After")
    assert document(response)["error"]["detail"] == {"shard": 3}
    assert header(error_response(MethodNotAllowed(allow=["GET", "PUT"])), "Allow") == "GET, PUT"
    assert header(error_response(Unauthorized()), "WWW-Authenticate")
    assert error_response(InvalidRequest("no")).headers == []
