"""What waits between "staged" and "answered": one object per frame of a group.

`apply` makes the frame true (after its group is written, or synced where the class asks for it), `answer` tells
the caller, `undo` takes back what planning assumed if the group could not be written.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from shard_worker.core.seq_text import seq_list
from shard_worker.request import Request, Timings

if TYPE_CHECKING:
    from shard_worker.core.batch import Batch
    from shard_worker.core.shard_state import ShardState
    from shard_worker.core.topic import Topic
    from shared.control_frames import Control, SegmentsReplaced
    from shared.snapshot_items import SnapTopic
    from shared.wal_format import AppendExtra


_OUTCOMES: Final = (
    b'"created":false,"deduped":false',
    b'"created":false,"deduped":true',
    b'"created":true,"deduped":false',
    b'"created":true,"deduped":true',
)


class Pending(ABC):
    """A base class and not a protocol: compiled code reads its fields and calls its methods directly."""

    __slots__ = ("gated", "lsn", "size", "topic")

    def __init__(self, topic: Topic | None, size: int) -> None:
        self.topic = topic
        self.gated = False
        self.lsn = 0
        self.size = size

    @abstractmethod
    def apply(self, state: ShardState) -> None: ...

    def answer(self, timings: Timings) -> None:
        return None

    def undo(self, state: ShardState) -> None:
        return None

    def requests(self) -> list[Request]:
        return []


class PendingAppend(Pending):
    __slots__ = (
        "batch",
        "created",
        "extra",
        "first",
        "followers",
        "json_lsn",
        "request",
        "reserved",
        "ts",
    )

    def __init__(
        self,
        request: Request | None,
        topic: Topic,
        batch: Batch,
        first: int,
        ts: int,
        reserved: int,
        extra: AppendExtra,
        created: bool,
    ) -> None:
        super().__init__(topic, len(batch.json))
        self.request = request
        self.batch = batch
        self.first = first
        self.ts = ts
        self.reserved = reserved
        self.extra = extra
        self.created = created
        self.json_lsn = 0
        self.followers: list[Request] | None = None  # repeats that came before the first was committed

    def apply(self, state: ShardState) -> None:
        topic, batch = self.topic, self.batch
        assert topic is not None
        topic.pending_records -= batch.count
        topic.pending_bytes -= self.size
        if not self.json_lsn:
            state.keep_resident(topic, self.first, batch.json, batch.columns)
        state.apply_append(
            topic,
            self.lsn,
            self.ts,
            self.first,
            batch.count,
            self.json_lsn,
            self.size,
            batch.column_flags,
            self.reserved,
            self.extra,
        )

    def answer(self, timings: Timings) -> None:
        topic = self.topic
        assert topic is not None
        if self.request is not None:
            answer_write(self.request, topic, self.first, self.batch.count, self.created, False, timings)
        if self.followers is not None:
            for follower in self.followers:
                answer_write(follower, topic, self.first, self.batch.count, False, True, timings)

    def undo(self, state: ShardState) -> None:
        topic = self.topic
        assert topic is not None
        topic.pending_records -= self.batch.count
        topic.pending_bytes -= self.size
        topic.staged_head = self.first - 1

    def requests(self) -> list[Request]:
        return ([] if self.request is None else [self.request]) + (self.followers or [])


def answer_write(
    request: Request, topic: Topic, first: int, count: int, created: bool, deduped: bool, timings: Timings
) -> None:
    name, outcome = topic.name.encode(), _OUTCOMES[2 * created + deduped]
    listed = request.options is None or request.options.get("seqs") is not False
    if count == 1 and listed:
        # The most frequent one: its seq is put into words once.
        seq = b"%d" % first
        body = b'{"topic":"%b","first_seq":%b,"last_seq":%b,"seqs":[%b],"head_seq":%d,"count":1,%b' % (
            name,
            seq,
            seq,
            seq,
            topic.head,
            outcome,
        )
    else:
        seqs = b'"seqs":[%b],' % seq_list(first, count) if listed else b""
        body = b'{"topic":"%b","first_seq":%d,"last_seq":%d,%b"head_seq":%d,"count":%d,%b' % (
            name,
            first,
            first + count - 1,
            seqs,
            topic.head,
            count,
            outcome,
        )
    request.sink.answer(request.id, 201 if created else 200, body, timings)


class PendingControl(Pending):
    """Any frame but an append. `on_applied` builds the answer from the number of records removed."""

    __slots__ = ("_answer", "_undo", "fact", "owed", "removed", "request", "topic_id", "ts")

    def __init__(
        self,
        fact: Control,
        topic: Topic | None,
        ts: int,
        request: Request | None = None,
        answer: AnswerBuilder | None = None,
        undo: Undo | None = None,
    ) -> None:
        super().__init__(topic, 0)
        self.fact = fact
        self.topic_id = topic.id if topic is not None else 0
        self.ts = ts
        self.request = request
        self.owed = False  # if it is refused, it goes in front of whatever is written next
        self.removed = 0
        self._answer = answer
        self._undo = undo

    def apply(self, state: ShardState) -> None:
        self.removed = state.apply(self.lsn, self.topic_id, self.ts, self.fact)  # type: ignore[arg-type]

    def answer(self, timings: Timings) -> None:
        if self.request is not None and self._answer is not None:
            status, body = self._answer(self.removed)
            self.request.sink.answer(self.request.id, status, body, timings)

    def undo(self, state: ShardState) -> None:
        if self._undo is not None:
            self._undo()

    def requests(self) -> list[Request]:
        return [] if self.request is None else [self.request]


class PendingImport(Pending):
    """A topic that comes from another shard."""

    __slots__ = ("stored", "ts")

    def __init__(self, stored: SnapTopic, ts: int) -> None:
        super().__init__(None, 0)
        self.stored = stored
        self.ts = ts

    def apply(self, state: ShardState) -> None:
        state.apply_import(self.lsn, self.ts, self.stored)


class PendingReplacement(Pending):
    """A compaction that is adopted. Waits for a sync, and the topics that lose records wait with it: caps count live
    records, so their frames must be applied in the order in which a replay will meet them."""

    __slots__ = ("applied", "fact", "failed", "losing", "removed", "ts")

    def __init__(self, fact: SegmentsReplaced, losing: list[Topic], ts: int) -> None:
        super().__init__(None, 0)
        self.fact = fact
        self.losing = losing
        self.ts = ts
        self.gated = True
        self.removed = 0
        self.applied = False
        self.failed = False

    def apply(self, state: ShardState) -> None:
        self._release()
        self.removed = state.apply(self.lsn, 0, self.ts, self.fact)
        self.applied = True

    def undo(self, state: ShardState) -> None:
        self._release()
        self.failed = True

    def _release(self) -> None:
        for topic in self.losing:
            topic.gated -= 1


class Barrier(Pending):
    """No frame of its own: an answer that stands behind the frames of its topic."""

    __slots__ = ("_build", "_request")

    def __init__(self, request: Request, topic: Topic, build: AnswerBuilder) -> None:
        super().__init__(topic, 0)
        self._request = request
        self._build = build

    def apply(self, state: ShardState) -> None:
        return None

    def answer(self, timings: Timings) -> None:
        status, body = self._build(0)
        self._request.sink.answer(self._request.id, status, body, timings)

    def requests(self) -> list[Request]:
        return [self._request]


class Settling(Pending):
    """No frame and no caller: something that goes on once all that was written before it is on disk for good.

    Of no topic, so that nobody's writes queue up behind it. `done` hears False if the group could not be written.
    """

    __slots__ = ("_done",)

    def __init__(self, done: Callable[[bool], None]) -> None:
        super().__init__(None, 0)
        self._done = done

    def apply(self, state: ShardState) -> None:
        return None

    def answer(self, timings: Timings) -> None:
        self._done(True)

    def undo(self, state: ShardState) -> None:
        self._done(False)


class AnswerBuilder(Protocol):
    def __call__(self, removed: int, /) -> tuple[int, bytes]: ...


class Undo(Protocol):
    def __call__(self) -> None: ...
