"""Lines about requests are bounded, and ids are ours unless a good one is given."""

from __future__ import annotations

import logging

import pytest

from gateway.exchange import Response
from gateway.request_log import LINES_PER_S, LineBudget, RequestLog, request_id
from tests.support.recorded_exchange import RecordedExchange


def test_a_budget_counts_what_it_leaves_out() -> None:
    budget = LineBudget(2)
    assert [budget.take(1.0), budget.take(1.5), budget.take(1.9), budget.take(1.99)] == [0, 0, None, None]
    assert [budget.take(2.0), budget.take(2.1), budget.take(2.2), budget.take(3.0)] == [2, 0, None, 1]


def test_a_flood_of_failures_is_a_few_lines_but_every_client_gets_an_id(
    caplog: pytest.LogCaptureFixture,
) -> None:
    requests = RequestLog(1000)
    with caplog.at_level(logging.WARNING):
        for _ in range(500):
            response = Response(503, b'{"error":{"code":"shard_unavailable","message":"quotes s3cret"}}')
            exchange = RecordedExchange("POST", "/v0/topics/t", body=b"s3cret")
            requests.note(exchange, "/v0/topics/:name", "t", response, 0.001)
            assert dict(response.headers).keys() == {"X-Request-Id"}
    assert 0 < len(caplog.records) <= 3 * LINES_PER_S  # the loop may see a second or two go by
    assert caplog.records[0].__dict__["code"] == "shard_unavailable"
    assert "s3cret" not in str([record.__dict__ for record in caplog.records])


@pytest.mark.parametrize(
    ("query", "body", "counted"), [("", b"{}", 1), ("", b'{"wait_ms":20000}', 0), ("wait_ms=20000", b"", 0)]
)
def test_a_request_that_asked_to_wait_is_not_slow(query: str, body: bytes, counted: int) -> None:
    requests = RequestLog(1000)
    exchange = RecordedExchange("POST", "/v0/topics/t/diff", query=query, body=body)
    requests.note(exchange, "/v0/topics/:name/diff", "t", Response(200), 5.0)
    assert requests.slow_requests == counted


def test_a_clients_id_is_taken_over() -> None:
    assert request_id(RecordedExchange("GET", "/", headers={"x-request-id": "trace-7.a:b"})) == "trace-7.a:b"


@pytest.mark.parametrize("given", ["x" * 65, "two words", 'quote"', ""])
def test_an_id_that_does_not_look_like_one_is_replaced(given: str) -> None:
    made = request_id(RecordedExchange("GET", "/", headers={"x-request-id": given}))
    assert len(made) == 16 and made != given
