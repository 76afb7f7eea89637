"""Segments: blocks, terms, index, trailer, and the verification of whole files."""

from __future__ import annotations

import contextlib
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from shared.columns import FIELDS
from shared.format_errors import BadBytes, FormatError, NewerVersion
from shared.segment_format import (
    BLOCK_HEADER_BYTES,
    CODEC_STORED,
    CODEC_ZSTD,
    decode_block,
    decode_block_columns,
    decode_block_header,
    encode_block,
)
from shared.segment_index import decode_index
from shared.segment_reader import (
    read_block,
    read_block_columns,
    read_header,
    read_index,
    read_terms,
    read_trailer,
)
from shared.segment_scan import Finding, iter_records, verify_segment
from shared.segment_terms import Terms, decode_trailer, encode_terms
from shared.segment_writer import SegmentBuilder, SegmentTopic
from shared.zstd_part import compress, decompress
from tests.support.format_samples import (
    Batch,
    Row,
    assemble,
    batch_lists,
    every_flip,
    flip,
    make_batch,
    make_segment,
    pread_of,
)

Blocks = list[tuple[SegmentTopic, list[Batch]]]
SMALL: Blocks = [
    (
        SegmentTopic(4, "b", 1),
        [make_batch(1, 1000, [Row(tag=b"x"), Row()]), make_batch(9, 1001, [Row(key=b"k")])],
    ),
    (SegmentTopic(2, "a", 1), [make_batch(5, 1000, [Row(payload=b"null")])]),
]


@st.composite
def segments(draw: st.DrawFn) -> Blocks:
    blocks: Blocks = []
    for topic_id in draw(st.lists(st.integers(1, 50), unique=True, max_size=4)):
        topic = SegmentTopic(topic_id, f"topic-{topic_id}", draw(st.integers(0, 9)))
        seq = 1
        for _ in range(draw(st.integers(1, 3))):
            batches = draw(batch_lists(max_batches=2, first_seq=seq))
            blocks.append((topic, batches))
            seq = batches[-1].first_seq + len(batches[-1].rows)
    return blocks


def rows_of(blocks: Blocks) -> list[tuple[object, ...]]:
    return [
        (topic.topic_id, seq, batch.ts, row.flags, row.json(seq, batch.ts)[:-1], row.node, row.tag, row.key)
        for topic, batches in blocks
        for batch in batches
        for seq, row in enumerate(batch.rows, batch.first_seq)
    ]


def read_everything(content: bytes) -> list[tuple[object, ...]]:
    return [
        (each.topic_id, each.seq, each.ts, each.flags, bytes(each.json), each.node, each.tag, each.key)
        for each in iter_records(pread_of(content), len(content))
    ]


@given(batch_lists())
def test_a_block_decodes_to_what_was_encoded(batches: list[Batch]) -> None:
    records = assemble(batches)
    stored = encode_block(7, records)
    block = decode_block(memoryview(stored))
    assert bytes(block.json) == records.json
    seqs = [seq for batch in batches for seq in range(batch.first_seq, batch.first_seq + len(batch.rows))]
    assert list(block.seqs) == seqs
    assert [block.ts(place) for place in range(records.count)] == [
        batch.ts for batch in batches for _ in batch.rows
    ]
    part = decode_block_columns(memoryview(stored[: block.header.json_at]))
    assert part.header == block.header
    assert list(part.seqs) == seqs
    for field in FIELDS:
        expected = [getattr(row, field) for batch in batches for row in batch.rows]
        assert part.columns.values(field) == block.columns.values(field) == expected


def test_compression_is_used_only_where_it_pays() -> None:
    noise = "".join(chr(0x4E00 + (place * 7919) % 20_000) for place in range(40)).encode()
    dense = encode_block(1, assemble([make_batch(1, 1000, [Row(payload=b'"%s"' % noise)])]))
    assert decode_block_header(dense).codec == CODEC_STORED
    plain = encode_block(1, assemble([make_batch(1, 1000, [Row(payload=b'"%s"' % (b"a" * 5000))])]))
    assert decode_block_header(plain).codec == CODEC_ZSTD
    assert len(plain) < 300


