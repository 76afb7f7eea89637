"""A client of the public API for one lane. Every answer is held to the rules that all answers share."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Literal, Self

import httpx

from shared.routing import shard_for

Lane = Literal["http1", "http2"]
LANES: tuple[Lane, ...] = ("http1", "http2")
Json = dict[str, Any]

_serial = itertools.count(1)


def fresh(prefix: str = "t") -> str:
    """A topic name that no other test has."""
    return f"{prefix}-{next(_serial)}"


def fresh_on(shard: int, shards: int, prefix: str = "t") -> str:
    """A fresh name that lives on this shard."""
    while shard_for(name := fresh(prefix), shards) != shard:
        pass
    return name


class ApiClient:
    """HTTP/1.1 is served by the fast lane, HTTP/2 with prior knowledge by the full lane."""

    def __init__(self, port: int, lane: Lane, *, token: str | None = None, timeout_s: float = 20) -> None:
        self.lane = lane
        self.port = port
        self._http = httpx.Client(
            base_url=f"http://127.0.0.1:{port}",
            http1=lane == "http1",
            http2=lane == "http2",
            # As curl sends it; httpx would add its own Accept-Encoding.
            headers={"Accept-Encoding": "identity"}
            | ({"Authorization": f"Bearer {token}"} if token is not None else {}),
            timeout=timeout_s,
            verify=False,  # nothing here is TLS, and loading certificates takes longer than a test
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def send(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        headers: Mapping[str, str] | None = None,
        raw: bytes | None = None,
    ) -> httpx.Response:
        """`body` is sent as JSON, `raw` as it is; the answer is checked, whatever it says."""
        sent = dict(headers or {})
        if body is not None:
            raw = json.dumps(body).encode()
        if raw is not None:
            sent.setdefault("Content-Type", "application/json")
        answer = self._http.request(method, path, content=raw, headers=sent)
        check_answer(answer, self.lane)
        return answer

    def ok(self, method: str, path: str, body: object = None, *, status: int = 200, **more: Any) -> Json:
        answer = self.send(method, path, body, **more)
        assert answer.status_code == status, answer.text
        document: Json = answer.json()
        return document

    def fails(self, status: int, code: str, method: str, path: str, body: object = None, **more: Any) -> Json:
        """The `error` of a refused request."""
        answer = self.send(method, path, body, **more)
        error: Json = answer.json().get("error", {}) if answer.content else {}
        assert (answer.status_code, error.get("code")) == (status, code), answer.text
        return error

    # --- the routes ---------------------------------------------------------------------------

    def put(self, topic: str, **config: object) -> Json:
        answer = self.send("PUT", f"/v0/topics/{topic}", config)
        assert answer.status_code in (200, 201), answer.text
        document: Json = answer.json()
        return document

    def append(self, topic: str, *values: object, **request: object) -> Json:
        """One record per value; other fields of the request by name."""
        body = {"records": [{"data": value} for value in values], **request}
        answer = self.send("POST", f"/v0/topics/{topic}", body)
        assert answer.status_code in (200, 201), answer.text
        document: Json = answer.json()
        return document

    def write(self, topic: str, *records: Json, **request: object) -> Json:
        answer = self.send("POST", f"/v0/topics/{topic}", {"records": list(records), **request})
        assert answer.status_code in (200, 201), answer.text
        document: Json = answer.json()
        return document

    def diff(self, topic: str, **request: object) -> Json:
        return self.ok("POST", f"/v0/topics/{topic}/diff", request)

    def values(self, topic: str, **request: object) -> list[object]:
        return [record["data"] for record in self.diff(topic, **request)["records"]]

    def state(self, topic: str) -> Json:
        return self.ok("GET", f"/v0/topics/{topic}")

    def delete_records(self, topic: str, **request: object) -> Json:
        return self.ok("POST", f"/v0/topics/{topic}/delete", request)

    def everything(self, topic: str) -> list[Json]:
        """All records, page by page, with tags, keys and meta."""
        found: list[Json] = []
        from_seq = 0
        while True:
            page = self.diff(topic, from_seq=from_seq, limit=1000, include_tags=True, include_keys=True)
            found += page["records"]
            from_seq = page["next_from_seq"]
            if page["caught_up"]:
                return found


def long_polls(client: ApiClient) -> int:
    """How many reads wait at the shards right now."""
    numbers = client.ok("GET", "/v0/metrics", headers={"Accept": "application/json"})
    return sum(shard["gauges"]["long_polls"] for shard in numbers["shards"])


def check_answer(answer: httpx.Response, lane: Lane) -> None:
    """What contract and lane promise for every single answer."""
    assert answer.http_version == ("HTTP/2" if lane == "http2" else "HTTP/1.1")
    assert "date" in answer.headers
    if answer.request.method == "HEAD":
        assert not answer.content
        return
    if "content-encoding" not in answer.headers:
        assert int(answer.headers["content-length"]) == len(answer.content)
    if answer.headers["content-type"].startswith("text/plain"):
        assert answer.is_success
        return
    assert answer.headers["content-type"] == "application/json"
    document = answer.json()
    if answer.is_success:
        assert "error" not in document
        performance = document["performance"]
        assert set(performance) <= PERFORMANCE_FIELDS and performance["server_total_ms"] >= 0
        assert all(isinstance(value, int | float) and value >= 0 for value in performance.values())
    else:
        assert document.keys() == {"error"}
        assert document["error"].keys() <= {"code", "message", "detail"}
        assert document["error"]["message"] and "Traceback" not in answer.text
        if answer.status_code in (429, 503):
            assert int(answer.headers["retry-after"]) >= 1


PERFORMANCE_FIELDS = {"server_total_ms", "wal_append_ms", "fsync_ms", "throttle_wait_ms", "records_scanned"}
