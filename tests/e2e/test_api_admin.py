"""What all routes share, on both lanes: probes, metrics, media types, gzip, unknown routes, HEAD, and that the
lanes cannot be told apart by their answers."""

from __future__ import annotations

import gzip
import json
import re
import string
from importlib.metadata import version
from typing import Any

import httpx
import pytest

from shared.routing import shard_for
from tests.support.api_client import LANES, ApiClient, fresh
from tests.support.live_server import LiveServer

# --- probes and metrics -------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v0/health", "/healthz"])
def test_health_tells_version_and_uptime(client: ApiClient, path: str) -> None:
    answer = client.ok("GET", path)
    assert answer.keys() == {"status", "version", "uptime_ms", "performance"}
    assert (answer["status"], answer["version"]) == ("ok", version("topicsd"))
    assert isinstance(answer["uptime_ms"], int)
    assert client.ok("GET", path)["uptime_ms"] >= answer["uptime_ms"]


@pytest.mark.parametrize("path", ["/v0/ready", "/readyz"])
def test_ready_tells_the_shards_and_counts_the_topics(client: ApiClient, path: str) -> None:
    before = client.ok("GET", path)
    assert before.keys() == {"status", "wal_replay_complete", "topics", "shards", "performance"}
    assert (before["status"], before["wal_replay_complete"]) == ("ready", True)
    assert [(shard["shard"], shard["ready"]) for shard in before["shards"]] == [(n, True) for n in range(3)]
    assert sum(shard["topics"] for shard in before["shards"]) == before["topics"]
    client.put(fresh())
    assert client.ok("GET", path)["topics"] == before["topics"] + 1


SERIES = {
    "gauge": [
        "topics_topics",
        "topics_topics_by_class",
        "topics_records_live",
        "topics_bytes_live",
        "topics_ready",
        "topics_recovery_progress",
        "topics_uptime_ms",
        "topics_wal_queue_depth",
        "topics_ipc_queue_depth",
        "topics_topic_records",
        "topics_topic_bytes",
        "topics_topic_head_seq",
        "topics_topic_metrics_truncated",
    ],
    "counter": [
        "topics_wal_frames_total",
        "topics_wal_batches_total",
        "topics_wal_fsyncs_total",
        "topics_wal_bytes_written_total",
        "topics_wal_rotations_total",
        "topics_http_requests_total",
        "topics_appends_total",
        "topics_records_appended_total",
        "topics_reads_total",
        "topics_records_evicted_total",
    ],
    "histogram": ["topics_wal_fsync_ms"],
}


def series(client: ApiClient) -> dict[str, float]:
    text = client.send("GET", "/v0/metrics").text
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            found[name] = float(value)
    return found


def test_metrics_are_prometheus_text_with_the_promised_names(client: ApiClient) -> None:
    client.append(fresh(), 1)
    answer = client.send("GET", "/v0/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", answer.text, re.MULTILINE))
    for kind, names in SERIES.items():
        for name in names:
            assert kinds.get(name) == kind, name
    assert re.search(r'^topics_wal_fsync_ms_bucket\{le="\+Inf",shard="0"\} ', answer.text, re.MULTILINE)


def test_metrics_follow_what_happens(client: ApiClient) -> None:
    topic = fresh("metered")
    shard = shard_for(topic, 3)
    before = series(client)
    client.put(topic, cap_records=2, durability="fsync")
    client.append(topic, 1, 2)
    client.append(topic, 3)
    client.diff(topic)
    client.delete_records(topic, before_seq=3)
    after = series(client)

    def grown(name: str) -> float:
        return after[name] - before.get(name, 0)

    here = f'shard="{shard}"'
    assert grown(f"topics_topics{{{here}}}") == 1
    assert grown(f'topics_topics_by_class{{durability="fsync",{here}}}') == 1
    assert grown(f"topics_records_appended_total{{{here}}}") == 3
    assert grown(f"topics_appends_total{{{here}}}") == 2
    assert grown(f"topics_records_evicted_total{{{here}}}") == 1
    assert grown(f"topics_records_deleted_total{{{here}}}") == 1
    assert grown(f"topics_reads_total{{{here}}}") == 1
    assert grown(f"topics_records_live{{{here}}}") == 1
    assert grown(f"topics_wal_fsyncs_total{{{here}}}") >= 3
    assert grown(f"topics_wal_fsync_ms_count{{{here}}}") == grown(f"topics_wal_fsyncs_total{{{here}}}")
    written = 'topics_http_requests_total{method="POST",route="/v0/topics/:name",status="200"}'
    assert grown(written) == 2
    assert after[f'topics_topic_head_seq{{{here},topic="{topic}"}}'] == 3


