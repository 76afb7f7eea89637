"""An export as a Spark job: a task per bin, from segments to Parquet without a shuffle."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ops.coldstore.export import ExportWork, write_export_bin
from ops.coldstore.export_files import ExportFile


class SparkExport:
    def __init__(self, session: Any) -> None:
        self._session = session

    def write(self, work: ExportWork) -> list[ExportFile]:
        """Only what the attempts that counted have reported comes back; files of others stay aside and are removed."""
        context = self._session.sparkContext
        shipped = context.broadcast(work)
        found = (
            context.parallelize(range(len(work.bins)), len(work.bins)).mapPartitions(_Task(shipped)).collect()
        )
        shipped.unpersist()
        return [file for files in found for file in files]


class _Task:
    def __init__(self, shipped: Any) -> None:
        self._shipped = shipped

    def __call__(self, rows: Iterator[int]) -> Iterator[list[ExportFile]]:
        from pyspark import TaskContext

        context = TaskContext.get()
        attempt = context.taskAttemptId() if context is not None else 0
        for at in rows:
            yield write_export_bin(self._shipped.value, at, attempt)
