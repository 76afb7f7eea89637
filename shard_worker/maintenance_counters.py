"""What maintenance has done, for metrics. Not in its file: that is compiled, and compiled code has no structs."""

from __future__ import annotations

import msgspec

from shared.io.durable_fs import File


class MaintenanceCounters(msgspec.Struct):
    seals: int = 0
    snapshots: int = 0
    relocated: int = 0
    segments_dropped: int = 0
    compactions_adopted: int = 0
    compactions_refused: int = 0
    failures: int = 0
    last_failure: str = ""
    retired_files: list[File] = msgspec.field(default_factory=list)
