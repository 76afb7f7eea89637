from __future__ import annotations

from shard_worker.core.reading import PLAIN_VIEW, ReadResult
from shard_worker.core.topic import Topic
from shard_worker.long_polls import LongPolls, Waiting
from shard_worker.request import Request
from shared.wire import Op
from tests.support.record_shelf import make_topic


class Link:
    def answer(self, *_: object) -> None:
        raise AssertionError("a poll is answered by the engine, not by the list it waits on")


def waiting(topic: Topic, link: Link, id: int, deadline_ms: int, cursor: int = 0) -> Waiting:
    request = Request(link, id, Op.READ, topic.name, b"", None)
    return Waiting(request, topic, PLAIN_VIEW, ReadResult(cursor, None, 1), deadline_ms)


def test_a_topic_that_moves_on_wakes_exactly_its_own_readers() -> None:
    polls, link = LongPolls(), Link()
    a, b = make_topic(), make_topic()
    first, second, other = waiting(a, link, 1, 100), waiting(a, link, 2, 50), waiting(b, link, 3, 100)
    for poll in (first, second, other):
        polls.add(poll)
    assert polls.take(a) == [first, second]
    assert polls.take(a) == []
    assert a.waiters is None
    assert len(polls) == 1
    assert polls.take_expired(1000) == [other]


def test_polls_expire_at_their_deadline_in_its_order() -> None:
    polls, link, topic = LongPolls(), Link(), make_topic()
    late, soon, same = (
        waiting(topic, link, 1, 300),
        waiting(topic, link, 2, 100),
        waiting(topic, link, 3, 100),
    )
    for poll in (late, soon, same):
        polls.add(poll)
    assert polls.next_deadline_ms() == 100
    assert polls.take_expired(99) == []
    assert polls.take_expired(100) == [soon, same]
    assert polls.next_deadline_ms() == 300
    assert list(topic.waiters or ()) == [late]
    assert polls.take_expired(300) == [late]
    assert polls.next_deadline_ms() is None
    assert (len(polls), topic.waiters) == (0, None)


def test_an_answered_poll_does_not_expire_as_well() -> None:
    polls, link, topic = LongPolls(), Link(), make_topic()
    polls.add(waiting(topic, link, 1, 100))
    polls.take(topic)
    assert polls.next_deadline_ms() is None
    assert polls.take_expired(10**9) == []


def test_a_poll_that_goes_on_waiting_keeps_its_deadline_and_moves_its_cursor() -> None:
    polls, link, topic = LongPolls(), Link(), make_topic()
    polls.add(waiting(topic, link, 1, 100))
    (taken,) = polls.take(topic)
    again = taken.moved_to(ReadResult(7, None, 1))
    polls.add(again)
    assert (again.cursor, again.deadline_ms, again.done) == (7, 100, False)
    assert polls.take_expired(100) == [again]


def test_cancelling_needs_the_right_link_and_id() -> None:
    polls, link, other, topic = LongPolls(), Link(), Link(), make_topic()
    poll = waiting(topic, link, 5, 100)
    polls.add(poll)
    assert polls.cancel(other, 5) is None
    assert polls.cancel(link, 6) is None
    assert polls.cancel(link, "5") is None
    assert polls.cancel(link, None) is None
    assert polls.cancel(link, 5) is poll.request
    assert polls.cancel(link, 5) is None
    assert (len(polls), topic.waiters) == (0, None)


def test_a_link_that_is_gone_takes_its_polls_along() -> None:
    polls, link, other, topic = LongPolls(), Link(), Link(), make_topic()
    kept = waiting(topic, other, 1, 100)
    for poll in (waiting(topic, link, 1, 100), kept, waiting(topic, link, 2, 100)):
        polls.add(poll)
    polls.forget(link)
    assert len(polls) == 1
    assert polls.take(topic) == [kept]


def test_all_polls_can_be_taken_at_once_for_the_shutdown() -> None:
    polls, link = LongPolls(), Link()
    a, b = make_topic(), make_topic()
    both = [waiting(a, link, 1, 100), waiting(b, link, 2, 50)]
    for poll in both:
        polls.add(poll)
    assert polls.take_all() == both
    assert (len(polls), a.waiters, b.waiters, polls.next_deadline_ms()) == (0, None, None, None)


def test_entries_of_answered_polls_do_not_pile_up() -> None:
    polls, link, topic = LongPolls(), Link(), make_topic()
    for id in range(10_000):
        polls.add(waiting(topic, link, id + 1, 10**6))
        polls.take(topic)
    assert len(polls) == 0
    assert len(polls._by_deadline) <= 1025
