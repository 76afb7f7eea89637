"""The audit of a whole store: every file, every topic, and all of it against the report before.

Safe beside a running server: nothing is written but the report, and if something is not in its place while a worker has
just moved or dropped files, the shard is looked at again, as its newest snapshot and manifest say.
"""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from pyroaring import BitMap64

from ops.coldstore.audit_copies import check_copies
from ops.coldstore.audit_files import FileChecks
from ops.coldstore.engines import Engine
from ops.coldstore.file_checks import CheckedFile, FileToCheck
from ops.coldstore.progress import Progress
from ops.coldstore.store_view import ShardView, StoreFile, read_store_file, shards_in, view_shard
from shared.audit_continuity import TopicState, check_deletes, check_placement, check_topic
from shared.audit_files import (
    COLD,
    HOT,
    FilePlan,
    check_manifest_entry,
    check_manifests,
    check_recorded,
    plan_files,
)
from shared.audit_findings import ERROR, Finding, finding_order
from shared.audit_history import TopicNow, check_history, topic_sha
from shared.audit_report import SCHEMA, Previous, Report, SegmentRow, ShardRow, TopicRow, Totals
from shared.cold_plan import BIN_BYTES
from shared.io.durable_fs import FileSystem
from shared.snapshot_items import SnapSegments
from shared.store_layout import segment_file_name

LOOKS: Final = 4
_MAY_BE_MOVING = frozenset(
    {"missing_file", "orphan_file", "gap", "manifest_disagrees", "size_differs", "bad_footer"}
)
"""Findings that a worker causes for a moment when it moves and drops files."""


@dataclass(frozen=True, slots=True)
class AuditOptions:
    data_dir: str
    cold_dir: str | None = None
    online: bool = True
    bin_bytes: int = BIN_BYTES
    version: str = "unknown"
    pause_s: float = 1.0
    """Between two looks at a shard that is moving files."""


@dataclass(slots=True)
class ShardOutcome:
    view: ShardView
    findings: list[Finding] = field(default_factory=list)
    segments: dict[int, CheckedFile] = field(default_factory=dict)
    """The file that counts for each segment: the one in the tier that is recorded."""
    topics: list[TopicNow] = field(default_factory=list)

    def drop_all_but(self, suspects: set[Finding]) -> None:
        """Findings that a moving file causes count only if they are among `suspects`."""
        self.findings = [
            each for each in self.findings if each.kind not in _MAY_BE_MOVING or each in suspects
        ]
        lacking = {(each.topic, each.epoch) for each in self.findings if each.kind == "gap"}
        self.topics = [
            topic if (topic.state.name, topic.state.epoch) in lacking else replace(topic, missing=BitMap64())
            for topic in self.topics
        ]


