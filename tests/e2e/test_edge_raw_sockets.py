"""The edge over real sockets: every state a client can leave a connection in, on both lanes."""

from __future__ import annotations

import errno
import gc
import json
import os
import resource
import socket
import tempfile
from collections.abc import AsyncIterator, Callable
from functools import partial

import httpx
import pytest
import trio
from hypercorn.trio.tcp_server import TCPServer
from quart import websocket
from quart_trio import QuartTrio
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, Message, RejectConnection, Request, TextMessage

from gateway.edge import Edge, EdgeOptions, serve
from gateway.exchange import Exchange, Extent, Frame, Response, Stream, StreamHead
from gateway.fast_lane.bounds import MAX_PIPELINED, MAX_UNSENT_BYTES
from gateway.io.poller import READABLE, WRITABLE
from tests.unit.gateway.edge_harness import (
    QUICK,
    Answer,
    EchoApi,
    connect,
    echo,
    eventually,
    get,
    post,
    running_edge,
)

pytestmark = pytest.mark.trio


def options(**changes: int) -> EdgeOptions:
    values = {name: getattr(QUICK, name) for name in EdgeOptions.__slots__}
    return EdgeOptions(**{**values, **changes})


def error_code(answer: Answer) -> str:
    code = json.loads(answer.body)["error"]["code"]
    assert isinstance(code, str)
    return code


def resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()


# --- one request after another ---------------------------------------------------------------------


async def test_keep_alive_serves_many_requests_on_one_connection() -> None:
    async with running_edge(EchoApi()) as edge:
        client = await connect(edge)
        for n in range(3):
            await client.send(post(f"/v0/topics/t{n}?a=1", b"body", "Content-Type: application/json"))
            answer = await client.answer()
            assert (answer.status, answer.body) == (200, f"POST /v0/topics/t{n} a=1 body".encode())
            assert "date" in answer.headers and "connection" not in answer.headers


async def test_h01_a_request_split_at_every_byte_is_answered() -> None:
    raw = post("/v0/t", b"hello")
    async with running_edge(EchoApi()) as edge:
        client = await connect(edge)
        for byte in raw:
            await client.send(bytes([byte]))
            await trio.lowlevel.checkpoint()
        assert (await client.answer()).body == b"POST /v0/t  hello"


async def test_h01_pipelined_requests_are_answered_in_order_whoever_finishes_first() -> None:
    api = EchoApi(on_request=lambda _: None)
    async with running_edge(api) as edge:
        client = await connect(edge)
        await client.send(b"".join(get(f"/v0/{n}") for n in range(5)))
        await eventually(lambda: len(api.seen) == 5)
        for exchange in reversed(api.seen):
            exchange.respond(echo(exchange))
        assert [(await client.answer()).body for _ in range(5)] == [b"GET /v0/%d  " % n for n in range(5)]


async def test_answers_of_one_turn_cost_one_flush() -> None:
    api = EchoApi()
    async with running_edge(api) as edge:
        client = await connect(edge)
        await client.send(b"".join(get("/v0") for _ in range(20)))
        for _ in range(20):
            await client.answer()
        assert api.flushes < 10


async def test_a_deep_pipeline_is_served_to_the_end() -> None:
    count = MAX_PIPELINED * 5
    async with running_edge(EchoApi()) as edge:
        client = await connect(edge)
        await client.send(b"".join(get(f"/v0/{n}") for n in range(count)))
        for n in range(count):
            assert (await client.answer()).body == b"GET /v0/%d  " % n


async def test_connection_close_and_http10_end_the_connection() -> None:
    async with running_edge(EchoApi()) as edge:
        for raw in (get("/v0", "Connection: close"), b"GET /v0 HTTP/1.0\r\n\r\n"):
            client = await connect(edge)
            await client.send(raw)
            assert (await client.answer()).headers["connection"] == "close"
            assert await client.closed()


