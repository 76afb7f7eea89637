"""A cold tier in a bucket, behind the same door as files: paths that begin with `s3://` go to the bucket.

A bucket takes whole objects, so a file that is written is kept in a temporary file here and uploaded by `sync_data`;
from then on it is read from the bucket, so that reading back what was written really asks the bucket. A rename is a
copy and a removal; the copy appears whole. Directories are only names.

Two tempers. Jobs in threads wait and retry. Whoever serves readers must not: `impatient` gives up after about two
seconds and, having failed, refuses at once for a while, so that an unreachable bucket costs a worker's turn little.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import IO, Final

from shared.io.durable_fs import File, FileSystem, RealFileSystem
from shared.io.object_store import S3_SCHEME, BucketStore, StoreUnreachable, is_bucket

_PART_BYTES: Final = 8 << 20
_UNFINISHED: Final = ".tmp"
_UPLOADING: Final = ".uploading"
_READ_TIMEOUT: Final = "2s"
_REFUSE_FOR_S: Final = 5.0
_PLENTY: Final = 1 << 60


class ColdBucket(BucketStore):
    """What the store's door does not offer: one level of names, and copies inside the bucket."""

    def names(self, prefix: str) -> list[str]:
        def collect() -> list[str]:
            found = self._obstore.list_with_delimiter(self._store, prefix or None)
            paths = [*found["common_prefixes"], *(meta["path"] for meta in found["objects"])]
            return sorted(path.rstrip("/").rpartition("/")[2] for path in paths)

        return self._call(prefix, collect)

    def copy(self, old: str, new: str) -> None:
        self._call(old, lambda: self._obstore.copy(self._store, old, new, overwrite=True))


class TieredFileSystem(FileSystem):
    """Local files, and one bucket for all paths below its URL."""

    def __init__(self, url: str, *, setting: str = "cold_dir", patient: bool = True) -> None:
        self._url = S3_SCHEME + url.removeprefix(S3_SCHEME).rstrip("/")
        self._setting = setting
        self._local = RealFileSystem()
        self._patient = patient
        self._down_until = 0.0
        self.bucket = (
            ColdBucket(self._url, setting=setting)
            if patient
            else ColdBucket(self._url, setting=setting, timeout=_READ_TIMEOUT, retries=0)
        )

    def impatient(self) -> TieredFileSystem:
        """For reading while others wait."""
        return TieredFileSystem(self._url, setting=self._setting, patient=False)

    def _key(self, path: str) -> str | None:
        """The object that a path names; None for a path on this machine."""
        if not is_bucket(path):
            return None
        if not path.startswith(self._url + "/"):
            raise OSError(errno.EXDEV, f"not in {self._url}", path)
        key = path[len(self._url) + 1 :]
        return key.removesuffix(_UNFINISHED) + _UPLOADING if key.endswith(_UNFINISHED) else key

    # --- the bucket's own mood ----------------------------------------------------------------------------

    def check_up(self) -> None:
        if not self._patient and time.monotonic() < self._down_until:
            raise StoreUnreachable(errno.EIO, f"{self._url} did not answer a moment ago")

    def note_down(self) -> None:
        self._down_until = time.monotonic() + _REFUSE_FOR_S

    # --- FileSystem ---------------------------------------------------------------------------------------

    def boot_id(self) -> str:
        return self._local.boot_id()

    def free_bytes(self, path: str) -> int:
        return _PLENTY if is_bucket(path) else self._local.free_bytes(path)

    def make_dir(self, path: str) -> None:
        if not is_bucket(path):
            self._local.make_dir(path)

    def list_dir(self, path: str) -> list[str]:
        if not is_bucket(path):
            return self._local.list_dir(path)
        if path.rstrip("/") == self._url:
            return self.bucket.names("")
        key = self._key(path.rstrip("/"))
        assert key is not None
        return self.bucket.names(key)

    def exists(self, path: str) -> bool:
        key = self._key(path)
        return self._local.exists(path) if key is None else self.bucket.size(key) is not None

    def create(self, path: str) -> File:
        key = self._key(path)
        if key is None:
            return self._local.create(path)
        if self.bucket.size(key) is not None:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        return _Upload(self, key, path)

    def open(self, path: str, *, write: bool = False) -> File:
        key = self._key(path)
        if key is None:
            return self._local.open(path, write=write)
        if write:
            raise OSError(errno.EROFS, "objects are written once", path)
        self.check_up()
        try:
            size = self.bucket.size(key)
        except StoreUnreachable:
            self.note_down()
            raise
        if size is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return _Object(self, key, path, size)

    def rename(self, old: str, new: str) -> None:
        source, target = self._key(old), self._key(new)
        if source is None or target is None:
            assert source is None and target is None, f"{old} and {new} are not on one side"
            self._local.rename(old, new)
            return
        self.bucket.copy(source, target)
        self.bucket.delete(source)

    def rename_new(self, old: str, new: str) -> None:
        if self._key(new) is None:
            self._local.rename_new(old, new)
            return
        if self.exists(new):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new)
        self.rename(old, new)

    def unlink(self, path: str) -> None:
        key = self._key(path)
        if key is None:
            self._local.unlink(path)
        else:
            self.bucket.delete(key)

    def sync_dir(self, path: str) -> None:
        if not is_bucket(path):
            self._local.sync_dir(path)


