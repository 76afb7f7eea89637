"""A queue as its producers and workers see it, and a stream of jobs that is read frame by frame."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import httpx

from tests.support.api_client import ApiClient, Json, Lane, fresh

T = TypeVar("T")

WAIT_MS = 20_000  # of a long poll that is expected to be answered before


class Queue:
    """One queue, used by a client."""

    def __init__(self, client: ApiClient, name: str | None = None, **config: object) -> None:
        self.client = client
        self.name = name or fresh("q")
        client.put(self.name, type="queue", **config)

    @property
    def path(self) -> str:
        return f"/v0/topics/{self.name}"

    def write(self, *values: object, **fields: object) -> list[int]:
        """One job per value, all with the same fields."""
        records = [{"data": value, **fields} for value in values]
        seqs: list[int] = self.client.write(self.name, *records)["seqs"]
        return seqs

    def claim(self, node: str = "a", **request: object) -> list[Json]:
        jobs: list[Json] = self.claim_answer(node, **request)["claimed"]
        return jobs

    def claim_answer(self, node: str = "a", **request: object) -> Json:
        return self.client.ok("POST", f"{self.path}/claim", {"node": node, **request})

    def take(self, node: str = "a", **request: object) -> Json:
        """The next job, waiting for it."""
        (job,) = self.claim(node, **{"wait_ms": WAIT_MS, **request})
        return job

    def values(self, node: str = "a", **request: object) -> list[object]:
        return [job["data"] for job in self.claim(node, **request)]

    def ack(self, *jobs: Json, node: str = "a", fenced: bool = True) -> Json:
        return self._decide("ack", jobs, node, fenced)

    def nack(self, *jobs: Json, node: str = "a", fenced: bool = True, **request: object) -> Json:
        return self._decide("nack", jobs, node, fenced, **request)

    def extend(self, *jobs: Json, lease_ms: int, node: str = "a", fenced: bool = True) -> Json:
        return self._decide("extend", jobs, node, fenced, lease_ms=lease_ms)

    def _decide(self, verb: str, jobs: tuple[Json, ...], node: str, fenced: bool, **request: object) -> Json:
        body: Json = {"node": node, "seqs": [job["$seq"] for job in jobs], **request}
        if fenced:
            body["lease_ids"] = [job["lease_id"] for job in jobs]
        return self.client.ok("POST", f"{self.path}/{verb}", body)

    def counts(self) -> tuple[int, int, int]:
        """Ready, in flight, delayed; together they are all that is there."""
        state = self.client.state(self.name)
        queue = state["queue"]
        ready, in_flight, delayed = queue["ready"], queue["in_flight"], queue["delayed"]
        assert ready + in_flight + delayed == state["count"]
        return ready, in_flight, delayed

    def leases(self, query: str = "") -> Json:
        return self.client.ok("GET", f"{self.path}/leases{query}")

    def redrive(self, source: str, **request: object) -> int:
        moved: int = self.client.ok("POST", f"{self.path}/redrive", {"from": source, **request})["moved"]
        return moved

    def work(self, query: str = "node=w", **more: Any) -> JobStream:
        return JobStream(self.client.port, self.client.lane, f"{self.path}/work?{query}", **more)


@dataclass(frozen=True, slots=True)
class Event:
    name: str
    id: str | None
    data: Json


class JobStream(AbstractContextManager["JobStream"]):
    """`GET …/work` on a connection of its own, which ends with it."""

    def __init__(
        self,
        port: int,
        lane: Lane,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 20,
    ) -> None:
        self._http = httpx.Client(
            base_url=f"http://127.0.0.1:{port}",
            http1=lane == "http1",
            http2=lane == "http2",
            headers={"Accept": "text/event-stream", "Accept-Encoding": "identity", **(headers or {})},
            timeout=timeout_s,
            verify=False,
        )
        self.answer = self._http.send(self._http.build_request("GET", path), stream=True)
        self._pieces = self.answer.iter_bytes()
        self._text = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.answer.close()
        self._http.close()

    def frame(self) -> str | None:
        """The next frame as it is written, without its empty line; None at the end of the stream."""
        while "\n\n" not in self._text:
            piece = next(self._pieces, None)
            if piece is None:
                assert not self._text, "the stream ended within a frame"
                return None
            self._text += piece.decode()
        frame, _, self._text = self._text.partition("\n\n")
        return frame

    def begin(self) -> Self:
        assert self.answer.status_code == 200, self.answer.read()
        assert self.frame() == "retry: 2000"
        return self

    def event(self) -> Event:
        frame = self.frame()
        assert frame is not None, "the stream has ended"
        return self.parse(frame)

    @staticmethod
    def parse(frame: str) -> Event:
        fields: dict[str, list[str]] = {}
        for line in frame.split("\n"):
            name, _, value = line.partition(": ")
            fields.setdefault(name, []).append(value)
        ids = fields.get("id")
        return Event(fields["event"][0], ids[0] if ids else None, json.loads("\n".join(fields["data"])))

    def job(self) -> Json:
        event = self.event()
        assert (event.name, event.id) == ("job", str(event.data.get("$seq"))), event
        return event.data


class Background(Generic[T]):
    """A call in a thread of its own; `result` waits for what it returned."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._found: list[T] = []
        self._failed: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._found.append(self._call())
        except BaseException as err:  # it is raised again, where somebody looks
            self._failed.append(err)

    def result(self) -> T:
        self._thread.join(30)
        assert not self._thread.is_alive(), "no answer"
        if self._failed:
            raise self._failed[0]
        return self._found[0]


def waiting_claims(client: ApiClient) -> int:
    """How many claims wait at the shards right now, streams included."""
    numbers = client.ok("GET", "/v0/metrics", headers={"Accept": "application/json"})
    return sum(shard["gauges"]["waiting_claims"] for shard in numbers["shards"])
