"""Whole objects under keys: a directory, or a bucket that speaks S3. For backups and the cold tier.

Small on purpose: what both kinds can promise alike.

- An object appears whole or not at all, and is durable when `put` or `put_if_absent` returns.
- `put` replaces what is there. Use it for names that say what they hold (a digest), or that one writer owns.
- `put_if_absent` lets one of several writers win: the commit point of whoever needs one.
- A key is a relative path, `backups/0001.json`; its parts are plain names.

Whatever goes wrong is an OSError (`StoreUnreachable` for a bucket, FileNotFoundError for a key that is not there).
All calls block: call them in a thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from shared.errors import BadSetting
from shared.io.durable_fs import File, FileSystem, read_whole

S3_SCHEME: Final = "s3://"
_UNFINISHED: Final = ".tmp"
_PART_BYTES: Final = 8 << 20
_TIMEOUT: Final = "30s"
_RETRIES: Final = 3

T = TypeVar("T")


class StoreUnreachable(OSError):
    """The bucket did not do what was asked; says which object and why."""


class Listed(NamedTuple):
    key: str
    size: int


class ObjectStore(Protocol):
    @property
    def url(self) -> str:
        """For people: a path, or s3://bucket/prefix."""

    def put(self, key: str, chunks: Iterable[bytes]) -> None: ...
    def put_if_absent(self, key: str, content: bytes) -> bool:
        """False: somebody was first, and nothing has changed."""

    def get(self, key: str) -> bytes: ...
    def get_range(self, key: str, offset: int, length: int) -> bytes:
        """Up to `length` bytes; fewer only at the end of the object."""

    def size(self, key: str) -> int | None:
        """None: there is no such object."""

    def list(self, prefix: str) -> Iterator[Listed]:
        """All objects below the directory `prefix` ("" for all), in the order of their keys."""

    def delete(self, key: str) -> None:
        """Also fine if it is gone already."""

    def discard_unfinished(self) -> None:
        """Remove what writers that died have left. Nobody may be writing."""


def is_bucket(place: str) -> bool:
    return place.startswith(S3_SCHEME)


def open_store(fs: FileSystem, place: str, *, setting: str) -> ObjectStore:
    """The store at a directory or s3:// URL. `setting` names what it was configured by, for the error message."""
    if is_bucket(place):
        return BucketStore(place, setting=setting)
    if "://" in place:
        message = f"{place} is neither a directory nor an {S3_SCHEME}bucket/prefix URL"
        raise BadSetting(key=setting, source="value", message=message)
    return DirectoryStore(fs, place)


def file_chunks(file: File, length: int | None = None) -> Iterator[bytes]:
    """The content of an open file, in parts, as `put` takes it."""
    at, end = 0, file.size() if length is None else length
    while at < end:
        chunk = file.pread(min(_PART_BYTES, end - at), at)
        if not chunk:
            raise OSError(f"{file.path} ends at {at}, not at {end}")
        at += len(chunk)
        yield chunk


def object_chunks(store: ObjectStore, key: str, size: int) -> Iterator[bytes]:
    """The content of an object of this size, in parts; an object that is shorter is an error."""
    at = 0
    while at < size:
        chunk = store.get_range(key, at, min(_PART_BYTES, size - at))
        if not chunk:
            raise OSError(f"{store.url}/{key} ends at {at}, not at {size}")
        at += len(chunk)
        yield chunk


def _checked(key: str) -> str:
    parts = key.split("/")
    assert all(part not in ("", ".", "..") for part in parts), f"not a key: {key!r}"
    assert not key.endswith(_UNFINISHED), f"{key!r} would pass for an unfinished file"
    return key


class DirectoryStore(ObjectStore):
    """Keys are paths below a directory. Files ending in .tmp are leftovers of a writer that died; nobody sees them."""

    def __init__(self, fs: FileSystem, root: str) -> None:
        self._fs = fs
        self._root = root.rstrip("/") or "/"

    def __repr__(self) -> str:
        return f"DirectoryStore({self._root!r})"

    @property
    def url(self) -> str:
        return self._root

    def _path(self, key: str) -> str:
        return f"{self._root}/{_checked(key)}"

    def put(self, key: str, chunks: Iterable[bytes]) -> None:
        self._write(key, chunks, self._fs.rename)

    def put_if_absent(self, key: str, content: bytes) -> bool:
        if self._fs.exists(self._path(key)):
            return False
        try:
            self._write(key, [content], self._fs.rename_new)
        except FileExistsError:
            return False
        return True

    def _write(self, key: str, chunks: Iterable[bytes], publish: Callable[[str, str], None]) -> None:
        fs, path = self._fs, self._path(key)
        fs.make_dir(os.path.dirname(path))
        # The process id: two writers of one key must not write into each other's file.
        aside = f"{path}.{os.getpid()}{_UNFINISHED}"
        if fs.exists(aside):
            fs.unlink(aside)
        file = fs.create(aside)
        try:
            try:
                at = 0
                for chunk in chunks:
                    at += file.pwritev([chunk], at)
                file.sync_data()
            finally:
                file.close()
            publish(aside, path)
        except OSError:
            # On a full disk the leftover would hold the very space that is missing.
            with suppress(OSError):
                fs.unlink(aside)
            raise
        fs.sync_dir(os.path.dirname(path))

    def get(self, key: str) -> bytes:
        return read_whole(self._fs, self._path(key))

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        file = self._fs.open(self._path(key))
        try:
            return file.pread(length, offset)
        finally:
            file.close()

    def size(self, key: str) -> int | None:
        try:
            file = self._fs.open(self._path(key))
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            return file.size()
        finally:
            file.close()

    def list(self, prefix: str) -> Iterator[Listed]:
        base = f"{self._root}/{_checked(prefix)}" if prefix else self._root
        found = sorted(self._below(base, prefix))
        return iter(found)

    def _below(self, directory: str, prefix: str) -> Iterator[Listed]:
        for name in self._fs.list_dir(directory):
            if name.endswith(_UNFINISHED):
                continue
            key = f"{prefix}/{name}" if prefix else name
            try:
                yield from self._below(f"{directory}/{name}", key)
            except NotADirectoryError:
                size = self.size(key)
                if size is not None:
                    yield Listed(key, size)

    def delete(self, key: str) -> None:
        path = self._path(key)
        try:
            self._fs.unlink(path)
        except FileNotFoundError:
            return
        self._fs.sync_dir(os.path.dirname(path))

    def discard_unfinished(self) -> None:
        self._discard_below(self._root)

    def _discard_below(self, directory: str) -> None:
        for name in self._fs.list_dir(directory):
            path = f"{directory}/{name}"
            if name.endswith(_UNFINISHED):
                self._fs.unlink(path)
                continue
            with suppress(NotADirectoryError):
                self._discard_below(path)


