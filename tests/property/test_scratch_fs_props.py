"""A scratch file system shows what the real one would after the same calls, and what lies below never changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import shared.io.scratch_fs as scratch_module
from shared.io.durable_fs import FileSystem
from shared.io.scratch_fs import ScratchFileSystem
from tests.support.fake_disk import FakeDisk

NAMES = ["/d/a", "/d/e/b"]
name = st.sampled_from(NAMES)
place = st.integers(0, 40)

step = st.one_of(
    st.tuples(st.just("create"), name),
    st.tuples(st.just("write"), name, place, st.binary(min_size=1, max_size=20)),
    st.tuples(st.just("truncate"), name, place),
    st.tuples(st.just("allocate"), name, place),
    st.tuples(st.just("cut and grow"), name, place, place),
    st.tuples(st.just("rename"), name, name),
    st.tuples(st.just("rename_new"), name, name),
    st.tuples(st.just("unlink"), name),
    st.tuples(st.just("read"), name, place, place),
    st.tuples(st.just("list"), st.sampled_from(["/d", "/d/e", "/nowhere"])),
    st.tuples(st.just("exists"), name),
)


def do(fs: FileSystem, call: tuple[Any, ...]) -> object:
    """What the call gives: a value, or the number of its error."""

    def with_file(path: str, use: Callable[[Any], object]) -> object:
        file = fs.open(path, write=True)
        try:
            return use(file)
        finally:
            file.close()

    what, *rest = call
    try:
        match what:
            case "create":
                fs.create(rest[0]).close()
            case "write":
                return with_file(rest[0], lambda file: file.pwritev([rest[2]], rest[1]))
            case "truncate":
                return with_file(rest[0], lambda file: file.truncate(rest[1]))
            case "allocate":
                return with_file(rest[0], lambda file: file.allocate(rest[1]))
            case "cut and grow":
                return with_file(rest[0], lambda file: (file.truncate(rest[1]), file.allocate(rest[2])))
            case "rename":
                fs.rename(*rest)
            case "rename_new":
                fs.rename_new(*rest)
            case "unlink":
                fs.unlink(rest[0])
            case "read":
                return with_file(rest[0], lambda file: (file.size(), file.pread(rest[1], rest[2])))
            case "list":
                return fs.list_dir(rest[0])
            case "exists":
                return fs.exists(rest[0])
    except OSError as err:
        return err.errno
    return None


@given(st.lists(step, max_size=12), st.lists(step, max_size=25))
def test_it_behaves_like_the_disk_below_and_keeps_its_changes(before: list[Any], after: list[Any]) -> None:
    disk = FakeDisk()
    disk.make_dir("/d/e")
    for path in NAMES:
        disk.place(path, bytes(range(1, 31)))
    for call in before:
        do(disk, call)
    twin = disk.clone()
    below = {path: disk.read_file(path) for path in disk.files()}
    page_bytes, scratch_module._PAGE_BYTES = scratch_module._PAGE_BYTES, 8
    try:
        scratch = ScratchFileSystem(disk)
        for call in after:
            assert do(scratch, call) == do(twin, call), call
            for path in NAMES:
                whole = ("read", path, 100, 0)
                assert do(scratch, whole) == do(twin, whole), call
    finally:
        scratch_module._PAGE_BYTES = page_bytes
    assert {path: disk.read_file(path) for path in disk.files()} == below
