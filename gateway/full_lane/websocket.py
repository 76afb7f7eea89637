"""`/v0/ws`: topics in both directions over one WebSocket, with the same rules as SSE streams and HTTP writes.

Straight ASGI, without the web framework: one task reads messages, one sends. Answers are sent in any case; what
watched topics bring is offered only when nothing else waits, so a slow client falls behind like any other watcher.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import cast

import trio
from msgspec import UNSET, Raw, UnsetType
from quart_trio import QuartTrio

from gateway.core.auth import Access, check_name, check_scopes
from gateway.core.http_errors import error_response
from gateway.core.sse import Event
from gateway.core.watch_session import plan_watch
from gateway.full_lane import ws_messages
from gateway.full_lane.app import FullLaneApp, Register, reject_websocket
from gateway.full_lane.asgi_types import Message, Receive, Scope, Send
from gateway.handlers.records import write_options
from gateway.io.shard_link import LeasedFiles, Reply
from gateway.service import Api
from gateway.subscriptions import Survey
from gateway.watch_hub import begin
from gateway.watcher import Step, Watcher
from shared.api_keys import ApiKey
from shared.errors import Internal, InvalidRequest, ShuttingDown, Throttled, TopicsError
from shared.limits import WEBSOCKET_UNSENT_MAX
from shared.names import valid_topic_name
from shared.wire import Answer, Op

log = logging.getLogger(__name__)

_UNSENT_CHARS = 16 * 1024
_GOING_AWAY = 1001
_POLICY_VIOLATION = 1008

RequestId = Raw | UnsetType


def register_websocket(api: Api) -> Register:
    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if api.draining:
                raise ShuttingDown()
            key = api.gatekeeper.admit(Access.ANY, _headers(scope))
            api.hub.streams.check(key)
        except TopicsError as err:
            await reject_websocket(send, error_response(err))
            return
        await WebSocketConnection(api, key, send).run(receive)

    def register(app: QuartTrio) -> None:
        cast(FullLaneApp, app).websockets[b"/v0/ws"] = serve

    return register


def _headers(scope: Scope) -> dict[str, str]:
    return {
        bytes(name).decode("latin-1").lower(): bytes(value).decode("latin-1")
        for name, value in scope["headers"]
    }


class Outbox:
    """Texts on their way to the client, in order."""

    def __init__(self) -> None:
        self._texts: deque[str] = deque()
        self._wake = trio.Event()
        self._room = trio.Event()
        self._room.set()
        self._refused = False
        self._waiting_chars = 0  # the text that is being sent included
        self._unanswered = 0
        self.writable: Callable[[], None] = lambda: None
        self.close_code: int | None = None  # set: close with it when everything is sent

    def offer(self, texts: Sequence[str]) -> bool:
        # A little may wait: a record that the client itself has published comes right behind its ack.
        if self._waiting_chars > _UNSENT_CHARS or self.close_code is not None:
            self._refused = True
            return False
        for text in texts:
            self._add(text)
        return True

    def _add(self, text: str) -> None:
        self._texts.append(text)
        self._waiting_chars += len(text)
        self._wake.set()

    def say(self, text: str) -> None:
        if self.close_code is None:
            self._add(text)

    def close(self, text: str, code: int) -> None:
        self.say(text)
        self.close_code = code
        self._wake.set()

    def asked(self) -> None:
        """A message came that will be answered."""
        self._unanswered += 1
        self._look()

    def answered(self, text: str) -> None:
        self._unanswered -= 1
        self.say(text)
        self._look()

    def _look(self) -> None:
        if self._unanswered + len(self._texts) > WEBSOCKET_UNSENT_MAX:
            if self._room.is_set():
                self._room = trio.Event()
        else:
            self._room.set()

    async def has_room(self) -> None:
        await self._room.wait()

    async def run(self, send: Send) -> None:
        while True:
            while self._texts:
                text = self._texts.popleft()
                await send({"type": "websocket.send", "text": text})
                self._waiting_chars -= len(text)
                self._look()
            if self.close_code is not None:
                await send({"type": "websocket.close", "code": self.close_code})
                return
            if self._refused:
                self._refused = False
                self.writable()
            if not self._texts and self.close_code is None:
                self._wake = trio.Event()
                await self._wake.wait()


class WebSocketWatcher(Watcher):
    def __init__(self, api: Api, key: ApiKey | None, outbox: Outbox) -> None:
        super().__init__(api.hub.subscriptions, api.hub.later, key)
        self._outbox = outbox

    def _push(self, steps: Sequence[Step]) -> bool:
        return self._outbox.offer([step.event.ws for step in steps])

    def _exhausted(self) -> None:
        self.pump()  # the connection is there for more than its topics


class WebSocketConnection:
    def __init__(self, api: Api, key: ApiKey | None, send: Send) -> None:
        self._api = api
        self._key = key
        self._send = send
        self._outbox = Outbox()
        self._watcher = WebSocketWatcher(api, key, self._outbox)
        self._outbox.writable = self._on_writable
        self._ops: dict[str, Callable[[RequestId, bytes], None]] = {
            "subscribe": self._subscribe,
            "unsubscribe": self._unsubscribe,
            "publish": self._publish,
            "ping": self._ping,
        }

    async def run(self, receive: Receive) -> None:
        hub = self._api.hub
        hub.streams.enter(self._key)
        hub.others[self._watcher] = self._end
        self._watcher.attach()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._receive_all, receive, nursery.cancel_scope)
                nursery.start_soon(self._send_all, nursery.cancel_scope)
        finally:
            del hub.others[self._watcher]
            hub.streams.leave(self._key)
            self._watcher.detach()
            self._api.flush()

    async def _send_all(self, scope: trio.CancelScope) -> None:
        await self._outbox.run(self._send)
        scope.cancel()

    async def _receive_all(self, receive: Receive, scope: trio.CancelScope) -> None:
        while True:
            message = await receive()
            if message["type"] == "websocket.connect":
                await self._send({"type": "websocket.accept", "subprotocol": None, "headers": []})
            elif message["type"] == "websocket.disconnect":
                scope.cancel()
                return
            else:
                self._take(_bytes_of(message))
                await self._outbox.has_room()

    def _end(self, goodbye: Event) -> None:
        """Called by the hub: at shutdown, or because the key is no longer valid."""
        self._outbox.close(goodbye.ws, _GOING_AWAY if self._api.draining else _POLICY_VIOLATION)

    def _on_writable(self) -> None:
        self._watcher.writable()
        self._api.flush()

    # --- messages ---------------------------------------------------------------------------------------

    def _take(self, message: bytes) -> None:
        request_id: RequestId = UNSET
        self._outbox.asked()
        try:
            envelope = ws_messages.decode_envelope(message)
            request_id = envelope.request_id
            handle = self._ops.get(envelope.op)
            if handle is None:
                raise ws_messages.unknown_op(envelope.op)
            handle(request_id, message)
        except TopicsError as err:
            self._refuse(request_id, err)
        except Exception:
            log.exception("websocket.message.failed")
            self._refuse(request_id, Internal("unexpected"))
        self._api.flush()

    def _refuse(self, request_id: RequestId, error: TopicsError) -> None:
        self._outbox.answered(ws_messages.refused(request_id, error))

    def _ping(self, request_id: RequestId, message: bytes) -> None:
        self._outbox.answered(ws_messages.pong(request_id))

    def _subscribe(self, request_id: RequestId, message: bytes) -> None:
        check_scopes(self._key, Access.READ)
        wanted = ws_messages.decode_subscribe(message)
        plan = plan_watch(wanted.as_watch(), self._api.settings, self._key)
        watcher = self._watcher
        held = watcher.readers.keys() | plan.topics.keys()
        if len(held) + len(watcher.prefixes.keys() | plan.prefixes.keys()) > self._max_topics():
            raise Throttled(limit="max_watch_topics", max=self._max_topics())

        def surveyed(survey: Survey) -> None:
            if not watcher.is_open:
                return
            try:
                topics = begin(watcher, plan, survey, lenient=wanted.lenient)
            except TopicsError as err:
                self._refuse(request_id, err)
                return
            self._outbox.answered(ws_messages.subscribed(request_id, topics))
            for name in topics:
                watcher.attach_reader(watcher.readers[name])
            for prefix in plan.prefixes:
                self._api.hub.subscriptions.watch_prefix(prefix, watcher)

        self._api.hub.subscriptions.survey(plan.topics, plan.prefixes, strong=plan.view.strong, done=surveyed)

    def _max_topics(self) -> int:
        """Those found by prefix have a bound of their own."""
        return self._api.settings.max_watch_topics + sum(
            not reader.named for reader in self._watcher.readers.values()
        )

    def _unsubscribe(self, request_id: RequestId, message: bytes) -> None:
        wanted = ws_messages.decode_unsubscribe(message)
        names = [*wanted.topics, *([wanted.topic] if wanted.topic is not None else ())]
        if not names and not wanted.prefixes:
            raise InvalidRequest("name the topics or prefixes that are no longer wanted")
        watcher = self._watcher
        prefixes = [prefix for prefix in wanted.prefixes if watcher.prefixes.pop(prefix, None) is not None]
        for prefix in prefixes:
            self._api.hub.subscriptions.leave_prefix(prefix, watcher)
            names += [
                name
                for name, reader in watcher.readers.items()
                if not reader.named
                and name.startswith(prefix)
                and not name.startswith(tuple(watcher.prefixes))
            ]
        left = [name for name in names if name in watcher.readers]
        for name in left:
            watcher.remove(name)
        self._outbox.answered(ws_messages.unsubscribed(request_id, left, prefixes))

    def _publish(self, request_id: RequestId, message: bytes) -> None:
        check_scopes(self._key, Access.WRITE)
        wanted = ws_messages.decode_publish(message)
        if wanted.config is not UNSET and bytes(wanted.config) != b"null":
            check_scopes(self._key, Access.ADMIN)
        if not valid_topic_name(wanted.topic):
            raise InvalidRequest("topic is not a valid topic name")
        check_name(self._key, wanted.topic)
        if self._api.draining:
            raise ShuttingDown()
        options = write_options(self._api, self._key, message)
        self._api.inflight.enter(self._key)

        def written(reply: Reply, leased: LeasedFiles | None) -> None:
            self._api.inflight.leave(self._key)
            if not isinstance(reply, Answer):
                self._refuse(request_id, reply)
            elif reply.status < 400:
                self._outbox.answered(ws_messages.ack(request_id, reply.body))
            else:
                self._outbox.answered(ws_messages.refused_by_shard(request_id, reply.body))

        # The message is a write request with a few fields more, which the worker ignores.
        self._api.shards.request(Op.APPEND, wanted.topic, message, options, written)


def _bytes_of(message: Message) -> bytes:
    text = message.get("text")
    if text is not None:
        # A lone surrogate cannot come through a WebSocket; the codec would have refused it.
        return str(text).encode()
    return bytes(message.get("bytes") or b"")