@pytest.mark.parametrize("payload", [b"1", b'"%s"' % (b"abc" * 100)])
def test_any_flipped_bit_of_a_small_block_is_refused(payload: bytes) -> None:
    stored = encode_block(7, assemble([make_batch(1, 1000, [Row(tag=b"x", payload=payload), Row()])]))
    decode_block(memoryview(stored))
    for damaged in every_flip(stored):
        with pytest.raises(BadBytes):
            decode_block(memoryview(damaged))


@given(batch_lists(), st.data())
def test_any_flipped_bit_of_header_and_columns_is_refused_without_the_json(
    batches: list[Batch], data: st.DataObject
) -> None:
    stored = encode_block(7, assemble(batches))
    part = stored[: decode_block_header(stored).json_at]
    decode_block_columns(memoryview(part))
    with pytest.raises(BadBytes):
        decode_block_columns(memoryview(flip(part, data.draw(st.integers(0, len(part) * 8 - 1)))))


@given(st.binary(max_size=200))
def test_a_garbage_block_raises_only_format_errors(garbage: bytes) -> None:
    for content in (garbage, b"TBK1" + garbage):
        with pytest.raises(FormatError):
            decode_block(memoryview(content))


@given(st.binary(min_size=64, max_size=64), st.binary(max_size=40), st.binary(max_size=40))
def test_garbage_with_right_checksums_raises_only_format_errors(
    fields: bytes, columns: bytes, json: bytes
) -> None:
    """Past the checksums only the checks of the content are left."""
    head = bytearray(b"TBK1" + (88 + len(columns) + len(json)).to_bytes(4, "little") + fields)
    head[50:52] = b"\0\0"
    head[53:56] = bytes(3) if fields[0] % 2 else b"\0\1\0"
    for at, value in ((56, len(columns)), (60, len(columns)), (64, len(json)), (68, len(json))):
        head[at : at + 4] = value.to_bytes(4, "little")
    first = xxh3_64_intdigest(bytes(head) + columns)
    second = xxh3_64_intdigest(json, first)
    block = bytes(head) + first.to_bytes(8, "little") + columns + json + second.to_bytes(8, "little")
    with contextlib.suppress(FormatError):
        decode_block(memoryview(block)).columns.verify()


def resealed_block(stored: bytes, at: int, value: bytes) -> bytes:
    header = decode_block_header(stored)
    head = bytearray(stored[:72])
    head[at : at + len(value)] = value
    first = xxh3_64_intdigest(bytes(head) + stored[BLOCK_HEADER_BYTES : header.json_at])
    json = stored[header.json_at : -8]
    second = xxh3_64_intdigest(json, first)
    checksums = first.to_bytes(8, "little"), second.to_bytes(8, "little")
    return bytes(head) + checksums[0] + stored[80 : header.json_at] + json + checksums[1]


def test_an_unknown_codec_needs_a_newer_version() -> None:
    stored = encode_block(7, assemble([make_batch(1, 1000, [Row()])]))
    with pytest.raises(NewerVersion, match="codec 2"):
        decode_block(memoryview(resealed_block(stored, 54, b"\2\0")))


@pytest.mark.parametrize("raw_len", [0, 1, 2**31, 2**32 - 1])
@pytest.mark.parametrize("at", [60, 68])
def test_a_wrong_raw_length_is_refused_before_memory_is_taken(at: int, raw_len: int) -> None:
    rows = [Row(payload=b'"%s"' % (b"abc" * 100))] * 3
    stored = encode_block(7, assemble([make_batch(1, 1000, rows)]))
    assert decode_block_header(stored).codec == CODEC_ZSTD
    with pytest.raises(BadBytes):
        decode_block(memoryview(resealed_block(stored, at, raw_len.to_bytes(4, "little"))))


