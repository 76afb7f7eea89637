"""Readers that wait for a topic to move on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush

from shard_worker.core.reading import ReadResult, View
from shard_worker.core.topic import Topic
from shard_worker.request import Request


@dataclass(slots=True, eq=False)
class Waiting:
    request: Request
    topic: Topic
    view: View
    result: ReadResult  # what the reader gets if nothing comes
    deadline_ms: int
    done: bool = False

    @property
    def cursor(self) -> int:
        return self.result.next_from

    def moved_to(self, result: ReadResult) -> Waiting:
        return replace(self, result=result, done=False)


class LongPolls:
    def __init__(self) -> None:
        self._by_deadline: list[tuple[int, int, Waiting]] = []
        self._by_request: dict[tuple[int, int], Waiting] = {}
        self._serial = 0

    def __len__(self) -> int:
        return len(self._by_request)

    def add(self, waiting: Waiting) -> None:
        self._serial += 1
        heappush(self._by_deadline, (waiting.deadline_ms, self._serial, waiting))
        self._by_request[id(waiting.request.sink), waiting.request.id] = waiting
        if waiting.topic.waiters is None:
            waiting.topic.waiters = {}
        waiting.topic.waiters[waiting] = None

    def take(self, topic: Topic) -> list[Waiting]:
        """All that wait for this topic; they are not waiting any more."""
        taken = [waiting for waiting in topic.waiters or () if isinstance(waiting, Waiting)]
        topic.waiters = None
        for waiting in taken:
            self._remove(waiting)
        return taken

    def take_expired(self, now_ms: int) -> list[Waiting]:
        taken = []
        while self._by_deadline and (self._by_deadline[0][2].done or self._by_deadline[0][0] <= now_ms):
            waiting = heappop(self._by_deadline)[2]
            if not waiting.done:
                self._leave_topic(waiting)
                self._remove(waiting)
                taken.append(waiting)
        return taken

    def take_all(self) -> list[Waiting]:
        taken = list(self._by_request.values())
        for waiting in taken:
            self._leave_topic(waiting)
            self._remove(waiting)
        return taken

    def cancel(self, sink: object, request_id: object) -> Request | None:
        waiting = self._by_request.get((id(sink), request_id)) if isinstance(request_id, int) else None
        if waiting is None:
            return None
        self._leave_topic(waiting)
        self._remove(waiting)
        return waiting.request

    def forget(self, sink: object) -> None:
        for waiting in [w for w in self._by_request.values() if w.request.sink is sink]:
            self._leave_topic(waiting)
            self._remove(waiting)

    def next_deadline_ms(self) -> int | None:
        while self._by_deadline and self._by_deadline[0][2].done:
            heappop(self._by_deadline)
        return self._by_deadline[0][0] if self._by_deadline else None

    def _remove(self, waiting: Waiting) -> None:
        waiting.done = True
        del self._by_request[id(waiting.request.sink), waiting.request.id]
        # Entries of answered polls stay in the heap until their time; do not let them pile up.
        if len(self._by_deadline) > 2 * len(self._by_request) + 1024:
            self._by_deadline = [entry for entry in self._by_deadline if not entry[2].done]
            heapify(self._by_deadline)

    def _leave_topic(self, waiting: Waiting) -> None:
        if waiting.topic.waiters is not None:
            waiting.topic.waiters.pop(waiting, None)
            if not waiting.topic.waiters:
                waiting.topic.waiters = None