async def test_http10_keep_alive_is_confirmed() -> None:
    async with running_edge(EchoApi()) as edge:
        client = await connect(edge)
        for _ in range(2):
            await client.send(b"GET /v0 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
            assert (await client.answer()).headers["connection"] == "keep-alive"


async def test_head_has_the_headers_of_get_and_no_body() -> None:
    async with running_edge(EchoApi()) as edge:
        client = await connect(edge)
        await client.send(get("/v0/t"))
        full = await client.answer()
        await client.send(get("/v0/t").replace(b"GET", b"HEAD", 1))
        assert (await client.answer(head_only=True)).headers == full.headers
        await client.send(get("/v0/next"))
        assert (await client.answer()).body == b"GET /v0/next  "


async def test_extra_headers_and_bodyless_statuses_are_framed_right() -> None:
    answers = {"/v0/a": Response(429, b"{}", headers=[("Retry-After", "1")]), "/v0/b": Response(204)}
    async with running_edge(EchoApi(on_request=lambda e: e.respond(answers[e.path]))) as edge:
        client = await connect(edge)
        await client.send(get("/v0/a") + get("/v0/b") + get("/v0/a"))
        assert (await client.answer()).headers["retry-after"] == "1"
        assert "content-length" not in (await client.answer()).headers
        assert (await client.answer()).status == 429


async def test_h01_chunked_bodies_are_decoded() -> None:
    head = b"POST /v0/t HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with running_edge(EchoApi()) as edge:
        client = await connect(edge)
        await client.send(head + b"5\r\nhel")
        await trio.sleep(0.01)
        await client.send(b"lo\r\n6\r\n world\r\n0\r\n\r\n" + get("/v0/next"))
        assert (await client.answer()).body == b"POST /v0/t  hello world"
        assert (await client.answer()).body == b"GET /v0/next  "


async def test_a_body_of_many_segments_arrives_whole() -> None:
    body = os.urandom(1 << 20)
    async with running_edge(EchoApi()) as edge:
        client = await connect(edge)
        await client.send(post("/v0/t", body))
        assert (await client.answer()).body == b"POST /v0/t  " + body


async def test_expect_continue_is_answered_only_when_the_body_is_wanted() -> None:
    head = "POST /v0/t HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: {}\r\n\r\n"
    async with running_edge(EchoApi()) as edge:
        client = await connect(edge)
        await client.send(head.format(5).encode())
        assert await client.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue"
        await client.send(b"hello")
        assert (await client.answer()).body == b"POST /v0/t  hello"
        await client.send(head.format(2 << 20).encode())
        assert (await client.answer()).status == 413
        client = await connect(edge)
        await client.send(head.replace("100-continue", "tea").format(5).encode())
        assert (await client.answer()).status == 417


async def test_continue_waits_for_the_answers_before_it() -> None:
    api = EchoApi(on_request=lambda e: None if e.path == "/v0/slow" else e.respond(echo(e)))
    async with running_edge(api) as edge:
        client = await connect(edge)
        expecting = b"POST /v0/t HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"
        await client.send(get("/v0/slow") + expecting)
        await eventually(lambda: len(api.seen) == 1)
        api.seen[0].respond(echo(api.seen[0]))
        assert (await client.answer()).body == b"GET /v0/slow  "
        assert await client.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue"
        await client.send(b"ok")
        assert (await client.answer()).body == b"POST /v0/t  ok"


# --- refusals -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"\x00\x01\x02garbage", 400),
        (b"GET /v0 HTTP/1.1\r\n\r\n", 400),
        (b"GET /v0 HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET /v0 HTTP/1.1\r\nHost: x\r\nA: b\x00\r\n\r\n", 400),
        (b"GET /v0 HTTP/1.1\r\nHost: x\r\nA : b\r\n\r\n", 400),
        (b"GET /v0 HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n", 400),
        (b"POST /v0 HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"POST /v0 HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"POST /v0 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 400),
        (b"POST /v0 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"GET /v0/" + b"a" * 9000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 414),
        (b"GET /v0 HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 70_000 + b"\r\n\r\n", 431),
    ],
)
async def test_h01_refusals_have_a_json_body_and_end_the_connection(raw: bytes, status: int) -> None:
    api = EchoApi()
    async with running_edge(api) as edge:
        client = await connect(edge)
        await client.send(raw)
        answer = await client.answer()
        assert (answer.status, answer.headers["connection"]) == (status, "close")
        assert error_code(answer) == "invalid_request"
        assert await client.closed()
        assert api.seen == []
        await client.stream.aclose()
        await eventually(lambda: edge.connections == 0)


async def test_h01_requests_before_garbage_are_answered_first() -> None:
    api = EchoApi(on_request=lambda _: None)
    async with running_edge(api) as edge:
        client = await connect(edge)
        await client.send(get("/v0/ok") + b"\x00garbage")
        await eventually(lambda: len(api.seen) == 1)
        api.seen[0].respond(echo(api.seen[0]))
        assert (await client.answer()).status == 200
        assert (await client.answer()).status == 400
        assert await client.closed()


@pytest.mark.parametrize("chunked", [False, True])
async def test_h01_an_oversized_body_is_refused_and_the_client_sees_it(chunked: bool) -> None:
    api = EchoApi()
    async with running_edge(api) as edge:
        client = await connect(edge)
        framing = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {3 << 20}"
        await client.send(f"POST /v0/t HTTP/1.1\r\nHost: x\r\n{framing}\r\n\r\n".encode())
        piece = b"x" * (1 << 16)
        # All of it is sent before the answer is read: the server must not reset us meanwhile.
        for _ in range(48):
            await client.send(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
        answer = await client.answer()
        assert (answer.status, error_code(answer)) == (413, "payload_too_large")
        assert await client.closed()
        assert api.seen == []


# --- slowness -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "raw", [b"GET /v0 HT", b"POST /v0 HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nabc"]
)
async def test_h02_slow_loris_on_headers_and_body_gets_408(raw: bytes) -> None:
    async with running_edge(EchoApi(), options(request_timeout_ms=150)) as edge:
        client = await connect(edge)
        for byte in raw:  # steady progress does not buy time
            await client.send(bytes([byte]))
        assert (await client.answer()).status == 408
        assert await client.closed()


async def test_h02_silence_is_closed_without_a_word() -> None:
    async with running_edge(EchoApi(), options(request_timeout_ms=100, keepalive_timeout_ms=200)) as edge:
        silent = await connect(edge)
        assert await silent.closed()
        idle = await connect(edge)
        await idle.send(get("/v0"))
        await idle.answer()
        assert await idle.closed()


async def test_h02_a_long_poll_is_not_an_idle_connection_and_its_answer_starts_the_idle_time() -> None:
    api = EchoApi(on_request=lambda _: None)
    async with running_edge(api, options(request_timeout_ms=50, keepalive_timeout_ms=300)) as edge:
        client = await connect(edge)
        await client.send(get("/v0/wait"))
        await trio.sleep(0.4)
        api.seen[0].respond(echo(api.seen[0]))
        assert (await client.answer()).status == 200
        await trio.sleep(0.1)
        await client.send(get("/v0/again"))
        await eventually(lambda: len(api.seen) == 2)


async def test_h02_slow_loris_on_reading_is_closed_and_releases_its_files() -> None:
    released: list[bool] = []

    def big(exchange: Exchange) -> None:
        exchange.respond(Response(200, b"x" * (16 << 20), release=lambda: released.append(True)))

    async with running_edge(EchoApi(on_request=big), options(write_timeout_ms=200)) as edge:
        client = await connect(edge, receive_buffer=4096)
        await client.send(get("/v0"))
        await eventually(lambda: edge.connections == 1)
        await eventually(lambda: edge.connections == 0)
        assert released == [True]


async def test_a_slow_reader_that_makes_progress_gets_everything() -> None:
    body = os.urandom(4 << 20)
    api = EchoApi(on_request=lambda e: e.respond(Response(200, body)))
    async with running_edge(api, options(write_timeout_ms=300)) as edge:
        client = await connect(edge, receive_buffer=65536)
        await client.send(get("/v0"))
        await trio.sleep(0.1)
        assert (await client.answer()).body == body


# --- clients that leave ---------------------------------------------------------------------------------


async def test_h01_half_closed_clients_are_still_answered() -> None:
    api = EchoApi(on_request=lambda _: None)
    async with running_edge(api) as edge:
        client = await connect(edge)
        await client.send(get("/v0/a") + get("/v0/b"))
        await client.stream.send_eof()
        await eventually(lambda: len(api.seen) == 2 and api.seen[0].half_closed)
        for exchange in api.seen:
            assert not exchange.gone
            exchange.respond(echo(exchange))
        assert [(await client.answer()).body for _ in range(2)] == [b"GET /v0/a  ", b"GET /v0/b  "]
        assert await client.closed()


@pytest.mark.parametrize("length", [0, 1, 10, 30, 51, 62])
async def test_h05_an_early_close_in_any_state_leaves_nothing_behind(length: int) -> None:
    raw = post("/v0/t", b"hello world")
    async with running_edge(EchoApi(on_request=lambda _: None)) as edge:
        for leave in ("close", "reset"):
            client = await connect(edge)
            await client.send(raw[:length])
            await eventually(lambda: edge.connections == 1)
            client.reset() if leave == "reset" else await client.stream.aclose()
            await eventually(lambda: edge.connections == 0)


async def test_h05_a_reset_while_waiting_marks_the_exchange_gone() -> None:
    api = EchoApi(on_request=lambda _: None)
    async with running_edge(api) as edge:
        client = await connect(edge)
        await client.send(get("/v0/a") + get("/v0/b"))
        await eventually(lambda: len(api.seen) == 2)
        gone: list[str] = []
        for exchange in api.seen:
            exchange.on_gone(partial(gone.append, exchange.path))
        client.reset()
        await eventually(lambda: gone == ["/v0/a", "/v0/b"])
        assert all(exchange.gone for exchange in api.seen)
        released: list[bool] = []
        api.seen[0].respond(Response(200, b"late", release=lambda: released.append(True)))
        assert released == [True]


async def test_h05_answering_others_from_a_gone_callback_is_harmless(
    caplog: pytest.LogCaptureFixture,
) -> None:
    api = EchoApi(on_request=lambda _: None)
    async with running_edge(api) as edge:
        client = await connect(edge)
        await client.send(get("/v0/a") + get("/v0/b") + get("/v0/c"))
        await eventually(lambda: len(api.seen) == 3)
        streams: list[Stream] = []
        api.seen[0].on_gone(lambda: api.seen[1].respond(echo(api.seen[1])))
        api.seen[0].on_gone(lambda: streams.append(api.seen[2].respond_stream(StreamHead())))
        client.reset()
        await eventually(lambda: edge.connections == 0)
        assert streams[0].gone
    assert caplog.records == []


async def test_h05_a_client_that_vanishes_mid_answer_is_dropped_quietly(
    caplog: pytest.LogCaptureFixture,
) -> None:
    api = EchoApi(on_request=lambda e: e.respond(Response(200, b"x" * (8 << 20))))
    async with running_edge(api) as edge:
        client = await connect(edge, receive_buffer=4096)
        await client.send(get("/v0"))
        await client.until(b"\r\n\r\n")
        client.reset()
        await eventually(lambda: edge.connections == 0)
    assert caplog.records == []


async def test_a_failing_handler_is_one_500_and_nobody_elses_problem() -> None:
    def fail(exchange: Exchange) -> None:
        if exchange.path == "/v0/bug":
            raise RuntimeError("secret detail")
        exchange.respond(echo(exchange))

    async with running_edge(EchoApi(on_request=fail)) as edge:
        client = await connect(edge)
        await client.send(get("/v0/bug") + get("/v0/fine"))
        answer = await client.answer()
        assert (answer.status, error_code(answer)) == (500, "internal")
        assert b"secret" not in answer.body
        assert (await client.answer()).status == 200


async def test_h01_no_descriptor_leaks_after_500_abusive_connections() -> None:
    shapes = [
        b"",
        b"\x00",
        b"GET /v0 HT",
        post("/v0", b"x")[:-1],
        get("/v0"),
        get("/docs"),
        b"PRI * HTTP/2.0\r\n\r\n",
    ]
    async with running_edge(EchoApi()) as edge:
        before = len(os.listdir("/proc/self/fd"))
        for n in range(500):
            client = await connect(edge)
            await client.send(shapes[n % len(shapes)])
            client.reset() if n % 2 else await client.stream.aclose()
        await eventually(lambda: edge.connections == 0)
        assert len(os.listdir("/proc/self/fd")) <= before


async def test_h01_memory_is_bounded_for_a_client_that_pipelines_forever_and_never_reads() -> None:
    answer = b"x" * 20_000
    api = EchoApi(on_request=lambda e: e.respond(Response(200, answer)))
    async with running_edge(api) as edge:
        client = await connect(edge, receive_buffer=4096)
        burst = get("/v0/t") * 2000
        gc.collect()
        before = resident_bytes()
        with trio.move_on_after(1.0):
            while True:
                await client.send(burst)
        # Whatever was asked beyond the bounds is still in the kernel, unread and unanswered.
        held = MAX_UNSENT_BYTES + MAX_PIPELINED * len(answer)
        assert len(api.seen) * len(answer) < held + (16 << 20)  # plus what the socket's buffers took
        api.seen.clear()
        assert resident_bytes() - before < 32 << 20


# --- extents ----------------------------------------------------------------------------------------------


async def test_extents_are_sent_between_body_and_tail_and_released() -> None:
    content = os.urandom(6 << 20)
    released: list[bool] = []
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.flush()
        extents = [Extent(file.fileno(), 0, 5 << 20), Extent(file.fileno(), 5 << 20, 1 << 20)]
        response = Response(200, b"[", extents=extents, tail=b"]", release=lambda: released.append(True))
        async with running_edge(EchoApi(on_request=lambda e: e.respond(response))) as edge:
            client = await connect(edge)
            await client.send(get("/v0"))
            answer = await client.answer()
            assert answer.body == b"[" + content + b"]"
            await eventually(lambda: released == [True])


@pytest.mark.parametrize("size", [10_000, 100_000, 5 << 20])
async def test_answers_around_one_extent_keep_their_place_in_line(size: int) -> None:
    """Pipelined between others, to a client that reads late: some are sent at once, the rest is held."""
    content = os.urandom(size)
    released: list[bool] = []
    with tempfile.TemporaryFile() as file:
        file.write(b"no" + content + b"no")
        file.flush()

        def answer(exchange: Exchange) -> None:
            if exchange.path == "/v0/other":
                exchange.respond(Response(200, b"other"))
                return
            extents = [Extent(file.fileno(), 2, size)]
            exchange.respond(
                Response(200, b"[", extents=extents, tail=b"]", release=lambda: released.append(True))
            )

        async with running_edge(EchoApi(on_request=answer)) as edge:
            client = await connect(edge)
            await client.send((get("/v0/file") + get("/v0/other") + get("/v0/file")) * 3)
            await trio.sleep(0.1)
            for _ in range(3):
                for body in (b"[" + content + b"]", b"other", b"[" + content + b"]"):
                    got = await client.answer()
                    assert got.status == 200 and got.body == body
            await eventually(lambda: len(released) == 6)


async def test_a_client_that_leaves_during_an_extent_gives_its_file_back() -> None:
    released: list[bool] = []
    with tempfile.TemporaryFile() as file:
        file.truncate(64 << 20)
        extents = [Extent(file.fileno(), 0, 3 << 20)]
        async with running_edge(
            EchoApi(
                on_request=lambda e: e.respond(
                    Response(200, extents=extents, release=lambda: released.append(True))
                )
            )
        ) as edge:
            client = await connect(edge)
            await client.send(get("/v0") * 4)
            await trio.sleep(0.05)
            await client.stream.aclose()
            await eventually(lambda: len(released) > 0)


async def test_a_file_shorter_than_its_extent_ends_the_connection_not_the_server() -> None:
    with tempfile.TemporaryFile() as file:
        file.write(b"short")
        file.flush()
        response = Response(200, extents=[Extent(file.fileno(), 0, 100)])
        api = EchoApi(on_request=lambda e: e.respond(response if e.path == "/v0/cut" else echo(e)))
        async with running_edge(api) as edge:
            client = await connect(edge)
            await client.send(get("/v0/cut"))
            await client.until(b"short")
            assert await client.closed()
            other = await connect(edge)
            await other.send(get("/v0"))
            assert (await other.answer()).status == 200


# --- streams ----------------------------------------------------------------------------------------------


class StreamApi(EchoApi):
    def __init__(self) -> None:
        super().__init__(on_request=self._open)
        self.streams: list[Stream] = []

    def _open(self, exchange: Exchange) -> None:
        if exchange.path == "/v0/stream":
            self.streams.append(exchange.respond_stream(StreamHead(headers=[("Cache-Control", "no-store")])))
        else:
            exchange.respond(echo(exchange))


async def test_a_stream_sends_its_head_at_once_then_chunks_then_the_next_answer() -> None:
    api = StreamApi()
    async with running_edge(api) as edge:
        client = await connect(edge)
        await client.send(get("/v0/stream") + get("/v0/after"))
        head = await client.until(b"\r\n\r\n")
        assert b"Transfer-Encoding: chunked" in head and b"Cache-Control: no-store" in head
        for n in range(3):
            assert api.streams[0].push(Frame(b"frame %d" % n))
            assert await client.chunk() == b"frame %d" % n
        assert len(api.seen) == 1
        api.streams[0].end(Frame(b"bye"))
        assert await client.chunk() == b"bye"
        assert await client.chunk() == b""
        assert (await client.answer()).body == b"GET /v0/after  "


async def test_a_stream_for_http10_ends_with_the_connection() -> None:
    api = StreamApi()
    async with running_edge(api) as edge:
        client = await connect(edge)
        await client.send(b"GET /v0/stream HTTP/1.0\r\n\r\n")
        assert b"chunked" not in await client.until(b"\r\n\r\n")
        api.streams[0].push(Frame(b"plain"))
        api.streams[0].end()
        assert await client.take(5) == b"plain"
        assert await client.closed()


async def test_a_stream_behind_an_unanswered_request_waits_its_turn() -> None:
    api = StreamApi()
    opened = api._open
    api.on_request = lambda e: None if e.path == "/v0/slow" else opened(e)
    async with running_edge(api) as edge:
        client = await connect(edge)
        await client.send(get("/v0/slow") + get("/v0/stream"))
        await eventually(lambda: len(api.streams) == 1)
        assert not api.streams[0].push(Frame(b"too early"))
        api.seen[0].respond(echo(api.seen[0]))
        assert (await client.answer()).body == b"GET /v0/slow  "
        await client.until(b"\r\n\r\n")
        assert api.streams[0].push(Frame(b"now"))
        assert await client.chunk() == b"now"


async def test_h04_a_stuck_stream_refuses_frames_and_resumes_when_read() -> None:
    api = StreamApi()
    async with running_edge(api) as edge:
        client = await connect(edge, receive_buffer=4096)
        await client.send(get("/v0/stream"))
        await client.until(b"\r\n\r\n")
        stream = api.streams[0]
        writable: list[bool] = []
        stream.on_writable(lambda: writable.append(True))
        frame = Frame(b"x" * 100_000)
        taken = 0
        while stream.push(frame):
            taken += 1
            assert taken < 1000
        assert writable == []
        for _ in range(taken):
            assert await client.chunk() == frame.data
        await eventually(lambda: writable == [True])
        assert stream.push(Frame(b"again"))
        assert await client.chunk() == b"again"


@pytest.mark.parametrize("leave", ["close", "reset"])
async def test_h05_a_stream_learns_that_its_client_left(leave: str) -> None:
    api = StreamApi()
    async with running_edge(api) as edge:
        client = await connect(edge)
        await client.send(get("/v0/stream"))
        await client.until(b"\r\n\r\n")
        gone: list[bool] = []
        api.streams[0].on_gone(lambda: gone.append(True))
        client.reset() if leave == "reset" else await client.stream.aclose()
        await eventually(lambda: gone == [True])
        assert not api.streams[0].push(Frame(b"x"))
        await eventually(lambda: edge.connections == 0)


async def test_h04_a_stream_that_stays_stuck_is_cut() -> None:
    api = StreamApi()
    async with running_edge(api, options(write_timeout_ms=100)) as edge:
        client = await connect(edge, receive_buffer=4096)
        await client.send(get("/v0/stream"))
        await client.until(b"\r\n\r\n")
        gone: list[bool] = []
        api.streams[0].on_gone(lambda: gone.append(True))
        while api.streams[0].push(Frame(b"x" * 100_000)):
            pass
        await eventually(lambda: gone == [True])
        assert edge.connections == 0


async def test_answers_given_outside_a_turn_are_sent_without_one() -> None:
    api = EchoApi(on_request=lambda _: None)
    async with running_edge(api) as edge:
        clients = [await connect(edge) for _ in range(3)]
        for client in clients:
            await client.send(get("/v0/wait"))
        await eventually(lambda: len(api.seen) == 3)
        flushes = api.flushes
        with edge.turn():
            for exchange in api.seen:
                exchange.respond(echo(exchange))
        assert api.flushes == flushes + 1
        for client in clients:
            assert (await client.answer()).status == 200


# --- accepting and ending -----------------------------------------------------------------------


async def test_p07_out_of_descriptors_accepting_pauses_and_existing_work_goes_on() -> None:
    async with running_edge(EchoApi()) as edge:
        working = await connect(edge)
        await working.send(get("/v0/before"))
        await working.answer()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        late = socket.socket()
        late.setblocking(False)
        fillers: list[int] = []
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        try:
            with pytest.raises(OSError) as caught:
                while True:
                    fillers.append(os.dup(late.fileno()))
            assert caught.value.errno == errno.EMFILE
            assert late.connect_ex(edge.addresses[0]) in (0, errno.EINPROGRESS)
            await eventually(lambda: not edge.accepting)
            await working.send(get("/v0/during"))
            assert (await working.answer()).body == b"GET /v0/during  "
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for filler in fillers:
                os.close(filler)
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(late))
        await stream.send_all(get("/v0/late"))
        with trio.fail_after(5):
            assert b"GET /v0/late" in await stream.receive_some(1000)
        assert edge.accepting


async def test_serve_binds_a_free_port_on_every_address_of_the_host() -> None:
    async with trio.open_nursery() as nursery:
        edge: Edge = await nursery.start(partial(serve, EchoApi(), host="localhost", port=0, options=QUICK))
        assert len({port for _, port in edge.addresses}) == 1
        client = await connect(edge)
        await client.send(get("/v0"))
        assert (await client.answer()).status == 200
        assert await edge.drain(5)


async def test_a_link_in_the_poller_is_read_in_a_turn_and_its_answers_leave_with_it() -> None:
    api = EchoApi(on_request=lambda _: None)
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    written: list[bool] = []
    with ours, theirs:
        async with running_edge(api) as edge:
            poller = edge.poller

            def on_event(mask: int) -> None:
                if mask & READABLE:
                    ours.recv(100)
                    for exchange in api.seen:
                        exchange.respond(echo(exchange))
                if mask & WRITABLE:
                    written.append(True)
                    poller.modify(ours.fileno(), READABLE)

            poller.register(ours.fileno(), READABLE, on_event)
            client = await connect(edge)
            await client.send(get("/v0/a") + get("/v0/b"))
            await eventually(lambda: len(api.seen) == 2)
            flushes = api.flushes
            theirs.send(b"answers")
            assert [(await client.answer()).body for _ in range(2)] == [b"GET /v0/a  ", b"GET /v0/b  "]
            assert api.flushes == flushes + 1
            poller.modify(ours.fileno(), READABLE | WRITABLE)
            await eventually(lambda: written == [True])
            poller.unregister(ours.fileno())


async def test_ipv6_is_served() -> None:
    async with running_edge(EchoApi(), host="::1") as edge:
        client = await connect(edge)
        await client.send(get("/v0"))
        assert (await client.answer()).status == 200


async def test_draining_answers_what_is_in_flight_then_ends() -> None:
    api = EchoApi(on_request=lambda _: None)
    async with running_edge(api) as edge:
        busy, idle = await connect(edge), await connect(edge)
        await busy.send(get("/v0/a") + get("/v0/b"))
        await eventually(lambda: len(api.seen) == 2 and edge.connections == 2)
        finished: list[bool] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_record, finished, edge)
            assert await idle.closed()
            with pytest.raises(OSError):
                await connect(edge)
            for exchange in api.seen:
                exchange.respond(echo(exchange))
            assert "connection" not in (await busy.answer()).headers
            assert (await busy.answer()).headers["connection"] == "close"
            assert await busy.closed()
        assert finished == [True]