class _Object(File):
    """An object that is there. Reads are ranges."""

    def __init__(self, fs: TieredFileSystem, key: str, path: str, size: int) -> None:
        self._fs = fs
        self._key = key
        self._path = path
        self._size = size

    @property
    def path(self) -> str:
        return self._path

    def fileno(self) -> int:
        return -1

    def size(self) -> int:
        return self._size

    def pread(self, length: int, offset: int) -> bytes:
        wanted = min(length, self._size - offset)
        if wanted <= 0:
            return b""
        self._fs.check_up()
        try:
            return self._fs.bucket.get_range(self._key, offset, wanted)
        except StoreUnreachable:
            self._fs.note_down()
            raise

    def pwritev(self, buffers: Sequence[bytes | memoryview], offset: int) -> int:
        raise OSError(errno.EROFS, "objects are written once", self._path)

    def allocate(self, size: int) -> None:
        raise OSError(errno.EROFS, "objects are written once", self._path)

    def truncate(self, size: int) -> None:
        raise OSError(errno.EROFS, "objects are written once", self._path)

    def sync_data(self) -> None:
        return None

    def close(self) -> None:
        return None


class _Upload(File):
    """An object in the making."""

    def __init__(self, fs: TieredFileSystem, key: str, path: str) -> None:
        import tempfile  # with several formats of compression: for those who have a bucket

        self._fs = fs
        self._key = key
        self._path = path
        self._spool: IO[bytes] | None = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        self._end = 0
        self._uploaded: _Object | None = None

    @property
    def path(self) -> str:
        return self._path

    def fileno(self) -> int:
        return -1

    def size(self) -> int:
        return self._end

    def _file(self) -> IO[bytes]:
        if self._spool is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self._path)
        return self._spool

    def pread(self, length: int, offset: int) -> bytes:
        if self._uploaded is not None:
            return self._uploaded.pread(length, offset)
        return os.pread(self._file().fileno(), length, offset)

    def pwritev(self, buffers: Sequence[bytes | memoryview], offset: int) -> int:
        if self._uploaded is not None:
            raise OSError(errno.EROFS, "objects are written once", self._path)
        at = offset
        for buffer in buffers:
            at += os.pwrite(self._file().fileno(), buffer, at)
        self._end = max(self._end, at)
        return at - offset

    def allocate(self, size: int) -> None:
        self._end = max(self._end, size)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._file().fileno(), size)
        self._end = size

    def sync_data(self) -> None:
        if self._uploaded is not None:
            return
        descriptor = self._file().fileno()
        chunks = (
            os.pread(descriptor, min(_PART_BYTES, self._end - at), at)
            for at in range(0, self._end, _PART_BYTES)
        )
        self._fs.bucket.put(self._key, chunks)
        self._uploaded = _Object(self._fs, self._key, self._path, self._end)

    def close(self) -> None:
        spool, self._spool = self._spool, None
        if spool is not None:
            with suppress(OSError):
                spool.close()


def file_system(*places: str | None) -> FileSystem:
    """What can read and write these places, all of them in one bucket or none. BadSetting if it cannot be used."""
    for place in places:
        if place is not None and is_bucket(place):
            # The whole bucket, not the place: paths beside it (an export, a single file) are read just as well.
            return TieredFileSystem(S3_SCHEME + place.removeprefix(S3_SCHEME).partition("/")[0])
    return RealFileSystem()


def for_serving(fs: FileSystem) -> FileSystem:
    """The same files, read by somebody who cannot wait."""
    return fs.impatient() if isinstance(fs, TieredFileSystem) else fs
