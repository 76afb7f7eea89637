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
                server.wait_serving()
                client.append("t", 1)
                reports = page.wait(lambda reports: len(received(reports)) >= 2)
                assert received(reports) == [0, 1] and opened(reports) == 1
        assert server.stop() == 0


# What a page does that must outlive the server itself: sessions do not, but the page knows where it stands.
SCRIPT_OF_A_CAREFUL_PAGE = """
const topics = {t: {from_seq: 0}};
async function watch() {
  try {
    const answer = await fetch(api + "/v0/watch", {
      method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify({topics}),
    });
    if (!answer.ok) throw new Error(answer.status);
    const source = new EventSource(api + (await answer.json()).stream_url);
    source.onopen = () => report({open: true});
    source.addEventListener("record", (event) => {
      const data = JSON.parse(event.data);
      topics[data.topic].from_seq = data.to_seq;
      report({event: "record", data});
    });
    source.onerror = () => {
      report({error: source.readyState});
      if (source.readyState === EventSource.CLOSED) watch();
    };
  } catch {
    setTimeout(watch, 200);
  }
}
watch();
"""


def test_a_page_outlives_the_server(tmp_path: Path) -> None:
    values = [0]
    with TcpRelay(0) as relay:
        page: Page | None = None
        try:
            for start in range(3):
                with LiveServer(tmp_path / "data", shards=2) as server:
                    server.wait_serving()
                    relay.target_port = server.port
                    with server.client() as client:
                        client.append("t", *(values if start == 0 else [start * 10]))
                        if start:
                            values.append(start * 10)
                        if page is None:
                            page = Page(SCRIPT_OF_A_CAREFUL_PAGE, api_port=relay.port)
                            page.__enter__()
                        before = opened(page.reports)
                        page.wait(lambda reports: received(reports) == values)
                        client.append("t", start * 10 + 1)
                        values.append(start * 10 + 1)
                        reports = page.wait(lambda reports: received(reports) == values)
                        assert opened(reports) > before or start == 0
                    if start == 1:
                        server.signal(9)  # this one goes without a goodbye
                    else:
                        assert server.stop() == 0
        finally:
            if page is not None:
                page.__exit__(None, None, None)
