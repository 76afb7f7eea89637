"""Just enough of three protocols to produce, claim and ack jobs: ours, Redis Streams, NATS JetStream.

A client is a state machine without a socket: it says what to send next and whether an answer is complete. None of
them looks at the jobs beyond what its ack needs, and none does any work of its own per job in Python where a library
in C can do it for all of them: typed JSON for ours, patterns over the whole answer for the others. So the load
generator costs about the same for each; the bench shows how much.
"""

from __future__ import annotations

import json
import re
from typing import Protocol

import msgspec

PAYLOAD = b"x" * 100
TOPIC = "bench-jobs"
GROUP = b"workers"


class QueueClient(Protocol):
    def produce(self) -> bytes:
        """A batch of jobs."""

    def claim(self) -> bytes:
        """A request for as many."""

    def ack(self) -> bytes:
        """The ack of what the last claim brought."""

    def feed(self, data: bytes) -> bool:
        """Take what the socket brought. True: the answer to the last request is complete."""

    @property
    def claimed(self) -> int:
        """How many jobs the last claim brought."""


# --- topicsd --------------------------------------------------------------------------------------------------


class _Job(msgspec.Struct):
    seq: int = msgspec.field(name="$seq")
    lease_id: str


class _Claim(msgspec.Struct):
    claimed: list[_Job]


_decode_claim = msgspec.json.Decoder(_Claim).decode


def http_request(path: str, body: bytes, method: str = "POST") -> bytes:
    return b"%b %b HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (
        method.encode(), path.encode(), len(body), body,
    )  # fmt: skip


class TopicsClient:
    def __init__(self, number: int, batch: int) -> None:
        self._node = f"worker-{number}"
        records = [{"data": PAYLOAD.decode()}] * batch
        path = f"/v0/topics/{TOPIC}"
        self._produce = http_request(f"{path}?return_seqs=false", json.dumps({"records": records}).encode())
        self._claim = http_request(
            f"{path}/claim", json.dumps({"node": self._node, "max": batch, "wait_ms": 5000}).encode()
        )
        self._ack_path = f"{path}/ack"
        self._buffer = b""
        self._claiming = False
        self._jobs: list[_Job] = []

    @property
    def claimed(self) -> int:
        return len(self._jobs)

    def produce(self) -> bytes:
        return self._produce

    def claim(self) -> bytes:
        self._claiming = True
        return self._claim

    def ack(self) -> bytes:
        body = {
            "node": self._node,
            "seqs": [job.seq for job in self._jobs],
            "lease_ids": [job.lease_id for job in self._jobs],
        }
        return http_request(self._ack_path, msgspec.json.encode(body))

    def feed(self, data: bytes) -> bool:
        self._buffer += data
        head, mark, body = self._buffer.partition(b"\r\n\r\n")
        if not mark or len(body) < int(head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0]):
            return False
        assert head.startswith(b"HTTP/1.1 200"), self._buffer
        self._buffer = b""
        if self._claiming:
            self._claiming = False
            self._jobs = _decode_claim(body).claimed
        return True


# --- Redis Streams --------------------------------------------------------------------------------------------


