"""Caps on what one server gives away at once. 0 = unlimited; beyond one: 429 with its name and value."""

from __future__ import annotations

from shared.api_keys import ApiKey
from shared.errors import Throttled
from shared.wire import Options


class InflightPerKey:
    """Requests of one API key between arrival and answer. Without keys there is nobody to count."""

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self._counts: dict[bytes, int] = {}

    def enter(self, key: ApiKey | None) -> None:
        if key is None or self._maximum == 0:
            return
        count = self._counts.get(key.digest, 0)
        if count >= self._maximum:
            raise Throttled(limit="max_inflight_per_key", max=self._maximum)
        self._counts[key.digest] = count + 1

    def leave(self, key: ApiKey | None) -> None:
        if key is None or self._maximum == 0:
            return
        count = self._counts[key.digest] - 1
        if count:
            self._counts[key.digest] = count
        else:
            # Keys come and go with SIGHUP; a count of zero must not keep one for ever.
            del self._counts[key.digest]


class TotalCaps:
    """Caps on what the shards hold together. Soft by the few requests that are under way at the same time."""

    def __init__(self, *, max_topics: int, max_total_bytes: int) -> None:
        self._max_topics = max_topics
        self._max_total_bytes = max_total_bytes
        # One object: the wire encodes options that several requests in a row share only once.
        self._nocreate: Options = {"nocreate": ["max_topics", max_topics]}

    def nocreate(self, topics: int) -> Options | None:
        """Tells a worker what to answer if the request would create a topic; existing ones are never refused."""
        return self._nocreate if self._max_topics and topics >= self._max_topics else None

    def check_bytes(self, total_bytes: int) -> None:
        if self._max_total_bytes and total_bytes >= self._max_total_bytes:
            raise Throttled(limit="max_total_bytes", max=self._max_total_bytes)