async def _record(finished: list[bool], edge: Edge) -> None:
    finished.append(await edge.drain(5))


async def test_draining_is_bounded_and_tells_those_it_cuts_off() -> None:
    api = EchoApi(on_request=lambda _: None)
    async with running_edge(api) as edge:
        client = await connect(edge)
        await client.send(get("/v0/forever"))
        await eventually(lambda: len(api.seen) == 1)
        assert not await edge.drain(0.1)
        assert await client.closed()
        assert api.seen[0].gone


# --- the full lane ------------------------------------------------------------------------------


def pages(app: QuartTrio) -> None:
    @app.get("/docs")
    async def docs() -> str:
        return "the docs"

    @app.websocket("/v0/ws")
    async def echo_socket() -> None:
        while True:
            await websocket.send(await websocket.receive())


def base_url(edge: Edge) -> str:
    return f"http://127.0.0.1:{edge.addresses[0][1]}"


async def test_pages_are_served_on_the_same_port_and_connection_as_the_api() -> None:
    async with running_edge(EchoApi(), registrations=[pages]) as edge:
        client = await connect(edge)
        await client.send(get("/v0/first") + get("/docs") + get("/v0/last"))
        assert (await client.answer()).body == b"GET /v0/first  "
        assert (await client.answer()).body == b"the docs"
        assert (await client.answer()).body == b"GET /v0/last  "


