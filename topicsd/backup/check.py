"""Is a backup still what it was? Every object of it, read whole and compared with the digest in its name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from shared.backup_format import Backup
from shared.errors import CorruptBackup
from shared.io.object_copy import verify_object
from shared.io.object_store import ObjectStore


@dataclass(slots=True)
class CheckResult:
    files: int = 0
    bytes: int = 0
    damage: list[str] = field(default_factory=list)
    """One line per damaged object, with the backups that need it."""


def check_backups(
    store: ObjectStore, backups: Sequence[Backup], progress: Callable[[str], None] = lambda text: None
) -> CheckResult:
    """Objects that several backups share are read once."""
    result = CheckResult()
    users: dict[tuple[str, int], list[str]] = {}
    for backup in backups:
        for file in backup.files:
            users.setdefault((file.key, file.size), []).append(backup.id)
    for (key, size), ids in sorted(users.items()):
        result.files += 1
        try:
            verify_object(store, key, size)
            result.bytes += size
        except (CorruptBackup, OSError) as err:
            result.damage.append(f"{err} (needed by {', '.join(ids)})")
            progress(result.damage[-1])
    return result
