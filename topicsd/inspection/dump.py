"""A stored record as one line of JSON: its bytes as they are, with tag and key, which are stored beside them."""

from __future__ import annotations

import json
from typing import Any


def record_line(row: dict[str, Any], topic: str | None = None) -> str:
    record: str = row["record"].decode()
    if topic is not None:
        record = f'{{"topic":{_text(topic)},' + record[1:]
    extra = "".join(
        f',"{name}":{_text(row[field].decode())}'
        for name, field in (("$tag", "tag"), ("$key", "key"))
        if row[field] is not None
    )
    return f"{record[:-1]}{extra}}}"


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)
