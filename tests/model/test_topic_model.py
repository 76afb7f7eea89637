"""One topic against a dict: appends, deletes, caps, TTL, holes, sealing, snapshots and reads, without a disk.

The invariants T1 to T4 of shard_worker/core/topic.py. Much faster than the machine over the whole engine, so it
goes much deeper.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from shard_worker.core.batch import encode_batch
from shard_worker.core.catalog import Catalog
from shard_worker.core.hot_index import IN_MEMORY
from shard_worker.core.piece import Piece
from shard_worker.core.reading import read, view_of
from shard_worker.core.topic import NO_HOLES, NO_RUNS, Run
from shard_worker.core.topic_snapshot import topic_from_snapshot, topic_to_snapshot
from shared.api_types import DiffRequest, TopicConfigIn, decode_write, resolve_config
from shared.columns import Columns
from shared.control_frames import Hole
from shared.match import parse_match
from shared.record_assembler import RecordAssembler
from shared.settings import Settings
from tests.model.engine_model import Match, Rec, TopicModel
from tests.support.shard_driver import small_limits

BLOCK_RECORDS = 3
SETTINGS = Settings()
LABELS = st.sampled_from([None, None, "x", "xy", "y", ""])
MATCHES = st.tuples(
    st.sampled_from(["tag", "key", "node"]),
    st.sampled_from(["Eq", "Glob"]),
    st.sampled_from(["x", "xy", "y", ""]),
)


class Stored:
    """A batch or block: its bytes, columns, seqs and times."""

    def __init__(self, text: bytes, columns: Columns, seqs: Sequence[int], times: Sequence[int]) -> None:
        self.json, self.columns = text, columns
        self.seqs, self.times = list(seqs), list(times)

    def piece(self) -> Piece:
        dense = self.seqs[-1] - self.seqs[0] + 1 == len(self.seqs)
        even = self.times[0] == self.times[-1]
        return Piece(
            first=self.seqs[0],
            last=self.seqs[-1],
            count=len(self.seqs),
            ts=self.times[-1],
            load_columns=lambda: (
                self.columns,
                None if dense else self.seqs,
                None if even else array("Q", self.times),
            ),
            load_json=lambda: memoryview(self.json),
        )


class MemorySource:
    """A PieceSource without files."""

    def __init__(self) -> None:
        self.hot: dict[int, Stored] = {}
        self.segments: dict[int, list[Stored]] = {}
        self.runs: dict[int, int] = {}
        self.next_lsn = 1 << 32

    def store(self, text: bytes, flags: int, columns: bytes, first: int, count: int, ts: int) -> int:
        lsn, self.next_lsn = self.next_lsn, self.next_lsn + len(text)
        view = Columns(flags, count, len(text), memoryview(columns))
        self.hot[lsn] = Stored(text, view, range(first, first + count), [ts] * count)
        return lsn

    def hot_piece(
        self, topic_id: int, first: int, count: int, ts: int, lsn: int, size: int, flags: int
    ) -> Piece:
        return self.hot[lsn].piece()

    def hot_json(self, lsns: Sequence[int], sizes: Sequence[int]) -> list[memoryview]:
        return [memoryview(self.hot[lsn].json) for lsn in lsns]

    def verify_hot(self, lsn: int) -> None:
        assert lsn in self.hot

    def sealed_pieces(self, segment: int, topic_id: int, first: int, last: int) -> Iterator[Piece]:
        for block in self.segments[segment]:
            if block.seqs[-1] >= first and block.seqs[0] <= last:
                yield block.piece()

    def sealed_matches(
        self, segment: int, topic_id: int, field: str, value: bytes, prefix: bool
    ) -> Iterator[Piece]:
        # Every block may hold the value: finding too many is allowed, finding too few is not.
        yield from (block.piece() for block in self.segments[segment])

    def run_added(self, segment: int) -> None:
        self.runs[segment] = self.runs.get(segment, 0) + 1

    def run_dropped(self, segment: int) -> None:
        self.runs[segment] -= 1
        assert self.runs[segment] >= 0, "a run was dropped twice"


class TopicMachine(RuleBasedStateMachine):
    @initialize()
    def boot(self) -> None:
        self.limits = small_limits()
        self.limits.__enter__()
        self.source = MemorySource()
        self.catalog = Catalog()
        self.topic = self.catalog.plan("t", resolve_config(None, TopicConfigIn(), topic="t"), 1)
        self.model = TopicModel("t")
        self.now_ms = 1000
        self.serial = 0
        self.floors = (1, 1)

    def teardown(self) -> None:
        self.limits.__exit__(None, None, None)

    # --- steps ------------------------------------------------------------------------------------------

    @rule(
        labels=st.lists(st.tuples(LABELS, LABELS, LABELS), min_size=1, max_size=5),
        meta=st.booleans(),
        padding=st.integers(0, 30),
    )
    def append(
        self, labels: list[tuple[str | None, str | None, str | None]], meta: bool, padding: int
    ) -> None:
        first, records, recs = self.topic.head + 1, [], []
        for place, (tag, key, node) in enumerate(labels):
            self.serial += 1
            data = f'"{self.serial}{"." * padding}"'
            fields = {"tag": tag, "key": key, "node": node}
            parts = [
                f'"data":{data}',
                *(f'"{name}":{json.dumps(v)}' for name, v in fields.items() if v is not None),
            ]
            if meta:
                parts.append('"meta":{"m": 1}')
            records.append("{" + ",".join(parts) + "}")
            recs.append(Rec(first + place, self.now_ms, data, node, tag, key, '{"m": 1}' if meta else None))
        body = f'{{"records":[{",".join(records)}]}}'.encode()
        batch = encode_batch(decode_write(body), len(body), first, self.now_ms, SETTINGS)
        lsn = self.source.store(
            batch.json, batch.column_flags, batch.columns, first, batch.count, self.now_ms
        )
        self.topic.apply_append(
            first, batch.count, self.now_ms, lsn, len(batch.json), batch.column_flags, self.source
        )
        self.model.append(recs, None)

    @rule(before=st.none() | st.integers(0, 60), match=st.none() | MATCHES, back=st.integers(0, 3))
    def delete(self, before: int | None, match: Match | None, back: int) -> None:
        upto = max(0, self.topic.head - back)
        removed = self.topic.apply_delete(upto, before, _match(match), self.source)
        assert removed == self.model.delete(upto, before, match)

    @rule(seqs=st.lists(st.integers(1, 60), max_size=4))
    def remove(self, seqs: list[int]) -> None:
        alive = [seq for seq in set(seqs) if seq in self.model.live]
        assert self.topic.apply_remove(seqs, self.source) == len(alive)
        for seq in alive:
            del self.model.live[seq]

    @rule(
        changes=st.fixed_dictionaries(
            {},
            optional={
                "cap_records": st.sampled_from([0, 2, 5, 9]),
                "cap_bytes": st.sampled_from([0, 150, 500]),
                "discard": st.sampled_from(["old", "reject"]),
                "ttl_ms": st.sampled_from([0, 50, 200]),
            },
        )
    )
    def configure(self, changes: dict[str, Any]) -> None:
        patch = msgspec.convert(changes, TopicConfigIn)
        self.topic.apply_config(resolve_config(self.topic.config, patch, topic="t"), self.source)
        self.model.config |= changes
        self.model.hold_caps()

    @rule(ms=st.sampled_from([1, 40, 60, 300]))
    def pass_time(self, ms: int) -> None:
        self.now_ms += ms

    @rule()
    def expire(self) -> None:
        floor = self.topic.expired_floor(self.now_ms, self.source)
        assert floor == self.model.expired_floor(self.now_ms)
        self.topic.apply_floor(floor, "ttl", self.source)
        self.model.evict(floor, "ttl")

    @rule(floor=st.integers(0, 60))
    def late_floor(self, floor: int) -> None:
        """A floor that stands behind the present one changes nothing."""
        if floor <= self.topic.floor:
            self.topic.apply_floor(floor, "cap", self.source)

    @rule(length=st.integers(1, 4))
    def lose_seqs(self, length: int) -> None:
        self.topic.apply_hole(Hole(self.topic.head + 1, self.topic.head + length, "mixed"))
        self.model.lose(self.model.head + length)

    @rule(batches=st.integers(1, 4), late=st.none() | MATCHES)
    def seal(self, batches: int, late: Match | None) -> None:
        """Perhaps something is deleted between the sealing and the frame that makes it true."""
        hot = self.topic.hot
        entries = [hot.entry(index) for index in range(hot.start, min(len(hot.first), hot.start + batches))]
        blocks = self._blocks([self.source.hot[entry.lsn] for entry in entries])
        if late is not None:
            assert self.topic.apply_delete(
                self.topic.head, None, _match(late), self.source
            ) == self.model.delete(self.model.head, None, late)
        if not blocks:
            return
        segment = len(self.source.segments) + 1
        self.source.segments[segment] = blocks
        self.source.runs.setdefault(segment, 0)
        self.topic.apply_sealed(segment, entries[-1].last, max(blocks[-1].times), self.source)

    def _blocks(self, batches: list[Stored]) -> list[Stored]:
        """The live records of these batches, a few to a block."""
        blocks, assembler = [], RecordAssembler()
        for batch in batches:
            for index, seq in enumerate(batch.seqs):
                if seq not in self.model.live:
                    continue
                ts = batch.times[0]
                assembler.add(memoryview(batch.json), batch.columns, index, index + 1, batch.seqs[0], ts)
                if assembler.count == BLOCK_RECORDS:
                    blocks.append(_finished(assembler))
                    assembler = RecordAssembler()
        return [*blocks, _finished(assembler)] if assembler.count else blocks

    @rule(clean=st.booleans())
    def restore_from_snapshot(self, clean: bool) -> None:
        stored = topic_to_snapshot(self.topic, clean=clean)
        assert sum(run.count for run in stored.sealed) <= self.topic.count
        self.topic = topic_from_snapshot(stored, self.catalog)

    # --- reads ------------------------------------------------------------------------------------------

    @rule(
        from_seq=st.integers(0, 70),
        limit=st.sampled_from([0, 1, 2, 5]),
        max_bytes=st.sampled_from([None, 0, 100, 400]),
        nodes=st.sampled_from([None, None, ["x"], ["x", "y"]]),
        match=st.none() | MATCHES,
        tags=st.booleans(),
        keys=st.booleans(),
        meta=st.booleans(),
    )
    def look(
        self,
        from_seq: int,
        limit: int,
        max_bytes: int | None,
        nodes: list[str] | None,
        match: Match | None,
        tags: bool,
        keys: bool,
        meta: bool,
    ) -> None:
        view = view_of(
            DiffRequest(
                from_seq=from_seq,
                limit=limit,
                node=nodes,
                match=None if match is None else list(_wire(match)),
                max_bytes=max_bytes,
                include_tags=tags,
                include_keys=keys,
                include_meta=meta,
            ),
            SETTINGS,
        )
        topic, model = self.topic, self.model
        result = read(topic, from_seq, view, topic.floor, self.source, extents=False)
        wanted = [
            rec
            for rec in model.live.values()
            if (rec.seq > from_seq or from_seq > model.head)
            and rec.node not in (nodes or ())
            and rec.matches(match)
        ]
        got = wanted[: result.delivered]
        texts = [rec.text(include_tags=tags, include_keys=keys, include_meta=meta) for rec in got]
        assert result.records_json().decode() == ",".join(texts)
        left = wanted[result.delivered :]
        assert not left or result.next_from < left[0].seq
        assert not got or result.next_from >= got[-1].seq
        assert len(got) <= (limit or 256)

    @rule(from_seq=st.integers(0, 70))
    def drain(self, from_seq: int) -> None:
        """Every live record once, every lost seq told, nothing else; with extents as without."""
        topic, model = self.topic, self.model
        if from_seq > topic.head:
            return
        cursor, told, texts = from_seq, set[int](), list[str]()
        while True:
            view = view_of(DiffRequest(limit=4), SETTINGS)
            result = read(topic, cursor, view, topic.floor, self.source, extents=True)
            twin = read(topic, cursor, view, topic.floor, self.source, extents=False)
            assert (twin.next_from, twin.tombstone, twin.delivered) == (
                result.next_from,
                result.tombstone,
                result.delivered,
            )
            assert bool(result.extents) + bool(result.chunks) <= 1
            if result.extents:
                assert sum(length for _, _, length in result.extents) == len(twin.records_json())
            texts += json_records(twin.records_json())
            if result.tombstone is not None:
                told.update(range(result.tombstone.gap_from, result.tombstone.gap_to + 1))
            if result.next_from == topic.head:
                break
            assert result.next_from > cursor
            cursor = result.next_from
        assert told == model.lost_behind(from_seq)
        assert texts == [rec.text() for rec in model.live.values() if rec.seq > from_seq]

    # --- always -----------------------------------------------------------------------------------------

    @invariant()
    def counts_are_those_of_the_live_records(self) -> None:
        if not hasattr(self, "model"):
            return
        topic, model = self.topic, self.model
        assert (topic.head, topic.count, topic.bytes) == (model.head, model.count, model.bytes)
        assert topic.earliest == model.earliest
        assert (topic.floor, topic.reason) == (model.floor, model.reason)
        assert topic.floor <= topic.live_from
        assert self.floors[0] <= topic.floor and self.floors[1] <= topic.live_from, "a floor moved back"
        self.floors = (topic.floor, topic.live_from)
        live = [seq for seq in range(1, topic.head + 1) if topic.live_between(seq, seq)]
        assert live == list(model.live)
        assert topic.live_between(1, topic.head) == topic.count
        assert sum(run.live for run in topic.runs) + sum(topic.hot.live[topic.hot.start :]) == topic.bytes
        assert sum(self.source.runs.values()) == len(topic.runs)
        assert all(isinstance(run, Run) and run.live > 0 for run in topic.runs)
        assert not NO_RUNS and not NO_HOLES, "all topics share them"

    @invariant()
    def the_newest_entry_is_that_of_the_index(self) -> None:
        if not hasattr(self, "model"):
            return
        topic, hot = self.topic, self.topic.hot
        if not len(hot) or hot.lsn[-1] == IN_MEMORY:
            assert topic.newest_first == 0
        else:
            found = (topic.newest_first, topic.newest_count, topic.newest_lsn, topic.newest_size)
            assert found == (hot.first[-1], hot.count[-1], hot.lsn[-1], hot.size[-1])


def json_records(text: bytes) -> list[str]:
    return [bytes(raw).decode() for raw in msgspec.json.decode(b"[" + text + b"]", type=list[msgspec.Raw])]


def _finished(assembler: RecordAssembler) -> Stored:
    done = assembler.finish()
    seqs = range(done.first_seq, done.last_seq + 1) if done.seqs is None else done.seqs
    times = [done.max_ts] * done.count if done.times is None else done.times
    columns = Columns(done.column_flags, done.count, len(done.json), memoryview(done.columns))
    return Stored(done.json, columns, seqs, times)


def _wire(match: Match) -> tuple[str, str, str]:
    return match[0], match[1], match[2] + "*" if match[1] == "Glob" else match[2]


def _match(match: Match | None) -> Any:
    return None if match is None else parse_match(_wire(match))


TestTopic = TopicMachine.TestCase
TestTopic.settings = settings(max_examples=4 * settings().max_examples)


@pytest.mark.exhaustive
class TestTopicAtLength(TopicMachine.TestCase):
    """The same machine, for `make test-exhaustive` to run with its own profile."""
