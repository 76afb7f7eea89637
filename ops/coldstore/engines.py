"""Who does the reading of an audit: this process, or Spark. Both run the same functions on the same tasks."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from ops.coldstore.file_checks import CheckedFile, Task, check_task
from ops.coldstore.places import filesystem_for
from ops.coldstore.segment_files import opened
from shared.audit_blocks import SliceFacts
from shared.audit_routers import hashes_of
from shared.cold_plan import SegmentSlice
from shared.format_errors import FormatError
from shared.segment_reader import read_block

Advance = Callable[[int, int], None]
"""Called with (done, all), in bytes or tasks."""
Wanted = tuple[SegmentSlice, "array[int]"]
"""Blocks of one topic, and the seqs whose content is asked for."""


class Engine(Protocol):
    name: str

    def check(self, tasks: Sequence[Task], advance: Advance) -> list[CheckedFile | SliceFacts]: ...
    def source_hashes(self, wanted: Sequence[Wanted]) -> list[dict[int, int]]: ...


def hash_source(wanted: Wanted) -> dict[int, int]:
    work, seqs = wanted
    asked = set(seqs)
    found: dict[int, int] = {}
    try:
        with opened(filesystem_for(work.path), work.path) as file:
            for _, entry in work.blocks:
                found |= hashes_of(read_block(file.pread, entry), asked)
    except (OSError, FormatError):
        pass  # reported by the pass before; there is nothing to compare with
    return found


class LocalEngine:
    """One process, one task after the other: the plain way, and the one that the other is held to."""

    name = "local"

    def check(self, tasks: Sequence[Task], advance: Advance) -> list[CheckedFile | SliceFacts]:
        found: list[CheckedFile | SliceFacts] = []
        sizes = [sum(part.bytes for part in task) for task in tasks]
        total, done = sum(sizes), 0
        for task, size in zip(tasks, sizes, strict=True):
            found += check_task(task)
            done += size
            advance(done, total)
        return found

    def source_hashes(self, wanted: Sequence[Wanted]) -> list[dict[int, int]]:
        return [hash_source(each) for each in wanted]


class SparkEngine:
    """Task by task. What comes back is small, so it is collected; records never leave their task."""

    name = "spark"

    def __init__(self, session: Any) -> None:
        self._context = session.sparkContext

    def check(self, tasks: Sequence[Task], advance: Advance) -> list[CheckedFile | SliceFacts]:
        if not tasks:
            return []
        with self._watched(len(tasks), advance):
            spread = self._context.parallelize(list(tasks), len(tasks))
            found: list[CheckedFile | SliceFacts] = spread.flatMap(check_task).collect()
        return found

    def source_hashes(self, wanted: Sequence[Wanted]) -> list[dict[int, int]]:
        if not wanted:
            return []
        found: list[dict[int, int]] = (
            self._context.parallelize(list(wanted), min(len(wanted), 64)).map(hash_source).collect()
        )
        return found

    @contextmanager
    def _watched(self, tasks: int, advance: Advance) -> Iterator[None]:
        """Asks Spark now and then how many tasks are done."""
        over = threading.Event()
        tracker = self._context.statusTracker()

        def look() -> None:
            while not over.wait(0.5):
                stages = (tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds())
                advance(sum(stage.numCompletedTasks for stage in stages if stage is not None), tasks)

        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        try:
            yield
            advance(tasks, tasks)
        finally:
            over.set()
            thread.join()
