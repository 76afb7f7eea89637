"""Checking every file of a shard: of a running one with its worker's help, of a stopped one by recovery aside."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from shard_worker.disk.shard_paths import shard_paths
from shard_worker.disk.survey import survey_shard
from shard_worker.disk.verify import Progress, SegmentFact, ShardFacts, Verification
from shard_worker.inspection_log import lsn_from_text
from shared.errors import ColdUnreachable, CorruptFrame, DataDamage, FormatTooNew
from topicsd.inspection.live import LiveShard
from topicsd.inspection.questions import AskFailed, pages
from topicsd.inspection.store import StoreView, now_ms


@dataclass(slots=True)
class ShardCheck:
    shard: int
    source: str
    """`live`, `files`, or `none`: it could not be checked, and `error` says why."""
    files: int = 0
    bytes: int = 0
    damage: list[DataDamage] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    error: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "shard": self.shard,
            "source": self.source,
            "files": self.files,
            "bytes": self.bytes,
            "damage": [
                {"code": each.code, "reason": each.reason, **(each.detail or {})} for each in self.damage
            ],
            "notes": self.notes,
            **({} if self.error is None else {"error": self.error}),
        }


def check_shard(store: StoreView, shard: int, progress: Progress) -> ShardCheck:
    try:
        live = store.live(shard)
        if live is not None:
            with live:
                return _check_running(store, shard, live, progress)
        holder = store.holder(shard)
        if holder is not None:
            why = f"process {holder} holds it and does not answer: it may be replaying its log, so try again"
            return ShardCheck(shard, "none", error=why)
        return _check_stopped(store, shard, progress)
    except (FormatTooNew, ColdUnreachable) as err:
        return ShardCheck(shard, "none", error=str(err))
    except (AskFailed, OSError) as err:
        return ShardCheck(shard, "none", error=str(err))


def _check_stopped(store: StoreView, shard: int, progress: Progress) -> ShardCheck:
    found = ShardCheck(shard, "files")
    if shard not in store.present and store.present:
        root = shard_paths(store.settings, shard).root
        reason = "this shard is missing: restore it from a backup; a start would begin it empty"
        found.damage.append(CorruptFrame(path=root, reason=reason))
        return found
    survey = survey_shard(store.fs, store.settings, shard, now_ms(), progress)
    found.files, found.bytes = survey.check.files, survey.check.bytes
    found.damage, found.notes = survey.damage, survey.notes
    return found


def _check_running(store: StoreView, shard: int, live: LiveShard, progress: Progress) -> ShardCheck:
    facts = live_facts(live)
    check = Verification(
        store.fs, shard_paths(store.settings, shard), shard, facts, progress, refresh=lambda: live_facts(live)
    )
    check.run()
    recovery: Any = live.ask("show", {})["recovery"]
    # What was torn or unusable at its start is settled by now; damage that it started over is not.
    notes = [f"found at its start: {text}" for text in recovery["damage"]]
    return ShardCheck(shard, "live", check.files, check.bytes, check.damage, check.notes + notes)


def live_facts(live: LiveShard) -> ShardFacts:
    log: Any = live.ask("show", {})["log"]
    segments = pages(live, "segments", "segments", {})
    return ShardFacts(
        first_file=log["first_file"],
        end=lsn_from_text(log["written"]),
        segments={
            row["segment"]: SegmentFact(
                row["segment"], row["tier"], row["bytes"], row["digest"], row["runs"] > 0
            )
            for row in segments
        },
        names={row["id"]: row["topic"] for row in pages(live, "topics", "topics", {})},
    )