@pytest.mark.parametrize("accept", ["application/json", "application/json, text/plain;q=0.1"])
def test_metrics_are_json_when_asked_for(client: ApiClient, accept: str) -> None:
    answer = client.ok("GET", "/v0/metrics", headers={"Accept": accept})
    assert (answer["ready"], answer["recovery_progress"]) == (1, 1)
    assert len(answer["shards"]) == 3
    assert answer["shards"][0].keys() == {"gauges", "counters", "histograms", "per_topic"}


# --- media types --------------------------------------------------------------------------------

BODY = b'{"records":[{"data":1}]}'


@pytest.mark.parametrize(
    "declared",
    ["application/json", "Application/JSON", "application/json; charset=utf-8", "application/json;x=y"],
)
def test_json_is_recognised_with_its_parameters(client: ApiClient, declared: str) -> None:
    client.ok("POST", f"/v0/topics/{fresh()}", raw=BODY, headers={"Content-Type": declared}, status=201)


@pytest.mark.parametrize(
    "declared", ["text/plain", "application/x-www-form-urlencoded", "application/jsonp", ""]
)
@pytest.mark.parametrize(
    ("method", "suffix"), [("POST", ""), ("PUT", ""), ("POST", "/diff"), ("POST", "/delete")]
)
def test_any_other_media_type_is_415_on_every_route_with_a_body(
    client: ApiClient, method: str, suffix: str, declared: str
) -> None:
    topic = fresh()
    client.fails(
        415,
        "unsupported_media_type",
        method,
        f"/v0/topics/{topic}{suffix}",
        raw=b"{}",
        headers={"Content-Type": declared},
    )
    client.fails(404, "topic_not_found", "GET", f"/v0/topics/{topic}")


def test_without_a_body_no_media_type_is_asked_for(client: ApiClient) -> None:
    topic = fresh()
    client.ok("PUT", f"/v0/topics/{topic}", status=201)
    client.ok("POST", f"/v0/topics/{topic}/diff")


# --- gzip ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [1, 3])
def test_a_gzip_body_is_read_also_in_several_members(client: ApiClient, parts: int) -> None:
    topic = fresh()
    body = json.dumps({"records": [{"data": n} for n in range(500)]}).encode()
    cut = len(body) // parts + 1
    packed = b"".join(gzip.compress(body[at : at + cut]) for at in range(0, len(body), cut))
    client.ok("POST", f"/v0/topics/{topic}", raw=packed, headers={"Content-Encoding": "gzip"}, status=201)
    assert client.values(topic, limit=1000) == list(range(500))


@pytest.mark.parametrize(
    ("raw", "encoding", "status", "code"),
    [
        (b"not gzip", "gzip", 400, "invalid_request"),
        (gzip.compress(BODY, mtime=0)[:-4], "gzip", 400, "invalid_request"),
        (gzip.compress(BODY, mtime=0)[:-8] + b"\0" * 8, "gzip", 400, "invalid_request"),
        (gzip.compress(BODY, mtime=0) + b"tail", "gzip", 400, "invalid_request"),
        (BODY, "br", 415, "unsupported_media_type"),
        (BODY, "gzip, gzip", 415, "unsupported_media_type"),
    ],
)
def test_a_broken_or_unknown_encoding_is_refused(
    client: ApiClient, raw: bytes, encoding: str, status: int, code: str
) -> None:
    client.fails(
        status, code, "POST", f"/v0/topics/{fresh()}", raw=raw, headers={"Content-Encoding": encoding}
    )


def test_identity_is_an_encoding(client: ApiClient) -> None:
    client.ok("POST", f"/v0/topics/{fresh()}", raw=BODY, headers={"Content-Encoding": "identity"}, status=201)


@pytest.mark.parametrize(
    ("accepted", "zipped"),
    [("gzip", True), ("br, gzip;q=0.5", True), ("gzip;q=0", False), ("*", False), ("br", False)],
)
def test_an_answer_is_compressed_only_when_asked_for(client: ApiClient, accepted: str, zipped: bool) -> None:
    topic = fresh()
    client.append(topic, *(f"value {n}" for n in range(200)))
    path = f"/v0/topics/{topic}/records"
    plain = client.send("GET", path)
    answer = client.send("GET", path, headers={"Accept-Encoding": accepted})
    assert (answer.headers.get("content-encoding") == "gzip") is zipped
    assert answer.json()["records"] == plain.json()["records"]
    if zipped:
        assert answer.headers["vary"] == "Accept-Encoding"
        assert int(answer.headers["content-length"]) < len(plain.content) / 3


