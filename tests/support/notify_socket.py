"""The other end of sd_notify(3): a service manager that only listens."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import Self

from tests.support.server_process import WAIT_S

Message = dict[str, str]


class NotifySocket:
    def __init__(self, directory: Path) -> None:
        self.path = directory / "notify"
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sock.bind(str(self.path))
        self._messages: list[Message] = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._sock.shutdown(socket.SHUT_RDWR)
        self._reader.join(WAIT_S)
        self._sock.close()

    @property
    def env(self) -> dict[str, str]:
        return {"NOTIFY_SOCKET": str(self.path)}

    def _read(self) -> None:
        while data := self._sock.recv(64 << 10):
            message = dict(line.split("=", 1) for line in data.decode().split("\n"))
            with self._changed:
                self._messages.append(message)
                self._changed.notify_all()

    @property
    def messages(self) -> list[Message]:
        with self._changed:
            return list(self._messages)

    def wait(self, name: str, value: str | None = None, *, after: int = 0) -> int:
        """The position of the first message from `after` on that has this field (and value); waits for it."""

        def found() -> int | None:
            for place, message in enumerate(self._messages[after:], start=after):
                if name in message and value in (None, message[name]):
                    return place
            return None

        with self._changed:
            if not self._changed.wait_for(lambda: found() is not None, WAIT_S):
                raise AssertionError(f"no {name}={value} in {self._messages}")
            place = found()
            assert place is not None
            return place
