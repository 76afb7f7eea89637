"""Copies that are proved: an object is read back and compared with the digest in its name before it counts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress

from shared.backup_format import new_digest, parse_file_key
from shared.errors import CorruptBackup
from shared.io.object_store import ObjectStore, object_chunks


def digest_chunks(chunks: Iterable[bytes]) -> tuple[str, int]:
    """Digest and size of what comes."""
    digest, size = new_digest(), 0
    for chunk in chunks:
        digest.update(chunk)
        size += len(chunk)
    return digest.hexdigest(), size


def copy_in(store: ObjectStore, key: str, chunks: Iterable[bytes], size: int) -> bool:
    """Make sure that the object is there and holds what its name says. False: it was there already.

    The chunks are taken only if they are needed.
    """
    if store.size(key) == size:
        try:
            verify_object(store, key, size)
            return False
        except CorruptBackup:
            pass  # left by a writer that died, or rotten since: written anew below
    store.put(key, chunks)
    try:
        verify_object(store, key, size)
    except CorruptBackup:
        # The next attempt must not take it for good, and nobody names it yet.
        with suppress(OSError):
            store.delete(key)
        raise
    return True


def verify_object(store: ObjectStore, key: str, size: int) -> None:
    """Raises CorruptBackup, or OSError if it cannot be read."""
    for _ in checked_chunks(store, key, size):
        pass


def checked_chunks(store: ObjectStore, key: str, size: int) -> Iterator[bytes]:
    """The content in parts. If it is not what the name says this raises at the end: keep nothing before."""
    parsed = parse_file_key(key)
    assert parsed is not None, f"{key} carries no digest"
    path = f"{store.url}/{key}"
    found = store.size(key)
    if found != size:
        reason = "it is missing" if found is None else f"it has {found} bytes instead of {size}"
        raise CorruptBackup(path=path, reason=reason)
    digest = new_digest()
    for chunk in object_chunks(store, key, size):
        digest.update(chunk)
        yield chunk
    if digest.hexdigest() != parsed.digest:
        raise CorruptBackup(path=path, reason="its content is not what its name says")
