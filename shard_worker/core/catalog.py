"""The topics of a shard by name and by id.

Two views by name: what readers see, and what the next writer must plan with. They differ only while a create
or delete waits for its sync.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from shard_worker.core.topic import Topic
from shared.api_types import TopicConfig


class Catalog:
    def __init__(self) -> None:
        self.visible: dict[str, Topic] = {}
        self.planned: dict[str, Topic] = {}
        self.by_id: dict[int, Topic] = {}
        self.unborn: dict[int, Topic] = {}  # planned, and not shown or given up yet
        self._names: list[str] = []  # of the visible ones, in order
        self._configs: dict[TopicConfig, TopicConfig] = {}
        self.last_id = 0
        self.last_epoch = 0

    def __len__(self) -> int:
        return len(self.visible)

    def shared_config(self, config: TopicConfig) -> TopicConfig:
        """One object for all topics that are configured alike: most are."""
        return self._configs.setdefault(config, config)

    def plan(self, name: str, config: TopicConfig, now_ms: int) -> Topic:
        """A topic that is about to be created; invisible until `show`."""
        self.last_id += 1
        # An epoch is never given out twice, also not after a delete: readers tell generations apart by it.
        self.last_epoch = max(now_ms, self.last_epoch + 1)
        topic = Topic(id=self.last_id, name=name, epoch=self.last_epoch, config=self.shared_config(config))
        self.planned[name] = self.unborn[topic.id] = topic
        return topic

    def give_up(self, topic: Topic) -> None:
        """It could not be created after all."""
        self.unborn.pop(topic.id, None)
        if self.planned.get(topic.name) is topic:
            del self.planned[topic.name]

    def show(self, topic: Topic) -> None:
        self.by_id[topic.id] = topic
        if topic.name not in self.visible:
            insort(self._names, topic.name)
        self.visible[topic.name] = topic
        if self.unborn.pop(topic.id, None) is None:
            # In replay. A topic that was planned here is in `planned` already, or was deleted again since.
            self.planned.setdefault(topic.name, topic)
        self.last_id = max(self.last_id, topic.id)
        self.last_epoch = max(self.last_epoch, topic.epoch)

    def load(self, topics: list[Topic]) -> None:
        """Take over the topics of a snapshot at once: inserting them one by one in order would be quadratic."""
        for topic in topics:
            self.by_id[topic.id] = topic
            self.visible[topic.name] = topic
            self.planned[topic.name] = topic
        self._names = sorted(self.visible)

    def hide(self, topic: Topic) -> None:
        self.by_id.pop(topic.id, None)
        if self.visible.get(topic.name) is topic:
            del self.visible[topic.name]
            del self._names[bisect_left(self._names, topic.name)]
        if self.planned.get(topic.name) is topic:
            del self.planned[topic.name]

    def names(self, prefix: str, after: str) -> Iterator[str]:
        """Visible names that start with `prefix` and stand behind `after`, in order."""
        index = bisect_left(self._names, max(prefix, after))
        while index < len(self._names):
            name = self._names[index]
            if not name.startswith(prefix):
                return
            if name != after:
                yield name
            index += 1
