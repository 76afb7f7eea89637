"""The head of a request: version, header fields, and what they say about framing.

httptools (llhttp in strict mode) is the authority on the syntax; the rules it leaves open (Host,
Expect, transfer codings other than chunked, how many fields) are checked here. A client sends the same head over
and over, so what it means is remembered by its bytes: a repeated one costs one dictionary lookup. Where the target
changes all the time the header section does not, and as its meaning depends on neither the method nor the target, it
is remembered by itself, too. Where only the topic changes, all around its name is compared (`AroundTopic`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Generic, TypeVar

import httptools

from gateway.exchange import Recall
from gateway.fast_lane.bounds import (
    HEAD_MEMO_ENTRIES,
    HEAD_MEMO_MARKS,
    HEAD_MEMO_MAX_BYTES,
    MAX_HEADER_FIELDS,
    MAX_TARGET_BYTES,
)
from gateway.fast_lane.refusals import Refusal, bad_request
from gateway.fast_lane.topic_names import topic_name_end
from shared.names import TOPIC_NAME_MAX_CHARS

_V = TypeVar("_V")

# Known ones are looked up; any other well-formed method reaches the API, which answers 405.
METHODS: Final = {m.encode(): m for m in ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH")}
_METHOD = re.compile(rb"[A-Z]{1,20}")
_ABSOLUTE = re.compile(r"[Hh][Tt][Tt][Pp][Ss]?://([^/?]+)([^?]*)(?:\?(.*))?")
TOPICS_PATH: Final = "/v0/topics/"
_TOPICS_TARGET: Final = TOPICS_PATH.encode("ascii")
_SINGLETONS = frozenset({"host", "content-length", "transfer-encoding"})


class HeaderSection:
    """Everything after the target: the version and the header fields, understood and checked."""

    __slots__ = (
        "chunked",
        "content_length",
        "expects_continue",
        "headers",
        "http10",
        "keep_alive",
        "websocket",
    )

    def __init__(self, headers: dict[str, str], *, http10: bool) -> None:
        connection = headers.get("connection", "")
        self.headers: Mapping[str, str] = MappingProxyType(headers)
        self.http10 = http10
        self.keep_alive = _has(connection, "keep-alive") if http10 else not _has(connection, "close")
        self.content_length = int(headers.get("content-length", "0"))
        self.chunked = "transfer-encoding" in headers
        self.expects_continue = not http10 and headers.get("expect", "").lower() == "100-continue"
        self.websocket = _has(headers.get("upgrade", ""), "websocket") and _has(connection, "upgrade")


class AroundTopic:
    """What stands around the name of a topic in a head: one that differs in no other byte means the same, of another
    topic. `behind` includes the empty line, so whoever finds it has a whole head before him."""

    __slots__ = ("before", "behind", "path_behind", "topic")

    def __init__(self, before: bytes, topic: str, behind: bytes, path_behind: str) -> None:
        self.before = before
        self.topic = topic
        self.behind = behind
        self.path_behind = path_behind


class RequestHead:
    """All of a request but its body, understood and checked."""

    __slots__ = (
        "around",
        "for_full_lane",
        "head_only",
        "headers",
        "method",
        "path",
        "query",
        "recall",
        "section",
    )

    def __init__(self, method: str, target: str, section: HeaderSection, around: AroundTopic | None) -> None:
        path, query, authority = parse_target(target)
        self.method = "GET" if method == "HEAD" else method
        self.head_only = method == "HEAD"
        self.path = path
        self.query = query
        self.recall = Recall()
        self.section = section
        self.around = around
        self.headers = section.headers
        if authority is not None:
            self.headers = MappingProxyType({**section.headers, "host": authority})
        self.for_full_lane = section.websocket or not is_api_path(path)


class HeadParser:
    """Parses heads, remembering recent ones and their header sections."""

    __slots__ = ("_heads", "_sections")

    def __init__(self) -> None:
        self._heads: Memo[RequestHead] = Memo()
        self._sections: Memo[HeaderSection] = Memo()

    def known(self, raw: bytes) -> RequestHead | None:
        """What is remembered of this head, without the empty line behind it."""
        return self._heads.get(raw)

    def parse(self, raw: bytes, method: str, target: bytes, rest: bytes) -> RequestHead:
        """`raw` is the whole head, `rest` the part from the version on."""
        head = RequestHead(method, target.decode("latin-1"), self._section(rest), around_topic(raw, target))
        self._heads.put(raw, head)
        return head

    def _section(self, raw: bytes) -> HeaderSection:
        found = self._sections.get(raw)
        if found is None:
            found = parse_section(raw)
            self._sections.put(raw, found)
        return found


class Memo(Generic[_V]):
    """Recent values by bytes, in two generations: a cheap bounded LRU.

    Only what comes a second time is kept. Who asks for ever other topics would fill it and have it thrown away again
    for nothing; a mark of its hash is all that the first time leaves.
    """

    __slots__ = ("_marks", "_new", "_old")

    def __init__(self) -> None:
        self._new: dict[bytes, _V] = {}
        self._old: dict[bytes, _V] = {}
        self._marks = [0] * HEAD_MEMO_MARKS

    def get(self, raw: bytes) -> _V | None:
        found = self._new.get(raw)
        if found is None:
            found = self._old.get(raw)
            if found is not None:
                self._keep(raw, found)
        return found

    def put(self, raw: bytes, value: _V) -> None:
        if len(raw) <= HEAD_MEMO_MAX_BYTES:
            mark = hash(raw)
            place = mark % HEAD_MEMO_MARKS
            if self._marks[place] == mark:
                self._keep(raw, value)
            else:
                self._marks[place] = mark

    def _keep(self, raw: bytes, value: _V) -> None:
        if len(self._new) >= HEAD_MEMO_ENTRIES:
            self._old = self._new
            self._new = {}
        self._new[raw] = value


class _Fields:
    """Callback target of httptools."""

    __slots__ = ("headers", "refusal")

    def __init__(self) -> None:
        self.headers: dict[str, str] = {}
        self.refusal: Refusal | None = None

    def on_header(self, name: bytes, value: bytes) -> None:
        headers = self.headers
        key = name.decode("latin-1").lower()
        text = value.decode("latin-1").strip(" \t")
        if key in headers:
            if key in _SINGLETONS:
                self.refusal = bad_request(f"more than one {key} header")
            text = f"{headers[key]}, {text}"
        headers[key] = text


def parse_section(raw: bytes) -> HeaderSection:
    version, _, lines = raw.partition(b"\r\n")
    if version not in (b"HTTP/1.1", b"HTTP/1.0"):
        raise bad_request("not an HTTP/1.1 request")
    if lines.count(b"\r\n") >= MAX_HEADER_FIELDS:
        raise bad_request(f"more than {MAX_HEADER_FIELDS} header fields", status=431)
    fields = _Fields()
    try:
        httptools.HttpRequestParser(fields).feed_data(b"GET / " + raw + b"\r\n\r\n")
    except httptools.HttpParserUpgrade:
        pass  # the caller decides what to do about an upgrade
    except httptools.HttpParserError as err:
        raise bad_request(f"malformed header: {err}") from None
    if fields.refusal is not None:
        raise fields.refusal
    headers = fields.headers
    http10 = version == b"HTTP/1.0"
    if not http10 and not headers.get("host"):
        raise bad_request("an HTTP/1.1 request needs a Host header")
    if "transfer-encoding" in headers and (http10 or headers["transfer-encoding"].lower() != "chunked"):
        raise bad_request("the only transfer coding understood is chunked, on HTTP/1.1")
    if headers.get("expect", "100-continue").lower() != "100-continue" and not http10:
        raise bad_request("the only expectation understood is 100-continue", status=417)
    return HeaderSection(headers, http10=http10)


def around_topic(raw: bytes, target: bytes) -> AroundTopic | None:
    """None: the target names no topic in plain letters, or the head is too long to be kept.

    That one with the longest name may be kept means that it is not refused for its length either.
    """
    if not target.startswith(_TOPICS_TARGET) or len(raw) + TOPIC_NAME_MAX_CHARS > HEAD_MEMO_MAX_BYTES:
        return None
    start = len(_TOPICS_TARGET)
    end = topic_name_end(target, start)
    path_behind = target[end:].partition(b"?")[0]
    if end == start or (path_behind and not path_behind.startswith(b"/")):
        return None
    target_at = raw.index(b" ") + 1
    before, behind = raw[: target_at + start], raw[target_at + end :] + b"\r\n\r\n"
    return AroundTopic(before, target[start:end].decode("ascii"), behind, path_behind.decode("latin-1"))


def parse_method(raw: bytes) -> str:
    if _METHOD.fullmatch(raw) is None:
        raise bad_request("malformed method")
    return raw.decode("ascii")


def parse_target(target: str) -> tuple[str, str, str | None]:
    """Path, query, and the authority if the target is in absolute form."""
    check_target(target)
    if target.startswith("/"):
        path, _, query = target.partition("?")
        return path, query, None
    absolute = _ABSOLUTE.fullmatch(target)
    if absolute is None:
        raise bad_request("the target must be a path or an absolute http URL")
    return absolute[2] or "/", absolute[3] or "", absolute[1]


def check_target(target: str) -> None:
    """The characters and the length of a target, also of one that came by HTTP/2."""
    if len(target) > MAX_TARGET_BYTES:
        raise bad_request(f"the URL is longer than {MAX_TARGET_BYTES} bytes", status=414)
    # Visible ASCII. A fragment never belongs in a request, and what one parser takes as part of the path
    # another would cut off.
    visible = target.isascii() and target.isprintable() and " " not in target and "#" not in target
    if not visible or not target:
        raise bad_request("the URL holds characters that must be percent-encoded")


def is_api_path(path: str) -> bool:
    """May the fast lane serve this path?"""
    return path.startswith("/v0/") or path in ("/v0", "/healthz", "/readyz")


def _has(value: str, token: str) -> bool:
    """Is the (lower-case) token one of a comma-separated list?"""
    if not value:
        return False
    value = value.lower()
    return value == token or token in [part.strip(" \t") for part in value.split(",")]
