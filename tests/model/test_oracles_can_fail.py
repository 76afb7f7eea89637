"""Proof that the oracles see what they must: each test breaks the engine on purpose, and the model must notice."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from msgspec.structs import replace

from shard_worker.commit import Committer
from shard_worker.core import replay as replay_module
from shard_worker.core.seq_set import SeqSet
from shard_worker.core.shard_state import ShardState
from shard_worker.core.topic import REASON_MIXED, Topic
from shard_worker.disk import sealing
from shard_worker.disk.snapshots import SnapshotWriter
from shard_worker.disk.wal import SyncJob, Wal
from shard_worker.engine import Engine
from shard_worker.pending import PendingControl
from shared.control_frames import Hole, RecordsDeleted, Watermark
from shared.errors import DataDamage
from shared.wal_format import NO_EXTRA
from tests.crash.test_crash_matrix import count_points, fates, run_until_cut, spread, survives
from tests.model.test_engine_model import EngineMachine
from tests.support.checked_shard import CheckedShard, Violation
from tests.support.fake_disk import FakeDisk
from tests.support.shard_driver import small_limits

ONE = [{"data": '"first"'}]
LONG = [{"data": '"' + "x" * 1500 + '"', "tag": "t"}]


@pytest.fixture(autouse=True)
def _low_limits() -> Iterator[None]:
    with small_limits():
        yield


@pytest.fixture
def shard() -> CheckedShard:
    shard = CheckedShard()
    for durability in ("fsync", "disk"):
        shard.put(durability, {"durability": durability})
    shard.check_everything()
    return shard


def test_a_sync_that_does_nothing_is_noticed(shard: CheckedShard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SyncJob, "run", lambda self: None)
    shard.append("fsync", ONE)
    with pytest.raises(Violation, match="no prefix"):
        shard.lose_power(0, "none")


def test_a_failed_write_that_is_not_undone_is_noticed(
    shard: CheckedShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Wal, "_undo", lambda self, first, created: None)
    shard.disk.short_write(1, 1 << 20, error=errno.EIO, path_contains="/wal/")
    shard.faulty = True
    shard.append("fsync", ONE)
    shard.check_everything()  # refused, and nobody sees it …
    with pytest.raises(Violation, match="no prefix"):
        shard.kill()  # … until the log is read again


def test_a_missing_sync_of_the_log_directory_is_noticed(
    shard: CheckedShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = SyncJob.run

    def run_without_directory(self: SyncJob) -> None:
        self.sync_directory = False
        run(self)

    monkeypatch.setattr(SyncJob, "run", run_without_directory)
    for _ in range(4):
        shard.append("fsync", LONG)
    with pytest.raises(Violation, match="no prefix"):
        shard.lose_power(0, "none")


def test_a_snapshot_ahead_of_the_log_is_noticed(shard: CheckedShard, monkeypatch: pytest.MonkeyPatch) -> None:
    complete = SnapshotWriter.complete

    def complete_and_claim(self: SnapshotWriter, *args: Any, **kwargs: Any) -> None:
        complete(self, *args, **kwargs)
        self.info.end = 0

    monkeypatch.setattr(SnapshotWriter, "complete", complete_and_claim)
    shard.append("disk", ONE)
    shard.append("disk", ONE)
    shard.snapshot()
    assert shard.driver.shard.maintenance.counters.snapshots == 1
    with pytest.raises(Violation, match=r"taken for damage|cannot be read"):
        shard.lose_power(0, "none")


def test_a_power_cut_taken_for_a_kill_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the boot id nobody knows that acked seqs were lost, and they are given out again."""
    monkeypatch.setattr(FakeDisk, "boot_id", lambda self: "always the same")
    shard = CheckedShard()
    shard.put("disk", {"durability": "disk"})
    shard.append("disk", ONE)
    shard.append("disk", ONE)
    with pytest.raises(Violation, match=r"no prefix|damage"):
        shard.lose_power(0, "none")