async def test_a_page_asked_for_behind_a_slow_call_waits_for_its_answer() -> None:
    api = EchoApi(on_request=lambda _: None)
    async with running_edge(api, registrations=[pages]) as edge:
        client = await connect(edge)
        await client.send(get("/v0/slow") + get("/docs"))
        await eventually(lambda: len(api.seen) == 1)
        api.seen[0].respond(echo(api.seen[0]))
        assert (await client.answer()).body == b"GET /v0/slow  "
        assert (await client.answer()).body == b"the docs"


async def test_a_full_full_lane_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.edge.MAX_FULL_LANE_CONNECTIONS", 0)
    async with running_edge(EchoApi(), registrations=[pages]) as edge:
        client = await connect(edge)
        await client.send(get("/docs"))
        answer = await client.answer()
        assert (answer.status, error_code(answer)) == (429, "throttled")
        assert await client.closed()


async def test_an_unknown_page_is_a_json_404() -> None:
    async with running_edge(EchoApi(), registrations=[pages]) as edge:
        client = await connect(edge)
        await client.send(get("/nothing"))
        answer = await client.answer()
        assert (answer.status, error_code(answer)) == (404, "not_found")
        await client.send(get("/docs").replace(b"GET", b"DELETE"))
        answer = await client.answer()
        assert (answer.status, error_code(answer)) == (405, "method_not_allowed")
        assert "GET" in answer.headers["allow"]