def resp(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


_ENTRY_ID = re.compile(rb"\r\n(\d{13}-\d+)\r\n")
_ENTRY_END = PAYLOAD + b"\r\n"
_NOTHING = b"*-1\r\n"


class RedisClient:
    def __init__(self, number: int, batch: int) -> None:
        stream = TOPIC.encode()
        self._stream = stream
        self._batch = batch
        self._produce = resp(b"XADD", stream, b"*", b"d", PAYLOAD) * batch
        count = b"%d" % batch
        self._claim = resp(
            b"XREADGROUP", b"GROUP", GROUP, b"worker-%d" % number, b"COUNT", count, b"STREAMS", stream, b">"
        )  # fmt: skip
        self._phase = ""
        self._buffer = b""
        self._ids: list[bytes] = []

    @property
    def claimed(self) -> int:
        return len(self._ids)

    def produce(self) -> bytes:
        self._phase = "produce"
        return self._produce

    def claim(self) -> bytes:
        self._phase = "claim"
        return self._claim

    def ack(self) -> bytes:
        self._phase = "ack"
        return resp(b"XACK", self._stream, GROUP, *self._ids)

    def feed(self, data: bytes) -> bool:
        self._buffer += data
        buffer = self._buffer
        if self._phase == "produce":
            if buffer.count(b"\r\n") < 2 * self._batch:
                return False
        elif self._phase == "claim":
            if buffer == _NOTHING:
                self._ids = []
            elif buffer.endswith(_ENTRY_END):
                ids = _ENTRY_ID.findall(buffer)
                if len(ids) < int(buffer.split(b"\r\n", 5)[4][1:]):
                    return False
                self._ids = ids
            else:
                return False
        elif not buffer.endswith(b"\r\n"):
            return False
        assert not buffer.startswith(b"-"), buffer
        self._buffer = b""
        return True


# --- NATS JetStream -------------------------------------------------------------------------------------------

NATS_STREAM, NATS_CONSUMER = "BENCH", "workers"


def nats_publish(subject: bytes, reply: bytes, payload: bytes) -> bytes:
    return b"PUB %b %b %d\r\n%b\r\n" % (subject, reply, len(payload), payload)


_NATS_ACK = re.compile(rb" (\$JS\.ACK\.\S+) \d+\r\n")
_NATS_STATE = re.compile(rb"(?:INFO [^\r]*|PING|PONG)\r\n")
_NATS_NONE = b"HMSG "  # "408 Request Timeout" ends a pull that got less than it wanted


class NatsClient:
    """A pull consumer of a work-queue stream. Every publish and every ack is confirmed by the server."""

    def __init__(self, number: int, batch: int) -> None:
        self._batch = batch
        self._inbox = b"_INBOX.%d.%d" % (batch, number)
        self._produce = nats_publish(TOPIC.encode(), self._inbox, PAYLOAD) * batch
        pull = json.dumps({"batch": batch, "expires": 5_000_000_000}).encode()
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{NATS_STREAM}.{NATS_CONSUMER}".encode()
        self._claim = nats_publish(subject, self._inbox, pull)
        self._ack = b" %b 4\r\n+ACK\r\n" % self._inbox
        self._phase = ""
        self._buffer = b""
        self._acks: list[bytes] = []

    @property
    def claimed(self) -> int:
        return len(self._acks)

    def hello(self) -> bytes:
        return (
            b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true}\r\n'
            b"SUB %b 1\r\n" % self._inbox
        )

    def produce(self) -> bytes:
        self._phase = "produce"
        return self._produce

    def claim(self) -> bytes:
        self._phase = "claim"
        return self._claim

    def ack(self) -> bytes:
        self._phase = "ack"
        return b"PUB " + (self._ack + b"PUB ").join(self._acks) + self._ack

    def feed(self, data: bytes) -> bool:
        buffer = self._buffer + data
        if b"INFO " in buffer or b"PING\r\n" in buffer:
            buffer = _NATS_STATE.sub(b"", buffer)
        self._buffer = buffer
        if not self._complete(buffer):
            return False
        assert b'"error"' not in buffer, buffer
        self._buffer = b""
        return True

    def _complete(self, buffer: bytes) -> bool:
        if self._phase == "produce":
            return buffer.endswith(b"}\r\n") and buffer.count(b"MSG ") >= self._batch
        if self._phase == "ack":
            return buffer.endswith(b"\r\n\r\n") and buffer.count(b"MSG ") >= len(self._acks)
        if not buffer.endswith(_ENTRY_END) and not (_NATS_NONE in buffer and buffer.endswith(b"\r\n")):
            return False
        acks = _NATS_ACK.findall(buffer)
        if len(acks) < self._batch and _NATS_NONE not in buffer:
            return False
        self._acks = acks
        return True
