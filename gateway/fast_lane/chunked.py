"""Decoder of one chunked request body: bytes in, data out, and where the body ended.

Strict where leniency is a way to smuggle a request past a proxy: sizes are hex digits only, every
line ends in CRLF, the data of a chunk is followed by CRLF. Extensions and trailers are checked for
length and line ends and thrown away.
"""

from __future__ import annotations

import re
from enum import Enum, auto

from gateway.fast_lane.bounds import CHUNKS_FREE, MAX_CHUNK_LINE_BYTES, MIN_MEAN_CHUNK_BYTES
from gateway.fast_lane.refusals import Refusal, bad_request
from shared.errors import PayloadTooLarge

_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,12})(?:[ \t]*;[\t\x20-\x7e\x80-\xff]*)?")
_TRAILER = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\t\x20-\x7e\x80-\xff]*")


class _At(Enum):
    SIZE = auto()
    DATA = auto()
    DATA_END = auto()
    TRAILER = auto()
    DONE = auto()


class ChunkDecoder:
    __slots__ = ("_at", "_chunks", "_data", "_left", "_line_bytes", "_max_bytes", "_size")

    def __init__(self, max_bytes: int) -> None:
        self._at = _At.SIZE
        self._chunks = 0
        self._data = bytearray()
        self._left = 0  # bytes of the current chunk still to come
        self._line_bytes = 0  # of extensions and trailers in this body
        self._max_bytes = max_bytes
        self._size = 0

    @property
    def done(self) -> bool:
        return self._at is _At.DONE

    def body(self) -> bytes:
        assert self.done
        return bytes(self._data)

    def feed(self, buffer: bytes, pos: int) -> int:
        """Take what can be taken of `buffer[pos:]`; returns where it stopped. Raises Refusal."""
        end = len(buffer)
        while self._at is not _At.DONE:
            if self._at is _At.DATA:
                if pos == end:
                    break
                part = buffer[pos : pos + self._left]
                self._data += part
                self._left -= len(part)
                pos += len(part)
                if self._left == 0:
                    self._at = _At.DATA_END
                continue
            line_end = buffer.find(b"\r\n", pos)
            if line_end < 0:
                self._check_partial_line(buffer, pos)
                break
            self._line(buffer[pos:line_end])
            pos = line_end + 2
        return pos

    def _line(self, line: bytes) -> None:
        if self._at is _At.SIZE:
            self._size_line(line)
        elif self._at is _At.DATA_END:
            if line:
                raise bad_request("a chunk is longer than its size says")
            self._at = _At.SIZE
        elif not line:
            self._at = _At.DONE
        else:
            self._spend(len(line) + 2)
            if _TRAILER.fullmatch(line) is None:
                raise bad_request("malformed trailer")

    def _size_line(self, line: bytes) -> None:
        match = _SIZE_LINE.fullmatch(line)
        if match is None:
            raise bad_request("malformed chunk size")
        self._spend(len(line) - len(match[1]))
        size = int(match[1], 16)
        self._size += size
        if self._size > self._max_bytes:
            raise Refusal(PayloadTooLarge(max_bytes=self._max_bytes))
        self._chunks += 1
        if self._chunks > CHUNKS_FREE + self._size // MIN_MEAN_CHUNK_BYTES:
            raise bad_request("the chunks are too small")
        self._left = size
        self._at = _At.DATA if size else _At.TRAILER

    def _check_partial_line(self, buffer: bytes, pos: int) -> None:
        held = len(buffer) - pos
        if self._at is _At.DATA_END and held and buffer[pos] != 0x0D:
            raise bad_request("a chunk is longer than its size says")
        if held > MAX_CHUNK_LINE_BYTES:
            raise bad_request("chunk extensions or trailers are too long")

    def _spend(self, count: int) -> None:
        self._line_bytes += count
        if self._line_bytes > MAX_CHUNK_LINE_BYTES:
            raise bad_request("chunk extensions or trailers are too long")
