"""`DATA_DIR/store.json`: what the directory as a whole is. Written by the supervisor, under its lock.

It is written before any shard exists, so shard directories without it mean that it was lost, and starting
afresh beside them would hide their data.
"""

from __future__ import annotations

import os
import re
from typing import Final

import msgspec

from shared.io.durable_fs import FileSystem, read_whole, write_atomically
from topicsd.exits import Exit, StartRefused

STORE_NAME: Final = "store.json"
STORE_FORMAT: Final = 1
SHARD_DIR: Final = re.compile(r"shard-[0-9]{4}")


class Store(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    format: int
    shards: int
    moving_to: int | None = None
    """A move to this number of shards is under way; topics may be in either place until it is done."""


class _FormatOnly(msgspec.Struct):
    format: int


def open_store(fs: FileSystem, data_dir: str, *, shards: int) -> Store:
    """The store of this directory; a new directory becomes one of `shards` shards."""
    path = os.path.join(data_dir, STORE_NAME)
    if fs.exists(path):
        return _decode(path, read_whole(fs, path))
    found = [name for name in fs.list_dir(data_dir) if SHARD_DIR.fullmatch(name)]
    if found:
        raise StartRefused(
            Exit.UNUSABLE_STORE,
            f"{path} is missing, but {found[0]} is there: restore the file (it names the format version and "
            f'the number of shards, as in {{"format":{STORE_FORMAT},"shards":{len(found)}}})',
        )
    store = Store(format=STORE_FORMAT, shards=shards)
    write_atomically(fs, path, [msgspec.json.encode(store) + b"\n"])
    return store


def ensure_shard_count(store: Store, *, data_dir: str, shards: int) -> Store:
    """The store with the number of shards that the settings ask for, or a refusal."""
    if store.moving_to is not None:
        raise StartRefused(
            Exit.UNUSABLE_STORE,
            f"{data_dir} is being moved from {store.shards} to {store.moving_to} shards and this build "
            "cannot finish it: start the release that began it",
        )
    if store.shards == shards:
        return store
    raise StartRefused(
        Exit.BAD_SETTINGS,
        f"wal_shards: is {shards}, but the data in {data_dir} is divided into {store.shards} shards; "
        f"set TOPICS_WAL_SHARDS={store.shards}",
    )


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
