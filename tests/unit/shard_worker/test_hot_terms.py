from __future__ import annotations

from shard_worker.core.hot_terms import HotTerms
from shard_worker.core.topic import Topic
from tests.support.record_shelf import RecordShelf, make_topic


def terms_of(topic: Topic, shelf: RecordShelf) -> HotTerms:
    terms = HotTerms()
    for index in range(topic.hot.start, len(topic.hot.first)):
        terms.add(topic.hot_piece(index, shelf))
    return terms


def labelled() -> tuple[Topic, RecordShelf]:
    topic, shelf = make_topic(), RecordShelf()
    shelf.append(topic, [{"data": 1, "tag": "user:1", "key": "a"}, {"data": 2}, {"data": 3, "tag": "user:2"}])
    shelf.append(topic, [{"data": 4}])
    shelf.append(topic, [{"data": 5, "tag": "user:1", "node": "n"}, {"data": 6, "tag": ""}])
    return topic, shelf


def test_equal_values_are_found_in_order() -> None:
    terms = terms_of(*labelled())
    assert list(terms.find("tag", b"user:1", False)) == [1, 5]
    assert list(terms.find("tag", b"user", False)) == []
    assert list(terms.find("key", b"a", False)) == [1]
    assert list(terms.find("node", b"n", False)) == [5]
    assert list(terms.find("node", b"a", False)) == []


def test_an_empty_value_is_a_value_and_an_absent_one_is_not() -> None:
    terms = terms_of(*labelled())
    assert list(terms.find("tag", b"", False)) == [6]
    assert sorted(terms.find("tag", b"", True)) == [1, 3, 5, 6]


def test_prefixes_find_every_value_that_starts_so() -> None:
    terms = terms_of(*labelled())
    assert sorted(terms.find("tag", b"user:", True)) == [1, 3, 5]
    assert list(terms.find("tag", b"user:3", True)) == []


def test_records_added_later_are_found() -> None:
    topic, shelf = labelled()
    terms = terms_of(topic, shelf)
    shelf.append(topic, [{"data": 7, "tag": "user:1"}])
    terms.add(topic.hot_piece(len(topic.hot.first) - 1, shelf))
    assert list(terms.find("tag", b"user:1", False)) == [1, 5, 7]


def test_rebuilding_is_worth_it_only_when_most_entries_have_left() -> None:
    topic, shelf = make_topic(), RecordShelf()
    shelf.append(topic, [{"data": 1, "tag": "x"}] * 5000)
    terms = terms_of(topic, shelf)
    assert not terms.stale(1000)
    assert not terms.stale(452)
    assert terms.stale(451)
    assert terms.stale(0)


def test_a_small_topic_never_rebuilds() -> None:
    assert not terms_of(*labelled()).stale(0)


def test_a_delete_through_the_terms_finds_what_was_appended_since() -> None:
    topic, shelf = labelled()
    from shared.match import parse_match

    assert topic.apply_delete(6, None, parse_match("user:1"), shelf) == 2
    shelf.append(topic, [{"data": 7, "tag": "user:1"}])
    assert topic.apply_delete(7, None, parse_match(["tag", "Glob", "user:*"]), shelf) == 2
    assert [seq for seq in range(1, 8) if topic.live_between(seq, seq)] == [2, 4, 6]
