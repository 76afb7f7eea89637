"""Watchers under everything that can cross everything: what they received is exactly what was written.

Messages between gateway and shards are delivered one by one in any interleaving with writes, evictions, deletions,
syncs, streams that block, clients that vanish with a part of what was sent, and links that break. Each client keeps
the books a careful client would keep: a record may come once, in order, and whatever it never gets must have been
told as lost, deleted, or be its own.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Literal

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

import gateway.core.watch_session
import gateway.watcher
from gateway.core.sse import Event
from gateway.core.watch_session import Cursor, IdMap, LastEventId, View, rewind, view_of
from gateway.sse_session import SseSession
from gateway.watch_feed import Feed, Fetch, Page, Reader
from gateway.watcher import Step as WatchStep
from gateway.watcher import Watcher
from shared.api_types import U64_MAX
from tests.support.sse_client import Frame, SseParser
from tests.unit.gateway.watch_harness import Client, WatchHarness, stream_of

# Few of each, so that things happen to the same ones: on two shards, by name and by prefix.
TOPICS = ("a", "p1")
WATCHES: dict[str, dict[str, object]] = {
    "single": {"topics": {"a": {}}},
    "both": {"topics": {"a": {}}, "prefixes": {"p": {}}, "limit": 3},
    "not mine": {"topics": {"a": {}}, "prefixes": {"p": {}}, "node": "me"},
    "strong": {"topics": {"a": {}}, "prefixes": {"p": {}}, "consistency": "strong"},
}
topics = st.sampled_from(TOPICS)
Step = Literal["nothing", "deliver", "settle", "read"]
steps: st.SearchStrategy[Step] = st.sampled_from(["nothing", "deliver", "settle", "read"])


class Books:
    """What one client knows, from its frames alone."""

    def __init__(self, hidden_node: str | None) -> None:
        self.hidden_node = hidden_node
        self.place: dict[str, int] = {}
        self.got: dict[str, list[int]] = {}
        self.lost: dict[str, set[int]] = {}
        self.epoch: dict[str, int] = {}
        self.deletions: Counter[str] = Counter()
        self.ended = False
        self.last_id: str | None = None

    def take(self, frames: list[Frame]) -> None:
        for frame in frames:
            self.last_id = frame.id or self.last_id
            getattr(self, "_" + frame.event.replace("-", "_"))(frame)
            if frame.id is not None and "topic" in frame.data:
                self._check_cursors(frame)

    def _check_cursors(self, frame: Frame) -> None:
        """An id says where this client stands in all its topics, not only in that of the frame."""
        for topic, seq in frame.cursors.items():
            if topic.startswith("$"):
                continue
            place = self.place.get(topic, 0)
            # Records that are hidden from it are passed without a word.
            assert seq == place or (self.hidden_node is not None and seq > place), (topic, seq, place, frame)

    def _record(self, frame: Frame) -> None:
        topic, data = frame.data["topic"], frame.data
        seqs = [record["$seq"] for record in data["records"]]
        assert seqs and data["from_seq"] < seqs[0] and seqs[-1] <= data["to_seq"] <= data["head_seq"]
        place = self.place.get(topic, 0)
        if self.hidden_node is None:
            assert data["from_seq"] == place, (frame, place)
        assert data["from_seq"] >= place and seqs == sorted(set(seqs)), (frame, place)
        # Records of the harness have their topic's epoch for a time. A deletion is heard before its successor is.
        epochs = {record["$ts"] for record in data["records"]}
        assert epochs == {self.epoch.setdefault(topic, min(epochs))}, (frame, self.epoch)
        self.got.setdefault(topic, []).extend(seqs)
        self.place[topic] = data["to_seq"]
        assert frame.cursors[topic] == data["to_seq"]

    def _tombstone(self, frame: Frame) -> None:
        topic, data = frame.data["topic"], frame.data
        assert data["reason"] in ("cap", "from_seq_too_old")
        assert data["gap_from"] == self.place.get(topic, 0) + 1 or self.hidden_node is not None
        assert self.place.get(topic, 0) < data["gap_from"] <= data["gap_to"] == frame.cursors[topic]
        self.lost.setdefault(topic, set()).update(range(data["gap_from"], data["gap_to"] + 1))
        self.place[topic] = data["gap_to"]

    def _caught_up(self, frame: Frame) -> None:
        topic = frame.data["topic"]
        assert self.place.get(topic, 0) <= frame.data["head_seq"] == frame.cursors[topic]
        self.place[topic] = frame.data["head_seq"]

    def _topic_deleted(self, frame: Frame) -> None:
        topic = frame.data["topic"]
        assert topic not in frame.cursors
        self.deletions[topic] += 1
        for kept in (self.place, self.got, self.lost, self.epoch):
            kept.pop(topic, None)  # type: ignore[attr-defined]

    def _error(self, frame: Frame) -> None:
        assert frame.data["code"] in (503, 410)


class WatchMachine(RuleBasedStateMachine):
    @initialize(name=st.sampled_from(sorted(WATCHES)))
    def begin(self, name: str) -> None:
        self.harness = WatchHarness(shards=2)
        self.shards = self.harness.shards
        assert {self.shards.shard_of(topic) for topic in TOPICS} == {0, 1}
        self.shards.create("a")
        self.watch = WATCHES[name]
        self.books = Books("me" if name == "not mine" else None)
        self.wid = self.harness.watch(**self.watch)["wid"]
        self.deletions: Counter[str] = Counter()
        self.client: Client | None = None
        self.connect()
        self.shards.settle()

    # --- topics ---------------------------------------------------------------------------------------

    # Every rule may be followed by what makes it felt: sequences that matter would be too long to be found otherwise.

    def _then(self, step: Step) -> None:
        if step == "deliver":
            self.shards.settle()
        elif step != "nothing":
            for topic in self.shards.logs:
                self.shards.push(topic)
                self.shards.sync(topic)
            self.shards.settle()
        if step == "read":
            self.read()

    @rule(topic=topics, count=st.integers(1, 5), mine=st.booleans(), push=st.booleans(), then=steps)
    def write(self, topic: str, count: int, mine: bool, push: bool, then: Step) -> None:
        self.shards.write(topic, count, "me" if mine else None, push=push)
        self._then(then)

    @rule(topic=topics, share=st.sampled_from([0.5, 1.0]), then=steps)
    def evict(self, topic: str, share: float, then: Step) -> None:
        log = self.shards.logs.get(topic)
        if log is not None:
            self.shards.evict(topic, 1 + int(log.pushed * share))
            self._then(then)

    @rule(topic=topics, again=st.integers(0, 5), then=steps)
    def delete(self, topic: str, again: int, then: Step) -> None:
        if topic in self.shards.logs:
            self.shards.push(topic)
            self.shards.delete(topic)
            self.deletions[topic] += 1
            if again:
                self.shards.write(topic, again)
            self._then(then)

    # --- messages ---------------------------------------------------------------------------------------

    @rule(shard=st.integers(0, 1), served=st.integers(0, 4), arrived=st.integers(0, 4))
    def exchange(self, shard: int, served: int, arrived: int) -> None:
        self.shards.serve(shard, served)
        self.shards.arrive(shard, arrived)

    @rule(shard=st.integers(0, 1), back=st.booleans(), then=steps)
    def restart(self, shard: int, back: bool, then: Step) -> None:
        if self.shards.links[shard].up:
            self.shards.link_down(shard)
        if back:
            self.shards.link_up(shard)
        self._then(then)

    @rule(seconds=st.sampled_from([0.5, 6.0]), then=steps)
    def pass_time(self, seconds: float, then: Step) -> None:
        self.harness.pass_time(seconds)
        self._then(then)

    # --- the client -------------------------------------------------------------------------------------

    @rule()
    def connect(self) -> None:
        if self.client is not None or self.books.ended:
            return
        last = self.books.last_id
        headers = {} if last is None else {"last-event-id": last}
        exchange = self.harness.call("GET", f"/v0/watch/{self.wid}", headers=headers)
        if exchange.stream is None:
            # The session ended while the client was away: all its topics were deleted.
            assert exchange.response is not None and exchange.response.status == 404
            assert "prefixes" not in self.watch
            self.books.ended = True
            return
        self.client = Client(stream_of(exchange))
        self.client.parser = SseParser(last_id=last or "")

    def _write_unread(self, topic: str, count: int) -> None:
        """What is under way to the client, or would be."""
        if count:
            self.shards.write(topic, count)
            self.shards.sync(topic)
            self.shards.settle()

    @rule(blocked=st.booleans(), topic=topics, meanwhile=st.integers(0, 3), then=steps)
    def block(self, blocked: bool, topic: str, meanwhile: int, then: Step) -> None:
        if self.client is not None:
            if blocked:
                self.client.block()
                self._write_unread(topic, meanwhile)
            else:
                self.client.unblock()
            self._then(then)

    @rule(topic=topics, count=st.integers(1, 3), then=steps)
    def stall(self, topic: str, count: int, then: Step) -> None:
        """The stream takes nothing while something is pushed."""
        if self.client is not None:
            self.client.block()
            self._write_unread(topic, count)
            self.client.unblock()
            self._then(then)

    @rule(topic=topics, synced=st.integers(1, 3), more=st.integers(1, 3))
    def sync_behind_the_head(self, topic: str, synced: int, more: int) -> None:
        """There is news for readers that wait for syncs, and there is more that they must not see yet."""
        self.shards.write(topic, synced)
        self.shards.sync(topic)
        self.shards.write(topic, more)
        self.shards.settle()

    @rule(
        topic=topics,
        unread=st.integers(0, 3),
        deleted=st.booleans(),
        received=st.integers(0, 3),
        half=st.booleans(),
        back=st.booleans(),
        then=steps,
    )
    def vanish(
        self, topic: str, unread: int, deleted: bool, received: int, half: bool, back: bool, then: Step
    ) -> None:
        """The client gets only a part of what was sent, perhaps half a piece at the end."""
        client = self.client
        if client is None:
            return
        self._write_unread(topic, unread)
        if deleted and topic in self.shards.logs:
            self.delete(topic, again=unread, then="deliver")
        if self.books.last_id is None:
            # Without a Last-Event-ID the session's own cursor counts, and that is what was sent.
            self.read()
        if self.client is not client:
            return  # that was its last topic
        lost = client.stream.frames[received:]
        del client.stream.frames[received:]
        if lost and half:
            client.stream.frames.append(lost[0][: len(lost[0]) // 2])
        self.books.take(client.take())
        client.vanish()
        self.client = None
        if back:
            self.connect()
            self._then(then)

    @rule(then=steps)
    def break_while_sending(self, then: Step) -> None:
        """The connection is gone, and only the next push finds out."""
        if self.client is not None and self.books.last_id is not None:
            self.client.stream.breaks = True
            self._then(then)
            if self.client is not None and self.client.stream.gone and not self.client.stream.ended:
                self.books.take(self.client.take())
                self.client = None

    @rule()
    def read(self) -> None:
        if self.client is not None:
            self.books.take(self.client.take())
            if self.client.stream.ended:
                self.client = None

    # --- what must hold ---------------------------------------------------------------------------------

    @invariant()
    def nothing_but_notes_is_queued_for_a_stream(self) -> None:
        for session in self.harness.hub.sessions.values():
            assert len(session._notes) <= 2 * len(TOPICS) + 3

    @invariant()
    def a_strong_reader_gets_nothing_that_is_not_synced(self) -> None:
        if self.client is None or self.watch.get("consistency") != "strong":
            return
        # What was sent since it last read: nothing has been synced between the sending and this look.
        for frame in SseParser().feed(b"".join(self.client.stream.frames)):
            if isinstance(frame, Frame) and frame.event == "record":
                log = self.shards.logs.get(frame.data["topic"])
                for record in frame.data["records"]:
                    if log is not None and record["$ts"] == log.epoch:
                        assert record["$seq"] <= log.synced, (frame, log.synced)

    def teardown(self) -> None:
        # Only if no step failed: its own error is the one to show.
        if sys.exc_info()[0] is None:
            self.everything_arrives()

    @rule()
    def everything_arrives(self) -> None:
        """Whatever has happened: once links, streams and clients are back, the client has what it is owed."""
        for link in self.shards.links:
            if not link.up:
                self.shards.link_up(link.shard)
        for topic in self.shards.logs:
            self.shards.push(topic)
            self.shards.sync(topic)
        if self.client is not None and self.client.stream.breaks:
            self.client.vanish()
            self.books.take(self.client.take())
            self.client = None
        self.connect()
        if self.client is not None:
            self.client.unblock()
        for _ in range(3):
            self.shards.settle()
            self.harness.pass_time(1.5)
        self.shards.settle()
        self.read()
        if self.client is not None:
            self._check_books()

    def _check_books(self) -> None:
        # Every deletion is heard of, and none twice.
        assert self.books.place.keys() <= self.shards.logs.keys()
        assert self.books.deletions <= self.deletions
        for topic, log in self.shards.logs.items():
            if topic != "a" and "prefixes" not in self.watch:
                continue
            got, lost = self.books.got.get(topic, []), self.books.lost.get(topic, set())
            hidden = self.books.hidden_node
            mine = {seq for seq, node in enumerate(log.nodes, 1) if node is not None and node == hidden}
            expected = [seq for seq in range(1, log.head + 1) if seq not in lost and seq not in mine]
            assert got == expected, (topic, got, expected)
            assert self.books.place.get(topic, 0) == log.head


TestWatch = WatchMachine.TestCase
TestWatch.settings = settings(max_examples=300, stateful_step_count=30)


# --- can it fail? -----------------------------------------------------------------------------------------

Patch = Callable[[pytest.MonkeyPatch], None]


def a_push_is_dropped(patch: pytest.MonkeyPatch) -> None:
    push_live = SseSession.push_live

    def forgetful(self: SseSession, reader: Reader, event: Event, seq: int) -> bool:
        if seq % 3:
            return push_live(self, reader, event, seq)
        reader.seq = seq
        return True

    patch.setattr(SseSession, "push_live", forgetful)


def a_push_that_is_refused_counts_as_sent(patch: pytest.MonkeyPatch) -> None:
    push_live = SseSession.push_live

    def optimistic(self: SseSession, reader: Reader, event: Event, seq: int) -> bool:
        push_live(self, reader, event, seq)
        reader.seq = seq
        return True

    patch.setattr(SseSession, "push_live", optimistic)


def a_push_is_repeated(patch: pytest.MonkeyPatch) -> None:
    push_live = SseSession.push_live

    def stammering(self: SseSession, reader: Reader, event: Event, seq: int) -> bool:
        return push_live(self, reader, event, seq) and push_live(self, reader, event, seq)

    patch.setattr(SseSession, "push_live", stammering)


def a_page_counts_for_readers_that_moved_on(patch: pytest.MonkeyPatch) -> None:
    def careless(self: Feed, fetch: Fetch, waiting: list[Reader], body: bytes) -> None:
        for reader in waiting:
            if reader.feed is self and self.exists:
                reader.watcher.deliver(reader, Page(self.name, fetch.from_seq, body))

    patch.setattr(Feed, "_hand_out", careless)


def tombstones_are_swallowed(patch: pytest.MonkeyPatch) -> None:
    deliver = Watcher.deliver

    def silent(self: Watcher, reader: Reader, page: Page) -> None:
        page.lost = None
        deliver(self, reader, page)

    patch.setattr(Watcher, "deliver", silent)


def a_reconnection_goes_on_behind_what_was_sent(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Watcher, "rewind", lambda self, last: None)


def an_id_may_move_a_cursor_ahead(patch: pytest.MonkeyPatch) -> None:
    def trusting(cursors: Iterable[Cursor], last: LastEventId) -> None:
        for cursor in cursors:
            cursor.seq = last.seqs.get(cursor.name, cursor.seq)

    patch.setattr(gateway.watcher, "rewind", trusting)


def a_filter_is_forgotten_when_the_client_comes_back(patch: pytest.MonkeyPatch) -> None:
    rewind_watcher = Watcher.rewind

    def forgetful(self: Watcher, last: LastEventId) -> None:
        rewind_watcher(self, last)
        for reader in self.readers.values():
            reader.view = reader.view._replace(nodes=())

    patch.setattr(Watcher, "rewind", forgetful)


def ids_mix_up_the_cursors_of_two_topics(patch: pytest.MonkeyPatch) -> None:
    line = IdMap.line

    def mixed(self: IdMap) -> bytes:
        kept = self._seqs
        if len(kept) == 2:
            self._seqs = dict(zip(kept, reversed(kept.values()), strict=True))
        try:
            return line(self)
        finally:
            self._seqs = kept

    patch.setattr(IdMap, "line", mixed)


def ids_run_ahead_in_topics_that_are_still_to_be_sent(patch: pytest.MonkeyPatch) -> None:
    compose = SseSession._compose

    def early(self: SseSession, steps: Sequence[WatchStep]) -> list[bytes]:
        for reader in self.readers.values():
            if reader.feed is not None and self._ids.seq_of(reader.name) is not None:
                self._ids.move(reader, reader.feed.head)
        return compose(self, steps)

    patch.setattr(SseSession, "_compose", early)


def strong_readers_are_treated_like_all_others(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        gateway.core.watch_session,
        "view_of",
        lambda request, settings: view_of(request, settings)._replace(strong=False),
    )


def a_strong_reader_reads_to_the_head(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(View, "read_options", lambda self, upto: {"inline": True, "touch": False})


def a_new_epoch_goes_on_at_the_old_seq(patch: pytest.MonkeyPatch) -> None:
    def renew(self: Reader, epoch: int) -> None:
        self.epoch = epoch
        self.gone = False

    patch.setattr(Reader, "renew", renew)


def a_deletion_that_was_lost_on_the_way_is_not_told_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        gateway.watcher, "rewind", lambda cursors, last: rewind(cursors, replace(last, told=U64_MAX))
    )


def a_deletion_that_was_heard_is_told_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(gateway.watcher, "rewind", lambda cursors, last: rewind(cursors, replace(last, told=0)))


SABOTAGES: list[Patch] = [
    a_push_is_dropped,
    a_push_that_is_refused_counts_as_sent,
    a_push_is_repeated,
    a_page_counts_for_readers_that_moved_on,
    tombstones_are_swallowed,
    a_reconnection_goes_on_behind_what_was_sent,
    an_id_may_move_a_cursor_ahead,
    a_filter_is_forgotten_when_the_client_comes_back,
    ids_mix_up_the_cursors_of_two_topics,
    ids_run_ahead_in_topics_that_are_still_to_be_sent,
    strong_readers_are_treated_like_all_others,
    a_strong_reader_reads_to_the_head,
    a_new_epoch_goes_on_at_the_old_seq,
    a_deletion_that_was_lost_on_the_way_is_not_told_again,
    a_deletion_that_was_heard_is_told_again,
]


@pytest.mark.parametrize("sabotage", SABOTAGES, ids=lambda sabotage: sabotage.__name__)
def test_the_machine_notices_when(sabotage: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these breaks one promise. If the machine stays green, it proves nothing."""
    sabotage(monkeypatch)
    quick = settings(
        phases=(Phase.generate,),
        report_multiple_bugs=False,
        database=None,
        max_examples=1000,
        stateful_step_count=20,
    )
    with pytest.raises(AssertionError):
        run_state_machine_as_test(WatchMachine, settings=quick)
