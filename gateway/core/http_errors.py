"""Errors as HTTP answers. The only place where an error of ours meets a header."""

from __future__ import annotations

from gateway.exchange import Response
from shared.errors import Internal, MethodNotAllowed, TopicsError, Unauthorized


def error_response(error: TopicsError) -> Response:
    headers: list[tuple[str, str]] = []
    if error.retry_after_ms is not None:
        headers.append(retry_after(error.retry_after_ms))
    if isinstance(error, MethodNotAllowed):
        headers.append(("Allow", ", ".join(error.allow)))
    elif isinstance(error, Unauthorized):
        headers.append(("WWW-Authenticate", 'Bearer realm="topics"'))
    return Response(error.status_hint, error.to_json_body(), headers=headers)


def passed_on_error(status: int, body: bytes, retry_after_ms: float | None) -> Response:
    """An error document that a worker wrote."""
    headers = () if retry_after_ms is None else (retry_after(retry_after_ms),)
    return Response(status, body, headers=headers)


def unexpected_error_response() -> Response:
    """For an exception that nobody planned; what it says is for the log, not for the client."""
    return error_response(Internal("unexpected"))


def retry_after(milliseconds: float) -> tuple[str, str]:
    # The header knows whole seconds only, and 0 would invite an immediate retry.
    return "Retry-After", str(max(1, -(-int(milliseconds) // 1000)))
