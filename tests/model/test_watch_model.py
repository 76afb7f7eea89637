"""Watchers under everything that can cross everything: what they received is exactly what was written.

Messages between gateway and shards are delivered one by one in any interleaving with writes, evictions, deletions,
syncs, streams that block, clients that vanish with a part of what was sent, and links that break. Each client keeps
the books a careful client would keep: a record may come once, in order, and whatever it never gets must have been
told as lost, deleted, or be its own.
"""

from __future__ import annotations

from typing import Literal

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

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
Step = Literal["nothing", "settle", "read"]
steps: st.SearchStrategy[Step] = st.sampled_from(["nothing", "settle", "read"])


class Books:
    """What one client knows, from its frames alone."""

    def __init__(self, hidden_node: str | None) -> None:
        self.hidden_node = hidden_node
        self.place: dict[str, int] = {}
        self.got: dict[str, list[int]] = {}
        self.lost: dict[str, set[int]] = {}
        self.ended = False
        self.last_id: str | None = None

    def take(self, frames: list[Frame]) -> None:
        for frame in frames:
            self.last_id = frame.id or self.last_id
            getattr(self, "_" + frame.event.replace("-", "_"))(frame)

    def _record(self, frame: Frame) -> None:
        topic, data = frame.data["topic"], frame.data
        seqs = [record["$seq"] for record in data["records"]]
        assert seqs and data["from_seq"] < seqs[0] and seqs[-1] <= data["to_seq"] <= data["head_seq"]
        place = self.place.get(topic, 0)
        if self.hidden_node is None:
            assert data["from_seq"] == place, (frame, place)
        assert data["from_seq"] >= place and seqs == sorted(set(seqs)), (frame, place)
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
        for kept in (self.place, self.got, self.lost):
            kept.pop(frame.data["topic"], None)  # type: ignore[attr-defined]

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
        self.client: Client | None = None
        self.connect()
        self.shards.settle()

    # --- topics ---------------------------------------------------------------------------------------

    # Every rule may be followed by what makes it felt: sequences that matter would be too long to be found otherwise.

    def _then(self, step: Step) -> None:
        if step != "nothing":
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

    @rule(blocked=st.booleans(), then=steps)
    def block(self, blocked: bool, then: Step) -> None:
        if self.client is not None:
            if blocked:
                self.client.block()
            else:
                self.client.unblock()
            self._then(then)

    @rule(received=st.integers(0, 3), half=st.booleans(), back=st.booleans(), then=steps)
    def vanish(self, received: int, half: bool, back: bool, then: Step) -> None:
        """The client gets only a part of what was sent, perhaps half a piece at the end."""
        client = self.client
        if client is None:
            return
        if self.books.last_id is None:
            # Without a Last-Event-ID the session's own cursor counts, and that is what was sent.
            self.read()
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

    def teardown(self) -> None:
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
            self._check()

    def _check(self) -> None:
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
