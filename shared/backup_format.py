"""What a place of backups holds: names of objects, and the document that makes them a backup.

    backups/20261116T061500Z-DIGEST.json                       one backup; written last, so it is whole or not there
    STORE/shard-0000/log/0000000007-DIGEST.wal                 a log file from its header to its FILE_END frame
    STORE/shard-0000/tails/0000000008-DIGEST.wal               the beginning of a log file that was still growing
    STORE/shard-0000/segments/0000000003-SEGMENT-DIGEST.seg    a segment; SEGMENT is its digest (docs/disk-format.md §4)
    STORE/shard-0000/snapshots/0000000002-DIGEST.snap

DIGEST is the XXH3-128 of the object's bytes in hex, so that every object says what it must hold, whoever copied it and
whatever happened to the document that names it. STORE is the id of one history of one server (`store.json`): a store
that was restored goes on under a new one, and the logs of the two never mix.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import msgspec
from xxhash import xxh3_128, xxh3_128_hexdigest

BACKUP_FORMAT: Final = 1
BACKUPS: Final = "backups"
LOG, TAILS, SEGMENTS, SNAPSHOTS = "log", "tails", "segments", "snapshots"
_ENDINGS: Final = {LOG: "wal", TAILS: "wal", SEGMENTS: "seg", SNAPSHOTS: "snap"}

_STORE = re.compile(r"[0-9a-f]{16}")
_ID = re.compile(r"[0-9]{8}T[0-9]{6}Z(?:\.[0-9]+)?")
_BACKUP_KEY = re.compile(rf"{BACKUPS}/({_ID.pattern})-([0-9a-f]{{32}})\.json")
_FILE_KEY = re.compile(
    r"([0-9a-f]{16})/shard-([0-9]{4})/(log|tails|segments|snapshots)/"
    r"([0-9]{10})(?:-([0-9a-f]{16}))?-([0-9a-f]{32})\.(wal|seg|snap)"
)


class NotABackup(ValueError):
    """The document is not one of ours; says why."""


# --- names ------------------------------------------------------------------------------------------------


class FileKey(NamedTuple):
    """The name of an object, taken apart. `label` is the segment's own digest, empty for other files."""

    store: str
    shard: int
    kind: str
    number: int
    digest: str
    label: str = ""

    def __str__(self) -> str:
        label = f"-{self.label}" if self.label else ""
        name = f"{self.number:010d}{label}-{self.digest}.{_ENDINGS[self.kind]}"
        return f"{shard_prefix(self.store, self.shard)}/{self.kind}/{name}"


def shard_prefix(store: str, shard: int) -> str:
    return f"{store}/shard-{shard:04d}"


def parse_file_key(key: str) -> FileKey | None:
    found = _FILE_KEY.fullmatch(key)
    if found is None:
        return None
    store, shard, kind, number, label, digest, ending = found.groups()
    if _ENDINGS[kind] != ending or bool(label) != (kind == SEGMENTS):
        return None
    return FileKey(store, int(shard), kind, int(number), digest, label or "")


def valid_store_id(text: str) -> bool:
    return _STORE.fullmatch(text) is not None


def digest_of(content: bytes) -> str:
    return xxh3_128_hexdigest(content)


def new_digest() -> xxh3_128:
    return xxh3_128()


# --- the document -----------------------------------------------------------------------------------------


class StoredFile(msgspec.Struct, frozen=True):
    number: int
    key: str
    size: int


class StoredSnapshot(msgspec.Struct, frozen=True):
    file: StoredFile
    created_ms: int
    """When it was begun; everything older is in it."""

    end: int
    """The log position up to which everything is in it."""


class BackupShard(msgspec.Struct, frozen=True, kw_only=True):
    shard: int
    end: int
    """The log position at which this backup ends: no frame at or behind it belongs to it."""

    snapshot: StoredSnapshot | None
    """None: the log begins with its first file."""

    log: tuple[StoredFile, ...]
    """Ascending without a gap; the last one may be a beginning only."""

    segments: tuple[StoredFile, ...]
    last_segment: int
    """The highest segment number given out when it was taken."""

    @property
    def files(self) -> tuple[StoredFile, ...]:
        snapshot = () if self.snapshot is None else (self.snapshot.file,)
        return (*snapshot, *self.log, *self.segments)


class Backup(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    id: str
    store: str
    created_ms: int
    """When all shards stood still for it."""

    version: str
    """Of the topicsd that made it."""

    shards: tuple[BackupShard, ...]

    @property
    def files(self) -> tuple[StoredFile, ...]:
        return tuple(file for shard in self.shards for file in shard.files)

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


class _FormatOnly(msgspec.Struct):
    format: int


def encode_backup(backup: Backup) -> tuple[str, bytes]:
    """Key and content."""
    content = msgspec.json.format(msgspec.json.encode(backup), indent=1) + b"\n"
    return f"{BACKUPS}/{backup.id}-{digest_of(content)}.json", content


def backup_id_of(key: str) -> str | None:
    found = _BACKUP_KEY.fullmatch(key)
    return found[1] if found else None


def decode_backup(key: str, content: bytes) -> Backup:
    """Raises NotABackup."""
    found = _BACKUP_KEY.fullmatch(key)
    if found is None:
        raise NotABackup("its name is not that of a backup")
    if digest_of(content) != found[2]:
        raise NotABackup("its content is not what its name says (damaged)")
    try:
        version = msgspec.json.decode(content, type=_FormatOnly).format
        if version != BACKUP_FORMAT:
            raise NotABackup(f"format version {version} is needed and this build reads {BACKUP_FORMAT}")
        backup = msgspec.json.decode(content, type=Backup)
    except msgspec.MsgspecError as err:
        raise NotABackup(str(err)) from err
    _check(backup, found[1])
    return backup


def _check(backup: Backup, id_: str) -> None:
    if backup.id != id_ or not valid_store_id(backup.store):
        raise NotABackup("it is about another backup than its name says")
    if [each.shard for each in backup.shards] != list(range(len(backup.shards))):
        raise NotABackup("its shards are not in order")
    for shard in backup.shards:
        for file in shard.files:
            key = parse_file_key(file.key)
            if key is None or (key.store, key.shard, key.number) != (backup.store, shard.shard, file.number):
                raise NotABackup(f"{file.key} is not a file of shard {shard.shard}")
        numbers = [file.number for file in shard.log]
        if not numbers or numbers != list(range(numbers[0], numbers[0] + len(numbers))):
            raise NotABackup(f"the log of shard {shard.shard} has a gap")
