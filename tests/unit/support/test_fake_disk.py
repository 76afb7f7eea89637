"""The fake disk must be as nasty as it claims: every other durability test leans on it."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from shared.io.durable_fs import File, read_whole, write_atomically
from tests.support.fake_disk import SECTOR_BYTES, DeadHandle, FakeDisk, Op, PowerCut

SEEDS = range(200)


@pytest.fixture
def disk() -> FakeDisk:
    disk = FakeDisk()
    disk.make_dir("/d")
    return disk


def durable_file(disk: FakeDisk, path: str, content: bytes) -> File:
    file = disk.create(path)
    file.pwritev([content], 0)
    file.sync_data()
    disk.sync_dir("/d")
    return file


def contents_after_power_loss(disk: FakeDisk, path: str) -> set[bytes]:
    return {disk.clone().lose_power(seed).read_file(path) for seed in SEEDS}


def names_after_power_loss(disk: FakeDisk) -> set[tuple[str, ...]]:
    return {tuple(disk.clone().lose_power(seed).list_dir("/d")) for seed in SEEDS}


# --- data ---


def test_synced_bytes_with_a_synced_name_survive_every_power_cut(disk: FakeDisk) -> None:
    durable_file(disk, "/d/a", b"synced")
    assert contents_after_power_loss(disk, "/d/a") == {b"synced"}


def test_synced_bytes_without_a_synced_name_may_vanish_or_stay_whole(disk: FakeDisk) -> None:
    file = disk.create("/d/a")
    file.pwritev([b"synced"], 0)
    file.sync_data()
    assert names_after_power_loss(disk) == {(), ("a",)}
    assert disk.clone().lose_power(keep="all").read_file("/d/a") == b"synced"


def test_an_unsynced_write_is_kept_dropped_or_torn(disk: FakeDisk) -> None:
    file = durable_file(disk, "/d/a", b"-" * 8)
    file.pwritev([b"12345678"], 0)
    found = contents_after_power_loss(disk, "/d/a")
    assert {b"-" * 8, b"12345678", b"123-----"} <= found
    assert all(old in (ord("-"), new) for each in found for old, new in zip(each, b"12345678", strict=True))


def test_a_torn_write_may_keep_any_of_its_sectors(disk: FakeDisk) -> None:
    file = durable_file(disk, "/d/a", bytes(3 * SECTOR_BYTES))
    file.pwritev([b"x" * (3 * SECTOR_BYTES)], 0)
    zeros, written = bytes(SECTOR_BYTES), b"x" * SECTOR_BYTES
    assert {zeros + written + zeros, written + zeros + written} <= contents_after_power_loss(disk, "/d/a")


def test_sectors_are_those_of_the_file_not_of_the_write(disk: FakeDisk) -> None:
    file = durable_file(disk, "/d/a", bytes(1024))
    file.pwritev([b"x" * 600], 300)
    only_the_second = bytes(512) + b"x" * 388 + bytes(124)
    assert only_the_second in contents_after_power_loss(disk, "/d/a")


def test_a_later_write_may_last_where_an_earlier_one_did_not(disk: FakeDisk) -> None:
    file = durable_file(disk, "/d/a", b"--------")
    file.pwritev([b"1111"], 0)
    file.pwritev([b"2222"], 4)
    assert {b"----2222", b"1111----"} <= contents_after_power_loss(disk, "/d/a")


def test_an_older_version_of_the_same_bytes_may_last(disk: FakeDisk) -> None:
    file = durable_file(disk, "/d/a", b"----")
    file.pwritev([b"1111"], 0)
    file.pwritev([b"2222"], 0)
    assert {b"----", b"1111", b"2222"} <= contents_after_power_loss(disk, "/d/a")


def test_a_lost_write_past_the_end_may_still_have_grown_the_file(disk: FakeDisk) -> None:
    file = durable_file(disk, "/d/a", b"old")
    file.pwritev([b"new"], 3)
    assert {b"old", b"old\0\0\0", b"oldnew"} <= contents_after_power_loss(disk, "/d/a")


@pytest.mark.parametrize(
    ("change", "after"),
    [
        (lambda file: file.truncate(2), b"ab"),
        (lambda file: file.truncate(6), b"abcd\0\0"),
        (lambda file: file.allocate(6), b"abcd\0\0"),
    ],
)
def test_an_unsynced_size_is_kept_or_lost_and_a_synced_one_stays(
    disk: FakeDisk, change: Callable[[File], None], after: bytes
) -> None:
    file = durable_file(disk, "/d/a", b"abcd")
    change(file)
    assert disk.read_file("/d/a") == after
    assert contents_after_power_loss(disk, "/d/a") == {b"abcd", after}
    file.sync_data()
    assert contents_after_power_loss(disk, "/d/a") == {after}


def test_syncing_one_file_does_not_sync_another(disk: FakeDisk) -> None:
    one, other = durable_file(disk, "/d/a", b"--"), durable_file(disk, "/d/b", b"--")
    one.pwritev([b"11"], 0)
    other.pwritev([b"22"], 0)
    other.sync_data()
    disk.lose_power(keep="none")
    assert (disk.read_file("/d/a"), disk.read_file("/d/b")) == (b"--", b"22")


def test_a_sync_through_any_handle_covers_the_whole_file(disk: FakeDisk) -> None:
    writer = durable_file(disk, "/d/a", b"--")
    writer.pwritev([b"11"], 0)
    disk.open("/d/a").sync_data()
    assert contents_after_power_loss(disk, "/d/a") == {b"11"}


def test_keep_none_and_keep_all_are_the_two_ends(disk: FakeDisk) -> None:
    file = durable_file(disk, "/d/a", b"old")
    file.pwritev([b"new"], 0)
    disk.create("/d/b")
    least, most = disk.clone().lose_power(keep="none"), disk.clone().lose_power(keep="all")
    assert (least.list_dir("/d"), least.read_file("/d/a")) == (["a"], b"old")
    assert (most.list_dir("/d"), most.read_file("/d/a")) == (["a", "b"], b"new")


def test_what_one_power_cut_left_survives_the_next(disk: FakeDisk) -> None:
    file = durable_file(disk, "/d/a", bytes(2048))
    file.pwritev([b"x" * 2048], 0)
    disk.lose_power(3)
    left = disk.read_file("/d/a")
    assert contents_after_power_loss(disk, "/d/a") == {left}


def test_equal_seeds_give_equal_disks(disk: FakeDisk) -> None:
    for name in "abcdef":
        disk.create(f"/d/{name}").pwritev([name.encode() * 3000], 100)
    for seed in SEEDS:
        one, other = disk.clone().lose_power(seed), disk.clone().lose_power(seed)
        assert {path: one.read_file(path) for path in one.files()} == {
            path: other.read_file(path) for path in other.files()
        }


# --- names ---


def test_an_unsynced_rename_may_be_lost_and_a_synced_one_stays(disk: FakeDisk) -> None:
    durable_file(disk, "/d/a", b"1")
    disk.rename("/d/a", "/d/b")
    assert disk.list_dir("/d") == ["b"]
    assert names_after_power_loss(disk) == {("a",), ("b",)}
    disk.sync_dir("/d")
    assert names_after_power_loss(disk) == {("b",)}


def test_rename_over_a_name_shows_the_old_file_or_the_new_one_never_none(disk: FakeDisk) -> None:
    durable_file(disk, "/d/a", b"old")
    durable_file(disk, "/d/a.tmp", b"new")
    disk.rename("/d/a.tmp", "/d/a")
    assert disk.read_file("/d/a") == b"new"
    assert contents_after_power_loss(disk, "/d/a") == {b"old", b"new"}
    assert names_after_power_loss(disk) == {("a",), ("a", "a.tmp")}


def test_an_unsynced_removal_may_bring_the_file_back(disk: FakeDisk) -> None:
    durable_file(disk, "/d/a", b"1")
    disk.unlink("/d/a")
    assert names_after_power_loss(disk) == {("a",), ()}
    disk.sync_dir("/d")
    assert names_after_power_loss(disk) == {()}


def test_a_directory_keeps_a_prefix_of_its_changes(disk: FakeDisk) -> None:
    for name in "abc":
        disk.create(f"/d/{name}")
    assert names_after_power_loss(disk) == {(), ("a",), ("a", "b"), ("a", "b", "c")}


def test_directories_lose_their_changes_independently(disk: FakeDisk) -> None:
    disk.make_dir("/e")
    disk.create("/d/a")
    disk.create("/e/b")
    found = {tuple(disk.clone().lose_power(seed).files()) for seed in SEEDS}
    assert found == {(), ("/d/a",), ("/e/b",), ("/d/a", "/e/b")}


@pytest.mark.parametrize("synced", ["/d", "/e"])
def test_a_rename_between_directories_lasts_whole_or_not_at_all(disk: FakeDisk, synced: str) -> None:
    disk.make_dir("/e")
    durable_file(disk, "/d/a", b"1")
    disk.rename("/d/a", "/e/b")
    found = {tuple(disk.clone().lose_power(seed).files()) for seed in SEEDS}
    assert found == {("/d/a",), ("/e/b",)}
    disk.sync_dir(synced)
    assert disk.clone().lose_power(keep="none").files() == ["/e/b"]


def test_syncing_a_moved_file_takes_the_earlier_changes_of_both_directories_along(disk: FakeDisk) -> None:
    disk.make_dir("/e")
    for path in ("/d/a", "/d/b", "/e/c"):
        disk.create(path)
    disk.rename("/d/b", "/e/b")
    disk.create("/d/after")
    disk.sync_dir("/e")
    assert disk.lose_power(keep="none").files() == ["/d/a", "/e/b", "/e/c"]


def test_a_lost_move_takes_the_later_changes_of_both_directories_with_it(disk: FakeDisk) -> None:
    disk.make_dir("/e")
    durable_file(disk, "/d/a", b"1")
    disk.create("/d/before")
    disk.rename("/d/a", "/e/a")
    disk.create("/e/after")
    found = {tuple(disk.clone().lose_power(seed).files()) for seed in SEEDS}
    assert found == {
        ("/d/a",),
        ("/d/a", "/d/before"),
        ("/d/before", "/e/a"),
        ("/d/before", "/e/a", "/e/after"),
    }


def test_made_directories_are_durable_with_all_their_parents(disk: FakeDisk) -> None:
    disk.make_dir("/x/y/z")
    disk.lose_power(keep="none")
    assert disk.exists("/x/y/z")


def test_a_directory_left_unsynced_by_a_killed_process_is_synced_when_made_again(disk: FakeDisk) -> None:
    disk.fail_on("syncdir", nth=2)
    with pytest.raises(OSError):
        disk.make_dir("/x")
    assert not disk.clone().lose_power(keep="none").exists("/x")
    disk.kill_process().make_dir("/x")
    assert disk.lose_power(keep="none").exists("/x")


def test_an_atomic_write_survives_a_crash_at_every_call_as_old_or_new(disk: FakeDisk) -> None:
    write_atomically(disk, "/d/a", [b"old"])
    done = disk.clone()
    write_atomically(done, "/d/a", [b"new"])
    found = set()
    for n in range(1, done.calls - disk.calls + 1):
        for seed in range(20):
            crashed = disk.clone()
            crashed.crash_after(n, half=True, seed=seed)
            with pytest.raises(PowerCut):
                write_atomically(crashed, "/d/a", [b"new"])
            found.add(read_whole(crashed.lose_power(seed), "/d/a"))
    assert found == {b"old", b"new"}


def test_the_disk_catches_a_rename_before_the_data_sync(disk: FakeDisk) -> None:
    write_atomically(disk, "/d/a", [b"old"])
    disk.create("/d/a.tmp").pwritev([b"new"], 0)
    disk.rename("/d/a.tmp", "/d/a")
    disk.sync_dir("/d")
    assert b"" in contents_after_power_loss(disk, "/d/a")


def test_an_unlinked_file_stays_readable_through_its_handle(disk: FakeDisk) -> None:
    file = durable_file(disk, "/d/a", b"still here")
    disk.unlink("/d/a")
    assert file.pread(100, 0) == b"still here"


# --- the process ---


def test_a_kill_keeps_the_page_cache_and_the_boot_id(disk: FakeDisk) -> None:
    boot = disk.boot_id()
    disk.create("/d/a").pwritev([b"unsynced"], 0)
    disk.rename("/d/a", "/d/b")
    disk.kill_process()
    assert disk.read_file("/d/b") == b"unsynced"
    assert disk.list_dir("/d") == ["b"]
    assert disk.boot_id() == boot


def test_a_kill_makes_nothing_durable(disk: FakeDisk) -> None:
    disk.create("/d/a").pwritev([b"unsynced"], 0)
    assert disk.kill_process().lose_power(keep="none").files() == []


def test_a_power_cut_changes_the_boot_id(disk: FakeDisk) -> None:
    assert len({disk.boot_id(), disk.lose_power().boot_id(), disk.lose_power().boot_id()}) == 3


@pytest.mark.parametrize("end", [FakeDisk.lose_power, FakeDisk.kill_process])
def test_handles_die_with_their_process(disk: FakeDisk, end: Callable[[FakeDisk], object]) -> None:
    file = durable_file(disk, "/d/a", b"x")
    end(disk)
    for use in (
        file.size,
        file.sync_data,
        lambda: file.pread(1, 0),
        lambda: file.pwritev([b"y"], 0),
        lambda: file.allocate(9),
        lambda: file.truncate(0),
    ):
        with pytest.raises(DeadHandle, match="/d/a"):
            use()
    file.close()
    assert disk.open("/d/a").pread(1, 0) == b"x"


def test_fileno_is_minus_one(disk: FakeDisk) -> None:
    assert disk.create("/d/a").fileno() == -1


# --- crash points ---


def test_every_mutating_call_counts_and_no_other(disk: FakeDisk) -> None:
    before = disk.calls
    file = disk.create("/d/a")
    file.pwritev([b"x"], 0)
    file.allocate(10)
    file.truncate(5)
    file.sync_data()
    disk.rename("/d/a", "/d/b")
    disk.unlink("/d/b")
    disk.sync_dir("/d")
    assert disk.calls - before == 8
    file.size()
    file.pread(1, 0)
    file.close()
    disk.exists("/d")
    disk.list_dir("/d")
    disk.free_bytes("/d")
    assert disk.calls - before == 8
    disk.make_dir("/d/e")
    # The entry of /d once more, the new directory, and its own entry.
    assert disk.calls - before == 11


def test_the_armed_call_and_everything_after_it_raise_power_cut(disk: FakeDisk) -> None:
    file = durable_file(disk, "/d/a", b"old")
    disk.crash_after(2)
    file.pwritev([b"1"], 0)
    with pytest.raises(PowerCut):
        file.pwritev([b"2"], 1)
    for use in (
        lambda: file.pread(1, 0),
        file.sync_data,
        lambda: disk.open("/d/a"),
        lambda: disk.exists("/d"),
        lambda: disk.list_dir("/d"),
        disk.boot_id,
    ):
        with pytest.raises(PowerCut):
            use()
    file.close()
    assert disk.read_file("/d/a") == b"1ld"
    disk.kill_process()
    assert disk.open("/d/a").pread(3, 0) == b"1ld"


def test_power_cut_passes_handlers_of_ordinary_errors(disk: FakeDisk) -> None:
    disk.crash_after(1)
    with pytest.raises(PowerCut):
        try:
            disk.create("/d/a")
        except Exception:
            pytest.fail("swallowed")


def test_a_cut_sync_makes_nothing_certain(disk: FakeDisk) -> None:
    file = durable_file(disk, "/d/a", b"old")
    file.pwritev([b"new"], 0)
    disk.crash_after(1)
    with pytest.raises(PowerCut):
        file.sync_data()
    assert {b"old", b"new"} <= contents_after_power_loss(disk, "/d/a")


def test_half_a_write_is_a_prefix_chosen_by_the_seed(disk: FakeDisk) -> None:
    durable_file(disk, "/d/a", b"----")
    found = set()
    for seed in SEEDS:
        crashed = disk.clone()
        file = crashed.open("/d/a", write=True)
        crashed.crash_after(1, half=True, seed=seed)
        with pytest.raises(PowerCut):
            file.pwritev([b"12", b"34"], 0)
        found.add(crashed.read_file("/d/a"))
    assert found == {b"----", b"1---", b"12--", b"123-", b"1234"}


# --- faults ---


def operate(disk: FakeDisk, op: Op, file: File) -> None:
    match op:
        case "write":
            file.pwritev([b"new"], 0)
        case "sync":
            file.sync_data()
        case "read":
            file.pread(1, 0)
        case "allocate":
            file.allocate(file.size() + 100)
        case "truncate":
            file.truncate(1)
        case "create":
            disk.create("/d/a.new")
        case "open":
            disk.open("/d/a")
        case "rename":
            disk.rename("/d/a", "/d/a.old")
        case "unlink":
            disk.unlink("/d/a")
        case "syncdir":
            disk.sync_dir("/d")
        case "mkdir":
            disk.make_dir("/d/a.dir")


OPS: list[Op] = [
    "write",
    "sync",
    "read",
    "allocate",
    "truncate",
    "create",
    "open",
    "rename",
    "unlink",
    "syncdir",
    "mkdir",
]


@pytest.mark.parametrize("op", OPS)
def test_an_injected_fault_hits_its_call_once_without_visible_effect(disk: FakeDisk, op: Op) -> None:
    file = durable_file(disk, "/d/a", b"old")
    disk.fail_on(op, error=errno.ENOSPC)
    with pytest.raises(OSError) as caught:
        operate(disk, op, file)
    assert caught.value.errno == errno.ENOSPC
    assert disk.files() == ["/d/a"]
    assert disk.list_dir("/d") == ["a"]
    assert disk.read_file("/d/a") == b"old"
    operate(disk, op, file)


def test_a_fault_waits_for_its_nth_match_and_lasts_its_times(disk: FakeDisk) -> None:
    one, other = disk.create("/d/wal-1"), disk.create("/d/snap-1")
    disk.fail_on("write", nth=2, times=2, path_contains="wal")
    outcomes = []
    for _ in range(4):
        other.pwritev([b"x"], 0)
        try:
            one.pwritev([b"x"], 0)
            outcomes.append("ok")
        except OSError:
            outcomes.append("failed")
    assert outcomes == ["ok", "failed", "failed", "ok"]


def test_a_fault_without_end_lasts_until_cleared(disk: FakeDisk) -> None:
    file = disk.create("/d/a")
    disk.fail_on("write", times=None)
    for _ in range(5):
        with pytest.raises(OSError):
            file.pwritev([b"x"], 0)
    disk.clear_faults()
    file.pwritev([b"x"], 0)


def test_a_fault_on_rename_matches_either_name(disk: FakeDisk) -> None:
    durable_file(disk, "/d/a", b"")
    disk.fail_on("rename", path_contains="target")
    with pytest.raises(OSError):
        disk.rename("/d/a", "/d/target")


def test_faults_stay_over_a_power_cut(disk: FakeDisk) -> None:
    durable_file(disk, "/d/a", b"")
    disk.fail_on("open")
    disk.lose_power()
    with pytest.raises(OSError):
        disk.open("/d/a")


def test_a_short_write_puts_down_a_part_and_fails(disk: FakeDisk) -> None:
    file = disk.create("/d/a")
    disk.short_write(2, 3, error=errno.ENOSPC)
    file.pwritev([b"first"], 0)
    with pytest.raises(OSError) as caught:
        file.pwritev([b"se", b"cond"], 5)
    assert caught.value.errno == errno.ENOSPC
    assert disk.read_file("/d/a") == b"firstsec"


def test_after_a_failed_sync_a_second_one_succeeds_over_lost_bytes(disk: FakeDisk) -> None:
    file = durable_file(disk, "/d/a", b"old")
    file.pwritev([b"new"], 0)
    disk.fail_on("sync")
    with pytest.raises(OSError):
        file.sync_data()
    assert file.pread(3, 0) == b"new"
    file.sync_data()
    assert file.pread(3, 0) == b"new"
    assert contents_after_power_loss(disk, "/d/a") == {b"old"}
    assert disk.lose_power(keep="all").read_file("/d/a") == b"old"


def test_bytes_lost_by_a_failed_sync_leave_zeros_under_later_ones(disk: FakeDisk) -> None:
    file = durable_file(disk, "/d/a", b"")
    file.pwritev([b"lost"], 0)
    disk.fail_on("sync")
    with pytest.raises(OSError):
        file.sync_data()
    file.pwritev([b"later"], 4)
    file.sync_data()
    assert disk.kill_process().read_file("/d/a") == b"lostlater"
    assert contents_after_power_loss(disk, "/d/a") == {b"\0\0\0\0later"}


def test_a_failed_directory_sync_leaves_the_names_unsynced(disk: FakeDisk) -> None:
    disk.create("/d/a")
    disk.fail_on("syncdir")
    with pytest.raises(OSError):
        disk.sync_dir("/d")
    assert names_after_power_loss(disk) == {(), ("a",)}


# --- space ---


def test_growth_beyond_the_capacity_fails_and_heals(disk: FakeDisk) -> None:
    file = durable_file(disk, "/d/a", b"12345678")
    disk.capacity_bytes = 10
    assert disk.free_bytes("/d") == 2
    file.pwritev([b"87654321"], 0)
    for grow in (file.allocate, file.truncate):
        with pytest.raises(OSError) as caught:
            grow(11)
        assert caught.value.errno == errno.ENOSPC
        assert file.size() == 8
    file.allocate(10)
    disk.capacity_bytes = 20
    file.allocate(11)
    disk.capacity_bytes = None
    file.allocate(1000)


def test_a_write_on_a_nearly_full_disk_fills_it_and_fails(disk: FakeDisk) -> None:
    file = durable_file(disk, "/d/a", b"12345678")
    disk.capacity_bytes = 10
    with pytest.raises(OSError) as caught:
        file.pwritev([b"abcd"], 8)
    assert caught.value.errno == errno.ENOSPC
    assert disk.read_file("/d/a") == b"12345678ab"


def test_a_write_wholly_beyond_the_free_space_changes_nothing(disk: FakeDisk) -> None:
    file = durable_file(disk, "/d/a", b"12345678")
    disk.capacity_bytes = 10
    with pytest.raises(OSError):
        file.pwritev([b"abcd"], 10)
    assert disk.read_file("/d/a") == b"12345678"
    assert file.pwritev([b""], 100) == 0


def test_a_capacity_below_what_is_used_still_allows_writes_in_place(disk: FakeDisk) -> None:
    file = durable_file(disk, "/d/a", b"12345678")
    disk.capacity_bytes = 5
    file.pwritev([b"abcd"], 4)
    with pytest.raises(OSError):
        file.pwritev([b"abcd"], 5)
    assert disk.read_file("/d/a") == b"1234aabc"
    assert disk.free_bytes("/d") == 0


def test_removing_files_frees_space_once_no_handle_is_left(disk: FakeDisk) -> None:
    file = durable_file(disk, "/d/a", b"12345678")
    disk.capacity_bytes = 8
    disk.unlink("/d/a")
    assert disk.free_bytes("/d") == 0
    file.close()
    assert disk.free_bytes("/d") == 8


# --- damage and snapshots ---


def test_a_flipped_bit_is_there_now_and_after_a_power_cut(disk: FakeDisk) -> None:
    durable_file(disk, "/d/a", b"abc")
    disk.flip_bit("/d/a", 1, 0)
    assert disk.read_file("/d/a") == b"acc"
    assert contents_after_power_loss(disk, "/d/a") == {b"acc"}


def test_damage_to_unsynced_bytes_is_not_repaired_by_the_next_sync(disk: FakeDisk) -> None:
    file = durable_file(disk, "/d/a", b"ab")
    file.pwritev([b"xyz"], 0)
    disk.flip_bit("/d/a", 2, 0)
    assert disk.clone().lose_power(keep="none").read_file("/d/a") == b"ab"
    file.sync_data()
    assert contents_after_power_loss(disk, "/d/a") == {b"xy{"}


def test_overwrite_and_resize_damage_both_sides(disk: FakeDisk) -> None:
    durable_file(disk, "/d/a", b"abcdef")
    disk.overwrite("/d/a", 2, b"##")
    disk.resize("/d/a", 5)
    assert disk.read_file("/d/a") == b"ab##e"
    assert contents_after_power_loss(disk, "/d/a") == {b"ab##e"}


def test_a_removed_file_never_comes_back(disk: FakeDisk) -> None:
    durable_file(disk, "/d/a", b"")
    disk.create("/d/b")
    disk.remove("/d/a")
    disk.remove("/d/b")
    assert disk.files() == []
    assert names_after_power_loss(disk) == {()}


def test_a_placed_file_is_durable(disk: FakeDisk) -> None:
    disk.place("/d/foreign", b"hello")
    disk.lose_power(keep="none")
    assert read_whole(disk, "/d/foreign") == b"hello"


def test_helpers_count_no_call_and_trip_no_fault(disk: FakeDisk) -> None:
    durable_file(disk, "/d/a", b"abc")
    for op in OPS:
        disk.fail_on(op)
    before = disk.calls
    disk.flip_bit("/d/a", 0, 7)
    disk.overwrite("/d/a", 0, b"z")
    assert disk.read_file("/d/a") == b"zbc"
    disk.place("/d/b", b"")
    disk.remove("/d/a")
    assert disk.files("/d/") == ["/d/b"]
    assert disk.calls == before


def test_a_clone_shares_nothing_with_its_original(disk: FakeDisk) -> None:
    file = durable_file(disk, "/d/a", b"old")
    file.pwritev([b"new"], 0)
    twin = disk.clone()
    twin.open("/d/a", write=True).truncate(0)
    twin.unlink("/d/a")
    twin.sync_dir("/d")
    twin.lose_power()
    twin.fail_on("read", times=None)
    assert file.pread(3, 0) == b"new"
    assert disk.lose_power(keep="none").read_file("/d/a") == b"old"


def test_a_clone_of_a_crashed_disk_can_be_recovered_with_many_seeds(disk: FakeDisk) -> None:
    disk.crash_after(2)
    file = disk.create("/d/a")
    with pytest.raises(PowerCut):
        file.pwritev([b"x"], 0)
    with pytest.raises(PowerCut):
        disk.clone().list_dir("/d")
    assert names_after_power_loss(disk) == {(), ("a",)}


def test_a_clone_keeps_the_armed_crash_and_the_counts_of_faults(disk: FakeDisk) -> None:
    file = disk.create("/d/a")
    disk.fail_on("write", nth=2)
    file.pwritev([b"x"], 0)
    disk.crash_after(2)
    twin = disk.copy()
    again = twin.open("/d/a", write=True)
    with pytest.raises(OSError):
        again.pwritev([b"x"], 0)
    with pytest.raises(PowerCut):
        again.pwritev([b"x"], 0)


def test_files_are_listed_by_prefix_in_order(disk: FakeDisk) -> None:
    disk.make_dir("/e/f")
    for path in ("/e/f/b", "/e/a", "/d/c"):
        disk.create(path)
    assert disk.files() == ["/d/c", "/e/a", "/e/f/b"]
    assert disk.files("/e") == ["/e/a", "/e/f/b"]
    assert disk.list_dir("/e") == ["a", "f"]
