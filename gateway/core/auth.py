"""Who may do what: bearer keys, scopes per route, name prefixes.

A ring without keys means that auth is off, and every call is allowed. Otherwise the order is: no or wrong
key 401, missing scope 403, name outside the key's prefixes 403. Names are compared after their one
percent-decoding and before anything is done with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum

from shared.api_keys import ApiKey, KeyRing, Scope
from shared.errors import Forbidden, Unauthorized


class Access(Enum):
    """What a route asks of a key."""

    PROBE = "probe"  # open, or any key if the probes are protected
    ANY = "any"  # a valid key, whatever it may do: scopes are checked later
    READ = "read"
    WRITE = "write"
    READ_WRITE = "read+write"
    WRITE_DELETE = "write+delete"
    DELETE = "delete"
    ADMIN = "admin"


_NEEDED: dict[Access, frozenset[Scope]] = {
    Access.PROBE: frozenset(),
    Access.ANY: frozenset(),
    Access.READ: frozenset({Scope.READ}),
    Access.WRITE: frozenset({Scope.WRITE}),
    Access.READ_WRITE: frozenset({Scope.READ, Scope.WRITE}),
    Access.WRITE_DELETE: frozenset({Scope.WRITE, Scope.DELETE}),
    Access.DELETE: frozenset({Scope.DELETE}),
    Access.ADMIN: frozenset({Scope.ADMIN}),
}


class Gatekeeper:
    def __init__(self, ring: KeyRing, *, probe_auth: bool) -> None:
        self._ring = ring
        self._open = len(ring) == 0
        self._probe_auth = probe_auth

    def replace_keys(self, ring: KeyRing) -> None:
        """Keys were read again. An empty ring would open every door, so it is refused."""
        assert len(ring) > 0 or len(self._ring) == 0, "auth is never switched off while running"
        self._ring = ring
        self._open = len(ring) == 0

    def admit(self, access: Access, headers: Mapping[str, str], token: str | None = None) -> ApiKey | None:
        """The caller's key, or None if none is needed. `token` is `?token=`, from routes that accept it."""
        if self._open or (access is Access.PROBE and not self._probe_auth):
            return None
        secret = bearer_token(headers.get("authorization")) or token
        key = self._ring.find(secret) if secret else None
        if key is None:
            raise Unauthorized()
        check_scopes(key, access)
        return key


def check_scopes(key: ApiKey | None, access: Access) -> None:
    if key is not None and not _NEEDED[access] <= key.scopes:
        missing = sorted(scope.value for scope in _NEEDED[access] - key.scopes)
        raise Forbidden(f"this key lacks the scope {' and '.join(missing)}")


def bearer_token(authorization: str | None) -> str | None:
    if authorization is None:
        return None
    scheme, _, token = authorization.strip().partition(" ")
    if scheme.lower() != "bearer":
        return None
    return token.strip() or None


def check_name(key: ApiKey | None, name: str) -> None:
    """Refuse a name outside the key's prefixes, whether it stood in the path or in a body."""
    if key is None or not key.prefixes or name.startswith(key.prefixes):
        return
    # The name is not repeated: whether it exists is none of this caller's business.
    raise Forbidden("this key may not use that name")


def check_names(key: ApiKey | None, names: Iterable[str]) -> None:
    for name in names:
        check_name(key, name)


def visible_prefixes(key: ApiKey | None) -> list[str] | None:
    """Prefixes to which lists are narrowed; None: the caller may see every name."""
    return None if key is None or not key.prefixes else list(key.prefixes)
