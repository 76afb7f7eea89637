"""Clients that write while processes die, and what must be true of the log afterwards.

Every record names its writer and counts up, so that a record in the wrong place, twice, or acknowledged to somebody
else shows.
"""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

from tests.support.server_process import wait_for

PAUSE_S = 0.02  # after a refusal, so that retries do not take the machine from the restart


class Writer(threading.Thread):
    """One client on one connection. `keyed`: it repeats a write of unknown outcome under its idempotency key."""

    def __init__(self, port: int, topic: str, name: str, *, keyed: bool) -> None:
        super().__init__(daemon=True)
        self.topic = topic
        self.client = name
        self.keyed = keyed
        self.acked: dict[int, int] = {}  # n -> seq
        self.sent = 0
        self.refused = 0  # 503
        self.cut = 0  # connections that ended without an answer
        self.failure: str | None = None
        self._port = port
        self._stopping = threading.Event()

    def stop(self) -> None:
        self._stopping.set()

    def run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=25)
        n = 1
        try:
            while not self._stopping.is_set():
                self.sent = n
                if self._write(connection, n) or not self.keyed:
                    n += 1
        except AssertionError as err:
            self.failure = f"{self.client}: {err}"
        finally:
            connection.close()

    def _write(self, connection: http.client.HTTPConnection, n: int) -> bool:
        """True if it was acknowledged."""
        request: dict[str, Any] = {"records": [{"data": {"client": self.client, "n": n}}]}
        if self.keyed:
            request["idempotency_key"] = f"{self.client}/{n}"
        try:
            connection.request(
                "POST",
                f"/v0/topics/{self.topic}",
                json.dumps(request),
                {"Content-Type": "application/json"},
            )
            answer = connection.getresponse()
            document = json.loads(answer.read())
        except (OSError, http.client.HTTPException):
            connection.close()  # opened again by the next request
            self.cut += 1
            self._stopping.wait(PAUSE_S)
            return False
        if answer.status in (200, 201):
            assert document["topic"] == self.topic, "someone else's answer"
            self.acked[n] = document["first_seq"]
            return True
        assert answer.status == 503, document
        assert document["error"]["code"] in ("shard_unavailable", "shutting_down"), document
        retry_after = answer.headers["Retry-After"]
        assert retry_after is not None and int(retry_after) >= 1
        self.refused += 1
        self._stopping.wait(PAUSE_S)
        return False


class Load(AbstractContextManager["Load"]):
    """Writers at work. Leaving the block stops them and says if one saw what it must not see."""

    def __init__(self, writers: Iterable[Writer]) -> None:
        self.writers = list(writers)

    def __enter__(self) -> Load:
        for writer in self.writers:
            writer.start()
        return self

    def __exit__(self, *_: object) -> None:
        for writer in self.writers:
            writer.stop()
        for writer in self.writers:
            writer.join(60)
            assert not writer.is_alive(), f"{writer.client} was never answered"

    @property
    def failures(self) -> list[str]:
        return [writer.failure for writer in self.writers if writer.failure is not None]

    def of(self, *topics: str) -> list[Writer]:
        return [writer for writer in self.writers if writer.topic in topics]

    def wait_acks(self, count: int, writers: Iterable[Writer] | None = None) -> None:
        """Until each of them has this many acks more than now."""
        goals = [
            (writer, len(writer.acked) + count) for writer in (self.writers if writers is None else writers)
        ]

        def reached() -> bool:
            assert not self.failures, self.failures
            return all(len(writer.acked) >= goal for writer, goal in goals)

        wait_for(reached)


def check_log(writers: Iterable[Writer], read: Callable[[str], list[dict[str, Any]]]) -> None:
    """`read` gives all records of a topic. Every ack is in its place, once and in order, and nothing else is there."""
    by_topic: dict[str, dict[str, Writer]] = {}
    for writer in writers:
        by_topic.setdefault(writer.topic, {})[writer.client] = writer
    for topic, clients in by_topic.items():
        records = read(topic)
        seqs = [record["$seq"] for record in records]
        assert seqs == sorted(set(seqs)), "a seq was given out twice"
        found: dict[str, dict[int, int]] = {client: {} for client in clients}
        for record in records:
            client, n = record["data"]["client"], record["data"]["n"]
            assert n <= clients[client].sent, "a record that nobody wrote"
            assert n not in found[client], f"{client} has record {n} twice"
            assert not found[client] or n > max(found[client]), f"{client} has record {n} out of order"
            found[client][n] = record["$seq"]
        for client, writer in clients.items():
            for n, seq in writer.acked.items():
                assert found[client].get(n) == seq, f"{client} was told {seq} for record {n}"
