"""A topic's configuration as people write it: `ttl_ms=7d durability=fsync`."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

import msgspec

from shared.api_types import TopicConfigIn
from topicsd.client.errors import Refused, Usage
from topicsd.client.options import parse_duration_ms, parse_size_bytes

FIELDS = TopicConfigIn.__struct_fields__


def parse_fields(words: Sequence[str]) -> dict[str, object]:
    config: dict[str, object] = {}
    for word in words:
        name, equals, text = word.partition("=")
        name = name.replace("-", "_")
        if not equals or not name:
            raise Usage(f"{word!r} is no FIELD=VALUE; write for example cap_records=1000")
        config[name] = parse_value(name, text)
    return config


def parse_value(name: str, text: str) -> object:
    """JSON if it is JSON, with units where the field has one; otherwise the text itself."""
    if name.endswith("_ms") and (found := parse_duration_ms(text)) is not None:
        return found
    if name.endswith("_bytes") and (found := parse_size_bytes(text)) is not None:
        return found
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def explain(err: Refused, config: dict[str, object]) -> Refused:
    """A server of another version may have other fields, so only it can say which are wrong. Why, we may know."""
    if err.code != "invalid_request":
        return err
    for name in config:
        if name not in FIELDS:
            close = difflib.get_close_matches(name, FIELDS, n=1)
            meant = f"did you mean {close[0]}?" if close else f"fields are {', '.join(FIELDS)}"
            return err.with_hint(meant)
    return err
