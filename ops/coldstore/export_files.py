"""The directory of an export: Parquet files by topic and day, and what they hold, committed in one step.

    OUT/topic=orders/day=2026-11-16/c0000000003-p0-a0.parquet
    OUT/_topicsd/commit-0000000003.json     the highest is in force: the files of this run, how far each topic has come
    OUT/_topicsd/staging/…                  files of a run that is not committed yet

A run writes its files aside, durable; the commit file is the point of no return; then the files move to their places.
A run that dies before it leaves nothing that counts, one that dies behind it is finished by the next run: a record is
in exactly one file, however often the export is run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import quote

import msgspec

from shared.errors import CorruptManifest
from shared.io.durable_fs import FileSystem, read_whole, write_atomically

_FORMAT = 1
_COMMITS_KEPT = 10


class ExportFile(msgspec.Struct, frozen=True):
    staged: str
    path: str
    """Both relative to the export's directory."""
    rows: int
    size: int


class ExportedTopic(msgspec.Struct, frozen=True):
    topic: str
    epoch: int
    upto: int
    """All sealed records up to this seq are exported."""


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    commit: int
    made_ms: int
    files: list[ExportFile]
    topics: list[ExportedTopic]
    segments: list[tuple[int, int, str]]
    """Shard, number and digest of every segment that is exported and still there: nothing to look for in them."""


@dataclass(frozen=True, slots=True)
class ExportDir:
    fs: FileSystem
    root: str

    @property
    def _own(self) -> str:
        return f"{self.root}/_topicsd"

    @property
    def staging(self) -> str:
        return f"{self._own}/staging"

    def current(self) -> Commit | None:
        names = [name for name in self.fs.list_dir(self._own) if _number(name) is not None]
        if not names:
            return None
        path = f"{self._own}/{max(names)}"
        try:
            commit = msgspec.json.decode(read_whole(self.fs, path), type=Commit)
        except msgspec.MsgspecError as err:
            raise CorruptManifest(path=path, reason=str(err)) from err
        if commit.format > _FORMAT:
            raise CorruptManifest(path=path, reason=f"format {commit.format} needs a newer topicsd")
        return commit

    def begin(self) -> Commit | None:
        """What is in force, its files in place; leftovers of a run that died are gone."""
        commit = self.current()
        if commit is not None:
            self._place(commit)
        for name in self.fs.list_dir(self.staging):
            self.fs.unlink(f"{self.staging}/{name}")
        self.fs.make_dir(self.staging)
        return commit

    def stage(self, name: str, content: bytes) -> None:
        path = f"{self.staging}/{name}"
        if self.fs.exists(path):
            self.fs.unlink(path)
        file = self.fs.create(path)
        try:
            file.pwritev([content], 0)
            file.sync_data()
        finally:
            file.close()

    def commit(
        self,
        previous: Commit | None,
        files: Iterable[ExportFile],
        topics: Iterable[ExportedTopic],
        segments: Iterable[tuple[int, int, str]],
        now_ms: int,
    ) -> Commit:
        self.fs.sync_dir(self.staging)
        number = previous.commit + 1 if previous is not None else 1
        done = Commit(
            format=_FORMAT,
            commit=number,
            made_ms=now_ms,
            files=sorted(files, key=lambda file: file.path),
            topics=sorted(topics, key=lambda each: (each.topic, each.epoch)),
            segments=sorted(segments),
        )
        write_atomically(self.fs, f"{self._own}/{commit_name(number)}", [msgspec.json.encode(done) + b"\n"])
        self._place(done)
        outdated = f"{self._own}/{commit_name(number - _COMMITS_KEPT)}"
        if number > _COMMITS_KEPT and self.fs.exists(outdated):
            self.fs.unlink(outdated)
        return done

    def _place(self, commit: Commit) -> None:
        """Move what is still aside; whoever did it before us was killed in the middle, or was not."""
        waiting = set(self.fs.list_dir(self.staging))
        touched = set()
        for file in commit.files:
            if file.staged.rpartition("/")[2] in waiting:
                directory = f"{self.root}/{file.path.rpartition('/')[0]}"
                self.fs.make_dir(directory)
                self.fs.rename(f"{self.root}/{file.staged}", f"{self.root}/{file.path}")
                touched.add(directory)
        for directory in sorted(touched):
            self.fs.sync_dir(directory)
        if touched:
            self.fs.sync_dir(self.staging)


def commit_name(number: int) -> str:
    return f"commit-{number:010d}.json"


def _number(name: str) -> int | None:
    stem = name.removeprefix("commit-").removesuffix(".json")
    return int(stem) if name == f"commit-{stem}.json" and len(stem) == 10 and stem.isdigit() else None


def export_path(topic: str, day: str, name: str) -> str:
    """Where a file belongs. Names are quoted as Spark, DuckDB and Hive quote them: a colon is %3A."""
    return f"topic={quote(topic, safe='')}/day={day}/{name}"
