"""The HTTP calls of a streaming reader: the state of a topic, and a page of its records with their bytes as written."""

from __future__ import annotations

import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Final

import msgspec

PAGE_RECORDS: Final = 1000
PAGE_BYTES: Final = 8 << 20
_ATTEMPTS: Final = 6
_TIMEOUT_S: Final = 60.0
_RETRIED = frozenset({429, 503})


class StreamError(Exception):
    """The server's refusal, or why there is no answer."""


class TopicState(msgspec.Struct):
    epoch: int
    head_seq: int


class Record(msgspec.Struct):
    seq: int = msgspec.field(name="$seq")
    ts: int = msgspec.field(name="$ts")
    data: msgspec.Raw
    meta: msgspec.Raw = msgspec.Raw()
    """Empty if the record has none."""
    node: str | None = msgspec.field(name="$node", default=None)
    tag: str | None = msgspec.field(name="$tag", default=None)
    key: str | None = msgspec.field(name="$key", default=None)


class Tombstone(msgspec.Struct):
    gap_from: int
    gap_to: int
    reason: str


class Page(msgspec.Struct):
    records: list[Record]
    next_from_seq: int
    tombstone: Tombstone | None = None


class TopicApi:
    """Throttling and restarts are waited for, a bounded number of times."""

    def __init__(self, url: str, topic: str, api_key: str | None = None) -> None:
        if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
            raise StreamError(
                f"the option url is that of a topicsd, as in http://127.0.0.1:4000, not {url!r}"
            )
        self._base = f"{url.rstrip('/')}/v0/topics/{urllib.parse.quote(topic, safe='')}"
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}

    def state(self) -> TopicState | None:
        """None: there is no such topic. A look of ours is no read, which would make the topic seem busy."""
        body = self._get("?touch=false")
        return None if body is None else msgspec.json.decode(body, type=TopicState)

    def page(self, from_seq: int) -> Page | None:
        query = {
            "from_seq": from_seq,
            "limit": PAGE_RECORDS,
            "max_bytes": PAGE_BYTES,
            "include_tags": "true",
            "include_keys": "true",
        }
        body = self._get("/records?" + urllib.parse.urlencode(query))
        return None if body is None else msgspec.json.decode(body, type=Page)

    def _get(self, rest: str) -> bytes | None:
        request = urllib.request.Request(self._base + rest, headers=self._headers)  # noqa: S310
        delay_s = 0.5
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310
                    return bytes(answer.read())
            except urllib.error.HTTPError as err:
                if err.code == 404:
                    return None
                told = err.read().decode(errors="replace")
                if err.code not in _RETRIED or attempt == _ATTEMPTS:
                    raise StreamError(f"{request.full_url} answers {err.code}: {told}") from err
            except (urllib.error.URLError, ConnectionError, TimeoutError) as err:
                if attempt == _ATTEMPTS:
                    raise StreamError(f"{request.full_url} does not answer: {err}") from err
            time.sleep(delay_s)
            delay_s *= 2
        raise AssertionError("the last attempt returned or raised")
