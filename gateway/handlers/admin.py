"""Health, readiness and metrics.

Metrics are gathered when they are asked for: the gateway's own numbers, and one map from every shard that is
up (docs/wire-protocol.md, METRICS). A shard that gives none is missing from its series, not from the answer.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, TypeGuard

import msgspec

from gateway.core import exposition
from gateway.core.auth import Access, visible_prefixes
from gateway.core.exposition import Family, Kind, single
from gateway.core.router import Route
from gateway.exchange import Response
from shared.errors import NotReady
from shared.io.process_numbers import cpu_seconds, open_descriptors, resident_bytes
from shared.wire import Answer, LinkError, Op, decode_metrics

if TYPE_CHECKING:
    from gateway.io.shard_link import Reply
    from gateway.service import Api, Call, Handler

_encoder = msgspec.json.Encoder()

Sections = dict[str, dict[str, object]]
"""What one shard has told, by kind of number."""


def health(call: Call) -> None:
    uptime_ms = int((time.monotonic() - call.api.started_at) * 1000)
    body = _encoder.encode({"status": "ok", "version": call.api.version, "uptime_ms": uptime_ms})
    call.succeed(200, body[:-1])


def ready(call: Call) -> None:
    api = call.api
    links = api.shards.links
    shards: list[dict[str, object]] = []
    for link in links:
        shards.append({"shard": link.shard, "ready": link.up, "topics": link.topics})
        if not link.up:
            shards[-1]["reason"] = api.why_not_ready(link)
    if not all(link.up for link in links):
        # Never 1: a worker that has replayed everything may still be on its way to us.
        error = NotReady(replay_progress=min(round(api.replay_progress(), 3), 0.999))
        error.detail = {**(error.detail or {}), "shards": shards}
        raise error
    body = _encoder.encode(
        {
            "status": "ready",
            "wal_replay_complete": True,
            "topics": api.shards.totals()[0],
            "shards": shards,
        }
    )
    call.succeed(200, body[:-1])


def metrics(call: Call) -> None:
    def answer(replies: list[Reply]) -> None:
        shards = [_numbers(reply) for reply in replies]
        cut = any(map(_is_cut, shards))
        _hide_names(shards, visible_prefixes(call.key))
        own = _own_numbers(call.api)
        if "application/json" in call.exchange.headers.get("accept", ""):
            call.succeed(200, _encoder.encode(_as_json(call.api, own, shards, cut))[:-1])
            return
        text = exposition.render(_Exposition(call.api, own, shards, cut).families())
        call.respond(Response(200, text, content_type=exposition.CONTENT_TYPE))

    call.api.shards.request_all(Op.METRICS, None, lambda replies: call.finish(lambda: answer(replies)))


def _as_json(api: Api, own: Mapping[str, float], shards: list[Sections], cut: bool) -> dict[str, object]:
    """The same numbers as in the text, under the same names without the prefix."""
    requests = [
        {"method": method, "route": path, "status": status, "count": count}
        for method, path, status, count in _requests(api)
    ]
    links = [
        {
            "up": int(link.up),
            "restarts_total": api.shard_restarts(link.shard),
            "ipc_in_flight": link.in_flight,
            "ipc_queue_depth": link.queued,
            "ipc_throttled_total": link.throttled,
        }
        for link in api.shards.links
    ]
    return {
        **own,
        "version": api.version,
        "slow_requests_total": api.request_log.slow_requests,
        "gateway_cpu_seconds_total": round(cpu_seconds(), 3),
        "topic_metrics_truncated": int(cut),
        "http_requests": requests,
        "links": links,
        "shards": shards,
    }


def _requests(api: Api) -> Iterable[tuple[str, str, int, int]]:
    """Method, route, status and how many were answered so."""
    for route, counts in api.requests.items():
        method, path = (route.method, route.path) if route is not None else ("", "")
        for status, count in counts.items():
            yield method, path, status, count


def _own_numbers(api: Api) -> dict[str, float]:
    return {
        "uptime_ms": int((time.monotonic() - api.started_at) * 1000),
        "ready": int(all(link.up for link in api.shards.links)),
        "recovery_progress": api.replay_progress(),
        "sse_connections": api.hub.streams.count,
        "watch_sessions": len(api.hub.sessions),
        "http_connections": api.connections(),
        "gateway_resident_bytes": resident_bytes(),
        "gateway_open_descriptors": open_descriptors(),
    }


def _numbers(reply: Reply) -> Sections:
    """A shard's sections; those that are missing or malformed are empty."""
    sections: Sections = {name: {} for name in SECTIONS}
    if not isinstance(reply, Answer) or reply.status != 200:
        return sections
    try:
        given = decode_metrics(reply.body)
    except LinkError:
        return sections
    for name in SECTIONS:
        section = given.get(name)
        if isinstance(section, dict):
            sections[name] = {key: value for key, value in section.items() if isinstance(key, str)}
    return sections


def _is_cut(numbers: Sections) -> bool:
    """Has the shard more topics than it gave numbers of?"""
    held = numbers["gauges"].get("topics")
    return _is_number(held) and held > len(numbers["per_topic"])


def _hide_names(shards: list[Sections], prefixes: list[str] | None) -> None:
    """Names are what a prefix protects, in metrics as in lists."""
    if prefixes is not None:
        allowed = tuple(prefixes)
        for numbers in shards:
            topics = numbers["per_topic"]
            numbers["per_topic"] = {name: topics[name] for name in topics if name.startswith(allowed)}


