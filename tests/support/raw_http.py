"""HTTP spoken by hand, for clients that stop in the middle of it."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Sequence
from typing import Any

import h2.config
import h2.connection
import h2.events


def request_bytes(method: str, target: str, body: bytes | None = None, *headers: str) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", "Host: x", *headers]
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + (body or b"")


def connect(port: int, *, receive_buffer: int | None = None) -> socket.socket:
    sock = socket.socket()
    if receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.settimeout(20)
    sock.connect(("127.0.0.1", port))
    return sock


def reset(sock: socket.socket) -> None:
    """Vanish without a goodbye."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def read_answer(sock: socket.socket) -> tuple[int, dict[str, Any]]:
    """Status and document of one answer on a connection without anything behind it."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += _more(sock)
    head, _, body = data.partition(b"\r\n\r\n")
    fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
    while len(body) < int(fields[b"content-length"]):
        body += _more(sock)
    return int(head.split()[1]), json.loads(body)


def _more(sock: socket.socket) -> bytes:
    data = sock.recv(1 << 16)
    assert data, "closed before the answer was complete"
    return data


class Http2:
    """One HTTP/2 connection with prior knowledge. Nothing is read unless asked for."""

    def __init__(self, port: int) -> None:
        self.socket = connect(port)
        self.protocol = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
        self.protocol.initiate_connection()
        self.flush()

    def flush(self) -> None:
        self.socket.sendall(self.protocol.data_to_send())

    def request(self, method: str, path: str, body: Sequence[bytes] = (), *, complete: bool = True) -> int:
        """Sends the head and these pieces; `complete`: that was all. Returns the number of the stream."""
        stream = self.protocol.get_next_available_stream_id()
        headers = [(":method", method), (":path", path), (":scheme", "http"), (":authority", "x")]
        if body:
            headers.append(("content-type", "application/json"))
        self.protocol.send_headers(stream, headers, end_stream=complete and not body)
        for place, piece in enumerate(body):
            self.protocol.send_data(stream, piece, end_stream=complete and place == len(body) - 1)
        self.flush()
        return stream

    def reset_stream(self, stream: int) -> None:
        self.protocol.reset_stream(stream)
        self.flush()

    def wait_ended(self, stream: int) -> bytes:
        """The body of the answer."""
        body = b""
        while True:
            for event in self.protocol.receive_data(_more(self.socket)):
                if isinstance(event, h2.events.DataReceived) and event.stream_id == stream:
                    body += event.data
                    self.protocol.acknowledge_received_data(event.flow_controlled_length, stream)
                elif isinstance(event, h2.events.StreamEnded) and event.stream_id == stream:
                    return body
            self.flush()

    def wait_closed(self) -> None:
        """Until the server ends the connection."""
        while data := self.socket.recv(1 << 16):
            self.protocol.receive_data(data)
        self.socket.close()
