"""Columns and their assembly into blocks."""

from __future__ import annotations

import contextlib
from array import array
from itertools import accumulate, pairwise
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.columns import (
    COLUMN_ENDS,
    COLUMN_FLAGS,
    COLUMN_TAG,
    COLUMNS_MASK,
    FIELDS,
    Columns,
    encode_columns,
)
from shared.format_errors import BadBytes
from shared.int_arrays import dump, is_ascending, is_strictly_ascending, shift_u32
from shared.record_assembler import RecordAssembler
from tests.support.format_samples import ROW_LISTS, Batch, Row, batch_lists, every_flip, make_batch


def rows_of(columns: Columns, json: bytes) -> list[tuple[object, ...]]:
    start = 0
    rows: list[tuple[object, ...]] = []
    meta = columns.meta or [0] * columns.count
    for place, end in enumerate(columns.ends):
        labels = columns.node(place), columns.tag(place), columns.key(place)
        rows.append((json[start:end], columns.flags[place], meta[place], *labels))
        start = end
    return rows


def expected_rows(batch: Batch) -> list[tuple[object, ...]]:
    return [
        (
            row.json(batch.first_seq + place, batch.ts),
            row.flags,
            len(row.meta_part),
            row.node,
            row.tag,
            row.key,
        )
        for place, row in enumerate(batch.rows)
    ]


@given(ROW_LISTS)
def test_columns_decode_to_what_was_encoded(rows: list[Row]) -> None:
    batch = make_batch(10, 1000, rows)
    columns = batch.decoded()
    columns.verify()
    assert rows_of(columns, batch.json) == expected_rows(batch)
    for field in FIELDS:
        assert columns.values(field) == [getattr(row, field) for row in rows]


def test_a_plain_record_needs_no_columns() -> None:
    batch = make_batch(1, 1000, [Row()])
    assert (batch.column_flags, batch.columns) == (0, b"")
    assert list(batch.decoded().ends) == [len(batch.json)]
    assert batch.decoded().flags == b"\0"
    assert batch.decoded().meta is None


def test_an_empty_value_differs_from_an_absent_one() -> None:
    columns = make_batch(1, 1000, [Row(tag=b""), Row()]).decoded()
    assert columns.values("tag") == [b"", None]
    assert (columns.tag(0), columns.tag(1)) == (b"", None)


def test_flags_that_contradict_the_values_are_not_encoded() -> None:
    with pytest.raises(ValueError, match="tag"):
        encode_columns(count=1, flags=b"\0", tags=[b"x"])


@given(st.integers(0, 255), st.integers(0, 2**32), st.integers(0, 2**32), st.binary(max_size=80))
def test_garbage_raises_only_bad_bytes(flags: int, count: int, json_len: int, garbage: bytes) -> None:
    for places in (count, count % 8):
        with contextlib.suppress(BadBytes):
            Columns(flags, places, json_len % 1000, memoryview(garbage)).verify()


@given(st.integers(0, COLUMNS_MASK), st.integers(1, 3), st.binary(max_size=60))
def test_what_verifies_can_be_read(flags: int, count: int, garbage: bytes) -> None:
    try:
        columns = Columns(flags, count, 50, memoryview(garbage))
        columns.verify()
    except BadBytes:
        return
    assert len(rows_of(columns, bytes(50))) == count


def test_every_flipped_bit_leads_to_bad_bytes_or_to_sound_columns() -> None:
    # Checksums find flips; here it matters that nothing else than BadBytes comes out of them.
    batch = make_batch(1, 1000, [Row(tag=b"a", meta=b"{}"), Row(node=b"n", key=b"")])
    refused = 0
    for damaged in every_flip(batch.columns):
        try:
            columns = Columns(batch.column_flags, 2, len(batch.json), memoryview(damaged))
            columns.verify()
            rows_of(columns, batch.json)
        except BadBytes:
            refused += 1
    assert refused > len(batch.columns) * 4


@pytest.mark.parametrize("size", [0, 1, 7, 8, 300])
@pytest.mark.parametrize("delta", [0, 1, 5000, -1, -1000])
def test_shifting_a_column_adds_to_each_element(size: int, delta: int) -> None:
    values = array("I", range(1000, 1000 + 300 * size, 300))
    assert shift_u32(values, delta) == array("I", [value + delta for value in values])


