"""Backups: what comes back is what was acked, at the end, at a time and at a seq; incremental; interrupted; damaged."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import pytest

from shard_worker.backup_pins import Pins, plan_backup
from shared.backup_format import LOG, SEGMENTS, TAILS, parse_file_key
from shared.compaction import COMPACTED_FROM
from shared.errors import CorruptBackup, CorruptSegment
from shared.io.object_store import DirectoryStore
from shared.limits import RESTORE_SEQ_GAP
from shared.wire import Op
from tests.support.backup_kit import PLACE, BackedUp, shown
from tests.support.compaction_kit import plan_and_stage, run_jobs
from tests.support.fake_disk import FakeDisk, PowerCut
from tests.support.shard_driver import DATA_DIR, STORE_ID, ShardDriver, small_limits
from topicsd.backup.check import check_backups
from topicsd.backup.create import BackupMaker
from topicsd.backup.cut import Target, TopicSeq
from topicsd.backup.place import list_backups
from topicsd.backup.prune import prune
from topicsd.backup.refusal import BackupRefused
from topicsd.store_file import STORE_NAME


def lived(seed: int, *, steps: int = 60, backups: int = 3, archive: bool = True) -> BackedUp:
    """A store with a past, backed up now and then; the last steps are in the archive only as far as files are full."""
    rng = random.Random(seed)
    store = BackedUp(archive=archive)
    store.append("a", 3)
    store.tick()
    for number in range(steps):
        store.step(rng)
        if number % (steps // backups) == steps // backups - 1:
            store.backup()
    return store


# --- restoring --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_the_end_of_every_backup_is_what_was_acked_when_it_was_taken(seed: int) -> None:
    with small_limits():
        rng = random.Random(seed)
        store = BackedUp(archive=False)
        taken = []
        for number in range(40):
            store.step(rng)
            if number % 10 == 9:
                taken.append((store.backup().id, {name: list(rows) for name, rows in store.model.items()}))
        for backup_id, model in taken:
            driver, _ = store.restore(backup_id=backup_id)
            assert shown(driver) == model
        # And the newest one by itself.
        driver, _ = store.restore()
        assert shown(driver) == taken[-1][1]


@pytest.mark.parametrize("seed", range(4))
def test_every_moment_between_backups_comes_back_with_the_archive(seed: int) -> None:
    with small_limits():
        store = lived(seed)
        store.driver.sync()
        # A last backup, so that the tail of the log is there, too.
        store.backup()
        first_ms = list_backups(store.place).backups[0].created_ms
        reachable = [moment for moment in store.moments if moment.now_ms >= first_ms]
        assert len(reachable) > 30
        for moment in reachable[:: max(1, len(reachable) // 12)]:
            driver, restored = store.restore(Target(time_ms=moment.now_ms))
            assert shown(driver) == moment.model, f"{moment.now_ms} from {restored.backup.id}"
            assert restored.last_ms <= moment.now_ms


def test_a_moment_in_front_of_the_first_backup_is_refused_and_named() -> None:
    store = BackedUp(archive=False)
    store.append("a")
    store.tick()
    for _ in range(3):
        store.driver.snapshot()  # nothing but snapshots is left of the first record's time
        store.append("b", 30)
        store.tick()
    store.backup()
    with pytest.raises(BackupRefused, match="begins behind it"):
        store.restore(Target(time_ms=store.moments[0].now_ms))


@pytest.mark.parametrize("seed", range(3))
def test_a_topic_ends_at_the_seq_that_was_asked_for_and_all_else_stands_where_it_stood_then(
    seed: int,
) -> None:
    with small_limits():
        store = BackedUp()
        store.append("a")
        store.tick()
        store.backup()
        rng = random.Random(seed)
        points = []
        for _ in range(40):
            match rng.randint(0, 3):
                case 0:
                    store.append("b", rng.randint(1, 3))
                case 1:
                    store.driver.seal(["a", "b"])
                case _:
                    store.append("a")
                    points.append((store.heads["a"], {n: list(rows) for n, rows in store.model.items()}))
            store.tick()
            if rng.random() < 0.1:
                store.driver.snapshot()
            store.hand_over()
        store.append("a")
        store.backup()
        for seq, at_least in points[::4]:
            driver, restored = store.restore(Target(seqs=(TopicSeq("a", seq),)))
            found = shown(driver)
            assert found["a"] == at_least["a"]
            # Other topics go on until just before the next record of this one.
            assert found.get("b", [])[: len(at_least.get("b", []))] == at_least.get("b", [])
            assert restored.notes == ()


def test_a_seq_inside_a_write_ends_in_front_of_it_and_says_so() -> None:
    store = BackedUp()
    store.append("a", 2)
    store.tick()
    store.append("a", 5)
    store.backup()
    driver, restored = store.restore(Target(seqs=(TopicSeq("a", 4),)))
    assert [seq for seq, _ in shown(driver)["a"]] == [1, 2]
    assert "3 to 7" in restored.notes[0]


def test_a_topic_that_was_deleted_comes_back_with_its_last_seq() -> None:
    store = BackedUp()
    store.append("a", 3)
    store.tick()
    store.backup()
    store.delete_topic("a")
    store.tick()
    store.append("b")
    store.backup()
    driver, restored = store.restore(Target(seqs=(TopicSeq("a", 3),)))
    assert [seq for seq, _ in shown(driver)["a"]] == [1, 2, 3]
    assert restored.backup.id == list_backups(store.place).backups[0].id or "b" not in shown(driver)


def test_a_seq_that_never_was_is_refused_with_how_far_the_topic_came() -> None:
    store = BackedUp()
    store.append("a", 3)
    store.backup()
    with pytest.raises(BackupRefused, match="reaches only seq 3"):
        store.restore(Target(seqs=(TopicSeq("a", 9),)))
    with pytest.raises(BackupRefused, match="does not exist"):
        store.restore(Target(seqs=(TopicSeq("nobody", 1),)))


def test_a_segment_that_was_sealed_and_dropped_between_backups_is_in_the_archive() -> None:
    store = BackedUp()
    store.append("a")
    store.tick()
    store.backup()
    store.append("b", 6)
    store.driver.sync()
    store.driver.seal(["b"])
    store.tick()
    then = store.moments[-1]
    store.delete_topic("b")
    for _ in range(4):
        store.append("a", 20)
        store.driver.sync()
        store.hand_over()
        store.driver.snapshot()
    assert not store.driver.engine.state.segments, "dropped here"
    store.backup()
    driver, _ = store.restore(Target(time_ms=then.now_ms))
    assert shown(driver) == then.model
    assert driver.engine.state.segments, "and served from the segment there"


def test_a_store_whose_cold_segments_were_compacted_comes_back_before_and_behind_that() -> None:
    store = BackedUp(archive=False)
    driver = store.driver
    for _ in range(3):
        store.append("a", 6)
        driver.seal(["a"])
    driver.relocate()
    store.backup()
    store.delete_tag("a", 0)
    driver.sync()
    store.tick()
    before = store.moments[-1]
    plan_and_stage(driver)
    run_jobs(driver)
    assert max(driver.engine.state.segments) >= COMPACTED_FROM
    store.append("a")
    store.tick()
    store.backup()
    behind, _ = store.restore()
    assert shown(behind) == store.model
    assert behind.engine.state.last_segment < COMPACTED_FROM, "sealing goes on with its own numbers"
    behind.append("a", [{"data": "sealed"}])
    assert behind.seal(["a"])
    behind.kill()
    assert len(shown(behind)["a"]) == len(store.model["a"]) + 1
    again, restored = store.restore(Target(time_ms=store.moments[-1].now_ms))
    assert shown(again) == store.model and restored.notes == ()
    early, _ = store.restore(Target(time_ms=before.now_ms))
    assert shown(early) == before.model


# --- seqs after a restore ---------------------------------------------------------------------------------


def test_no_seq_is_given_out_twice_and_readers_are_told_where_the_restore_was() -> None:
    store = BackedUp(archive=False)
    store.append("a", 3)
    store.backup()
    store.append("a", 4)  # acked, read by somebody, and lost with the server
    driver, _ = store.restore()
    assert driver.state("a").json["head_seq"] == 3 + RESTORE_SEQ_GAP
    assert driver.append("a", [{"data": "new"}]).json["first_seq"] == 3 + RESTORE_SEQ_GAP + 1
    for cursor in (3, 7):
        answer = driver.read("a", cursor)
        assert answer["tombstone"]["reason"] == "recreated"
        assert answer["tombstone"]["gap_from"] == cursor + 1
        assert [each["data"] for each in answer["records"]] == ["new"]
    driver.close()
    driver.reopen()
    assert driver.read("a", 3 + RESTORE_SEQ_GAP)["tombstone"] is None


def test_queues_go_on_behind_the_gap() -> None:
    store = BackedUp(archive=False)
    driver = store.driver
    driver.put("q", type="queue")
    driver.append("q", [{"data": number} for number in range(3)])
    store.backup()
    restored, _ = store.restore()
    restored.append("q", [{"data": "behind"}])
    claimed = restored.call(Op.CLAIM, "q", {"node": "w", "max": 10}).json["claimed"]
    assert [job["data"] for job in claimed] == [0, 1, 2, "behind"]
    acked = restored.call(Op.ACK, "q", {"node": "w", "seqs": [job["$seq"] for job in claimed]}).json
    assert acked["acked"] == 4 and restored.state("q").json["count"] == 0


def test_a_copy_that_nobody_else_sees_may_reuse_seqs() -> None:
    store = BackedUp(archive=False)
    store.append("a", 3)
    store.backup()
    driver, _ = store.restore(reuse_seqs=True)
    assert driver.append("a", [{"data": 1}]).json["first_seq"] == 4
    assert driver.read("a", 3)["tombstone"] is None


# --- incremental ------------------------------------------------------------------------------------------


def test_a_second_backup_copies_only_what_is_new() -> None:
    store = BackedUp(archive=False)
    for _ in range(4):
        store.append("a", 40)
        store.driver.seal(["a"])
    store.driver.snapshot()
    _, whole = store.counted_backup()
    assert whole.reused_files == 0
    _, nothing = store.counted_backup()
    assert nothing.copied_files == 0 and nothing.reused_files == whole.copied_files
    store.append("a", 2)
    store.driver.seal(["a"])
    third, little = store.counted_backup()
    new = {parse_file_key(file.key) for file in third.files}
    segment = max(key.number for key in new if key is not None and key.kind == SEGMENTS)
    sizes = [
        file.size
        for file in third.files
        if (key := parse_file_key(file.key))
        and (key.kind == TAILS or (key.kind, key.number) == (SEGMENTS, segment))
    ]
    assert little.copied_files == 2 and little.copied_bytes == sum(sizes)


def test_what_the_archive_has_is_not_copied_again() -> None:
    store = BackedUp()
    for _ in range(3):
        store.append("a", 60)
        store.driver.sync()
    store.driver.seal(["a"])
    store.driver.sync()
    assert store.hand_over() > 2
    backup, tally = store.counted_backup()
    kinds = [parse_file_key(file.key).kind for file in backup.files]  # type: ignore[union-attr]
    assert tally.copied_files == kinds.count(TAILS) + kinds.count("snapshots")
    assert tally.reused_files == kinds.count(LOG) + kinds.count(SEGMENTS) > 2


def test_prune_keeps_what_the_newest_need_and_every_moment_behind_them() -> None:
    with small_limits():
        store = lived(11, steps=30, backups=3)
        # Between the two that stay, log files and segments come and go; only the archive has all of them.
        for _ in range(4):
            store.append("b", 40)
            store.driver.sync()
            store.driver.seal(["b"])
            store.tick()
            store.delete_topic("b")
            store.tick()
            store.hand_over()
            store.driver.snapshot()
        store.backup()
        kept = list_backups(store.place).backups[-2:]
        before = len(list(store.place.list("")))
        pruned = prune(store.place, 2)
        assert len(pruned.backups) == 2 and pruned.files > 0
        assert len(list(store.place.list(""))) == before - pruned.files - 2
        listing = list_backups(store.place)
        assert listing.backups == kept
        assert check_backups(store.place, listing.backups).damage == []
        late = [moment for moment in store.moments if moment.now_ms >= kept[0].created_ms]
        for moment in late:
            driver, _ = store.restore(Target(time_ms=moment.now_ms))
            assert shown(driver) == moment.model
        assert prune(store.place, 2).backups == []


# --- interrupted ------------------------------------------------------------------------------------------


def test_a_backup_cut_off_anywhere_is_no_backup_and_the_next_one_uses_what_was_copied() -> None:
    cut, reused = 1, 0
    while True:
        store = BackedUp(archive=False)
        store.append("a", 20)
        store.driver.seal(["a"])
        store.append("b", 20)
        store.driver.snapshot()
        disk = store.place_disk
        disk.crash_after(cut, half=True, seed=cut)
        try:
            store.backup()
            finished = True
        except PowerCut:
            finished = False
        disk.lose_power(seed=cut) if cut % 3 else disk.kill_process()
        listing = list_backups(store.place)
        assert listing.damaged == []
        assert not finished or len(listing.backups) == 1
        assert check_backups(store.place, listing.backups).damage == []
        if not listing.backups:
            _, tally = store.counted_backup()
            reused += tally.reused_files
        driver, _ = store.restore()
        assert shown(driver) == store.model
        if finished:
            break
        cut += 1
    assert cut > 20 and reused > 0


def test_a_restore_cut_off_anywhere_is_no_store_and_is_not_written_over() -> None:
    store = BackedUp(archive=False)
    store.append("a", 20)
    store.driver.seal(["a"])
    store.append("b", 3)
    store.driver.snapshot()
    store.backup()
    cut = 1
    while True:
        disk = FakeDisk()
        disk.crash_after(cut, half=True, seed=cut)
        try:
            store.restorer(disk).restore(Target())
            break
        except PowerCut:
            disk.lose_power(seed=cut)
        if disk.exists(f"{DATA_DIR}/{STORE_NAME}"):
            assert shown(ShardDriver(disk, clock=store.clock)) == store.model
        elif disk.list_dir(DATA_DIR):
            with pytest.raises(BackupRefused, match=r"not finished"):
                store.restorer(disk).restore(Target())
        cut += 7
    assert cut > 50


@pytest.mark.parametrize("op", ["write", "sync", "rename", "create", "syncdir"])
def test_a_place_that_fails_makes_no_backup(op: Any) -> None:
    store = BackedUp(archive=False)
    store.append("a", 5)
    store.backup()
    for nth in (1, 2):
        store.append("a", 5)
        store.place_disk.fail_on(op, nth)
        with pytest.raises(OSError):
            store.backup()
        store.place_disk.clear_faults()
        listing = list_backups(store.place)
        assert len(listing.backups) >= 1
        assert check_backups(store.place, listing.backups).damage == []


# --- damaged ----------------------------------------------------------------------------------------------


def test_every_damaged_file_of_a_backup_is_named_and_nothing_is_restored_from_it() -> None:
    store = BackedUp(archive=False)
    store.append("a", 20)
    store.driver.seal(["a"])
    store.append("b", 20)
    store.driver.snapshot()
    backup = store.backup()
    paths = [path for path in store.place_disk.files(PLACE) if "/backups/" not in path]
    assert len(paths) == len(backup.files) >= 3
    for path in paths:
        disk = store.place_disk
        before = disk.read_file(path)
        disk.flip_bit(path, len(before) // 2, 3)
        assert disk.read_file(path) != before
        result = check_backups(store.place, [backup])
        assert len(result.damage) == 1 and path in result.damage[0] and backup.id in result.damage[0]
        target = FakeDisk()
        with pytest.raises(CorruptBackup, match=path):
            store.restorer(target).restore(Target())
        assert not target.exists(f"{DATA_DIR}/{STORE_NAME}")
        disk.flip_bit(path, len(before) // 2, 3)
    store.place_disk.remove(paths[0])
    with pytest.raises(CorruptBackup, match="missing"):
        store.restorer().restore(Target())


def test_a_damaged_document_is_named_and_never_passed_over_silently() -> None:
    store = BackedUp(archive=False)
    store.append("a")
    store.backup()
    store.append("a")
    newest = store.backup()
    (path,) = [path for path in store.place_disk.files(PLACE) if newest.id + "-" in path]
    store.place_disk.flip_bit(path, 40, 1)
    assert [damage.path for damage in list_backups(store.place).damaged] == [path]
    with pytest.raises(CorruptBackup, match=newest.id):
        store.restore()
    with pytest.raises(CorruptBackup, match=newest.id):
        store.restore(backup_id=newest.id)
    with pytest.raises(BackupRefused, match="damaged"):
        prune(store.place, 1)


def test_a_damaged_source_is_not_backed_up() -> None:
    store = BackedUp(archive=False)
    store.append("a", 20)
    store.driver.seal(["a"])
    (path,) = [path for path in store.driver.disk.files(DATA_DIR) if path.endswith(".seg")]
    store.driver.disk.flip_bit(path, 200, 1)
    with pytest.raises(CorruptSegment, match=path):
        store.backup()
    assert list_backups(store.place).backups == []


class LyingStore(DirectoryStore):
    """Takes everything, says yes, and keeps something else."""

    def put(self, key: str, chunks: Iterable[bytes]) -> None:
        content = bytearray(b"".join(chunks))
        content[len(content) // 2] ^= 1
        super().put(key, [bytes(content)])


def test_a_place_that_lies_about_what_it_took_is_found_out_at_once() -> None:
    store = BackedUp(archive=False)
    store.append("a", 20)
    store.driver.sync()
    liar = LyingStore(store.place_disk, PLACE)
    with pytest.raises(CorruptBackup, match="not what its name says"):
        BackupMaker(liar, store.source(), STORE_ID, "test").make([plan_backup(store.driver.shard)], 1)
    assert store.place_disk.files(PLACE) == [], "the next attempt must not take it for good"


def test_a_file_that_rotted_in_the_place_is_found_when_it_would_be_reused() -> None:
    """Left by a backup that was cut off: no document vouches for it."""
    store = BackedUp(archive=False)
    store.append("a", 20)
    store.driver.seal(["a"])
    backup = store.backup()
    for path in store.place_disk.files(f"{PLACE}/backups"):
        store.place_disk.remove(path)
    (segment,) = [path for path in store.place_disk.files(PLACE) if path.endswith(".seg")]
    store.place_disk.flip_bit(segment, 99, 0)
    again, tally = store.counted_backup()
    assert tally.copied_files >= 1
    assert [file.key for file in again.files] == [file.key for file in backup.files]
    assert check_backups(store.place, [again]).damage == []


# --- pins -------------------------------------------------------------------------------------------------


def test_pinned_files_stay_while_maintenance_goes_on_and_go_when_the_link_is_gone() -> None:
    store = BackedUp(archive=False)
    driver = store.driver
    pins = Pins()
    driver.shard.maintenance.keepers.append(pins)
    store.append("a", 20)
    driver.seal(["a"])
    store.append("a", 20)
    driver.snapshot()
    driver.sync()
    plan = plan_backup(driver.shard)
    pins.add("link", plan)
    model = {name: list(rows) for name, rows in store.model.items()}
    store.delete_topic("a")
    for _ in range(4):
        store.append("b", 40)
        driver.seal(["b"])
        driver.snapshot()
        driver.relocate()
    maker = BackupMaker(store.place, store.source(), STORE_ID, "test")
    maker.make([plan], store.clock.now_ms)
    restored, _ = store.restore()
    assert shown(restored) == model
    held = set(driver.disk.files(DATA_DIR))
    pins.drop("link")
    driver.shard.maintenance.trim()
    for _ in range(3):
        store.append("b", 40)
        driver.snapshot()
    gone = held - set(driver.disk.files(DATA_DIR))
    assert any(path.endswith(".seg") for path in gone)
    assert any(path.endswith(".snap") for path in gone)
    assert any(path.endswith(".wal") for path in gone)
    driver.kill()
    assert shown(driver) == store.model
