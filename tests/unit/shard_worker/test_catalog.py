from __future__ import annotations

from shard_worker.core.catalog import Catalog
from shard_worker.core.topic import Topic
from shared.api_types import TopicConfig

CONFIG = TopicConfig()


def shown(catalog: Catalog, *names: str) -> list[Topic]:
    topics = [catalog.plan(name, CONFIG, 1000) for name in names]
    for topic in topics:
        catalog.show(topic)
    return topics


def test_a_planned_topic_is_known_to_writers_only() -> None:
    catalog = Catalog()
    topic = catalog.plan("t", CONFIG, 1000)
    assert catalog.planned == {"t": topic}
    assert catalog.visible == {} and catalog.by_id == {}
    catalog.show(topic)
    assert catalog.visible == {"t": topic} and catalog.by_id == {topic.id: topic}
    assert len(catalog) == 1


def test_ids_and_epochs_are_never_given_out_twice() -> None:
    catalog = Catalog()
    (first,) = shown(catalog, "t")
    catalog.hide(first)
    (second,) = shown(catalog, "t")
    assert second.id > first.id
    assert second.epoch > first.epoch


def test_an_epoch_follows_the_clock_but_never_back() -> None:
    catalog = Catalog()
    assert catalog.plan("a", CONFIG, 5000).epoch == 5000
    assert catalog.plan("b", CONFIG, 1000).epoch == 5001
    assert catalog.plan("c", CONFIG, 9000).epoch == 9000


def test_showing_a_replayed_topic_keeps_later_ids_and_epochs_above_it() -> None:
    catalog = Catalog()
    catalog.show(Topic(id=40, name="old", epoch=70_000, config=CONFIG))
    made = catalog.plan("new", CONFIG, 1000)
    assert made.id == 41
    assert made.epoch == 70_001
    assert catalog.planned["old"].id == 40


def test_hiding_a_topic_leaves_its_successor_alone() -> None:
    catalog = Catalog()
    (first,) = shown(catalog, "t")
    del catalog.planned["t"]
    second = catalog.plan("t", CONFIG, 2000)
    catalog.hide(first)
    assert catalog.planned["t"] is second
    assert "t" not in catalog.visible
    catalog.show(second)
    assert catalog.visible["t"] is second
    assert list(catalog.names("", "")) == ["t"]


def test_hiding_twice_is_harmless() -> None:
    catalog = Catalog()
    (topic,) = shown(catalog, "t")
    catalog.hide(topic)
    catalog.hide(topic)
    assert list(catalog.names("", "")) == []


def test_names_come_in_order_by_prefix_and_behind_a_cursor() -> None:
    catalog = Catalog()
    shown(catalog, "chat:2", "b", "chat:1", "chat", "chat:10", "z")
    assert list(catalog.names("", "")) == ["b", "chat", "chat:1", "chat:10", "chat:2", "z"]
    assert list(catalog.names("chat:", "")) == ["chat:1", "chat:10", "chat:2"]
    assert list(catalog.names("chat:", "chat:1")) == ["chat:10", "chat:2"]
    assert list(catalog.names("", "chat:1")) == ["chat:10", "chat:2", "z"]
    assert list(catalog.names("chat:", "z")) == []
    assert list(catalog.names("nothing", "")) == []
    assert list(catalog.names("chat:", "a")) == ["chat:1", "chat:10", "chat:2"], "a cursor from elsewhere"


def test_a_cursor_that_was_deleted_meanwhile_still_works() -> None:
    catalog = Catalog()
    topics = shown(catalog, "a", "b", "c")
    catalog.hide(topics[1])
    assert list(catalog.names("", "b")) == ["c"]


def test_loading_a_snapshot_equals_showing_one_by_one() -> None:
    one, other = Catalog(), Catalog()
    topics = shown(one, "b", "a", "c")
    other.load(topics)
    assert list(other.names("", "")) == list(one.names("", ""))
    assert other.visible == one.visible and other.planned == one.planned and other.by_id == one.by_id


def test_topics_configured_alike_share_one_configuration() -> None:
    catalog = Catalog()
    a = catalog.plan("a", TopicConfig(ttl_ms=5), 1)
    b = catalog.plan("b", TopicConfig(ttl_ms=5), 1)
    c = catalog.plan("c", TopicConfig(ttl_ms=6), 1)
    assert a.config is b.config
    assert a.config is not c.config
