"""From the bytes of one HTTP/1.1 connection to its requests. No socket and no clock.

`feed` takes what was received; `next_item` is called until it returns None and yields, in order, a
complete request (as the slot that awaits its answer) or one of two signals:

- `SEND_CONTINUE`: the client waits for "100 Continue" before it sends the body we want to read;
- `FULL_LANE`: the next request is not ours; `unread()` gives its bytes, from its very first one.

Anything that is not a request raises `Refusal`, after which the reader is of no further use. The same
bytes give the same items however they are cut (tests/unit/gateway/test_request_reader.py).
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Final

from gateway.exchange import Recall
from gateway.fast_lane.answer_slot import AnswerSlot, SlotOwner
from gateway.fast_lane.body_budget import BodyBudget
from gateway.fast_lane.bounds import MAX_HEAD_BYTES, MAX_TARGET_BYTES
from gateway.fast_lane.chunked import ChunkDecoder
from gateway.fast_lane.head import (
    METHODS,
    TOPICS_PATH,
    AroundTopic,
    HeaderSection,
    HeadParser,
    RequestHead,
    parse_method,
)
from gateway.fast_lane.refusals import Refusal, bad_request
from gateway.fast_lane.topic_names import topic_name_end
from shared.errors import PayloadTooLarge

_REQUEST_LINE_START = re.compile(rb"[A-Z]{1,20}(?: [^\x00-\x20\x7f]*(?: [HTP/.0-9]{0,8}\r?)?)?")
_REQUEST_LINE = re.compile(rb"[A-Z]{1,20} [^\x00-\x20\x7f]+ HTTP/[0-9.]{3}")
_BAD_LINE_END = re.compile(rb"\x00|(?<!\r)\n|\r(?!\n|\Z)")
_LINE_SLACK = 32  # bytes of a request line that are not its target
_TLS_HANDSHAKE = 0x16
_NOTHING: Final = Recall()


class Signal(Enum):
    SEND_CONTINUE = "send_continue"
    FULL_LANE = "full_lane"


SEND_CONTINUE = Signal.SEND_CONTINUE
FULL_LANE = Signal.FULL_LANE


class RequestReader:
    __slots__ = (
        "_body",
        "_body_left",
        "_budget",
        "_buffer",
        "_checked",
        "_chunks",
        "_fed_at",
        "_last_head",
        "_max_body_bytes",
        "_owner",
        "_parser",
        "_path",
        "_pos",
        "_recall",
        "_repeated",
        "_slot",
        "_taken",
        "_topic",
        "_virgin",
        "reading_since",
    )

    def __init__(self, owner: SlotOwner, parser: HeadParser, budget: BodyBudget) -> None:
        self._owner = owner
        self._parser = parser
        self._budget = budget
        self._taken = 0  # of the budget, by the body being read
        self._max_body_bytes = budget.max_body_bytes
        self._buffer = b""
        self._pos = 0  # start of what is not yet consumed
        self._checked = 0  # how far an incomplete head was searched for bad line ends
        self._slot: AnswerSlot | None = None  # a request whose body is incomplete
        self._body = bytearray()
        self._body_left = 0
        self._chunks: ChunkDecoder | None = None
        self._fed_at = 0.0
        self._last_head: RequestHead | None = None  # the last one that was parsed, or found by its bytes
        self._topic = ""  # of the last request, as the next two: perhaps not that head's
        self._path = ""
        self._recall = _NOTHING
        self._repeated = b""  # its head, empty line included, if it came twice in a row: look for it first
        self._virgin = True  # nothing was understood yet: a foreign protocol is possible
        self.reading_since = 0.0  # when the first byte of an incomplete request came; 0 if there is none

    @property
    def body_bytes_wanted(self) -> int:
        """Bytes that are sure to belong to the body being read."""
        return self._body_left

    @property
    def has_unread(self) -> bool:
        return self._pos < len(self._buffer)

    def unread(self) -> bytes:
        return self._buffer[self._pos :]

    def feed(self, data: bytes, now: float) -> None:
        if self._pos < len(self._buffer):
            self._buffer = self._buffer[self._pos :] + data
        else:
            self._buffer = data
        self._pos = 0
        self._fed_at = now
        if not self.reading_since:
            self.reading_since = now

    def restart_clock(self, now: float) -> None:
        """It was us who did not read: what is unread counts from now on."""
        if self.reading_since:
            self.reading_since = self._fed_at = now

    def next_item(self) -> AnswerSlot | Signal | None:
        if self._slot is not None:
            return self._continue_body(self._slot)
        buffer, pos = self._buffer, self._pos
        repeated = self._repeated
        if repeated:
            if _stands_at(buffer, pos, repeated):
                assert self._last_head is not None
                return self._request(self._last_head, pos + len(repeated))
            self._repeated = b""
        last = self._last_head
        if last is not None and last.around is not None:
            body_start = self._match_around(last.around)
            if body_start:
                return self._request(last, body_start)
        head_end = buffer.find(b"\r\n\r\n", pos)
        if head_end < 0:
            self._check_incomplete()
            return None
        raw = buffer[pos:head_end]
        head = self._parser.known(raw)
        if head is None:
            parts = raw.split(b" ", 2)
            method = METHODS.get(parts[0])
            if method is None or len(parts) != 3 or len(raw) > MAX_HEAD_BYTES:
                return self._unusual(raw, parts)
            head = self._parser.parse(raw, method, parts[1], parts[2])
        if head is last:
            self._repeated = raw + b"\r\n\r\n"
        self._remember(head)
        return self._request(head, head_end + 4)

    def _remember(self, head: RequestHead) -> None:
        self._last_head = head
        self._path = head.path
        self._topic = "" if head.around is None else head.around.topic
        self._recall = head.recall

    def _match_around(self, around: AroundTopic) -> int:
        """Is the next head the last one but for its topic? Then that is noted, and where its body starts returned."""
        buffer, pos = self._buffer, self._pos
        if not _stands_at(buffer, pos, around.before):
            return 0
        name_at = pos + len(around.before)
        name_end = topic_name_end(buffer, name_at)
        body_start = name_end + len(around.behind)
        if name_end == name_at or buffer[name_end:body_start] != around.behind:
            return 0
        name = buffer[name_at:name_end].decode("ascii")
        if name == self._topic:
            self._repeated = buffer[pos:body_start]
        else:
            self._topic = name
            self._path = TOPICS_PATH + name + around.path_behind
            self._recall = self._recall.for_topic(name)
        return body_start

    def _request(self, head: RequestHead, body_start: int) -> AnswerSlot | Signal | None:
        if head.for_full_lane:
            return FULL_LANE
        self._virgin = False
        section = head.section
        slot = AnswerSlot(
            self._owner,
            head.method,
            self._path,
            head.query,
            head.headers,
            b"",
            self.reading_since,
            self._recall,
        )
        if head.head_only:
            slot.head_only = True
            slot.plain = False
        if section.http10 or not section.keep_alive:
            slot.http10 = section.http10
            slot.close = not section.keep_alive
            slot.plain = False
        length = section.content_length
        body_end = body_start + length
        if section.chunked or body_end > len(self._buffer) or length > self._max_body_bytes:
            return self._start_body(slot, section, body_start)
        if length:
            slot.body = self._buffer[body_start:body_end]
        self._finish(body_end)
        return slot

    def _finish(self, end: int) -> None:
        self._checked = 0
        if end == len(self._buffer):
            self._buffer = b""
            self._pos = 0
            self.reading_since = 0.0
        else:
            self._pos = end
            self.reading_since = self._fed_at

    def _start_body(
        self, slot: AnswerSlot, section: HeaderSection, body_start: int
    ) -> AnswerSlot | Signal | None:
        # Before "100 Continue": a client that asks first is spared the upload.
        if section.content_length > self._max_body_bytes:
            raise Refusal(PayloadTooLarge(max_bytes=self._max_body_bytes))
        self._pos = body_start
        self._slot = slot
        self._body = bytearray()
        self._body_left = section.content_length
        self._chunks = ChunkDecoder(self._max_body_bytes) if section.chunked else None
        if section.expects_continue and not self.has_unread:
            return SEND_CONTINUE
        return self._continue_body(slot)

    def abandon(self) -> None:
        """Nobody will read on."""
        self._budget.give_back(self._taken)
        self._taken = 0

    def _continue_body(self, slot: AnswerSlot) -> AnswerSlot | None:
        before = self._pos
        if self._chunks is not None:
            self._pos = self._chunks.feed(self._buffer, self._pos)
        else:
            part = self._buffer[self._pos : self._pos + self._body_left]
            self._body += part
            self._body_left -= len(part)
            self._pos += len(part)
        self._budget.take(self._pos - before)
        self._taken += self._pos - before
        if self._chunks is not None and self._chunks.done:
            slot.body = self._chunks.body()
            self._chunks = None
        elif self._chunks is None and self._body_left == 0:
            slot.body = bytes(self._body)
            self._body = bytearray()
        else:
            return None
        self._slot = None
        self.abandon()
        self._finish(self._pos)
        return slot

    def _unusual(self, raw: bytes, parts: list[bytes]) -> AnswerSlot | Signal | None:
        """A complete head that does not open like a plain request."""
        if self._skip_empty_lines():
            return self.next_item()
        if self._virgin and parts == [b"PRI", b"*", b"HTTP/2.0"]:
            return FULL_LANE
        self._refuse_tls()
        if len(parts) != 3:
            raise bad_request("malformed request line")
        method = parse_method(parts[0])
        if len(parts[1]) <= MAX_TARGET_BYTES and len(raw) > MAX_HEAD_BYTES:
            raise bad_request(f"the headers are longer than {MAX_HEAD_BYTES} bytes", status=431)
        head = self._parser.parse(raw, method, parts[1], parts[2])
        self._remember(head)
        return self._request(head, self._pos + len(raw) + 4)

    def _check_incomplete(self) -> None:
        """Refuse at once what no further byte could turn into a request, instead of waiting for more."""
        self._skip_empty_lines()
        buffer, pos = self._buffer, self._pos
        held = len(buffer) - pos
        if held == 0 or buffer[pos:] == b"\r":
            return
        self._refuse_tls()
        line_end = buffer.find(b"\r\n", pos)
        line = buffer[pos : line_end if line_end >= 0 else pos + MAX_TARGET_BYTES + _LINE_SLACK + 1]
        pattern = _REQUEST_LINE if line_end >= 0 else _REQUEST_LINE_START
        if pattern.fullmatch(line) is None:
            raise bad_request("this is not an HTTP request")
        if len(line) > MAX_TARGET_BYTES + _LINE_SLACK:
            raise bad_request(f"the URL is longer than {MAX_TARGET_BYTES} bytes", status=414)
        if held > MAX_HEAD_BYTES:
            raise bad_request(f"the headers are longer than {MAX_HEAD_BYTES} bytes", status=431)
        # One byte back: whether a CR at the end was a bare one shows only now.
        if _BAD_LINE_END.search(buffer, max(pos, pos + self._checked - 1)) is not None:
            raise bad_request("malformed header: a NUL or a bare CR or LF")
        self._checked = held

    def _skip_empty_lines(self) -> bool:
        # RFC 9112 2.2: an empty line before a request is ignored.
        start = self._pos
        while self._buffer.startswith(b"\r\n", self._pos):
            self._pos += 2
        return self._pos > start

    def _refuse_tls(self) -> None:
        if self._virgin and self._buffer[self._pos] == _TLS_HANDSHAKE:
            raise bad_request("this port speaks plain HTTP, not TLS: use http:// or put a TLS proxy in front")


def _stands_at(buffer: bytes, at: int, part: bytes) -> bool:
    if at == 0:
        return buffer.startswith(part)  # without a copy
    end = at + len(part)
    return buffer[at:end] == part
