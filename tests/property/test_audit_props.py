"""Continuity and deletes against a plain model: sets of seqs, one by one."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from shared.audit_blocks import TopicRun
from shared.audit_continuity import (
    MAX_RANGES_NAMED,
    TopicState,
    check_deletes,
    check_topic,
    ranges_of,
)

SEQS = st.sets(st.integers(1, 60))


@given(st.sets(st.one_of(st.integers(0, 40), st.integers(2**40, 2**40 + 30))))
def test_ranges_are_the_maximal_runs_of_the_set(seqs: set[int]) -> None:
    found = list(ranges_of(BitMap64(seqs)))
    assert {seq for first, last in found for seq in range(first, last + 1)} == seqs
    for (_, end), (start, _) in pairwise(found):
        assert start > end + 1


def test_ranges_of_a_long_run_cost_no_step_per_seq() -> None:
    long = BitMap64()
    long.add_range(1, 10**8)
    long.add(10**8 + 5)
    assert list(ranges_of(long)) == [(1, 10**8 - 1), (10**8 + 5, 10**8 + 5)]


@st.composite
def histories(draw: st.DrawFn) -> tuple[TopicState, list[TopicRun], list[set[int]]]:
    """A topic whose sealed seqs 1…60 went through deletes and holes, and segments that may lack or repeat some."""
    deleted, holes, first = draw(SEQS), draw(SEQS), draw(st.integers(1, 61))
    stored = [draw(SEQS) for _ in range(draw(st.integers(0, 4)))]
    if draw(st.booleans()):
        stored.append(set(range(first, 61)) - deleted - holes)
    state = TopicState(
        0,
        "t",
        1,
        60,
        1,
        first,
        60,
        tuple(range(1, len(stored) + 1)),
        BitMap64(deleted),
        BitMap64(holes - deleted),
    )
    runs = [
        TopicRun(1, "t", 1, number, min(seqs), max(seqs), len(seqs), 5, 5, BitMap64(seqs), b"")
        for number, seqs in enumerate(stored, start=1)
        if seqs
    ]
    return state, runs, [seqs for seqs in stored if seqs]


def named(findings: list, kind: str) -> list[int]:  # type: ignore[type-arg]
    return [
        seq
        for finding in findings
        if finding.kind == kind
        for seq in range(finding.first_seq, finding.last_seq + 1)
    ]


@given(histories())
def test_a_seq_is_reported_missing_if_it_is_live_and_nowhere_and_twice_if_it_is_in_two_places(
    history: tuple[TopicState, list[TopicRun], list[set[int]]],
) -> None:
    state, runs, stored = history
    outcome = check_topic(state, runs, {})
    live = {seq for seq in range(state.first, 61) if seq not in state.deleted and seq not in state.holes}
    everywhere = set().union(*stored)
    assert set(outcome.missing) == live - everywhere
    # One loss is one range: it may reach over what was deleted in it, never over what is there.
    gaps = [(each.first_seq, each.last_seq) for each in outcome.findings if each.kind == "gap"]
    assert set(named(outcome.findings, "gap")) & live == live - everywhere
    assert {seq for gap in gaps for seq in gap} <= live - everywhere
    assert all(set(range(end + 1, start)) & live for (_, end), (start, _) in pairwise(gaps))  # type: ignore[operator]
    again: list[int] = []
    seen: set[int] = set()
    for seqs in stored:
        again += sorted(seqs & seen)
        seen |= seqs
    assert named(outcome.findings, "duplicate") == again


@given(histories(), st.integers(1, 5), st.integers(0, 60))
def test_only_what_was_dead_in_the_log_and_is_in_a_later_segment_counts_as_a_delete_not_honoured(
    history: tuple[TopicState, list[TopicRun], list[set[int]]], next_segment: int, sealed_end: int
) -> None:
    state, runs, _ = history
    earlier = TopicState(
        0, "t", 1, state.head, 1, state.first, sealed_end, state.segments, state.deleted, state.holes
    )
    expected = []
    for run in runs:
        if run.segment >= next_segment:
            expected += sorted(
                seq
                for seq in run.present
                if seq > sealed_end and seq <= state.head and (seq < state.first or seq in state.deleted)
            )
    assert named(check_deletes(earlier, next_segment, runs, {}), "delete_not_honoured") == expected


def test_thousands_of_gaps_are_named_by_a_few_findings() -> None:
    state = TopicState(0, "t", 1, 4000, 1, 1, 4000, (1,), BitMap64(), BitMap64())
    every_other = BitMap64(range(1, 4001, 2))
    run = TopicRun(1, "t", 1, 1, 1, 3999, 2000, 5, 5, every_other, b"")
    outcome = check_topic(state, [run], {})
    assert len(outcome.missing) == 2000 and len(outcome.findings) == MAX_RANGES_NAMED
    assert outcome.findings[-1].last_seq == 4000, "the last one reaches over all that are not named"