# --- routes -------------------------------------------------------------------------------------

# Absolute paths that nothing answers. What lies outside the API is the pages' business, not this file's.
UNKNOWN = [
    "/v0",
    "/v0/",
    "/v0/nothing",
    "/v0/topics/",
    "/v0/topics//diff",
    "/v0/topics/t/",
    "/v0/topics/t/diff/",
    "/v0/topics/t/claims",
    "/v0/topics/t/records/1",
    "/v0/topics/a/b/c/d/e/f",
    "/v0/topics%2Ft",
    "/v0/health/",
    "/v0/%2e%2e/v0/health",
    "/healthz/x",
]


@pytest.mark.parametrize("path", UNKNOWN)
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_unknown_routes_are_404(client: ApiClient, method: str, path: str) -> None:
    client.fails(404, "not_found", method, path)


@pytest.mark.parametrize(
    ("path", "allow"),
    [
        ("/v0/topics", "GET, HEAD"),
        ("/v0/topics/t", "DELETE, GET, HEAD, POST, PUT"),
        ("/v0/topics/t/diff", "POST"),
        ("/v0/topics/t/records", "GET, HEAD"),
        ("/v0/topics/t/delete", "POST"),
        ("/v0/health", "GET, HEAD"),
        ("/healthz", "GET, HEAD"),
        ("/v0/ready", "GET, HEAD"),
        ("/readyz", "GET, HEAD"),
        ("/v0/metrics", "GET, HEAD"),
    ],
)
def test_a_known_route_with_another_method_is_405_and_says_which_it_has(
    client: ApiClient, path: str, allow: str
) -> None:
    for method in {"GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"} - set(allow.split(", ")):
        answer = client.send(method, path)
        assert (answer.status_code, answer.headers["allow"]) == (405, allow)
        assert answer.json()["error"]["code"] == "method_not_allowed"


def test_head_is_get_without_the_body(client: ApiClient) -> None:
    topic = fresh()
    client.append(topic, *("x" * 500 for _ in range(100)))
    for path in (f"/v0/topics/{topic}", f"/v0/topics/{topic}/records", "/v0/health", "/v0/topics?prefix=zz"):
        full, head = client.send("GET", path), client.send("HEAD", path)
        assert head.status_code == full.status_code == 200
        assert head.headers["content-type"] == full.headers["content-type"]
        # The numbers in `performance` may be a digit longer or shorter.
        length = int(head.headers["content-length"])
        assert abs(length - int(full.headers["content-length"])) < 12
    missing = client.send("HEAD", f"/v0/topics/{fresh()}")
    assert missing.status_code == 404
    assert client.send("HEAD", f"/v0/topics/{topic}/diff").status_code == 405


def test_a_query_may_repeat_and_may_hold_anything_unknown(client: ApiClient) -> None:
    topic = fresh()
    client.append(topic, 1, 2, 3)
    path = f"/v0/topics/{topic}/records"
    assert len(client.ok("GET", f"{path}?limit=1&limit=2&unknown=%20+&&x")["records"]) == 2
    client.fails(400, "invalid_request", "GET", path + "?" + "&".join(f"a{n}=1" for n in range(70)))


# --- the two lanes ------------------------------------------------------------------------------

