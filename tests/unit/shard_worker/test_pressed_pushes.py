"""Pushes under pressure: late, together, in the order of the bands, and never lost."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

import pytest

from shard_worker.pressure import COALESCE, PAUSE, PUSH_INTERVALS_MS, Pressure
from shard_worker.serve.link import Link
from shard_worker.serve.pushes import Pushes
from shared.limits import MiB
from shared.wire import TopicAdvanced, TopicAppeared, TopicGone, TopicNotice, TopicSynced
from tests.support.shard_driver import ShardDriver


class Subscriber:
    """A link that only listens."""

    def __init__(self) -> None:
        self.notices: list[TopicNotice] = []

    def notify(self, notice: TopicNotice) -> None:
        self.notices.append(notice)

    def take(self) -> list[TopicNotice]:
        notices, self.notices = self.notices, []
        return notices

    def advances(self) -> list[tuple[str, int, int]]:
        return [(n.topic, n.from_seq, n.to_seq) for n in self.take() if isinstance(n, TopicAdvanced)]


class Pressed:
    """A shard with subscribers, whose pressure a test sets by hand."""

    def __init__(self) -> None:
        self.driver = ShardDriver(wal_file_bytes=64 * MiB, cold_dir=None)
        self.pressure = Pressure()
        self.pushes = Pushes(self.driver.engine, self.pressure)
        self.driver.engine.on_changed.append(self.pushes.note)
        self.driver.engine.waited_ms = self.pushes.waited_ms
        self.link = Subscriber()

    def follow(self, *names: str, link: Subscriber | None = None, strong: bool = False) -> None:
        for name in names:
            self.pushes.subscribe(cast("Link", link or self.link), name, strong=strong)

    def at_level(self, level: int) -> None:
        self.pressure.level = level

    def write(self, name: str, *data: object) -> None:
        self.driver.append(name, [{"data": value} for value in data or (1,)])

    def turn(self, ms: int = 0) -> None:
        self.driver.clock.advance(ms)
        self.pushes.serve()

    @property
    def counters(self) -> Any:
        return self.pressure.counters


@pytest.fixture
def pressed() -> Pressed:
    return Pressed()


def with_topics(pressed: Pressed, priorities: dict[str, int]) -> None:
    for name, priority in priorities.items():
        pressed.driver.put(name, priority=priority, auto_priority=False)
    pressed.follow(*priorities)


def test_without_pressure_a_push_leaves_with_its_write_and_nothing_waits(pressed: Pressed) -> None:
    with_topics(pressed, {"t": -1000})
    for seq in range(1, 4):
        pressed.write("t")
        assert pressed.link.advances() == [("t", seq - 1, seq)], "before the turn is over"
    assert pressed.pushes.next_round_ms() is None


def test_writes_between_two_rounds_leave_as_one_push(pressed: Pressed) -> None:
    with_topics(pressed, {"t": 0})
    pressed.at_level(COALESCE)
    pressed.turn()
    pressed.write("t", "a")
    pressed.turn()
    assert pressed.link.advances() == [("t", 0, 1)]
    for value in "bcd":
        pressed.write("t", value)
        pressed.turn()
        assert pressed.link.take() == []
    pressed.turn(PUSH_INTERVALS_MS[COALESCE])
    (push,) = pressed.link.take()
    assert isinstance(push, TopicAdvanced) and (push.from_seq, push.to_seq) == (1, 4)
    assert push.records is not None
    assert [record["data"] for record in json.loads(b"[%b]" % push.records)] == ["b", "c", "d"]
    assert pressed.counters.pushes_coalesced == 2


def test_a_round_is_served_in_the_order_of_the_bands(
    pressed: Pressed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shard_worker.serve.pushes.PUSHES_PER_ROUND", 16)
    names = {f"low-{n}": 0 for n in range(20)} | {f"high-{n}": 900 for n in range(20)}
    with_topics(pressed, names)
    pressed.at_level(COALESCE)
    for name in names:
        pressed.write(name)
    pressed.turn()
    told = [name for name, _, _ in pressed.link.advances()]
    assert len(told) == 16
    # Only two bands are occupied: 8 turns of the one, one of the other.
    assert sum(name.startswith("high") for name in told) in (14, 15)
    for expected in (16, 8, 0):
        pressed.turn(PUSH_INTERVALS_MS[COALESCE])
        assert len(pressed.link.advances()) == expected, "the rest follows round by round"


def test_negative_topics_pause_and_catch_up_with_nothing_lost(pressed: Pressed) -> None:
    with_topics(pressed, {"quiet": -300, "normal": 0})
    pressed.at_level(PAUSE)
    for n in range(5):
        pressed.write("quiet", n)
        pressed.write("normal", n)
        pressed.turn(PUSH_INTERVALS_MS[PAUSE])
    told = pressed.link.advances()
    assert {name for name, _, _ in told} == {"normal"} and told[-1][2] == 5
    assert pressed.counters.pushes_paused == 1
    state = pressed.driver.state("quiet", touch=False).json
    assert state["effective_priority"] == -300 + 5 * PUSH_INTERVALS_MS[PAUSE] // 10, "waiting counts"
    pressed.at_level(0)
    pressed.turn()
    assert pressed.link.advances() == [("quiet", 0, 5)]
    assert pressed.driver.state("quiet", touch=False).json["effective_priority"] == -300


def test_a_pause_ends_by_itself_when_waiting_has_made_up_for_the_priority(pressed: Pressed) -> None:
    with_topics(pressed, {"deep": -1000})
    pressed.at_level(PAUSE)
    pressed.write("deep")
    pressed.turn(9_999)
    assert pressed.link.advances() == []
    pressed.turn(PUSH_INTERVALS_MS[PAUSE])
    assert pressed.link.advances() == [("deep", 0, 1)], "nobody waits longer than ten seconds"


def test_a_paused_backlog_that_is_too_large_for_a_push_is_announced(pressed: Pressed) -> None:
    with_topics(pressed, {"t": -100})
    pressed.at_level(PAUSE)
    for _ in range(10):
        pressed.write("t", "x" * 10_000)
    pressed.at_level(0)
    pressed.turn()
    (push,) = pressed.link.take()
    assert isinstance(push, TopicAdvanced) and (push.to_seq, push.records) == (10, None)


def test_that_a_topic_comes_or_goes_is_told_at_once_and_in_order(pressed: Pressed) -> None:
    with_topics(pressed, {"t": -100})
    pressed.at_level(PAUSE)
    pressed.write("t")
    epoch = pressed.driver.state("t").json["epoch"]
    pressed.driver.delete_topic("t")
    assert pressed.link.take() == [TopicGone("t", epoch, 1)]
    pressed.driver.clock.advance(1)
    pressed.driver.put("t", priority=-100)
    assert [type(notice) for notice in pressed.link.take()] == [TopicAppeared]
    pressed.write("t")
    pressed.at_level(0)
    pressed.turn()
    assert pressed.link.advances() == [("t", 0, 1)]
    assert pressed.pushes.next_round_ms() is None, "nothing of the old one waits"


def test_a_new_subscriber_is_not_told_the_present_as_news(pressed: Pressed) -> None:
    with_topics(pressed, {"t": -100})
    pressed.at_level(PAUSE)
    pressed.write("t")
    late, by_prefix = Subscriber(), Subscriber()
    entry = pressed.pushes.subscribe(cast("Link", late), "t", strong=False)
    assert entry is not None and entry[2] == 1
    assert pressed.link.advances() == [("t", 0, 1)], "whoever was there before is told first"
    pressed.write("t")
    entries = pressed.pushes.subscribe_prefix(cast("Link", by_prefix), "t")
    assert [entry[2] for entry in entries] == [2]
    pressed.at_level(0)
    pressed.turn()
    assert late.advances() == [("t", 1, 2)] and by_prefix.advances() == []


@pytest.mark.parametrize("by", ["unsubscribe", "forget"])
def test_a_subscriber_that_leaves_takes_its_waiting_pushes_along(pressed: Pressed, by: str) -> None:
    with_topics(pressed, {"t": 0})
    pressed.at_level(COALESCE)
    pressed.turn()
    pressed.write("t")
    if by == "forget":
        pressed.pushes.forget(cast("Link", pressed.link))
    else:
        pressed.pushes.unsubscribe(cast("Link", pressed.link), "t")
    assert pressed.pushes.next_round_ms() is None
    pressed.turn(1000)
    assert pressed.link.take() == []


def test_syncs_are_told_to_strong_readers_although_the_push_waits(pressed: Pressed) -> None:
    pressed.driver.put("t", priority=-100)
    pressed.follow("t", strong=True)
    pressed.at_level(PAUSE)
    pressed.write("t")
    pressed.driver.begin_sync()
    pressed.pushes.begin_sync()
    pressed.driver.finish_sync()
    pressed.pushes.finish_sync()
    assert pressed.link.take() == [TopicSynced("t", 1)]


def test_a_flood_keeps_a_low_topic_waiting_ten_seconds_at_the_most(
    pressed: Pressed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty urgent topics that move on in every round, and a worker that can tell of four per round."""
    monkeypatch.setattr("shard_worker.serve.pushes.PUSHES_PER_ROUND", 4)
    urgent = {f"urgent-{n}": 1000 for n in range(20)}
    with_topics(pressed, {**urgent, "low": -1000})
    pressed.at_level(PAUSE)
    pressed.write("low")
    waited = 0
    while not any(name == "low" for name, _, _ in pressed.link.advances()):
        for name in urgent:
            pressed.driver.start_append(name, [{"data": 1}])
        pressed.driver.commit()
        pressed.turn(250)
        waited += 250
        assert waited <= 11_000
    assert waited >= 9_000, "it was paused for as long as its priority says"


def test_every_subscriber_ends_where_the_log_ends_whatever_the_pressure_does(pressed: Pressed) -> None:
    levels: Sequence[int] = (0, 1, 2, 3, 4, 3, 0, 2, 4, 1)
    names = {"a": 900, "b": 0, "c": -1, "d": -1000}
    with_topics(pressed, names)
    cursors = dict.fromkeys(names, 0)
    for step in range(200):
        pressed.at_level(levels[step // 7 % len(levels)])
        for name in list(names)[: 1 + step % 4]:
            pressed.write(name)
        pressed.turn(step % 13)
        for name, from_seq, to_seq in pressed.link.advances():
            assert from_seq == cursors[name], "no gap, no repetition"
            cursors[name] = to_seq
    pressed.at_level(0)
    pressed.turn()
    for name, from_seq, to_seq in pressed.link.advances():
        assert from_seq == cursors[name]
        cursors[name] = to_seq
    heads = {name: pressed.driver.state(name).json["head_seq"] for name in names}
    assert cursors == heads
