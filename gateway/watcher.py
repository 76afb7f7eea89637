"""Somebody who watches topics over one stream: what is due to it, and in which order it is sent.

Nothing is queued for a stream. What it cannot take now is read again from the log when it can: so its batches grow
while it is slow, and it costs nobody else anything. Notes (a deleted topic, a shard that restarts) are the exception;
there is at most one of a kind and topic.

W1 a cursor moves only with what the stream has taken, or over records that the watcher does not get;
W2 at most one read is under way, and the topics that have something take turns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from gateway.core import sse
from gateway.core.sse import Event
from gateway.core.watch_session import UNTOLD, IdMap, LastEventId, Start, View, rewind
from gateway.subscriptions import Subscriptions
from gateway.watch_feed import Feed, Fetch, Page, Reader
from shared.api_keys import ApiKey
from shared.errors import Internal, ShardUnavailable, Throttled, TopicsError
from shared.limits import RETRY_AFTER_DEFAULT_MS, WATCH_PREFIX_TOPICS_MAX, WATCH_RETRY_MS
from shared.wire import Entry

Later = Callable[[int, Callable[[], None]], None]

_DEPARTED_MAX = 1000  # deleted topics of prefixes whose last place is remembered


class Step(NamedTuple):
    """An event, and where the reader stands after it; `seq` None: it stands nowhere any more."""

    event: Event
    reader: Reader | None = None
    seq: int | None = None


class Watcher(ABC):
    """The part that all transports share. `_push` and `_exhausted` are theirs."""

    def __init__(self, subscriptions: Subscriptions, later: Later, key: ApiKey | None) -> None:
        self._subscriptions = subscriptions
        self._later = later
        self.key = key
        self.readers: dict[str, Reader] = {}
        self.prefixes: dict[str, View] = {}
        self._departed: dict[str, Reader] = {}
        self._forgotten = 0  # the last deletion of those that are no longer remembered there
        self._told = 0  # how many deletions there were to tell
        self._due: dict[Reader, None] = {}
        self._notes: dict[object, Step] = {}
        self._ids = IdMap()
        self.fetch: Fetch | None = None
        self.is_open = False
        self.blocked = False

    # --- what it watches --------------------------------------------------------------------------------

    def add(self, entry: Entry, start: Start, view: View, *, named: bool) -> Reader:
        """Begin with a topic as a survey has found it."""
        name, epoch, head, _ = entry
        seq = head if start.tail else start.from_seq
        reader = Reader(name=name, seq=seq, epoch=epoch, named=named, watcher=self, view=view)
        self.readers[name] = reader
        return reader

    def remove(self, name: str) -> None:
        reader = self.readers.pop(name, None)
        if reader is not None:
            self._detach(reader)
            self._ids.drop(name)

    def attach(self) -> None:
        """The stream is open: subscribe everything. Readers settle as soon as their topics are known."""
        self.is_open, self.blocked = True, False
        self._ids = IdMap(self.readers.values(), self._told)
        for reader in list(self.readers.values()):
            self.attach_reader(reader)
            if not self.is_open:
                return  # every topic was gone
        for prefix in list(self.prefixes):
            self._subscriptions.watch_prefix(prefix, self)

    def attach_reader(self, reader: Reader) -> None:
        feed = self._subscriptions.feed(reader.name)
        reader.feed = feed
        reader.live, reader.fresh = False, True
        reader.held = reader.named or reader.view.strong
        feed.readers.add(reader)
        self._ids.begin(reader)
        if reader.held:
            self._subscriptions.hold(feed, strong=reader.view.strong)
        if feed.known:
            self.topic_known(reader)

    def detach(self) -> None:
        """The stream is over; the cursors stay."""
        self.is_open = self.blocked = False
        self.fetch = None
        for step in self._notes.values():
            if step.reader is not None:
                self._tell_again(step.reader)
        self._notes.clear()
        for prefix in self.prefixes:
            self._subscriptions.leave_prefix(prefix, self)
        for reader in self.readers.values():
            self._detach(reader)

    def rewind(self, last: LastEventId) -> None:
        rewind((*self.readers.values(), *self._departed.values()), last)
        for reader in [reader for reader in self._departed.values() if reader.untold]:
            self._tell_again(reader)

    def _tell_again(self, reader: Reader) -> None:
        """The client has not heard that this topic was deleted."""
        reader.told = UNTOLD
        if self._departed.pop(reader.name, None) is not None:
            self.readers[reader.name] = reader

    def _detach(self, reader: Reader) -> None:
        feed = reader.feed
        if feed is None:
            return
        reader.fall_behind()
        self._due.pop(reader, None)
        feed.readers.discard(reader)
        reader.feed = None
        if reader.held:
            reader.held = False
            self._subscriptions.release(feed)
        else:
            self._subscriptions.unused(feed)

    # --- what happens to its topics ---------------------------------------------------------------------

    def topic_known(self, reader: Reader) -> None:
        feed = reader.feed
        if feed is None:
            return
        if not feed.exists:
            self.topic_gone(reader, reader.seq, "deleted")
            return
        if reader.epoch != feed.epoch:
            if reader.untold or not reader.gone:
                self._note_deleted(reader, reader.seq, "recreated")
            reader.renew(feed.epoch)
            reader.fresh = False
        elif reader.untold:
            self._note_deleted(reader, reader.seq, "recreated")
        self.want(reader)

    def topic_gone(self, reader: Reader, head: int, reason: str) -> None:
        if reader.gone and not reader.untold:
            return  # said once more, by a shard that is back
        reader.fall_behind()
        reader.gone = True
        self._due.pop(reader, None)
        self._note_deleted(reader, head, reason)
        if not reader.named:
            self._depart(reader)
        if not self.prefixes and all(each.gone for each in self.readers.values()):
            self._exhausted()
        else:
            self.pump()

    def _note_deleted(self, reader: Reader, head: int, reason: str) -> None:
        self._told += 1
        reader.told = self._told
        # Told in the order of their numbers: an id that shows one says that all before it were heard.
        self._notes.pop(("deleted", reader.name), None)
        self._notes["deleted", reader.name] = Step(sse.topic_deleted(reader.name, head, reason), reader, None)

    def _depart(self, reader: Reader) -> None:
        """A topic of a prefix is deleted. It is remembered, since its client may not hear that at once."""
        del self.readers[reader.name]
        self._detach(reader)
        self._departed[reader.name] = reader
        if len(self._departed) > _DEPARTED_MAX:
            oldest = self._departed.pop(next(iter(self._departed)))
            self._forgotten = max(self._forgotten, oldest.told)

    def prefix_known(self, prefix: str, found: Iterable[Feed]) -> None:
        view = self.prefixes.get(prefix)
        if view is None:
            return
        for feed in found:
            if feed.name in self.readers:
                continue
            if len(self.readers) >= WATCH_PREFIX_TOPICS_MAX:
                limit = Throttled(limit="watch_prefix_topics", max=WATCH_PREFIX_TOPICS_MAX)
                self._notes["full"] = Step(sse.error(429, limit, [feed.name]))
                break
            # Whatever was there when the watch began is known; this one is new, so all of it is.
            reader = self._departed.pop(feed.name, None)
            if reader is None:
                reader = Reader(name=feed.name, seq=0, epoch=feed.epoch, named=False, watcher=self, view=view)
                reader.told = self._forgotten  # it may be the successor of one of those
            self.readers[feed.name] = reader
            self.attach_reader(reader)
        self.pump()

    def shard_down(self, shard: int, reason: str) -> None:
        topics = [
            reader.name
            for reader in self.readers.values()
            if reader.feed is not None and reader.feed.shard == shard and not reader.gone
        ]
        problem = ShardUnavailable(shard=shard, reason=reason)
        self._notes["down", shard] = Step(sse.error(503, problem, topics))
        self.pump()

    # --- sending ----------------------------------------------------------------------------------------

    @abstractmethod
    def _push(self, steps: Sequence[Step]) -> bool:
        """Send these events as one piece; False if the stream does not take it now."""

    @abstractmethod
    def _exhausted(self) -> None:
        """Every topic is gone."""

    def want(self, reader: Reader) -> None:
        if self.blocked:
            reader.fall_behind()
        self._due[reader] = None
        self.pump()

    def pump(self) -> None:
        """Send what can be sent without a read, then read for the topic whose turn it is."""
        if self.blocked or not self.is_open:
            return
        settled, waiting = self._settle()
        if settled or self._notes:
            steps = [*self._notes.values()]
            steps += [Step(sse.caught_up(each.name, each.seq), each, each.seq) for each in settled]
            if not self._send(steps):
                self._due.update(dict.fromkeys(settled))
                return
            self._notes.clear()
            for reader in settled:
                reader.go_live()
        if waiting is not None and self.fetch is None and waiting.feed is not None:
            self._due.pop(waiting, None)
            waiting.feed.read(waiting)

    def _settle(self) -> tuple[list[Reader], Reader | None]:
        """Readers that have everything, and the first one that has not."""
        settled: list[Reader] = []
        while self._due:
            reader = next(iter(self._due))
            feed = reader.feed
            if feed is not None and feed.ready_for(reader) and not reader.gone:
                if reader.behind():
                    return settled, reader
                if not reader.live:
                    settled.append(reader)
            del self._due[reader]
        return settled, None

    def _send(self, steps: Sequence[Step]) -> bool:
        if self.blocked:
            return False
        if self._push(steps):
            return True
        self._refused()
        return False

    def _refused(self) -> None:
        # A push may find the client gone, and then all is over already. Nobody would ever say that a closed stream
        # takes more, so a mark left on it would silence the next one.
        self.blocked = self.is_open

    def push_live(self, reader: Reader, event: Event, seq: int) -> bool:
        if not self._send([*self._notes.values(), Step(event, reader, seq)]):
            return False
        self._notes.clear()
        reader.seq = seq
        return True

    def deliver(self, reader: Reader, page: Page) -> None:
        steps: list[Step] = []
        if page.lost is not None:
            steps.append(Step(page.tombstone(fresh=reader.fresh), reader, page.resumes_at))
        if not page.empty:
            steps.append(Step(page.record(), reader, page.next_from))
        before = reader.seq
        reader.seq = page.next_from
        fresh, reader.fresh = reader.fresh, False
        reached = not reader.behind()
        if reached and (not reader.live or page.lost is not None or page.empty):
            steps.append(Step(page.caught_up(), reader, page.next_from))
        if steps and not self._send([*self._notes.values(), *steps]):
            reader.seq, reader.fresh = before, fresh
            reader.fall_behind()
            self._due[reader] = None
            return
        if steps:
            self._notes.clear()
        if reached:
            reader.go_live()
        else:
            reader.fall_behind()
            self._due[reader] = None

    def reading_failed(self, reader: Reader, status: int, error: TopicsError | None) -> None:
        if status == 404:
            return  # the shard tells of the deletion itself
        wait_ms = WATCH_RETRY_MS
        if status != 429:
            wait_ms = 10 * WATCH_RETRY_MS
            problem = error or Internal(f"a read was answered {status}")
            self._notes["failed", reader.name] = Step(sse.error(status, problem, [reader.name]))
        elif error is not None:
            wait_ms = error.retry_after_ms or RETRY_AFTER_DEFAULT_MS
        reader.fall_behind()

        def again() -> None:
            if reader.feed is not None:
                self.want(reader)

        self._later(wait_ms, again)

    def writable(self) -> None:
        """The stream takes something again."""
        self.blocked = False
        self.pump()