@given(segments())
def test_a_segment_reads_back_as_it_was_built(blocks: Blocks) -> None:
    content, builder = make_segment(blocks)
    pread = pread_of(content)
    assert builder.size == len(content)
    assert read_header(pread).number == 7
    assert read_everything(content) == rows_of(blocks)
    verdict = verify_segment(pread, len(content), builder.digest)
    assert verdict.findings == ()
    assert (verdict.blocks, verdict.records) == (len(blocks), len(rows_of(blocks)))
    assert verdict.digest == builder.digest == builder.sealed().digest
    index = read_index(pread, read_trailer(pread, len(content)))
    assert index.deleted == 5
    assert index.topics() == builder.topics
    for summary in builder.sealed().topics:
        rows = [row for row in rows_of(blocks) if row[0] == summary.topic_id]
        assert (summary.first, summary.last, summary.count) == (rows[0][1], rows[-1][1], len(rows))
        assert summary.json_bytes == sum(len(row[4]) + 1 for row in rows if isinstance(row[4], bytes))


@given(segments(), st.integers(0, 51), st.integers(0, 3000))
def test_lookups_agree_with_a_search_of_everything(blocks: Blocks, topic_id: int, seq: int) -> None:
    content, _ = make_segment(blocks)
    pread = pread_of(content)
    trailer = read_trailer(pread, len(content))
    index, terms = read_index(pread, trailer), read_terms(pread, trailer)
    mine = [place for place, (topic, _) in enumerate(blocks) if topic.topic_id == topic_id]
    assert list(index.blocks_of(topic_id)) == mine
    reaching = [place for place in mine if index.block(place).last >= seq]
    assert index.block_for(topic_id, seq) == (reaching[0] if reaching else None)
    for field in FIELDS:
        for value in (b"", b"a", b"b", b"alpha", b"node-1", b"zzz"):
            holding = [
                place
                for place in mine
                if any(getattr(row, field) == value for batch in blocks[place][1] for row in batch.rows)
            ]
            assert terms.find_blocks(topic_id, field, value) == holding
        for prefix in (b"", b"a", b"al", b"node", b"zzz"):
            starting = {
                place
                for place in mine
                if any(
                    (getattr(row, field) or b"").startswith(prefix)
                    for batch in blocks[place][1]
                    for row in batch.rows
                    if getattr(row, field) is not None
                )
            }
            found = index.glob_blocks(topic_id, field, prefix)
            assert starting <= set(found) <= set(mine)


@given(segments().filter(bool), st.data())
def test_columns_alone_read_like_the_whole_block(blocks: Blocks, data: st.DataObject) -> None:
    content, _ = make_segment(blocks)
    pread = pread_of(content)
    index = read_index(pread, read_trailer(pread, len(content)))
    entry = index.block(data.draw(st.integers(0, index.block_count - 1)))
    whole, part = read_block(pread, entry), read_block_columns(pread, entry)
    assert list(whole.seqs) == list(part.seqs)
    assert whole.columns.values("tag") == part.columns.values("tag")


def test_columns_longer_than_the_first_read_are_read_too() -> None:
    rows = [Row(tag=b"%d" % (place * 7919 % 100_003), key=b"%x" % (place * 104_729)) for place in range(2048)]
    content, _ = make_segment([(SegmentTopic(1, "a", 1), [make_batch(1, 1000, rows)])])
    pread = pread_of(content)
    entry = read_index(pread, read_trailer(pread, len(content))).block(0)
    part = read_block_columns(pread, entry)
    assert part.header.columns_stored > 16 << 10
    assert part.columns.values("key") == [row.key for row in rows]