async def test_websocket_upgrades_go_to_the_full_lane() -> None:
    async with running_edge(EchoApi(), registrations=[pages]) as edge:
        client = await connect(edge)
        ws = WSConnection(ConnectionType.CLIENT)
        await client.send(ws.send(Request(host="x", target="/v0/ws")))
        sent = False
        while True:
            assert await client.more()
            ws.receive_data(client.buffer)
            client.buffer = b""
            for event in ws.events():
                if isinstance(event, AcceptConnection):
                    await client.send(ws.send(Message(data="hello")))
                    sent = True
                elif isinstance(event, TextMessage):
                    assert sent and event.data == "hello"
                    return


async def test_a_websocket_nobody_serves_is_refused() -> None:
    async with running_edge(EchoApi()) as edge:
        client = await connect(edge)
        ws = WSConnection(ConnectionType.CLIENT)
        await client.send(ws.send(Request(host="x", target="/v0/nothing")))
        while True:
            assert await client.more()
            ws.receive_data(client.buffer)
            client.buffer = b""
            for event in ws.events():
                if isinstance(event, RejectConnection):
                    assert event.status_code == 404
                    return


ANSWERS: dict[str, Callable[[Exchange], Response]] = {
    "/v0/echo": echo,
    "/v0/json": lambda e: Response(201, b'{"ok":true}', headers=[("X-Extra", "1")], tail=b"\n"),
    "/v0/busy": lambda e: Response(429, b'{"error":{}}', headers=[("Retry-After", "2")]),
    "/v0/big": lambda e: Response(200, b"x" * 500_000),
}