JSON = {"Content-Type": "application/json"}
SCRIPT: list[tuple[str, str, dict[str, str], bytes | None]] = [
    ("PUT", "/v0/topics/{t}", JSON, b'{"cap_records":6,"durable":true,"priority":5}'),
    ("PUT", "/v0/topics/{t}", JSON, b"{}"),
    ("PUT", "/v0/topics/{t}", JSON, b'{"type":"queue"}'),
    ("PUT", "/v0/topics/{t}", JSON, b'{"nope":1}'),
    ("PUT", "/v0/topics/{t}", {}, b"{}"),
    (
        "POST",
        "/v0/topics/{t}",
        JSON,
        b'{"records":[{"data":1,"tag":"x"},{"data":{"a":[1.0]},"meta":{"m":1}}]}',
    ),
    ("POST", "/v0/topics/{t}?return_seqs=false", JSON, b'{"records":[{"data":"\xc3\xa4"}],"node":"n"}'),
    ("POST", "/v0/topics/{t}", {**JSON, "Idempotency-Key": "k"}, b'{"records":[{"data":0}]}'),
    ("POST", "/v0/topics/{t}", {**JSON, "Idempotency-Key": "k"}, b'{"records":[{"data":0}]}'),
    ("POST", "/v0/topics/{t}", JSON, b'{"records":[1]}'),
    ("POST", "/v0/topics/{t}", JSON, b'{"records":[{"data":"\xff"}]}'),
    ("POST", "/v0/topics/{t}", JSON, None),
    ("GET", "/v0/topics/{t}?touch=false", {}, None),
    ("GET", "/v0/topics/{t}/records?include_tags=true", {}, None),
    ("HEAD", "/v0/topics/{t}/records", {}, None),
    ("POST", "/v0/topics/{t}/diff", JSON, b'{"from_seq":1,"limit":1}'),
    ("POST", "/v0/topics/{t}/diff", JSON, b'{"from_seq":99}'),
    ("POST", "/v0/topics/{t}/diff", JSON, b'{"from_seq":-1}'),
    ("POST", "/v0/topics/{t}/delete", JSON, b'{"match":"x"}'),
    ("POST", "/v0/topics/{t}/delete", JSON, b"{}"),
    ("POST", "/v0/topics/{t}", JSON, b'{"records":[{"data":1},{"data":2},{"data":3},{"data":4}]}'),
    ("GET", "/v0/topics/{t}/records", {}, None),
    ("POST", "/v0/topics/{t}", JSON, b'{"records":[' + b'{"data":1},' * 6 + b'{"data":1}]}'),
    ("GET", "/v0/topics?prefix={t}", {}, None),
    ("GET", "/v0/topics?page_size=0", {}, None),
    ("GET", "/v0/topics?cursor=x", {}, None),
    ("DELETE", "/v0/topics/{t}?if_empty=true", {}, None),
    ("DELETE", "/v0/topics/{t}", {}, None),
    ("DELETE", "/v0/topics/{t}", {}, None),
    ("GET", "/v0/topics/{t}", {}, None),
    ("GET", "/v0/topics/{t}%2F", {}, None),
    ("PATCH", "/v0/topics/{t}", {}, None),
    ("OPTIONS", "/v0/topics", {}, None),
    ("GET", "/v0/nowhere", {}, None),
    ("GET", "/v0/ready", {}, None),
    ("GET", "/v0/metrics", {"Accept": "application/json"}, None),
]


def test_the_lanes_give_the_same_status_headers_and_bodies(server: LiveServer) -> None:
    base = fresh("same")
    one = f"{base}-0"
    candidates = (f"{base}-{letter}" for letter in string.ascii_letters)
    other = next(name for name in candidates if shard_for(name, 3) == shard_for(one, 3))
    with server.client("http1") as fast, server.client("http2") as full:
        for method, path, headers, body in SCRIPT:
            answers = []
            for api, topic in ((fast, one), (full, other)):
                # Without the checking wrapper: a body may go without a Content-Type here.
                sent = api._http.request(method, path.replace("{t}", topic), headers=headers, content=body)
                answers.append(comparable(sent, topic))
            assert answers[0] == answers[1], (method, path)


def comparable(answer: httpx.Response, topic: str) -> tuple[int, dict[str, str], Any]:
    """Without what differs between any two calls: the time, and the numbers in `performance`."""
    headers = {
        name: value for name, value in answer.headers.items() if name not in ("date", "content-length")
    }
    text = answer.text.replace(topic, "TOPIC")
    if answer.status_code < 400 and answer.content:
        document = json.loads(text)
        assert int(answer.headers["content-length"]) == len(answer.content)
        del document["performance"]
        return answer.status_code, headers, timeless(document)
    headers["content-length"] = "0" if answer.request.method == "HEAD" else answer.headers["content-length"]
    return answer.status_code, headers, text


CHANGING = {
    "$ts",
    "epoch",
    "last_write_ts",
    "last_read_ts",
    "effective_priority",
    "uptime_ms",
    "topics",
    "performance",
    "http_connections",
    "gateway_resident_bytes",
    "gateway_open_descriptors",
    "gateway_cpu_seconds_total",
    "slow_requests_total",
}
# Two topics each write a little more to the logs; only the form of the metrics can be compared.
NUMBERS = {"gauges", "counters", "histograms", "per_topic"}


def timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: sorted(inner) if name in NUMBERS else timeless(inner)
            for name, inner in value.items()
            if name not in ("http_requests", "links") and (name not in CHANGING or isinstance(inner, list))
        }
    return [timeless(item) for item in value] if isinstance(value, list) else value


def test_the_lanes_are_told_apart_per_connection(server: LiveServer) -> None:
    topic = fresh()
    for lane in LANES * 2:
        with server.client(lane) as connected:
            connected.append(topic, lane)
    with server.client() as reader:
        assert reader.values(topic) == [*LANES * 2]
