"""What subscribers are told: once per turn and topic, however many readers stand behind a link.

A topic's new records are read once, in the plain view, and the same bytes go to every link that subscribed it. What
does not fit a push (large, or with a loss to tell about) is only announced, and the client reads it.

Under pressure topics that have moved on wait in bands (core/bands.py) instead, and `serve` tells of them round by
round. Whatever was written meanwhile leaves with the same push. That a topic came or went is always told at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from shard_worker.core.bands import NEGATIVE, Bands, band_of
from shard_worker.core.priority import effective_priority
from shard_worker.core.reading import PLAIN_VIEW
from shard_worker.core.topic import Topic
from shard_worker.engine import Engine
from shard_worker.pressure import PAUSE, PUSH_INTERVALS_MS, Pressure
from shard_worker.serve.link import Link
from shared.limits import PUSH_MAX_BYTES, PUSHES_PER_ROUND
from shared.wire import Entry, TopicAdvanced, TopicAppeared, TopicGone, TopicNotice, TopicSynced

_PUSH_VIEW = PLAIN_VIEW._replace(limit=10_000, max_bytes=PUSH_MAX_BYTES)
# What is visible of these needs no sync any more, or never gets one.
_NEVER_WAITS = frozenset({"fsync", "ephemeral"})


@dataclass(slots=True)
class _Followed:
    """A topic that somebody subscribed, by name or by prefix."""

    links: set[Link] = field(default_factory=set)
    named: set[Link] = field(default_factory=set)  # those of them that subscribed it by name
    strong: set[Link] = field(default_factory=set)
    topic: Topic | None = None  # None: it does not exist, yet or any more
    pushed: int = 0  # the last seq that subscribers were told of
    synced: int = 0


class Pushes:
    def __init__(self, engine: Engine, pressure: Pressure | None = None) -> None:
        self._engine = engine
        self._pressure = pressure or Pressure()
        self._waiting: Bands[str] = Bands()  # names of topics that have moved on, and nobody was told
        self._next_round_ms = 0
        self._followed: dict[str, _Followed] = {}
        self._prefixes: dict[str, set[Link]] = {}
        self._syncing: list[tuple[_Followed, Topic | None, int | None]] = []

    # --- subscribing ------------------------------------------------------------------------------------

    def subscribe(self, link: Link, name: str, *, strong: bool) -> Entry | None:
        self._catch_up(name)
        followed = self._follow(name)
        followed.links.add(link)
        followed.named.add(link)
        if strong:
            followed.strong.add(link)
        return _entry(followed.topic) if followed.topic is not None else None

    def tell_synced(self, link: Link, name: str) -> None:
        """A strong subscription begins: perhaps no sync is due that would tell how far the topic is."""
        followed = self._followed.get(name)
        if followed is None:
            return
        topic, engine = followed.topic, self._engine
        if engine.commits.sync_running and not engine.wal.unsynced:
            self._syncing.append(_covered(followed))
        if topic is None:
            return
        nothing_open = not engine.wal.unsynced and not engine.commits.sync_running
        if nothing_open or topic.config.durability in _NEVER_WAITS:
            followed.synced = topic.head
        if followed.synced or not topic.head:
            link.notify(TopicSynced(name, followed.synced))

    def unsubscribe(self, link: Link, name: str) -> None:
        followed = self._followed.get(name)
        if followed is not None:
            followed.named.discard(link)
            followed.strong.discard(link)
            self._let_go(link, name, followed)

    def subscribe_prefix(self, link: Link, prefix: str) -> list[Entry]:
        self._prefixes.setdefault(prefix, set()).add(link)
        catalog = self._engine.state.catalog
        entries = []
        for name in catalog.names(prefix, ""):
            self._catch_up(name)
            followed = self._follow(name)
            followed.links.add(link)
            if followed.topic is not None:
                entries.append(_entry(followed.topic))
        return entries

    def unsubscribe_prefix(self, link: Link, prefix: str) -> None:
        links = self._prefixes.get(prefix)
        if links is None or link not in links:
            return
        links.discard(link)
        if not links:
            del self._prefixes[prefix]
        for name, followed in list(self._followed.items()):
            if link in followed.links and name.startswith(prefix):
                self._let_go(link, name, followed)

    def _let_go(self, link: Link, name: str, followed: _Followed) -> None:
        """Forget the link's interest in a topic, unless it has another one."""
        if link in followed.named:
            return
        if any(name.startswith(prefix) and link in links for prefix, links in self._prefixes.items()):
            return
        followed.links.discard(link)
        if not followed.links:
            self._drop(name)

    def forget(self, link: Link) -> None:
        for prefix, links in list(self._prefixes.items()):
            links.discard(link)
            if not links:
                del self._prefixes[prefix]
        for name, followed in list(self._followed.items()):
            for kind in (followed.links, followed.named, followed.strong):
                kind.discard(link)
            if not followed.links:
                self._drop(name)

    def _drop(self, name: str) -> None:
        del self._followed[name]
        if self._waiting:
            self._waiting.discard(name)

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
        if self._pressure.level and self._put_off(followed, topic):
            return
        self._tell(followed, topic.name)

    def _tell(self, followed: _Followed, name: str) -> None:
        if self._waiting:
            self._waiting.discard(name)
        self._tell_changes(followed, name)
        if followed.topic is None and not followed.named:
            # By prefix only: it is found again when it appears, and names that come and go leave nothing behind.
            self._drop(name)

    def _tell_changes(self, followed: _Followed, name: str) -> None:
        current = self._engine.state.catalog.visible.get(name)
        if followed.topic is not None and followed.topic is not current:
            self._send(followed, TopicGone(name, followed.topic.epoch, followed.topic.head))
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
            if followed.strong and current.config.durability in _NEVER_WAITS:
                self._tell_synced(followed, current, current.head)

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

    # --- under pressure ---------------------------------------------------------------------------------

    def _put_off(self, followed: _Followed, topic: Topic) -> bool:
        """Let the topic wait for its round; False if there is more to tell than that it has moved on."""
        name = topic.name
        if followed.topic is None or self._engine.state.catalog.visible.get(name) is not followed.topic:
            return False
        if topic.head <= followed.pushed:
            return True
        now_ms, counters = self._engine.now_ms(), self._pressure.counters
        priority = effective_priority(topic.config, topic.last_read_ts, now_ms)
        if not self._waiting.put(name, priority, now_ms):
            counters.pushes_coalesced += 1
        elif self._pressure.level >= PAUSE and band_of(priority) == NEGATIVE:
            counters.pushes_paused += 1
        return True

    def serve(self) -> None:
        """At the end of a turn: tell of topics that wait, as many as one round takes, if it is time for a round."""
        if not self._waiting:
            return
        level, now_ms = self._pressure.level, self._engine.now_ms()
        if level and now_ms < self._next_round_ms:
            return
        self._next_round_ms = now_ms + PUSH_INTERVALS_MS[level]
        for _ in range(PUSHES_PER_ROUND):
            name = self._waiting.pick(now_ms, negatives=level < PAUSE)
            if name is None:
                return
            self._tell(self._followed[name], name)

    def _catch_up(self, name: str) -> None:
        """Before somebody new comes: what it is told as the present must not be told to it again as news."""
        if name in self._waiting:
            self._tell(self._followed[name], name)

    def next_round_ms(self) -> int | None:
        return self._next_round_ms if self._waiting else None

    def waited_ms(self, topic: Topic, now_ms: int) -> int:
        """How long subscribers have been waiting to hear that the topic has moved on."""
        return self._waiting.waited_ms(topic.name, now_ms) if self._waiting else 0

    # --- syncs ------------------------------------------------------------------------------------------

    def begin_sync(self) -> None:
        """Remember how far the topics with strong readers have come: the sync that starts now covers that."""
        self._syncing = [_covered(followed) for followed in self._followed.values() if followed.strong]

    def finish_sync(self) -> None:
        """To be called when what waited for the sync has become visible."""
        for followed, topic, head in self._syncing:
            now = followed.topic
            if now is None or (topic is not None and topic is not now):
                continue
            if head is None:
                head = now.head
            if head > followed.synced:
                self._tell_synced(followed, now, head)
        self._syncing = []

    def _tell_synced(self, followed: _Followed, topic: Topic, head: int) -> None:
        followed.synced = head
        for link in followed.strong:
            link.notify(TopicSynced(topic.name, head))


def _covered(followed: _Followed) -> tuple[_Followed, Topic | None, int | None]:
    """Up to where a sync that begins now covers the topic; None: whatever is visible right after it.

    While a topic, or its creation, waits for a sync, everything written to it later waits for the next one.
    """
    topic = followed.topic
    return followed, topic, None if topic is None or topic.gated else topic.head


def _entry(topic: Topic) -> Entry:
    return topic.name, topic.epoch, topic.head, topic.earliest
