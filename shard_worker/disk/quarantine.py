"""Evidence is moved aside or copied, never destroyed."""

from __future__ import annotations

from shared.io.durable_fs import File, FileSystem

_COPY_BYTES = 4 << 20


def _free_name(fs: FileSystem, directory: str, name: str) -> str:
    taken = set(fs.list_dir(directory))
    serial = 1
    while f"{name}.{serial}" in taken:
        serial += 1
    return f"{directory}/{name}.{serial}"


def quarantine_file(fs: FileSystem, path: str, directory: str) -> str:
    """Move a whole file aside; returns its new path."""
    parent, _, name = path.rpartition("/")
    target = _free_name(fs, directory, name)
    fs.rename(path, target)
    fs.sync_dir(directory)
    fs.sync_dir(parent)
    return target


def quarantine_copy(fs: FileSystem, file: File, start: int, directory: str) -> str:
    """Copy what lies behind `start`, without the zeros at its end; durable before the caller cuts it off."""
    name = file.path.rpartition("/")[2]
    target = _free_name(fs, directory, f"{name}.torn-at-{start}")
    copy = fs.create(target)
    try:
        at, end, written = start, file.size(), 0
        while at < end:
            chunk = file.pread(min(_COPY_BYTES, end - at), at)
            kept = chunk.rstrip(b"\0")
            if kept:
                copy.pwritev([kept], at - start)
                written = at - start + len(kept)
            at += len(chunk)
        copy.truncate(written)
        copy.sync_data()
    finally:
        copy.close()
    fs.sync_dir(directory)
    return target
