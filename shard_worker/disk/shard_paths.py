"""Where the files of one shard are. Layout: docs/disk-format.md §1."""

from __future__ import annotations

import msgspec

from shared.settings import Settings


class ShardPaths(msgspec.Struct, frozen=True):
    root: str
    cold: str | None

    @property
    def wal(self) -> str:
        return f"{self.root}/wal"

    @property
    def segments(self) -> str:
        return f"{self.root}/segments"

    @property
    def snapshots(self) -> str:
        return f"{self.root}/snapshots"

    @property
    def quarantine(self) -> str:
        return f"{self.root}/quarantine"


def shard_paths(settings: Settings, shard: int) -> ShardPaths:
    name = f"shard-{shard:04d}"
    return ShardPaths(
        f"{settings.data_dir}/{name}", f"{settings.cold_dir}/{name}" if settings.cold_dir else None
    )
