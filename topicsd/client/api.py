"""One connection to a server: requests, the API key, and errors that say what to do next.

Plain blocking calls on one keep-alive connection; a stream gets a connection of its own. `http.client` is enough for
that, and it is in the standard library.
"""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Iterator, Mapping
from typing import NamedTuple, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from topicsd.client.errors import Refused, Unreachable, Usage

DEFAULT_URL = "http://127.0.0.1:4000"
TIMEOUT_S = 60.0
"""For an answer. Long polls wait at most 30 s at the server."""

T = TypeVar("T")
_encoder = msgspec.json.Encoder()


class Address(NamedTuple):
    host: str
    port: int
    tls: bool
    path: str
    """What a proxy puts in front of /v0."""

    @classmethod
    def parse(cls, url: str) -> Address:
        wrong = Usage(f"{url!r} is no address of a server; give one like {DEFAULT_URL} (--url or TOPICS_URL)")
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            port = parts.port
        except ValueError:
            raise wrong from None
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise wrong
        tls = parts.scheme == "https"
        return cls(parts.hostname, port or (443 if tls else 80), tls, parts.path.rstrip("/"))

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}{self.path}"


class _ErrorInfo(msgspec.Struct):
    code: str
    message: str
    detail: dict[str, object] | None = None


class _ErrorBody(msgspec.Struct):
    error: _ErrorInfo


class Server:
    def __init__(
        self, url: str = DEFAULT_URL, token: str | None = None, *, timeout_s: float = TIMEOUT_S
    ) -> None:
        self.address = Address.parse(url)
        self._headers = {"User-Agent": "topics-cli"}
        if token:
            if not token.isascii() or not token.isprintable() or " " in token:
                raise Usage(
                    "TOPICS_TOKEN has characters that no API key has; check it for quotes and line breaks"
                )
            self._headers["Authorization"] = f"Bearer {token}"
        self._timeout_s = timeout_s
        self._connection: http.client.HTTPConnection | None = None
        self._used = False  # the connection has served a request, so the server may have closed it since

    def another(self) -> Server:
        """The same server on a connection of its own, for another thread."""
        twin = Server(str(self.address), timeout_s=self._timeout_s)
        twin._headers = self._headers
        return twin

    # --- requests ---------------------------------------------------------------------------------------

    def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        query: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
        again: bool | None = None,
    ) -> bytes:
        """The body of a 2xx answer. `body` is bytes of JSON, or anything that becomes JSON.

        `again`: the request may be sent a second time when a connection that was idle turns out to be closed. By
        default that is so for methods which can be repeated by definition.
        """
        data = body if isinstance(body, bytes) or body is None else _encoder.encode(body)
        again = method != "POST" if again is None else again
        idle = self._used
        try:
            return self._exchange(method, path, data, query, headers)
        except Unreachable:
            if not (again and idle):
                raise
            return self._exchange(method, path, data, query, headers)

    def ask(
        self,
        kind: type[T],
        method: str,
        path: str,
        body: object = None,
        *,
        query: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
        again: bool | None = None,
    ) -> T:
        """An answer as a type; unknown fields in it are ignored."""
        return self.decode(kind, self.call(method, path, body, query=query, headers=headers, again=again))

    def decode(self, kind: type[T], answer: bytes) -> T:
        try:
            return msgspec.json.decode(answer, type=kind)
        except msgspec.DecodeError as err:
            raise self._not_topicsd(f"its answer is not understood ({err})") from err

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._used = False

    def abort(self) -> None:
        """From another thread: whoever waits for an answer gets `Unreachable` at once."""
        connection = self._connection
        sock = connection.sock if connection is not None else None
        if sock is not None:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                return

    def _exchange(
        self,
        method: str,
        path: str,
        data: bytes | None,
        query: Mapping[str, object] | None,
        headers: Mapping[str, str] | None,
    ) -> bytes:
        try:
            if self._connection is None:
                self._connection = self._connect(self._timeout_s)
            response = self._send(self._connection, method, path, data, query, headers)
            answer = response.read()
            self._used = True
        except (OSError, http.client.HTTPException) as err:
            self.close()
            raise self._unreachable(err) from err
        except BaseException:
            # An interrupt in the middle of an answer: the connection is of no use to the next request.
            self.close()
            raise
        if not 200 <= response.status < 300:
            raise self.refusal(response.status, answer, response.headers.get("Retry-After", ""))
        return answer

    def _connect(self, timeout_s: float) -> http.client.HTTPConnection:
        host, port, tls, _ = self.address
        if tls:
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=context)
        return http.client.HTTPConnection(host, port, timeout=timeout_s)

    def _send(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        data: bytes | None,
        query: Mapping[str, object] | None,
        headers: Mapping[str, str] | None,
    ) -> http.client.HTTPResponse:
        sent = {**self._headers, **(headers or {})}
        if data is not None:
            sent["Content-Type"] = "application/json"
        connection.request(method, self._target(path, query), body=data, headers=sent)
        return connection.getresponse()

    def _target(self, path: str, query: Mapping[str, object] | None) -> str:
        given = {name: value for name, value in (query or {}).items() if value is not None}
        return self.address.path + path + ("?" + urlencode(given) if given else "")

    def request_bytes(
        self, method: str, path: str, body: bytes, *, query: Mapping[str, object] | None = None
    ) -> bytes:
        """A request as it goes over the wire, for those who drive connections of their own."""
        head = [
            f"{method} {self._target(path, query)} HTTP/1.1",
            f"Host: {self.address.host}:{self.address.port}",
        ]
        head += [f"{name}: {value}" for name, value in self._headers.items()]
        head += ["Content-Type: application/json", f"Content-Length: {len(body)}", "", ""]
        return "\r\n".join(head).encode() + body

    # --- streams ----------------------------------------------------------------------------------------

    def stream(
        self, path: str, *, headers: Mapping[str, str] | None = None, silence_s: float
    ) -> Iterator[bytes]:
        """Pieces of a server-sent event stream, as they come. Silence for longer is a broken connection."""
        try:
            connection = self._connect(silence_s)
            try:
                wanted = {"Accept": "text/event-stream", **(headers or {})}
                response = self._send(connection, "GET", path, None, None, wanted)
                if response.status != 200:
                    raise self.refusal(response.status, response.read())
                while piece := response.read1(65536):
                    yield piece
            finally:
                connection.close()
        except (OSError, http.client.HTTPException) as err:
            raise self._unreachable(err) from err

    # --- what goes wrong --------------------------------------------------------------------------------

    def _unreachable(self, err: Exception) -> Unreachable:
        if isinstance(err, ConnectionRefusedError):
            what = f"nobody listens at {self.address}; start it (topicsd serve), or name the right one"
            return Unreachable(f"{what} (--url or TOPICS_URL)")
        if isinstance(err, socket.gaierror):
            return Unreachable(f"the host of {self.address} is not known; check --url or TOPICS_URL")
        if isinstance(err, TimeoutError):
            return Unreachable(f"{self.address} did not answer in time; see its log, or try again")
        if isinstance(err, ssl.SSLError):
            return Unreachable(f"no TLS with {self.address} ({err}); topicsd itself speaks http://")
        if isinstance(err, http.client.HTTPException) and not isinstance(err, ConnectionError):
            return self._not_topicsd("its answer is not HTTP")
        reason = err.strerror if isinstance(err, OSError) and err.strerror else str(err)
        return Unreachable(f"the connection to {self.address} broke ({reason}); try again")

    def _not_topicsd(self, why: str) -> Unreachable:
        return Unreachable(f"{self.address} does not look like topicsd: {why}; check --url or TOPICS_URL")

    def refusal(self, status: int, answer: bytes, retry_after: str = "") -> Refused | Unreachable:
        """What an answer that is not 2xx says."""
        try:
            error = msgspec.json.decode(answer, type=_ErrorBody).error
        except (msgspec.DecodeError, UnicodeDecodeError):
            return self._not_topicsd(f"it answered {status} without an error of ours")
        seconds = float(retry_after) if retry_after.isdigit() else None
        if error.detail and isinstance(error.detail.get("retry_after_ms"), int | float):
            seconds = float(str(error.detail["retry_after_ms"])) / 1000
        refused = Refused(status, error.code, error.message, detail=error.detail, retry_after_s=seconds)
        hint = next_step(refused, has_token="Authorization" in self._headers)
        return refused.with_hint(hint) if hint else refused


