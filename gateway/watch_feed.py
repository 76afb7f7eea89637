"""One watched topic as the gateway knows it, and the readers that stand in it.

A feed is subscribed once per shard link, however many readers it has. Readers that have everything are *live*: what
the shard pushes is built once per view and handed to all of them in one loop. The others read the log, one page at a
time; readers that stand at the same place with the same view share the page.

F1 a live reader's cursor is never behind what the last push brought: whoever could not take a push is not live;
F2 a page counts only for readers that still stand where it begins, in the epoch in which it was asked for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import msgspec

from gateway.core import sse
from gateway.core.sse import Event
from gateway.core.watch_session import Cursor, View
from gateway.io.shard_link import LeasedFiles, OnReply, Reply
from shared.errors import TopicsError
from shared.wire import Answer, Op, Options, TopicAdvanced

log = logging.getLogger(__name__)


class Watcher(Protocol):
    """What a feed asks of the owner of a reader; see gateway/watcher.py."""

    fetch: Fetch | None  # the page it waits for; one at a time

    def topic_known(self, reader: Reader) -> None:
        """The shard has said what there is of the topic."""

    def topic_gone(self, reader: Reader, head: int, reason: str) -> None: ...
    def want(self, reader: Reader) -> None:
        """There is something to read."""

    def push_live(self, reader: Reader, event: Event, seq: int) -> bool:
        """Send, and move the reader to `seq`; False if the stream does not take it."""

    def deliver(self, reader: Reader, page: Page) -> None: ...
    def shard_down(self, shard: int, reason: str) -> None: ...
    def reading_failed(self, reader: Reader, status: int, error: TopicsError | None) -> None: ...
    def pump(self) -> None: ...


@dataclass(slots=True, eq=False, kw_only=True)
class Reader(Cursor):
    watcher: Watcher
    view: View
    feed: Feed | None = None  # None: its watcher has no open stream
    held: bool = False  # does it keep the feed subscribed by name
    live: bool = False
    fresh: bool = True  # nothing was read of the topic since the stream began

    def behind(self) -> bool:
        """Is there something in the log that it has not been sent?"""
        feed = self.feed
        assert feed is not None
        target = feed.synced or 0 if self.view.strong else feed.head
        # A cursor beyond the head comes from a topic that was deleted and made anew: the read tells.
        return self.seq < target or (self.fresh and self.seq > feed.head)

    def go_live(self) -> None:
        assert self.feed is not None
        self.fresh = False
        if not self.live:
            self.live = True
            self.feed.live.setdefault(self.view, {})[self] = None

    def fall_behind(self) -> None:
        if self.live and self.feed is not None:
            self.live = False
            readers = self.feed.live[self.view]
            del readers[self]
            if not readers:
                del self.feed.live[self.view]


class _Tombstone(msgspec.Struct):
    gap_from: int
    gap_to: int
    reason: str


class _ReadAnswer(msgspec.Struct):
    records: msgspec.Raw
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    tombstone: _Tombstone | None


_answer_decoder = msgspec.json.Decoder(_ReadAnswer)

FROM_SEQ_TOO_OLD = "from_seq_too_old"


class Page:
    """What one read has brought, for all readers that asked for it. Its events are built when first needed."""

    def __init__(self, topic: str, from_seq: int, body: bytes) -> None:
        answer = _answer_decoder.decode(body + b"}")
        self._topic = topic
        self._answer = answer
        self._record: Event | None = None
        self._tombstones: dict[bool, Event] = {}
        self._caught_up: Event | None = None
        self.head = answer.head_seq
        self.next_from = answer.next_from_seq
        self.lost = answer.tombstone
        self.resumes_at = from_seq  # where the records begin, exclusive
        if self.lost is not None:
            # A topic that was made anew loses nothing of its own: its records start over.
            recreated = self.lost.reason == "recreated"
            self.resumes_at = answer.earliest_seq - 1 if recreated else self.lost.gap_to
            self.next_from = max(self.next_from, self.resumes_at)
        self.empty = len(answer.records) <= 2

    def record(self) -> Event:
        if self._record is None:
            records = memoryview(self._answer.records)[1:-1]
            self._record = sse.record(self._topic, bytes(records), self.resumes_at, self.next_from, self.head)
        return self._record

    def tombstone(self, *, fresh: bool) -> Event:
        assert self.lost is not None
        if fresh not in self._tombstones:
            reason = FROM_SEQ_TOO_OLD if fresh else self.lost.reason
            self._tombstones[fresh] = sse.tombstone(
                self._topic,
                reason,
                self.lost.gap_from,
                self.lost.gap_to,
                self._answer.earliest_seq,
                self.head,
            )
        return self._tombstones[fresh]

    def caught_up(self) -> Event:
        if self._caught_up is None:
            self._caught_up = sse.caught_up(self._topic, self.next_from)
        return self._caught_up


@dataclass(slots=True, eq=False)
class Fetch:
    """A read that is under way."""

    epoch: int
    from_seq: int
    readers: list[Reader] = field(default_factory=list)


class Asks(Protocol):
    """Where a feed sends its reads."""

    def __call__(
        self, op: int, topic: str, body: bytes, options: Options | None, on_reply: OnReply
    ) -> int: ...


class Feed:
    __slots__ = (
        "_ask",
        "_fetches",
        "_lost",
        "epoch",
        "exists",
        "head",
        "holds",
        "known",
        "live",
        "name",
        "readers",
        "shard",
        "strong",
        "subscribed",
        "synced",
    )

    def __init__(self, name: str, shard: int, ask: Asks, lost: Callable[[Feed], None]) -> None:
        """`lost` is called when a read finds that the shard no longer answers."""
        self.name = name
        self.shard = shard
        self._ask = ask
        self._lost = lost
        self._fetches: dict[tuple[View, int, int | None], Fetch] = {}
        self.readers: set[Reader] = set()
        self.live: dict[View, dict[Reader, None]] = {}
        self.known = False  # has the shard said what there is; not while its link is down
        self.exists = False
        self.epoch = 0
        self.head = 0
        self.synced: int | None = None  # for strong readers; None: not known yet
        self.holds = 0  # who wants it subscribed by name
        self.subscribed = False
        self.strong = False  # subscribed with notices of syncs

    def __repr__(self) -> str:
        state = f"epoch {self.epoch} head {self.head}" if self.exists else "absent"
        live = sum(map(len, self.live.values()))
        return (
            f"<Feed {self.name} {state if self.known else 'unknown'} readers={len(self.readers)} live={live}>"
        )

    def ready_for(self, reader: Reader) -> bool:
        return self.known and self.exists and not (reader.view.strong and self.synced is None)

    # --- what the shard says ----------------------------------------------------------------------------

    def forget(self) -> None:
        """The link is gone: nothing that was known counts before the shard says it again."""
        self.known = self.subscribed = self.strong = False
        self.synced = None
        for reader in self.readers:
            reader.fall_behind()

    def exists_as(self, epoch: int, head: int) -> None:
        if self.known and self.exists and self.epoch == epoch:
            return  # asked for once more; pushes go on from where they are
        self.known = self.exists = True
        self.epoch, self.head = epoch, head
        for reader in list(self.readers):
            reader.watcher.topic_known(reader)

    def appeared(self, epoch: int, head: int) -> None:
        self.synced = 0
        self.exists_as(epoch, head)

    def absent(self) -> None:
        """There is no such topic, or none any more."""
        if self.known and not self.exists:
            return
        self.known, self.exists = True, False
        self.synced = None
        for reader in list(self.readers):
            reader.watcher.topic_gone(reader, max(self.head, reader.seq), "deleted")

    def gone(self, epoch: int, head: int) -> None:
        if self.exists and self.epoch == epoch:
            self.head = head
            self.absent()

    def synced_to(self, seq: int) -> None:
        self.synced = seq
        for reader in list(self.readers):
            if reader.view.strong and self.ready_for(reader) and (not reader.live or reader.behind()):
                reader.watcher.want(reader)

    def advanced(self, notice: TopicAdvanced) -> None:
        if not self.known or notice.epoch != self.epoch:
            return
        self.head = max(self.head, notice.to_seq)
        event: Event | None = None
        for view, readers in list(self.live.items()):
            if view.strong:
                continue
            if (
                view.plain
                and notice.records is not None
                and _fits(notice.records, notice.records_count, view)
            ):
                if event is None:
                    event = _pushed_event(notice, notice.records)
                self._fan_out(list(readers), event, notice.from_seq, notice.to_seq)
            else:
                for reader in list(readers):
                    if reader.seq < notice.to_seq:
                        reader.watcher.want(reader)

    def _fan_out(self, readers: list[Reader], event: Event, from_seq: int, to_seq: int) -> None:
        for reader in readers:
            if reader.seq == from_seq:
                if reader.live and not reader.watcher.push_live(reader, event, to_seq):
                    reader.fall_behind()
                    reader.watcher.want(reader)
            elif reader.seq < to_seq:
                # A read has overtaken the push, and brought a part of it.
                reader.watcher.want(reader)

    # --- reading ----------------------------------------------------------------------------------------

    def read(self, reader: Reader) -> None:
        """Fetch the page that begins where the reader stands, or wait for one that is under way."""
        upto = self.synced if reader.view.strong else None
        place = (reader.view, reader.seq, upto)
        fetch = self._fetches.get(place)
        if fetch is not None and fetch.epoch == self.epoch:
            fetch.readers.append(reader)
            reader.watcher.fetch = fetch
            return
        fetch = self._fetches[place] = Fetch(self.epoch, reader.seq, [reader])
        reader.watcher.fetch = fetch
        self._ask(
            Op.READ,
            self.name,
            reader.view.read_body(reader.seq),
            reader.view.read_options(upto),
            partial(self._answered, place, fetch),
        )

    def _answered(
        self, place: tuple[View, int, int | None], fetch: Fetch, reply: Reply, leased: LeasedFiles | None
    ) -> None:
        if self._fetches.get(place) is fetch:
            del self._fetches[place]
        if leased is not None:
            leased.release()
        waiting = [reader for reader in fetch.readers if reader.watcher.fetch is fetch]
        for reader in waiting:
            reader.watcher.fetch = None
        if isinstance(reply, Answer) and reply.status == 200:
            self._hand_out(fetch, waiting, reply.body)
        else:
            self._failed(waiting, reply)
        for reader in waiting:
            reader.watcher.pump()

    def _hand_out(self, fetch: Fetch, waiting: list[Reader], body: bytes) -> None:
        current = self.known and self.exists and fetch.epoch == self.epoch
        page: Page | None = None
        for reader in waiting:
            if reader.feed is not self:
                continue
            if not current or reader.seq != fetch.from_seq:
                reader.watcher.want(reader)
                continue
            if page is None:
                page = Page(self.name, fetch.from_seq, body)
                self.head = max(self.head, page.head)
            reader.watcher.deliver(reader, page)

    def _failed(self, waiting: list[Reader], reply: Reply) -> None:
        if isinstance(reply, Answer):
            status, error = reply.status, None
        else:
            status, error = reply.status_hint, reply
        if status == 503:
            self._lost(self)
            return
        for reader in waiting:
            if reader.feed is self:
                reader.watcher.reading_failed(reader, status, error)


def _fits(records: bytes, count: int, view: View) -> bool:
    return count <= view.limit and (len(records) <= view.max_bytes or count <= 1)


def _pushed_event(notice: TopicAdvanced, records: bytes) -> Event:
    if not records:
        # Written and deleted within a turn: nothing to show, and yet the readers stand further ahead.
        return sse.caught_up(notice.topic, notice.to_seq)
    return sse.record(notice.topic, records, notice.from_seq, notice.to_seq, notice.head)
