"""Reading the files of an audit, each once. Facts are kept for another look.

A file that fits into one task is read there as a whole, footer and all; small ones share a task. Only of larger ones is
the footer read here, so that their blocks can be shared out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ops.coldstore.engines import Advance, Engine
from ops.coldstore.file_checks import CheckedFile, FileToCheck, Task, open_file
from shared.audit_blocks import Footer, SliceFacts
from shared.cold_plan import Query, SegmentSlice, pack_bins, slice_segment


class FileChecks:
    """`checked[path]` for every file that was asked for."""

    def __init__(self, engine: Engine, bin_bytes: int) -> None:
        self._engine = engine
        self._bin_bytes = bin_bytes
        self.checked: dict[str, CheckedFile] = {}
        self.bytes = 0

    def run(self, wanted: Iterable[FileToCheck], advance: Advance) -> None:
        """Files that were read before are not read again."""
        small: list[FileToCheck] = []
        large: dict[str, tuple[CheckedFile, Footer | None]] = {}
        for each in wanted:
            known = self.checked.get(each.path)
            if known is not None and not known.vanished:
                continue
            if each.size is not None and each.size <= self._bin_bytes:
                small.append(each)
            else:
                large[each.path] = open_file(each)
        slices = list(_slices(large))
        tasks: list[Task] = [work.slices for work in pack_bins(slices, self._bin_bytes)]
        tasks += _packed(small, self._bin_bytes)
        fresh = [file for file, _ in large.values()]
        parts: dict[str, list[SliceFacts]] = {}
        for found in self._engine.check(tasks, advance):
            if isinstance(found, CheckedFile):
                fresh.append(found)
            else:
                parts.setdefault(found.path, []).append(found)
        for file, footer in large.values():
            if footer is not None:
                file.fold(footer, parts.get(file.path, []))
        for file in fresh:
            self.checked[file.path] = file
            self.bytes += file.bytes


def _slices(files: dict[str, tuple[CheckedFile, Footer | None]]) -> Iterator[SegmentSlice]:
    for file, footer in files.values():
        if footer is not None:
            whole = slice_segment(file.path, file.shard, file.number, footer.index, Query())
            if whole is not None:
                yield whole


def _packed(files: Iterable[FileToCheck], target_bytes: int) -> Iterator[Task]:
    held: list[FileToCheck] = []
    size = 0
    for file in files:
        if held and size + file.bytes > target_bytes:
            yield tuple(held)
            held, size = [], 0
        held.append(file)
        size += file.bytes
    if held:
        yield tuple(held)
