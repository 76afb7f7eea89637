"""Asking a running worker over its Unix socket (docs/wire-protocol.md, INSPECT)."""

from __future__ import annotations

import json
import socket
from types import TracebackType
from typing import Self

from shard_worker.inspection import Answer, Options
from shard_worker.serve.turns import peer_uid
from shared.cbor_body import load_map
from shared.session import ClientSession, LinkState
from shared.version import VERSION
from shared.wire import Answer as WireAnswer
from shared.wire import LinkError, Op
from topicsd.inspection.questions import AskFailed

_TIMEOUT_S = 30.0
_CHUNK_BYTES = 1 << 18


class NotServing(Exception):
    """Nobody listens on the socket."""


class LiveShard:
    """One link to one worker; questions one after the other."""

    kind = "live"

    def __init__(self, path: str, uid: int) -> None:
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._sock.settimeout(_TIMEOUT_S)
        self._session: ClientSession[None] = ClientSession(role="cli", version=VERSION, max_queued=1)
        try:
            self._sock.connect(path)
            if peer_uid(self._sock) != uid:
                raise AskFailed(f"{path} belongs to another user: run this as the user of the server")
            self._sock.sendall(self._session.hello())
            while self._session.state is LinkState.HELLO:
                self._receive()
        except (FileNotFoundError, ConnectionRefusedError) as err:
            self._sock.close()
            raise NotServing(path) from err
        except BaseException:
            self._sock.close()
            raise

    def ask(self, question: str, options: Options) -> Answer:
        asked = self._session.submit(Op.INSPECT, "", b"", {**options, "question": question}, None)
        self._sock.sendall(self._session.take_outgoing())
        while True:
            for message in self._receive():
                if message.id == asked:
                    self._session.settle(asked)
                    return _content(message)

    def _receive(self) -> list[WireAnswer]:
        data = self._sock.recv(_CHUNK_BYTES)
        if not data:
            raise AskFailed("the worker closed the link: it may be restarting, so try again")
        try:
            return [message for message in self._session.receive(data) if isinstance(message, WireAnswer)]
        except LinkError as err:
            raise AskFailed(f"the worker speaks another protocol: {err}") from err

    def close(self) -> None:
        self._sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _content(message: WireAnswer) -> Answer:
    if message.status == 200:
        return load_map(message.body).rest()
    error = json.loads(message.body)["error"]
    if "unknown operation" in str(error["message"]):
        raise AskFailed("the running server is an older release that cannot be asked: upgrade it, or stop it")
    raise AskFailed(str(error["message"]), code=str(error["code"]))
