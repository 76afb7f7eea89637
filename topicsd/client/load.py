"""Load on many connections at once, and how long each request took.

A closed loop: every connection sends its next request when the last one is answered. So the numbers are those of a
server under full load from that many clients; they do not say how long requests would wait that come on their own
schedule. Latencies are all kept, not sampled.
"""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import httptools
import trio

from topicsd.client.api import Address
from topicsd.client.errors import Unreachable

CHUNK = 256 * 1024
ANSWER_WITHIN_S = 60.0

NextRequest = Callable[[], bytes]
"""The bytes of a connection's next request."""


class LoadConnection:
    """One keep-alive connection that parses no more of an answer than it must: the client's work is measured, too."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._parser = httptools.HttpResponseParser(self)
        self._complete = False
        self._body: list[bytes] = []

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        self._complete = True

    async def exchange(self, request: bytes) -> tuple[int, bytes]:
        self._complete = False
        self._body = []
        await self._stream.send_all(request)
        while not self._complete:
            data = await self._stream.receive_some(CHUNK)
            if not data:
                raise Unreachable("the server closed the connection in the middle of the load; see its log")
            self._parser.feed_data(data)
        return self._parser.get_status_code(), b"".join(self._body)


class Cpu(NamedTuple):
    seconds: float

    @classmethod
    def used(cls) -> Cpu:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return cls(usage.ru_utime + usage.ru_stime)


@dataclass
class LoadResult:
    latencies_s: list[float] = field(default_factory=list)
    refused: dict[int, int] = field(default_factory=dict)
    first_refusal: bytes = b""
    took_s: float = 0.0
    client_cpu: float = 0.0
    """Cores that this process kept busy. Near 1, it is the client that is measured."""

    def took(self, status: int, body: bytes, seconds: float) -> None:
        if 200 <= status < 300:
            self.latencies_s.append(seconds)
            return
        self.refused[status] = self.refused.get(status, 0) + 1
        self.first_refusal = self.first_refusal or body


async def run_load(
    address: Address,
    connections: int,
    seconds: float,
    next_request: Callable[[int], NextRequest],
    *,
    warm_up_s: float,
    on_tick: Callable[[int, float], None],
) -> LoadResult:
    """`next_request(i)` makes the requests of connection i. What falls into the warm-up is not counted."""
    result = LoadResult()
    counting = False
    ended = False
    problems: list[Exception] = []

    async def one(number: int) -> None:
        stream = await trio.open_tcp_stream(address.host, address.port)
        async with stream:
            connection = LoadConnection(stream)
            make = next_request(number)
            while not ended:
                request = make()
                began = time.perf_counter()
                with trio.fail_after(ANSWER_WITHIN_S):
                    status, body = await connection.exchange(request)
                if counting:
                    result.took(status, body, time.perf_counter() - began)

    async def guarded(number: int) -> None:
        try:
            await one(number)
        except (OSError, trio.BrokenResourceError, trio.TooSlowError, Unreachable) as err:
            problems.append(err)
            nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for number in range(connections):
            nursery.start_soon(guarded, number)
        await trio.sleep(warm_up_s)
        counting = True
        began, cpu = time.perf_counter(), Cpu.used()
        while (left := began + seconds - time.perf_counter()) > 0:
            await trio.sleep(min(left, 0.25))
            on_tick(len(result.latencies_s), time.perf_counter() - began)
        counting = False
        ended = True
        result.took_s = time.perf_counter() - began
        result.client_cpu = (Cpu.used().seconds - cpu.seconds) / result.took_s
    if problems:
        raise _broken_off(problems[0])
    return result


def _broken_off(err: Exception) -> Unreachable:
    if isinstance(err, Unreachable):
        return err
    if isinstance(err, trio.TooSlowError):
        return Unreachable(f"the server did not answer within {ANSWER_WITHIN_S:.0f} s; see its log")
    return Unreachable(f"the load broke off ({err}); is the server still there?")


PERCENTILES = (50.0, 90.0, 99.0, 99.9)


def percentile(ascending: Sequence[float], percent: float) -> float:
    """The smallest value that is not below `percent` of all (nearest rank): one that was really measured."""
    return ascending[max(0, math.ceil(percent / 100 * len(ascending)) - 1)]
