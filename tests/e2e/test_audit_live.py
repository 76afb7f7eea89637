"""Audits beside a server that writes, deletes, seals, moves and drops all the time: every one of them is clean."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pytest

from tests.support.audit_kit import kinds, run_audit
from tests.support.cold_stores import StorePaths
from tests.support.live_server import LiveServer

AUDITS = 6


def write_and_delete(server: LiveServer, seed: int, stop: threading.Event) -> None:
    rng = random.Random(seed)
    with server.client() as client:
        while not stop.is_set():
            path = f"/v0/topics/t{rng.randint(0, 9)}"
            records = [
                {"data": {"text": "x" * rng.randint(1, 300)}, "tag": f"g{rng.randint(0, 9)}"}
                for _ in range(rng.randint(1, 100))
            ]
            client.send("POST", path, {"records": records})
            if rng.random() < 0.03:
                client.send("POST", f"{path}/delete", {"match": ["tag", "Eq", f"g{rng.randint(0, 9)}"]})
            if rng.random() < 0.02:
                head = client.send("GET", path).json().get("head_seq", 0)
                client.send("POST", f"{path}/delete", {"before_seq": max(1, head - 300)})
            if rng.random() < 0.003:
                client.send("DELETE", path)


@pytest.mark.exhaustive
def test_audits_beside_a_busy_server_are_clean(tmp_path: Path) -> None:
    paths = StorePaths(str(tmp_path / "data"), str(tmp_path / "cold"))
    env = {
        "TOPICS_COLD_DIR": paths.cold,
        "TOPICS_SEGMENT_MAX_BYTES": "65536",
        "TOPICS_SEGMENT_MAX_EVENTS": "300",
        "TOPICS_HOT_RETAIN_SEGMENTS": "2",
    }
    stop = threading.Event()
    report = None
    with LiveServer(tmp_path / "data", shards=2, env=env) as server:
        server.wait_serving()
        writers = [threading.Thread(target=write_and_delete, args=(server, seed, stop)) for seed in (1, 2)]
        for writer in writers:
            writer.start()
        try:
            for _ in range(AUDITS):
                for shard in range(2):
                    # Snapshots are hours apart otherwise; a job of the cold tier may ask for one.
                    staging = Path(f"{paths.cold}/shard-{shard:04d}/staging")
                    staging.mkdir(parents=True, exist_ok=True)
                    (staging / "snapshot-wanted").touch()
                deadline = time.monotonic() + 60
                while time.monotonic() < deadline and list(
                    Path(paths.cold).glob("*/staging/snapshot-wanted")
                ):
                    time.sleep(0.1)
                report = run_audit(paths, report, online=True, between_looks=lambda: time.sleep(0.3))
                assert kinds(report) == {}
        finally:
            stop.set()
            for writer in writers:
                writer.join()
        assert server.stop() == 0
    final = run_audit(paths, report)
    assert kinds(final) == {} and final.totals.live > 0 and len(final.segments) > 10
