"""Records: write, read, delete. Bodies go to the worker as they came; it validates them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from gateway.core.auth import Access, check_name
from gateway.core.router import Query, Route, flag_parameter, number_parameter
from shared.api_types import decode_write
from shared.errors import InvalidRequest
from shared.limits import IDEMPOTENCY_KEY_MAX_CHARS
from shared.wire import Op, Options

if TYPE_CHECKING:
    from gateway.service import Api, Call, Handler
    from shared.api_keys import ApiKey

# Shared objects: the wire encodes options that several requests in a row share only once.
_WITHOUT_SEQS: Options = {"seqs": False}
_INLINE: Options = {"inline": True}

_encoder = msgspec.json.Encoder()


def append(call: Call) -> None:
    body = call.json_body()
    options = write_options(call.api, call.key, body)
    key = call.idempotency_key
    if key:
        if len(key) > IDEMPOTENCY_KEY_MAX_CHARS:
            raise InvalidRequest(f"Idempotency-Key has more than {IDEMPOTENCY_KEY_MAX_CHARS} characters")
        options = {**(options or {}), "idem": key}
    if call.exchange.query and not flag_parameter(call.query, "return_seqs", default=True):
        options = {**options, **_WITHOUT_SEQS} if options else _WITHOUT_SEQS
    call.ask(Op.APPEND, body, options)


def write_options(api: Api, key: ApiKey | None, body: bytes) -> Options | None:
    """What a write needs besides its body, wherever it came from. Raises if it may not be tried."""
    topics, total_bytes = api.totals()
    api.caps.check_bytes(total_bytes)
    if key is not None and key.prefixes:
        _check_config_names(key, body)
    return api.caps.nocreate(topics)


def _check_config_names(key: ApiKey, body: bytes) -> None:
    """A write may create its topic with a `dead_letter`: a name in a body like any other."""
    config = decode_write(body).config
    if config is not None and isinstance(config.dead_letter, str):
        check_name(key, config.dead_letter)


def diff(call: Call) -> None:
    read(call, call.json_body())


_MEMO_ENTRIES: Final = 256
_MEMO_MAX_CHARS: Final = 128
_bodies: dict[str, bytes] = {}  # by query: readers repeat themselves, and each other


def get_records(call: Call) -> None:
    query = call.exchange.query
    body = _bodies.get(query)
    if body is None:
        body = diff_from_query(call.query)
        if len(query) <= _MEMO_MAX_CHARS:
            if len(_bodies) >= _MEMO_ENTRIES:
                _bodies.clear()
            _bodies[query] = body
    read(call, body)


def read(call: Call, body: bytes) -> None:
    inline = not call.exchange.extents_allowed or call.wants_gzip()
    id_ = call.ask(Op.READ, body, _INLINE if inline else None)
    # Only a long poll outlives its turn by enough to be worth taking back.
    if id_ and b"wait_ms" in body:
        call.exchange.on_gone(lambda: call.api.shards.cancel(call.name, id_))


_NUMBERS = ("from_seq", "limit", "wait_ms", "max_bytes")
_FLAGS = ("include_tags", "include_keys", "include_meta")


def diff_from_query(query: Query) -> bytes:
    """The body of a diff that says the same as this query."""
    request: dict[str, object] = {}
    for name in _NUMBERS:
        number = number_parameter(query, name)
        if number is not None:
            request[name] = number
    for name in _FLAGS:
        if name in query:
            request[name] = flag_parameter(query, name, default=False)
    if "node" in query:
        request["node"] = query["node"]
    if "match" in query:
        request["match"] = _match(query["match"][-1])
    return _encoder.encode(request)


def _match(text: str) -> object:
    """A predicate as JSON, or a bare tag."""
    if not text.startswith("["):
        return text
    try:
        return msgspec.json.decode(text, type=list[str])
    except msgspec.DecodeError as err:
        raise InvalidRequest(
            'match is not JSON like ["tag","Eq","x"]', detail={"parameter": "match"}
        ) from err


def delete_records(call: Call) -> None:
    call.ask(Op.DELETE_RECORDS, call.json_body(), None)


ROUTES: list[Route[Handler]] = [
    Route("POST", "/v0/topics/:name", append, Access.WRITE),
    Route("POST", "/v0/topics/:name/diff", diff, Access.READ),
    Route("GET", "/v0/topics/:name/records", get_records, Access.READ),
    Route("POST", "/v0/topics/:name/delete", delete_records, Access.DELETE),
]
