"""The write-ahead log of one shard: staging, one write per group, rotation, syncing, reading back.

A *group* is everything staged since the last `write`. It reaches the disk whole or not at all: a write that
fails is cut off again, and only then do its callers hear of the failure. Syncing is split in three, so that the
slow part can run in a thread: `begin_sync` (what is to be synced), `SyncJob.run`, `finish_sync`.

Layout: docs/disk-format.md §3.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from shared.append_frame import APPEND_MIN_BYTES, append_buffers
from shared.errors import DiskFault
from shared.file_header import FILE_HEADER_BYTES, FileHeader
from shared.frame import FRAME_MIN_BYTES, Kind, build_frame
from shared.frame_buffers import frame_buffers
from shared.io.durable_fs import File, FileSystem
from shared.wal_format import LSN_OFFSET_BITS, LSN_OFFSET_MASK, encode_wal_header, lsn_of, split_lsn

_JOINED_BYTES: Final = (
    256 << 10
)  # below this, copying many frames into one buffer is cheaper than a vector of them


# Zeros that are written behind the end of the log where syncs follow each other. To the file system, space that was
# allocated and never written is something else than data: a sync of bytes in there commits its journal, too, and takes
# half as long again (docs/performance.md).
_BLANK: Final = bytes(256 << 10)
_CLOSELY_MS: Final = 20


def wal_file_name(file_no: int) -> str:
    return f"{file_no:010d}.wal"


def wal_file_number(name: str) -> int | None:
    stem, dot, ending = name.partition(".")
    return int(stem) if dot and ending == "wal" and len(stem) == 10 and stem.isdigit() else None


class SyncJob:
    """One sync of everything written so far. `run` may be called in a thread; it touches nothing else."""

    __slots__ = ("directory", "files", "fs", "run_ms", "sync_directory", "upto")

    def __init__(
        self, fs: FileSystem, directory: str, files: list[File], sync_directory: bool, upto: int
    ) -> None:
        self.fs = fs
        self.directory = directory
        self.files = files
        self.sync_directory = sync_directory
        self.upto = upto
        self.run_ms = 0.0

    def run(self) -> None:
        path = self.directory
        try:
            for file in self.files:
                path = file.path
                file.sync_data()
            if self.sync_directory:
                path = self.directory
                self.fs.sync_dir(self.directory)
        except OSError as err:
            # The kernel may have dropped the dirty pages: a second try could succeed over lost bytes.
            raise DiskFault(path=path, operation="sync", reason=str(err)) from err


@dataclass(slots=True)
class WalCounters:
    frames: int = 0
    groups: int = 0
    bytes: int = 0
    syncs: int = 0
    rotations: int = 0


class _Part:
    """The staged frames that go into one file."""

    __slots__ = ("buffers", "file_no", "offset")

    def __init__(self, file_no: int, offset: int) -> None:
        self.file_no = file_no
        self.offset = offset
        self.buffers: list[bytes] = []


class Wal:
    def __init__(self, fs: FileSystem, directory: str, *, shard: int, file_bytes: int) -> None:
        self._fs = fs
        self._directory = directory
        self._shard = shard
        self._file_bytes = file_bytes
        self.files: dict[int, File] = {}
        self._file_no = 0
        self._offset = 0  # where the next staged frame goes, in file _file_no
        self._parts: list[_Part] = []
        self._dirty: dict[int, File] = {}
        self._directory_dirty = False
        self._blank_upto = 0  # in file _blank_file: up to there space behind the end was written as zeros
        self._blank_file = 0
        self._newest = b""  # what was written last, if it is little: who waits for news asks for just that
        self._newest_at = 0  # its lsn
        self._awaited_ms = 0  # when somebody last waited for the sync of a group
        self.synced = 0  # everything below this lsn is on disk for good
        self.counters = WalCounters()

    # --- opening ----------------------------------------------------------------------------------------

    def start(self, file_no: int, now_ms: int) -> None:
        """Begin a new file; what it holds counts as synced only after the next sync, its header included."""
        self._create(file_no, now_ms)
        self._file_no, self._offset = file_no, FILE_HEADER_BYTES

    def resume(self, files: dict[int, File], end: int, *, synced: int, now_ms: int) -> None:
        """Go on behind `end`, the end of what recovery found, with all of it on disk for good.

        A process that was killed may have left any file from that of `synced` on in the page cache only.
        """
        self.files = files
        first_dirty, _ = split_lsn(synced)
        self._dirty = {number: file for number, file in files.items() if number >= first_dirty}
        self._directory_dirty = True
        self._file_no, self._offset = split_lsn(end)
        if self._file_no not in files:
            self.start(self._file_no, now_ms)
        job = self.begin_sync()
        job.run()
        self.finish_sync(job)

    @property
    def end(self) -> int:
        """The lsn that the next staged frame will get, if the file has room for it."""
        return lsn_of(self._file_no, self._offset)

    @property
    def written(self) -> int:
        """Everything below this lsn is in the files; behind it may be staged frames."""
        return lsn_of(self._parts[0].file_no, self._parts[0].offset) if self._parts else self.end

    @property
    def directory(self) -> str:
        return self._directory

    @property
    def file_no(self) -> int:
        return self._file_no

    @property
    def unsynced(self) -> bool:
        return bool(self._dirty)

    @property
    def total_bytes(self) -> int:
        return len(self.files) * self._file_bytes

    # --- writing ----------------------------------------------------------------------------------------

    def stage(self, kind: int, flags: int, topic_id: int, ts_ms: int, body: bytes | Sequence[bytes]) -> int:
        """Add a frame to the group; returns its lsn."""
        length = FRAME_MIN_BYTES + (len(body) if isinstance(body, bytes) else sum(map(len, body)))
        lsn = self._place(length, ts_ms)
        self._add(frame_buffers(kind, flags, lsn, topic_id, ts_ms, body), length)
        return lsn

    def stage_append(
        self,
        flags: int,
        topic_id: int,
        ts_ms: int,
        first_seq: int,
        count: int,
        reserve: int,
        json: bytes,
        columns: bytes,
        extra: bytes,
    ) -> int:
        """`stage` for appends, of which there are many."""
        length = APPEND_MIN_BYTES + len(json) + len(columns) + len(extra)
        lsn = self._place(length, ts_ms)
        self._add(
            append_buffers(flags, lsn, topic_id, ts_ms, first_seq, count, reserve, json, columns, extra),
            length,
        )
        return lsn

    def _place(self, length: int, ts_ms: int) -> int:
        """The lsn of a frame of this length, in the next file if this one has no room for it."""
        # Room for the FILE_END frame stays free. A frame larger than a file gets one of its own.
        if self._offset + length + FRAME_MIN_BYTES > self._file_bytes and self._offset > FILE_HEADER_BYTES:
            self._stage_file_end(ts_ms)
        return self._file_no << LSN_OFFSET_BITS | self._offset

    def _add(self, buffers: list[bytes], length: int) -> None:
        self._part().buffers.extend(buffers)
        self._offset += length
        self.counters.frames += 1

    def _part(self) -> _Part:
        if not self._parts or self._parts[-1].file_no != self._file_no:
            self._parts.append(_Part(self._file_no, self._offset))
        return self._parts[-1]

    def _stage_file_end(self, ts_ms: int) -> None:
        self._part().buffers.append(build_frame(Kind.FILE_END, 0, self.end, 0, ts_ms, b""))
        self._file_no, self._offset = self._file_no + 1, FILE_HEADER_BYTES

    @property
    def staged(self) -> bool:
        return bool(self._parts)

    def write(self, now_ms: int) -> None:
        """Write the group. On OSError nothing of it is in the log any more."""
        parts, self._parts = self._parts, []
        created: list[int] = []
        try:
            for part in parts:
                file = self.files.get(part.file_no)
                if file is None:
                    created.append(part.file_no)
                    file = self._create(part.file_no, now_ms)
                    self.counters.rotations += 1
                self._dirty[part.file_no] = file
                buffers = part.buffers
                if len(buffers) > 1 and sum(map(len, buffers)) < _JOINED_BYTES:
                    buffers = [b"".join(buffers)]
                self.counters.bytes += file.pwritev(buffers, part.offset)
            # Only now: where a group failed, the next one takes its place, and its lsns.
            if len(buffers) == 1 and len(buffers[0]) < _JOINED_BYTES:
                self._newest, self._newest_at = buffers[0], lsn_of(part.file_no, part.offset)
        except OSError:
            self._undo(parts[0], created)
            raise
        self.counters.groups += 1

    def note_awaited(self, now_ms: int) -> None:
        """Somebody waits until the group that was just written is synced. Where that happens often, it gets cheaper."""
        if now_ms - self._awaited_ms <= _CLOSELY_MS:
            self._blank_ahead()
        self._awaited_ms = now_ms

    def _blank_ahead(self) -> None:
        """Write zeros where the next groups will go, so that their syncs have less to do."""
        file_no, end = self._file_no, self._offset
        if file_no == self._blank_file and end <= self._blank_upto:
            return
        file = self.files.get(file_no)
        size = min(len(_BLANK), self._file_bytes - end)
        if file is None or size <= 0:
            return
        self._blank_file, self._blank_upto = file_no, end + size
        # To readers the file is what it was: zeros. Without these the log is as good, only slower.
        with suppress(OSError):
            file.pwritev([_BLANK if size == len(_BLANK) else _BLANK[:size]], end)

    def _create(self, file_no: int, now_ms: int) -> File:
        path = f"{self._directory}/{wal_file_name(file_no)}"
        file = self._fs.create(path)
        self.files[file_no] = file
        self._directory_dirty = True
        # Preallocated, so that a full disk is met here and not in the middle of a group.
        file.allocate(self._file_bytes)
        file.pwritev([encode_wal_header(FileHeader(self._shard, file_no, now_ms))], 0)
        self._dirty[file_no] = file
        return file

    def _undo(self, first: _Part, created: list[int]) -> None:
        """Cut a failed group off, durably: a frame that was refused must not come back with the next replay."""
        self._file_no, self._offset = first.file_no, first.offset
        self._blank_upto = 0
        try:
            for file_no in created:
                file = self.files.pop(file_no, None)
                self._dirty.pop(file_no, None)
                if file is not None:
                    self._fs.unlink(file.path)
                    file.close()
            if created:
                self._fs.sync_dir(self._directory)
            file = self.files.get(first.file_no)
            if file is not None and first.file_no not in created:
                file.truncate(first.offset)
                file.sync_data()
        except OSError as err:
            # What the log holds is unknown now. Exit without an answer; replay will tell.
            raise DiskFault(path=self._directory, operation="undo a failed write", reason=str(err)) from err

    # --- syncing ----------------------------------------------------------------------------------------

    def begin_sync(self) -> SyncJob:
        assert not self._parts, "sync what was written, not what is staged"
        job = SyncJob(self._fs, self._directory, list(self._dirty.values()), self._directory_dirty, self.end)
        self._dirty = {}
        self._directory_dirty = False
        return job

    def finish_sync(self, job: SyncJob) -> None:
        self.synced = max(self.synced, job.upto)
        self.counters.syncs += 1

    # --- reading and trimming ---------------------------------------------------------------------------

    def read(self, lsn: int, length: int) -> bytes:
        at = lsn - self._newest_at
        if at >= 0 and at + length <= len(self._newest):
            return self._newest[at : at + length]
        file = self.files.get(lsn >> LSN_OFFSET_BITS)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.path_of(lsn))
        return file.pread(length, lsn & LSN_OFFSET_MASK)

    def path_of(self, lsn: int) -> str:
        return f"{self._directory}/{wal_file_name(lsn >> LSN_OFFSET_BITS)}"

    def trim_below(self, file_no: int) -> list[File]:
        """Remove the files in front of `file_no`. Open descriptors of readers go on working."""
        gone: list[File] = []
        for number in sorted(number for number in self.files if number < file_no):
            try:
                self._fs.unlink(self.files[number].path)
            except FileNotFoundError:
                pass
            except OSError:
                break  # it is still there and still ours: the next trim tries again
            gone.append(self.files.pop(number))
        if gone:
            # A name that comes back after a crash is recognised by recovery.
            with suppress(OSError):
                self._fs.sync_dir(self._directory)
        return gone

    def close(self) -> None:
        for file in self.files.values():
            file.close()
        self.files = {}