def test_a_reservation_that_is_not_gated_is_noticed(
    shard: CheckedShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = Committer._add
    monkeypatch.setattr(
        Committer, "_add", lambda self, pending, topic, gated: add(self, pending, topic, False)
    )
    for _ in range(12):
        shard.append("disk", ONE)
    with pytest.raises(Violation, match="acked"):
        shard.lose_power(0, "none")


def test_an_extent_with_other_bytes_is_noticed(shard: CheckedShard, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = FakeDisk.read_file  # through which the driver reads extents, as a gateway would
    monkeypatch.setattr(FakeDisk, "read_file", lambda self, path: honest(self, path).replace(b"xxx", b"xyx"))
    with pytest.raises(Violation, match="extents and bytes differ"):
        for _ in range(3):
            shard.append("fsync", LONG)
        shard.drain("fsync")


def test_a_record_missing_from_a_segment_is_noticed(
    shard: CheckedShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forgetful(topic: Any) -> Any:
        deleted = SeqSet()
        deleted.add(2)
        share = sealing.plan_share(topic)
        return None if share is None else replace(share, deleted=deleted)

    monkeypatch.setattr("shard_worker.maintenance.plan_share", forgetful)
    for _ in range(3):
        shard.append("fsync", ONE)
    shard.seal()
    with pytest.raises(Violation, match="records"):
        shard.check_everything()


def test_a_floor_that_is_not_written_down_is_noticed(
    shard: CheckedShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Engine, "_stage_expiry", lambda self, topic, floor, now_ms: None)
    shard.put("fsync", {"ttl_ms": 1000})
    shard.append("fsync", ONE)
    shard.driver.clock.advance(2000)
    shard.read("fsync")
    shard.sync()
    shard.driver.clock.advance(-2000)
    with pytest.raises(Violation, match=r"no prefix|records|gap"):
        shard.kill()
        shard.check_everything()


def test_a_told_loss_of_records_in_memory_that_turns_silent_is_noticed(
    shard: CheckedShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_floor(self: Engine, topic: Topic, now_ms: int) -> None:
        hole = Hole(topic.floor, topic.staged_head, REASON_MIXED)
        self.commits.stage_control(PendingControl(Watermark(hole=hole), topic, now_ms))

    monkeypatch.setattr(Engine, "_write_down_residents", without_floor)
    shard.append("t", ONE * 3, config={"durability": "ephemeral", "cap_records": 3})
    shard.append("t", ONE * 2)
    shard.put("t", {"durability": "fsync"})
    shard.check_everything()
    with pytest.raises(Violation, match="no prefix"):
        shard.kill()


def test_a_delete_that_replay_skips_is_noticed(shard: CheckedShard, monkeypatch: pytest.MonkeyPatch) -> None:
    shard.append("fsync", LONG)
    shard.delete_records("fsync", match=("tag", "Eq", "t"))
    apply = ShardState.apply
    monkeypatch.setattr(
        ShardState,
        "apply",
        lambda self, lsn, topic_id, ts, fact: (
            0 if isinstance(fact, RecordsDeleted) else apply(self, lsn, topic_id, ts, fact)
        ),
    )
    with pytest.raises(Violation, match="no prefix"):
        shard.kill()


def test_a_forgotten_idempotency_key_is_noticed(shard: CheckedShard, monkeypatch: pytest.MonkeyPatch) -> None:
    decode = replay_module.decode_append

    def without_extra(frame: Any) -> Any:
        view = decode(frame)
        view.extra = NO_EXTRA
        return view

    shard.append("fsync", ONE, idem="k")
    monkeypatch.setattr(replay_module, "decode_append", without_extra)
    shard.kill()
    with pytest.raises(Violation, match=r"answered at once|appended again"):
        shard.append("fsync", ONE, idem="k")


def test_the_state_machine_finds_a_sync_that_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SyncJob, "run", lambda self: None)
    # The oracle may be the second to see it: where a whole log file is gone, a read is refused by the shard itself.
    with pytest.raises((Violation, DataDamage)):
        run_state_machine_as_test(EngineMachine, settings=_QUICK)


def test_the_state_machine_finds_a_delete_without_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "shard_worker.core.topic.Topic.apply_delete", lambda self, upto, before, match, source: 0
    )
    with pytest.raises(Violation):
        run_state_machine_as_test(EngineMachine, settings=_QUICK)


def test_the_crash_matrix_finds_a_sync_that_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SyncJob, "run", lambda self: None)
    with pytest.raises(Violation):
        for point in spread(count_points(), 20):
            cut = run_until_cut(point, half=False)
            for fate in fates(point, seeds=1):
                survives(cut, fate)


_QUICK = settings(
    max_examples=200,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
    deadline=None,
)


def test_a_topic_that_a_check_deletes_on_its_way_is_not_asked_for(shard: CheckedShard) -> None:
    """The other way round: a look at records that have expired syncs, and a delete that waited for that is done."""
    shard.append("disk", ONE)
    shard.put("disk", {"ttl_ms": 1000})
    shard.delete_topic("disk", wait="committed")
    shard.driver.clock.advance(5000)
    assert "disk" in shard.live.names
    shard.check_everything()
    assert "disk" not in shard.live.names
