"""A stop in the middle of the day: writers at work, readers waiting, streams open."""

from __future__ import annotations

import http.client
import json
import threading
from pathlib import Path

from tests.support.api_client import fresh_on, long_polls
from tests.support.live_server import LiveServer
from tests.support.server_process import wait_for
from tests.support.write_load import Load, Writer, check_log


def test_a_drain_under_load_ends_in_time_and_loses_nothing(tmp_path: Path) -> None:
    topics = {fresh_on(shard, 2): durable for shard in range(2) for durable in (True, False)}
    # So long that it would show if anyone waited for a share of it to pass.
    with LiveServer(tmp_path / "data", env={"TOPICS_DRAIN_TIMEOUT_MS": "100000"}) as server:
        with server.wait_serving().client() as client:
            for topic, durable in topics.items():
                client.put(topic, durable=durable)
            client.put("quiet")
        answers: list[tuple[int, object]] = []
        poll = threading.Thread(target=long_poll, args=(server.port, answers), daemon=True)
        poll.start()
        with server.client() as client:
            wait_for(lambda: long_polls(client) == 1)
        writers = [
            Writer(server.port, topic, f"{topic}/{number}", keyed=False)
            for topic in topics
            for number in range(3)
        ]
        with Load(writers) as load:
            load.wait_acks(20)
            # 0: everybody ended by himself. Whoever has to be killed makes it 1, and `stop` waits less than a share.
            assert server.stop() == 0
        assert load.failures == []
        poll.join(10)
        # A reader that waits is answered as things stand, not cut off.
        assert answers == [(200, [])]
    with LiveServer(tmp_path / "data") as server, server.wait_serving().client() as client:
        check_log(writers, client.everything)
        assert not any(line["event"] == "shard.recovery_note" for line in server.log)
        assert server.stop() == 0


def long_poll(port: int, answers: list[tuple[int, object]]) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=40)
    body = json.dumps({"wait_ms": 30_000})
    connection.request("POST", "/v0/topics/quiet/diff", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    answers.append((answer.status, json.loads(answer.read()).get("records")))
    connection.close()
