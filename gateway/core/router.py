"""Paths to handlers. The table is built once; who repeats a request remembers what came of it (`Exchange.recall`).

A path is split at its slashes first and percent-decoded after, once, segment by segment: an encoded slash
is part of a name (and then refused by the grammar of names), never a separator. Empty segments match nothing,
so a trailing slash is 404.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final, Generic, TypeVar
from urllib.parse import unquote_to_bytes

from gateway.core.auth import Access
from shared.api_types import U64_MAX
from shared.errors import InvalidRequest, MethodNotAllowed, NotFound
from shared.names import valid_topic_name

H = TypeVar("H", bound=Callable[..., None])

_BAD_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
_NAME: Final = ":name"
_OF_A_TOPIC: Final = ("v0", "topics", _NAME)
_TOPICS: Final = "/v0/topics/"
_MAX_PARAMETERS: Final = 64

Query = dict[str, list[str]]


class Route(Generic[H]):
    """`path` has at most one `:name` segment, the third: `/v0/topics/:name/diff`.

    Compared by identity: it is a key of the request counters.
    """

    __slots__ = ("access", "handler", "method", "named", "opaque", "path", "sse")

    def __init__(
        self, method: str, path: str, handler: H, access: Access, *, sse: bool = False, opaque: bool = False
    ) -> None:
        self.method = method
        self.path = path
        self.handler = handler
        self.access = access
        self.sse = sse  # its GET accepts ?token=, because EventSource cannot send headers
        self.opaque = opaque  # the name in its path is not a topic's
        self.named = _NAME in path


class Target(Generic[H]):
    """What a method and a path ask for."""

    __slots__ = ("name", "refused", "route")

    def __init__(self, route: Route[H], name: str) -> None:
        self.route = route
        self.name = name  # decoded; empty if the route has none
        # Only topics have one grammar for all: what other names mean is for their handlers to say.
        self.refused = route.named and not route.opaque and not valid_topic_name(name)


class Router(Generic[H]):
    def __init__(self, routes: Iterable[Route[H]]) -> None:
        self.routes = tuple(routes)
        self._by_shape: dict[tuple[str, ...], dict[str, Route[H]]] = {}
        self._of_topics: dict[str, dict[str, Route[H]]] = {}  # by what follows the topic's name
        for route in self.routes:
            shape = tuple(route.path.split("/")[1:])
            assert _NAME not in shape or shape.index(_NAME) == 2, "names are looked for in the third segment"
            methods = self._by_shape.setdefault(shape, {})
            assert route.method not in methods, "a route is listed twice"
            methods[route.method] = route
            if shape[:3] == _OF_A_TOPIC:
                self._of_topics["/".join(shape[3:])] = methods
            assert shape[:2] != _OF_A_TOPIC[:2] or shape[2:3] in ((), (_NAME,)), "would hide a topic"

    def resolve(self, method: str, path: str) -> Target[H]:
        if path.startswith(_TOPICS) and "%" not in path:
            # Nearly every request; the long way below comes to the same.
            name, slash, rest = path[len(_TOPICS) :].partition("/")
            methods = self._of_topics.get(rest)
            if methods is not None and name not in ("", _NAME) and bool(slash) == bool(rest):
                route = methods.get(method)
                if route is not None:
                    return Target(route, name)
        segments = path.split("/")
        if "%" in path:
            segments = [decode_component(segment) for segment in segments]
        if segments[0] or "" in segments[1:] or len(segments) > 6:
            raise NotFound()
        name = ""
        methods = self._by_shape.get(tuple(segments[1:]))
        if methods is None and len(segments) > 3:
            name, segments[3] = segments[3], _NAME
            methods = self._by_shape.get(tuple(segments[1:]))
        if methods is None:
            raise NotFound()
        route = methods.get(method)
        if route is None:
            raise MethodNotAllowed(allow=_allowed(methods))
        return Target(route, name)


def _allowed(methods: Iterable[str]) -> list[str]:
    allowed = set(methods)
    if "GET" in allowed:
        allowed.add("HEAD")  # answered by the lanes from GET
    return sorted(allowed)


def decode_component(text: str, *, plus: bool = False) -> str:
    """Percent-decode once; what is not a valid escape or not UTF-8 is refused rather than guessed."""
    if plus:
        text = text.replace("+", " ")
    if "%" not in text:
        return text
    if _BAD_PERCENT.search(text):
        raise InvalidRequest("the URL has an invalid percent escape")
    try:
        return unquote_to_bytes(text.encode("utf-8", "surrogateescape")).decode("utf-8")
    except UnicodeDecodeError as err:
        raise InvalidRequest("the URL is not UTF-8") from err


def parse_query(query: str) -> Query:
    """Parameters in order; a name may be repeated."""
    found: Query = {}
    if not query:
        return found
    pairs = query.split("&", _MAX_PARAMETERS)
    if len(pairs) > _MAX_PARAMETERS:
        raise InvalidRequest("the query has too many parameters")
    for pair in pairs:
        if pair:
            name, _, value = pair.partition("=")
            found.setdefault(decode_component(name, plus=True), []).append(decode_component(value, plus=True))
    return found


def text_parameter(query: Query, name: str, default: str = "") -> str:
    """The last value counts, as with duplicate keys in JSON."""
    values = query.get(name)
    return values[-1] if values else default


def flag_parameter(query: Query, name: str, *, default: bool) -> bool:
    if name not in query:
        return default
    value = query[name][-1].lower()
    if value in ("true", "1"):
        return True
    if value in ("false", "0"):
        return False
    raise InvalidRequest(f"{name} must be true or false", detail={"parameter": name})


def number_parameter(query: Query, name: str) -> int | None:
    """An unsigned number, None if it is not given."""
    if name not in query:
        return None
    value = query[name][-1]
    if not (value.isascii() and value.isdecimal()) or len(value) > 20 or int(value) > U64_MAX:
        raise InvalidRequest(f"{name} must be an unsigned 64-bit number", detail={"parameter": name})
    return int(value)
