"""Compacting and exporting a cold tier, in one process and with Spark: a part of `perf.cold`.

Beside compaction stands its floor, a single process that copies the segments byte for byte with the same syncs: what
any rewriting costs at least. Staging only: what a worker does to adopt the result is not measured here. Both engines
must give the same: the digests of the staged segments, and the rows of the export, are compared.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ops.coldstore.compact_local import compact_local
from ops.coldstore.compact_spark import compact_spark
from ops.coldstore.export import ExportEngine, LocalExport, run_export
from ops.coldstore.export_spark import SparkExport
from ops.coldstore.staging import load_basis
from perf.cold_store import START_MS, Store
from shared.compaction import Basis
from shared.io.durable_fs import RealFileSystem
from shared.staged import Staged

FS = RealFileSystem()
_NOW_MS = START_MS + 10**10


def jobs(store: Store, session: Any) -> dict[str, Callable[[], object]]:
    return {
        "floor: copy the segments": lambda: copy_floor(store),
        "compact: local": lambda: _compact(store, "local", session),
        "compact: Spark": lambda: _compact(store, "spark", session),
        "export: local": lambda: _export(store, LocalExport()),
        "export: Spark": lambda: _export(store, SparkExport(session)),
    }


def copy_floor(store: Store) -> None:
    target = store.directory / "copy"
    target.mkdir()
    for name in FS.list_dir(store.segment_dir):
        source, copy = FS.open(f"{store.segment_dir}/{name}"), FS.create(str(target / name))
        at = 0
        while chunk := source.pread(4 << 20, at):
            at += copy.pwritev([chunk], at)
        copy.sync_data()
        copy.close()
        source.close()
    shutil.rmtree(target)


def _compact(store: Store, engine: str, session: Any) -> None:
    basis = load_basis(FS, store.place)
    assert basis is not None
    staged = _staged(store, basis, engine, session)
    assert staged is not None
    kept = sum(topic.count for new in staged.new for topic in new.topics)
    assert sum(old.records for old in staged.old) == store.records and kept < store.records / 2
    _same(store, "compact", sorted(new.digest for new in staged.new))
    for name in FS.list_dir(store.place.staging):
        FS.unlink(f"{store.place.staging}/{name}")


def _staged(store: Store, basis: Basis, engine: str, session: Any) -> Staged | None:
    if engine == "local":
        return compact_local(FS, store.place, basis, job=engine, now_ms=_NOW_MS)
    return compact_spark(session, store.place, basis, job=engine, now_ms=_NOW_MS)


def _export(store: Store, engine: ExportEngine) -> None:
    out = store.directory / "export"
    commit, rows = run_export(store.data, store.cold, str(out), engine, now_ms=_NOW_MS)
    assert commit is not None and rows == store.records
    _same(store, "export", sorted((file.path, file.rows) for file in commit.files))
    shutil.rmtree(out)


_found: dict[tuple[Path, str], object] = {}


def _same(store: Store, job: str, found: object) -> None:
    """What every engine found before, this one must find too."""
    assert _found.setdefault((store.directory, job), found) == found, f"the engines disagree: {job}"
