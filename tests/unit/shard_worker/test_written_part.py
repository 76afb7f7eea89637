"""A log file read around its unwritten part gives the same bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from shard_worker.disk.written_part import WrittenPart
from shared.io.durable_fs import RealFileSystem


@pytest.mark.parametrize("content", [b"", b"frames", b"f" * 9000])
def test_the_bytes_are_those_of_the_file_wherever_it_is_read(tmp_path: Path, content: bytes) -> None:
    file = RealFileSystem().create(str(tmp_path / "log"))
    file.allocate(20_000)
    file.pwritev([content], 0)
    part = WrittenPart(file)
    assert len(content) <= part.end <= 20_000
    for offset in (0, 1, 5, 4095, 4096, 8999, 9000, 12_288, 19_999, 20_000, 30_000):
        for length in (0, 1, 4096, 10_000, 50_000):
            assert part.pread(length, offset) == file.pread(length, offset), (offset, length)
    file.close()


def test_what_was_never_written_is_not_read(tmp_path: Path) -> None:
    file = RealFileSystem().create(str(tmp_path / "log"))
    file.allocate(1 << 20)
    file.pwritev([b"frames"], 0)
    part = WrittenPart(file)
    if part.end == 1 << 20:
        pytest.skip("this file system does not tell holes from data")
    assert part.pread(1 << 20, 0) == b"frames" + bytes((1 << 20) - 6)
    assert file.data_end() == part.end, "zeros that were read count as data"
    file.close()
