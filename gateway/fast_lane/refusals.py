"""Requests the edge answers itself, because they never become an exchange, and answers that it cannot finish."""

from __future__ import annotations

from gateway.exchange import Response
from shared.errors import InvalidRequest, TopicsError


class Refusal(Exception):
    """Why a request is refused. On HTTP/1.1 the connection ends with it: its framing is not trusted."""

    def __init__(self, error: TopicsError, *, status: int | None = None) -> None:
        super().__init__(error.message)
        self.status = status or error.status_hint
        self.error = error

    def response(self) -> Response:
        return error_response(self.error, status=self.status)


class FileTooShort(OSError):
    """A file ended inside an extent. The promised length cannot be kept: the connection must end."""


def error_response(error: TopicsError, *, status: int | None = None) -> Response:
    headers: tuple[tuple[str, str], ...] = ()
    if error.retry_after_ms is not None:
        headers = (("Retry-After", str(max(1, -(-error.retry_after_ms // 1000)))),)
    return Response(status or error.status_hint, error.to_json_body(), headers=headers)


def bad_request(message: str, *, status: int = 400) -> Refusal:
    # 408, 414, 417 and 431 have no code of their own in the contract: the status says which it was.
    return Refusal(InvalidRequest(message), status=status)
