"""The dashboard and the alert rules name only metrics that a running server has, and it has those that it promises."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from tests.support.api_client import ApiClient
from tests.support.server_process import ROOT

DASHBOARD = ROOT / "ops" / "dashboards" / "topicsd.json"
ALERTS = ROOT / "ops" / "dashboards" / "alerts.yml"
METRIC = re.compile(r"\btopics_[a-z0-9_]+")
LABELS = re.compile(r"(topics_[a-z0-9_]+)\{([^}]*)\}")
# What scraping adds.
SCRAPE_LABELS = {"instance", "job", "le"}


def expressions() -> Iterator[str]:
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    yaml = pytest.importorskip("yaml")
    for group in yaml.safe_load(ALERTS.read_text())["groups"]:
        yield from (rule["expr"] for rule in group["rules"])


@pytest.fixture(scope="module")
def series(plain_client: ApiClient) -> dict[str, set[str]]:
    """The names of all series of a server in use, with their labels."""
    plain_client.append("dashboards", 1)
    plain_client.put("dashboards-jobs", type="queue")
    plain_client.append("dashboards-jobs", 1)
    text = plain_client.send("GET", "/v0/metrics").text
    found: dict[str, set[str]] = {}
    for name, _, labels in re.findall(r"^([a-z_]+)(\{(.*?)\})? ", text, re.MULTILINE):
        found.setdefault(name, set()).update(re.findall(r'([a-z_]+)="', labels))
    return found


def test_every_metric_of_the_dashboard_and_the_alerts_exists(series: dict[str, set[str]]) -> None:
    found = list(expressions())
    assert len(found) > 40
    assert {name for each in found for name in METRIC.findall(each)} - series.keys() == set()
    for each in found:
        for name, matchers in LABELS.findall(each):
            used = set(re.findall(r"([a-z_]+)\s*[=!]", matchers))
            assert used <= series[name] | SCRAPE_LABELS, each


def test_every_alert_says_what_is_wrong() -> None:
    yaml = pytest.importorskip("yaml")
    rules = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
    runbook = (ROOT / "docs" / "operations.md").read_text()
    for rule in rules:
        assert rule["annotations"]["summary"] and rule["labels"]["severity"] in ("warning", "critical")
        assert f"`{rule['alert']}`" in runbook, "each alert has its row in the runbook"


PROMISED = {
    f"topics_{name}"
    for line in (
        "topics topics_by_class records_live bytes_live sse_connections watch_sessions",
        "ready recovery_progress uptime_ms",
        "queue_ready queue_in_flight queue_delayed queue_dead_lettered topic_records topic_bytes topic_head_seq",
        "topic_metrics_truncated wal_frames_total wal_batches_total wal_fsyncs_total wal_bytes_written_total",
        "wal_rotations_total wal_queue_depth wal_fsync_ms_bucket wal_fsync_ms_count wal_fsync_ms_sum shard_up",
        "http_requests_total appends_total reads_total records_evicted_total ipc_queue_depth ipc_in_flight",
    )
    for name in line.split()
}


def test_the_metrics_that_the_api_promises_are_there(series: dict[str, set[str]]) -> None:
    assert PROMISED - series.keys() == set()
    assert "shard" in series["topics_appends_total"]


def test_the_json_form_has_the_same_numbers(plain_client: ApiClient, series: dict[str, set[str]]) -> None:
    document = plain_client.ok("GET", "/v0/metrics", headers={"Accept": "application/json"})
    first = document["shards"][0]
    names = {
        name
        for name in document
        if name not in ("shards", "links", "http_requests", "performance", "version")
    }
    names |= set(first["gauges"]) | set(first["counters"])
    names |= {f"{name}_count" for name in first["histograms"]}
    names |= {name for name in document["links"][0] if name.startswith("ipc_")}
    assert {f"topics_{name}" for name in names} - series.keys() == set()
    assert {"method", "route", "status", "count"} == set(document["http_requests"][0])
