"""Jobs of a queue: claim, ack, nack, extend; and which jobs a command line or stdin names."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec
from msgspec import Raw

from topicsd.client.api import Server, topic_path
from topicsd.client.errors import BadInput, Usage
from topicsd.client.lines import Lines

MAX_SEQS = 1000  # in one request


class Job(msgspec.Struct):
    seq: int = msgspec.field(name="$seq")
    lease_id: str
    deliveries: int = 1
    data: Raw = Raw(b"null")


class Claimed(msgspec.Struct):
    claimed: list[Raw]
    ready: int


class Held(NamedTuple):
    """A job as it is named in an ack. Without its lease, the newest one of the node counts."""

    seq: int
    lease_id: str | None


class Settled(msgspec.Struct):
    skipped: int
    acked: int = 0
    nacked: int = 0


class Extended(msgspec.Struct):
    extended: int


class JobLine(msgspec.Struct):
    seq: int = msgspec.field(name="$seq")
    lease_id: str | None = None


_line_decoder = msgspec.json.Decoder(JobLine | int)


class Queue:
    """One queue, for one worker."""

    def __init__(self, server: Server, topic: str, node: str) -> None:
        self.server = server
        self.topic = topic
        self.node = node

    def claim(self, limit: int, *, lease_ms: int | None, wait_ms: int) -> Claimed:
        body: dict[str, object] = {"node": self.node, "max": limit, "wait_ms": wait_ms}
        if lease_ms is not None:
            body["lease_ms"] = lease_ms
        # Never sent twice: the first one may have taken jobs that nobody would work on.
        return self.server.ask(Claimed, "POST", topic_path(self.topic, "claim"), body, again=False)

    def settle(self, verb: Literal["ack", "nack"], jobs: Sequence[Held], *, delay_ms: int = 0) -> bytes:
        """The answer. It may be sent twice: a job that is settled already is skipped."""
        more = {"delay_ms": delay_ms} if verb == "nack" else {}
        return self.server.call("POST", topic_path(self.topic, verb), self._body(jobs, **more), again=True)

    def extend(self, job: Held, lease_ms: int) -> bool:
        """Is it still ours?"""
        body = self._body([job], lease_ms=lease_ms)
        found = self.server.ask(Extended, "POST", topic_path(self.topic, "extend"), body, again=True)
        return found.extended == 1

    def _body(self, jobs: Sequence[Held], **more: object) -> dict[str, object]:
        body: dict[str, object] = {"node": self.node, "seqs": [job.seq for job in jobs], **more}
        leases = [job.lease_id for job in jobs if job.lease_id is not None]
        if leases:
            if len(leases) != len(jobs):
                raise BadInput(
                    "some lines have a lease_id and some have none; give it for all jobs, or for none"
                )
            body["lease_ids"] = leases
        return body


def named_jobs(words: Sequence[str]) -> list[Held]:
    """SEQ or SEQ:LEASE_ID from the command line; without any, lines of stdin: claimed jobs, or bare seqs."""
    if words:
        return [_from_word(word) for word in words]
    if sys.stdin.isatty():
        raise Usage("name jobs by seq, or pipe what `topics claim` printed into it")
    source = Lines(sys.stdin.fileno())
    jobs: list[Held] = []
    number = 0
    while not source.ended:
        for line in source.take(None):
            number += 1
            if line.strip():
                jobs.append(_from_line(line, number))
    return jobs


def _from_word(word: str) -> Held:
    seq, _, lease_id = word.partition(":")
    if not seq.isdigit():
        raise Usage(f"{word!r} is no seq; write SEQ or SEQ:LEASE_ID")
    return Held(int(seq), lease_id or None)


def _from_line(line: bytes, number: int) -> Held:
    try:
        found = _line_decoder.decode(line)
    except msgspec.DecodeError as err:
        raise BadInput(f"line {number} is no claimed job ({err}); nothing was sent") from None
    return Held(found, None) if isinstance(found, int) else Held(found.seq, found.lease_id)