def test_g03_any_flipped_bit_of_a_segment_is_found_and_placed() -> None:
    content, builder = make_segment(SMALL)
    assert verify_segment(pread_of(content), len(content)).ok
    for bit in range(len(content) * 8):
        damaged = flip(content, bit)
        verdict = verify_segment(pread_of(damaged), len(damaged), builder.digest)
        assert not verdict.ok, bit
        assert verdict.digest is None
        with contextlib.suppress(FormatError):
            # Terms are not needed for reading; everything else that is served is what was written.
            assert read_everything(damaged) == rows_of(SMALL)


@settings(max_examples=30)
@given(segments().filter(bool), st.data())
def test_g03_damage_leaves_the_other_blocks_readable(blocks: Blocks, data: st.DataObject) -> None:
    content, _ = make_segment(blocks)
    index = read_index(pread_of(content), read_trailer(pread_of(content), len(content)))
    hit = data.draw(st.integers(0, len(blocks) - 1))
    entry = index.block(hit)
    at = data.draw(st.integers(entry.offset, entry.offset + entry.length - 1))
    damaged = flip(content, at * 8 + data.draw(st.integers(0, 7)))
    for ordinal in range(index.block_count):
        if ordinal == hit:
            with pytest.raises(BadBytes):
                read_block(pread_of(damaged), index.block(ordinal))
        else:
            read_block(pread_of(damaged), index.block(ordinal))
    verdict = verify_segment(pread_of(damaged), len(damaged))
    (finding,) = verdict.findings
    assert entry.offset <= finding.offset < entry.offset + entry.length
    assert (finding.topic_id, finding.first_seq, finding.last_seq) == (
        entry.topic_id,
        entry.first,
        entry.last,
    )
    assert verdict.blocks == len(blocks) - 1


@settings(max_examples=30)
@given(segments().filter(bool), st.booleans())
def test_without_an_index_the_blocks_are_still_found(blocks: Blocks, keep_trailer: bool) -> None:
    content, _ = make_segment(blocks)
    trailer = read_trailer(pread_of(content), len(content))
    damaged = flip(content, (trailer.index_at if keep_trailer else len(content) - 64) * 8)
    verdict = verify_segment(pread_of(damaged), len(damaged))
    assert len(verdict.findings) == 1
    assert (verdict.blocks, verdict.records) == (len(blocks), len(rows_of(blocks)))


def test_without_an_index_a_bad_block_is_stepped_over() -> None:
    blocks = [
        (SegmentTopic(n, str(n), 1), [make_batch(n, 1000, [Row(payload=b'"TBK1"')] * 3)]) for n in (1, 2, 3)
    ]
    content, _ = make_segment(blocks)
    index = read_index(pread_of(content), read_trailer(pread_of(content), len(content)))
    second = index.block(1)
    for at in (second.offset, second.offset + 4, second.offset + 30, second.offset + second.length - 20):
        damaged = flip(flip(content, at * 8), len(content) * 8 - 1)
        verdict = verify_segment(pread_of(damaged), len(damaged))
        assert [finding.offset >= second.offset for finding in verdict.findings] == [True, True]
        assert (verdict.blocks, verdict.records) == (2, 6)


@given(st.binary(max_size=400), st.booleans())
def test_g04_a_foreign_file_is_reported_and_raises_only_format_errors(garbage: bytes, dressed: bool) -> None:
    content = make_segment(SMALL)[0][:64] + b"TBK1" + garbage if dressed else garbage
    assert not verify_segment(pread_of(content), len(content)).ok
    with pytest.raises(FormatError):
        read_everything(content)


@given(st.data())
def test_g04_a_truncated_segment_is_refused(data: st.DataObject) -> None:
    content, _ = make_segment(SMALL)
    cut = content[: data.draw(st.integers(0, len(content) - 1))]
    assert not verify_segment(pread_of(cut), len(cut)).ok
    with pytest.raises(FormatError):
        read_everything(cut)


