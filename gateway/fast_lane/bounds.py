"""What one connection may cost, and how long it may take. Every bound has a defined answer beyond it."""

from __future__ import annotations

from typing import Final

import msgspec

# Of this module: only then are the products below numbers to the compiler, and not looked up for each request.
_KiB: Final = 1024
_MiB: Final = 1024 * _KiB

MAX_HEAD_BYTES: Final = 64 * _KiB
"""Request line and headers together; more is 431."""

MAX_TARGET_BYTES: Final = 8 * _KiB
"""The request target; more is 414."""

MAX_HEADER_FIELDS: Final = 128
"""Header lines of one request; more is 431. Keeps the cost of parsing 64 KiB of tiny lines small."""

MAX_CHUNK_LINE_BYTES: Final = 4 * _KiB
"""One chunk-size line with its extensions, or all trailers of one body; more is 400."""

CHUNKS_FREE: Final = 4096
MIN_MEAN_CHUNK_BYTES: Final = 16
"""A chunked body of more than CHUNKS_FREE chunks whose mean size is below this is 400: each chunk costs
far more to decode than its few bytes cost to send."""

MAX_PIPELINED: Final = 64
"""Requests of one connection without a sent answer; beyond it nothing more is parsed or read."""

MAX_UNSENT_BYTES: Final = 1 * _MiB
"""Output one connection may hold unsent before its next request waits."""

RECV_BYTES: Final = 64 * _KiB
"""Bytes taken from a socket at once."""

RECV_BODY_BYTES: Final = 1 * _MiB
"""Bytes taken at once while a large body is on its way."""

PUMP_BYTES: Final = 4 * _MiB
"""Output one connection may send in one turn, so that a fast reader of a large answer lets others in."""

JOIN_BYTES: Final = 32 * _KiB
"""Up to this size a body is copied behind its header and sent in one call; beyond, `sendmsg` is cheaper."""

LINGER_BYTES: Final = 4 * _MiB
"""Input thrown away after a refusal before the socket is closed: closing with unread input would reset
the connection, and the client might never see why."""

MAX_ACCEPTS_PER_TURN: Final = 128
"""Connections accepted before the ones that already have work get their turn."""

MAX_FULL_LANE_CONNECTIONS: Final = 2000
"""Connections on the full lane, each of which costs several tasks; beyond it 503."""

HEAD_MEMO_ENTRIES: Final = 1024
"""Heads, and header sections, remembered per generation (there are two)."""

HEAD_MEMO_MARKS: Final = 4096
"""Of heads and sections that came once: those that come again are remembered."""

HEAD_MEMO_MAX_BYTES: Final = 2 * _KiB
"""A longer head is parsed each time."""

STREAM_STALL_FACTOR: Final = 2
"""A stalled stream is cut after this many write timeouts: its producer acts first and says goodbye."""


class EdgeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The edge's settings. All times in milliseconds."""

    max_body_bytes: int = 64 * _MiB
    max_incoming_bytes: int = 512 * _MiB  # of all bodies still arriving; beyond it 429
    request_timeout_ms: int = 30_000  # for one whole request, headers and body
    keepalive_timeout_ms: int = 75_000  # between two requests
    write_timeout_ms: int = 30_000  # without a single byte of progress
    linger_ms: int = 2_000  # for a refused client to read its answer
    tick_ms: int = 500  # how often deadlines are checked and a paused accept is retried
    backlog: int = 1024
