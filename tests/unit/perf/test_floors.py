"""Each floor answers as it should: a yardstick that drops or mixes up requests measures nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from perf.compare.latency import append_ours, tail_http
from perf.floors.answers import write_answer
from perf.queue_clients import http_request
from perf.servers import Server, connect, free_port, listens, running
from perf.shard_bench import write_body

CONNECTIONS = 8
ROUNDS = 3


@contextmanager
def floor(module: str, *options: str) -> Iterator[Server]:
    port = free_port()
    command = [sys.executable, "-m", f"perf.floors.{module}", str(port), *options]
    with running(module, command, port, listens) as server:
        yield server


def exchange(server: Server, request: bytes, answer: bytes) -> None:
    """From several connections at once, and in two parts on the last of them."""
    with ExitStack() as stack:
        socks = [stack.enter_context(connect(server.port)) for _ in range(CONNECTIONS)]
        for _ in range(ROUNDS):
            for sock in socks[:-1]:
                sock.sendall(request)
            for part in (request[:70], request[70:]):
                socks[-1].sendall(part)
            for sock in socks:
                with sock.makefile("rb") as told:
                    assert told.read(len(answer)) == answer


def log_of(directory: Path, *options: str) -> list[str]:
    return ["--behind", "--log", str(directory / "log"), *options]


def test_one_process_answers_each_request() -> None:
    with floor("gateway") as server:
        exchange(server, http_request("/v0/topics/t", write_body(1, 100)), write_answer(1))
        append_ours(server, 2, pause_s=0)


def test_two_processes_answer_each_request() -> None:
    with floor("gateway", "--behind") as server:
        exchange(server, http_request("/v0/topics/t", write_body(1, 100)), write_answer(1))
        assert set(server.cpu_s()) == {"gateway", "worker"}


@pytest.mark.parametrize("options", [["--decode"], ["--sync", "inline"], ["--sync", "thread"]])
def test_a_worker_with_a_log_has_written_what_it_answers(tmp_path: Path, options: list[str]) -> None:
    body = write_body(100, 100)
    with floor("gateway", "--records", "100", *log_of(tmp_path, *options)) as server:
        exchange(server, http_request("/v0/topics/t", body), write_answer(100))
        with open(tmp_path / "log", "rb") as log:
            assert log.read(CONNECTIONS * ROUNDS * len(body) + 1) == body * CONNECTIONS * ROUNDS + b"\0"


@pytest.mark.parametrize("options", [[], ["--behind"]])
def test_a_reader_waits_for_the_write(options: list[str]) -> None:
    with floor("gateway", "--hold", "2", *options) as server:
        assert tail_http(server, "/v0/topics/t", 2).value > 0


def test_a_file_is_sent_whole_also_where_it_does_not_fit_at_once(tmp_path: Path) -> None:
    content = bytes(range(256)) * 40_000
    (tmp_path / "file").write_bytes(content)
    with floor("file_server", str(tmp_path / "file")) as server, connect(server.port) as sock:
        for _ in range(ROUNDS):
            sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            with sock.makefile("rb") as told:
                while told.readline() != b"\r\n":
                    pass
                assert told.read(len(content)) == content


def test_the_floor_of_a_start_answers() -> None:
    with floor("start") as server:
        append_ours(server, 1, pause_s=0)


def test_answers_are_as_long_as_those_of_the_product() -> None:
    assert 280 <= len(write_answer(1)) <= 320
    assert 700 <= len(write_answer(100)) <= 1200  # it lists the seqs, which have three digits or seven
