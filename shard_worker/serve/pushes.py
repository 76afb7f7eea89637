"""What subscribers are told: once per turn and topic, however many readers stand behind a link.

A topic's new records are read once, in the plain view, and the same bytes go to every link that subscribed it. What
does not fit a push (large, or with a loss to tell about) is only announced, and the client reads it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from shard_worker.core.reading import PLAIN_VIEW
from shard_worker.core.topic import Topic
from shard_worker.engine import Engine
from shard_worker.serve.link import Link
from shared.limits import PUSH_MAX_BYTES
from shared.wire import Entry, TopicAdvanced, TopicAppeared, TopicGone, TopicNotice, TopicSynced

_PUSH_VIEW = PLAIN_VIEW._replace(limit=10_000, max_bytes=PUSH_MAX_BYTES)


@dataclass(slots=True)
class _Followed:
    """A topic that somebody subscribed, by name or by prefix."""

    links: set[Link] = field(default_factory=set)
    strong: set[Link] = field(default_factory=set)
    topic: Topic | None = None  # None: it does not exist, yet or any more
    pushed: int = 0  # the last seq that subscribers were told of
    synced: int = 0


class Pushes:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._followed: dict[str, _Followed] = {}
        self._prefixes: dict[str, set[Link]] = {}
        self._syncing: list[tuple[_Followed, int]] = []

    # --- subscribing ------------------------------------------------------------------------------------

    def subscribe(self, link: Link, name: str, *, strong: bool) -> Entry | None:
        followed = self._follow(name)
        followed.links.add(link)
        if strong:
            followed.strong.add(link)
        return _entry(followed.topic) if followed.topic is not None else None

    def unsubscribe(self, link: Link, name: str) -> None:
        followed = self._followed.get(name)
        if followed is None:
            return
        followed.strong.discard(link)
        if not any(name.startswith(prefix) and link in links for prefix, links in self._prefixes.items()):
            followed.links.discard(link)
        if not followed.links:
            del self._followed[name]

    def subscribe_prefix(self, link: Link, prefix: str) -> list[Entry]:
        self._prefixes.setdefault(prefix, set()).add(link)
        catalog = self._engine.state.catalog
        entries = []
        for name in catalog.names(prefix, ""):
            followed = self._follow(name)
            followed.links.add(link)
            if followed.topic is not None:
                entries.append(_entry(followed.topic))
        return entries

    def unsubscribe_prefix(self, link: Link, prefix: str) -> None:
        links = self._prefixes.get(prefix)
        if links is not None:
            links.discard(link)
            if not links:
                del self._prefixes[prefix]

    def forget(self, link: Link) -> None:
        for prefix in list(self._prefixes):
            self.unsubscribe_prefix(link, prefix)
        for name, followed in list(self._followed.items()):
            followed.links.discard(link)
            followed.strong.discard(link)
            if not followed.links:
                del self._followed[name]

    def _follow(self, name: str) -> _Followed:
        followed = self._followed.get(name)
        if followed is None:
            followed = self._followed[name] = _Followed()
            topic = self._engine.state.catalog.visible.get(name)
            if topic is not None:
                self._begin(followed, topic)
        return followed

    def _begin(self, followed: _Followed, topic: Topic) -> None:
        followed.topic = topic
        followed.pushed = topic.head
        followed.synced = 0

    # --- telling ----------------------------------------------------------------------------------------

    def note(self, topic: Topic) -> None:
        """A topic has changed in this turn: tell its subscribers what there is to tell."""
        followed = self._followed.get(topic.name)
        if followed is None:
            if not self._prefixes:
                return
            links = {
                link
                for prefix, links in self._prefixes.items()
                if topic.name.startswith(prefix)
                for link in links
            }
            if not links:
                return
            followed = self._followed[topic.name] = _Followed(links)
        self._tell(followed, topic)

    def _tell(self, followed: _Followed, topic: Topic) -> None:
        current = self._engine.state.catalog.visible.get(topic.name)
        if followed.topic is not None and followed.topic is not current:
            self._send(followed, TopicGone(topic.name, followed.topic.epoch, followed.topic.head))
            followed.topic = None
        if current is None:
            return
        if followed.topic is None:
            self._begin(followed, current)
            # Its first records may be there already: they follow as an advance, like all others.
            followed.pushed = 0
            self._send(followed, TopicAppeared(current.name, current.epoch, 0, 1))
        if current.head > followed.pushed:
            self._send(followed, self._advance(followed, current))
            followed.pushed = current.head

    def _advance(self, followed: _Followed, topic: Topic) -> TopicAdvanced:
        engine = self._engine
        result = engine.read(topic, followed.pushed, _PUSH_VIEW, engine.now_ms(), extents=False)
        records: bytes | None = None
        if result.tombstone is None and result.next_from == topic.head:
            records = result.records_json()
        return TopicAdvanced(
            topic.name, topic.epoch, followed.pushed, topic.head, topic.head, result.delivered, records
        )

    def _send(self, followed: _Followed, notice: TopicNotice) -> None:
        for link in followed.links:
            link.notify(notice)

    # --- syncs ------------------------------------------------------------------------------------------

    def begin_sync(self) -> None:
        """Remember how far the topics with strong readers have come: the sync that starts now covers that."""
        self._syncing = [
            (followed, followed.topic.head)
            for followed in self._followed.values()
            if followed.strong and followed.topic is not None and followed.topic.head > followed.synced
        ]

    def finish_sync(self) -> None:
        for followed, head in self._syncing:
            topic = followed.topic
            if topic is None:
                continue
            # Records of fsync topics become visible with the sync itself.
            synced = topic.head if topic.config.durability == "fsync" else head
            followed.synced = max(followed.synced, synced)
            for link in followed.strong:
                link.notify(TopicSynced(topic.name, followed.synced))
        self._syncing = []


def _entry(topic: Topic) -> Entry:
    return topic.name, topic.epoch, topic.head, topic.earliest
