"""Names of files and directories of a store, and back. The whole picture: docs/disk-format.md §1."""

from __future__ import annotations

import re

_NUMBERED = re.compile(r"([0-9]{10})\.(seg|snap|wal)")
_MANIFEST = re.compile(r"manifest-([0-9]{10})")
_SHARD = re.compile(r"shard-([0-9]{4})")


def shard_dir_name(shard: int) -> str:
    return f"shard-{shard:04d}"


def shard_of_dir(name: str) -> int | None:
    found = _SHARD.fullmatch(name)
    return int(found[1]) if found else None


def segment_file_name(number: int) -> str:
    return f"{number:010d}.seg"


def segment_number(name: str) -> int | None:
    return _number(name, "seg")


def snapshot_file_name(number: int) -> str:
    return f"{number:010d}.snap"


def snapshot_number(name: str) -> int | None:
    return _number(name, "snap")


def manifest_generation(name: str) -> int | None:
    found = _MANIFEST.fullmatch(name)
    return int(found[1]) if found else None


def _number(name: str, ending: str) -> int | None:
    found = _NUMBERED.fullmatch(name)
    return int(found[1]) if found and found[2] == ending else None
