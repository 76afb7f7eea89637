"""Claims and leases as they pass through the gateway. Pure: bytes in, bytes out.

Most claims are passed on unread. They are looked into only where the gateway itself has to keep leases: for a
stream that hands out jobs, and for a client that left before its jobs came.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from msgspec import Struct

from gateway.core import sse
from gateway.core.sse import Event
from shared.errors import TopicsError
from shared.limits import QUEUE_SEQS_MAX
from shared.wire import Answer

_encode = msgspec.json.encode


class Job(Struct, gc=False):
    """One job of a claim's answer."""

    seq: int = msgspec.field(name="$seq")
    lease_id: str
    deadline: int  # milliseconds since the epoch, by the worker's clock
    json: bytes = b""  # the job as the worker wrote it


class _Answer(Struct):
    claimed: list[msgspec.Raw]
    ready: int


class Decision(Struct):
    """An ack, nack or extend, as far as it says which leases it is about."""

    node: str
    seqs: list[int]
    lease_ids: list[str] | None = None

    def leases(self) -> Iterator[tuple[int, str | None]]:
        """(seq, token); None: whichever lease the node has."""
        ids: Sequence[str | None] = self.lease_ids if self.lease_ids is not None else [None] * len(self.seqs)
        return zip(self.seqs, ids, strict=False)


class _Extended(Struct):
    deadlines: dict[str, int]


class _ErrorInfo(Struct):
    code: str
    message: str
    detail: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _ErrorBody(Struct):
    error: _ErrorInfo


_answer = msgspec.json.Decoder(_Answer)
_job = msgspec.json.Decoder(Job)
_decision = msgspec.json.Decoder(Decision)
_extended = msgspec.json.Decoder(_Extended)
_error_body = msgspec.json.Decoder(_ErrorBody)


def claim_body(node: str, most: int, lease_ms: int | None, wait_ms: int) -> bytes:
    fields: dict[str, object] = {"node": node, "max": most, "wait_ms": wait_ms}
    if lease_ms is not None:
        fields["lease_ms"] = lease_ms
    return _encode(fields)


def no_decision_body(node: str) -> bytes:
    """An ack or nack of nothing: answered like any other, so it tells whether there is such a queue."""
    return _encode({"node": node, "seqs": []})


def jobs_of(open_body: bytes) -> list[Job]:
    """The jobs of a claim's answer, which comes without its closing brace."""
    jobs = []
    for raw in _answer.decode(open_body + b"}").claimed:
        job = _job.decode(raw)
        job.json = bytes(raw)
        jobs.append(job)
    return jobs


def ready_of(open_body: bytes) -> int:
    return _answer.decode(open_body + b"}").ready


def empty_claim(topic: str, ready: int) -> bytes:
    """What a claim answers that gets nothing, without its closing brace."""
    return b'{"topic":"%b","claimed":[],"count":0,"ready":%d' % (topic.encode(), ready)


def decision_of(body: bytes) -> Decision:
    """Of a body that the worker has accepted."""
    return _decision.decode(body)


def deadlines_of(open_body: bytes) -> dict[int, int]:
    """New deadlines by seq, from the answer to an extend."""
    return {int(seq): ms for seq, ms in _extended.decode(open_body + b"}").deadlines.items()}


def release_bodies(node: str, leases: Sequence[tuple[int, str]]) -> Iterator[bytes]:
    """Nacks that give these (seq, lease_id) back, each as long as one may be."""
    for start in range(0, len(leases), QUEUE_SEQS_MAX):
        part = leases[start : start + QUEUE_SEQS_MAX]
        yield _encode(
            {"node": node, "seqs": [seq for seq, _ in part], "lease_ids": [lease for _, lease in part]}
        )


def job_frame(job: Job) -> bytes:
    """`event: job` with `id:` = its seq."""
    return b"id: %d\n%b" % (job.seq, Event("job", job.json).sse)


def error_event(status: int, reply: Answer | TopicsError) -> Event:
    """Why no jobs come, in the words of whoever refused the claim."""
    if not isinstance(reply, Answer):
        return sse.error(status, reply)
    error = _error_body.decode(reply.body).error
    fields: dict[str, object] = {"code": status, "error": error.code, "message": error.message}
    if error.detail is not msgspec.UNSET:
        fields["detail"] = error.detail
    hint = None if reply.timings is None else reply.timings.get("retry_after_ms")
    if hint is not None:
        fields["retry_after_ms"] = int(hint)
    return Event("error", _encode(fields))
