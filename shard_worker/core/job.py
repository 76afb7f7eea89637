"""What a queue knows about a job that is not fresh: core/lease_queue.py says which jobs those are."""

from __future__ import annotations

from enum import IntEnum

from shard_worker.core.lease_tokens import token_of


class JobState(IntEnum):
    READY = 0
    DELAYED = 1
    LEASED = 2
    BLOCKED = 3  # ready but for an older job of its group
    LEAVING = 4  # being moved to the dead letters, or its ack is on its way to the disk


class Job:
    __slots__ = (
        "deadline_ms",
        "deliveries",
        "due_ms",
        "first",
        "group",
        "key",
        "last",
        "leased_ms",
        "node",
        "number",
        "sharers",
        "state",
        "token",
    )

    def __init__(
        self,
        key: int,
        state: JobState = JobState.READY,
        deliveries: int = 0,
        due_ms: int = 0,
        node: str = "",
        token: str = "",
        deadline_ms: int = 0,
        leased_ms: int = 0,
        group: str | None = None,
        first: int = 0,
        last: int = 0,
        number: int = 0,
    ) -> None:
        self.key = key
        self.state = state
        self.deliveries = deliveries
        self.due_ms = due_ms  # of a delayed job
        self.node = node  # of a leased one, as are the next three
        self.token = token
        self.deadline_ms = deadline_ms
        self.leased_ms = leased_ms
        self.group = group
        # Of an entry that several jobs share: whose it was to begin with, the number in the token of the first of
        # them (`token` is what they have in common), and how many have it still.
        self.first = first
        self.last = last
        self.number = number
        self.sharers = last - first + 1

    def __repr__(self) -> str:
        return (
            f"<Job {self.state.name} key={self.key} deliveries={self.deliveries} due={self.due_ms} node={self.node!r} "
            f"token={self.token!r} until={self.deadline_ms} group={self.group!r} of={self.first}…{self.last}>"
        )

    @property
    def shared(self) -> bool:
        return self.last > self.first

    def token_of(self, seq: int) -> str:
        if self.last > self.first and self.token:
            return token_of(self.token, self.number + seq - self.first)
        return self.token

    def for_stretch(self, first: int, last: int) -> Job:
        """A copy for a part of those that share this entry."""
        alone = first == last
        return Job(
            self.key,
            self.state,
            self.deliveries,
            self.due_ms,
            self.node,
            self.token_of(first) if alone else self.token,
            self.deadline_ms,
            self.leased_ms,
            self.group,
            0 if alone else first,
            0 if alone else last,
            0 if alone else self.number + first - self.first,
        )
