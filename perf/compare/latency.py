"""Latency of single calls on servers that have nothing else to do: one append, and one append seen by a reader.

The same loop over raw sockets for each system; only the bytes differ.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from statistics import median

from perf.compare.contest import Sample
from perf.compare.generators import NATS_SUBJECT, PAYLOAD
from perf.queue_clients import http_request, nats_publish, resp
from perf.report import percentiles
from perf.servers import Server, connect

PAUSE_S = 0.005  # between calls, so that each finds the server idle
_TOPIC = "/v0/topics/alone"
_RECORD = json.dumps({"records": [{"data": PAYLOAD.decode()}]}).encode()


def _until(sock_recv: Callable[[int], bytes], complete: Callable[[bytes], bool]) -> bytes:
    told = b""
    while not complete(told):
        data = sock_recv(1 << 16)
        if not data:
            raise SystemExit(f"a server closed the connection after {told[-200:]!r}")
        told += data
    return told


def _http_complete(told: bytes) -> bool:
    head, mark, body = told.partition(b"\r\n\r\n")
    return bool(mark) and len(body) >= int(
        head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
    )


def _line_complete(told: bytes) -> bool:
    return told.endswith(b"\r\n")


def _sample(latencies_ms: list[float]) -> Sample:
    found = percentiles(latencies_ms)
    return Sample(median(latencies_ms), {point: found[point] for point in ("p50", "p90", "p99")})


def _calls(
    server: Server,
    request: bytes,
    complete: Callable[[bytes], bool],
    count: int,
    *,
    hello: bytes = b"",
    pause_s: float = PAUSE_S,
) -> Sample:
    latencies = []
    with connect(server.port) as sock:
        if hello:
            sock.sendall(hello)
            _until(sock.recv, lambda told: b"PONG\r\n" in told)
        for _ in range(count):
            if pause_s:
                time.sleep(pause_s)
            started = time.perf_counter()
            sock.sendall(request)
            _until(sock.recv, complete)
            latencies.append((time.perf_counter() - started) * 1000)
    return _sample(latencies)


def append_ours(server: Server, count: int, pause_s: float = PAUSE_S) -> Sample:
    return _calls(server, http_request(_TOPIC, _RECORD), _http_complete, count, pause_s=pause_s)


def append_redis(server: Server, count: int, pause_s: float = PAUSE_S) -> Sample:
    request = resp(b"XADD", b"alone", b"*", b"d", PAYLOAD)
    return _calls(server, request, lambda told: told.count(b"\r\n") == 2, count, pause_s=pause_s)


def append_nats(server: Server, count: int) -> Sample:
    hello = b'CONNECT {"verbose":false}\r\nSUB alone.in 1\r\nPING\r\n'
    request = nats_publish(NATS_SUBJECT.encode(), b"alone.in", PAYLOAD)
    return _calls(server, request, lambda told: told.count(b"\r\n") == 2, count, hello=hello)


def _tail(
    server: Server,
    wait: Callable[[int], bytes],
    arrived: Callable[[bytes], bool],
    write: Callable[[int], bytes],
    written: Callable[[bytes], bool],
    count: int,
) -> Sample:
    """`wait(n)` asks for what comes behind the n-th write; the clock runs from the write to its arrival there."""
    latencies = []
    with ExitStack() as stack:
        reader, writer = (stack.enter_context(connect(server.port)) for _ in range(2))
        for number in range(count):
            reader.sendall(wait(number))
            time.sleep(PAUSE_S)  # it blocks by now
            started = time.perf_counter()
            writer.sendall(write(number))
            _until(reader.recv, arrived)
            latencies.append((time.perf_counter() - started) * 1000)
            _until(writer.recv, written)
    return _sample(latencies)


def tail_ours(server: Server, count: int) -> Sample:
    topic = f"/v0/topics/tail-{time.monotonic_ns()}"
    with connect(server.port) as sock:
        sock.sendall(http_request(topic, b"{}", "PUT"))
        _until(sock.recv, _http_complete)
    return tail_http(server, topic, count)


def tail_http(server: Server, topic: str, count: int) -> Sample:
    """On a topic that has no records yet."""
    append = http_request(topic, _RECORD)
    return _tail(
        server,
        lambda number: http_request(f"{topic}/diff", b'{"from_seq":%d,"wait_ms":20000}' % number),
        _http_complete,
        lambda number: append,
        _http_complete,
        count,
    )


def tail_redis(server: Server, count: int) -> Sample:
    stream = b"tail-%d" % time.monotonic_ns()
    add = resp(b"XADD", stream, b"*", b"d", PAYLOAD)
    return _tail(
        server,
        lambda number: resp(b"XREAD", b"BLOCK", b"20000", b"STREAMS", stream, b"$"),
        lambda told: PAYLOAD in told and _line_complete(told),
        lambda number: add,
        lambda told: told.count(b"\r\n") == 2,
        count,
    )
