"""The grammar of topic and router names.

Names are case-sensitive and compared byte for byte after one percent-decoding. They are ASCII, so a
name's characters and its UTF-8 bytes are the same count. A name never becomes a path on disk.
"""

from __future__ import annotations

import re
from typing import Final

TOPIC_NAME_MAX_CHARS: Final = 255

# Used with fullmatch only: "$" would also accept a name that ends in a newline.
TOPIC_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,254}")

# ">" may not lead, so that "source>dest" is a natural router name and ">x" stays a typing error.
ROUTER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:>-]{0,254}")


def valid_topic_name(name: str) -> bool:
    return TOPIC_NAME.fullmatch(name) is not None


def valid_router_name(name: str) -> bool:
    return ROUTER_NAME.fullmatch(name) is not None