class Audit:
    def __init__(
        self,
        fs: FileSystem,
        options: AuditOptions,
        engine: Engine,
        progress: Progress,
        *,
        now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
        between_looks: Callable[[], None] = lambda: None,
    ) -> None:
        self._fs = fs
        self._options = options
        self._engine = engine
        self._progress = progress
        self._now_ms = now_ms
        self._between_looks = between_looks
        self._files = FileChecks(engine, options.bin_bytes)
        self._stages: dict[str, float] = {}

    def run(self, before: tuple[Previous, Report] | None, chain: list[Finding]) -> Report:
        """`before`: the last report; `chain`: what is wrong with the chain of reports."""
        started_ms = self._now_ms()
        options = self._options
        store = read_store_file(self._fs, options.data_dir)
        outcomes = self._look_until_settled(store)
        findings = [*chain, *(finding for outcome in outcomes for finding in outcome.findings)]
        topics = {(t.state.name, t.state.epoch): t for outcome in outcomes for t in outcome.topics}
        with self._stage("router copies"):
            files = {(o.view.shard, n): file for o in outcomes for n, file in o.segments.items()}
            findings += check_copies(self._engine, files, topics)
        segments = [_segment_row(o, number) for o in outcomes for number in sorted(o.segments)]
        shards = [_shard_row(outcome.view) for outcome in outcomes]
        with self._stage("history"):
            if before is not None:
                rows = {(row.shard, row.number): row for row in segments}
                findings += check_history(before[1], rows, shards, store.shards, topics)
        findings = sorted(set(findings), key=finding_order)
        topic_rows = [_topic_row(topic) for _, topic in sorted(topics.items())]
        errors = sum(finding.severity == ERROR for finding in findings)
        return Report(
            schema=SCHEMA,
            version=options.version,
            engine=self._engine.name,
            started_ms=started_ms,
            finished_ms=self._now_ms(),
            data_dir=options.data_dir,
            cold_dir=options.cold_dir,
            shard_count=store.shards,
            previous=before[0] if before is not None else None,
            verdict="findings" if errors else "clean",
            totals=Totals(
                files=len(self._files.checked),
                blocks=sum(row.blocks for row in segments),
                records=sum(row.records for row in segments),
                bytes=self._files.bytes,
                topics=len(topic_rows),
                live=sum(row.live for row in topic_rows),
                missing=sum(row.missing for row in topic_rows),
                errors=errors,
                notices=len(findings) - errors,
            ),
            stages={name: round(seconds, 3) for name, seconds in self._stages.items()},
            shards=shards,
            findings=[finding.to_dict() for finding in findings],
            segments=segments,
            topics=topic_rows,
        )

    # --- looking ----------------------------------------------------------------------------------------

    def _look_until_settled(self, store: StoreFile) -> list[ShardOutcome]:
        options = self._options
        shards = shards_in(self._fs, options.data_dir, options.cold_dir)
        done: dict[int, ShardOutcome] = {}
        suspects: dict[int, set[Finding]] = {}
        open_shards = shards
        for look in range(LOOKS if options.online else 1):
            if look:
                self._between_looks()
                time.sleep(options.pause_s)
            unsettled = []
            for outcome in self._look(store, open_shards):
                shard = outcome.view.shard
                earlier = done.get(shard)
                moving = {finding for finding in outcome.findings if finding.kind in _MAY_BE_MOVING}
                # What is really wrong is wrong in every look; what a worker was just about is something else each time.
                suspects[shard] = moving & suspects.get(shard, moving)
                done[shard] = outcome
                still = earlier is not None and earlier.view.identity == outcome.view.identity
                if suspects[shard] and not still:
                    unsettled.append(shard)
            open_shards = unsettled
            if not open_shards:
                break
        for shard, outcome in done.items():
            outcome.drop_all_but(suspects[shard])
        return [done[shard] for shard in shards]

    def _look(self, store: StoreFile, shards: list[int]) -> list[ShardOutcome]:
        options = self._options
        with self._stage("plan"):
            views = [view_shard(self._fs, options.data_dir, options.cold_dir, shard) for shard in shards]
            plans = [plan_files(view.listing, *_recorded(view), view.manifest, _kept(view)) for view in views]
            wanted = [
                FileToCheck(path, view.shard, number, expected.size if expected is not None else None)
                for view, plan in zip(views, plans, strict=True)
                for path, number, expected in plan.files
            ]
        with self._stage("blocks"):
            self._files.run(wanted, self._progress.task("reading blocks"))
        outcomes = []
        with self._stage("topics"):
            for view, plan in zip(views, plans, strict=True):
                outcome = ShardOutcome(view, [*view.findings, *plan.findings])
                self._judge_files(outcome, plan)
                self._judge_topics(outcome, store)
                outcomes.append(outcome)
        return outcomes

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self._stages[name] = self._stages.get(name, 0.0) + time.perf_counter() - began

    # --- judging ----------------------------------------------------------------------------------------

    def _judge_files(self, outcome: ShardOutcome, plan: FilePlan) -> None:
        view, found = outcome.view, outcome.findings
        found += check_manifests(view.shard, view.listing.cold_directory or "", view.manifests)
        for path, lost in plan.missing:
            reason = f"segment {lost.number} is recorded and not there"
            found.append(
                Finding(kind="missing_file", reason=reason, path=path, shard=view.shard, segment=lost.number)
            )
        in_manifest = {held.number: held for held in view.manifest.segments} if view.manifest else {}
        for path, number, expected in plan.files:
            file = self._files.checked[path]
            in_cold = path.startswith(f"{view.listing.cold_directory}/")
            held = in_manifest.get(number) if in_cold else None
            if file.vanished:
                if (expected is not None and expected.needed) or held is not None:
                    reason = f"segment {number} went away while it was read"
                    found.append(
                        Finding(
                            kind="missing_file", reason=reason, path=path, shard=view.shard, segment=number
                        )
                    )
                continue
            found += file.findings
            recorded = [("manifest", held.size, held.digest)] if held is not None else []
            if expected is not None and not recorded:
                recorded.append(("snapshot", expected.size, expected.digest))
            digest = file.facts.digest if file.facts is not None else None
            found += check_recorded(path, view.shard, file.size, digest, recorded)
            if file.facts is not None and held is not None:
                topics = [(r.name, r.epoch, r.first, r.last, r.count) for r in file.facts.runs]
                found += check_manifest_entry(path, view.shard, held, topics)
            tier = expected.tier if expected is not None else HOT
            if file.facts is not None and (number not in outcome.segments or (tier == COLD) == in_cold):
                outcome.segments[number] = file

    def _judge_topics(self, outcome: ShardOutcome, store: StoreFile) -> None:
        view, found = outcome.view, outcome.findings
        if view.newest is None:
            if outcome.segments:
                reason = "no snapshot to tell gaps from deletes; there is one after the next clean stop"
                found.append(Finding(kind="no_snapshot", reason=reason, shard=view.shard))
            return
        paths = {number: file.path for number, file in outcome.segments.items()}
        by_topic = {
            (run.segment, run.name, run.epoch): run
            for file in outcome.segments.values()
            if file.facts is not None
            for run in file.facts.runs
        }
        older = {(topic.name, topic.epoch): topic for topic in view.older.topics} if view.older else {}
        for topic in view.newest.topics:
            state = TopicState.of(topic, view.shard)
            keys = [(segment, state.name, state.epoch) for segment in state.segments]
            runs = [by_topic[key] for key in keys if key in by_topic]
            checked = check_topic(state, runs, paths)
            found += checked.findings
            found += check_placement(state, store.counts)
            earlier = older.get((state.name, state.epoch))
            if earlier is not None and view.older is not None:
                before = TopicState.of(earlier, view.shard)
                found += check_deletes(before, view.older.table.next_segment, runs, paths)
            if runs or checked.missing:
                outcome.topics.append(TopicNow(state, runs, checked.missing))