def next_step(error: Refused, *, has_token: bool) -> str | None:
    """What the person at the keyboard can do about it."""
    topic = error.detail.get("topic")
    if error.code == "unauthorized":
        return "check TOPICS_TOKEN" if has_token else "set TOPICS_TOKEN to an API key of this server"
    if error.code == "topic_not_found":
        return f"create it: topics create {topic}" if topic else "see: topics ls"
    if error.code == "throttled" and "limit" in error.detail:
        return f"the operator can raise {error.detail['limit']}"
    if error.code == "router_not_found":
        return "see: topics router ls"
    return _NEXT_STEPS.get(error.code)


_NEXT_STEPS = {
    "not_found": "is the server older than this command?",
    "forbidden": "use a key with that scope and prefix",
    "not_a_queue": "queues are made with: topics create NAME --queue",
    "topic_full": "read and delete something, or raise its cap: topics set NAME cap_records=N",
    "topic_not_empty": "leave out --if-empty to delete it with its records",
    "shard_unavailable": "try again in a moment; topics top shows the shards",
    "shutting_down": "try again when the server is back",
    "throttled": "try again in a moment",
    "internal": "the server's log has the rest",
    "router_cycle": "give --allow-cycle if you mean it",
}


def topic_path(topic: str, *more: str) -> str:
    return "/".join(("/v0/topics", quote(topic, safe=""), *more))


def router_path(router: str) -> str:
    return f"/v0/routers/{quote(router, safe='')}"
