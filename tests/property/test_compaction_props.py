"""The pure part of compaction: who survives, and which segments become one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from shared.columns import DATA_NULL, HAS_KEY
from shared.compaction import (
    Basis,
    KeyColumns,
    KeyRules,
    PlanOptions,
    TopicView,
    make_plan,
    ranges_of,
    seq_order,
    seqs_in,
    superseded,
)
from shared.manifest import Manifest, ManifestSegment, ManifestTopic

NOW = 10_000

ROWS = st.lists(
    st.tuples(st.sampled_from([None, b"a", b"b", b"c"]), st.integers(0, 40), st.booleans()), max_size=30
)


def rows_of(drawn: list[tuple[bytes | None, int, bool]]) -> list[tuple[bytes | None, int, int, int]]:
    """Seqs ascend, times never decrease."""
    rows, ts = [], NOW - 500
    for seq, (key, step, null) in enumerate(drawn, start=1):
        ts += step
        flags = 0 if key is None else HAS_KEY | (DATA_NULL if null else 0)
        rows.append((key, seq, ts, flags))
    return rows


def blocks_of(rows: list[tuple[bytes | None, int, int, int]], size: int) -> Iterator[KeyColumns]:
    """The same rows in blocks of `size`; times that are all the same are one number, as in blocks of a segment."""
    for start in range(0, len(rows), size):
        keys, seqs, times, flags = zip(*rows[start : start + size], strict=True)
        yield KeyColumns(keys, seqs, times[0] if len(set(times)) == 1 else times, bytes(flags))


@given(ROWS, st.integers(1, 8), st.sampled_from([0, 100, 400]), st.sampled_from([0, 100, 10**6]))
def test_what_goes_is_superseded_or_a_null_that_was_seen_long_enough(
    drawn: list[tuple[bytes | None, int, bool]], size: int, lag_ms: int, retention_ms: int
) -> None:
    rows = rows_of(drawn)
    gone = superseded(blocks_of(rows, size), KeyRules(lag_ms, retention_ms), NOW)
    old = [row for row in rows if row[2] <= NOW - lag_ms]
    expected = set()
    for key, seq, ts, flags in old:
        if key is None:
            continue
        younger = [other for other in old if other[0] == key and other[1] > seq]
        if younger or (flags & DATA_NULL and ts < NOW - retention_ms):
            expected.add(seq)
    assert set(gone) == expected


@given(st.sets(st.integers(1, 60)))
def test_ranges_and_sets_are_inverse(seqs: set[int]) -> None:
    ranges = ranges_of(BitMap64(seqs))
    assert set(seqs_in(ranges)) == seqs
    assert all(first <= last for first, last in ranges)
    assert all(one[1] + 1 < other[0] for one, other in pairwise(ranges))


@st.composite
def bases(draw: st.DrawFn) -> Basis:
    """A history of seals: each takes the next stretch of some topics. Later some neighbours were compacted."""
    seals = draw(st.lists(st.sets(st.integers(1, 4), min_size=1), min_size=1, max_size=8))
    heads = dict.fromkeys(range(1, 5), 0)
    parts: dict[int, dict[int, tuple[int, int]]] = {}
    for number, topics in enumerate(seals, start=1):
        for topic in sorted(topics):
            first = heads[topic] + 1
            heads[topic] += draw(st.integers(1, 4))
            parts.setdefault(number, {})[topic] = (first, heads[topic])
    if len(parts) > 2 and draw(st.booleans()):  # an earlier compaction: an old stretch with a young number
        at = draw(st.integers(1, len(parts) - 1))
        one, other = parts.pop(at), parts.pop(at + 1)
        joined = {
            topic: (one.get(topic, other.get(topic, (0, 0)))[0], other.get(topic, one.get(topic, (0, 0)))[1])
            for topic in one.keys() | other.keys()
        }
        parts[5_000_004_096] = joined
    hot = draw(st.sets(st.sampled_from(sorted(parts)), max_size=2))
    views = {}
    for topic in heads:
        runs = sorted(
            (held[topic][0], held[topic][1], number) for number, held in parts.items() if topic in held
        )
        deleted = BitMap64(draw(st.sets(st.integers(1, max(heads[topic], 1)), max_size=5)))
        live_from = draw(st.integers(1, heads[topic] + 1))
        views[topic] = TopicView(
            topic,
            f"t{topic}",
            1,
            live_from,
            deleted,
            tuple((n, first, last) for first, last, n in runs),
            None,
        )
    segments = []
    for number, held in sorted(parts.items()):
        rows = tuple(
            ManifestTopic(f"t{topic}", 1, first, last, last - first + 1)
            for topic, (first, last) in sorted(held.items())
        )
        segments.append(
            ManifestSegment(
                number=number,
                path=f"data/{number:010d}.seg",
                size=draw(st.integers(50, 400)),
                digest="0" * 16,
                blocks=1,
                records=sum(row.count for row in rows),
                deleted=0,
                min_ts=0,
                max_ts=0,
                topics=rows,
            )
        )
    cold = tuple(segment for segment in segments if segment.number not in hot)
    manifest = Manifest(generation=3, shard=0, created_ms=0, previous=0, segments=cold)
    return Basis(0, manifest, 0, 1, {segment.number for segment in cold}, views)


@given(bases())
def test_the_order_of_segments_is_the_order_of_every_topic(basis: Basis) -> None:
    order = list(seq_order(basis))
    assert len(order) == len(set(order))
    for view in basis.topics.values():
        places = [order.index(number) for number, _, _ in view.runs]
        assert places == sorted(places)


@given(bases(), st.sampled_from([100, 600, 10_000]), st.booleans(), st.sampled_from([0.0, 0.5]))
def test_segments_that_become_one_are_neighbours_for_every_topic(
    basis: Basis, target_bytes: int, merge: bool, min_dead: float
) -> None:
    plan = make_plan(basis, {}, PlanOptions(target_bytes=target_bytes, merge=merge, min_dead=min_dead))
    taken = [segment.number for group in plan.bins for segment in group.old]
    assert len(taken) == len(set(taken)) and set(taken) <= basis.cold
    assert len({group.number for group in plan.bins}) == len(plan.bins)
    for group in plan.bins:
        numbers = [segment.number for segment in group.old]
        assert merge or len(numbers) == 1
        for view in basis.topics.values():
            places = [at for at, run in enumerate(view.runs) if run[0] in numbers]
            assert places == list(range(places[0], places[-1] + 1)) if places else True
            assert [view.runs[at][0] for at in places] == [
                n for n in numbers if n in {run[0] for run in view.runs}
            ]


@given(bases())
def test_everything_dead_is_found_when_nothing_is_too_little(basis: Basis) -> None:
    plan = make_plan(basis, {}, PlanOptions(merge=False))
    taken = {segment.number for group in plan.bins for segment in group.old}
    for segment in basis.manifest.segments:
        dead = sum(
            len(basis.topics[int(part.name[1:])].dead_within(part.first, part.last))
            for part in segment.topics
        )
        assert (segment.number in taken) == (dead > 0)
