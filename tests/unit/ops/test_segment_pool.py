"""A pool reads many segments through few open files."""

from __future__ import annotations

from pathlib import Path

import pytest

from ops.coldstore import segment_pool
from ops.coldstore.staging import ShardPlace, load_basis
from shared.errors import CorruptSegment
from shared.io.durable_fs import File, RealFileSystem
from tests.support.cold_stores import fill, store_in


class Counting(RealFileSystem):
    def __init__(self) -> None:
        super().__init__()
        self.opened: list[File] = []
        self.most = 0

    def open(self, path: str, *, write: bool = False) -> File:
        self.opened = [file for file in self.opened if not _closed(file)]
        self.opened.append(super().open(path, write=write))
        self.most = max(self.most, len(self.opened))
        return self.opened[-1]


def _closed(file: File) -> bool:
    try:
        file.size()
    except (OSError, ValueError):
        return True
    return False


def test_few_files_are_open_however_many_segments_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_pool, "OPEN_FILES", 2)
    monkeypatch.setattr(segment_pool, "INDEXES_KEPT", 3)
    with store_in(tmp_path, hot_retain_segments=1) as (driver, paths):
        fill(driver, ["t"], segments=7)
        driver.relocate()
        driver.snapshot()
    fs, place = Counting(), ShardPlace(0, paths.data, paths.cold)
    basis = load_basis(RealFileSystem(), place)
    assert basis is not None and len(basis.manifest.segments) == 6
    with place.opened(fs) as pool:
        sources = [pool.open(segment) for segment in basis.manifest.segments]
        for _ in range(2):
            seqs = [
                seq
                for source in sources
                for block in source.blocks_of(source.index.topic_at(0).topic_id)
                for seq in block.seqs
            ]
            assert seqs == list(range(1, 241))
        assert fs.most == 2
    assert all(_closed(file) for file in fs.opened)


def test_a_file_of_another_size_or_none_at_all_is_named(tmp_path: Path) -> None:
    with store_in(tmp_path, hot_retain_segments=1) as (driver, paths):
        fill(driver, ["t"], segments=3)
        driver.relocate()
        driver.snapshot()
    place = ShardPlace(0, paths.data, paths.cold)
    basis = load_basis(RealFileSystem(), place)
    assert basis is not None
    short, gone = (Path(f"{place.cold}/{segment.path}") for segment in basis.manifest.segments)
    short.write_bytes(short.read_bytes()[:-1])
    gone.unlink()
    with place.opened(RealFileSystem()) as pool:
        for segment, reason in zip(basis.manifest.segments, ("bytes instead of", "is missing"), strict=True):
            with pytest.raises(CorruptSegment, match=reason):
                pool.open(segment)
