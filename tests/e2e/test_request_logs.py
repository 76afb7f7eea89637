"""What the log says about requests: those that failed, those that took long, and nothing of what they carried."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import httpx

from tests.support.live_server import LiveServer
from tests.support.server_process import wait_for

SECRETS = ("key-s3cret", "payload-s3cret", "meta-s3cret", "tag-s3cret", "wrong-s3cret", "idem-s3cret")
AUTH = {"Authorization": "Bearer key-s3cret"}
RECORD = {"data": "payload-s3cret", "tag": "tag-s3cret", "meta": {"m": "meta-s3cret"}}


def test_the_log_is_json_finds_requests_by_id_and_keeps_secrets(tmp_path: Path) -> None:
    env = {"TOPICS_API_KEYS": "key-s3cret", "TOPICS_LOG_LEVEL": "debug", "TOPICS_SLOW_REQUEST_MS": "1"}
    with LiveServer(tmp_path / "data", shards=1, env=env) as server:
        server.wait_ready()
        url = f"http://127.0.0.1:{server.port}"
        with httpx.Client(base_url=url, headers=AUTH, timeout=20) as client:
            wait_for(lambda: client.get("/v0/ready").status_code == 200)
            write = {"records": [RECORD], "idempotency_key": "idem-s3cret", "config": {"durable": True}}
            # Longer than 1 ms: it creates a topic, which is synced.
            assert (
                client.post("/v0/topics/t", json=write, headers={"X-Request-Id": "mine-1"}).status_code == 201
            )
            slow = server.wait_log("request.slow", request_id="mine-1")
            assert (slow["route"], slow["topic"], slow["status"]) == ("/v0/topics/:name", "t", 201)
            # One that asked to wait is not slow.
            client.post("/v0/topics/t/diff", json={"from_seq": 1, "wait_ms": 50}).raise_for_status()
            assert (
                httpx.get(f"{url}/v0/topics/t", headers={"Authorization": "Bearer wrong-s3cret"}).status_code
                == 401
            )
            client.post("/v0/topics/t", json={"records": [{**RECORD, "key": 7}]})
            client.get("/v0/watch/payload-s3cret")
            # A shard that does not come back: everything for it fails, with an id that the client can quote.
            server.signal(signal.SIGSTOP)  # the supervisor, so that nobody starts it again meanwhile
            try:
                server.kill_child("shard-0")
                answer = wait_for(lambda: fails(client, write))
            finally:
                server.signal(signal.SIGCONT)
            failed = server.wait_log("request.failed", request_id=answer.headers["X-Request-Id"])
            assert (failed["status"], failed["code"], failed["topic"]) == (503, "shard_unavailable", "t")
        assert server.stop() == 0
        lines = server.log
    assert not any("/diff" in str(line.get("route")) for line in lines if line["event"] == "request.slow")
    assert [line for line in lines if line["event"] == "plain"] == [], "every line is JSON"
    assert all({"ts", "level", "process", "event"} <= line.keys() for line in lines)
    text = json.dumps(lines)
    assert [secret for secret in SECRETS if secret in text] == []


def fails(client: httpx.Client, write: object) -> httpx.Response | None:
    answer = client.post("/v0/topics/t", json=write)
    return answer if answer.status_code == 503 else None