def test_g05_a_trailer_that_points_outside_is_refused() -> None:
    content, _ = make_segment(SMALL)
    trailer = content[-64:]
    decode_trailer(trailer, len(content))
    for size in (len(content) - 1, len(content) + 1, 64, 127, 128, 2**40):
        with pytest.raises(BadBytes):
            decode_trailer(trailer, size)


def test_a_segment_of_the_wrong_digest_is_reported() -> None:
    content, _ = make_segment(SMALL)
    (finding,) = verify_segment(pread_of(content), len(content), "0" * 16).findings
    assert "instead of" in finding.reason


def test_a_record_with_another_seq_is_reported() -> None:
    batch = make_batch(1, 1000, [Row(), Row()])
    wrong = Batch(2, 1000, batch.rows, batch.json, batch.column_flags, batch.columns)
    content, _ = make_segment([(SegmentTopic(1, "a", 1), [wrong])])
    (finding,) = verify_segment(pread_of(content), len(content)).findings
    assert isinstance(finding, Finding) and "seq 2" in finding.reason


def test_blocks_of_a_topic_must_be_adjacent() -> None:
    builder = SegmentBuilder(0, 1, 0)
    records = assemble([make_batch(1, 1000, [Row()])])
    builder.add_block(SegmentTopic(1, "a", 1), records)
    builder.add_block(SegmentTopic(2, "b", 1), records)
    with pytest.raises(ValueError, match="adjacent"):
        builder.add_block(SegmentTopic(1, "a", 1), records)


@given(st.binary(max_size=100))
def test_a_garbage_index_raises_only_bad_bytes(garbage: bytes) -> None:
    for stored in (garbage, compress(garbage)):
        with pytest.raises(BadBytes):
            decode_index(stored, 64)


def test_an_index_that_claims_exabytes_is_refused_before_memory_is_taken() -> None:
    with pytest.raises(BadBytes):
        decode_index(b"\x28\xb5\x2f\xfd\xe0" + b"\x7f" * 8 + bytes(20), 64)


@given(st.binary(max_size=100))
def test_garbage_terms_raise_only_bad_bytes(garbage: bytes) -> None:
    with contextlib.suppress(BadBytes):
        Terms(garbage).find_blocks(1, "tag", b"x")


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1))))
def test_terms_are_two_ascending_columns(entries: list[tuple[int, int]]) -> None:
    stored = encode_terms(entries)
    assert Terms(stored).count == len(entries)
    assert len(stored) == 8 + 12 * len(entries)


def test_a_glob_finds_blocks_by_the_range_of_their_values() -> None:
    blocks = [
        (SegmentTopic(1, "a", 1), [make_batch(1, 1000, [Row(tag=b"alpha"), Row(tag=b"beta")])]),
        (SegmentTopic(1, "a", 1), [make_batch(9, 1000, [Row(tag=b"delta")])]),
        (SegmentTopic(1, "a", 1), [make_batch(20, 1000, [Row(key=b"alpha")])]),
    ]
    content, _ = make_segment(blocks)
    index = read_index(pread_of(content), read_trailer(pread_of(content), len(content)))
    expected = {b"al": [0], b"b": [0], b"alz": [0], b"de": [1], b"c": [], b"aa": [], b"e": [], b"": [0, 1]}
    assert {prefix: index.glob_blocks(1, "tag", prefix) for prefix in expected} == expected


def test_any_flipped_bit_of_the_terms_is_refused() -> None:
    content, _ = make_segment(SMALL)
    trailer = read_trailer(pread_of(content), len(content))
    assert read_terms(pread_of(content), trailer).count == 2
    for bit in range(trailer.terms_at * 8, trailer.index_at * 8):
        with pytest.raises(BadBytes, match="terms checksum"):
            read_terms(pread_of(flip(content, bit)), trailer)


def test_a_compressed_part_that_is_larger_than_stated_takes_no_memory() -> None:
    bomb = compress(bytes(64 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(BadBytes):
            decompress(bomb, 10)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