async def test_both_lanes_give_the_same_status_headers_and_bodies() -> None:
    api = EchoApi(on_request=lambda e: e.respond(ANSWERS[e.path](e)))
    async with (
        running_edge(api) as edge,
        httpx.AsyncClient(base_url=base_url(edge)) as one,
        httpx.AsyncClient(base_url=base_url(edge), http1=False, http2=True) as two,
    ):
        for path in ANSWERS:
            for method in ("GET", "POST", "HEAD", "DELETE", "BREW"):
                content = b"body" if method == "POST" else None
                first = await one.request(method, f"{path}?q=%20a", content=content)
                second = await two.request(method, f"{path}?q=%20a", content=content)
                assert (first.http_version, second.http_version) == ("HTTP/1.1", "HTTP/2")
                assert first.status_code == second.status_code
                assert first.content == second.content
                first.headers.pop("date"), second.headers.pop("date")
                assert dict(first.headers) == dict(second.headers)


async def test_both_lanes_hand_the_api_the_same_request() -> None:
    api = EchoApi()
    headers = {"X-Thing": "a", "Content-Type": "application/json"}
    async with (
        running_edge(api) as edge,
        httpx.AsyncClient(base_url=base_url(edge), headers=headers) as one,
        httpx.AsyncClient(base_url=base_url(edge), headers=headers, http1=False, http2=True) as two,
    ):
        for client in (one, two):
            await client.post("/v0/topics/a%2Fb//c?x=%2F&y", content=b"{}")
    first, second = api.seen
    assert (first.method, first.path, first.query, first.body) == (
        "POST",
        "/v0/topics/a%2Fb//c",
        "x=%2F&y",
        b"{}",
    )
    for name in ("method", "path", "query", "body"):
        assert getattr(first, name) == getattr(second, name)
    for name in ("x-thing", "content-type", "content-length", "host"):
        assert first.headers[name] == second.headers[name]
    assert (first.extents_allowed, second.extents_allowed) == (True, False)


