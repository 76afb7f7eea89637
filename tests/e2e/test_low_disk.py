"""A disk that runs full under a real server: writes are refused with advice, reads go on, and it heals by itself."""

from __future__ import annotations

from pathlib import Path

import httpx

from tests.support.api_client import ApiClient
from tests.support.live_server import LiveServer
from tests.support.server_process import wait_for
from tests.support.small_disk import MiB, small_disk

# The log reserves one file of 64 MiB; about 32 MiB are left.
DISK_BYTES = 96 * MiB
ENV = {"TOPICS_MIN_FREE_BYTES": str(16 * MiB)}


def refused(client: ApiClient, method: str, path: str, body: object = None) -> httpx.Response | None:
    answer = client.send(method, path, body)
    return answer if answer.status_code == 503 else None


def test_a_disk_that_runs_full_stops_writes_alone_and_heals(tmp_path: Path) -> None:
    write = {"records": [{"data": "refused"}]}
    with small_disk(tmp_path / "disk", DISK_BYTES) as disk:
        filler = disk / "filler"
        with LiveServer(disk / "data", shards=1, env=ENV) as server, server.wait_serving().client() as client:
            client.put("t", durable=True)
            client.append("t", 1, 2, 3)
            filler.write_bytes(bytes(24 * MiB))
            answer = wait_for(lambda: refused(client, "POST", "/v0/topics/t", write))
            error = answer.json()["error"]
            assert (error["code"], error["detail"]["reason"]) == ("shard_unavailable", "read_only")
            assert "free some space" in error["message"] and "min_free_bytes" in error["message"]
            assert int(answer.headers["Retry-After"]) >= 1
            assert "free some space" in server.wait_log("shard.read_only", level="error")["reason"]
            # Nothing that changes anything gets through, and everything that only looks does.
            for method, path, body in (
                ("PUT", "/v0/topics/new", {}),
                ("DELETE", "/v0/topics/t", None),
                ("POST", "/v0/topics/t/delete", {"before_seq": 2}),
            ):
                assert refused(client, method, path, body)
            assert 3 in client.values("t")
            assert client.send("GET", "/v0/ready").status_code == 200
            metrics = client.send("GET", "/v0/metrics").text
            assert 'topics_read_only{shard="0"} 1.0' in metrics
            assert server.stop() == 0
        # Started on a disk that is still too full, it serves readers at once and takes nothing.
        with LiveServer(disk / "data", shards=1, env=ENV) as server, server.wait_serving().client() as client:
            assert client.values("t")[:3] == [1, 2, 3]
            assert refused(client, "POST", "/v0/topics/t", write)
            filler.unlink()
            server.wait_log("shard.writable")
            client.append("t", 4)
            assert [value for value in client.values("t") if value != "refused"] == [1, 2, 3, 4]
            assert server.stop() == 0
