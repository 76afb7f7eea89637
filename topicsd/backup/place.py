"""A place of backups: what is there, and reading it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from shared.backup_format import (
    BACKUPS,
    LOG,
    Backup,
    FileKey,
    NotABackup,
    StoredFile,
    backup_id_of,
    decode_backup,
    parse_file_key,
    shard_prefix,
)
from shared.errors import CorruptBackup
from shared.io.object_store import ObjectStore
from topicsd.backup.refusal import BackupRefused

_WINDOW_BYTES = 8 << 20


@dataclass(slots=True)
class Listing:
    """The backups of a place, oldest first, and the documents that are not what their name says."""

    backups: list[Backup] = field(default_factory=list)
    damaged: list[CorruptBackup] = field(default_factory=list)
    keys: dict[str, str] = field(default_factory=dict)
    """Where the document of each backup is."""

    def find(self, id_: str, place: str) -> Backup:
        for backup in self.backups:
            if backup.id == id_:
                return backup
        for damage in self.damaged:
            if f"/{id_}-" in damage.path:
                raise damage
        known = ", ".join(backup.id for backup in self.backups[-5:]) or "none"
        raise BackupRefused(f"there is no backup {id_} in {place}; the newest ones are: {known}")


def list_backups(store: ObjectStore) -> Listing:
    listing = Listing()
    for found in store.list(BACKUPS):
        if backup_id_of(found.key) is None:
            continue
        try:
            backup = decode_backup(found.key, store.get(found.key))
            listing.backups.append(backup)
            listing.keys[backup.id] = found.key
        except NotABackup as err:
            listing.damaged.append(CorruptBackup(path=f"{store.url}/{found.key}", reason=str(err)))
    listing.backups.sort(key=lambda backup: (backup.created_ms, backup.id))
    return listing


@dataclass(frozen=True, slots=True)
class PlacedFile:
    key: FileKey
    size: int

    def stored(self) -> StoredFile:
        return StoredFile(self.key.number, str(self.key), self.size)


def list_files(store: ObjectStore, store_id: str, shard: int) -> list[PlacedFile]:
    """Every file of a shard that is there, whoever put it there."""
    found = [
        PlacedFile(key, listed.size)
        for listed in store.list(shard_prefix(store_id, shard))
        if (key := parse_file_key(listed.key)) is not None
    ]
    _refuse_two_histories(store, found)
    return found


def _refuse_two_histories(store: ObjectStore, files: list[PlacedFile]) -> None:
    """A finished log file never changes. Two under one number: a directory was put back by other means."""
    seen: dict[int, FileKey] = {}
    for file in files:
        if file.key.kind != LOG:
            continue
        other = seen.setdefault(file.key.number, file.key)
        if other != file.key:
            raise BackupRefused(
                f"{store.url} has two different log files {file.key.number} of one shard, {other} and {file.key}: "
                "the data directory was put back without `topicsd restore`. Use another place from now on, or "
                "remove the one that does not belong to this history"
            )


def window_reader(store: ObjectStore, key: str, size: int) -> Callable[[int, int], bytes]:
    """`pread` of an object for readers that go forward in small steps: few and large requests."""
    held, start = b"", 0

    def pread(length: int, offset: int) -> bytes:
        nonlocal held, start
        length = max(0, min(length, size - offset))
        if not start <= offset <= offset + length <= start + len(held):
            held, start = store.get_range(key, offset, min(max(length, _WINDOW_BYTES), size - offset)), offset
        return held[offset - start : offset - start + length]

    return pread
