"""`DATA_DIR/store.json`: what the directory as a whole is. Written by the supervisor, under its lock.

It is written before any shard exists, so shard directories without it mean that it was lost, and starting
afresh beside them would hide their data.
"""

from __future__ import annotations

import os
import re
from typing import Final

import msgspec
from msgspec import structs

from shared.io.durable_fs import FileSystem, read_whole, write_atomically
from topicsd.exits import Exit, StartRefused

STORE_NAME: Final = "store.json"
STORE_FORMAT: Final = 1
SHARD_DIR: Final = re.compile(r"shard-[0-9]{4}")


class Store(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    format: int
    shards: int
    id: str = ""
    """Names one history of this data, for backups and the archive. A store that was restored, or whose topics moved
    to another number of shards, has a new one. Empty until a server of this release has run."""

    moving_to: int | None = None
    """A move to this number of shards is under way; topics may be in either place until it is done."""

    def settled_on(self, shards: int) -> bool:
        """Is every topic where it belongs with this number of shards?"""
        return self.shards == shards and self.moving_to is None


class _FormatOnly(msgspec.Struct):
    format: int


def open_store(fs: FileSystem, data_dir: str, *, shards: int) -> Store:
    """The store of this directory; a new directory becomes one of `shards` shards."""
    known = load_store(fs, data_dir)
    if known is not None:
        return known
    store = Store(format=STORE_FORMAT, shards=shards, id=new_store_id())
    save_store(fs, data_dir, store)
    return store


def load_store(fs: FileSystem, data_dir: str) -> Store | None:
    """The store of this directory; None if there is none."""
    path = os.path.join(data_dir, STORE_NAME)
    if fs.exists(path):
        return read_store(fs, data_dir)
    found = [name for name in fs.list_dir(data_dir) if SHARD_DIR.fullmatch(name)]
    if found:
        raise StartRefused(
            Exit.UNUSABLE_STORE,
            f"{path} is missing, but {found[0]} is there: restore the file (it names the format version and "
            f'the number of shards, as in {{"format":{STORE_FORMAT},"shards":{len(found)}}})',
        )
    return None


def read_store(fs: FileSystem, data_dir: str) -> Store:
    path = os.path.join(data_dir, STORE_NAME)
    return _decode(path, read_whole(fs, path))


def with_id(fs: FileSystem, data_dir: str, store: Store) -> Store:
    """Stores of earlier releases get their id now."""
    if not store.id:
        store = structs.replace(store, id=new_store_id())
        save_store(fs, data_dir, store)
    return store


def new_store_id() -> str:
    return os.urandom(8).hex()


def save_store(fs: FileSystem, data_dir: str, store: Store) -> None:
    write_atomically(fs, os.path.join(data_dir, STORE_NAME), [msgspec.json.encode(store) + b"\n"])


def present_shards(fs: FileSystem, data_dir: str) -> set[int]:
    """The shards that have a directory here, in use or not."""
    names = fs.list_dir(data_dir)
    return {int(name.removeprefix("shard-")) for name in names if SHARD_DIR.fullmatch(name)}


def _decode(path: str, data: bytes) -> Store:
    try:
        # The version first, alone: a later format may look quite different otherwise.
        version = msgspec.json.decode(data, type=_FormatOnly).format
        if version != STORE_FORMAT:
            raise StartRefused(
                Exit.UNUSABLE_STORE,
                f"{path} says format version {version} and this build knows version {STORE_FORMAT}: "
                f"start a release that knows version {version}",
            )
        store = msgspec.json.decode(data, type=Store)
    except msgspec.MsgspecError as err:
        raise StartRefused(Exit.UNUSABLE_STORE, f"{path} is damaged: {err}") from err
    if store.shards < 1:
        raise StartRefused(Exit.UNUSABLE_STORE, f"{path} is damaged: {store.shards} shards")
    return store
