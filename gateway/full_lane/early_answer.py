"""Answering an ASGI request before its body has arrived, without breaking the connection.

Hypercorn forgets an HTTP/2 stream with the last message of its answer, and fails the whole connection
over the next frame of the request. So the answer is sent but not finished until the client has sent
the rest, which is thrown away, within bounds.
"""

from __future__ import annotations

import trio

from gateway.fast_lane.bounds import LINGER_BYTES
from gateway.full_lane.asgi_types import Message, Receive, Send


class EarlyAnswer:
    """Wraps the `receive` and `send` of one HTTP request."""

    def __init__(self, receive: Receive, send: Send, *, linger_s: float) -> None:
        self._receive = receive
        self._send = send
        self._linger_s = linger_s
        self._complete = False  # the request
        self._received = 0
        self._reading = False
        self._moved = trio.Event()

    async def receive(self) -> Message:
        self._reading = True
        try:
            message = await self._receive()
        finally:
            self._reading = False
            self._moved.set()
            self._moved = trio.Event()
        if message["type"] != "http.request" or not message.get("more_body", False):
            self._complete = True
        self._received += len(message.get("body", b""))
        return message

    async def send(self, message: Message) -> None:
        last = message["type"] == "http.response.body" and not message.get("more_body", False)
        if last and not self._complete:
            await self._send({**message, "more_body": True})
            await self._discard()
            message = {"type": "http.response.body", "body": b"", "more_body": False}
        await self._send(message)

    async def _discard(self) -> None:
        bound = self._received + LINGER_BYTES
        with trio.move_on_after(self._linger_s):
            while not self._complete and self._received < bound:
                if self._reading:  # by a task of the app's that waits for a disconnect
                    await self._moved.wait()
                    await trio.lowlevel.checkpoint()
                else:
                    await self.receive()
