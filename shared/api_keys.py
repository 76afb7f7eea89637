"""API keys: `secret[:scopes[:prefixes]]`, kept only as SHA-256.

Scopes are joined by "+" (read, write, delete, admin, or r, w, d, a, rw), prefixes by "|"; an empty
or absent field means all. Entries are separated by commas, in a file also by line breaks, where
lines that start with "#" are comments. Because a colon ends the secret, prefixes may contain colons
and secrets may not.

Nothing here, and no error raised here, ever repeats a part of an entry: a misplaced colon can turn
half a secret into a "scope". Entries are named by their position.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from shared.errors import BadSetting
from shared.names import valid_router_name


class Scope(Enum):
    READ = "read"
    WRITE = "write"
    DELETE = "delete"
    ADMIN = "admin"


ALL_SCOPES = frozenset(Scope)

_SCOPE_WORDS: dict[str, frozenset[Scope]] = {
    "read": frozenset({Scope.READ}),
    "r": frozenset({Scope.READ}),
    "write": frozenset({Scope.WRITE}),
    "w": frozenset({Scope.WRITE}),
    "delete": frozenset({Scope.DELETE}),
    "d": frozenset({Scope.DELETE}),
    "admin": frozenset({Scope.ADMIN}),
    "a": frozenset({Scope.ADMIN}),
    "rw": frozenset({Scope.READ, Scope.WRITE}),
}

# Visible ASCII: no Authorization header could carry anything else, so such a key could never be used.
_SECRET = re.compile(r"[!-~]+")


@dataclass(frozen=True, slots=True)
class ApiKey:
    """`prefixes` limits topic and router names; empty means every name."""

    digest: bytes = field(repr=False)
    scopes: frozenset[Scope]
    prefixes: tuple[str, ...]


class KeyRing:
    """All keys of one server. An empty ring means that auth is off; asking it finds nothing."""

    __slots__ = ("_keys",)

    def __init__(self, keys: Iterable[ApiKey]) -> None:
        self._keys = tuple(keys)

    def __len__(self) -> int:
        return len(self._keys)

    def __repr__(self) -> str:
        return f"KeyRing({len(self._keys)} keys)"

    def has(self, key: ApiKey) -> bool:
        """Is it still there, with the same rights?"""
        return key in self._keys

    def find(self, token: str) -> ApiKey | None:
        """The key of this secret. Takes the same time wherever it stands, and if it is absent."""
        # Here, as in `_digest`: OpenSSL comes with it, and only servers with keys need that.
        from hmac import compare_digest

        digest = _digest(token)
        found: ApiKey | None = None
        for key in self._keys:
            # No early exit, or the time taken would tell how far down the list a key stands.
            if compare_digest(key.digest, digest):
                found = key
        return found


def parse_api_keys(text: str, *, key: str, source: str) -> tuple[ApiKey, ...]:
    """Keys of one setting value; blank text means none. `key` and `source` only name it in errors."""
    return _parse_entries(text.split(",") if text.strip() else [], key=key, source=source)


def parse_api_keys_file(text: str, *, key: str, source: str) -> tuple[ApiKey, ...]:
    """Keys of a key file. One without any key is refused: who names a file wants auth to be on."""
    lines = [line.strip() for line in text.splitlines()]
    entries = [entry for line in lines if line and not line.startswith("#") for entry in line.split(",")]
    if not entries:
        raise BadSetting(key=key, source=source, message="the file holds no key")
    return _parse_entries(entries, key=key, source=source)


def _parse_entries(entries: Sequence[str], *, key: str, source: str) -> tuple[ApiKey, ...]:
    keys: list[ApiKey] = []
    for position, entry in enumerate(entries, start=1):
        try:
            api_key = _parse_entry(entry.strip())
            if any(api_key.digest == other.digest for other in keys):
                raise ValueError("has the same secret as an earlier entry")
        except ValueError as err:
            # "from None": the chained error must not carry anything of the entry into a log either.
            raise BadSetting(key=key, source=source, message=f"entry {position} {err}") from None
        keys.append(api_key)
    return tuple(keys)


def _parse_entry(entry: str) -> ApiKey:
    secret, _, rest = entry.partition(":")
    scope_text, _, prefix_text = rest.partition(":")
    if not secret:
        raise ValueError("has no secret; write secret[:scopes[:prefixes]], entries separated by commas")
    if _SECRET.fullmatch(secret) is None:
        raise ValueError("has a secret with a space or a character outside visible ASCII")
    return ApiKey(_digest(secret), _parse_scopes(scope_text), _parse_prefixes(prefix_text))


def _parse_scopes(text: str) -> frozenset[Scope]:
    if not text:
        return ALL_SCOPES
    scopes: set[Scope] = set()
    for word in text.split("+"):
        if word not in _SCOPE_WORDS:
            raise ValueError(
                "has an unknown scope; use read, write, delete, admin (or r, w, d, a, rw) joined by +"
            )
        scopes |= _SCOPE_WORDS[word]
    return frozenset(scopes)


def _parse_prefixes(text: str) -> tuple[str, ...]:
    if not text:
        return ()
    prefixes = tuple(text.split("|"))
    # An empty prefix would match every name and silently undo the others.
    if not all(valid_router_name(prefix) for prefix in prefixes):
        raise ValueError("has a prefix that no name can start with; join name prefixes by |")
    return prefixes


def _digest(secret: str) -> bytes:
    import hashlib

    # A token from a header may hold any character; it must be hashable, not valid.
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()
