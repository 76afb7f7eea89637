"""The browser's own `EventSource`: receives, loses the server, reconnects by itself and misses nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.api_client import ApiClient, fresh
from tests.support.chromium import Page
from tests.support.live_server import LiveServer
from tests.support.tcp_relay import TcpRelay

SCRIPT = """
const source = new EventSource(api + "URL");
source.onopen = () => report({open: true});
source.onerror = () => report({error: source.readyState});
for (const name of ["record", "caught-up", "tombstone", "topic-deleted"])
  source.addEventListener(name, (event) => report({event: name, id: event.lastEventId, data: JSON.parse(event.data)}));
"""

CONNECTING = 0  # EventSource.readyState while it reconnects by itself


def received(reports: list[Any]) -> list[Any]:
    return [
        record["data"]
        for report in reports
        if report.get("event") == "record"
        for record in report["data"]["records"]
    ]


def opened(reports: list[Any]) -> int:
    return sum("open" in report for report in reports)


def test_an_event_source_reconnects_and_misses_nothing(plain_client: ApiClient) -> None:
    topic = fresh()
    plain_client.append(topic, 0, 1)
    url = plain_client.ok("POST", "/v0/watch", {"topics": {topic: {}}})["stream_url"]
    with TcpRelay(plain_client.port) as relay, Page(SCRIPT.replace("URL", url), api_port=relay.port) as page:
        page.wait(lambda reports: any(report.get("event") == "caught-up" for report in reports))
        plain_client.append(topic, {"text": "a\nb", "é": "ü"})
        page.wait(lambda reports: len(received(reports)) == 3)
        for round_ in range(2):
            relay.cut()
            page.wait(lambda reports: {"error": CONNECTING} in reports)
            for number in range(5):
                plain_client.append(topic, round_ * 100 + number)
            before = opened(page.reports)
            relay.restore()
            page.wait(lambda reports, before=before: opened(reports) > before)  # type: ignore[misc]
            expected = 3 + 5 * (round_ + 1)
            page.wait(lambda reports, expected=expected: len(received(reports)) >= expected)  # type: ignore[misc]
        plain_client.append(topic, "last")
        reports = page.wait(lambda reports: "last" in received(reports))
    assert received(reports) == [
        0,
        1,
        {"text": "a\nb", "é": "ü"},
        0,
        1,
        2,
        3,
        4,
        100,
        101,
        102,
        103,
        104,
        "last",
    ]


def test_an_event_source_outlives_a_worker(tmp_path: Path) -> None:
    with LiveServer(tmp_path / "data", shards=1) as server:
        server.wait_serving()
        with server.client() as client:
            client.append("t", 0)
            url = client.ok("POST", "/v0/watch", {"topics": {"t": {}}})["stream_url"]
            with Page(SCRIPT.replace("URL", url), api_port=server.port) as page:
                page.wait(lambda reports: any(report.get("event") == "caught-up" for report in reports))
                server.kill_child("shard-0")
                server.wait_child_ready("shard-0", count=2)
                client.append("t", 1)
                reports = page.wait(lambda reports: len(received(reports)) >= 2)
                assert received(reports) == [0, 1] and opened(reports) == 1
        assert server.stop() == 0