class BucketStore(ObjectStore):
    """A bucket through obstore. Credentials, region and endpoint come from the usual AWS_* variables."""

    def __init__(self, url: str, *, setting: str, timeout: str = _TIMEOUT, retries: int = _RETRIES) -> None:
        try:
            import obstore
            import obstore.exceptions
            import obstore.store
        except ImportError as err:
            message = f"{url} needs the package obstore: pip install topicsd[s3]"
            raise BadSetting(key=setting, source="value", message=message) from err
        bucket, _, prefix = url.removeprefix(S3_SCHEME).partition("/")
        if not bucket:
            raise BadSetting(
                key=setting, source="value", message=f"{url} names no bucket: s3://bucket/prefix"
            )
        self._url = url.rstrip("/")
        self._obstore: Any = obstore
        self._errors: Any = obstore.exceptions
        plain = os.environ.get("AWS_ENDPOINT_URL_S3", os.environ.get("AWS_ENDPOINT_URL", ""))
        try:
            self._store: Any = obstore.store.S3Store(
                bucket,
                prefix=prefix.strip("/") or None,
                client_options={"timeout": timeout, "allow_http": plain.startswith("http://")},
                retry_config={"max_retries": retries},
            )
        except (self._errors.BaseError, ValueError) as err:
            raise BadSetting(key=setting, source="value", message=f"{url} cannot be used: {err}") from err

    def __repr__(self) -> str:
        return f"BucketStore({self.url!r})"

    @property
    def url(self) -> str:
        return self._url

    def _call(self, key: str, call: Callable[[], T]) -> T:
        try:
            return call()
        except FileNotFoundError:
            raise
        except (self._errors.BaseError, ValueError, OSError) as err:
            # The first line says what happened; what follows is obstore's inner state.
            reason = str(err).strip().partition("\n")[0]
            raise StoreUnreachable(f"{self.url}/{key}: {reason}") from err

    def put(self, key: str, chunks: Iterable[bytes]) -> None:
        _checked(key)
        parts = iter(chunks)
        first, second = next(parts, b""), next(parts, None)
        if second is None:
            self._call(key, lambda: self._obstore.put(self._store, key, first, use_multipart=False))
            return

        def all_parts() -> Iterator[bytes]:
            yield first
            yield second
            yield from parts

        self._call(key, lambda: self._obstore.put(self._store, key, all_parts(), chunk_size=_PART_BYTES))

    def put_if_absent(self, key: str, content: bytes) -> bool:
        _checked(key)

        def put() -> bool:
            try:
                self._obstore.put(self._store, key, content, mode="create")
            except (self._errors.AlreadyExistsError, self._errors.PreconditionError):
                return False
            return True

        return self._call(key, put)

    def get(self, key: str) -> bytes:
        return self._call(_checked(key), lambda: bytes(self._obstore.get(self._store, key).bytes()))

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        _checked(key)
        if length <= 0:
            return b""

        def get() -> bytes:
            return bytes(self._obstore.get_range(self._store, key, start=offset, length=length))

        try:
            return self._call(key, get)
        except StoreUnreachable:
            # A range that begins behind the end is an error here, and nothing to read elsewhere.
            size = self.size(key)
            if size is None or offset < size:
                raise
            return b""

    def size(self, key: str) -> int | None:
        try:
            return int(self._call(_checked(key), lambda: self._obstore.head(self._store, key)["size"]))
        except FileNotFoundError:
            return None

    def list(self, prefix: str) -> Iterator[Listed]:
        def collect() -> list[Listed]:
            # A prefix of obstore ends at a slash: "a" does not find "ab/c".
            pages = self._obstore.list(self._store, prefix or None)
            return [Listed(meta["path"], meta["size"]) for page in pages for meta in page]

        return iter(sorted(self._call(prefix, collect)))

    def delete(self, key: str) -> None:
        def delete() -> None:
            with suppress(FileNotFoundError):
                self._obstore.delete(self._store, key)

        self._call(_checked(key), delete)

    def discard_unfinished(self) -> None:
        """A bucket shows nothing of an upload that was not finished; its lifecycle rules remove the parts."""
