"""Keeping the newest backups and what they need; the rest goes.

The documents go first: killed at any point, what remains are whole backups and objects that the next prune removes. The
archived log stays as far back as the oldest kept backup can be replayed from, so every later moment stays within reach.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shared.backup_format import LOG, SEGMENTS, Backup, FileKey, parse_file_key
from shared.compaction import COMPACTED_FROM
from shared.io.object_store import ObjectStore
from topicsd.backup.place import list_backups
from topicsd.backup.refusal import BackupRefused


@dataclass(slots=True)
class Pruned:
    backups: list[str]
    files: int = 0
    bytes: int = 0


def prune(store: ObjectStore, keep: int) -> Pruned:
    """Keep the newest `keep` backups."""
    listing = list_backups(store)
    if listing.damaged:
        # What a damaged document needs is unknown, and it may be put back from a copy.
        raise BackupRefused(
            f"nothing was removed, because a backup is damaged: {listing.damaged[0]}. Remove that file if you do not "
            "need the backup, then prune again"
        )
    kept, outdated = listing.backups[-keep:], listing.backups[:-keep]
    result = Pruned([backup.id for backup in outdated])
    for backup in outdated:
        store.delete(listing.keys[backup.id])
    needed = {file.key for backup in kept for file in backup.files}
    histories = {backup.store for backup in listing.backups}
    for listed in list(store.list("")):
        key = parse_file_key(listed.key)
        # The archive of a history that has no backup yet is none of our business.
        if key is None or key.store not in histories or listed.key in needed or _in_reach(key, kept):
            continue
        store.delete(listed.key)
        result.files += 1
        result.bytes += listed.size
    store.discard_unfinished()
    return result


def _in_reach(key: FileKey, kept: Sequence[Backup]) -> bool:
    """Could a restore that begins with a kept backup come to need it?"""
    oldest = next((backup for backup in kept if backup.store == key.store), None)
    if oldest is None or key.shard >= len(oldest.shards):
        return False
    shard = oldest.shards[key.shard]
    if key.kind == LOG:
        return key.number >= shard.log[0].number
    if key.kind != SEGMENTS:
        return False
    if key.number < COMPACTED_FROM:
        return key.number > shard.last_segment
    # Those of later compactions are numbered behind all that this backup has.
    return all(key.number > file.number for file in shard.segments)