async def test_h01_the_body_limit_holds_on_http2_too_and_the_connection_survives() -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(40):
            yield b"x" * 65536

    async with (
        running_edge(EchoApi()) as edge,
        httpx.AsyncClient(base_url=base_url(edge), http1=False, http2=True) as client,
    ):
        answer = await client.post("/v0/t", content=b"x" * (2 << 20))
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "payload_too_large")
        answer = await client.post("/v0/t", content=endless())
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "payload_too_large")
        assert (await client.get("/v0/fine")).status_code == 200
        assert edge.connections == 1


async def test_a_page_that_ignores_a_long_http2_body_does_not_break_the_connection() -> None:
    async with (
        running_edge(EchoApi(), registrations=[pages]) as edge,
        httpx.AsyncClient(base_url=base_url(edge), http1=False, http2=True) as client,
    ):
        assert (await client.post("/docs", content=b"x" * (512 << 10))).status_code == 405
        assert (await client.get("/docs")).text == "the docs"
        assert edge.connections == 1


async def test_streams_work_over_http2() -> None:
    api = StreamApi()
    async with (
        running_edge(api) as edge,
        httpx.AsyncClient(base_url=base_url(edge), http1=False, http2=True) as client,
        client.stream("GET", "/v0/stream") as response,
    ):
        assert response.headers["content-type"].startswith("text/event-stream")
        parts = response.aiter_raw()
        for n in range(3):
            assert api.streams[0].push(Frame(b"frame %d" % n))
            assert await anext(parts) == b"frame %d" % n
        api.streams[0].end(Frame(b"bye"))
        assert [part async for part in parts] == [b"bye"]


async def test_h05_an_http2_client_that_leaves_marks_the_exchange_gone() -> None:
    api = EchoApi(on_request=lambda _: None)
    async with running_edge(api) as edge:
        gone: list[bool] = []
        with pytest.raises(httpx.TimeoutException):
            async with httpx.AsyncClient(
                base_url=base_url(edge), http1=False, http2=True, timeout=0.2
            ) as client:
                await client.get("/v0/wait")
        api.seen[0].on_gone(lambda: gone.append(True))
        await eventually(lambda: gone == [True] and api.seen[0].gone)
        await eventually(lambda: edge.connections == 0)


async def test_hypercorn_still_has_the_shape_the_glue_relies_on() -> None:
    assert TCPServer.__init__.__code__.co_varnames[:6] == (
        "self",
        "app",
        "config",
        "context",
        "state",
        "stream",
    )
