"""All feeds of the gateway, and what is subscribed at the shards for them.

A topic is subscribed by name while a reader holds it, and by prefix while somebody watches the prefix; both outlive
their last user by a moment, because sessions are opened right after they are made, and reconnect. When a link comes
back everything is subscribed again, and readers go on from their cursors.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Protocol

from gateway.io.shard_link import LeasedFiles, OnReply, Reply
from gateway.watch_feed import Feed
from shared.errors import Internal, TopicsError
from shared.limits import WATCH_LINGER_MS, WATCH_RETRY_MS, WATCH_SUBSCRIBES_IN_FLIGHT
from shared.wire import (
    Answer,
    Entry,
    Op,
    Options,
    TopicAdvanced,
    TopicAppeared,
    TopicGone,
    TopicNotice,
    TopicSynced,
    decode_entries,
    decode_entry,
)

log = logging.getLogger(__name__)

_STRONG: Options = {"strong": True}


class LinkState(Protocol):
    @property
    def up(self) -> bool: ...


class SubscribedShards(Protocol):
    """The shards, as far as subscriptions need them; see gateway/io/shard_pool.py."""

    @property
    def links(self) -> Sequence[LinkState]: ...
    def shard_of(self, topic: str) -> int: ...
    def request(
        self, op: int, topic: str, body: bytes, options: Options | None, on_reply: OnReply
    ) -> int: ...
    def request_shard(
        self, shard: int, op: int, topic: str, options: Options | None, on_reply: OnReply
    ) -> int: ...


class PrefixWatcher(Protocol):
    def prefix_known(self, prefix: str, found: Iterable[Feed]) -> None:
        """These are the topics of one shard; also told for each one that appears later."""


class _Prefix:
    """A prefix that somebody watches."""

    __slots__ = ("known", "prefix", "watchers")

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.watchers: dict[PrefixWatcher, None] = {}
        self.known: set[int] = set()  # shards that have told their topics


class Survey:
    """The topics that somebody wants to watch, as the shards see them now."""

    def __init__(self, done: Callable[[Survey], None]) -> None:
        self.named: dict[str, Entry | None] = {}
        self.by_prefix: dict[str, list[Entry]] = {}
        self.error: TopicsError | None = None
        self._done = done
        self._missing = 1  # one for the time until everything is asked

    def wait(self) -> None:
        self._missing += 1

    def came(self) -> None:
        self._missing -= 1
        if self._missing == 0:
            self._done(self)


class Subscriptions:
    def __init__(
        self,
        shards: SubscribedShards,
        later: Callable[[int, Callable[[], None]], None],
        *,
        linger_ms: int = WATCH_LINGER_MS,
    ) -> None:
        """`later(ms, callback)` sets a timer."""
        self._shards = shards
        self._later = later
        self._linger_ms = linger_ms
        self._feeds: dict[str, Feed] = {}
        self._prefixes: dict[str, _Prefix] = {}
        self._resubscribing: dict[int, deque[Feed]] = {}  # per shard, what its link has no room for yet
        self._in_flight: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._feeds)

    def feeds(self) -> Iterable[Feed]:
        return self._feeds.values()

    # --- by name ----------------------------------------------------------------------------------------

    def feed(self, name: str) -> Feed:
        feed = self._feeds.get(name)
        if feed is None:
            feed = Feed(name, self._shards.shard_of(name), self._shards.request, self._lost)
            self._feeds[name] = feed
        return feed

    def hold(self, feed: Feed, *, strong: bool) -> None:
        """Keep it subscribed until as many releases."""
        feed.holds += 1
        if not feed.subscribed or (strong and not feed.strong):
            self._subscribe(feed, strong=strong)

    def release(self, feed: Feed) -> None:
        feed.holds -= 1
        self.unused(feed)

    def unused(self, feed: Feed) -> None:
        """Its last reader may have left."""
        if not feed.holds and not feed.readers:
            self._later(self._linger_ms, partial(self._drop_unused, feed))

    def _drop_unused(self, feed: Feed) -> None:
        if feed.holds or feed.readers or self._feeds.get(feed.name) is not feed:
            return
        if feed.subscribed:
            feed.subscribed = feed.strong = False
            self._shards.request(Op.UNSUBSCRIBE, feed.name, b"", None, _ignore)
        if not any(feed.name.startswith(prefix) for prefix in self._prefixes):
            del self._feeds[feed.name]

    def _subscribe(self, feed: Feed, *, strong: bool, then: Callable[[Reply], None] | None = None) -> None:
        if not self._shards.links[feed.shard].up:
            if then is None:
                return  # it is subscribed when the link is back
        else:
            feed.subscribed = True
            feed.strong = feed.strong or strong
        options = _STRONG if strong else None
        self._shards.request(Op.SUBSCRIBE, feed.name, b"", options, partial(self._subscribed, feed, then))

    def _subscribed(
        self, feed: Feed, then: Callable[[Reply], None] | None, reply: Reply, leased: LeasedFiles | None
    ) -> None:
        if isinstance(reply, Answer) and reply.status == 200:
            self._take_entry(feed, decode_entry(reply.body))
        else:
            feed.subscribed = feed.strong = False
            self._lost(feed)
        if then is not None:
            then(reply)

    def _take_entry(self, feed: Feed, entry: Entry | None) -> None:
        if entry is None:
            feed.absent()
        else:
            feed.exists_as(entry[1], entry[2])

    def _lost(self, feed: Feed) -> None:
        """The shard does not answer for it: when its link comes back, or (if it never left) in a moment."""
        feed.forget()
        self._later(WATCH_RETRY_MS, partial(self._ask_again, feed))

    def _ask_again(self, feed: Feed) -> None:
        if feed.known or self._feeds.get(feed.name) is not feed:
            return
        if self._shards.links[feed.shard].up and (feed.holds or feed.readers):
            self._subscribe(feed, strong=_any_strong(feed))

    # --- by prefix --------------------------------------------------------------------------------------

    def watch_prefix(self, prefix: str, watcher: PrefixWatcher) -> None:
        watched = self._prefixes.get(prefix)
        if watched is None:
            watched = self._prefixes[prefix] = _Prefix(prefix)
        watched.watchers[watcher] = None
        for shard, link in enumerate(self._shards.links):
            if shard in watched.known:
                self._settle_unknown(prefix, shard)
                watcher.prefix_known(prefix, self._existing(prefix, shard))
            elif link.up:
                self._subscribe_prefix(watched, shard)

    def leave_prefix(self, prefix: str, watcher: PrefixWatcher) -> None:
        watched = self._prefixes.get(prefix)
        if watched is not None:
            watched.watchers.pop(watcher, None)
            self._prefix_unused(watched)

    def _prefix_unused(self, watched: _Prefix) -> None:
        if not watched.watchers:
            self._later(self._linger_ms, partial(self._drop_prefix, watched))

    def _drop_prefix(self, watched: _Prefix) -> None:
        prefix = watched.prefix
        if watched.watchers or self._prefixes.get(prefix) is not watched:
            return
        del self._prefixes[prefix]
        for shard in watched.known:
            self._shards.request_shard(shard, Op.UNSUBSCRIBE_PREFIX, prefix, None, _ignore)
        for feed in [feed for feed in self._feeds.values() if feed.name.startswith(prefix)]:
            self._drop_unused(feed)

    def _existing(self, prefix: str, shard: int) -> list[Feed]:
        return [
            feed
            for feed in self._feeds.values()
            if feed.shard == shard and feed.exists and feed.name.startswith(prefix)
        ]

    def _subscribe_prefix(
        self, watched: _Prefix, shard: int, then: Callable[[list[Entry] | TopicsError], None] | None = None
    ) -> None:
        self._shards.request_shard(
            shard,
            Op.SUBSCRIBE_PREFIX,
            watched.prefix,
            None,
            partial(self._prefix_subscribed, watched, shard, then),
        )

    def _prefix_subscribed(
        self,
        watched: _Prefix,
        shard: int,
        then: Callable[[list[Entry] | TopicsError], None] | None,
        reply: Reply,
        leased: LeasedFiles | None,
    ) -> None:
        if not isinstance(reply, Answer) or reply.status != 200:
            if then is not None:
                then(_as_error(reply))
            else:
                self._later(WATCH_RETRY_MS, partial(self._ask_prefix_again, watched, shard))
            return
        entries = decode_entries(reply.body)
        for entry in entries:
            self._take_entry(self.feed(entry[0]), entry)
        self._settle_unknown(watched.prefix, shard)
        asked_before = shard in watched.known
        watched.known.add(shard)
        if watched.prefix not in self._prefixes:
            # Everybody has left while the shard was being asked.
            self._shards.request_shard(shard, Op.UNSUBSCRIBE_PREFIX, watched.prefix, None, _ignore)
        if not asked_before:
            for watcher in list(watched.watchers):
                watcher.prefix_known(watched.prefix, self._existing(watched.prefix, shard))
        if then is not None:
            then(entries)

    def _settle_unknown(self, prefix: str, shard: int) -> None:
        """What a reader remembers and a shard that has named all its topics has not named, was deleted meanwhile."""
        for feed in list(self._feeds.values()):
            if not feed.known and feed.shard == shard and feed.name.startswith(prefix):
                feed.absent()

    def _ask_prefix_again(self, watched: _Prefix, shard: int) -> None:
        current = self._prefixes.get(watched.prefix) is watched
        if current and shard not in watched.known and self._shards.links[shard].up:
            self._subscribe_prefix(watched, shard)

    # --- asking what there is ---------------------------------------------------------------------------

    def survey(
        self, names: Iterable[str], prefixes: Iterable[str], *, strong: bool, done: Callable[[Survey], None]
    ) -> None:
        """Subscribe all of it, and tell where each topic stands. What nobody holds afterwards is let go."""
        survey = Survey(done)
        for name in names:
            survey.wait()
            feed = self.feed(name)
            feed.holds += 1
            self._subscribe(feed, strong=strong, then=partial(self._surveyed, survey, feed))
        for prefix in prefixes:
            survey.by_prefix[prefix] = []
            watched = self._prefixes.setdefault(prefix, _Prefix(prefix))
            for shard in range(len(self._shards.links)):
                survey.wait()
                self._subscribe_prefix(watched, shard, partial(self._prefix_surveyed, survey, watched))
        survey.came()

    def _surveyed(self, survey: Survey, feed: Feed, reply: Reply) -> None:
        if isinstance(reply, Answer) and reply.status == 200:
            survey.named[feed.name] = decode_entry(reply.body)
        else:
            survey.error = _as_error(reply)
        self.release(feed)
        survey.came()

    def _prefix_surveyed(self, survey: Survey, watched: _Prefix, found: list[Entry] | TopicsError) -> None:
        if isinstance(found, TopicsError):
            survey.error = found
        else:
            survey.by_prefix[watched.prefix] += found
        self._prefix_unused(watched)
        survey.came()

    # --- what the links say -----------------------------------------------------------------------------

    def link_up(self, shard: int) -> None:
        for watched in self._prefixes.values():
            self._subscribe_prefix(watched, shard)
        self._resubscribing[shard] = deque(
            feed for feed in self._feeds.values() if feed.shard == shard and feed.holds
        )
        self._in_flight[shard] = 0
        self._resubscribe(shard)

    def _resubscribe(self, shard: int) -> None:
        waiting = self._resubscribing[shard]
        while waiting and self._in_flight[shard] < WATCH_SUBSCRIBES_IN_FLIGHT:
            feed = waiting.popleft()
            if feed.subscribed or not feed.holds:
                continue
            self._in_flight[shard] += 1
            self._subscribe(feed, strong=_any_strong(feed), then=partial(self._resubscribed, shard))
            if not self._shards.links[shard].up:
                return

    def _resubscribed(self, shard: int, reply: Reply) -> None:
        self._in_flight[shard] -= 1
        if isinstance(reply, Answer):
            self._resubscribe(shard)

    def link_down(self, shard: int) -> list[Feed]:
        """Returns the feeds that nobody speaks for any more."""
        for watched in self._prefixes.values():
            watched.known.discard(shard)
        feeds = [feed for feed in self._feeds.values() if feed.shard == shard]
        for feed in feeds:
            feed.forget()
        return feeds

    def notice(self, notice: TopicNotice) -> None:
        feed = self._feeds.get(notice.topic)
        match notice:
            case TopicAdvanced():
                if feed is not None:
                    feed.advanced(notice)
            case TopicSynced(_, head):
                if feed is not None:
                    feed.synced_to(head)
            case TopicGone(_, epoch, head):
                if feed is not None:
                    feed.gone(epoch, head)
                    self._drop_deleted(feed)
            case TopicAppeared(name, epoch, head, _):
                self._appeared(name, epoch, head)

    def _drop_deleted(self, feed: Feed) -> None:
        if not (feed.holds or feed.readers or feed.subscribed):
            del self._feeds[feed.name]

    def _appeared(self, name: str, epoch: int, head: int) -> None:
        prefixes = [watched for prefix, watched in self._prefixes.items() if name.startswith(prefix)]
        if name not in self._feeds and not prefixes:
            return
        feed = self.feed(name)
        feed.appeared(epoch, head)
        for watched in prefixes:
            for watcher in list(watched.watchers):
                watcher.prefix_known(watched.prefix, [feed])


def _any_strong(feed: Feed) -> bool:
    return any(reader.view.strong for reader in feed.readers)


def _as_error(reply: Reply) -> TopicsError:
    if isinstance(reply, TopicsError):
        return reply
    return Internal(f"a subscription was answered {reply.status}")


def _ignore(reply: Reply, leased: LeasedFiles | None) -> None:
    return None
