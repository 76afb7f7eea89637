"""The real file system, in a temporary directory, and its agreement with the fake one."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from shared.io import durable_fs
from shared.io.durable_fs import File, FileSystem, RealFileSystem, read_whole, write_atomically
from tests.support.fake_disk import FakeDisk


@pytest.fixture
def fs() -> RealFileSystem:
    return RealFileSystem()


def failing(number: int) -> Callable[..., None]:
    def call(*_args: object) -> None:
        raise OSError(number, os.strerror(number))

    return call


def test_written_buffers_read_back_at_their_offset(fs: RealFileSystem, tmp_path: Path) -> None:
    file = fs.create(str(tmp_path / "a"))
    assert file.pwritev([b"one", memoryview(b"two"), b""], 5) == 6
    assert file.size() == 11
    assert file.pread(100, 0) == b"\0" * 5 + b"onetwo"
    assert file.pread(3, 8) == b"two"
    assert file.pread(4, 11) == b""
    file.close()


def test_more_buffers_than_one_call_takes_are_all_written(fs: RealFileSystem, tmp_path: Path) -> None:
    buffers = [b"%05d" % i for i in range(2 * durable_fs.IOV_MAX + 7)]
    file = fs.create(str(tmp_path / "a"))
    assert file.pwritev(buffers, 3) == 5 * len(buffers)
    assert file.pread(file.size(), 3) == b"".join(buffers)
    file.close()


@pytest.mark.parametrize("step_bytes", [1, 2, 3, 5, 7, 100])
def test_short_writes_are_continued(
    fs: RealFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step_bytes: int
) -> None:
    def stingy(fd: int, buffers: Sequence[bytes | memoryview], offset: int) -> int:
        return os.pwrite(fd, b"".join(buffers)[:step_bytes], offset)

    monkeypatch.setattr(os, "pwritev", stingy)
    buffers: list[bytes | memoryview] = [b"", b"abc", b"", b"", b"defgh", memoryview(b"ij"), b""]
    file = fs.create(str(tmp_path / "a"))
    assert file.pwritev(buffers, 4) == 10
    assert file.pread(100, 4) == b"abcdefghij"
    file.close()


def test_a_write_without_progress_fails_instead_of_spinning(
    fs: RealFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "pwrite", lambda *_: 0)
    monkeypatch.setattr(os, "pwritev", lambda *_: 0)
    file = fs.create(str(tmp_path / "a"))
    with pytest.raises(OSError, match="no progress"):
        file.pwritev([b"x"], 0)
    assert file.pwritev([b""], 0) == 0
    file.close()


def test_short_reads_are_continued_to_the_end_of_the_file(
    fs: RealFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = fs.create(str(tmp_path / "a"))
    file.pwritev([b"0123456789"], 0)
    whole_pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, length, offset: whole_pread(fd, min(length, 3), offset))
    assert file.pread(8, 1) == b"12345678"
    assert file.pread(50, 1) == b"123456789"
    file.close()


def test_allocate_grows_with_zeros_and_never_shrinks(fs: RealFileSystem, tmp_path: Path) -> None:
    file = fs.create(str(tmp_path / "a"))
    file.pwritev([b"abc"], 0)
    file.allocate(0)
    file.allocate(2)
    assert file.size() == 3
    file.allocate(6)
    assert file.pread(10, 0) == b"abc\0\0\0"
    file.close()


def test_what_was_never_written_is_known_to_be_zeros_without_reading(
    fs: RealFileSystem, tmp_path: Path
) -> None:
    file = fs.create(str(tmp_path / "f"))
    file.allocate(8 << 20)
    if file.data_end() == 8 << 20:
        pytest.skip("this file system does not tell holes from data")
    assert file.data_end() == 0
    for place in (1, 3 << 20, 5 << 20):  # not synced: in the page cache alone
        file.pwritev([b"x"], place)
        end = file.data_end()
        assert place < end < place + (1 << 20)
    file.sync_data()
    assert file.data_end() == end
    assert file.pread(8 << 20, 0).rstrip(b"\0") == file.pread(end, 0).rstrip(b"\0")
    file.pwritev([b"x"], (8 << 20) - 1)
    assert file.data_end() == 8 << 20
    file.close()


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EOPNOTSUPP])
def test_where_holes_are_not_told_everything_counts_as_data(
    fs: RealFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    file = fs.create(str(tmp_path / "f"))
    file.allocate(1 << 20)

    def lseek(fd: int, position: int, how: int) -> int:
        raise OSError(code, "no holes here")

    monkeypatch.setattr(os, "lseek", lseek)
    assert file.data_end() == 1 << 20
    file.close()


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EINVAL])
def test_allocate_still_sets_the_length_where_space_cannot_be_reserved(
    fs: RealFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(os, "posix_fallocate", failing(number))
    file = fs.create(str(tmp_path / "a"))
    file.allocate(4096)
    assert file.size() == 4096
    file.close()


def test_allocate_on_a_full_disk_fails_and_gives_back_the_part_that_fitted(
    fs: RealFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def partly(fd: int, offset: int, length: int) -> None:
        os.ftruncate(fd, offset + length // 2)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", partly)
    file = fs.create(str(tmp_path / "a"))
    file.pwritev([b"abc"], 0)
    with pytest.raises(OSError) as caught:
        file.allocate(4096)
    assert caught.value.errno == errno.ENOSPC
    assert file.size() == 3
    file.close()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_write_errors_propagate(
    fs: RealFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(os, "pwrite", failing(number))
    monkeypatch.setattr(os, "pwritev", failing(number))
    file = fs.create(str(tmp_path / "a"))
    for buffers in ([b"x"], [b"x", b"y"]):
        with pytest.raises(OSError) as caught:
            file.pwritev(buffers, 0)
        assert caught.value.errno == number
    file.close()


def test_sync_errors_propagate(fs: RealFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fdatasync", failing(errno.EIO))
    file = fs.create(str(tmp_path / "a"))
    with pytest.raises(OSError):
        file.sync_data()
    file.close()


def test_a_closed_file_refuses_use_and_closes_twice(fs: RealFileSystem, tmp_path: Path) -> None:
    file = fs.create(str(tmp_path / "a"))
    file.close()
    file.close()
    for use in (
        file.size,
        file.sync_data,
        lambda: file.pread(1, 0),
        lambda: file.pwritev([b"x"], 0),
        lambda: file.allocate(1),
        lambda: file.truncate(0),
    ):
        with pytest.raises(OSError) as caught:
            use()
        assert caught.value.errno == errno.EBADF
    assert file.fileno() == -1


def test_a_negative_offset_is_refused_and_never_means_the_current_position(
    fs: RealFileSystem, tmp_path: Path
) -> None:
    file = fs.create(str(tmp_path / "a"))
    file.pwritev([b"precious"], 0)
    with pytest.raises(OSError) as caught:
        file.pwritev([b"x"], -1)
    assert caught.value.errno == errno.EINVAL
    assert file.pread(100, 0) == b"precious"
    file.close()


def test_descriptors_are_not_inherited_and_files_are_private(fs: RealFileSystem, tmp_path: Path) -> None:
    fs.make_dir(str(tmp_path / "d"))
    file = fs.create(str(tmp_path / "d" / "a"))
    assert not os.get_inheritable(file.fileno())
    assert stat.S_IMODE((tmp_path / "d").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "d" / "a").stat().st_mode) & 0o077 == 0
    file.close()


def test_make_dir_syncs_the_parent_of_each_new_directory_and_of_the_deepest_old_one(
    fs: RealFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(RealFileSystem, "sync_dir", lambda _self, path: synced.append(path))
    fs.make_dir(str(tmp_path / "a" / "b"))
    assert synced == [str(tmp_path.parent), str(tmp_path), str(tmp_path / "a")]
    synced.clear()
    fs.make_dir(str(tmp_path / "a" / "b"))
    assert synced == [str(tmp_path / "a")]


def test_a_directory_made_by_another_worker_meanwhile_is_fine(
    fs: RealFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet_mkdir = os.mkdir

    def raced(path: str, mode: int) -> None:
        quiet_mkdir(path, mode)
        raise FileExistsError(errno.EEXIST, "raced", path)

    monkeypatch.setattr(os, "mkdir", raced)
    fs.make_dir(str(tmp_path / "a" / "b"))
    assert (tmp_path / "a" / "b").is_dir()


def test_exists_does_not_take_an_error_for_absence(
    fs: RealFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "lstat", failing(errno.EIO))
    with pytest.raises(OSError):
        fs.exists(str(tmp_path))


def test_boot_id_is_the_kernels_and_stays(fs: RealFileSystem) -> None:
    assert fs.boot_id() == Path(durable_fs.BOOT_ID_PATH).read_text().strip()
    assert fs.boot_id() == RealFileSystem().boot_id()


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe"])
def test_an_unreadable_boot_id_is_new_for_each_process_and_stable_within_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None
) -> None:
    path = tmp_path / "boot_id"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setattr(durable_fs, "BOOT_ID_PATH", str(path))
    one, other = RealFileSystem(), RealFileSystem()
    assert one.boot_id() == one.boot_id()
    assert one.boot_id() != other.boot_id()


def test_free_bytes_is_a_plausible_number(fs: RealFileSystem, tmp_path: Path) -> None:
    assert 0 <= fs.free_bytes(str(tmp_path)) < 1 << 62


def test_atomic_write_replaces_the_file_and_leaves_nothing_beside_it(
    fs: RealFileSystem, tmp_path: Path
) -> None:
    path = str(tmp_path / "a")
    write_atomically(fs, path, [b"old"])
    (tmp_path / "a.tmp").write_bytes(b"left by a crash, and longer")
    write_atomically(fs, path, [b"ne", b"w"])
    assert read_whole(fs, path) == b"new"
    assert fs.list_dir(str(tmp_path)) == ["a"]


def test_read_whole_of_an_empty_file_is_empty(fs: RealFileSystem, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    assert read_whole(fs, str(tmp_path / "a")) == b""


@pytest.mark.parametrize("call", ["pwrite", "fdatasync", "rename"])
def test_atomic_write_keeps_the_old_file_and_no_leftover_if_a_step_fails(
    fs: RealFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    path = str(tmp_path / "a")
    write_atomically(fs, path, [b"old"])
    open_before = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing(errno.EIO))
        with pytest.raises(OSError):
            write_atomically(fs, path, [b"new"])
    assert read_whole(fs, path) == b"old"
    assert fs.list_dir(str(tmp_path)) == ["a"]
    assert len(os.listdir("/proc/self/fd")) == open_before


def test_atomic_write_reports_the_first_error_when_the_cleanup_fails_too(
    fs: RealFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "pwrite", failing(errno.ENOSPC))
    monkeypatch.setattr(os, "unlink", failing(errno.EIO))
    with pytest.raises(OSError) as caught:
        write_atomically(fs, str(tmp_path / "a"), [b"new"])
    assert caught.value.errno == errno.ENOSPC


def test_atomic_write_reports_a_failed_directory_sync(
    fs: RealFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", failing(errno.EIO))
    with pytest.raises(OSError):
        write_atomically(fs, str(tmp_path / "a"), [b"new"])


# --- agreement: whatever is done to both disks, both answer alike ---

NAMES = st.sampled_from(["a", "b", "d", "d/a", "d/e", "d/e/a", "a/x", "none/x"])
HANDLES = st.integers(0, 1)
OFFSETS = st.integers(-1, 1500)
BUFFERS = st.lists(st.binary(max_size=700), max_size=4)

OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("create"), NAMES, HANDLES),
        st.tuples(st.just("open"), NAMES, HANDLES, st.booleans()),
        st.tuples(st.just("close"), HANDLES),
        st.tuples(st.just("pwritev"), HANDLES, BUFFERS, OFFSETS),
        st.tuples(st.just("pread"), HANDLES, st.integers(-1, 3000), OFFSETS),
        st.tuples(st.just("allocate"), HANDLES, OFFSETS),
        st.tuples(st.just("truncate"), HANDLES, OFFSETS),
        st.tuples(st.just("sync_data"), HANDLES),
        st.tuples(st.just("size"), HANDLES),
        st.tuples(st.just("make_dir"), NAMES),
        st.tuples(st.just("list_dir"), NAMES),
        st.tuples(st.just("exists"), NAMES),
        st.tuples(st.just("rename"), NAMES, NAMES),
        st.tuples(st.just("unlink"), NAMES),
        st.tuples(st.just("sync_dir"), NAMES),
        st.tuples(st.just("write_atomically"), NAMES, BUFFERS),
        st.tuples(st.just("read_whole"), NAMES),
    ),
    min_size=10,
    max_size=60,
)


class Runner:
    """Does the operations on one file system and notes what a caller can see of each."""

    def __init__(self, fs: FileSystem, root: str) -> None:
        self.fs = fs
        self.root = root
        self.handles: dict[int, File] = {}

    def do(self, operation: Sequence[object]) -> object:
        try:
            return self._perform(operation)
        except OSError as err:
            return type(err).__name__, err.errno

    def _perform(self, operation: Sequence[object]) -> object:
        match operation:
            case ("create", str(name), int(slot)):
                self._keep(slot, self.fs.create(self._path(name)))
            case ("open", str(name), int(slot), bool(write)):
                self._keep(slot, self.fs.open(self._path(name), write=write))
            case ("write_atomically", str(name), list(buffers)):
                write_atomically(self.fs, self._path(name), buffers)
            case ("read_whole", str(name)):
                return read_whole(self.fs, self._path(name))
            case (str(method), int(slot), *arguments):
                file = self.handles.get(slot)
                return None if file is None else getattr(file, method)(*arguments)
            case (str(method), *names):
                return getattr(self.fs, method)(*[self._path(str(name)) for name in names])
        return None

    def _keep(self, slot: int, file: File) -> None:
        if slot in self.handles:
            self.handles[slot].close()
        self.handles[slot] = file

    def _path(self, name: str) -> str:
        return os.path.join(self.root, name)


# What chance finds too rarely: each way in which a rename is refused or means nothing.
RENAMES: list[tuple[object, ...]] = [
    ("make_dir", "d/e"),
    ("create", "a", 0),
    ("create", "d/e/a", 1),
    ("rename", "d", "d/e/b"),
    ("rename", "d/e/a", "d/e"),
    ("rename", "d/e", "d"),
    ("rename", "a", "d"),
    ("rename", "d", "a"),
    ("rename", "d", "d"),
    ("rename", "a", "a"),
    ("rename", "a", "a/x"),
    ("rename", "none", "a/x"),
    ("rename", "a", "none/x"),
    ("rename", "none", "a"),
    ("make_dir", "b"),
    ("rename", "b", "d/e"),
    ("rename", "d/e", "b"),
    ("list_dir", "b"),
]


@example(operations=RENAMES)
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(operations=OPERATIONS)
def test_the_fake_disk_and_the_real_one_show_the_same(operations: list[tuple[object, ...]]) -> None:
    with tempfile.TemporaryDirectory() as real_root:
        fake_disk = FakeDisk()
        fake_disk.make_dir("/root")
        real, fake = Runner(RealFileSystem(), real_root), Runner(fake_disk, "/root")
        try:
            # A directory and a file from the start: most operations do nothing much without.
            for operation in [("make_dir", "d"), ("create", "d/a", 0), *operations]:
                assert real.do(operation) == fake.do(operation), operation
            seen = {
                str(path.relative_to(real_root)): path.read_bytes()
                for path in Path(real_root).rglob("*")
                if path.is_file()
            }
            assert seen == {
                path.removeprefix("/root/"): fake_disk.read_file(path) for path in fake_disk.files("/root/")
            }
        finally:
            for file in real.handles.values():
                file.close()
