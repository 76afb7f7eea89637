"""Watchers and writers of three systems, as little as it takes: bytes to send, and a token to look for in what comes.

Every record carries a token with its number. A watcher has received record n when its token has come; nobody parses
more than that, so that the load generator costs about the same whichever system it watches.
"""

from __future__ import annotations

import json
import socket
from typing import Protocol

from perf.queue_clients import http_request, resp
from perf.servers import connect

TOPIC = "bench-fanout"
_PAD = b"x" * 70  # records of about 100 bytes


def token(number: int) -> bytes:
    return b"@%08d@" % number


class Watching(Protocol):
    """One watcher's connection."""

    sock: socket.socket

    def again(self) -> None:
        """The record has come: ask for the next one, if the protocol wants that."""


class Writer(Protocol):
    sock: socket.socket

    def write(self, number: int) -> None: ...
    def answered(self, data: bytes) -> int:
        """How many writes these bytes confirm."""


def receive_until(sock: socket.socket, mark: bytes) -> bytes:
    data = b""
    while mark not in data:
        more = sock.recv(65536)
        assert more, f"closed after {data!r}"
        data += more
    return data


def receive_answer(sock: socket.socket) -> bytes:
    """The body of one HTTP answer; nothing may follow it."""
    head, _, body = receive_until(sock, b"\r\n\r\n").partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
    while len(body) < length:
        body += sock.recv(65536)
    return body


# --- topicsd ----------------------------------------------------------------------------------------------


class SseWatching:
    def __init__(self, port: int, setup: socket.socket, options: dict[str, object] | None = None) -> None:
        body = json.dumps({"topics": {TOPIC: {"tail": True}}, **(options or {})}).encode()
        setup.sendall(http_request("/v0/watch", body))
        url = json.loads(receive_answer(setup))["stream_url"]
        self.sock = connect(port)
        self.sock.sendall(f"GET {url} HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\n\r\n".encode())

    def ready(self) -> None:
        receive_until(self.sock, b"event: caught-up")

    def again(self) -> None:
        return


class HttpWriter:
    def __init__(self, port: int) -> None:
        self.sock = connect(port)

    def write(self, number: int) -> None:
        data = json.dumps({"n": token(number).decode(), "pad": _PAD.decode()})
        body = f'{{"records":[{{"data":{data}}}]}}'.encode()
        self.sock.sendall(http_request(f"/v0/topics/{TOPIC}?return_seqs=false", body))

    def answered(self, data: bytes) -> int:
        return data.count(b"HTTP/1.1 20")


# --- Redis ------------------------------------------------------------------------------------------------


class XreadWatching:
    """Blocked in XREAD; `$` would miss what comes between two calls, so it asks behind the last id it got."""

    def __init__(self, port: int, last_id: bytes) -> None:
        self.sock = connect(port)
        self.last_id = last_id
        self.again()

    def ready(self) -> None:
        return

    def took(self, data: bytes) -> None:
        # … *2 $15 <id> *4 $1 n $10 <token> …: the last id stands in front of the last entry's fields.
        at = data.rfind(b"\r\n*4\r\n")
        if at < 0:
            return
        start = data.rfind(b"\r\n", 0, at) + 2
        self.last_id = data[start:at]

    def again(self) -> None:
        self.sock.sendall(resp(b"XREAD", b"BLOCK", b"0", b"STREAMS", TOPIC.encode(), self.last_id))


class XaddWriter:
    def __init__(self, port: int) -> None:
        self.sock = connect(port)

    def write(self, number: int) -> None:
        self.sock.sendall(resp(b"XADD", TOPIC.encode(), b"*", b"n", token(number), b"pad", _PAD))

    def answered(self, data: bytes) -> int:
        return data.count(b"\r\n") // 2


# --- NATS -------------------------------------------------------------------------------------------------

_HELLO = b'CONNECT {"verbose":false,"pedantic":false}\r\n'


class NatsWatching:
    """A plain subscription: nothing is stored, nothing is acked. The least that a push can cost."""

    def __init__(self, port: int) -> None:
        self.sock = connect(port)
        self.sock.sendall(_HELLO + b"SUB %b 1\r\nPING\r\n" % TOPIC.encode())

    def ready(self) -> None:
        receive_until(self.sock, b"PONG\r\n")

    def again(self) -> None:
        return


class NatsWriter:
    def __init__(self, port: int) -> None:
        self.sock = connect(port)
        self.sock.sendall(_HELLO + b"PING\r\n")
        receive_until(self.sock, b"PONG\r\n")

    def write(self, number: int) -> None:
        payload = token(number) + _PAD
        # A PING behind it, so that this writer waits for an answer like the others.
        self.sock.sendall(b"PUB %b %d\r\n%b\r\nPING\r\n" % (TOPIC.encode(), len(payload), payload))

    def answered(self, data: bytes) -> int:
        return data.count(b"PONG\r\n")