SECTIONS = ("gauges", "counters", "histograms", "per_topic")
MAX_TOPIC_SERIES = 1000
"""Topics with series of their own in one exposition; more of them set topics_topic_metrics_truncated."""


class _Exposition:
    """The same numbers as families for a scraper."""

    def __init__(self, api: Api, own: Mapping[str, float], shards: list[Sections], cut: bool) -> None:
        self._cut = cut
        self._api = api
        self._own = own
        self._shards = shards

    def families(self) -> Iterable[Family]:
        for name, value in self._own.items():
            yield single("gauge", f"topics_{name}", _words(name), value)
        build = Family("gauge", "topics_build_info", "always 1", ["version"])
        build.add([self._api.version], 1)
        yield build
        slow = self._api.request_log.slow_requests
        yield single(
            "counter", "topics_slow_requests", "requests that took longer than slow_request_ms", slow
        )
        yield single("counter", "topics_gateway_cpu_seconds", "processor time of the gateway", cpu_seconds())
        yield self._requests()
        yield from self._links()
        yield from self._numbers("gauges")
        yield from self._numbers("counters")
        yield from self._histograms()
        yield from self._per_topic()

    def _requests(self) -> Family:
        family = Family("counter", "topics_http_requests", "requests answered", ["method", "route", "status"])
        for method, path, status, count in _requests(self._api):
            family.add([method, path, str(status)], count)
        return family

    def _links(self) -> Iterable[Family]:
        up = Family("gauge", "topics_shard_up", "the shard answers", ["shard"])
        in_flight = Family("gauge", "topics_ipc_in_flight", "requests at the shard", ["shard"])
        queued = Family("gauge", "topics_ipc_queue_depth", "requests waiting for credit", ["shard"])
        refused = Family(
            "counter",
            "topics_ipc_throttled",
            "requests refused because the link to the shard was full",
            ["shard"],
        )
        restarts = Family("counter", "topics_shard_restarts", "times its worker was started again", ["shard"])
        for link in self._api.shards.links:
            restarts.add([str(link.shard)], self._api.shard_restarts(link.shard))
            refused.add([str(link.shard)], link.throttled)
            up.add([str(link.shard)], int(link.up))
            in_flight.add([str(link.shard)], link.in_flight)
            queued.add([str(link.shard)], link.queued)
        return up, restarts, in_flight, queued, refused

    def _numbers(self, section: str) -> Iterable[Family]:
        """Values are numbers, or `{label: {value: number}}`."""
        kind: Kind = "gauge" if section == "gauges" else "counter"
        families: dict[str, Family] = {}
        for shard, numbers in enumerate(self._shards):
            for name, value in numbers[section].items():
                base = name.removesuffix("_total")
                label, values = _labelled(value)
                if base not in families:
                    labels = ["shard"] if label is None else ["shard", label]
                    families[base] = Family(kind, f"topics_{base}", _words(base), labels)
                for label_value, number in values.items():
                    where = [str(shard)] if label is None else [str(shard), label_value]
                    families[base].add(where, number)
        return families.values()

    def _histograms(self) -> Iterable[Family]:
        families: dict[str, Family] = {}
        for shard, numbers in enumerate(self._shards):
            for name, value in numbers["histograms"].items():
                try:
                    histogram = msgspec.convert(value, _Histogram)
                except msgspec.ValidationError:
                    continue
                family = families.setdefault(
                    name, Family("histogram", f"topics_{name}", _words(name), ["shard"])
                )
                family.add_histogram([str(shard)], histogram.buckets, histogram.count, histogram.sum)
        return families.values()

    def _per_topic(self) -> Iterable[Family]:
        families: dict[str, Family] = {}
        shown = 0
        total = 0
        for shard, numbers in enumerate(self._shards):
            for topic, gauges in numbers["per_topic"].items():
                total += 1
                if shown >= MAX_TOPIC_SERIES or not isinstance(gauges, dict):
                    continue
                shown += 1
                for name, number in gauges.items():
                    if not isinstance(name, str) or not _is_number(number):
                        continue
                    family = families.setdefault(
                        name, Family("gauge", f"topics_topic_{name}", _words(name), ["shard", "topic"])
                    )
                    family.add([str(shard), topic], number)
        yield from families.values()
        truncated = int(self._cut or shown < total)
        about = "not every topic has series here"
        yield single("gauge", "topics_topic_metrics_truncated", about, truncated)


class _Histogram(msgspec.Struct):
    """Upper bounds with cumulative counts, ascending; the last bucket (+Inf) is `count`."""

    buckets: list[tuple[float, float]]
    count: float
    sum: float


def _labelled(value: object) -> tuple[str | None, dict[str, float]]:
    if _is_number(value):
        return None, {"": value}
    if isinstance(value, dict) and len(value) == 1:
        ((label, values),) = value.items()
        if isinstance(label, str) and isinstance(values, dict):
            return label, {str(k): number for k, number in values.items() if _is_number(number)}
    return None, {}


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _words(name: str) -> str:
    return name.replace("_", " ")


ROUTES: list[Route[Handler]] = [
    Route("GET", "/v0/health", health, Access.PROBE),
    Route("GET", "/healthz", health, Access.PROBE),
    Route("GET", "/v0/ready", ready, Access.PROBE),
    Route("GET", "/readyz", ready, Access.PROBE),
    Route("GET", "/v0/metrics", metrics, Access.READ),
]