def _recorded(view: ShardView) -> tuple[SnapSegments | None, frozenset[int]]:
    if view.newest is None:
        return None, frozenset()
    return view.newest.table, frozenset(run.segment for topic in view.newest.topics for run in topic.sealed)


def _kept(view: ShardView) -> frozenset[int]:
    return (
        frozenset(held.number for held in view.older.table.segments)
        if view.older is not None
        else frozenset()
    )


def _segment_row(outcome: ShardOutcome, number: int) -> SegmentRow:
    file = outcome.segments[number]
    assert file.facts is not None
    runs = file.facts.runs
    name = segment_file_name(number)
    return SegmentRow(
        shard=outcome.view.shard,
        number=number,
        tier=HOT if file.path == outcome.view.listing.path(HOT, name) else COLD,
        path=file.path,
        size=file.size,
        digest=file.facts.digest,
        sha256=file.facts.sha,
        blocks=file.facts.blocks,
        bad_blocks=file.facts.bad_blocks,
        records=file.facts.records,
        created_ms=file.created_ms,
        min_ts=min((run.min_ts for run in runs), default=0),
        max_ts=max((run.max_ts for run in runs), default=0),
        topics=[(run.name, run.epoch, run.first, run.last, run.count) for run in runs],
    )


def _shard_row(view: ShardView) -> ShardRow:
    return ShardRow(
        shard=view.shard,
        snapshot=view.newest.number if view.newest is not None else None,
        next_segment=view.newest.table.next_segment if view.newest is not None else 0,
        generation=view.manifest.generation if view.manifest is not None else 0,
        manifest_checksum=f"{view.checksum:016x}",
    )


def _topic_row(topic: TopicNow) -> TopicRow:
    state = topic.state
    return TopicRow(
        shard=state.shard,
        name=state.name,
        epoch=state.epoch,
        head=state.head,
        floor=state.floor,
        first=state.first,
        sealed_end=state.sealed_end,
        live=len(state.live()),
        missing=len(topic.missing),
        segments=[run.segment for run in topic.runs],
        sha256=topic_sha(topic.runs),
        deleted=b64encode(state.deleted.serialize()).decode() if state.deleted else None,
    )
