"""A WebSocket client on a plain socket."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    CloseConnection,
    Ping,
    RejectConnection,
    RejectData,
    Request,
    TextMessage,
)

Json = dict[str, Any]


class WsClient:
    def __init__(self, port: int, *, token: str | None = None, path: str = "/v0/ws") -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=15)
        self._ws = WSConnection(ConnectionType.CLIENT)
        headers = [(b"authorization", f"Bearer {token}".encode())] if token is not None else []
        self.sock.sendall(self._ws.send(Request(host="x", target=path, extra_headers=headers)))
        self._texts: list[str] = []
        self._partial = ""
        self.status = 0
        self.body = b""
        self.close_code: int | None = None
        while not self.status:
            self._receive()
        while self.status != 101 and not self._rejected:
            self._receive()

    _rejected = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.sock.close()

    def _receive(self) -> None:
        data = self.sock.recv(65536)
        self._ws.receive_data(data or None)
        for event in self._ws.events():
            match event:
                case AcceptConnection():
                    self.status = 101
                case RejectConnection(status_code=status, has_body=has_body):
                    self.status = status
                    self._rejected = not has_body
                case RejectData(data=body, body_finished=finished):
                    self.body += body
                    self._rejected = finished
                case TextMessage(data=text, message_finished=finished):
                    self._partial += text
                    if finished:
                        self._texts.append(self._partial)
                        self._partial = ""
                case Ping():
                    self.sock.sendall(self._ws.send(event.response()))
                case CloseConnection(code=code):
                    self.close_code = code
        assert data or self.close_code is not None or self._rejected, "the connection broke"

    def say(self, **message: object) -> None:
        self.sock.sendall(self._ws.send(TextMessage(json.dumps(message))))

    def say_raw(self, text: str) -> None:
        self.sock.sendall(self._ws.send(TextMessage(text)))

    def hear(self) -> Json:
        while not self._texts:
            self._receive()
        found: Json = json.loads(self._texts.pop(0))
        return found

    def hear_op(self, op: str) -> Json:
        message = self.hear()
        assert message["op"] == op, message
        return message

    def until(self, enough: Callable[[Json], bool]) -> list[Json]:
        found: list[Json] = []
        while not found or not enough(found[-1]):
            found.append(self.hear())
        return found

    def ask(self, **message: object) -> Json:
        self.say(**message)
        return self.hear()

    def closed(self) -> int:
        while self.close_code is None:
            self._receive()
        return self.close_code