@given(st.sampled_from("IQ"), st.data())
def test_whether_a_column_ascends_is_told_without_a_look_at_each_element(
    code: Literal["I", "Q"], data: st.DataObject
) -> None:
    largest = (1 << (8 * array(code).itemsize)) - 1
    near = st.integers(0, 3) | st.integers(largest // 2 - 1, largest // 2 + 2) | st.just(largest)
    values = data.draw(st.lists(near, max_size=20))
    if data.draw(st.booleans()):
        values.sort()
    column = array(code, values)
    pairs = list(pairwise(values))
    assert is_ascending(column) == all(low <= high for low, high in pairs)
    assert is_strictly_ascending(column) == all(low < high for low, high in pairs)
    rising = array(code, range(7, 7 + 5 * len(values), 5))
    assert is_strictly_ascending(rising)


@given(batch_lists(), st.data())
def test_assembled_runs_are_the_chosen_records(batches: list[Batch], data: st.DataObject) -> None:
    assembler = RecordAssembler()
    expected: list[tuple[object, ...]] = []
    seqs: list[int] = []
    times: list[int] = []
    for batch in batches:
        cuts = sorted(data.draw(st.sets(st.integers(0, len(batch.rows)), max_size=4)))
        for lo, hi in zip(cuts[::2], cuts[1::2], strict=False):
            json, columns = memoryview(batch.json), batch.decoded()
            assembler.add(json, columns, lo, hi, batch.first_seq, batch.ts)
            expected += expected_rows(batch)[lo:hi]
            seqs += range(batch.first_seq + lo, batch.first_seq + hi)
            times += [batch.ts] * (hi - lo)
    if not expected:
        return
    assert assembler.count == len(expected)
    assert assembler.json_bytes == sum(len(row[0]) for row in expected if isinstance(row[0], bytes))
    records = assembler.finish()
    columns = Columns(records.column_flags, records.count, len(records.json), memoryview(records.columns))
    columns.verify()
    assert rows_of(columns, records.json) == expected
    assert (records.first_seq, records.last_seq) == (seqs[0], seqs[-1])
    assert (records.min_ts, records.max_ts) == (min(times), max(times))
    contiguous = seqs == list(range(seqs[0], seqs[-1] + 1))
    assert records.seqs == (None if contiguous else array("Q", seqs))
    assert records.times == (None if len(set(times)) == 1 else array("Q", times))
    for place, field in enumerate(FIELDS, 3):
        assert records.distinct(field) == {row[place] for row in expected if row[place] is not None}


@given(batch_lists(), st.data())
def test_blocks_assemble_like_the_batches_they_came_from(batches: list[Batch], data: st.DataObject) -> None:
    whole = RecordAssembler()
    for batch in batches:
        whole.add(memoryview(batch.json), batch.decoded(), 0, len(batch.rows), batch.first_seq, batch.ts)
    records = whole.finish()
    columns = Columns(records.column_flags, records.count, len(records.json), memoryview(records.columns))
    cut = data.draw(st.integers(0, records.count))
    again = RecordAssembler()
    seqs = records.seqs or range(records.first_seq, records.last_seq + 1)
    times = records.times or records.min_ts
    for lo, hi in ((0, cut), (cut, records.count)):
        if lo < hi:
            again.add_block(memoryview(records.json), columns, lo, hi, seqs, times)
    assert again.finish() == records
    stamps = [times] if isinstance(times, int) else list(times)
    if stamps == sorted(stamps):
        trusting = RecordAssembler()
        for lo, hi in ((0, cut), (cut, records.count)):
            if lo < hi:
                trusting.add_block(memoryview(records.json), columns, lo, hi, seqs, times, times_ascend=True)
        assert trusting.finish() == records


def test_a_source_that_fills_a_block_alone_is_not_copied() -> None:
    json, ends = b"{},{},", array("I", [3, 6])
    whole, half = RecordAssembler(), RecordAssembler()
    whole.add_block(memoryview(json), Columns.of_ends(ends, 6), 0, 2, range(1, 3), 7)
    half.add_block(memoryview(json), Columns.of_ends(ends, 6), 1, 2, range(1, 3), 7)
    assert whole.finish().json is json
    assert half.finish().json == b"{},"


@given(st.lists(st.integers(1, 50), min_size=1, max_size=40))
def test_columns_made_of_ends_are_those_of_plain_records(sizes: list[int]) -> None:
    ends = array("I", accumulate(sizes))
    made = Columns.of_ends(ends, sum(sizes))
    made.verify()
    assert (made.column_flags, bytes(made._buffer)) == encode_columns(count=len(sizes), ends=ends)
    assert (made.ends, made.count, made.json_len) == (ends, len(sizes), sum(sizes))


@pytest.mark.parametrize("ends", [(), (0, 6), (3, 5), (3, 7)])
def test_ends_that_do_not_divide_the_json_are_refused(ends: tuple[int, ...]) -> None:
    with pytest.raises(BadBytes):
        Columns.of_ends(array("I", ends), 6)


def test_an_absent_value_with_bytes_is_refused() -> None:
    # Two ends, flags: the first has a tag, the second none; but the second's tag ends two bytes further.
    json = b"{},{},"
    tags = dump(array("I", [1, 3])) + b"abc"
    buffer = dump(array("I", [3, 6])) + b"\2\0" + tags
    columns = Columns(COLUMN_ENDS | COLUMN_FLAGS | COLUMN_TAG, 2, len(json), memoryview(buffer))
    assert columns.tag(0) == b"a"
    with pytest.raises(BadBytes, match="absent tag"):
        columns.values("tag")
