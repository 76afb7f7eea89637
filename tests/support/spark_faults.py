"""Sinks of a compaction whose tasks fail. In a module: Spark ships them to its workers by name."""

from __future__ import annotations

from pyspark.sql.datasource import DataSourceWriter
from pyspark.sql.types import StructType

from ops.coldstore.compact_spark import CompactionSink, CompactionWriter
from ops.coldstore.plan_file import Work
from ops.coldstore.staging import Written


class FailingOnceSink(CompactionSink):
    """Every first attempt writes its file, and then dies before it can report it."""

    @classmethod
    def name(cls) -> str:
        return "topics_failing_once"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return _FailsOnce(self.options["plan"])


class _FailsOnce(CompactionWriter):
    def write_one(self, work: Work, at: int, attempt: int) -> Written:
        from pyspark import TaskContext

        written = super().write_one(work, at, attempt)
        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() == 0:
            raise RuntimeError("the task dies after it has written")
        return written


class FailingSink(CompactionSink):
    @classmethod
    def name(cls) -> str:
        return "topics_failing"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return _Fails(self.options["plan"])


class _Fails(CompactionWriter):
    def write_one(self, work: Work, at: int, attempt: int) -> Written:
        super().write_one(work, at, attempt)
        raise RuntimeError("this task always dies")
